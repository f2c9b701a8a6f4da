package sim

import (
	"fmt"
	"github.com/btrlog/btrlog/internal/protocol"
	"slices"
	"strings"
)

func (x *explorer) opened(t *exState, c int, e *effect) {
	x.found.Opens++
	if e.epoch > 1 {
		x.found.Takeovers++
	}
	for lsn := e.tail + 1; lsn <= exMaxLSN; lsn++ {
		if d := t.told[lsn]; d != 0 && protocol.Epoch(t.gave[d-'a']) < e.epoch {
			x.violated("S1", "w%d opened epoch %d with tail %d, but record %c at LSN %d of epoch %d was committed", c+1, e.epoch, e.tail, d, lsn, t.gave[d-'a'])
		}
	}
	for epoch, tail := range t.tails {
		if tail != 0 && (protocol.Epoch(epoch) < e.epoch && tail-1 > uint8(e.tail) || protocol.Epoch(epoch) > e.epoch && tail-1 < uint8(e.tail)) {
			x.violated("S3", "w%d opened epoch %d with tail %d, but epoch %d was opened with tail %d", c+1, e.epoch, e.tail, epoch, tail-1)
		}
	}
	t.tails[e.epoch] = uint8(e.tail) + 1
}

// look judges what a node that has just changed serves, and whether what is committed is still somewhere.
func (x *explorer) look(t *exState, i int) {
	for _, f := range x.locals[t.nodes[i]].served {
		x.told(t, f, fmt.Sprintf("a reader of node %c", 'a'+i))
		for epoch, tail := range t.tails {
			if tail != 0 && uint8(f.lsn) > tail-1 && int(t.gave[f.data-'a']) < epoch {
				x.violated("S3", "node %c serves record %c of epoch %d at LSN %d, behind the tail %d of epoch %d", 'a'+i, f.data, t.gave[f.data-'a'], f.lsn, tail-1, epoch)
			}
		}
	}
	x.kept(t)
}

// kept: what was told is on some disk (S6).
func (x *explorer) kept(t *exState) {
	var holds uint64
	for _, n := range t.nodes {
		holds |= x.locals[n].holds
	}
	for lsn, d := range t.told {
		if d != 0 && holds&(fact{protocol.LSN(lsn), d}).bit() == 0 {
			x.violated("S6", "record %c at LSN %d is committed, and no node has it any more", d, lsn)
		}
	}
}

// told notes that somebody was told that a record is in the log.
func (x *explorer) told(t *exState, f fact, who string) {
	switch old := t.told[f.lsn]; {
	case old == 0:
		t.told[f.lsn] = f.data
	case old != f.data:
		x.violated("S4", "LSN %d is record %c to somebody, and record %c to %s", f.lsn, old, f.data, who)
	}
}

func (x *explorer) violated(rule, format string, args ...any) {
	if x.found.Rule == "" {
		x.found.Rule, x.found.Message = rule, fmt.Sprintf(format, args...)
	}
}

func (x *explorer) mayWipe(s *exState, i int) bool {
	ok := func(e protocol.Ensemble) bool {
		gone, hit := 0, false
		for _, m := range e {
			slot := int(m.Node[0] - 'a')
			if x.locals[s.nodes[slot]].inc != m.Incarnation {
				gone++
			} else if slot == i {
				hit = true
			}
		}
		return !hit || gone+1 <= x.o.Qw-1
	}
	r := &x.records[s.record]
	if !ok(r.ensemble) {
		return false
	}
	for _, c := range s.clients {
		if l := &x.locals[c]; l.opening && l.epoch == r.epoch && !ok(l.target) {
			return false
		}
	}
	return true
}

// trace tells the way to a state.
func (x *explorer) trace(number int) {
	var way []action
	for ; number != 0; number = int(x.parents[number]) {
		way = append(way, x.actions[number])
	}
	for _, a := range slices.Backward(way) {
		line := ""
		switch a.kind {
		case actToken:
			line = fmt.Sprintf("w%d takes the token for epoch %d", a.part+1, a.arg)
		case actReopen:
			line = fmt.Sprintf("w%d, which is open, takes the token for epoch %d", a.part+1, a.arg)
		case actDeliver:
			line = x.describe(&x.letters[a.arg])
		case actInstall:
			line = fmt.Sprintf("w%d's compare-and-swap gets to the record", a.part+1)
		case actAppend:
			line = fmt.Sprintf("w%d appends record %c", a.part+1, a.arg)
		case actTick:
			line = fmt.Sprintf("w%d's timer", a.part+1)
		case actCrash:
			line = fmt.Sprintf("node %c dies and starts again", 'a'+a.part)
		case actDamage:
			line = fmt.Sprintf("node %c starts again and cannot read record %d@%d any more", 'a'+a.part, refOf(a.arg).LSN, refOf(a.arg).Label)
		case actWipe:
			line = fmt.Sprintf("node %c gets an empty disk", 'a'+a.part)
		}
		x.found.Trace = append(x.found.Trace, line)
	}
}

// Text is what people are told of an exploration.
func (f *Explored) Text(o Exploration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "world: %d nodes, write quorum %d, %d opens (%d by a live writer), %d records, %d crashes, %d wiped disks, %d damaged records; loss, duplication and reordering without bound; node symmetry %v\n",
		o.Nodes, o.Qw, o.Writers, o.Reopens, o.Records, o.Crashes, o.Wipes, o.Damages, !o.NoSymmetry)
	if o.Opened {
		b.WriteString("it begins with an open log\n")
	}
	if o.Tails {
		b.WriteString("tails are read with the promise\n")
	}
	fmt.Fprintf(&b, "states=%d steps=%d depth=%d parts=%d messages=%d opens=%d takeovers=%d commits=%d cpu=%.1fs\n", f.States, f.Steps, f.Depth, f.Parts, f.Letters, f.Opens, f.Takeovers, f.Commits, f.CPU.Seconds())
	if f.Rule != "" {
		fmt.Fprintf(&b, "VIOLATION %s: %s\nafter %d steps, a shortest way:\n", f.Rule, f.Message, len(f.Trace))
		for i, l := range f.Trace {
			fmt.Fprintf(&b, "%4d  %s\n", i+1, l)
		}
		return b.String()
	}
	if f.Exhausted {
		b.WriteString("exhausted: no state is left, and no rule was broken\n")
	} else {
		b.WriteString("NOT exhausted: the limit of states was reached\n")
	}
	return b.String()
}
