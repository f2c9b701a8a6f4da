package lst

import (
	"sort"
	"sync"
	"sync/atomic"
)

// stream is the index of one stream. The writer changes it under the store's
// lock; readers use the atomics. Stat needs several of them together: ver is
// odd while they change, and a reader that saw it odd or changed tries again.
type stream struct {
	id     StreamID
	ver    atomic.Uint32
	trim   atomic.Uint64 // sequences below are gone
	eof    atomic.Uint64 // highest sequence ever + 1
	low    atomic.Uint64 // lowest present, eof if none
	contig atomic.Uint64 // end of the run that starts at low
	count  atomic.Uint64
	bytes  atomic.Uint64
	leaves atomic.Pointer[[]*leaf] // ascending by base

	// Writer only.
	tail      *leaf  // the leaf added to last, nil or in leaves
	dirty     bool   // in index.dirtyStreams
	gone      bool   // deleted
	dirtyFrom uint64 // no leaf below this base has changed since dirty was set
}

func (st *stream) list() []*leaf {
	if p := st.leaves.Load(); p != nil {
		return *p
	}
	return nil
}

// find returns the leaf that covers seq, or nil and where it would stand.
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

type segLive struct {
	records int64
	bytes   int64
}

// index is the in-memory index. Reading needs no lock; all methods below that
// change it are called by one goroutine at a time.
type index struct {
	streams  trie[stream]
	byID     map[StreamID]*stream // the writer's way to the same streams: one look instead of a descent
	kvs      trie[kvEntry]
	files    *fileSet
	cache    *tailCache
	attached bool                      // of a Reader: the files are another process's
	lock     sync.Locker               // excludes the writer; readers take it for cold state only
	cold     atomic.Pointer[coldState] // what the restart has not read yet

	live         map[uint32]*segLive // records that are not trimmed, per segment
	liveSeg      uint32              // the one counted last
	liveLast     *segLive
	records      int64
	bytes        int64
	dirtyStreams []*stream
	dirtyKVs     []*kvEntry
	seal         []sealItem
	sealMem      []sealItem // the memory of seal
	slab         []leaf
	slots        slotArena
	sealedSlab   []struct {
		s sealedLeaf
		d leafData
	}
	cached       []*sealedLeaf // leaves whose data is in memory, a ring
	cachedNext   int
	loadedLeaves atomic.Int64 // parsed by readers and kept
	broken       error        // a record could not be indexed, because its leaf is damaged
	damage       error        // first index damage met by a trim; the segment stays pinned
}

type sealItem struct {
	st *stream
	l  *leaf
}

func newIndex(files *fileSet, cache *tailCache) *index {
	return &index{files: files, cache: cache, live: map[uint32]*segLive{}, byID: map[StreamID]*stream{}, lock: &sync.Mutex{}}
}

func (x *index) liveAdd(seg uint32, records, bytes int64) {
	v := x.liveLast
	if v == nil || x.liveSeg != seg {
		if v = x.live[seg]; v == nil {
			v = new(segLive)
			x.live[seg] = v
		}
		x.liveSeg, x.liveLast = seg, v
	}
	v.records += records
	v.bytes += bytes
	x.records += records
	x.bytes += bytes
}

// liveDrop forgets the counts of a segment.
func (x *index) liveDrop(seg uint32) {
	delete(x.live, seg)
	if x.liveSeg == seg {
		x.liveLast = nil
	}
}

func (x *index) stream(id StreamID) *stream {
	st := x.byID[id]
	if st == nil {
		st = &stream{id: id}
		x.keep(st)
	}
	return st
}

// keep makes a stream visible.
func (x *index) keep(st *stream) {
	x.byID[st.id] = st
	x.streams.put(st.id[:], st)
}

func (x *index) forget(id StreamID) {
	delete(x.byID, id)
	x.streams.del(id[:])
}

// touch notes that the leaf at base, or the stream itself, has changed.
func (x *index) touch(st *stream, base uint64) {
	if !st.dirty || base < st.dirtyFrom {
		st.dirtyFrom = base
	}
	if !st.dirty {
		st.dirty = true
		x.dirtyStreams = append(x.dirtyStreams, st)
	}
}

func (x *index) touchKV(e *kvEntry) {
	if !e.dirty {
		e.dirty = true
		x.dirtyKVs = append(x.dirtyKVs, e)
	}
}

func (x *index) newLeaf(base uint64, prev *leaf) *leaf {
	if len(x.slab) == 0 {
		x.slab = make([]leaf, 16)
	}
	l := &x.slab[0]
	x.slab = x.slab[1:]
	l.base = base
	if prev != nil && prev.count >= leafSlots/2 {
		l.open.Store(x.slots.make(leafSlots))
	} else {
		l.open.Store(x.slots.make(0))
	}
	return l
}

// leafFor finds or makes the leaf for seq.
func (x *index) leafFor(st *stream, seq uint64) *leaf {
	ls := st.list()
	l, i := findLeaf(ls, seq)
	if l != nil {
		return l
	}
	var prev *leaf
	if i > 0 {
		prev = ls[i-1]
	}
	l = x.newLeaf(seq&^(leafSlots-1), prev)
	if i == len(ls) {
		// Readers of the old slice never look beyond its length, so sharing the
		// array is safe.
		l.hdr = append(ls, l)
	} else {
		l.hdr = append(append(append(make([]*leaf, 0, len(ls)+8), ls[:i]...), l), ls[i:]...)
	}
	st.leaves.Store(&l.hdr)
	return l
}

// add makes a record visible. A record below the trim point is ignored; one
// that is present stays unless replace is set.
func (x *index) add(st *stream, seq uint64, s slot, replace bool) {
	if seq < st.trim.Load() {
		return
	}
	l := st.tail
	if l == nil || l.base != seq&^(leafSlots-1) {
		l = x.leafFor(st, seq)
		st.tail = l
	}
	i := int(seq & (leafSlots - 1))
	was := l.present[i>>6].Load()>>(i&63)&1 != 0
	if was && !replace {
		return
	}
	o := l.open.Load()
	if o == nil {
		if o = x.reopen(st, l); o == nil {
			return
		}
	}
	if l.ref != 0 {
		// Its frame is being written with what the leaf held before.
		l.ref, l.refDirty, l.queued, l.whole = 0, false, false, true
		l.dirty = l.presentMap().minus(bitmap{}.upTo(int(min(max(st.trim.Load(), l.base)-l.base, leafSlots))))
	}
	st.ver.Add(1)
	if was {
		old := o.get(i)
		x.liveAdd(old.at.seg(), -1, -int64(old.n))
		l.count--
		l.bytes -= int64(old.n)
		st.count.Add(^uint64(0))
		st.bytes.Add(-uint64(old.n))
		o = x.slots.grown(o, leafSlots) // readers of the old slots keep a matching pair
		o.set(i, s)
		l.open.Store(o)
	} else {
		if i >= len(o.s) {
			o = x.slots.grown(o, i+1)
			o.set(i, s)
			l.open.Store(o)
		} else {
			o.set(i, s)
		}
		l.setPresent(i)
	}
	l.dirty.set(i)
	l.count++
	l.bytes += int64(s.n)
	x.liveAdd(s.at.seg(), 1, int64(s.n))
	st.count.Add(1)
	st.bytes.Add(uint64(s.n))
	st.noteAdded(seq)
	st.ver.Add(1)
	x.touch(st, l.base)
	if !l.queued && (i == leafSlots-1 || l.count == leafSlots) {
		m := l.presentMap()
		if from := m.next(0); m.nextClear(from) == leafSlots {
			x.queueSeal(st, l)
		}
	}
}

func (x *index) queueSeal(st *stream, l *leaf) {
	l.queued = true
	if len(x.seal) == 0 {
		x.seal = x.sealMem[:0] // nothing waits: begin at the front again
	}
	x.seal = append(x.seal, sealItem{st, l})
	if cap(x.seal) > cap(x.sealMem) {
		x.sealMem = x.seal
	}
}

// noteAdded keeps eof, low and contig.
func (st *stream) noteAdded(seq uint64) {
	empty := st.count.Load() == 1
	if eof := st.eof.Load(); seq >= eof {
		st.eof.Store(seq + 1)
	}
	switch {
	case empty:
		st.low.Store(seq)
		st.contig.Store(seq + 1)
	case seq < st.low.Load():
		st.low.Store(seq)
		st.contig.Store(st.runEnd(seq))
	case seq == st.contig.Load():
		if seq+1 == st.eof.Load() {
			st.contig.Store(seq + 1)
		} else {
			st.contig.Store(st.runEnd(seq))
		}
	}
}

// runEnd is the end of the run of present records that holds seq.
func (st *stream) runEnd(seq uint64) uint64 {
	ls := st.list()
	for {
		l, _ := findLeaf(ls, seq)
		if l == nil {
			return seq
		}
		m := l.presentMap()
		seq = l.base + uint64(m.nextClear(int(seq&(leafSlots-1))))
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
		from := 0
		if ls[i].base < seq {
			from = int(seq - ls[i].base)
		}
		m := ls[i].presentMap()
		if k := m.next(from); k < leafSlots {
			return ls[i].base + uint64(k)
		}
	}
	return st.eof.Load()
}

// reopen brings a sealed leaf back into memory to change it.
func (x *index) reopen(st *stream, l *leaf) *openSlots {
	d, err := x.leafData(st.id, l.base, l.sealed.Load())
	if err != nil {
		x.broken = err
		return nil
	}
	o := x.slots.make(leafSlots)
	d.all(func(i int, s slot) {
		o.set(i, s)
		if l.base+uint64(i) >= st.trim.Load() {
			l.dirty.set(i)
		}
	})
	l.open.Store(o)
	l.ref, l.refDirty, l.segs, l.queued, l.whole = 0, false, nil, false, true
	return o
}

func (x *index) noteDamage(err error) {
	if x.damage == nil {
		x.damage = err
	}
}

// trimTo drops the records of st below before.
func (x *index) trimTo(st *stream, before uint64) {
	old := st.trim.Load()
	if before <= old && old != 0 {
		return
	}
	st.ver.Add(1)
	defer st.ver.Add(1)
	x.touch(st, before&^(leafSlots-1))
	ls := st.list()
	drop := 0
	for ; drop < len(ls) && ls[drop].base+leafSlots <= before; drop++ {
		x.forgetLeaf(st, ls[drop])
	}
	if drop < len(ls) && ls[drop].base < before {
		x.trimLeaf(st, ls[drop], max(old, ls[drop].base), before)
	}
	st.trim.Store(before)
	if drop > 0 {
		rest := ls[drop:]
		st.leaves.Store(&rest)
		st.tail = nil
	}
	if st.eof.Load() < before {
		st.eof.Store(before)
	}
	st.resetEnds()
}

// resetEnds recomputes low and contig after a trim or a load.
func (st *stream) resetEnds() {
	if st.count.Load() == 0 {
		st.low.Store(st.eof.Load())
		st.contig.Store(st.eof.Load())
		return
	}
	low := max(st.low.Load(), st.trim.Load())
	low = st.nextPresent(low)
	st.low.Store(low)
	if c := st.contig.Load(); c <= low {
		st.contig.Store(st.runEnd(low))
	}
}

// forgetLeaf takes a whole leaf out of the counts.
func (x *index) forgetLeaf(st *stream, l *leaf) {
	st.count.Add(-uint64(l.count))
	st.bytes.Add(-uint64(l.bytes))
	if o := l.open.Load(); o != nil {
		m := l.presentMap()
		for i := m.next(0); i < leafSlots; i = m.next(i + 1) {
			if l.base+uint64(i) >= st.trim.Load() {
				s := o.get(i)
				x.liveAdd(s.at.seg(), -1, -int64(s.n))
			}
		}
	} else {
		for _, c := range l.segs {
			x.liveAdd(c.seg, -int64(c.n), -int64(c.bytes))
		}
	}
	l.count, l.bytes, l.segs, l.queued = 0, 0, nil, true
}

// trimLeaf takes the slots [from, to) of a leaf out of the counts. If its frame
// cannot be read the leaf keeps pinning its segments: safe, and reported.
func (x *index) trimLeaf(st *stream, l *leaf, from, to uint64) {
	one := func(i int, s slot) {
		if seq := l.base + uint64(i); seq < from || seq >= to {
			return
		}
		x.liveAdd(s.at.seg(), -1, -int64(s.n))
		l.count--
		l.bytes -= int64(s.n)
		st.count.Add(^uint64(0))
		st.bytes.Add(-uint64(s.n))
		for k := range l.segs {
			if l.segs[k].seg == s.at.seg() {
				l.segs[k].n--
				l.segs[k].bytes -= uint64(s.n)
			}
		}
	}
	if o := l.open.Load(); o != nil {
		m := l.presentMap()
		for i := m.next(0); i < leafSlots; i = m.next(i + 1) {
			one(i, o.get(i))
		}
		l.dirty = l.dirty.minus(bitmap{}.upTo(int(to - l.base)))
		l.refDirty = l.ref != 0
		return
	}
	d, err := x.leafData(st.id, l.base, l.sealed.Load())
	if err != nil {
		x.noteDamage(err)
		return
	}
	d.all(one)
	l.refDirty = true
}

// upTo is the bitmap of the slots below i.
func (bitmap) upTo(i int) bitmap {
	all := bitmap{}
	for w := range all {
		all[w] = ^uint64(0)
	}
	return all.below(i)
}

func (x *index) dropStream(st *stream) {
	for _, l := range st.list() {
		x.forgetLeaf(st, l)
	}
	st.gone = true
	x.touch(st, 0)
	if x.byID[st.id] == st { // not one that a restart is still building
		x.forget(st.id)
	}
}

func (x *index) put(key, value []byte) {
	if c := x.cold.Load(); c != nil {
		c.takeKV(key)
	}
	e := x.kvs.get(key)
	if e == nil {
		e = &kvEntry{key: string(key)}
		e.set(value) // before it can be found
		x.kvs.put(key, e)
	} else {
		e.set(value)
	}
	x.touchKV(e)
}

func (x *index) delete(key []byte) {
	c := x.cold.Load()
	if e := x.kvs.get(key); e != nil {
		x.kvs.del(key)
		e.gone = true
		x.touchKV(e)
	} else if c != nil && !c.isTaken(kvKey(key)) {
		// The snapshot may hold it: the next one has to say that it is gone.
		x.touchKV(&kvEntry{key: string(key), gone: true})
	}
	if c != nil {
		c.takeKV(key)
	}
}

// apply makes one operation of a batch visible; body is the frame body at
// position at. The same code serves commits and recovery.
func (x *index) apply(op *batchOp, body []byte, at pos) {
	switch op.code {
	case opAppend, opAppendNext, opReplace:
		st := op.st
		if st == nil || st.gone {
			st = x.stream(op.stream)
		}
		x.add(st, op.seq, slot{at + pos(op.off), uint32(op.n)}, op.code == opReplace)
	case opPut:
		x.put(body[op.off:op.off+op.n], body[op.off+op.n:op.off+op.n+op.vn])
	case opDelete:
		x.delete(body[op.off : op.off+op.n])
	case opTrim:
		x.trimTo(x.stream(op.stream), op.seq)
	case opDropStream:
		if st := x.byID[op.stream]; st != nil {
			x.dropStream(st)
		}
	}
}

// sealDone switches a leaf from its open slots to its frame, once that is
// written. A leaf that was trimmed away or changed meanwhile is left alone.
func (x *index) sealDone(it sealItem, at pos, body []byte) {
	l := it.l
	if l.ref != at || l.open.Load() == nil {
		return
	}
	if len(x.sealedSlab) == 0 {
		x.sealedSlab = make([]struct {
			s sealedLeaf
			d leafData
		}, 8)
	}
	mem := &x.sealedSlab[0]
	x.sealedSlab = x.sealedSlab[1:]
	d, err := &mem.d, mem.d.parse(body, it.st.id, l.base)
	if err != nil {
		panic("lst: a leaf frame just written does not parse: " + err.Error())
	}
	l.segs = l.oneSeg[:0]
	d.all(func(i int, s slot) {
		if l.base+uint64(i) >= it.st.trim.Load() {
			l.segs = countSeg(l.segs, s)
		}
	})
	s := &mem.s
	s.at, s.size = at, uint32(len(body))
	s.data.Store(d)
	x.keepData(s)
	l.sealed.Store(s)
	l.open.Store(nil)
}

func countSeg(segs []segCount, s slot) []segCount {
	for k := range segs {
		if segs[k].seg == s.at.seg() {
			segs[k].n++
			segs[k].bytes += uint64(s.n)
			return segs
		}
	}
	return append(segs, segCount{s.at.seg(), 1, uint64(s.n)})
}

// keepData bounds the memory of parsed leaves: a ring of the most recent ones.
func (x *index) keepData(s *sealedLeaf) {
	if len(x.cached) < cachedLeaves {
		x.cached = append(x.cached, s)
		return
	}
	x.cached[x.cachedNext].data.Store(nil)
	x.cached[x.cachedNext] = s
	x.cachedNext = (x.cachedNext + 1) % cachedLeaves
}

// cachedLeaves bounds the parsed leaves in memory, of those written by this process
// and of those read back: about 1 KiB each.
const cachedLeaves = 64 << 10
