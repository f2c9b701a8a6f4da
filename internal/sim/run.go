package sim

import (
	"fmt"
	"path/filepath"
	"sort"
	"strings"
	"time"
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
	if w.p.logs >= 8 {
		w.c.add(&w.c.ManyLogs)
	}
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
		w.inhabit(l)
		if w.p.deletes {
			w.deleter(l)
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
