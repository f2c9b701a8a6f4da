package protocol

import (
	"encoding/binary"
	"fmt"
)

// nodeLog is what one shard knows of one log. Its durable part is the state value (encodeState) and the stored records;
// held is rebuilt from the records.
type nodeLog struct {
	id        LogID
	promised  Epoch
	activated Epoch
	start     LSN
	clsn      LSN // proves the copies held, see committed
	archived  LSN
	sealed    LSN // last LSN of a segment that was cut by age or close, under the activated epoch
	dropped   LSN // everything at or below is gone locally (archived before)
	deleted   bool
	settings  Settings
	history   History
	held      held
	damaged   []Range
	lost      []Range // of the record that was activated last: there is nothing of these

	dirty      bool // state value must be written in this step's batch
	touched    bool // something changed since Touched
	lastAppend Time // of the last record stored
	oldest     Time // arrival of the oldest record that is not archived yet; 0 when there is none
}

// State values are kept under one key per log and rewritten whole.
//
//	| version u8 | flags u8 | promised u64 | activated u64 | start u64 | cLSN u64 | archived u64 | sealed u64 | dropped u64 |
//	| window u32 | segment bytes u64 | flush age ms u32 | qw u8 | name len u8, name | peers u8, incarnation u64 … |
//	| history u32, (epoch uvarint, start uvarint) … | damaged u32, (from u64, to u64) … | lost u32, (from u64, to u64) … |   little-endian
//
// The history is written as differences from the entry before, the first from zero: each promise and each activation writes all of it, and most
// entries need two or three bytes so. That is version 3. Versions 1 and 2 have epoch u64, start u64; version 1 has no lost ranges, version 2 has one or more.
const (
	stateVersionPlain = 1
	stateVersionLost  = 2
	stateVersion      = 3
)

const (
	stateDeleted = 1 << 0
	stateMemory  = 1 << 1
)

func (l *nodeLog) encodeState(dst []byte) []byte {
	var flags byte
	if l.deleted {
		flags |= stateDeleted
	}
	if l.settings.Memory {
		flags |= stateMemory
	}
	dst = append(dst, stateVersion, flags)
	for _, v := range [...]uint64{uint64(l.promised), uint64(l.activated), uint64(l.start), uint64(l.clsn), uint64(l.archived), uint64(l.sealed), uint64(l.dropped)} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	s := &l.settings
	dst = binary.LittleEndian.AppendUint32(dst, s.Window)
	dst = binary.LittleEndian.AppendUint64(dst, s.SegmentBytes)
	dst = binary.LittleEndian.AppendUint32(dst, s.FlushAgeMS)
	dst = append(dst, s.Qw, byte(len(s.Name)))
	dst = append(dst, s.Name...)
	dst = append(dst, byte(len(s.Peers)))
	for _, p := range s.Peers {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(p))
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(l.history)))
	var before HistoryEntry
	for _, h := range l.history {
		dst = binary.AppendUvarint(dst, uint64(h.Epoch-before.Epoch))
		dst = binary.AppendUvarint(dst, uint64(h.Start-before.Start))
		before = h
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(l.damaged)))
	for _, d := range l.damaged {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(d.From))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(d.To))
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(l.lost)))
	for _, r := range l.lost {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.From))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.To))
	}
	return dst
}

// stateReader takes fields off a state value; the first shortfall is remembered and ends the reading.
type stateReader struct {
	b   []byte
	err error
}

func (r *stateReader) take(n int) []byte {
	if r.err == nil && len(r.b) < n {
		r.err = fmt.Errorf("%w: state value cut short", ErrBadMessage)
	}
	if r.err != nil {
		return make([]byte, n)
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *stateReader) u8() byte    { return r.take(1)[0] }
func (r *stateReader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *stateReader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

func (r *stateReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.take(len(r.b) + 1) // cut short, or no number
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *stateReader) count(limit int, each int) int {
	n := int(r.u32())
	if r.err == nil && (n > limit || n*each > len(r.b)) {
		r.err = fmt.Errorf("%w: state value claims %d entries", ErrBadMessage, n)
	}
	if r.err != nil {
		return 0
	}
	return n
}

func (r *stateReader) history(version byte) (h History) {
	if version < stateVersion {
		for n := r.count(MaxHistory, 16); n > 0; n-- {
			h = append(h, HistoryEntry{Epoch(r.u64()), LSN(r.u64())})
		}
		return h
	}
	n := r.count(MaxHistory, 2)
	if n > 0 {
		h = make(History, n)
	}
	var before HistoryEntry
	for i := range h {
		before = HistoryEntry{before.Epoch + Epoch(r.uvarint()), before.Start + LSN(r.uvarint())}
		h[i] = before
	}
	return h
}

func decodeState(id LogID, b []byte) (*nodeLog, error) {
	r := &stateReader{b: b}
	version := r.u8()
	if r.err == nil && (version < stateVersionPlain || version > stateVersion) {
		return nil, fmt.Errorf("%w: state of log %s has version %d, this program knows up to %d", ErrBadMessage, id, version, stateVersion)
	}
	flags := r.u8()
	l := &nodeLog{id: id, deleted: flags&stateDeleted != 0}
	l.promised, l.activated, l.start = Epoch(r.u64()), Epoch(r.u64()), LSN(r.u64())
	l.clsn, l.archived, l.sealed, l.dropped = LSN(r.u64()), LSN(r.u64()), LSN(r.u64()), LSN(r.u64())
	s := &l.settings
	s.Memory = flags&stateMemory != 0
	s.Window, s.SegmentBytes, s.FlushAgeMS, s.Qw = r.u32(), r.u64(), r.u32(), r.u8()
	s.Name = string(r.take(int(r.u8())))
	for n := int(r.u8()); n > 0 && r.err == nil; n-- {
		s.Peers = append(s.Peers, Incarnation(r.u64()))
	}
	l.history = r.history(version)
	for n := r.count(MaxExtents, 16); n > 0; n-- {
		l.damaged = append(l.damaged, Range{LSN(r.u64()), LSN(r.u64())})
	}
	if version >= stateVersionLost {
		for n := r.count(MaxLost, 16); n > 0; n-- {
			l.lost = append(l.lost, Range{LSN(r.u64()), LSN(r.u64())})
		}
		if r.err == nil && (len(l.lost) == 0 && version == stateVersionLost || !validRanges(l.lost, l.start)) {
			r.err = fmt.Errorf("%w: state value lists lost LSNs out of order, or none", ErrBadMessage)
		}
	}
	if r.err == nil && len(r.b) != 0 {
		r.err = fmt.Errorf("%w: %d bytes behind the state value", ErrBadMessage, len(r.b))
	}
	if r.err == nil {
		if err := l.history.Validate(); err != nil {
			r.err = fmt.Errorf("%w: %w", ErrBadMessage, err)
		}
	}
	for i, d := range l.damaged {
		// RestoreDamage relies on the order.
		if r.err == nil && (d.From > d.To || i > 0 && d.From <= l.damaged[i-1].To) {
			r.err = fmt.Errorf("%w: state value lists damage out of order", ErrBadMessage)
		}
	}
	if r.err == nil && (l.activated > l.promised || max(l.start, l.clsn, l.archived, l.sealed, l.dropped) > MaxLSN) {
		r.err = fmt.Errorf("%w: state value contradicts itself", ErrBadMessage)
	}
	if r.err != nil {
		return nil, fmt.Errorf("log %s: %w", id, r.err)
	}
	return l, nil
}

// LogStatus is the state of one log at one node, for operators and for the flusher.
type LogStatus struct {
	Log             LogID
	Settings        Settings
	Promised        Epoch
	Activated       Epoch
	Start           LSN
	CLSN            LSN
	ArchivedThrough LSN
	DroppedThrough  LSN
	Highest         LSN
	Deleted         bool
	Damaged         []Range
	LastAppend      Time
	// Unarchived is how many bytes of records this node holds above ArchivedThrough, committed or not; an estimate where a record in
	// the middle of a segment was archived or lost, since the index has no sizes of single records.
	Unarchived uint64
	// Missing are the LSNs above ArchivedThrough, up to the highest that the node holds or knows committed, of which it holds no
	// copy and that are not lost on record: the lowest MaxMissing stretches. Only with fewer than that it is known that there are no others.
	Missing []Range
}

// MaxMissing bounds LogStatus.Missing.
const MaxMissing = 64

func (l *nodeLog) status() LogStatus {
	top, _ := l.held.highest()
	// The bound comes last: cut before what is lost is left out, a list of a few could stand for many.
	missing := without(l.held.missing(l.archived, max(top, l.clsn)), l.lost)
	missing = missing[:min(len(missing), MaxMissing)]
	return LogStatus{Log: l.id, Settings: l.settings, Promised: l.promised, Activated: l.activated, Start: l.start, CLSN: l.committed(), ArchivedThrough: l.archived,
		DroppedThrough: l.dropped, Highest: top, Deleted: l.deleted, Damaged: l.damaged, LastAppend: l.lastAppend,
		Unarchived: l.held.bytesAbove(l.archived), Missing: missing}
}

// raiseCLSN is the one place where a watermark rises; it never falls while the node runs (P9).
func (l *nodeLog) raiseCLSN(c LSN) bool {
	if c <= l.clsn || c > MaxLSN {
		return false
	}
	l.clsn = c
	return true
}

// committed is how far the log is known to be committed. It is not what the node serves by: archived-through tells that
// LSNs are committed, and nothing of whether the copies held here are the committed ones. A node that missed an epoch may
// hold copies that are void without knowing it, and only the watermark of an epoch that it activated proves its copies
// (H8, H9). So answers carry the two apart.
func (l *nodeLog) committed() LSN { return max(l.clsn, l.archived) }

// passLost raises archived-through over what is lost: there is nothing to archive.
func (l *nodeLog) passLost() {
	if r, ok := rangeAt(l.lost, l.archived+1); ok {
		l.archived = r.To
	}
}

func (l *nodeLog) damagedAbove(floor LSN) []Range {
	var out []Range
	for _, d := range l.damaged {
		if d.To > floor {
			out = append(out, Range{max(d.From, floor+1), d.To})
		}
	}
	return out
}
