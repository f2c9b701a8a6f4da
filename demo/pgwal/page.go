package pgwal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
)

// Layout of a page (XLogPageHeaderData in PostgreSQL's access/xlog_internal.h):
//
//	 0      2      4          8                 16        20        24
//	┌──────┬──────┬──────────┬─────────────────┬─────────┬─────────┐
//	│magic │info  │timeline  │position         │remaining│(unused) │ every page
//	└──────┴──────┴──────────┴─────────────────┴─────────┴─────────┘
//	24                32            36           40
//	┌────────────────┬─────────────┬────────────┐
//	│cluster id      │segment size │page size   │ first page of a segment
//	└────────────────┴─────────────┴────────────┘
const (
	shortHeaderSize = 24
	longHeaderSize  = 40

	flagContinues  = 0x0001 // begins with the rest of a record; "remaining" counts it
	flagLong       = 0x0002 // long header
	flagOverwrites = 0x0008 // the record before was never completed and counts as void
	flagsKnown     = 0x000F

	magicFamily = 0xD1 // high byte of the magic of PostgreSQL 12 and later

	minPageSize    = 1 << 10
	maxPageSize    = 64 << 10
	minSegmentSize = 1 << 20
	maxSegmentSize = 1 << 30
)

// pageReader reads a log page by page and checks the page headers. At most one page
// is in memory.
type pageReader struct {
	src    io.Reader
	passed int64 // bytes of the source before the current page, for messages

	// Of the first page, the same in all others:
	magic       uint16
	clusterID   uint64
	pageSize    int
	segmentSize uint64

	// Of the current page:
	buf       []byte // whole page if the log has it, else what there is
	at        LSN    // position of buf[0]
	header    int    // bytes of its header
	flags     uint16
	timeline  uint32
	remaining int // bytes of a record begun before that are still to come, from here on
}

// errZeroPage says that the page just read holds zeros only: the log was not
// written up to here.
var errZeroPage = errors.New("zero page")

// open reads the first page, which must begin a segment. It allocates one page, of
// at most maxPageSize bytes.
func (p *pageReader) open(src io.Reader) error {
	p.src = src
	head := make([]byte, longHeaderSize)
	n, err := io.ReadFull(src, head)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return p.errorAt(n, ErrTruncated, "the log has no complete page header: %d bytes of %d", n, longHeaderSize)
	}
	if err != nil {
		return p.readError(n, err)
	}
	p.magic = binary.LittleEndian.Uint16(head)
	p.at = LSN(binary.LittleEndian.Uint64(head[8:]))
	if p.magic>>8 != magicFamily {
		return p.errorAt(0, ErrCorrupt, "page magic %04X is not that of PostgreSQL 12 or later on a little-endian machine", p.magic)
	}
	if binary.LittleEndian.Uint16(head[2:])&flagLong == 0 {
		return p.errorAt(0, ErrCorrupt, "the log does not begin with the first page of a segment")
	}
	p.clusterID = binary.LittleEndian.Uint64(head[24:])
	segmentSize, pageSize := binary.LittleEndian.Uint32(head[32:]), binary.LittleEndian.Uint32(head[36:])
	if pageSize < minPageSize || pageSize > maxPageSize || bits.OnesCount32(pageSize) != 1 {
		return p.errorAt(0, ErrCorrupt, "page size %d is not a power of two from %d to %d", pageSize, minPageSize, maxPageSize)
	}
	if segmentSize < minSegmentSize || segmentSize > maxSegmentSize || bits.OnesCount32(segmentSize) != 1 {
		return p.errorAt(0, ErrCorrupt, "segment size %d is not a power of two from %d to %d", segmentSize, minSegmentSize, maxSegmentSize)
	}
	p.pageSize, p.segmentSize = int(pageSize), uint64(segmentSize)
	p.buf = make([]byte, pageSize)
	copy(p.buf, head)
	if err := p.fill(longHeaderSize); err != nil {
		return err
	}
	return p.checkHeader()
}

// next moves to the following page. It returns io.EOF if the log ends before it, and
// errZeroPage if it holds nothing.
func (p *pageReader) next() error {
	p.passed += int64(len(p.buf))
	p.at += LSN(len(p.buf))
	if len(p.buf) < p.pageSize {
		p.buf = p.buf[:0]
		return io.EOF
	}
	if err := p.fill(0); err != nil {
		return err
	}
	if len(p.buf) == 0 {
		return io.EOF
	}
	if allZero(p.buf) {
		return errZeroPage
	}
	return p.checkHeader()
}

// fill reads the page from offset have on and leaves in buf what the source had.
func (p *pageReader) fill(have int) error {
	p.buf = p.buf[:p.pageSize]
	n, err := io.ReadFull(p.src, p.buf[have:])
	p.buf = p.buf[:have+n]
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return p.readError(have+n, err)
	}
	return nil
}

// checkHeader decodes the header of the page in buf and checks it against the first
// page's and against the position that the page must have.
func (p *pageReader) checkHeader() error {
	if len(p.buf) < shortHeaderSize {
		return p.errorAt(len(p.buf), ErrTruncated, "the log ends inside a page header")
	}
	le := binary.LittleEndian
	magic, flags, timeline := le.Uint16(p.buf), le.Uint16(p.buf[2:]), le.Uint32(p.buf[4:])
	position, remaining := LSN(le.Uint64(p.buf[8:])), le.Uint32(p.buf[16:])
	switch {
	case magic != p.magic:
		return p.errorAt(0, ErrCorrupt, "page magic %04X, in the pages before %04X", magic, p.magic)
	case flags&^flagsKnown != 0:
		return p.errorAt(0, ErrCorrupt, "unknown page flags %04X", flags)
	case position != p.at:
		// Also what the unwritten end of a recycled segment file looks like.
		return p.errorAt(0, ErrCorrupt, "the page belongs to position %v: a segment is missing, or this is the unwritten part of a recycled one", position)
	case uint64(position)%uint64(p.pageSize) != 0:
		return p.errorAt(0, ErrCorrupt, "page position is not a multiple of the page size %d", p.pageSize)
	case timeline < p.timeline:
		return p.errorAt(0, ErrCorrupt, "the page is of timeline %d, one before it of timeline %d", timeline, p.timeline)
	case (flags&flagContinues != 0) != (remaining != 0):
		return p.errorAt(0, ErrCorrupt, "page flags %04X contradict the %d bytes of a record that are to continue", flags, remaining)
	case remaining > MaxRecordSize:
		return p.errorAt(0, ErrCorrupt, "the page continues a record by %d bytes, more than any record has", remaining)
	}
	p.header = shortHeaderSize
	if first := p.offsetInSegment() == 0; first != (flags&flagLong != 0) {
		return p.errorAt(0, ErrCorrupt, "a long header belongs on the first page of a segment, and only there")
	} else if first {
		p.header = longHeaderSize
		if len(p.buf) < longHeaderSize {
			return p.errorAt(len(p.buf), ErrTruncated, "the log ends inside a page header")
		}
		if id := le.Uint64(p.buf[24:]); id != p.clusterID {
			return p.errorAt(0, ErrCorrupt, "the segment is of cluster %d, the first one of %d", id, p.clusterID)
		}
		if uint64(le.Uint32(p.buf[32:])) != p.segmentSize || int(le.Uint32(p.buf[36:])) != p.pageSize {
			return p.errorAt(0, ErrCorrupt, "the segment has another segment or page size than the first one")
		}
	}
	p.flags, p.timeline, p.remaining = flags, timeline, int(remaining)
	return nil
}

// offsetInSegment is where in its segment the current page begins.
func (p *pageReader) offsetInSegment() uint64 { return uint64(p.at) & (p.segmentSize - 1) }

// skipSegment passes over the rest of the current segment, so that next reads the
// first page of the following one. Like PostgreSQL it does not look at what it
// skips. A log that ends before is not an error here: next reports io.EOF.
func (p *pageReader) skipSegment() error {
	if len(p.buf) < p.pageSize {
		return nil
	}
	rest := int64(p.segmentSize - p.offsetInSegment() - uint64(len(p.buf)))
	n, err := io.CopyN(io.Discard, p.src, rest)
	p.passed += n
	p.at += LSN(n)
	if err != nil && err != io.EOF {
		return p.readError(len(p.buf), err)
	}
	return nil
}

// drain reads to the end of the log, which must hold nothing but zeros from here on:
// from offset off of the current page, then in all later pages. It returns io.EOF if
// so.
func (p *pageReader) drain(off int) error {
	for {
		for i, b := range p.buf[off:] {
			if b != 0 {
				return p.errorAt(off+i, ErrCorrupt, "data after the end of the log")
			}
		}
		err := p.next()
		if err != errZeroPage {
			if err == nil {
				return p.errorAt(0, ErrCorrupt, "a page after the end of the log")
			}
			return err
		}
		off = 0
	}
}

// errorAt makes a FormatError about offset off of the current page.
func (p *pageReader) errorAt(off int, kind error, format string, args ...any) error {
	return &FormatError{At: p.at + LSN(off), Offset: p.passed + int64(off), Kind: kind, Detail: fmt.Sprintf(format, args...)}
}

func (p *pageReader) readError(off int, err error) error {
	return fmt.Errorf("pgwal: reading the log at %v (byte %d of the input): %w", p.at+LSN(off), p.passed+int64(off), err)
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
