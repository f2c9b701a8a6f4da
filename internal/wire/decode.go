package wire

import (
	"encoding/binary"

	"github.com/btrlog/btrlog/internal/protocol"
)

// decoder walks over a body. After the first failure it returns zeros, and err names the field that failed.
type decoder struct {
	kind  Kind
	body  []byte
	owned bool
	err   error
}

func (d *decoder) fail(field, format string, args ...any) {
	if d.err == nil {
		d.err = badField(d.kind, field, format, args...)
	}
	d.body = nil
}

func (d *decoder) bytes(field string, n int) []byte {
	if d.err != nil {
		return nil
	}
	if n > len(d.body) {
		d.fail(field, "%d bytes wanted, %d left", n, len(d.body))
		return nil
	}
	b := d.body[:n:n]
	d.body = d.body[n:]
	return b
}

func (d *decoder) u8(field string) uint8 {
	if b := d.bytes(field, 1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u32(field string) uint32 {
	if b := d.bytes(field, 4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) u64(field string) uint64 {
	if b := d.bytes(field, 8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) yes(field string) bool {
	v := d.u8(field)
	if v > 1 {
		d.fail(field, "%d is neither yes nor no", v)
	}
	return v == 1
}

func (d *decoder) lsn(field string) protocol.LSN     { return protocol.LSN(d.u64(field)) }
func (d *decoder) epoch(field string) protocol.Epoch { return protocol.Epoch(d.u64(field)) }

// list reads the length of a list and checks it against its limit and against the bytes left, before anyone allocates.
func (d *decoder) list(field string, n, limit, each int) int {
	if d.err == nil && (n < 0 || n > limit || n*each > len(d.body)) {
		d.fail(field, "%d entries of %d bytes, at most %d and %d bytes left", n, each, limit, len(d.body))
	}
	if d.err != nil {
		return 0
	}
	return n
}

func (d *decoder) name() string {
	n := d.list("name", int(d.u8("name")), protocol.MaxNameBytes, 1)
	return string(d.bytes("name", n))
}

func (d *decoder) maxBytes() uint32 {
	n := d.u32("max bytes")
	if n > MaxReplyBytes {
		d.fail("max bytes", "%d, at most %d", n, MaxReplyBytes)
	}
	return n
}

func (d *decoder) extents(field string) []protocol.Extent {
	n := d.list(field, int(d.u32(field)), protocol.MaxExtents, 24)
	if n == 0 {
		return nil
	}
	es := make([]protocol.Extent, n)
	for i := range es {
		es[i] = protocol.Extent{From: d.lsn(field), To: d.lsn(field), Label: d.epoch(field)}
	}
	return es
}

func (d *decoder) damaged() []protocol.Range { return d.ranges("damaged", protocol.MaxExtents) }

func (d *decoder) ranges(field string, limit int) []protocol.Range {
	n := d.list(field, int(d.u32(field)), limit, 16)
	if n == 0 {
		return nil
	}
	rs := make([]protocol.Range, n)
	for i := range rs {
		rs[i] = protocol.Range{From: d.lsn(field), To: d.lsn(field)}
	}
	return rs
}

// records reads total records in runs. A record takes at least RecordOverhead bytes, so total is bounded by the bytes
// that are there.
func (d *decoder) records(total uint32) []protocol.Record {
	n := d.list("records", int(total), MaxReplyRecords, protocol.RecordOverhead)
	if n == 0 {
		return nil
	}
	if !d.owned {
		d.body = append([]byte(nil), d.body...) // one copy for all payloads; records are the last field of a body
	}
	rs := make([]protocol.Record, 0, n)
	for len(rs) < n {
		r := protocol.Record{LSN: d.lsn("run"), Label: d.epoch("run"), SegStart: d.lsn("run"), SegOff: d.u64("run")}
		count := d.u32("run")
		if count == 0 || uint64(count) > uint64(n-len(rs)) {
			d.fail("run", "%d records in a run, %d to come", count, n-len(rs))
		}
		if d.err == nil {
			d.err = checkRun(d.kind, &r, count)
		}
		for ; count > 0 && d.err == nil; count-- {
			data, more, rest, err := protocol.NextRecord(d.body)
			if err != nil {
				d.fail("records", "LSN %d: %v", r.LSN, err)
				break
			}
			d.body = rest
			r.More, r.Data = more, data[:len(data):len(data)]
			if len(data) == 0 {
				r.Data = nil
			}
			rs = append(rs, r)
			r.LSN++
			r.SegOff += uint64(protocol.EncodedSize(len(data)))
		}
		if d.err != nil {
			return nil
		}
	}
	return rs
}

func (d *decoder) activate(m *protocol.Activate, lost bool) {
	if n := d.list("history", int(d.u32("history")), protocol.MaxHistory, 16); n > 0 {
		m.History = make(protocol.History, n)
		for i := range m.History {
			m.History[i] = protocol.HistoryEntry{Epoch: d.epoch("history"), Start: d.lsn("history")}
		}
	}
	s := &m.Settings
	s.Name, s.Window, s.SegmentBytes, s.FlushAgeMS = d.name(), d.u32("window"), d.u64("segment bytes"), d.u32("flush age")
	s.Memory, s.Qw = d.yes("memory"), d.u8("qw")
	if n := d.list("peers", int(d.u8("peers")), protocol.MaxEnsemble, 8); n > 0 {
		s.Peers = make([]protocol.Incarnation, n)
		for i := range s.Peers {
			s.Peers[i] = protocol.Incarnation(d.u64("peers"))
		}
	}
	if lost {
		if m.Lost = d.ranges("lost", protocol.MaxLost); len(m.Lost) == 0 {
			d.fail("lost", "no ranges in a message that is to have some")
		}
	}
}

// header checks that what the kind has no use for is zero; lost says that ranges follow.
func (d *decoder) header(r *Reader) (lost bool) {
	sub, status, count := r.msg[1], r.msg[2], r.count()
	isReply := d.kind == KindOpenReply || d.kind == KindFetchReply || d.kind == KindReadReply
	hasRecords := d.kind == KindFetchReply || d.kind == KindReadReply
	lost = d.kind == KindActivate && sub == activateLost
	if sub != 0 && !lost || (status != 0 && !isReply) || (count != 0 && !hasRecords) {
		d.fail("header", "sub-kind %d, status %d, count %d", sub, status, count)
	}
	if r.Epoch() != 0 && (d.kind == KindRead || d.kind == KindReadReply) {
		d.fail("epoch", "%d, must be zero", r.Epoch())
	}
	return lost
}

func (d *decoder) watermark(r *Reader, m *protocol.Watermark) {
	d.header(r)
	*m = protocol.Watermark{Log: r.Log(), Epoch: r.Epoch(), Incarnation: r.h.Incarnation, CLSN: d.lsn("clsn"), Sealed: d.lsn("sealed")}
}

// message decodes the kinds that are not on the hot path.
func (d *decoder) message(r *Reader) protocol.Message {
	if d.kind == KindWatermark {
		m := new(protocol.Watermark)
		d.watermark(r, m)
		return m
	}
	log, epoch, inc, status, count := r.Log(), r.Epoch(), r.h.Incarnation, protocol.Status(r.msg[2]), r.count()
	lost := d.header(r)
	switch d.kind {
	case KindOpen:
		return &protocol.Open{Log: log, Epoch: epoch, Req: d.u64("req"), Name: d.name()}
	case KindOpenReply:
		return &protocol.OpenReply{Log: log, Epoch: epoch, Incarnation: inc, Status: status,
			Req: d.u64("req"), Promised: d.epoch("promised"), Activated: d.epoch("activated"), Start: d.lsn("start"), CLSN: d.lsn("clsn"),
			ArchivedThrough: d.lsn("archived through"), Through: d.lsn("through"), Held: d.extents("held"), Damaged: d.damaged()}
	case KindFetch:
		return &protocol.Fetch{Log: log, Epoch: epoch, Incarnation: inc,
			Req: d.u64("req"), From: d.lsn("from"), To: d.lsn("to"), Label: d.epoch("label"), MaxBytes: d.maxBytes()}
	case KindFetchReply:
		return &protocol.FetchReply{Log: log, Epoch: epoch, Incarnation: inc, Status: status,
			Req: d.u64("req"), Promised: d.epoch("promised"), ArchivedThrough: d.lsn("archived through"), From: d.lsn("from"),
			Through: d.lsn("through"), Damaged: d.damaged(), Records: d.records(count)}
	case KindActivate:
		m := &protocol.Activate{Log: log, Epoch: epoch, Incarnation: inc, Start: d.lsn("start"), B: d.lsn("b")}
		d.activate(m, lost)
		return m
	case KindRead:
		return &protocol.Read{Log: log, Req: d.u64("req"), From: d.lsn("from"), To: d.lsn("to"), WaitAbove: d.lsn("wait above"),
			MaxBytes: d.maxBytes(), Raw: d.yes("raw")}
	case KindReadReply:
		return &protocol.ReadReply{Log: log, Incarnation: inc, Status: status,
			Req: d.u64("req"), Activated: d.epoch("activated"), Start: d.lsn("start"), CLSN: d.lsn("clsn"), ArchivedThrough: d.lsn("archived through"),
			Highest: d.lsn("highest"), HighestLabel: d.epoch("highest label"), From: d.lsn("from"), Through: d.lsn("through"),
			Uncommitted: d.extents("uncommitted"), Damaged: d.damaged(), Records: d.records(count)}
	case KindDrop:
		return &protocol.Drop{Log: log, Epoch: epoch, Incarnation: inc}
	}
	d.fail("kind", "unknown in version %d", Version)
	return nil
}
