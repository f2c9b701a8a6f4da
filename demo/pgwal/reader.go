// Package pgwal splits a PostgreSQL write-ahead log into its records.
//
// The input is what the server writes: whole segment files, joined in order, of
// PostgreSQL 12 or later from a little-endian machine. The last one may be cut off
// behind its last record. Every page header and every record's CRC-32C and place in
// the chain of records are checked, so a log that reads to its end is the log that
// was written, up to there.
//
//	r, err := pgwal.Open(f)
//	for {
//		rec, err := r.Next()
//		if err == io.EOF {
//			break
//		}
//		…
//	}
//
// Invariants of the reader:
//
//  1. A record is returned only after its checksum matched.
//  2. A record's Prev is the LSN of the one returned before it, so none is missing
//     between the two.
//  3. No length read from the log decides an allocation alone: memory grows by at
//     most a small multiple of the bytes that the log has really delivered.
package pgwal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// The two kinds of FormatError, to be told apart with errors.Is.
var (
	// ErrTruncated: the log ends inside a record or a page header. Supply the rest,
	// or live with what came before it.
	ErrTruncated = errors.New("log is cut off")
	// ErrCorrupt: the log is damaged, has a gap, or is not a PostgreSQL log.
	ErrCorrupt = errors.New("log is damaged")
)

// FormatError says where and why a log could not be read on. It wraps ErrTruncated
// or ErrCorrupt.
type FormatError struct {
	At     LSN   // position in the log
	Offset int64 // the same place in the input, in bytes from its beginning
	Kind   error // ErrTruncated or ErrCorrupt
	Detail string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("pgwal: %v at %v (byte %d of the input): %s", e.Kind, e.At, e.Offset, e.Detail)
}

func (e *FormatError) Unwrap() error { return e.Kind }

// Record is one record of the log.
type Record struct {
	Header
	LSN LSN // where the record begins, as PostgreSQL tells it
	End LSN // just behind it, aligned; after a switch record, the next segment

	// Raw is the whole record, header included, as if no page header had interrupted
	// it. It belongs to the reader and is overwritten by the next call to Next.
	Raw []byte

	// Abandoned, if not 0, is where another record began just before this one that
	// was never completed because the server crashed while writing it.
	Abandoned LSN
}

// Reader reads the records of one log in order. It is not safe for concurrent use.
type Reader struct {
	pages pageReader
	off   int   // where in the current page the next record begins
	err   error // of an earlier call

	started  bool
	inSwitch bool   // the rest of the segment is to be skipped
	joined   []byte // the last record that spanned pages

	prev      LSN // of the record returned last
	havePrev  bool
	abandoned LSN // for the next record returned
}

// Open reads the first page of the log, which must begin a segment. If that page
// begins in the middle of a record, reading starts with the record after it. The
// reader asks src for one page at a time and does not close it.
func Open(src io.Reader) (*Reader, error) {
	r := &Reader{}
	if err := r.pages.open(src); err != nil {
		return nil, err
	}
	r.off = r.pages.header
	return r, nil
}

// Timeline is the timeline of the page that Next read last.
func (r *Reader) Timeline() uint32 { return r.pages.timeline }

// SegmentSize is the size of the log's segments in bytes.
func (r *Reader) SegmentSize() uint64 { return r.pages.segmentSize }

// Next returns the next record. At the end of the log it returns io.EOF: the input
// ends behind a record, or from there on holds zeros only. Any other error is a
// *FormatError or comes from the input. Errors are final: later calls return the
// same one.
func (r *Reader) Next() (Record, error) {
	if r.err != nil {
		return Record{}, r.err
	}
	rec, err := r.read()
	if err != nil {
		r.err, r.joined = err, nil
		return Record{}, err
	}
	return rec, nil
}

func (r *Reader) read() (Record, error) {
	if !r.started {
		r.started = true
		if err := r.skipPartial(); err != nil {
			return Record{}, err
		}
	}
	for {
		if err := r.seek(); err != nil {
			return Record{}, err
		}
		start := r.pages.at + LSN(r.off)
		raw, err := r.assemble(start)
		if err != nil {
			return Record{}, err
		}
		if raw == nil {
			r.abandoned = start
			continue // another record follows on the page now current
		}
		return r.finish(start, raw)
	}
}

// skipPartial passes over the rest of a record that began before the first page.
func (r *Reader) skipPartial() error {
	p := &r.pages
	rest := p.remaining
	for room := p.pageSize - p.header; rest > room; room = p.pageSize - p.header {
		rest -= room
		overwritten, err := r.continuePage(p.at, rest)
		if err != nil {
			return err
		}
		if overwritten {
			rest = 0
		}
	}
	if p.header+rest > len(p.buf) {
		return p.errorAt(len(p.buf), ErrTruncated, "the log ends inside the record that it begins with")
	}
	r.off = align(p.header + rest)
	return nil
}

// seek makes off the place of the next record's first bytes, on the next page if the
// current one is used up. It returns io.EOF if the log ends here.
func (r *Reader) seek() error {
	p := &r.pages
	if r.inSwitch {
		r.inSwitch = false
		if err := p.skipSegment(); err != nil {
			return err
		}
		r.off = len(p.buf)
	}
	if r.off >= len(p.buf) {
		err := p.next()
		if err == errZeroPage {
			return p.drain(0)
		}
		if err != nil {
			return err
		}
		if p.flags&flagContinues != 0 {
			return p.errorAt(0, ErrCorrupt, "the page continues a record by %d bytes, but the one before it is complete", p.remaining)
		}
		r.off = p.header
	}
	// Records are aligned to 8 and so is the page, so a whole page has room for the
	// length; only a log that is cut off has not.
	rest := p.buf[r.off:]
	if len(rest) < 4 {
		if allZero(rest) {
			return io.EOF
		}
		return p.errorAt(len(p.buf), ErrTruncated, "the log ends inside the header of a record")
	}
	if binary.LittleEndian.Uint32(rest) == 0 {
		return p.drain(r.off)
	}
	return nil
}

// assemble returns the bytes of the record that begins at off of the current page,
// and moves off behind it. It returns nil if the server abandoned the record; off is
// then where the next one begins.
func (r *Reader) assemble(start LSN) ([]byte, error) {
	p := &r.pages
	begin := r.off
	length := binary.LittleEndian.Uint32(p.buf[begin:])
	if length < RecordHeaderSize || length > MaxRecordSize {
		return nil, p.errorAt(begin, ErrCorrupt, "a record of %d bytes, outside of %d to %d", length, RecordHeaderSize, MaxRecordSize)
	}
	end := begin + int(length)
	if end > len(p.buf) && len(p.buf) < p.pageSize {
		return nil, p.errorAt(len(p.buf), ErrTruncated, "the log ends inside the record of %d bytes that begins at %v", length, start)
	}
	if end <= p.pageSize {
		r.off = align(end)
		return p.buf[begin:end], nil
	}
	// The length is not to be trusted yet, so nothing is allocated by it: each page
	// must confirm what is still to come before its bytes are taken.
	r.joined = append(r.joined[:0], p.buf[begin:]...)
	for rest := end - p.pageSize; rest > 0; {
		overwritten, err := r.continuePage(start, rest)
		if err != nil {
			return nil, err
		}
		if overwritten {
			r.off = p.header
			return nil, nil
		}
		end = min(p.header+rest, p.pageSize)
		if end > len(p.buf) {
			return nil, p.errorAt(len(p.buf), ErrTruncated, "the log ends inside the record of %d bytes that begins at %v", length, start)
		}
		r.joined = append(r.joined, p.buf[p.header:end]...)
		rest -= end - p.header
		r.off = align(end)
	}
	return r.joined, nil
}

// continuePage moves to the next page, on which rest more bytes of the record begun
// at start must be announced. It reports whether the server declared that record void
// instead.
func (r *Reader) continuePage(start LSN, rest int) (overwritten bool, err error) {
	p := &r.pages
	switch err := p.next(); {
	case err == io.EOF, err == errZeroPage:
		return false, p.errorAt(0, ErrTruncated, "the log ends inside a record: %d bytes of the one at %v are missing", rest, start)
	case err != nil:
		return false, err
	}
	if p.flags&flagOverwrites != 0 {
		if p.flags&flagContinues != 0 {
			return false, p.errorAt(0, ErrCorrupt, "the page both continues and voids a record")
		}
		return true, nil
	}
	if p.remaining != rest {
		return false, p.errorAt(0, ErrCorrupt, "the page continues a record by %d bytes, but %d bytes of the one at %v are missing", p.remaining, rest, start)
	}
	return false, nil
}

// finish checks the record that begins at start and makes it the last one returned.
func (r *Reader) finish(start LSN, raw []byte) (Record, error) {
	p := &r.pages
	// Errors name the record's beginning, which may be on a page that has gone.
	corrupt := func(format string, args ...any) error {
		err := p.errorAt(0, ErrCorrupt, format, args...).(*FormatError)
		err.Offset -= int64(err.At) - int64(start)
		err.At = start
		return err
	}
	h, err := Decode(raw)
	if err != nil {
		return Record{}, corrupt("%s", strings.TrimPrefix(err.Error(), "pgwal: "))
	}
	if r.havePrev && h.Prev != r.prev {
		return Record{}, corrupt("the record says it follows one at %v, but it follows one at %v", h.Prev, r.prev)
	}
	if h.Prev >= start {
		return Record{}, corrupt("the record says it follows one at %v", h.Prev)
	}
	rec := Record{Header: h, LSN: start, End: p.at + LSN(r.off), Raw: raw, Abandoned: r.abandoned}
	if h.IsSwitch() {
		rec.End = (rec.End + LSN(p.segmentSize) - 1) &^ (LSN(p.segmentSize) - 1)
		r.inSwitch = true
	}
	r.prev, r.havePrev, r.abandoned = start, true, 0
	return rec, nil
}

// align rounds up to the 8 bytes on which records begin.
func align(n int) int { return (n + 7) &^ 7 }
