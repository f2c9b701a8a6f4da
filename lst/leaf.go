package lst

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync/atomic"
)

const (
	leafShift  = 8
	leafSlots  = 1 << leafShift
	leafWords  = leafSlots / 64
	checkEvery = 32 // slots between two decoder states kept in memory
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
// as a leaf frame and read back from there when its bytes are not in memory.
//
// Readers use base, present, open and sealed only. They look at open first: a
// leaf that is changed after sealing is opened again, and sealed is then stale.
type leaf struct {
	base    uint64
	present [leafWords]atomic.Uint64 // slots that hold a record, trimmed ones too
	open    atomic.Pointer[openSlots]
	sealed  atomic.Pointer[sealedLeaf]
	hdr     []*leaf // storage for the leaves slice published when this leaf was added

	// Writer only.
	count    int        // live records
	bytes    int64      // live payload bytes
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

// openSlots are the slots of a leaf in memory. A slot's place and length lie side
// by side: with ten thousand streams each is a miss of the processor's cache.
type openSlots struct {
	s []slotCell
}

type slotCell struct {
	at atomic.Uint64
	n  atomic.Uint32
}

// slotArena makes open slots out of larger pieces of memory: an append allocates
// nothing most of the time. Readers may hold slots for as long as they like, so
// nothing is ever used twice.
type slotArena struct {
	heads []openSlots
	cells []slotCell
}

const arenaSlots = 8 * leafSlots

func (a *slotArena) make(n int) *openSlots {
	if len(a.heads) == 0 {
		a.heads = make([]openSlots, 32)
	}
	o := &a.heads[0]
	a.heads = a.heads[1:]
	if n == 0 {
		return o
	}
	if len(a.cells) < n {
		a.cells = make([]slotCell, arenaSlots)
	}
	o.s, a.cells = a.cells[:n:n], a.cells[n:]
	return o
}

func (o *openSlots) get(i int) slot {
	if i >= len(o.s) {
		return slot{}
	}
	return slot{pos(o.s[i].at.Load()), o.s[i].n.Load()}
}

// set stores a slot that was empty: length first, because a reader takes a
// position that is not zero as the sign that the length is there.
func (o *openSlots) set(i int, s slot) {
	o.s[i].n.Store(s.n)
	o.s[i].at.Store(uint64(s.at))
}

// grown is a copy of o with room for n slots.
func (a *slotArena) grown(o *openSlots, n int) *openSlots {
	size := 8
	for size < n {
		size *= 2
	}
	c := a.make(size)
	for i := range o.s {
		c.set(i, o.get(i))
	}
	return c
}

func (l *leaf) presentMap() (m bitmap) {
	for w := range m {
		m[w] = l.present[w].Load()
	}
	return m
}

func (l *leaf) setPresent(i int) {
	l.present[i>>6].Store(l.present[i>>6].Load() | 1<<(i&63))
}

// sealedLeaf is a leaf frame. data is its parsed body, nil while not in memory.
type sealedLeaf struct {
	at   pos
	size uint32
	data atomic.Pointer[leafData]
}

type leafData struct {
	body  []byte
	slots int // where the coded slots begin
	have  bitmap
	check [leafSlots / checkEvery]slotCoder
}

// slotCoder is the state of the slot coding: each slot is coded by its
// difference from the one before, so a dense run costs two bytes a record.
type slotCoder struct {
	off  int // offset in the body, for decoding
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
func appendLeaf(b []byte, id StreamID, l *leaf, m bitmap, o *openSlots) []byte {
	b = append(b, id[:]...)
	b = binary.AppendUvarint(b, l.base>>leafShift)
	b = appendPresence(b, m)
	return appendSlots(b, m, o)
}

func appendSlots(b []byte, m bitmap, o *openSlots) []byte {
	var c slotCoder
	for i := m.next(0); i < leafSlots; i = m.next(i + 1) {
		b = c.append(b, o.get(i))
	}
	return b
}

// parseLeaf checks a leaf frame's body once and keeps decoder states for fast
// access.
func parseLeaf(body []byte, id StreamID, base uint64) (*leafData, error) {
	d := new(leafData)
	if err := d.parse(body, id, base); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *leafData) parse(body []byte, id StreamID, base uint64) error {
	*d = leafData{body: body}
	r := &reader{b: body}
	var got StreamID
	r.copy(got[:])
	if n := r.uvarint(); got != id || n != base>>leafShift {
		return fmt.Errorf("leaf frame belongs to sequences from %d of stream %v, not %d of %v", n<<leafShift, got, base, id)
	}
	d.have = readPresence(r)
	d.slots = r.off
	var c slotCoder
	for i, k := 0, 0; i < leafSlots; i++ {
		if i == k*checkEvery {
			d.check[k] = c
			d.check[k].off = r.off
			k++
		}
		if d.have.has(i) {
			c.next(r)
		}
	}
	if r.bad || r.left() != 0 {
		return fmt.Errorf("leaf frame does not parse")
	}
	return nil
}

func (d *leafData) get(i int) slot {
	if !d.have.has(i) {
		return slot{}
	}
	c := d.check[i/checkEvery]
	r := reader{b: d.body, off: c.off}
	for k := d.have.next(i &^ (checkEvery - 1)); k < i; k = d.have.next(k + 1) {
		c.next(&r)
	}
	return c.next(&r)
}

// all calls fn for every slot in order.
func (d *leafData) all(fn func(i int, s slot)) {
	r := reader{b: d.body, off: d.slots}
	var c slotCoder
	for i := d.have.next(0); i < leafSlots; i = d.have.next(i + 1) {
		fn(i, c.next(&r))
	}
}
