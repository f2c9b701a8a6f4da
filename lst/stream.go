package lst

import (
	"sort"
	"sync/atomic"
)

// stream is the index of one stream. The writer changes it under the store's
// lock; readers use the atomics. Stat needs several of them together: ver is
// odd while they change, and a reader that saw it odd or changed tries again.
//
// What an append at the end needs lies in the first 64 bytes, a line of the
// processor's cache: with ten thousand streams, each line touched is a miss. What
// such an append would only count up is derived instead: of a stream without
// holes neither the count nor the contiguous end is stored.
type stream struct {
	id        StreamID
	ver       atomic.Uint32
	runSeg    uint32                    // writer: the base of run's cells
	eof       atomic.Uint64             // highest sequence ever + 1
	bytes     atomic.Uint64             // payload present
	run       *[leafSlots]atomic.Uint64 // writer: the cells that the sequence eof goes to, nil: take the long way
	dirtyFrom uint64                    // writer: no leaf below this base has changed since dirty was set
	dirty     bool                      // writer: in index.dirtyStreams
	gone      bool                      // writer: deleted

	trim   atomic.Uint64           // sequences below are gone
	low    atomic.Uint64           // lowest present, eof if none
	gap    atomic.Uint64           // end of the run that starts at low, 0 if that is eof
	holes  atomic.Uint64           // sequences in [low, eof) that are not present
	leaves atomic.Pointer[[]*leaf] // ascending by base
	tail   *leaf                   // writer: the leaf added to last, nil or in leaves
	_      [16]byte                // to two whole lines: objects of 112 bytes begin anywhere in one
}

// count is the number of records present.
func (st *stream) count() uint64 { return st.eof.Load() - st.low.Load() - st.holes.Load() }

// contig is the end of the run that starts at low.
func (st *stream) contig() uint64 {
	if g := st.gap.Load(); g != 0 {
		return g
	}
	return st.eof.Load()
}

func (st *stream) setEnds(low, contig, eof, count uint64) {
	st.low.Store(low)
	if contig == eof {
		contig = 0
	}
	st.gap.Store(contig)
	st.holes.Store(eof - low - count)
	st.eof.Store(eof)
}

func (st *stream) list() []*leaf {
	if p := st.leaves.Load(); p != nil {
		return *p
	}
	return nil
}

// findLeaf returns the leaf that covers seq, or nil and where it would stand.
func findLeaf(ls []*leaf, seq uint64) (*leaf, int) {
	base := seq &^ (leafSlots - 1)
	n := len(ls)
	if n == 0 || ls[n-1].base < base {
		return nil, n
	}
	// Dense streams: the place follows from the first leaf.
	if d := (base - ls[0].base) >> leafShift; base >= ls[0].base && d < uint64(n) && ls[d].base == base {
		return ls[d], int(d)
	}
	i := sort.Search(n, func(i int) bool { return ls[i].base >= base })
	if ls[i].base == base {
		return ls[i], i
	}
	return nil, i
}

// findRun finds the cells for appends at the end. Called by the writer when it has
// changed anything but by such an append.
func (st *stream) findRun() {
	st.run = nil
	ls := st.list()
	if len(ls) == 0 || st.gone {
		return
	}
	l := ls[len(ls)-1]
	o := l.open.Load()
	if o == nil || len(o.cells) != leafSlots || o.far != nil || l.queued || l.ref != 0 || l.base != st.eof.Load()&^(leafSlots-1) {
		return
	}
	st.run, st.runSeg = (*[leafSlots]atomic.Uint64)(o.cells), o.base
}

// noteAdded sets the ends after seq was added to count records, which were
// contiguous up to contig.
func (st *stream) noteAdded(seq, count, contig uint64) {
	low, eof := st.low.Load(), max(st.eof.Load(), seq+1)
	switch {
	case count == 0:
		low, contig = seq, seq+1
	case seq < low:
		low, contig = seq, st.runEnd(seq)
	case seq == contig && seq+1 == eof:
		contig = eof
	case seq == contig:
		contig = st.runEnd(seq)
	}
	st.setEnds(low, contig, eof, count+1)
}

// resetEnds recomputes the ends after a trim or a load: count records are present,
// and contig was the contiguous end.
func (st *stream) resetEnds(count, contig uint64) {
	eof := st.eof.Load()
	if count == 0 {
		st.setEnds(eof, eof, eof, 0)
		return
	}
	low := st.nextPresent(max(st.low.Load(), st.trim.Load()))
	if contig <= low {
		contig = st.runEnd(low)
	}
	st.setEnds(low, contig, eof, count)
}

// runEnd is the end of the run of present records that holds seq.
func (st *stream) runEnd(seq uint64) uint64 {
	ls := st.list()
	for {
		l, _ := findLeaf(ls, seq)
		if l == nil {
			return seq
		}
		seq = l.base + uint64(l.nextClear(int(seq&(leafSlots-1))))
		if seq != l.base+leafSlots {
			return seq
		}
	}
}

// nextPresent is the first present sequence at or after seq, or eof.
func (st *stream) nextPresent(seq uint64) uint64 {
	ls := st.list()
	_, i := findLeaf(ls, seq)
	for ; i < len(ls); i++ {
		if k := ls[i].next(ls[i].below(seq)); k < leafSlots {
			return ls[i].base + uint64(k)
		}
	}
	return st.eof.Load()
}
