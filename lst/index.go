package lst

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
)

type segLive struct {
	records int64
	bytes   int64
}

// index is the in-memory index. Reading needs no lock; all methods below that
// change it are called by one goroutine at a time.
type index struct {
	streams  trie[stream]
	byID     streamTable // the same streams
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
	dirtyStreams []dirtyStream
	dirtyKVs     []*kvEntry
	seal         []sealItem
	sealMem      []sealItem // the memory of seal
	slab         []leaf
	slots        slotArena
	sealedSlab   []sealedLeaf
	cached       []*sealedLeaf // leaves whose slots are in memory, oldest first
	cachedBytes  int
	loaded       loadedLeaves
	broken       error // a record could not be indexed, because its leaf is damaged
	damage       error // first index damage met by a trim; the segment stays pinned
}

type sealItem struct {
	st *stream
	l  *leaf
}

func newIndex(files *fileSet, cache *tailCache) *index {
	return &index{files: files, cache: cache, live: map[uint32]*segLive{}, lock: &sync.Mutex{}}
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
	st := x.byID.get(&id)
	if st == nil {
		st = &stream{id: id}
		x.keep(st)
	}
	return st
}

// keep makes a stream visible.
func (x *index) keep(st *stream) {
	x.byID.put(st)
	x.streams.put(st.id[:], st)
}

func (x *index) forget(id StreamID) {
	x.byID.del(&id)
	x.streams.del(id[:])
}

// touch notes that the leaf at base, or the stream itself, has changed.
func (x *index) touch(st *stream, base uint64) {
	if !st.dirty || base < st.dirtyFrom {
		st.dirtyFrom = base
	}
	if !st.dirty {
		st.dirty = true
		x.dirtyStreams = append(x.dirtyStreams, dirtyStream{binary.BigEndian.Uint64(st.id[:]), st})
	}
}

func (x *index) touchKV(e *kvEntry) {
	if !e.dirty {
		e.dirty = true
		x.dirtyKVs = append(x.dirtyKVs, e)
	}
}

// newLeaf makes a leaf for records in segment seg and those behind it. prev is the
// one in front of it.
func (x *index) newLeaf(base uint64, seg uint32, prev *leaf) *leaf {
	if len(x.slab) == 0 {
		x.slab = make([]leaf, 16)
	}
	l := &x.slab[0]
	x.slab = x.slab[1:]
	l.base = base
	n := 0
	if prev != nil && seg != 0 {
		if o := prev.open.Load(); o == nil || len(o.cells) > leafSlots/2 {
			n = leafSlots // it will fill, too
		}
	}
	l.open.Store(x.slots.make(n, seg))
	return l
}

// leafFor finds or makes the leaf for seq, whose record is in segment seg, 0 if
// that is not known yet.
func (x *index) leafFor(st *stream, seq uint64, seg uint32) *leaf {
	ls := st.list()
	l, i := findLeaf(ls, seq)
	if l != nil {
		return l
	}
	var prev *leaf
	if i > 0 {
		prev = ls[i-1]
	}
	l = x.newLeaf(seq&^(leafSlots-1), seg, prev)
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
	if st.run != nil && seq == st.eof.Load() && s.at.seg()-st.runSeg <= cellReach {
		st.run[seq&(leafSlots-1)].Store(cellOf(s, s.at.seg()-st.runSeg))
		x.grew(st, seq, 1, s.at.seg(), uint64(s.n))
		return
	}
	if seq < st.trim.Load() {
		return
	}
	l := st.tail
	if l == nil || l.base != seq&^(leafSlots-1) {
		l = x.leafFor(st, seq, s.at.seg())
		st.tail = l
	}
	i := int(seq & (leafSlots - 1))
	was := l.has(i)
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
	}
	count, contig := st.count(), st.contig()
	st.ver.Add(1)
	if was {
		old := o.get(i)
		x.liveAdd(old.at.seg(), -1, -int64(old.n))
		st.bytes.Add(-uint64(old.n))
		o = x.slots.grown(o, leafSlots, s.at.seg()) // readers of the old slots keep a matching pair
		o.set(i, s)
		l.open.Store(o)
	} else {
		if c := x.slots.put(o, i, s); c != o {
			o = c
			l.open.Store(o)
		}
		st.noteAdded(seq, count, contig)
	}
	l.dirty.set(i)
	x.liveAdd(s.at.seg(), 1, int64(s.n))
	st.bytes.Add(uint64(s.n))
	st.ver.Add(1)
	x.touch(st, l.base)
	if !l.queued && (i == leafSlots-1 || o.has(0)) && o.has(leafSlots-1) && o.nextClear(o.next(0)) == leafSlots {
		x.queueSeal(st, l)
	}
	st.findRun()
}

// grew notes n records of bytes bytes in segment seg whose cells were stored in
// st.run, from the sequence seq on, which is the stream's EOF.
func (x *index) grew(st *stream, seq uint64, n int, seg uint32, bytes uint64) {
	ver := st.ver.Load()
	st.ver.Store(ver + 1)
	storeRelease(&st.bytes, st.bytes.Load()+bytes)
	storeRelease(&st.eof, seq+uint64(n))
	st.ver.Store(ver + 2)
	x.liveAdd(seg, int64(n), int64(bytes))
	x.touch(st, seq&^(leafSlots-1))
	if (seq+uint64(n))&(leafSlots-1) == 0 {
		// The last slot: settle the leaf if there is no hole in it.
		ls := st.list()
		l := ls[len(ls)-1]
		o := l.open.Load()
		if st.holes.Load() == 0 && st.low.Load() <= l.base || o.nextClear(o.next(0)) == leafSlots {
			x.queueSeal(st, l)
		}
		st.findRun()
	}
}

// applyBatch makes the operations of a batch visible; body is the frame body at
// position at. Records that follow each other at the end of a stream are taken
// together.
func (x *index) applyBatch(ops []batchOp, body []byte, at pos) {
	for i := 0; i < len(ops); {
		op := &ops[i]
		if op.code == opAppendNext && op.st == nil {
			op.st = ops[i-1].st // made by that one
		}
		st := op.st
		if op.code > opAppendNext || st == nil || st.run == nil || op.seq != st.eof.Load() || at.seg()-st.runSeg > cellReach {
			x.apply(op, body, at)
			i++
			continue
		}
		delta, first, bytes := at.seg()-st.runSeg, i, uint64(0)
		k := int(op.seq & (leafSlots - 1))
		for {
			storeRelease(&st.run[k], cellOf(slot{at + pos(op.off), uint32(op.n)}, delta))
			bytes += uint64(op.n)
			i, k = i+1, k+1
			if i == len(ops) || ops[i].code != opAppendNext || k == leafSlots {
				break
			}
			op = &ops[i]
		}
		x.grew(st, ops[first].seq, i-first, at.seg(), bytes)
	}
}

func (x *index) queueSeal(st *stream, l *leaf) {
	l.queued = true
	st.run = nil
	if len(x.seal) == 0 {
		x.seal = x.sealMem[:0] // nothing waits: begin at the front again
	}
	x.seal = append(x.seal, sealItem{st, l})
	if cap(x.seal) > cap(x.sealMem) {
		x.sealMem = x.seal
	}
}

// reopen brings a sealed leaf back into memory to change it.
func (x *index) reopen(st *stream, l *leaf) *openSlots {
	d, err := x.leafData(st.id, l.base, l.sealed.Load())
	if err != nil {
		x.broken = err
		return nil
	}
	o := x.slots.grown(d, leafSlots, d.base)
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
	count, contig := st.count(), st.contig()
	ls := st.list()
	drop := 0
	for ; drop < len(ls) && ls[drop].base+leafSlots <= before; drop++ {
		count -= x.forgetLeaf(st, ls[drop])
	}
	if drop < len(ls) && ls[drop].base < before {
		count -= x.trimLeaf(st, ls[drop], max(old, ls[drop].base), before)
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
	st.resetEnds(count, contig)
	st.findRun()
}

// forgetLeaf takes a whole leaf out of the live counts and the stream's bytes, and
// returns how many records it had.
func (x *index) forgetLeaf(st *stream, l *leaf) (n uint64) {
	for _, c := range l.liveSegs(st.trim.Load()) {
		x.liveAdd(c.seg, -int64(c.n), -int64(c.bytes))
		st.bytes.Add(-c.bytes)
		n += uint64(c.n)
	}
	l.segs, l.queued = nil, true
	return n
}

// trimLeaf does the same for the slots [from, to). If its frame cannot be read the
// leaf keeps pinning its segments: safe, and reported.
func (x *index) trimLeaf(st *stream, l *leaf, from, to uint64) (n uint64) {
	one := func(i int, s slot) {
		if seq := l.base + uint64(i); seq < from || seq >= to {
			return
		}
		x.liveAdd(s.at.seg(), -1, -int64(s.n))
		st.bytes.Add(-uint64(s.n))
		n++
		for k := range l.segs {
			if l.segs[k].seg == s.at.seg() {
				l.segs[k].n--
				l.segs[k].bytes -= uint64(s.n)
			}
		}
	}
	if o := l.open.Load(); o != nil {
		o.all(one)
		l.refDirty = l.ref != 0
		return n
	}
	d, err := x.leafData(st.id, l.base, l.sealed.Load())
	if err != nil {
		x.noteDamage(err)
		return 0
	}
	d.all(one)
	l.refDirty = true
	return n
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
	st.ver.Add(1)
	for _, l := range st.list() {
		x.forgetLeaf(st, l)
	}
	st.gone, st.run = true, nil
	eof := st.eof.Load()
	st.setEnds(eof, eof, eof, 0)
	st.ver.Add(1)
	x.touch(st, 0)
	if x.byID.get(&st.id) == st { // not one that a restart is still building
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
			op.st = st
		}
		x.add(st, op.seq, slot{at + pos(op.off), uint32(op.n)}, op.code == opReplace)
	case opPut:
		x.put(body[op.off:op.off+op.n], body[op.off+op.n:op.off+op.n+op.vn])
	case opDelete:
		x.delete(body[op.off : op.off+op.n])
	case opTrim:
		x.trimTo(x.stream(op.stream), op.seq)
	case opDropStream:
		if st := x.byID.get(&op.stream); st != nil {
			x.dropStream(st)
		}
	}
}

// sealDone switches a leaf from its open slots to its frame, once that is written; its
// slots stay in memory for a while. A leaf that was trimmed away or changed meanwhile
// is left alone.
func (x *index) sealDone(p *pendingSeal) {
	l := p.it.l
	if l.ref != p.at || l.open.Load() == nil {
		return
	}
	if len(x.sealedSlab) == 0 {
		x.sealedSlab = make([]sealedLeaf, 16)
	}
	s := &x.sealedSlab[0]
	x.sealedSlab = x.sealedSlab[1:]
	l.segs = p.data.segs(l.below(p.it.st.trim.Load()), l.oneSeg[:0])
	s.at, s.size = p.at, uint32(p.bytes)
	x.keepData(s, p.data)
	// Readers look at open first, and then find the others in place.
	l.setSealedMap(p.present)
	l.sealed.Store(s)
	l.open.Store(nil)
}

// countSeg counts n records like the one at s.
func countSeg(segs []segCount, s slot, n uint32) []segCount {
	for k := range segs {
		if segs[k].seg == s.at.seg() {
			segs[k].n += n
			segs[k].bytes += uint64(n) * uint64(s.n)
			return segs
		}
	}
	return append(segs, segCount{s.at.seg(), n, uint64(n) * uint64(s.n)})
}

// keepData keeps the slots of a leaf that was just sealed in memory, and lets go of
// the oldest.
func (x *index) keepData(s *sealedLeaf, o *openSlots) {
	s.data.Store(o)
	x.cached = append(x.cached, s)
	x.cachedBytes += o.memory()
	for x.cachedBytes > cachedBytes/2 {
		x.cachedBytes -= x.cached[0].data.Load().memory()
		x.cached[0].data.Store(nil)
		x.cached[0] = nil
		x.cached = x.cached[1:]
	}
}

// cachedBytes bounds the memory for slots of sealed leaves: half of it for those
// sealed last by this process, half for those read back. A variable for tests.
var cachedBytes = 64 << 20
