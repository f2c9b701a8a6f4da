package lst

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync/atomic"
)

const (
	leafShift = 8
	leafSlots = 1 << leafShift
	leafWords = leafSlots / 64
)

// slot says where a record's payload is. at is 0 for no record.
type slot struct {
	at pos
	n  uint32
}

type bitmap [leafWords]uint64

func (m *bitmap) has(i int) bool { return m[i>>6]>>(i&63)&1 != 0 }
func (m *bitmap) set(i int)      { m[i>>6] |= 1 << (i & 63) }

func (m *bitmap) count() int {
	n := 0
	for _, w := range m {
		n += bits.OnesCount64(w)
	}
	return n
}

// below clears the bits from i up and returns what is left.
func (m bitmap) below(i int) bitmap {
	for w := range m {
		switch {
		case i <= w*64:
			m[w] = 0
		case i < (w+1)*64:
			m[w] &= 1<<(i&63) - 1
		}
	}
	return m
}

func (m bitmap) minus(o bitmap) bitmap {
	for w := range m {
		m[w] &^= o[w]
	}
	return m
}

// next is the first set bit at or after i, or leafSlots.
func (m *bitmap) next(i int) int {
	for w := i >> 6; w < leafWords; w++ {
		v := m[w]
		if w == i>>6 {
			v &= ^uint64(0) << (i & 63)
		}
		if v != 0 {
			return w<<6 + bits.TrailingZeros64(v)
		}
	}
	return leafSlots
}

// nextClear is the first clear bit at or after i, or leafSlots.
func (m bitmap) nextClear(i int) int {
	for w := range m {
		m[w] = ^m[w]
	}
	return m.next(i)
}

// leaf covers leafSlots consecutive sequences of a stream. It is open (slots in
// memory), and once full or left behind it is sealed: written to the store once
// as a leaf frame and read back from there when its slots are not in memory.
//
// Readers use base, present, open and sealed only. They look at open first: a
// leaf that is changed after sealing is opened again, and sealed and present are
// then stale. What an open leaf holds its slots say.
type leaf struct {
	base    uint64
	open    atomic.Pointer[openSlots]
	sealed  atomic.Pointer[sealedLeaf]
	present [leafWords]atomic.Uint64 // of a sealed leaf: slots that hold a record, trimmed ones too
	hdr     []*leaf                  // storage for the leaves slice published when this leaf was added

	// Writer only.
	clean    int        // slots from here on that are present are dirty, too
	dirty    bitmap     // slots that neither a snapshot nor a leaf frame has
	ref      pos        // position of the leaf frame, also while it is being written
	refBytes uint32     // its body length
	refDirty bool       // no snapshot names ref yet, or its live counts have changed
	whole    bool       // the next snapshot must replace what older ones say
	queued   bool       // waits to be sealed
	segs     []segCount // live records per segment, once sealed
	oneSeg   [1]segCount
}

type segCount struct {
	seg   uint32
	n     uint32
	bytes uint64
}

func (l *leaf) presentMap() (m bitmap) {
	if o := l.open.Load(); o != nil {
		return o.present(leafSlots)
	}
	return l.sealedMap()
}

func (l *leaf) sealedMap() (m bitmap) {
	for w := range m {
		m[w] = l.present[w].Load()
	}
	return m
}

func (l *leaf) setSealedMap(m bitmap) {
	for w := range m {
		l.present[w].Store(m[w])
	}
}

func (l *leaf) has(i int) bool {
	if o := l.open.Load(); o != nil {
		return o.has(i)
	}
	return l.present[i>>6].Load()>>(i&63)&1 != 0
}

// next is the first slot at or after i with a record, or leafSlots.
func (l *leaf) next(i int) int {
	if o := l.open.Load(); o != nil {
		return o.next(i)
	}
	m := l.sealedMap()
	return m.next(i)
}

// nextClear is the first slot at or after i without a record, or leafSlots.
func (l *leaf) nextClear(i int) int {
	if o := l.open.Load(); o != nil {
		return o.nextClear(i)
	}
	return l.sealedMap().nextClear(i)
}

// dirtyMap is what neither a snapshot nor a leaf frame has of the slots [from, to), of
// an open leaf.
func (l *leaf) dirtyMap(from, to int) bitmap {
	m := l.open.Load().presentIn(max(from, l.clean), to)
	for w := range m {
		m[w] |= l.dirty[w]
	}
	return m.minus(bitmap{}.upTo(from))
}

// setClean notes that a snapshot or a leaf frame has all slots. No record is present
// at or behind the sequence eof.
func (l *leaf) setClean(eof uint64) { l.dirty, l.clean = bitmap{}, l.below(eof) }

// live counts the records of an open leaf from the sequence trim on.
func (l *leaf) live(trim uint64) (n int) {
	o := l.open.Load()
	for i := o.next(l.below(trim)); i < leafSlots; i = o.next(i + 1) {
		n++
	}
	return n
}

// below is the number of the leaf's slots in front of the sequence seq.
func (l *leaf) below(seq uint64) int {
	if seq <= l.base {
		return 0
	}
	return int(min(seq-l.base, leafSlots))
}

// sealedLeaf is a leaf frame. data are its slots, nil while not in memory.
type sealedLeaf struct {
	at   pos
	size uint32
	data atomic.Pointer[openSlots]
}

// slotCoder is the state of the slot coding: each slot is coded by its
// difference from the one before, so a dense run costs two bytes a record.
type slotCoder struct {
	prev slot
	gap  int64
}

func (c *slotCoder) append(b []byte, s slot) []byte {
	switch {
	case c.prev.at == 0:
		b = binary.AppendUvarint(b, uint64(s.at.seg()))
		b = binary.AppendUvarint(b, uint64(s.at.off()))
		b = binary.AppendUvarint(b, uint64(s.n))
	case s.at.seg() == c.prev.at.seg():
		gap := s.at.off() - c.prev.at.off() - int64(c.prev.n)
		b = binary.AppendUvarint(b, zigzag(gap-c.gap)<<1)
		b = appendVarint(b, int64(s.n)-int64(c.prev.n))
		c.gap = gap
	default:
		b = binary.AppendUvarint(b, zigzag(int64(s.at.seg())-int64(c.prev.at.seg()))<<1|1)
		b = binary.AppendUvarint(b, uint64(s.at.off()))
		b = appendVarint(b, int64(s.n)-int64(c.prev.n))
	}
	c.prev = s
	return b
}

// follows reports whether s lies behind the slot before as that one did behind its
// own, as most do: append would code it by two zeros.
func (c *slotCoder) follows(s *slot) bool {
	return s.n == c.prev.n && s.at-c.prev.at == pos(c.prev.n)+pos(c.gap) && s.at>>32 == c.prev.at>>32 && c.prev.at != 0
}

func (c *slotCoder) next(r *reader) slot {
	var seg, off, n int64
	if c.prev.at == 0 {
		seg, off, n = int64(r.uvarint()), int64(r.uvarint()), int64(r.uvarint())
	} else {
		u := r.uvarint()
		d := unzigzag(u >> 1)
		if u&1 == 0 {
			c.gap += d
			seg, off = int64(c.prev.at.seg()), c.prev.at.off()+int64(c.prev.n)+c.gap
		} else {
			seg, off = int64(c.prev.at.seg())+d, int64(r.uvarint())
		}
		n = int64(c.prev.n) + r.varint()
	}
	if seg <= 0 || seg > 1<<32-1 || off < headerBytes || off > 1<<32-1 || n < 0 || n > maxRecordLimit {
		r.bad = true
		return slot{}
	}
	c.prev = slot{mkpos(uint32(seg), off), uint32(n)}
	return c.prev
}

func zigzag(v int64) uint64   { return uint64(v)<<1 ^ uint64(v>>63) }
func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

func appendBitmap(b []byte, m bitmap) []byte {
	for _, w := range m {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// appendPresence codes which slots of a leaf are there: most often a run.
// kind 0: a run [from, to]; kind 1: a bitmap.
func appendPresence(b []byte, m bitmap) []byte {
	from := m.next(0)
	n := m.count()
	if n > 0 && m.nextClear(from) == from+n {
		return append(b, 0, byte(from), byte(from+n-1))
	}
	return appendBitmap(append(b, 1), m)
}

func readPresence(r *reader) (m bitmap) {
	switch r.byte() {
	case 0:
		from, to := int(r.byte()), int(r.byte())
		if to < from {
			r.bad = true
		}
		for i := from; i <= to && !r.bad; i++ {
			m.set(i)
		}
	case 1:
		raw := r.bytes(leafSlots / 8)
		for w := range m {
			if raw != nil {
				m[w] = binary.LittleEndian.Uint64(raw[w*8:])
			}
		}
	default:
		r.bad = true
	}
	return m
}

// appendLeaf codes the body of a leaf frame: stream[16] number presence slots.
func appendLeaf(b []byte, id StreamID, l *leaf, m bitmap, all *[leafSlots]slot) []byte {
	b = append(b, id[:]...)
	b = binary.AppendUvarint(b, l.base>>leafShift)
	b = appendPresence(b, m)
	var c slotCoder
	for i := m.next(0); i < leafSlots; i = m.next(i + 1) {
		s := &all[i]
		if c.follows(s) {
			b = append(b, 0, 0)
			c.prev.at = s.at
			continue
		}
		b = c.append(b, *s)
	}
	return b
}

func appendSlots(b []byte, m bitmap, o *openSlots) []byte {
	var c slotCoder
	for i := m.next(0); i < leafSlots; i = m.next(i + 1) {
		b = c.append(b, o.get(i))
	}
	return b
}

// parseLeaf checks a leaf frame's body and returns its slots.
func parseLeaf(body []byte, id StreamID, base uint64) (*openSlots, error) {
	r := &reader{b: body}
	var got StreamID
	r.copy(got[:])
	if n := r.uvarint(); got != id || n != base>>leafShift {
		return nil, fmt.Errorf("leaf frame belongs to sequences from %d of stream %v, not %d of %v", n<<leafShift, got, base, id)
	}
	var all [leafSlots]slot
	m := readPresence(r)
	var c slotCoder
	for i := m.next(0); i < leafSlots; i = m.next(i + 1) {
		all[i] = c.next(r)
	}
	if r.bad || r.left() != 0 {
		return nil, fmt.Errorf("leaf frame does not parse")
	}
	return slotsOf(&all), nil
}
