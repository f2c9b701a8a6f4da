package sim

import (
	"context"
	"fmt"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// Failure is the first violation of a run.
type Failure struct {
	Seed    uint64        `json:"seed"`
	Rule    string        `json:"rule"` // S1–S6, L1–L3, or what else was broken
	Message string        `json:"message"`
	At      time.Duration `json:"at"` // virtual time
	Params  string        `json:"params"`
	Trace   []byte        `json:"-"`
}

func (f *Failure) Error() string {
	return fmt.Sprintf("%s violated at %v: %s", f.Rule, f.At, f.Message)
}

// outcome is what one seed did.
type outcome struct {
	failure  *Failure
	counters counters
	trace    []byte
	sum      uint64
}

// Limits of a healed world, in virtual time: what takes longer never comes.
const (
	openWithin    = 20 * second
	syncWithin    = 10 * second
	archiveWithin = 60 * second
)

// maxEvents is far above what any run needs.
const maxEvents = 2_000_000

// runSeed runs one world from its birth to the verdict.
func runSeed(seed uint64, m Mutant, verbose bool) (o outcome) {
	w := newWorld(seed, m, verbose)
	defer func() {
		if r := recover(); r != nil {
			w.fail("panic", "%v", r)
		}
		w.c.Events = w.steps
		w.c.VirtualMS = int(w.now / millisecond)
		o = outcome{failure: w.failure, counters: w.c, sum: uint64(w.sum)}
		if w.trace != nil {
			w.traceDisks()
			o.trace = w.trace.Bytes()
			if o.failure != nil {
				o.failure.Trace = o.trace
			}
		}
		w.trace = nil
		for p := range w.procs {
			p.kill()
		}
	}()
	for _, l := range w.logs {
		for range w.p.writers {
			w.writerLife(l)
		}
		if w.p.trims {
			w.trimmer(l)
		}
		for range w.p.readers {
			w.hotReader(l, false)
			w.hotReader(l, true)
			w.coldReader(l)
			w.mergeReader(l)
		}
	}
	w.nemesis()
	failed := func() bool {
		if w.steps > maxEvents {
			w.fail("L0", "%d events in %s of virtual time: somebody spins", w.steps, ms(w.now))
		}
		return w.failure != nil
	}
	if w.run(w.p.chaos, failed) {
		return
	}
	w.heal()
	if w.run(w.now+2*second, failed) {
		return
	}
	w.audit(failed)
	return
}

// traceDisks ends a trace with what is on the disks, so that two runs of a seed are compared in that too.
func (w *world) traceDisks() {
	for _, n := range w.nodes {
		files, err := n.disk.Mem.List(shardDir)
		if err != nil {
			w.tracef("disk of %s: %v", n.id, err)
			continue
		}
		for _, f := range files {
			b, err := n.disk.ReadFile(filepath.Join(shardDir, f))
			var sum digest
			sum.bytes(b)
			w.tracef("disk of %s: %s: %d bytes, %016x, %v", n.id, f, len(b), uint64(sum), err)
		}
	}
}

// heal ends all faults and starts every node: from here on the system must come back by itself.
func (w *world) heal() {
	w.tracef("heal")
	w.healed = true
	if w.p.powerCutAtEnd {
		w.powerCutOfAll()
	}
	w.net.heal()
	w.store.heal()
	for _, n := range w.nodes {
		n.slow, n.noStore = 0, 0
		if n.flusher != nil {
			n.flusher.wake() // it may be asleep for long
		}
		switch n.state {
		case nodeRefused:
			w.wipe(n)
		case nodeDown:
			n.restartIn(0)
		}
	}
}

// audit demands liveness, and then reads everything.
func (w *world) audit(failed func() bool) {
	left := len(w.logs)
	for _, l := range w.logs {
		c := w.newClient("auditor", func(c *client) {
			(&writerActor{client: c, l: l}).audit()
			left--
		})
		_ = c
	}
	done := func() bool { return failed() || left == 0 }
	if !w.run(w.now+openWithin+syncWithin+archiveWithin+30*second, done) {
		w.fail("L1", "the audit does not end")
	}
}

// audit opens a log, appends, waits until all of it is archived, and compares what there is with what was acknowledged.
func (a *writerActor) audit() {
	w := a.client.w
	var err error
	for end := w.now + openWithin; ; {
		if err = a.openLog(openOptions{survey: true, timeout: 6 * second}); err == nil {
			break
		}
		if w.now > end {
			w.fail("L1", "log %s cannot be opened %s after all faults healed: %v", a.l.name, ms(openWithin), err)
			return
		}
		a.rest(between(a.rng, 10*millisecond, 300*millisecond))
	}
	for range 3 {
		a.appendOne()
		a.appendBatch()
	}
	if !a.sync(syncWithin) || a.told+1 != a.w.Next() {
		w.fail("L2", "log %s: appends at epoch %d commit up to %d, not %d: %v", a.l.name, a.w.Epoch(), a.w.Committed(), a.w.Next()-1, a.w.Err())
		return
	}
	if !a.close() {
		w.fail("L2", "log %s: the watermark %d does not reach a quorum: %v", a.l.name, a.w.Committed(), a.w.Err())
		return
	}
	tail := a.w.Committed()
	w.tracef("%s: log %s has tail %d", a.name, a.l.name, tail)
	a.readHot(tail)
	for end := w.now + archiveWithin; ; {
		why := w.unarchived(a.l, tail)
		if why == "" {
			break
		}
		if w.now > end {
			w.fail("L3", "log %s with tail %d: %s", a.l.name, tail, why)
			return
		}
		a.pump(w.now + 100*millisecond)
	}
	a.readCold(tail)
}

// readHot reads the log through the nodes, each for itself first, and all of it together with the archive.
func (a *writerActor) readHot(tail protocol.LSN) {
	w := a.client.w
	got := map[protocol.LSN][]byte{}
	r := &readerActor{client: a.client, l: a.l}
	for _, n := range w.nodes {
		for pos := protocol.LSN(1); pos <= tail; {
			reply := r.ask(n.id, pos, tail, 0)
			if reply == nil || reply.Through < pos {
				break
			}
			for _, rec := range reply.Records {
				if rec.LSN <= reply.CLSN {
					w.check.read(a.l.id, rec.LSN, rec.Data, fmt.Sprintf("%s (read by the auditor)", n.id))
					got[rec.LSN] = rec.Data
				}
			}
			pos = reply.Through + 1
		}
	}
	cold := w.newArchive(true, w.ids).Reader(a.l.id)
	for lsn := protocol.LSN(1); lsn <= tail; lsn++ {
		if got[lsn] == nil {
			if rec, err := cold.Read(context.Background(), lsn, archive.Watermark{}, nil); err == nil {
				got[lsn] = rec.Data
			}
		}
	}
	w.check.final(a.l.id, tail, got, "the auditor")
}

// readCold reads the log from the archive alone, and every object in it.
func (a *writerActor) readCold(tail protocol.LSN) {
	w := a.client.w
	arch := w.newArchive(true, w.ids)
	cold := arch.Reader(a.l.id)
	got := map[protocol.LSN][]byte{}
	for lsn := protocol.LSN(1); lsn <= tail; lsn++ {
		rec, err := cold.Read(context.Background(), lsn, archive.Watermark{}, nil)
		if err != nil {
			w.fail("L3", "log %s: LSN %d of %d cannot be read from the archive: %v", a.l.name, lsn, tail, err)
			return
		}
		got[lsn] = rec.Data
	}
	w.check.final(a.l.id, tail, got, "the auditor (archive)")
	ctx := context.Background()
	for o, err := range objstore.All(ctx, w.store.inner, "sim/arch/") {
		if err != nil {
			w.fail("archive", "list: %v", err)
			return
		}
		k, err := arch.ParseKey(o.Key)
		if err != nil || k.Log != a.l.id {
			continue
		}
		body, _, err := objstore.ReadAll(ctx, w.store.inner, o.Key, 1<<20)
		if err == nil {
			err = archive.Decode(k, body, func(r archive.Record) bool {
				if k.Kind == archive.Committed {
					w.check.read(a.l.id, r.LSN, r.Data, "object "+o.Key)
				}
				return true
			})
		}
		if err != nil {
			w.fail("archive", "object %s: %v", o.Key, err)
			return
		}
	}
}

// unarchived says what is missing until everything up to tail is archived and the nodes of the log have dropped it.
func (w *world) unarchived(l *simLog, tail protocol.LSN) string {
	if a := w.archivedThrough(l.id); a < tail {
		return fmt.Sprintf("archived through %d only", a)
	}
	e, h, err := w.recorded(l)
	if err != nil {
		return err.Error()
	}
	for _, m := range e {
		n := w.byID[m.Node]
		if n.inc != m.Incarnation || n.core == nil {
			continue
		}
		st, ok := n.core.Log(l.id)
		if ok && st.Activated == h.Last().Epoch && st.DroppedThrough < tail {
			return fmt.Sprintf("archived, but %s has dropped through %d only (archived through %d there, watermark %d, highest %d)",
				n.id, st.DroppedThrough, st.ArchivedThrough, st.CLSN, st.Highest)
		}
	}
	return ""
}

// text prints counters, sorted.
func (c *counters) text() string {
	t := c.table()
	keys := make([]string, 0, len(t))
	for k := range t {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	var b strings.Builder
	for i, k := range keys {
		if i > 0 && i%6 == 0 {
			b.WriteByte('\n')
		} else if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s=%d", k, t[k])
	}
	return b.String()
}
