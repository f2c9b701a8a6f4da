package shard

import (
	"errors"
	"fmt"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
)

// FillReply reads the records of a Fetch or Read reply from the store: those of r.Refs in order, until their encoded size
// reaches maxBytes or the request's own limit, whichever is less, and at least one. An early end lowers Through. A record
// that cannot be read, for whatever reason, joins Damaged: unknown, never absent (P3). Other replies are left alone. It may
// be called on any goroutine, with a view that was taken after the Commit that handed r out. The records own their memory.
func FillReply(v lst.View, r *protocol.ReplyOut, maxBytes int) { fill(v, r, limit(r, maxBytes), false) }

// FillDatagram is FillReply for a reply that must fit a datagram: what is added to it never takes more than maxBytes, so that
// it may stay without a record although there are some; Through then says that nothing was told, and the asker asks again
// where large replies travel.
func FillDatagram(v lst.View, r *protocol.ReplyOut, maxBytes int) {
	fill(v, r, limit(r, maxBytes), true)
}

// RunBytes is what FillDatagram counts for each record beyond protocol.EncodedSize: at worst each begins a run of its own.
const RunBytes = 36

func limit(r *protocol.ReplyOut, maxBytes int) int {
	if r.MaxBytes > 0 {
		return min(maxBytes, r.MaxBytes)
	}
	return maxBytes
}

func fill(v lst.View, r *protocol.ReplyOut, maxBytes int, strict bool) {
	var records *[]protocol.Record
	var damaged *[]protocol.Range
	var through *protocol.LSN
	switch m := r.Msg.(type) {
	case *protocol.FetchReply:
		records, damaged, through = &m.Records, &m.Damaged, &m.Through
	case *protocol.ReadReply:
		records, damaged, through = &m.Records, &m.Damaged, &m.Through
	default:
		return
	}
	used := 0
	for i, ref := range r.Refs {
		id := streamID(r.Log, ref.Label)
		if strict {
			// The index knows the size: a record that does not fit is not read.
			if at, err := v.Locate(id, uint64(ref.LSN)); err == nil && used+at.Length+RunBytes+protocol.RecordOverhead > maxBytes {
				*through = ref.LSN - 1
				r.Refs = r.Refs[:i]
				return
			}
		} else if i > 0 && used >= maxBytes {
			*through = ref.LSN - 1
			r.Refs = r.Refs[:i]
			return
		}
		value, err := v.Get(id, uint64(ref.LSN), nil)
		if err != nil {
			addDamage(damaged, ref.LSN)
			used += 16
			continue
		}
		s, err := protocol.DecodeStored(ref.LSN, ref.Label, value)
		if err != nil {
			addDamage(damaged, ref.LSN)
			used += 16
			continue
		}
		*records = append(*records, s.Record)
		used += protocol.EncodedSize(len(s.Data))
		if strict {
			used += RunBytes
		}
	}
}

// addDamage adds one LSN to ascending ranges.
func addDamage(rs *[]protocol.Range, lsn protocol.LSN) {
	if n := len(*rs); n > 0 && (*rs)[n-1].To+1 == lsn {
		(*rs)[n-1].To = lsn
		return
	}
	*rs = append(*rs, protocol.Range{From: lsn, To: lsn})
}

// StretchBytes returns how many bytes the records of a stretch take in its segment, from the first and the last of them. v is the
// view that belongs to it, as for NewSource.
func StretchBytes(v lst.View, seg protocol.Segment) (uint64, error) {
	end := func(lsn protocol.LSN) (protocol.Record, error) {
		value, err := v.Get(streamID(seg.Log, seg.Label), uint64(lsn), nil)
		if err != nil {
			return protocol.Record{}, fmt.Errorf("log %v: record %d of label %d: %w", seg.Log, lsn, seg.Label, err)
		}
		s, err := protocol.DecodeStored(lsn, seg.Label, value)
		return s.Record, err
	}
	first, err := end(seg.First)
	if err != nil {
		return 0, err
	}
	last, err := end(seg.Last)
	if err != nil {
		return 0, err
	}
	if last.SegOff < first.SegOff {
		return 0, fmt.Errorf("log %v: record %d of label %d stands before record %d in its segment", seg.Log, seg.Last, seg.Label, seg.First)
	}
	return last.SegOff - first.SegOff + uint64(protocol.EncodedSize(len(last.Data))), nil
}

// Source reads the records of one segment in order, for the archive. It belongs to one goroutine, which may be any.
type Source struct {
	it    *lst.Iterator
	seg   protocol.Segment
	next  protocol.LSN
	rec   protocol.Record
	err   error
	ended bool
}

// NewSource returns the records [seg.First, seg.Last] at seg.Label. v must have been taken with the Flushable that named
// seg, on the shard's thread, so that records, labels and watermark are one snapshot (A3).
func NewSource(v lst.View, seg protocol.Segment) *Source {
	return &Source{it: v.Range(streamID(seg.Log, seg.Label), uint64(seg.First), uint64(seg.Last)+1), seg: seg, next: seg.First}
}

// ErrGone is wrapped when a record of a segment is not there any more: it was archived by another node and dropped, or voided,
// since the plan was made. Make a new plan.
var ErrGone = errors.New("record is gone since the plan was made")

// Next moves to the next record; false at the end and after an error.
func (s *Source) Next() bool {
	if s.err != nil || s.ended {
		return false
	}
	if s.next > s.seg.Last {
		s.ended = true
		return false
	}
	if !s.it.Next() || protocol.LSN(s.it.Seq()) != s.next {
		if err := s.it.Err(); err != nil {
			s.err = fmt.Errorf("log %v: record %d of label %d: %w", s.seg.Log, s.next, s.seg.Label, err)
		} else {
			s.err = fmt.Errorf("log %v: record %d of label %d: %w", s.seg.Log, s.next, s.seg.Label, ErrGone)
		}
		return false
	}
	st, err := protocol.DecodeStored(s.next, s.seg.Label, s.it.Value())
	if err != nil {
		s.err = fmt.Errorf("log %v: %w", s.seg.Log, err)
		return false
	}
	s.rec = st.Record
	s.next++
	return true
}

// Record returns the current record. Its Data is valid until the next call of Next.
func (s *Source) Record() protocol.Record { return s.rec }

// Err returns why Next returned false, or nil at the end.
func (s *Source) Err() error { return s.err }
