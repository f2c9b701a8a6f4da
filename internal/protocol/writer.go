package protocol

import (
	"errors"
	"fmt"
	"math/bits"
)

// Errors of a Writer. ErrWindowFull and ErrTooLarge mean that no LSN was given out; the others end the writer.
var (
	// ErrWindowFull: W LSNs (or the window's bytes) are not acknowledged by a quorum yet.
	ErrWindowFull = errors.New("append window is full")
	// ErrTooLarge: the record or batch exceeds a limit.
	ErrTooLarge = errors.New("record or batch too large")
	// ErrFenced: the log's record shows a higher epoch: another writer has opened the log.
	ErrFenced = errors.New("fenced by a newer writer")
	// ErrDeleted: the log was deleted.
	ErrDeleted = errors.New("log was deleted")
	// ErrQuorumLost: so many nodes refuse this writer for good that no quorum can be reached at its epoch.
	ErrQuorumLost = errors.New("quorum cannot be reached at this epoch")
)

// WriterConfig is what a completed open hands to the append path.
type WriterConfig struct {
	Log      LogID
	Epoch    Epoch
	Start    LSN // R
	B        LSN
	Tail     LSN // T: everything at or below is committed; the next LSN is Tail + 1
	Ensemble Ensemble
	Qw       int
	History  History
	Lost     []Range // for activations
	Settings Settings
	SegStart LSN    // the segment that the next record continues
	SegOff   uint64 // its length so far
	// WindowBytes bounds the payload bytes not yet acknowledged by a quorum; 0 means 64 MiB.
	WindowBytes int
	// Retain is how many committed LSNs are kept for slow nodes beyond the window; past it a slow node's backlog is
	// dropped (P15) and it catches up from peers or is covered by the archive. 0 means the window.
	Retain int
	// RetainBytes bounds the payload kept beyond the window likewise; 0 means 8 MiB.
	RetainBytes int
	// BlockBytes is the most that an append of several records may fill (the datagram's payload). A larger single record
	// or batch travels alone.
	BlockBytes int
	// Flights is how many sends that do not fill a datagram may be under way; see launch. 0 means defaultFlights.
	Flights int
	// SegmentAge cuts a segment of an idle or slow log, so that its tail can be archived; 0 means never.
	SegmentAge Time
	Rules      Rules
}

// Timing of retransmission: the paper's prototype waits 30 ms × 1.5. The round trip is measured; these bound it.
const (
	initialRTO  = 30 * Millisecond
	minRTO      = 10 * Millisecond
	maxRTO      = 500 * Millisecond
	minProbe    = 2 * Millisecond    // see probe
	downAfter   = 2000 * Millisecond // a node silent so long gets probes only
	pushDelay   = 2 * Millisecond    // idle time after which the watermark is pushed by itself
	resendBurst = 64                 // appends sent again to one node in one tick
	maxRelease  = 256                // and at most so many for one acknowledgement
)

// slot is one LSN that was given out.
type slot struct {
	data     []byte // owned by the writer; reused
	segStart LSN
	segOff   uint64
	sentAt   Time
	acks     uint16 // bit i: member i holds it durably
	again    uint16 // bit i: it was sent to member i other than at sentAt, so that an answer does not tell which try it answers
	more     bool   // the batch goes on
	inBatch  bool   // the batch began before: never the first record of an append
}

// follower is the writer's view of one member.
type follower struct {
	lo        LSN // every LSN below is acknowledged by it or given up
	sent      LSN // highest LSN sent to it in this epoch
	wm        LSN // watermark it is known to hold durably
	wmSent    LSN // watermark last sent to it, by append or push
	heard     Time
	resendAt  Time
	rto       Time
	probes    uint8 // probes since it was last heard without one: each doubles the time to the next
	resent    LSN   // highest LSN sent again since the timer fired; what follows goes out with the acknowledgements
	passed    LSN   // highest LSN that was looked at because a later one was acknowledged; see sendPassed
	activated bool  // it has activated this epoch (or was not found to lack it)
	refuses   Status
	promised  Epoch
	wmAt      Time // when the watermark may be pushed again
	sealed    LSN  // seal it is known to hold
}

// SendKind tells what a Send is.
type SendKind uint8

const (
	SendAppend SendKind = iota
	SendActivate
	SendWatermark
)

// Send is one message to one member: for SendAppend the records [From, To].
type Send struct {
	Node     int // index into the ensemble
	Kind     SendKind
	From, To LSN
}

// Writer is the append path of an open log (paper 4.1): it numbers records, sends each to all members, and commits in
// order once Qw of them hold it durably (P9). It is driven by Append, HandleAck and Tick, and TakeSends says what to send.
//
// Window: LSN X is not given out before X − W is committed. All that is not committed is kept, so that nothing given out
// is ever renumbered or lost by the writer (P10).
type Writer struct {
	cfg    WriterConfig
	ring   []slot // power of two; LSN x lives in ring[x & mask]
	low    LSN    // lowest LSN still in the ring
	next   LSN    // next LSN to give out
	clsn   LSN
	out    flights
	sealed LSN
	unack  int // payload bytes in (clsn, next)
	kept   int // payload bytes in [low, clsn]

	segStart LSN
	segOff   uint64
	segSince Time // when the segment got its first record; 0 when it is empty

	nodes  []follower
	srtt   Time
	rttvar Time // mean deviation from it
	lastAt Time // last append
	err    error
	token  Epoch // the last token that this client took: the writer's own, or that of a re-open under way
	check  bool  // the driver must read the log's record and call RecordSeen

	resting bool   // see rest
	outbox  []Send // what to send now; the driver empties it with TakeSends
}

const defaultWindowBytes = 64 << 20

// NewWriter starts the append path after a completed open.
func NewWriter(cfg WriterConfig, now Time) (*Writer, error) {
	if err := checkWriterConfig(&cfg); err != nil {
		return nil, err
	}
	w := &Writer{cfg: cfg, next: cfg.Tail + 1, low: cfg.Tail + 1, clsn: cfg.Tail, token: cfg.Epoch, segStart: cfg.SegStart, segOff: cfg.SegOff, lastAt: now,
		ring: make([]slot, idleRecords), resting: true}
	w.out.flown = cfg.Tail
	if w.segOff > 0 {
		w.segSince = now
	}
	w.resetNodes(now)
	return w, nil
}

func checkWriterConfig(cfg *WriterConfig) error {
	n := len(cfg.Ensemble)
	if n == 0 || n > MaxEnsemble || cfg.Qw < 1 || cfg.Qw > n || cfg.Epoch == 0 || cfg.Log == 0 {
		return fmt.Errorf("writer of log %s: epoch %d, %d nodes, write quorum %d", cfg.Log, cfg.Epoch, n, cfg.Qw)
	}
	if cfg.Settings.Window == 0 || cfg.Settings.Window > MaxWindow || cfg.Settings.SegmentBytes < MinSegmentBytes || cfg.Settings.SegmentBytes > MaxSegmentBytes {
		return fmt.Errorf("writer of log %s: window %d, segment of %d bytes", cfg.Log, cfg.Settings.Window, cfg.Settings.SegmentBytes)
	}
	if cfg.WindowBytes == 0 {
		cfg.WindowBytes = defaultWindowBytes
	}
	if cfg.Retain == 0 {
		cfg.Retain = int(cfg.Settings.Window)
	}
	if cfg.RetainBytes == 0 {
		cfg.RetainBytes = 8 << 20
	}
	if cfg.BlockBytes == 0 {
		cfg.BlockBytes = 1200
	}
	if cfg.Flights == 0 {
		cfg.Flights = defaultFlights
	}
	if cfg.Flights < 1 || cfg.Flights > maxFlights {
		return fmt.Errorf("writer of log %s: %d flights, 1 to %d are possible", cfg.Log, cfg.Flights, maxFlights)
	}
	if cfg.SegStart == 0 || cfg.SegOff == 0 {
		cfg.SegStart, cfg.SegOff = cfg.Tail+1, 0
	}
	return nil
}

func (w *Writer) resetNodes(now Time) {
	w.nodes = make([]follower, len(w.cfg.Ensemble))
	for i := range w.nodes {
		// wm = 0 and wmSent = Tail−1 make an idle new writer push its watermark once.
		w.nodes[i] = follower{lo: w.clsn + 1, sent: w.clsn, heard: now, rto: initialRTO, activated: true}
	}
}

func (w *Writer) slot(x LSN) *slot { return &w.ring[uint64(x)&uint64(len(w.ring)-1)] }

// Accessors. Err is not nil once the writer has lost the log; it then gives out nothing and commits nothing.
func (w *Writer) Committed() LSN     { return w.clsn }
func (w *Writer) Next() LSN          { return w.next }
func (w *Writer) Epoch() Epoch       { return w.cfg.Epoch }
func (w *Writer) Ensemble() Ensemble { return w.cfg.Ensemble }
func (w *Writer) Err() error         { return w.err }

// WatermarkLag sums over the members the committed LSNs of which they are not known to have heard that they are.
func (w *Writer) WatermarkLag() (lag LSN) {
	for i := range w.nodes {
		// A member that has acknowledged nothing yet is not known to hold anything; what it lacks begins with this reign.
		if wm := max(w.nodes[i].wm, w.cfg.B); wm < w.clsn {
			lag += w.clsn - wm
		}
	}
	return lag
}

// Full reports whether no LSN can be given out before another is committed.
func (w *Writer) Full() bool { return w.next-1-w.clsn >= LSN(w.cfg.Settings.Window) }

// Retained returns how many records the writer holds in memory, and their bytes.
func (w *Writer) Retained() (records, bytes int) { return int(w.next - w.low), w.unack + w.kept }

// NeedsRecordCheck reports, once, that a node refused with a higher epoch: the driver reads the log's record and calls
// RecordSeen. One refusal alone is not loss (X6).
func (w *Writer) NeedsRecordCheck() bool {
	c := w.check && w.err == nil
	w.check = false
	return c
}

// RecordSeen tells the writer which epoch the log's record shows, or that the log is deleted.
func (w *Writer) RecordSeen(e Epoch, deleted bool) {
	switch {
	case w.err != nil:
	case deleted:
		w.err = ErrDeleted
	case e > w.token:
		w.err = fmt.Errorf("%w: the log's record shows epoch %d, this writer has %d", ErrFenced, e, w.token)
	}
}

// Append gives out the next LSN to a copy of data, or says why not; then no LSN was given out.
func (w *Writer) Append(now Time, data []byte) (LSN, error) {
	if err := w.room(1, len(data), len(data)); err != nil {
		return 0, err
	}
	size := EncodedSize(len(data))
	w.makeWay(now, 1, size)
	w.cutFor(size)
	x := w.push(now, data, false, false)
	w.launch(now, 1, size)
	return x, nil
}

// AppendBatch gives out consecutive LSNs to copies of recs; after any crash all of them are in the log or none.
func (w *Writer) AppendBatch(now Time, recs [][]byte) (first, last LSN, err error) {
	total, largest := 0, 0
	for _, r := range recs {
		total += len(r)
		largest = max(largest, len(r))
	}
	if len(recs) == 0 {
		return 0, 0, fmt.Errorf("%w: empty batch", ErrTooLarge)
	}
	if err := w.room(len(recs), total, largest); err != nil {
		return 0, 0, err
	}
	size := total + len(recs)*RecordOverhead
	w.makeWay(now, len(recs), size)
	w.cutFor(size)
	first = w.next
	for i, r := range recs {
		last = w.push(now, r, i+1 < len(recs), i > 0)
	}
	w.launch(now, len(recs), size)
	return first, last, nil
}

func (w *Writer) room(n, bytes, largest int) error {
	switch {
	case w.err != nil:
		return w.err
	case largest > MaxRecordBytes || bytes > MaxRecordBytes || n > MaxBatchRecords || n > int(w.cfg.Settings.Window):
		return fmt.Errorf("%w: %d records of %d bytes in all (limits: %d records, window %d, %d bytes)",
			ErrTooLarge, n, bytes, MaxBatchRecords, w.cfg.Settings.Window, MaxRecordBytes)
	case w.next+LSN(n) > MaxLSN:
		return fmt.Errorf("%w: the log is at its last LSN", ErrTooLarge)
	case w.next+LSN(n)-1-w.clsn > LSN(w.cfg.Settings.Window):
		return ErrWindowFull
	case w.unack > 0 && w.unack+bytes > w.cfg.WindowBytes:
		return ErrWindowFull
	}
	return nil
}

// cutFor begins a new segment when size more bytes would not fit: the cut depends on sizes alone, so every node cuts at
// the same place (A1). A record or batch never straddles two segments; one larger than a segment has its own.
func (w *Writer) cutFor(size int) {
	if w.segOff > 0 && w.segOff+uint64(size) > w.cfg.Settings.SegmentBytes {
		w.segStart, w.segOff, w.segSince = w.next, 0, 0
	}
}

func (w *Writer) push(now Time, data []byte, more, inBatch bool) LSN {
	if int(w.next-w.low) == len(w.ring) {
		w.makeRoom()
	}
	x := w.next
	w.resting = false
	s := w.slot(x)
	s.data = append(s.data[:0], data...)
	s.segStart, s.segOff, s.acks, s.again, s.more, s.inBatch = w.segStart, w.segOff, 0, 0, more, inBatch
	if w.segOff == 0 {
		w.segSince = now
	}
	w.segOff += uint64(EncodedSize(len(data)))
	w.next++
	w.unack += len(data)
	w.lastAt = now
	return x
}

// makeRoom doubles the ring while it is smaller than the window and what is retained, and else forgets the oldest
// committed LSN: the window check has made sure that there is one.
func (w *Writer) makeRoom() {
	want := int(w.cfg.Settings.Window) + w.cfg.Retain
	if len(w.ring) < want {
		old := w.ring
		w.ring = make([]slot, 2*len(old))
		for x := w.low; x < w.next; x++ {
			*w.slot(x) = old[uint64(x)&uint64(len(old)-1)]
		}
		return
	}
	w.forget()
}

// forget drops the oldest committed LSN from the ring, and with it the backlog of any node that still lacks it (P15).
func (w *Writer) forget() {
	s := w.slot(w.low)
	w.kept -= len(s.data)
	if cap(s.data) > 1<<16 {
		s.data = nil // one large record must not pin its buffer for ever
	}
	w.low++
	for i := range w.nodes {
		w.nodes[i].lo = max(w.nodes[i].lo, w.low)
	}
}

// Fill builds the message of an append send. The block is appended to buf and returned inside m; the caller owns both.
// Fill comes before the next call of any other method: an acknowledgement may let the ring forget what a send names, and
// another record take its slot. Fill then leaves m empty (Count 0), which must not be sent; the timer looks at the rest.
func (w *Writer) Fill(s Send, m *Append, buf []byte) []byte {
	if s.From < w.low || s.To >= w.next {
		*m = Append{}
		return buf
	}
	first := w.slot(s.From)
	from := len(buf)
	for x := s.From; x <= s.To; x++ {
		sl := w.slot(x)
		buf = AppendRecord(buf, sl.data, sl.more)
	}
	*m = Append{Log: w.cfg.Log, Epoch: w.cfg.Epoch, Label: w.cfg.Epoch, Kind: AppendNormal, Incarnation: w.cfg.Ensemble[s.Node].Incarnation,
		First: s.From, Count: uint32(s.To - s.From + 1), SegStart: first.segStart, SegOff: first.segOff, CLSN: w.clsn, Block: buf[from:]}
	return buf
}

// Activation builds the message of a SendActivate. The history in it is shared and not to be changed.
func (w *Writer) Activation(node int) *Activate {
	return &Activate{Log: w.cfg.Log, Epoch: w.cfg.Epoch, Incarnation: w.cfg.Ensemble[node].Incarnation, Start: w.cfg.Start, B: w.cfg.B,
		History: w.cfg.History, Lost: w.cfg.Lost, Settings: w.cfg.Settings}
}

// PushMessage builds the message of a SendWatermark, with the watermark and seal of now.
func (w *Writer) PushMessage(node int) *Watermark {
	m := new(Watermark)
	w.FillPush(node, m)
	return m
}

// FillPush is PushMessage into the caller's memory: an idle writer pushes after every append.
func (w *Writer) FillPush(node int, m *Watermark) {
	*m = Watermark{Log: w.cfg.Log, Epoch: w.cfg.Epoch, Incarnation: w.cfg.Ensemble[node].Incarnation, CLSN: w.clsn, Sealed: w.sealed}
}

// Cached returns the payload of an LSN that is still in the ring; it aliases the ring until the next call.
func (w *Writer) Cached(x LSN) ([]byte, bool) {
	if x < w.low || x >= w.next {
		return nil, false
	}
	return w.slot(x).data, true
}

// HandleAck applies an acknowledgement. Late, duplicated and foreign ones are harmless (R12): what counts is the
// incarnation (I4), the epoch, and an LSN that was given out.
func (w *Writer) HandleAck(now Time, a *Ack) {
	if w.err != nil || a.Log != w.cfg.Log || a.Epoch != w.cfg.Epoch {
		return
	}
	i := w.cfg.Ensemble.Index(a.Incarnation)
	if i < 0 {
		if !w.cfg.Rules.CountAnyIncarnation {
			return
		}
		i = int(a.Incarnation) % len(w.nodes)
	}
	n := &w.nodes[i]
	silent := now-n.heard > downAfter
	n.heard = now
	switch a.Status {
	case StatusOK:
		n.activated = true
		if silent && n.rto >= maxRTO {
			n.rto = w.baseRTO() // so long a silence was an outage, and says nothing of the path
		}
		switch a.Kind {
		case AckAppend:
			w.ackAppend(now, i, a, silent)
		case AckActivate:
			n.resendAt = now // what it missed goes out at the next tick
			n.wmSent = 0
		}
		// The watermark in an acknowledgement is what the node holds durably.
		n.wm = max(n.wm, a.CLSN)
		if a.Kind == AckWatermark {
			n.sealed = max(n.sealed, a.Last)
		}
	case StatusNotActivated:
		if n.activated || now >= n.resendAt {
			n.activated = false
			n.resendAt = now + n.rto
			w.outbox = append(w.outbox, Send{Node: i, Kind: SendActivate})
		}
	case StatusFenced:
		n.promised = max(n.promised, a.Promised)
		if n.refuses != StatusFenced {
			n.refuses = StatusFenced
			w.check = n.promised > w.token // our own re-open fences us too, and that is not news
		}
		w.checkReach()
	case StatusDeleted:
		w.err = ErrDeleted
	case StatusWrongIncarnation, StatusBad:
		n.refuses = a.Status
		w.checkReach()
	default:
		// Overloaded, no space, starting: unacknowledged; the resend timer tries again.
	}
}

// checkReach ends the writer when the members that refuse it for good leave no quorum.
func (w *Writer) checkReach() {
	reach := 0
	for i := range w.nodes {
		if n := &w.nodes[i]; n.refuses == StatusOK || n.refuses == StatusFenced && n.promised <= w.token {
			reach++ // fenced by our own re-open is not lost: Reopened goes on with what was given out
		}
	}
	if reach < w.cfg.Qw {
		w.err = fmt.Errorf("%w: %d of %d nodes left at epoch %d, need %d: %s", w.lostKind(), reach, len(w.nodes), w.cfg.Epoch, w.cfg.Qw, w.refusals())
	}
}

func (w *Writer) lostKind() error {
	for i := range w.nodes {
		if w.nodes[i].refuses == StatusFenced {
			return ErrFenced
		}
	}
	return ErrQuorumLost
}

func (w *Writer) refusals() string {
	out := ""
	for i := range w.nodes {
		if r := w.nodes[i].refuses; r != StatusOK {
			if out != "" {
				out += ", "
			}
			out += fmt.Sprintf("%s %s", w.cfg.Ensemble[i].Node, r)
			if r == StatusFenced {
				out += fmt.Sprintf(" (promised epoch %d)", w.nodes[i].promised)
			}
		}
	}
	return out
}

// ackAppend notes what member i holds. silent: it was not heard for long, and has been probed only.
func (w *Writer) ackAppend(now Time, i int, a *Ack, silent bool) {
	if a.Append != AppendNormal || a.Last < a.First {
		return
	}
	n, bit := &w.nodes[i], uint16(1)<<i
	from, to := max(a.First, w.low), min(a.Last, w.out.flown)
	if to >= from {
		// Karn's rule: the answer to a record that was sent again tells nothing of the path, and leaves the longer time-out
		// until one does. With the time of an outage as round trip every later loss would wait for the longest time-out.
		if s := w.slot(to); (s.acks|s.again)&bit == 0 {
			w.measure(now - s.sentAt)
			n.rto, n.probes = w.baseRTO(), 0
		}
	}
	arrived := 0 // appends that were sent again
	for x := from; x <= to; x++ {
		s := w.slot(x)
		if s.again&^s.acks&bit != 0 && !s.inBatch {
			arrived++
		}
		s.acks |= bit
	}
	lo := n.lo
	for n.lo <= w.out.flown && w.slot(n.lo).acks&bit != 0 {
		n.lo++
	}
	if n.lo > lo {
		// Not for what is acknowledged above: as long as that goes on, a record that was lost twice would wait for ever.
		n.resendAt = now + n.rto
	}
	if arrived > 0 {
		// Two for each that arrived: a backlog drains in a few round trips, and what is under way at most doubles with each.
		burst := min(2*arrived, maxRelease)
		if silent {
			burst = resendBurst // this was the probe
		}
		w.sendAgain(now, i, max(n.lo, n.resent+1), burst)
	}
	if to >= from && n.lo < from && !silent {
		w.sendPassed(now, i, from, w.slot(to).sentAt)
	}
	w.advance()
	w.land(now)
}

func (w *Writer) measure(d Time) {
	if w.srtt == 0 {
		w.srtt, w.rttvar = d, d/2
		return
	}
	off := d - w.srtt
	w.rttvar += (max(off, -off) - w.rttvar) / 4
	w.srtt += off / 8
}

func (w *Writer) baseRTO() Time {
	if w.srtt == 0 {
		return initialRTO
	}
	return max(minRTO, min(maxRTO, 4*w.srtt))
}

// advance commits in order (P9).
func (w *Writer) advance() {
	for x := w.clsn + 1; x < w.next; x++ {
		s := w.slot(x)
		qw := w.cfg.Qw
		if w.cfg.Rules.CommitBelowQuorum {
			qw--
		}
		if bits.OnesCount16(s.acks) < qw {
			if w.cfg.Rules.CommitOutOfOrder {
				continue
			}
			break
		}
		for y := w.clsn + 1; y <= x; y++ {
			w.unack -= len(w.slot(y).data)
			w.kept += len(w.slot(y).data)
		}
		w.clsn = x
	}
	for w.kept > w.cfg.RetainBytes && w.low <= w.clsn {
		w.forget()
	}
}
