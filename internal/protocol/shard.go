package protocol

import (
	"errors"
	"fmt"
	"slices"
	"sort"
)

// Peer is an opaque handle of the sender of a request; the driver gives it and gets it back with the reply.
type Peer uint64

// RecordWrite is one record to store under (Log, Label, LSN): the value is Head followed by Data.
type RecordWrite struct {
	Log   LogID
	Label Epoch
	LSN   LSN
	Head  []byte // owned by Out
	Data  []byte // aliases the request's Block
}

// StateWrite replaces the state value of a log.
type StateWrite struct {
	Log   LogID
	Value []byte
}

// Trim drops the local records of (Log, Label) at or below Through; Whole drops the label altogether.
type Trim struct {
	Log     LogID
	Label   Epoch
	Through LSN
	Whole   bool
}

// AckOut and ReplyOut are replies; all of an Out's replies leave only when all of its writes are durable (I2).
type AckOut struct {
	To  Peer
	Ack Ack
}

// Ref names a stored record that belongs into a reply.
type Ref struct {
	Label Epoch
	LSN   LSN
}

// ReplyOut is a reply whose Records the driver fills from the store: those of Refs, in order, until MaxBytes is reached
// (at least one). A record that cannot be read goes to Damaged; an early end lowers Through.
type ReplyOut struct {
	To       Peer
	Msg      Message
	Log      LogID
	Refs     []Ref
	MaxBytes int
}

// Out collects what the steps of one batch ask for. The driver makes all of Records, State and Trims durable in one
// atomic commit, Trims before Records, and only then sends Acks and Replies. (A copy may come back under a label that an
// activation of the same batch emptied; trimmed last, it would be gone and yet called present.) Reversed, an acknowledged record or a promise could be lost with
// the power, and with it P2 and P14. Memory logs are the exception that their options name: see NeedForce.
type Out struct {
	Records []RecordWrite
	State   []StateWrite
	Trims   []Trim
	Acks    []AckOut
	Replies []ReplyOut
	// NeedForce is set when anything in the batch must be on the device before the replies leave: everything except the
	// plain appends and watermarks of logs with memory durability.
	NeedForce bool
	// Promises counts the promises of the batch that were raised, Fencings those of them that ended the reign of a writer that
	// was active here, and Activations the epochs that were activated.
	Promises, Fencings, Activations int
	// Forgotten are logs whose state values go in the same commit, before State is written.
	Forgotten []LogID

	heads []byte
	state []byte
}

// Reset empties o and keeps its memory.
func (o *Out) Reset() {
	clear(o.Replies)
	*o = Out{Records: o.Records[:0], State: o.State[:0], Trims: o.Trims[:0], Acks: o.Acks[:0], Replies: o.Replies[:0], Forgotten: o.Forgotten[:0],
		heads: o.heads[:0], state: o.state[:0]}
}

// Empty reports whether nothing is to be written.
func (o *Out) Empty() bool {
	return len(o.Records) == 0 && len(o.State) == 0 && len(o.Trims) == 0 && len(o.Forgotten) == 0
}

// Shard is the node side of the protocol for all logs of one shard.
//
// One batch is: Out.Reset, any number of Step, Archived and Release calls, Finish, then the driver's commit and sends.
// The machine's memory runs ahead of the disk within a batch; that is sound because no reply leaves before the commit and
// a failed commit ends the process (P14).
type Shard struct {
	inc   Incarnation
	logs  map[LogID]*nodeLog
	blank int // of logs: those that were never activated
	dirty []*nodeLog
	space Space
	// touched are the logs in which something changed that Flushable or Behind tell of, since Touched.
	touched []LogID
	// peers are the other nodes that logs depend on; more than they are until Endangered looks at all logs.
	peers map[Incarnation]bool
	rules Rules
}

// NewShard returns an empty shard of the node at incarnation inc.
func NewShard(inc Incarnation, rules Rules) *Shard {
	return &Shard{inc: inc, logs: make(map[LogID]*nodeLog), peers: make(map[Incarnation]bool), rules: rules}
}

// Incarnation returns the incarnation that every answer carries.
func (s *Shard) Incarnation() Incarnation { return s.inc }

// Restore loads the state value of a log at start; RestoreRecord and RestoreDamage follow for its records, then
// RestoreDone. A log whose state cannot be decoded is an error: the node must not answer for it.
func (s *Shard) Restore(log LogID, state []byte) error {
	l, err := decodeState(log, state)
	if err != nil {
		return err
	}
	s.logs[log] = l
	if l.activated == 0 {
		s.blank++
	}
	return nil
}

// RestoreRecord notes a stored record found at start, in any order within a label. It reports whether the shard holds the record now: not
// if it is void, lost, dropped, or cannot be understood.
func (s *Shard) RestoreRecord(log LogID, label Epoch, lsn LSN, value []byte, now Time) (held bool, err error) {
	l := s.logs[log]
	if l == nil {
		return false, fmt.Errorf("log %s: record %d@%d without a state value", log, lsn, label)
	}
	st, err := DecodeStored(lsn, label, value)
	_, lost := rangeAt(l.lost, lsn)
	void := lost || l.history.Void(label, lsn)
	if err != nil && (lsn <= l.dropped || void) {
		return false, nil // it was not wanted any more
	}
	if err != nil {
		// The record was there and cannot be understood: unknown, never absent (P3, R4).
		s.RestoreDamage(log, Range{lsn, lsn})
		return false, nil
	}
	// A stamp is a true statement of the writer whose record carries it, whatever became of the record: it may be taken
	// from void copies too.
	l.raiseCLSN(st.CLSN)
	if lsn <= l.dropped || void {
		return false, nil
	}
	r := l.held.ensure(label)
	if !r.has(lsn) {
		r.add(lsn, st.SegStart, st.SegOff, EncodedSize(len(st.Data)))
	}
	if lsn > l.archived && l.oldest == 0 {
		l.oldest = now
	}
	return true, nil
}

// RestoreDamage notes LSNs of which this node once held something that it cannot read any more: it answers unknown. The
// list is ascending and disjoint, so that the same damage found at every start is one entry. When it is full the range
// grows over the gap to its neighbour: unknown may be said of too much, absent never of what was there.
func (s *Shard) RestoreDamage(log LogID, r Range) {
	l := s.logs[log]
	if l == nil || r.From > r.To {
		return
	}
	d := l.damaged
	i := sort.Search(len(d), func(i int) bool { return d[i].To+1 >= r.From })
	if i < len(d) && d[i].From > r.To+1 && len(d) == MaxExtents {
		d[i].From = r.From
		return
	}
	if i == len(d) && len(d) == MaxExtents {
		d[i-1].To = r.To
		return
	}
	j := i
	for ; j < len(d) && d[j].From <= r.To+1; j++ {
		r.From, r.To = min(r.From, d[j].From), max(r.To, d[j].To)
	}
	l.damaged = slices.Replace(d, i, j, r)
}

// RestoreDone ends the restore of a log: the watermark is at least start − 1 (P9).
func (s *Shard) RestoreDone(log LogID) {
	if l := s.logs[log]; l != nil {
		if l.start > 0 {
			l.raiseCLSN(l.start - 1)
		}
		l.clearLost()
		l.lastAppend = l.oldest
		s.depend(l)
		s.touch(l)
	}
}

// SetSpace tells the shard for what there is room.
func (s *Shard) SetSpace(space Space) { s.space = space }

// Logs returns the status of all logs, ascending by id.
func (s *Shard) Logs() []LogStatus {
	out := make([]LogStatus, 0, len(s.logs))
	for _, l := range s.logs {
		out = append(out, l.status())
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Log < out[j].Log })
	return out
}

// Log returns the status of one log.
func (s *Shard) Log(id LogID) (LogStatus, bool) {
	l := s.logs[id]
	if l == nil {
		return LogStatus{}, false
	}
	return l.status(), true
}

// Step applies one request. Replies and acknowledgements of other nodes are not for a shard and are ignored.
func (s *Shard) Step(now Time, from Peer, m Message, out *Out) {
	switch m := m.(type) {
	case *Append:
		s.append(now, from, m, out)
	case *Open:
		s.open(from, m, out)
	case *Activate:
		s.activate(from, m, out)
	case *Watermark:
		s.watermark(from, m, out)
	case *Fetch:
		s.fetch(from, m, out)
	case *Read:
		s.read(from, m, out)
	case *Drop:
		s.drop(from, m, out)
	}
}

// Finish ends a batch: the state values of all logs that changed join it. It must be called before the commit, or a
// promise would leave without having been written.
func (s *Shard) Finish(out *Out) {
	for _, l := range s.dirty {
		from := len(out.state)
		archived, dropped, clsn := l.archived, l.dropped, l.clsn
		if s.rules.ArchivedNotDurable {
			l.archived, l.dropped, l.clsn = 0, 0, 0
		}
		out.state = l.encodeState(out.state)
		l.archived, l.dropped, l.clsn = archived, dropped, clsn
		out.State = append(out.State, StateWrite{l.id, out.state[from:len(out.state):len(out.state)]})
		l.dirty = false
	}
	s.dirty = s.dirty[:0]
}

func (s *Shard) mark(l *nodeLog, out *Out) {
	out.NeedForce = true
	s.touch(l)
	if !l.dirty {
		l.dirty = true
		s.dirty = append(s.dirty, l)
	}
}

// markLazily is mark for a change that a memory log need not force.
func (s *Shard) markLazily(l *nodeLog, out *Out) {
	s.touch(l)
	if !l.settings.Memory {
		out.NeedForce = true
	}
	if !l.dirty {
		l.dirty = true
		s.dirty = append(s.dirty, l)
	}
}

// ack answers a request that named the incarnation asked. A refusal for another incarnation names the one that was asked:
// the sender learns that it is gone, which an incarnation that the sender never heard of could not tell it (R3).
func (s *Shard) ack(to Peer, asked Incarnation, l *nodeLog, a Ack, out *Out) {
	a.Incarnation = s.inc
	if a.Status == StatusWrongIncarnation || s.rules.WrongIncarnationAnswers {
		a.Incarnation = asked
	}
	if l != nil {
		a.Promised, a.Activated, a.CLSN = l.promised, l.activated, l.clsn
	}
	out.Acks = append(out.Acks, AckOut{to, a})
}

// open is P2: promise, then answer with what is held; the driver forces the promise before the answer leaves.
func (s *Shard) open(from Peer, m *Open, out *Out) {
	if m.Log == 0 || m.Epoch == 0 || len(m.Name) > MaxNameBytes {
		return
	}
	r := &OpenReply{Log: m.Log, Epoch: m.Epoch, Req: m.Req, Incarnation: s.inc}
	l := s.logs[m.Log]
	if l == nil {
		if l = s.meet(m.Log, false); l == nil {
			r.Status = StatusOverloaded
			out.Replies = append(out.Replies, ReplyOut{To: from, Msg: r, Log: m.Log})
			return
		}
	}
	switch {
	case l.deleted:
		r.Status = StatusDeleted
	case m.Epoch < l.promised:
		r.Status = StatusFenced
	default:
		if m.Epoch > l.promised && !s.rules.ReadWithoutFence {
			out.Promises++
			if l.activated != 0 && l.activated == l.promised {
				out.Fencings++
			}
			l.promised = m.Epoch
			if l.settings.Name == "" {
				l.settings.Name = m.Name
			}
			if !s.rules.PromiseNotDurable {
				s.mark(l, out)
			}
		}
		r.Activated, r.Start, r.CLSN, r.ArchivedThrough = l.activated, l.start, l.clsn, l.archived
		r.Held, r.Through = l.held.extents(l.archived, MaxExtents)
		r.Damaged = l.damagedAbove(l.archived)
	}
	r.Promised = l.promised
	out.Replies = append(out.Replies, ReplyOut{To: from, Msg: r, Log: m.Log})
}

// meet makes the state of a log that is not known yet; nil if there are too many. writer says that it has one from the start.
func (s *Shard) meet(log LogID, writer bool) *nodeLog {
	if len(s.logs) >= MaxLogs || !writer && s.blank >= MaxBlankLogs {
		return nil
	}
	if !writer {
		s.blank++
	}
	l := &nodeLog{id: log}
	s.logs[log] = l
	return l
}

// check is the gate of every request that names an incarnation and an epoch (P7, R3, R9): one place for all paths that
// can commit. It returns StatusOK when the log may take a message of the activated epoch.
func (s *Shard) check(l *nodeLog, inc Incarnation, e Epoch) Status {
	switch {
	case inc != s.inc && !s.rules.WrongIncarnationAnswers:
		return StatusWrongIncarnation
	case l == nil:
		return StatusNotActivated
	case l.deleted:
		return StatusDeleted // before the fence: whoever deleted the log raised the promise too, and deletion is the news
	case e < l.promised && !s.rules.TakeAppendsBelowPromise:
		return StatusFenced
	case e != l.activated && !s.rules.TakeAppendsBelowPromise:
		return StatusNotActivated
	}
	return StatusOK
}

func (s *Shard) append(now Time, from Peer, m *Append, out *Out) {
	l := s.logs[m.Log]
	a := Ack{Log: m.Log, Epoch: m.Epoch, Kind: AckAppend, Append: m.Kind, First: m.First, Last: m.Last(), Label: m.Label}
	a.Status = s.check(l, m.Incarnation, m.Epoch)
	stamp := m.CLSN
	if m.Kind != AppendNormal {
		// Repairs come between promise and activation. Their watermark is not taken: what the opener believes is
		// committed is so only after its CAS (H12).
		stamp = 0
		if a.Status == StatusNotActivated {
			a.Status = StatusNotPromised
			if l != nil && (l.promised == m.Epoch || s.rules.ReadWithoutFence) {
				a.Status = StatusOK
			}
		}
	}
	if a.Status == StatusOK {
		a.Status = s.admit(l, m)
	}
	if a.Status != StatusOK {
		s.ack(from, m.Incarnation, l, a, out)
		return
	}
	raised := m.Kind == AppendNormal && l.raiseCLSN(m.CLSN)
	if last := s.store(now, l, m, stamp, out); raised && last <= m.CLSN {
		// No new record carries the stamp, for a head has room only for one below its LSN, and the acknowledgement names
		// the watermark as durable.
		s.markLazily(l, out)
	}
	s.ack(from, m.Incarnation, l, a, out)
}

// admit checks an append that passed the gate against the log. It changes nothing.
func (s *Shard) admit(l *nodeLog, m *Append) Status {
	if m.First == 0 || m.First > MaxLSN || m.Last() > MaxLSN || m.SegStart == 0 || m.SegStart > m.First || m.SegOff > MaxSegmentBytes+MaxBlockBytes ||
		CheckBlock(m.Block, m.Count) != nil {
		return StatusBad
	}
	switch m.Kind {
	case AppendNormal:
		if m.Label != m.Epoch || m.First < l.start {
			return StatusBad
		}
	case AppendRepair:
		if m.Label != m.Epoch {
			return StatusBad
		}
	case AppendCopy:
		if m.Label == 0 || m.Label >= m.Epoch || l.history.Void(m.Label, m.Last()) {
			return StatusBad
		}
	default:
		return StatusBad
	}
	if !s.space.roomFor(m.Kind) && !l.holds(m) {
		return StatusNoSpace // what is held already needs no room: it is acknowledged again
	}
	if runs := l.held.label(m.Label); runs != nil {
		off, rest := m.SegOff, m.Block
		for i := range m.Count {
			data, _, tail, _ := NextRecord(rest)
			lsn, size := m.First+LSN(i), EncodedSize(len(data))
			if !runs.has(lsn) && !runs.fits(lsn, m.SegStart, off, size) {
				return StatusBad
			}
			off, rest = off+uint64(size), tail
		}
	}
	return StatusOK
}

// holds reports whether every record of an append is held under its label.
func (l *nodeLog) holds(m *Append) bool {
	runs := l.held.label(m.Label)
	if runs == nil {
		return false
	}
	i := runs.find(m.First)
	for x := m.First; i < len(runs.runs) && runs.runs[i].From <= x; i++ {
		if runs.runs[i].To >= m.Last() {
			return true
		}
		x = runs.runs[i].To + 1
	}
	return false
}

// store writes the records of an admitted append that are not held yet. A record that is held already is durable, or is
// in this very batch, so its acknowledgement is true either way. It returns the highest LSN written, or zero.
func (s *Shard) store(now Time, l *nodeLog, m *Append, stamp LSN, out *Out) (last LSN) {
	runs := l.held.ensure(m.Label)
	off, rest := m.SegOff, m.Block
	for i := range m.Count {
		data, more, tail, _ := NextRecord(rest)
		rest = tail
		lsn, size := m.First+LSN(i), EncodedSize(len(data))
		// What was dropped is archived; a normal append of it is a late copy and needs no room. A repair is always
		// stored: its label may outrank the archived copy.
		if !runs.has(lsn) && !(m.Kind == AppendNormal && lsn <= l.archived) {
			runs.add(lsn, m.SegStart, off, size)
			from := len(out.heads)
			out.heads = appendStoredHead(out.heads, lsn, m.SegStart, off, stamp, more)
			out.Records = append(out.Records, RecordWrite{l.id, m.Label, lsn, out.heads[from:len(out.heads):len(out.heads)], data})
			last = lsn
		}
		off += uint64(size)
	}
	if last != 0 {
		s.touch(l)
		l.lastAppend = now
		if l.oldest == 0 {
			l.oldest = now
		}
		if !l.settings.Memory {
			out.NeedForce = true
		}
	}
	if len(runs.runs) == 0 {
		l.held.dropThrough(0) // no label without runs stays in the index
	}
	return last
}

// activate is P7: durable, void by P8, seal, raise the watermark, in one step.
func (s *Shard) activate(from Peer, m *Activate, out *Out) {
	l := s.logs[m.Log]
	a := Ack{Log: m.Log, Epoch: m.Epoch, Kind: AckActivate}
	switch {
	case m.Incarnation != s.inc && !s.rules.WrongIncarnationAnswers:
		a.Status = StatusWrongIncarnation
	case m.Log == 0 || m.Epoch == 0 || m.Start == 0 || m.B+1 != m.Start || len(m.History) > MaxHistory || m.History.Validate() != nil ||
		m.History.Last() != (HistoryEntry{m.Epoch, m.Start}) || len(m.Settings.Name) > MaxNameBytes || len(m.Settings.Peers) > MaxEnsemble ||
		len(m.Lost) > MaxLost || !validRanges(m.Lost, m.Start):
		a.Status = StatusBad
	case l != nil && m.Epoch < l.promised:
		a.Status = StatusFenced // X10: refused after a higher promise
	case l != nil && l.deleted:
		a.Status = StatusDeleted
	case l != nil && m.Epoch == l.activated:
		// A repeated Activate must not void its own epoch (X10): nothing to do.
	case l == nil && len(s.logs) >= MaxLogs:
		a.Status = StatusOverloaded
	default:
		switch {
		case l == nil:
			l = s.meet(m.Log, true)
		case l.activated == 0:
			s.blank--
		}
		out.Activations++
		l.promised, l.activated, l.start = m.Epoch, m.Epoch, m.Start
		l.history = append(History(nil), m.History...)
		l.settings = m.Settings
		l.settings.Peers = append([]Incarnation(nil), m.Settings.Peers...)
		s.depend(l)
		l.sealed = 0
		if s.rules.LabelIsOwner {
			l.held.keepOwned(l.history, m.Epoch)
		}
		if !s.rules.VoidFromStartOnly {
			// What is void is dead for good, so its room may go in the same commit.
			emptied := func(label Epoch) { out.Trims = append(out.Trims, Trim{Log: l.id, Label: label, Whole: true}) }
			l.held.void(l.history, emptied)
			if !s.rules.KeepLostCopies {
				l.held.lose(m.Lost, emptied)
			}
		} else {
			for i := range l.held {
				if l.held[i].label < m.Epoch {
					l.held[i].cutFrom(m.Start)
				}
			}
			l.held.dropThrough(0)
		}
		l.lost = append([]Range(nil), m.Lost...)
		l.clearLost()
		l.passLost()
		l.raiseCLSN(m.B)
		s.mark(l, out)
	}
	s.ack(from, m.Incarnation, l, a, out)
}

func (s *Shard) watermark(from Peer, m *Watermark, out *Out) {
	l := s.logs[m.Log]
	a := Ack{Log: m.Log, Epoch: m.Epoch, Kind: AckWatermark, Status: s.check(l, m.Incarnation, m.Epoch)}
	if s.rules.WatermarkBeforeActivate && a.Status == StatusNotActivated && l != nil && l.promised == m.Epoch {
		a.Status = StatusOK
	}
	if a.Status == StatusOK {
		changed := l.raiseCLSN(m.CLSN)
		if m.Sealed > l.sealed && m.Sealed <= MaxLSN {
			l.sealed, changed = m.Sealed, true
		}
		if changed {
			s.markLazily(l, out)
		}
		a.Last = l.sealed
	}
	s.ack(from, m.Incarnation, l, a, out)
}

func (s *Shard) drop(from Peer, m *Drop, out *Out) {
	l := s.logs[m.Log]
	a := Ack{Log: m.Log, Epoch: m.Epoch, Kind: AckDrop}
	switch {
	case m.Incarnation != s.inc:
		a.Status = StatusWrongIncarnation
	case m.Log == 0 || m.Epoch == 0:
		a.Status = StatusBad
	case l != nil && m.Epoch < l.promised:
		a.Status = StatusFenced
	case l != nil && l.deleted:
	case l == nil && s.meet(m.Log, false) == nil:
		a.Status = StatusOverloaded
	default:
		l = s.logs[m.Log]
		l.promised = m.Epoch
		s.empty(l, out)
	}
	s.ack(from, m.Incarnation, l, a, out)
}

// ErrNoSuchLog is returned for a log of which this shard knows nothing.
var ErrNoSuchLog = errors.New("no such log at this node")
