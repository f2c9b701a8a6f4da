package wire

import (
	"encoding/binary"

	"github.com/btrlog/btrlog/internal/protocol"
)

func u64s[T ~uint64](b []byte, vs ...T) []byte {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func yes(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// encodeMessage appends the messages that are not on the hot path. On error the result is nil and b's length is untouched.
func encodeMessage(b []byte, m protocol.Message) ([]byte, error) {
	n := len(b)
	var err error
	switch m := m.(type) {
	case *protocol.Open:
		b = appendHead(b, KindOpen, 0, 0, 0, m.Log, m.Epoch)
		b = u64s(b, m.Req)
		b, err = appendName(b, KindOpen, m.Name)
	case *protocol.OpenReply:
		b = appendHead(b, KindOpenReply, 0, byte(m.Status), 0, m.Log, m.Epoch)
		b = u64s(b, m.Req, uint64(m.Promised), uint64(m.Activated), uint64(m.Start), uint64(m.CLSN), uint64(m.ArchivedThrough), uint64(m.Through))
		if b, err = appendExtents(b, KindOpenReply, "held", m.Held); err == nil {
			b, err = appendRanges(b, KindOpenReply, "damaged", m.Damaged, protocol.MaxExtents)
		}
	case *protocol.Fetch:
		b = appendHead(b, KindFetch, 0, 0, 0, m.Log, m.Epoch)
		b = u64s(b, m.Req, uint64(m.From), uint64(m.To), uint64(m.Label))
		b, err = appendMaxBytes(b, KindFetch, m.MaxBytes)
	case *protocol.FetchReply:
		b = appendHead(b, KindFetchReply, 0, byte(m.Status), uint32(len(m.Records)), m.Log, m.Epoch)
		b = u64s(b, m.Req, uint64(m.Promised), uint64(m.ArchivedThrough), uint64(m.From), uint64(m.Through))
		if b, err = appendRanges(b, KindFetchReply, "damaged", m.Damaged, protocol.MaxExtents); err == nil {
			b, err = appendRecords(b, KindFetchReply, m.Records)
		}
	case *protocol.Activate:
		sub := byte(0)
		if len(m.Lost) > 0 {
			sub = activateLost
		}
		b = appendHead(b, KindActivate, sub, 0, 0, m.Log, m.Epoch)
		b = u64s(b, m.Start, m.B)
		b, err = appendActivate(b, m)
	case *protocol.Watermark:
		b = appendHead(b, KindWatermark, 0, 0, 0, m.Log, m.Epoch)
		b = u64s(b, m.CLSN, m.Sealed)
	case *protocol.Read:
		b = appendHead(b, KindRead, 0, 0, 0, m.Log, 0)
		b = u64s(b, m.Req, uint64(m.From), uint64(m.To), uint64(m.WaitAbove))
		if b, err = appendMaxBytes(b, KindRead, m.MaxBytes); err == nil {
			b = append(b, yes(m.Raw))
		}
	case *protocol.ReadReply:
		b = appendHead(b, KindReadReply, 0, byte(m.Status), uint32(len(m.Records)), m.Log, 0)
		b = u64s(b, m.Req, uint64(m.Activated), uint64(m.Start), uint64(m.CLSN), uint64(m.ArchivedThrough),
			uint64(m.Highest), uint64(m.HighestLabel), uint64(m.From), uint64(m.Through))
		if b, err = appendExtents(b, KindReadReply, "uncommitted", m.Uncommitted); err == nil {
			b, err = appendRanges(b, KindReadReply, "damaged", m.Damaged, protocol.MaxExtents)
		}
		if err == nil {
			b, err = appendRecords(b, KindReadReply, m.Records)
		}
	case *protocol.Drop:
		b = appendHead(b, KindDrop, 0, 0, 0, m.Log, m.Epoch)
	default:
		return nil, badField(0, "type", "%T has no bytes", m)
	}
	if err != nil {
		return nil, err
	}
	return setBody(b, n), nil
}

func appendName(b []byte, k Kind, name string) ([]byte, error) {
	if len(name) > protocol.MaxNameBytes {
		return nil, badField(k, "name", "%d bytes, at most %d", len(name), protocol.MaxNameBytes)
	}
	b = append(b, byte(len(name)))
	return append(b, name...), nil
}

func appendMaxBytes(b []byte, k Kind, n uint32) ([]byte, error) {
	if n > MaxReplyBytes {
		return nil, badField(k, "max bytes", "%d, at most %d", n, MaxReplyBytes)
	}
	return binary.LittleEndian.AppendUint32(b, n), nil
}

func appendExtents(b []byte, k Kind, field string, es []protocol.Extent) ([]byte, error) {
	if len(es) > protocol.MaxExtents {
		return nil, badField(k, field, "%d extents, at most %d", len(es), protocol.MaxExtents)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(es)))
	for _, e := range es {
		b = u64s(b, uint64(e.From), uint64(e.To), uint64(e.Label))
	}
	return b, nil
}

func appendRanges(b []byte, k Kind, field string, rs []protocol.Range, limit int) ([]byte, error) {
	if len(rs) > limit {
		return nil, badField(k, field, "%d ranges, at most %d", len(rs), limit)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(rs)))
	for _, r := range rs {
		b = u64s(b, r.From, r.To)
	}
	return b, nil
}

func appendActivate(b []byte, m *protocol.Activate) ([]byte, error) {
	if len(m.History) > protocol.MaxHistory {
		return nil, badField(KindActivate, "history", "%d entries, at most %d", len(m.History), protocol.MaxHistory)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.History)))
	for _, e := range m.History {
		b = u64s(b, uint64(e.Epoch), uint64(e.Start))
	}
	s := &m.Settings
	b, err := appendName(b, KindActivate, s.Name)
	if err != nil {
		return nil, err
	}
	b = binary.LittleEndian.AppendUint32(b, s.Window)
	b = binary.LittleEndian.AppendUint64(b, s.SegmentBytes)
	b = binary.LittleEndian.AppendUint32(b, s.FlushAgeMS)
	if len(s.Peers) > protocol.MaxEnsemble {
		return nil, badField(KindActivate, "peers", "%d nodes, at most %d", len(s.Peers), protocol.MaxEnsemble)
	}
	b = append(b, yes(s.Memory), s.Qw, byte(len(s.Peers)))
	b = u64s(b, s.Peers...)
	if len(m.Lost) == 0 {
		return b, nil
	}
	return appendRanges(b, KindActivate, "lost", m.Lost, protocol.MaxLost)
}

// activateLost is the sub-kind of an Activate with lost ranges. They stand at the end of its body.
const activateLost = 1

// RunBytes is the head of a run of records in a reply: first LSN, label, segment start, segment offset and count. A reply
// takes at most RunBytes + protocol.EncodedSize per record; consecutive records of one label and segment share one head.
const RunBytes = 4*8 + 4

// follows reports whether r continues the run of p, so that all but its payload can be computed.
func follows(p, r *protocol.Record) bool {
	return r.LSN == p.LSN+1 && r.Label == p.Label && r.SegStart == p.SegStart &&
		r.SegOff == p.SegOff+uint64(protocol.EncodedSize(len(p.Data)))
}

// checkRun bounds the head of a run. Its sums stay far from wrapping: at most MaxReplyRecords steps of MaxRecordBytes.
func checkRun(k Kind, r *protocol.Record, count uint32) error {
	if r.LSN == 0 || r.LSN > protocol.MaxLSN-protocol.LSN(count)+1 {
		return badField(k, "run", "%d records from LSN %d", count, r.LSN)
	}
	if r.SegOff > protocol.MaxSegmentBytes+protocol.MaxBlockBytes {
		return badField(k, "run", "LSN %d at offset %d, a segment has at most %d bytes", r.LSN, r.SegOff, protocol.MaxSegmentBytes)
	}
	return nil
}

// appendRecords writes records as runs: consecutive LSNs of one label and segment share one head, and the run itself is a
// record block as in an Append. The number of all records stands in the message header.
func appendRecords(b []byte, k Kind, rs []protocol.Record) ([]byte, error) {
	if len(rs) > MaxReplyRecords {
		return nil, badField(k, "records", "%d records, at most %d", len(rs), MaxReplyRecords)
	}
	for i := 0; i < len(rs); {
		end := i + 1
		for end < len(rs) && follows(&rs[end-1], &rs[end]) {
			end++
		}
		r := &rs[i]
		if err := checkRun(k, r, uint32(end-i)); err != nil {
			return nil, err
		}
		b = u64s(b, uint64(r.LSN), uint64(r.Label), uint64(r.SegStart), r.SegOff)
		b = binary.LittleEndian.AppendUint32(b, uint32(end-i))
		for ; i < end; i++ {
			if len(rs[i].Data) > protocol.MaxRecordBytes {
				return nil, badField(k, "records", "record %d has %d bytes, at most %d", rs[i].LSN, len(rs[i].Data), protocol.MaxRecordBytes)
			}
			b = protocol.AppendRecord(b, rs[i].Data, rs[i].More)
		}
	}
	return b, nil
}
