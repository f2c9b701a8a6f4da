package lst

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
)

// View reads a store. All methods may be called from any goroutine, take no
// lock and never hold up the writer. Each call sees everything whose Complete or
// Commit returned before it began; two calls may see different states.
//
// A record that fails its checksum is a *Corruption error, never ErrNotFound.
// After a restart a stream or key that nobody has asked for yet is read from the
// snapshot with the first call that needs it; Streams and KVs read all that is
// left. If that meets damage the store stops, and Err says so: methods without an
// error result then show what they can.
type View struct{ ix *index }

// Err is damage of the index that a method without an error result has met, nil
// if there was none. What Stat, Has, Extents, Streams and KVs do not show is
// absent only if Err is nil.
func (v View) Err() error {
	if c := v.ix.cold.Load(); c != nil {
		if p := c.err.Load(); p != nil {
			return *p
		}
	}
	return nil
}

// Extent is a run of present sequences [From, To).
type Extent struct{ From, To uint64 }

// Stat is what the index knows of a stream.
type Stat struct {
	Trim       uint64 // sequences below it are gone
	First      uint64 // lowest present sequence; EOF if there is none
	Contiguous uint64 // end of the run of present sequences that begins at First
	EOF        uint64 // highest sequence ever appended, plus one
	Count      uint64 // records present
	Bytes      uint64 // their payload
}

// has reports whether seq is present, by the index alone.
func (st *stream) has(seq uint64) bool {
	if seq < st.trim.Load() {
		return false
	}
	l, _ := findLeaf(st.list(), seq)
	return l != nil && l.has(int(seq&(leafSlots-1)))
}

// slotOf finds a record's place.
func (x *index) slotOf(id StreamID, seq uint64) (slot, error) {
	st, err := x.streamOf(id)
	if err != nil {
		return slot{}, err
	}
	if st == nil {
		return slot{}, ErrNotFound
	}
	if seq < st.trim.Load() {
		return slot{}, ErrTrimmed
	}
	l, _ := findLeaf(st.list(), seq)
	if l == nil {
		if seq < st.trim.Load() {
			return slot{}, ErrTrimmed
		}
		return slot{}, ErrNotFound
	}
	s, err := x.leafSlot(st, l, int(seq&(leafSlots-1)))
	if err == nil && s.at == 0 {
		err = ErrNotFound
		if seq < st.trim.Load() {
			err = ErrTrimmed
		}
	}
	return s, err
}

func (x *index) leafSlot(st *stream, l *leaf, i int) (slot, error) {
	if o := l.open.Load(); o != nil {
		return o.get(i), nil
	}
	d, err := x.leafData(st.id, l.base, l.sealed.Load())
	if err != nil {
		if errors.Is(err, errDropped) {
			err = ErrTrimmed
		}
		return slot{}, err
	}
	return d.get(i), nil
}

// Get appends the payload of record seq to dst. ErrNotFound, ErrTrimmed, or a
// *Corruption; dst is returned unchanged then.
func (v View) Get(id StreamID, seq uint64, dst []byte) ([]byte, error) {
	for try := 0; ; try++ {
		s, err := v.ix.slotOf(id, seq)
		if err != nil {
			return dst, err
		}
		out, err := v.ix.readRecord(id, seq, s, dst)
		if err == nil {
			return out, nil
		}
		if !errors.Is(err, errDropped) {
			return dst, err
		}
		// The segment went between looking and reading: the index knows by now
		// that the record was trimmed, or replaced elsewhere.
		if v.ix.attached {
			return dst, fmt.Errorf("%w: segment %s was dropped after this reader's last Refresh", ErrTrimmed, segmentName(s.at.seg()))
		}
		if try == 3 {
			return dst, fmt.Errorf("lst: segment %s of record %d in stream %v is gone", segmentName(s.at.seg()), seq, id)
		}
	}
}

// Locate says where a record's payload is. Only the index is read.
func (v View) Locate(id StreamID, seq uint64) (Location, error) {
	s, err := v.ix.slotOf(id, seq)
	if err != nil {
		return Location{}, err
	}
	return Location{Segment: s.at.seg(), Offset: s.at.off(), Length: int(s.n)}, nil
}

// Has reports whether record seq is present, from the index alone.
func (v View) Has(id StreamID, seq uint64) bool {
	st, _ := v.ix.streamOf(id)
	return st != nil && st.has(seq)
}

// Stat returns what the index knows of a stream; ok is false if there is no such
// stream. Its values belong to one moment.
func (v View) Stat(id StreamID) (s Stat, ok bool) {
	st, _ := v.ix.streamOf(id)
	if st == nil {
		return Stat{}, false
	}
	for {
		ver := st.ver.Load()
		if ver&1 != 0 {
			runtime.Gosched()
			continue
		}
		s = Stat{
			Trim: st.trim.Load(), First: st.low.Load(), Contiguous: st.contig(),
			EOF: st.eof.Load(), Count: st.count(), Bytes: st.bytes.Load(),
		}
		if st.ver.Load() == ver {
			return s, true
		}
	}
}

// Extents appends the runs of present sequences to dst, in order, from the index
// alone.
func (v View) Extents(id StreamID, dst []Extent) []Extent {
	st, _ := v.ix.streamOf(id)
	if st == nil {
		return dst
	}
	trim := st.trim.Load()
	start := len(dst)
	for _, l := range st.list() {
		m := l.presentMap()
		for i := m.next(l.below(trim)); i < leafSlots; {
			to := m.nextClear(i)
			from, end := l.base+uint64(i), l.base+uint64(to)
			if k := len(dst); k > start && dst[k-1].To == from {
				dst[k-1].To = end
			} else {
				dst = append(dst, Extent{from, end})
			}
			i = m.next(to)
		}
	}
	return dst
}

// Streams calls fn for every stream whose id begins with prefix, in order of
// ids, until fn returns false.
func (v View) Streams(prefix []byte, fn func(StreamID) bool) {
	if v.ix.all() != nil {
		return
	}
	v.ix.streams.ascend(prefix, func(st *stream) bool {
		return bytes.HasPrefix(st.id[:], prefix) && fn(st.id)
	})
}

// GetKV appends the value of key to dst; ErrNotFound if there is none.
func (v View) GetKV(key, dst []byte) ([]byte, error) {
	e, err := v.ix.kvOf(key)
	if err != nil {
		return dst, err
	}
	if e == nil {
		return dst, ErrNotFound
	}
	return e.get(dst), nil
}

// KVs calls fn for every key-value whose key begins with prefix, in order of
// keys, until fn returns false. Both slices are valid only during the call.
func (v View) KVs(prefix []byte, fn func(key, value []byte) bool) {
	if v.ix.all() != nil {
		return
	}
	var key, buf []byte
	v.ix.kvs.ascend(prefix, func(e *kvEntry) bool {
		key = append(key[:0], e.key...)
		if !bytes.HasPrefix(key, prefix) {
			return false
		}
		buf = e.get(buf[:0])
		return fn(key, buf)
	})
}

// Iterator walks over a range of a stream. It belongs to one goroutine, and stays
// with the stream that it began with if that is deleted and made again.
type Iterator struct {
	v        View
	id       StreamID
	st       *stream
	next, to uint64
	seq      uint64
	val      []byte
	buf      []byte
	win      []byte // bytes of the file from winAt on, read ahead
	winAt    pos
	last     pos // end of the record before
	leaf     *leaf
	nodes    int
	err      error
}

// Range returns an iterator over the present records of stream in [from, to).
// Holes are skipped: compare Seq to find them.
func (v View) Range(id StreamID, from, to uint64) *Iterator {
	st, err := v.ix.streamOf(id)
	return &Iterator{v: v, id: id, st: st, next: from, to: to, err: err}
}

// Next moves to the next record; false at the end or after an error.
func (it *Iterator) Next() bool {
	if it.err != nil || it.st == nil {
		return false
	}
	for it.next < it.to {
		seq := it.st.nextPresent(max(it.next, it.st.trim.Load()))
		if seq >= it.to || seq >= it.st.eof.Load() {
			return false
		}
		it.next = seq + 1
		if it.read(seq) {
			it.seq = seq
			return true
		}
		if it.err != nil {
			return false
		}
	}
	return false
}

const readAhead = 64 << 10

// slot finds a record's place: one leaf serves up to 256 records in a row.
func (it *Iterator) slot(seq uint64) (slot, error) {
	base := seq &^ (leafSlots - 1)
	if it.leaf == nil || it.leaf.base != base {
		it.leaf, _ = findLeaf(it.st.list(), seq)
		it.nodes++
	}
	if it.leaf == nil {
		return slot{}, ErrNotFound
	}
	s, err := it.v.ix.leafSlot(it.st, it.leaf, int(seq&(leafSlots-1)))
	if err == nil && (s.at == 0 || seq < it.st.trim.Load()) {
		err = ErrNotFound
	}
	return s, err
}

// IndexNodes is how many index nodes the iterator has read so far: a range of 64
// records touches two at most.
func (it *Iterator) IndexNodes() int { return it.nodes }

// read loads record seq; false without an error if it was trimmed meanwhile.
func (it *Iterator) read(seq uint64) bool {
	x := it.v.ix
	s, err := it.slot(seq)
	if err == nil {
		from, n := s.at-recordCRCBytes, int(s.n)+recordCRCBytes
		f := x.files.get(s.at.seg())
		sequential := it.last != 0 && s.at > it.last && s.at-it.last < readAhead/4
		it.last = s.at + pos(s.n)
		if f != nil && it.windowed(from, n, sequential) {
			raw := it.win[from-it.winAt:][:n]
			if recordOK(raw, s.at, f.salt(), it.id, seq) {
				it.val = raw[recordCRCBytes:]
				return true
			}
		}
		it.buf, err = it.v.Get(it.id, seq, it.buf[:0])
		it.val = it.buf
	}
	if errors.Is(err, ErrTrimmed) || errors.Is(err, ErrNotFound) {
		return false
	}
	it.err = err
	return err == nil
}

// windowed reports whether [at, at+n) is in the window, after reading ahead if
// the records so far lay one behind the other.
func (it *Iterator) windowed(at pos, n int, sequential bool) bool {
	inside := func() bool { return len(it.win) > 0 && at >= it.winAt && at+pos(n) <= it.winAt+pos(len(it.win)) }
	if inside() {
		return true
	}
	if !sequential || n > readAhead/2 {
		return false
	}
	if it.v.ix.cache.has(at) {
		return false
	}
	if cap(it.win) < readAhead {
		it.win = make([]byte, readAhead)
	}
	it.win = it.win[:readAhead]
	got := it.v.ix.files.readSome(it.win, at)
	it.win, it.winAt = it.win[:got], at
	return inside()
}

// Seq is the sequence of the current record.
func (it *Iterator) Seq() uint64 { return it.seq }

// Value is the payload of the current record, valid until the next Next.
func (it *Iterator) Value() []byte { return it.val }

// Err is the error that ended the iteration, nil at the end of the range.
func (it *Iterator) Err() error { return it.err }
