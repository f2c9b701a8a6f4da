package pgwal

import (
	"encoding/binary"
	"hash/crc32"
)

// builder writes a log the dumb way, byte by byte, after the description in
// PostgreSQL's headers. It is the second opinion on Reader's page arithmetic.
type builder struct {
	pageSize, segmentSize int

	start    LSN // of out[0]
	out      []byte
	timeline uint32
	cluster  uint64
	prev     LSN
	pending  int    // bytes of the record being written that are still to come
	flags    uint16 // extra flags of the next page header
	want     []wanted
}

// wanted is a record as Reader must return it.
type wanted struct {
	lsn, end, prev, abandoned LSN
	raw                       []byte
}

func newBuilder(pageSize int, start LSN) *builder {
	return &builder{pageSize: pageSize, segmentSize: 1 << 20, start: start, timeline: 1, cluster: 77, prev: start - 8}
}

func (b *builder) pos() LSN { return b.start + LSN(len(b.out)) }

// header writes a page header if the position calls for one.
func (b *builder) header() {
	if int(b.pos())%b.pageSize != 0 {
		return
	}
	h := make([]byte, 24, 40)
	flags := b.flags
	b.flags = 0
	if b.pending > 0 {
		flags |= 1
	}
	le := binary.LittleEndian
	if int(b.pos())%b.segmentSize == 0 {
		flags |= 2
		h = h[:40]
		le.PutUint64(h[24:], b.cluster)
		le.PutUint32(h[32:], uint32(b.segmentSize))
		le.PutUint32(h[36:], uint32(b.pageSize))
	}
	le.PutUint16(h, 0xD110)
	le.PutUint16(h[2:], flags)
	le.PutUint32(h[4:], b.timeline)
	le.PutUint64(h[8:], uint64(b.pos()))
	le.PutUint32(h[16:], uint32(b.pending))
	b.out = append(b.out, h...)
}

func (b *builder) raw(xid uint32, info, rmgr byte, body []byte) []byte {
	raw := make([]byte, 24, 24+len(body))
	le := binary.LittleEndian
	le.PutUint32(raw, uint32(24+len(body)))
	le.PutUint32(raw[4:], xid)
	le.PutUint64(raw[8:], uint64(b.prev))
	raw[16], raw[17] = info, rmgr
	raw = append(raw, body...)
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	sum.Write(raw[24:])
	sum.Write(raw[:20])
	le.PutUint32(raw[20:], sum.Sum32())
	return raw
}

// write writes a record, with page headers wherever they fall, and pads it.
func (b *builder) write(raw []byte) (lsn LSN) {
	b.header()
	lsn = b.pos()
	for i, c := range raw {
		b.pending = len(raw) - i
		if i == 0 {
			b.pending = 0
		}
		b.header()
		b.out = append(b.out, c)
	}
	b.pending = 0
	for b.pos()%8 != 0 {
		b.out = append(b.out, 0)
	}
	return lsn
}

func (b *builder) record(xid uint32, info, rmgr byte, body []byte) {
	raw := b.raw(xid, info, rmgr, body)
	lsn := b.write(raw)
	b.want = append(b.want, wanted{lsn: lsn, end: b.pos(), prev: b.prev, raw: raw})
	b.prev = lsn
}

// switchSegment writes a switch record and fills the rest of the segment.
func (b *builder) switchSegment(fill byte) {
	b.record(0, 0x40, 0, nil)
	for int(b.pos())%b.segmentSize != 0 {
		b.out = append(b.out, fill)
	}
	b.want[len(b.want)-1].end = b.pos()
}

// abandon writes the part of a record up to the next page boundary and then, on a
// page that declares it void, the record that PostgreSQL writes after such a crash.
func (b *builder) abandon(body []byte) {
	raw := b.raw(9, 0, 10, body)
	b.header()
	lsn := b.pos()
	for int(b.pos())%b.pageSize != 0 {
		b.out = append(b.out, raw[0])
		raw = raw[1:]
	}
	b.flags = 8
	b.record(0, 0xD0, 0, binary.LittleEndian.AppendUint64(nil, uint64(lsn)))
	b.want[len(b.want)-1].abandoned = lsn
}

// room is how much of the current page is left.
func (b *builder) room() int {
	b.header()
	return b.pageSize - int(b.pos())%b.pageSize
}
