package lst

import (
	"fmt"

	"github.com/btrlog/btrlog/lst/vfs"
)

// loadSnapshot reads the chain of roots down to a base and builds the index.
func (r *recovery) loadSnapshot() error {
	chain, err := r.readChain(r.root)
	if err != nil {
		return err
	}
	r.chain = chain
	for i := len(chain) - 1; i >= 0; i-- {
		for k := range chain[i].pieces {
			if err := r.loadPiece(r.ix, chain[i], k); err != nil {
				return err
			}
		}
	}
	r.ix.streams.ascend(nil, func(st *stream) bool {
		err = r.ix.loadedStream(st)
		return err == nil
	})
	return err
}

func (r *recovery) corrupt(at pos, reason string) error {
	return &Corruption{File: segmentPath(r.dir, at.seg()), Offset: at.off(), Reason: reason}
}

// frameAt reads one frame that must be there. size and crc are checked unless
// size is 0. The body is valid until the next call of r.
func (r *recovery) frameAt(at pos, kind frameKind, size, crc uint32) (h frameHead, body []byte, err error) {
	if !r.exists(at.seg()) {
		return h, nil, &Corruption{File: segmentPath(r.dir, at.seg()), Reason: "segment file is missing"}
	}
	s, err := r.segment(at.seg())
	if err != nil {
		return h, nil, err
	}
	if s.reason != "" {
		return h, nil, &Corruption{File: s.path, Reason: s.reason}
	}
	f, err := r.fs.Open(s.path, vfs.ReadOnly)
	if err != nil {
		return h, nil, err
	}
	defer f.Close()
	w := &frameReader{f: f, size: min(s.size, at.off()+frameHeadBytes+max(int64(size), 16<<10)), win: r.buf[:0]}
	h, body, ok, err := w.frame(at.off(), s.size, s.number, s.head.salt)
	if err == nil && !ok && h.length > 0 && size == 0 {
		// A root larger than the guess.
		w.size = min(s.size, at.off()+frameHeadBytes+int64(h.length))
		h, body, ok, err = w.frame(at.off(), s.size, s.number, s.head.salt)
	}
	r.buf = w.win
	if err != nil {
		return h, nil, err
	}
	if !ok || h.kind != kind || size != 0 && (h.length != size || h.crc != crc) {
		return h, nil, r.corrupt(at, fmt.Sprintf("snapshot frame of kind %d is damaged", kind))
	}
	return h, body, nil
}

// loadTable applies one piece of a snapshot. Counts are left for loaded.
func (x *index) loadTable(body []byte, number uint64) error {
	r := &reader{b: body}
	if r.uvarint() != number || r.bad {
		return fmt.Errorf("table belongs to another snapshot")
	}
	for r.left() > 0 && !r.bad {
		switch kind := r.byte(); kind {
		case entryKV:
			k, v := r.length(maxKeyBytes), r.length(maxValueBytes)
			key := r.bytes(k)
			val := r.bytes(v)
			if !r.bad && k > 0 {
				x.loadKV(key, val)
			}
		case entryKVGone:
			if key := r.bytes(r.length(maxKeyBytes)); !r.bad {
				x.kvs.del(key)
			}
		case entryStreamGone:
			var id StreamID
			r.copy(id[:])
			if !r.bad {
				x.forget(id)
			}
		case entryStream:
			x.loadStream(r)
		default:
			return fmt.Errorf("unknown table entry %d", kind)
		}
	}
	if r.bad {
		return fmt.Errorf("table does not parse")
	}
	return nil
}

func (x *index) loadKV(key, val []byte) {
	e := x.kvs.get(key)
	if e == nil {
		e = &kvEntry{key: string(key)}
		x.kvs.put(key, e)
	}
	e.set(val)
}

func (x *index) loadStream(r *reader) {
	var id StreamID
	r.copy(id[:])
	trim, eof := r.uvarint(), r.uvarint()
	if r.bad {
		return
	}
	st := x.stream(id)
	st.trim.Store(trim)
	st.eof.Store(eof)
	for !r.bad {
		kind := r.byte()
		if kind == leafEnd {
			return
		}
		number := r.uvarint()
		if number > 1<<(63-leafShift) {
			r.bad = true
			return
		}
		l := x.leafFor(st, number<<leafShift, 0)
		m := readPresence(r)
		switch kind {
		case leafRef:
			x.loadRef(r, l, m)
		case leafOpen, leafAll:
			x.loadOpen(r, l, m, eof, kind == leafAll)
		default:
			r.bad = true
		}
	}
}

func (x *index) loadRef(r *reader, l *leaf, m bitmap) {
	seg, off, size := r.uvarint(), r.uvarint(), r.uvarint()
	n := r.length(maxPieceSegs)
	var segs []segCount
	for i := 0; i < n && !r.bad; i++ {
		c := segCount{seg: uint32(r.uvarint()), n: uint32(r.uvarint()), bytes: r.uvarint()}
		segs = append(segs, c)
	}
	if seg == 0 || seg > 1<<32-1 || off > 1<<32-1 || size > leafMaxBytes {
		r.bad = true
		return
	}
	l.ref, l.refBytes, l.segs = mkpos(uint32(seg), int64(off)), uint32(size), segs
	l.queued = true
	l.sealed.Store(&sealedLeaf{at: l.ref, size: l.refBytes})
	l.setSealedMap(m)
	l.open.Store(nil)
}

func (x *index) loadOpen(r *reader, l *leaf, m bitmap, eof uint64, all bool) {
	o := l.open.Load()
	if o == nil || all {
		o = x.slots.make(0, 0)
		l.ref, l.segs, l.queued = 0, nil, false
		l.sealed.Store(nil)
	}
	var c slotCoder
	for i := m.next(0); i < leafSlots; i = m.next(i + 1) {
		s := c.next(r)
		if r.bad {
			return
		}
		o = x.slots.put(o, i, s)
	}
	l.open.Store(o)
	l.setClean(eof)
}

// loadedStream computes what follows from a stream's leaves once all its tables
// are in, and counts its records as live.
func (x *index) loadedStream(st *stream) error {
	trim := st.trim.Load()
	ls := st.list()
	drop := 0
	for drop < len(ls) && ls[drop].base+leafSlots <= trim {
		drop++
	}
	if drop > 0 {
		rest := append([]*leaf(nil), ls[drop:]...)
		st.leaves.Store(&rest)
		ls = rest
	}
	count := uint64(0)
	for i, l := range ls {
		if l.open.Load() == nil && l.sealed.Load() == nil {
			return fmt.Errorf("lst: snapshot names a leaf of stream %v without slots", st.id)
		}
		n, bytes := x.loadedLeaf(st, l, trim, i == len(ls)-1)
		count += n
		st.bytes.Add(bytes)
	}
	st.low.Store(trim)
	st.resetEnds(count, 0)
	st.findRun()
	return nil
}

// loadedLeaf returns the live records of a leaf, and their bytes.
func (x *index) loadedLeaf(st *stream, l *leaf, trim uint64, last bool) (n, bytes uint64) {
	segs := l.liveSegs(trim)
	for _, c := range segs {
		n += uint64(c.n)
		bytes += c.bytes
		x.liveAdd(c.seg, int64(c.n), int64(c.bytes))
	}
	if l.open.Load() != nil && (!last && n > 0 || n == leafSlots) {
		x.queueSeal(st, l)
	}
	return n, bytes
}
