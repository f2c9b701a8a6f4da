package lst

import (
	"sync/atomic"
	"unsafe"
)

// openSlots are the slots of a leaf in memory.
//
// While records are added a slot is one word, a cell, so that it changes in one step
// and eight of them share a line of the processor's cache: with ten thousand streams
// each line is a miss. A cell is 0 for no record, else offset<<32 |
// (segment - base)<<24 | length.
//
// Once a leaf is sealed its slots never change. Where records of one length follow
// each other at one distance, as they mostly do, they are kept as runs: that is a
// tenth of the memory, and a reader's look into it hits the cache.
type openSlots struct {
	runs  []slotRun // if not nil there are no cells
	base  uint32
	cells []atomic.Uint64
	far   []atomic.Uint64 // positions, if a segment is out of a cell's reach; nil nearly always
}

// slotRun are slots whose records lie step bytes apart and have n bytes each.
type slotRun struct {
	off         uint32 // of the first one
	step        uint32
	n           uint32
	first, last uint8
	delta       uint8 // segment - base
}

const (
	cellReach  = 1<<8 - 1
	cellLength = 1<<24 - 1
	maxRuns    = 32 // more take more memory than they save
)

func cellOf(s slot, delta uint32) uint64 {
	return uint64(s.at.off())<<32 | uint64(delta)<<24 | uint64(s.n)
}

// slotArena makes open slots out of larger pieces of memory: an append allocates
// nothing most of the time. Readers may hold slots for as long as they like, so
// nothing is ever used twice.
type slotArena struct {
	heads  []openSlots
	cells  []atomic.Uint64
	sealed []packedRuns
}

// packedRuns are slots in few runs, both beside each other.
type packedRuns struct {
	o    openSlots
	runs [4]slotRun
}

const arenaSlots = 8 * leafSlots

// make makes n empty slots for records of segment seg and those behind it.
func (a *slotArena) make(n int, seg uint32) *openSlots {
	if len(a.heads) == 0 {
		a.heads = make([]openSlots, 32)
	}
	o := &a.heads[0]
	a.heads = a.heads[1:]
	o.base = seg
	if n == 0 {
		return o
	}
	if len(a.cells) < n {
		a.cells = make([]atomic.Uint64, arenaSlots)
	}
	o.cells, a.cells = a.cells[:n:n], a.cells[n:]
	return o
}

func (o *openSlots) get(i int) slot {
	if i >= len(o.cells) {
		return o.inRuns(i)
	}
	c := o.cells[i].Load()
	if c == 0 || o.far != nil {
		return o.inFar(i, c)
	}
	return slot{pos(o.base+uint32(c>>24&cellReach))<<32 | pos(c>>32), uint32(c & cellLength)}
}

// inFar and inRuns are apart so that get is short enough to stand in its callers.
//
//go:noinline
func (o *openSlots) inFar(i int, c uint64) slot {
	if c == 0 {
		return slot{}
	}
	return slot{pos(o.far[i].Load()), uint32(c & cellLength)}
}

//go:noinline
func (o *openSlots) inRuns(i int) slot {
	for k := len(o.runs) - 1; k >= 0; k-- {
		r := &o.runs[k]
		if i >= int(r.first) {
			if i > int(r.last) {
				break
			}
			return slot{mkpos(o.base+uint32(r.delta), int64(r.off)+int64(r.step)*int64(i-int(r.first))), r.n}
		}
	}
	return slot{}
}

func (o *openSlots) has(i int) bool {
	if i < len(o.cells) {
		return o.cells[i].Load() != 0
	}
	return o.runs != nil && o.inRuns(i).at != 0
}

// next is the first slot at or after i with a record, or leafSlots.
func (o *openSlots) next(i int) int {
	for i < leafSlots && !o.has(i) {
		i++
	}
	return i
}

// nextClear is the first slot at or after i without a record, or leafSlots.
func (o *openSlots) nextClear(i int) int {
	for i < leafSlots && o.has(i) {
		i++
	}
	return i
}

// present says which of the slots below to hold a record.
func (o *openSlots) present(to int) bitmap { return o.presentIn(0, to) }

// presentIn says which of the slots [from, to) hold a record.
func (o *openSlots) presentIn(from, to int) (m bitmap) {
	if o.runs != nil {
		for i := from; i < to; i++ {
			if o.inRuns(i).at != 0 {
				m.set(i)
			}
		}
		return m
	}
	for i := from; i < min(to, len(o.cells)); i++ {
		if o.cells[i].Load() != 0 {
			m.set(i)
		}
	}
	return m
}

// all calls fn for every slot in order.
func (o *openSlots) all(fn func(i int, s slot)) {
	for i := o.next(0); i < leafSlots; i = o.next(i + 1) {
		fn(i, o.get(i))
	}
}

// segs appends the records of the slots from from on to segs, counted by segment.
func (o *openSlots) segs(from int, segs []segCount) []segCount {
	for k := range o.runs {
		r := &o.runs[k]
		if first := max(from, int(r.first)); first <= int(r.last) {
			segs = countSeg(segs, slot{mkpos(o.base+uint32(r.delta), 0), r.n}, uint32(int(r.last)-first+1))
		}
	}
	if o.runs == nil {
		for i := o.next(from); i < len(o.cells); i = o.next(i + 1) {
			segs = countSeg(segs, o.get(i), 1)
		}
	}
	return segs
}

// fits reports whether slot i can hold s.
func (o *openSlots) fits(i int, s slot) bool {
	return i < len(o.cells) && (o.far != nil || s.at.seg()-o.base <= cellReach)
}

// set stores a slot that fits: its position first, because a cell that is not 0 is
// the sign that it is there.
func (o *openSlots) set(i int, s slot) {
	if o.far != nil {
		o.far[i].Store(uint64(s.at))
		o.cells[i].Store(cellOf(s, 0))
		return
	}
	o.cells[i].Store(cellOf(s, s.at.seg()-o.base))
}

// put stores slot i, which is empty, and returns o, or a larger copy of it that
// is to be published in its place.
func (a *slotArena) put(o *openSlots, i int, s slot) *openSlots {
	if !o.fits(i, s) {
		o = a.grown(o, i+1, s.at.seg())
	}
	o.set(i, s)
	return o
}

// grown is a copy of o, in cells, with room for n slots and for records in segment
// seg.
func (a *slotArena) grown(o *openSlots, n int, seg uint32) *openSlots {
	size := 8
	for size < max(n, len(o.cells)) {
		size *= 2
	}
	base := o.base
	if len(o.cells) == 0 && o.runs == nil {
		base = seg
	}
	c := a.make(size, base)
	if o.far != nil || seg-base > cellReach {
		c.far = make([]atomic.Uint64, size)
	}
	o.all(c.set)
	return c
}

// slotsOf are the slots of a whole leaf, at is 0 for those without a record.
func slotsOf(all *[leafSlots]slot) *openSlots {
	low, high, n := ^uint32(0), uint32(0), 0
	for i := range all {
		if s := &all[i]; s.at != 0 {
			low, high, n = min(low, s.at.seg()), max(high, s.at.seg()), i+1
		}
	}
	if n == 0 {
		return &openSlots{}
	}
	if high-low <= cellReach {
		if o := (*slotArena)(nil).runsOf(low, all); o != nil {
			return o
		}
	}
	o := &openSlots{base: low, cells: make([]atomic.Uint64, n)}
	if high-low > cellReach {
		o.far = make([]atomic.Uint64, n)
	}
	for i := range n {
		if all[i].at != 0 {
			o.set(i, all[i])
		}
	}
	return o
}

// compact is o, whose slots are all, in as little memory as they take, for reading.
func (a *slotArena) compact(o *openSlots, all *[leafSlots]slot) *openSlots {
	if o.far == nil && o.runs == nil {
		if c := a.runsOf(o.base, all); c != nil {
			return c
		}
	}
	return o
}

// copyTo copies the slots to all, which is zero, and says which hold a record.
func (o *openSlots) copyTo(all *[leafSlots]slot) (m bitmap) {
	if o.runs != nil || o.far != nil {
		o.all(func(i int, s slot) { all[i] = s; m.set(i) })
		return m
	}
	for i := range min(len(o.cells), leafSlots) {
		if c := o.cells[i].Load(); c != 0 {
			all[i] = slot{pos(o.base+uint32(c>>24&cellReach))<<32 | pos(c>>32), uint32(c & cellLength)}
			m.set(i)
		}
	}
	return m
}

// runsOf makes slots as runs, nil if that would be too many. No segment is out of
// reach from base.
func (a *slotArena) runsOf(base uint32, all *[leafSlots]slot) *openSlots {
	var runs [maxRuns]slotRun
	n := 0
	var last slot
	for i, s := range all {
		if s.at == 0 {
			last = s
			continue
		}
		if last.at != 0 && s.n == last.n && s.at > last.at && s.at.seg() == last.at.seg() {
			r, step := &runs[n-1], uint32(s.at-last.at)
			if r.first == r.last {
				r.step = step
			}
			if r.step == step {
				r.last, last = uint8(i), s
				continue
			}
		}
		if n == maxRuns {
			return nil
		}
		runs[n] = slotRun{off: uint32(s.at.off()), n: s.n, first: uint8(i), last: uint8(i), delta: uint8(s.at.seg() - base)}
		n, last = n+1, s
	}
	if n <= len(packedRuns{}.runs) {
		c := a.packed()
		c.o.base = base
		c.o.runs = c.runs[:copy(c.runs[:], runs[:n])]
		return &c.o
	}
	return &openSlots{base: base, runs: append([]slotRun(nil), runs[:n]...)}
}

// packed is memory for few runs. A reader has no arena: what it reads back goes by
// itself, while leaves sealed together are let go of together.
func (a *slotArena) packed() *packedRuns {
	if a == nil {
		return new(packedRuns)
	}
	if len(a.sealed) == 0 {
		a.sealed = make([]packedRuns, 16)
	}
	c := &a.sealed[0]
	a.sealed = a.sealed[1:]
	return c
}

// memory is how many bytes the slots take.
func (o *openSlots) memory() int {
	return int(unsafe.Sizeof(*o)) + len(o.runs)*int(unsafe.Sizeof(slotRun{})) + 8*(len(o.cells)+len(o.far))
}
