package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/objstore"
)

// audit demands liveness, and then reads everything.
func (w *world) audit(failed func() bool) {
	left := 1
	for _, l := range w.logs {
		if _, err := w.newBareCatalog().LoadByID(context.Background(), l.id); errors.Is(err, meta.ErrDeleted) {
			l.deleted = true // be it that its deleter was not told
		}
		if l.deleted {
			continue
		}
		left++
		w.newClient("auditor", func(c *client) {
			(&writerActor{client: c, l: l}).audit()
			left--
		})
	}
	w.newClient("janitor", func(c *client) {
		for end := w.now + collectWithin; ; c.p.sleep(100 * millisecond) {
			why := w.uncollected()
			if why == "" {
				break
			}
			if w.now > end {
				w.fail("A4", "after %s: %s", ms(collectWithin), why)
				return
			}
		}
		left--
	})
	done := func() bool { return failed() || left == 0 }
	if !w.run(w.now+openWithin+syncWithin+2*archiveWithin+30*second, done) {
		w.fail("L1", "the audit does not end")
	}
}

// audit opens a log, appends, waits until all of it is archived, and compares what there is with what was acknowledged.
func (a *writerActor) audit() {
	w := a.client.w
	var err error
	for end, consent := w.now+openWithin, false; ; {
		if err = a.openLog(openOptions{survey: true, consent: consent, timeout: 6 * second}); err == nil {
			break
		}
		if w.now > end {
			w.fail("L1", "log %s cannot be opened %s after all faults healed: %v", a.l.name, ms(openWithin), err)
			return
		}
		consent = w.c.Disasters > 0 && w.beyond(a.l)
		a.rest(between(a.rng, 10*millisecond, 300*millisecond))
	}
	for range 3 {
		a.appendOne()
		a.appendBatch()
	}
	within := syncWithin
	if w.p.budget > 0 {
		within += archiveWithin // a full node takes appends again when what it holds is archived and dropped, which L3 gives that time
	}
	if !a.sync(within) || a.told+1 != a.w.Next() {
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
	left := func() []protocol.Range {
		before, lost := w.onRecord(a.l.id)
		return kept(before, tail, lost)
	}
	for _, n := range w.nodes {
		for _, part := range left() {
			for pos := part.From; pos <= part.To; {
				reply := r.ask(n.id, pos, part.To, 0)
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
		_, lost := w.onRecord(a.l.id)
		for _, l := range lost {
			if reply := r.ask(n.id, l.From, l.To, 0); reply != nil {
				r.served(reply)
			}
		}
	}
	cold := w.newArchive(true, w.ids).Reader(a.l.id)
	for _, part := range left() {
		for lsn := part.From; lsn <= part.To; lsn++ {
			if got[lsn] == nil {
				if rec, err := cold.Read(context.Background(), lsn, archive.Watermark{}, nil); err == nil {
					got[lsn] = rec.Data
				}
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
	before, lost := w.onRecord(a.l.id)
	for _, part := range kept(before, tail, lost) {
		for lsn := part.From; lsn <= part.To; lsn++ {
			rec, err := cold.Read(context.Background(), lsn, archive.Watermark{}, nil)
			if err != nil {
				w.fail("L3", "log %s: LSN %d of %d cannot be read from the archive: %v", a.l.name, lsn, tail, err)
				return
			}
			got[lsn] = rec.Data
		}
	}
	w.check.final(a.l.id, tail, got, "the auditor (archive)")
	for o, err := range w.objects(a.l.id) {
		var body []byte
		if err == nil {
			body, _, err = objstore.ReadAll(context.Background(), w.store.inner, arch.KeyString(o.key), 1<<20)
		}
		if err == nil {
			err = archive.Decode(o.key, body, func(r archive.Record) bool {
				if o.key.Kind == archive.Committed {
					w.check.read(a.l.id, r.LSN, r.Data, "object "+arch.KeyString(o.key))
				}
				return true
			})
		}
		if err != nil {
			w.fail("archive", "object %s: %v", arch.KeyString(o.key), err)
			return
		}
	}
	a.verify(arch, max(before, 1), tail, lost)
}

// verify is 'btrlog archive verify --deep': nothing missing, and every copy whole, in packs too.
func (a *writerActor) verify(arch *archive.Archive, from, tail protocol.LSN, lost protocol.LostRanges) {
	w := a.client.w
	c, err := arch.Contents(context.Background(), a.l.id)
	if err != nil {
		w.fail("archive", "log %s: what the store holds: %v", a.l.name, err)
		return
	}
	if missing := c.Missing(from, tail, lost); len(missing)+len(c.Broken)+len(c.Foreign) > 0 {
		w.fail("archive", "log %s from LSN %d to %d: missing %v, broken %v, foreign %v", a.l.name, from, tail, missing, c.Broken, c.Foreign)
		return
	}
	for i := range c.Stored {
		s := &c.Stored[i]
		if err := arch.Verify(context.Background(), s); err != nil {
			w.fail("archive", "log %s: LSN %d to %d in %s: %v", a.l.name, s.Key.First, s.Key.Last, s.Name, err)
			return
		}
		if s.Double {
			w.c.add(&w.c.Doubles)
		}
	}
}

// unarchived says what is missing until everything up to tail is archived and the nodes of the log have dropped it.
func (w *world) unarchived(l *simLog, tail protocol.LSN) string {
	if a := w.archivedThrough(l); a < tail {
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
		if ok && st.Activated == h.Last().Epoch {
			if why := n.leftover(l.id, st.DroppedThrough); why != "" {
				return why
			}
		}
	}
	return ""
}

// leftover says what a node's store still has of what its shard has dropped: it holds a segment file that nobody would ever free.
func (n *node) leftover(log protocol.LogID, dropped protocol.LSN) (why string) {
	v := n.core.View()
	v.Streams(binary.BigEndian.AppendUint64(nil, uint64(log)), func(id lst.StreamID) bool {
		if st, ok := v.Stat(id); ok && st.Count > 0 && st.First <= uint64(dropped) {
			why = fmt.Sprintf("dropped through %d by %s, whose store still has LSN %d of stream %v", dropped, n.id, st.First, id)
		}
		return why == ""
	})
	return why
}

// storedObject is an object of the archive as the store has it.
type storedObject struct {
	key      archive.Key
	size     int64
	modified time.Time
}

// objects lists the objects of a log past all faults.
func (w *world) objects(log protocol.LogID) iter.Seq2[storedObject, error] {
	return func(yield func(storedObject, error) bool) {
		arch := w.newArchive(true, w.ids)
		for o, err := range objstore.All(context.Background(), w.store.inner, archPrefix+log.String()+"/") {
			var k archive.Key
			if err == nil {
				k, err = arch.ParseKey(o.Key)
			}
			if !yield(storedObject{k, o.Size, o.Modified}, err) || err != nil {
				return
			}
		}
	}
}

// archivedThrough is up to where a log is trimmed, lost, or proven by the store, without a hole from LSN 1.
func (w *world) archivedThrough(l *simLog) protocol.LSN {
	before, lost := w.onRecord(l.id)
	objects, err := w.newArchive(true, w.ids).Look(context.Background(), l.id, before-1)
	if err != nil {
		w.fail("archive", "look at a healthy store: %v", err)
		return 0
	}
	return provenThrough(before-1, objects, lost)
}

// provenThrough is up to where objects prove a log without a hole behind from.
func provenThrough(from protocol.LSN, objects []protocol.ArchivedObject, lost protocol.LostRanges) protocol.LSN {
	for raised := true; raised; {
		raised = false
		if l, ok := lost.At(from + 1); ok {
			from, raised = l.To, true
		}
		for _, o := range objects {
			if end := min(o.Last, o.CLSN); o.First <= from+1 && end > from {
				from, raised = end, true
			}
		}
	}
	return from
}
