package btrlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/internal/stagetrace"
	"github.com/btrlog/btrlog/internal/wire"
)

// never is a time that no clock reaches.
const never = protocol.Time(math.MaxInt64)

const (
	// fallbackAfter is the silence after which a node is asked at its well-known port again instead of the shard's own.
	fallbackAfter = 100 * protocol.Millisecond
	// lookAfter is the silence after which the node's record is read again: it may have moved.
	lookAfter = 1000 * protocol.Millisecond
)

// Writer is an open log. It is the only writer of its log until another open fences it. All methods may be called
// concurrently; records get their LSNs in the order in which Append takes the writer's lock.
type Writer struct {
	c    *Client
	name string
	id   protocol.LogID
	t    timer
	full error // of TryAppend: whoever offers too much must not be given more to collect

	ctx    context.Context // ends when the writer does
	cancel context.CancelFunc
	done   chan struct{}

	committed atomic.Uint64
	// noRoom: no LSN was free when somebody looked, and nothing was committed since. A flood of appends that are refused must not keep
	// the lock from those who make room.
	noRoom atomic.Bool

	reopen sync.Mutex // one Reopen at a time

	mu        sync.Mutex
	m         *protocol.Writer
	rec       meta.LogRecord
	owner     meta.Owner // our claim: the last token that was taken
	nonce     string     // of a token whose outcome is not known
	result    *protocol.OpenResult
	times     OpenTimes // of the open that result is of
	peers     []writerPeer
	sends     []protocol.Send
	push      protocol.Watermark // scratch
	armed     protocol.Time      // the thread ticks us by then
	err       *Error             // final: closed, fenced, lost
	closing   bool
	drained   chan struct{} // closed when a closing writer is settled
	closed    bool          // a Close has ended
	closeErr  *Error        // and this was its result
	sealed    bool
	reopening bool // our own newer token is out, and its open is not complete
	checking  bool // the log's record is being read
	syncs     waitHeap
	space     waitQueue
	expire    protocol.Time // earliest time limit of a waiter

	callbacks callbacks
	own       ownReader

	mode   mode
	stamps stamps
	tracer tracer
}

// writerPeer is one node of the ensemble, at the index that the machine uses.
type writerPeer struct {
	inc     protocol.Incarnation
	node    *node
	courier *courier
	port    uint16          // of the log's shard, learned from reply_to; 0: not known
	asked   protocol.Time   // first message since the node was heard; 0: none
	status  protocol.Status // its last answer
}

// WriterInfo describes an open log.
type WriterInfo struct {
	Log       string
	ID        LogID
	Epoch     Epoch
	Start     LSN // first LSN of this epoch's reign
	Recovered LSN // the tail that was found: everything at or below was committed when the log opened
	Next      LSN // the next LSN to be given out
	Committed LSN
	Nodes     []NodeInfo
	Qw        int
	Window    int
	// Durability names the mode that every acknowledgement of this log has.
	Durability Durability
	// Opened says how long the open took. A Reopen that succeeded replaces it.
	Opened OpenTimes
	// Repaired and Copied count LSNs that the open wrote again: the uncommitted tail, and what new nodes lacked.
	Repaired, Copied int
	// Lost is what the open gave up; empty unless AcceptLoss was set and nothing else could be done.
	Lost []LostRange
}

func (c *Client) newWriter(ctx context.Context, name string, t *taken, o *WriterOptions) (*Writer, error) {
	cfg := t.result.Config
	cfg.WindowBytes, cfg.Retain, cfg.RetainBytes = o.WindowBytes, o.RetainRecords, o.RetainBytes
	cfg.BlockBytes = wire.BlockLimit(t.limit)
	cfg.SegmentAge = protocol.Time(t.rec.Options.FlushAge)
	m, err := protocol.NewWriter(cfg, c.now())
	if err != nil {
		return nil, err
	}
	w := &Writer{c: c, name: name, id: cfg.Log, m: m, rec: t.rec, owner: t.rec.Owner(), result: t.result, times: t.times, armed: never, expire: never, done: make(chan struct{}),
		drained: make(chan struct{})}
	w.t = newTimer(w)
	w.full = w.refused("append", errNoRoom)
	w.mode = modeOf(Durability(t.rec.Options.Durability))
	w.tracer.every = stagetrace.Interval(c.cfg.TraceEvery)
	w.ctx, w.cancel = context.WithCancel(c.ctx)
	w.committed.Store(uint64(m.Committed()))
	w.peers = w.connect(ctx, cfg.Ensemble)
	c.routes.add(w.id, w)
	if c.closed() { // Close may have looked at the routes before
		w.clientClosed()
		return nil, closedError("open writer", name)
	}
	w.settle(c.now())
	return w, nil
}

func (w *Writer) connect(ctx context.Context, e protocol.Ensemble) []writerPeer {
	peers := make([]writerPeer, len(e))
	for i, n := range w.c.located(ctx, e) {
		peers[i] = writerPeer{inc: e[i].Incarnation, node: n, courier: newCourier(w.ctx, w.c, n, w)}
	}
	return peers
}

// Info describes the writer as it is now.
func (w *Writer) Info() WriterInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	cfg := &w.result.Config
	lost := slices.DeleteFunc(lostRanges(w.rec.Lost), func(l LostRange) bool { return l.Epoch != Epoch(cfg.Epoch) })
	return WriterInfo{Log: w.name, ID: LogID(w.id), Epoch: Epoch(cfg.Epoch), Start: LSN(cfg.Start), Recovered: LSN(cfg.Tail), Next: LSN(w.m.Next()),
		Committed: LSN(w.m.Committed()), Nodes: memberInfo(cfg.Ensemble), Qw: cfg.Qw, Window: int(cfg.Settings.Window),
		Durability: Durability(w.rec.Options.Durability), Opened: w.times, Repaired: w.result.Repaired, Copied: w.result.Copied, Lost: lost}
}

func memberInfo(e protocol.Ensemble) []NodeInfo {
	out := make([]NodeInfo, len(e))
	for i, m := range e {
		out[i] = NodeInfo{Name: string(m.Node), Incarnation: uint64(m.Incarnation), Zone: m.Zone}
	}
	return out
}

// Append gives the next LSN to a copy of rec and sends it to the nodes. It returns without waiting for them; Sync waits. Only
// when the window is full does it wait for space, until ctx ends (Config.Timeout without a deadline). rec may be empty.
//
// While four sends of the writer are not committed, further records leave together: when the first of the four is committed, or when
// they fill a datagram. A process that ends meanwhile takes them with it, as it does records that the network has lost.
//
// An error means, definitely, that rec was given no LSN and nothing was written: ErrUnavailable (no window space in time),
// ErrTooLarge, ErrFenced, ErrNotFound (the log was deleted), ErrClosed.
func (w *Writer) Append(ctx context.Context, rec []byte) (LSN, error) {
	_, last, err := w.append(rec, nil)
	if err == errNoRoom {
		_, last, err = w.appendWhenRoom(ctx, "append", rec, nil)
	}
	if err != nil {
		return 0, w.refused("append", err)
	}
	return LSN(last), nil
}

// TryAppend is Append that never waits: ErrWindowFull if there is no space. Definite, as all errors of Append. Being refused costs
// little: the error is the same one each time, and not to be changed.
func (w *Writer) TryAppend(rec []byte) (LSN, error) {
	if w.noRoom.Load() {
		return 0, w.full
	}
	_, last, err := w.append(rec, nil)
	switch {
	case err == errNoRoom:
		return 0, w.full
	case err != nil:
		return 0, w.refused("append", err)
	}
	return LSN(last), nil
}

// AppendBatch gives consecutive LSNs to copies of recs. After any crash all of them are in the log or none. The batch must
// fit the window, MaxBatchRecords and, in sum, MaxRecordBytes. It waits and fails as Append does.
func (w *Writer) AppendBatch(ctx context.Context, recs [][]byte) (first, last LSN, err error) {
	if len(recs) == 0 {
		return 0, 0, invalid("append batch", w.name, "the batch is empty")
	}
	f, l, err := w.append(nil, recs)
	if err == errNoRoom {
		f, l, err = w.appendWhenRoom(ctx, "append batch", nil, recs)
	}
	if err != nil {
		return 0, 0, w.refused("append batch", err)
	}
	return LSN(f), LSN(l), nil
}

// errNoRoom: the window is full, or others wait for it already.
var errNoRoom = protocol.ErrWindowFull

// append is the hot path: lock, one step of the machine, unlock. If the record leaves at once, one encoding and one system call for all
// nodes; else who receives the acknowledgement that ends a flight sends it, with all that have come by then.
func (w *Writer) append(rec []byte, recs [][]byte) (first, last protocol.LSN, err error) {
	w.mu.Lock()
	first, last, job, err := w.appendLocked(rec, recs, 0)
	if err == errNoRoom && w.m.Full() {
		w.noRoom.Store(true)
	}
	w.mu.Unlock()
	w.c.transmit(job)
	return first, last, err
}

// appendLocked appends rec, or recs if that is not nil. since is when the caller began to wait, if he is the first of those who
// wait for space; zero: he has not waited.
func (w *Writer) appendLocked(rec []byte, recs [][]byte, since protocol.Time) (first, last protocol.LSN, job *sendJob, err error) {
	switch {
	case w.err != nil:
		return 0, 0, nil, w.err
	case w.closing:
		return 0, 0, nil, closedError("append", w.name)
	case w.reopening || (since == 0 && !w.space.empty()):
		return 0, 0, nil, errNoRoom
	}
	now := w.c.now()
	if recs == nil {
		first, err = w.m.Append(now, rec)
		last = first
	} else {
		first, last, err = w.m.AppendBatch(now, recs)
	}
	if err != nil {
		return 0, 0, nil, err
	}
	stamp := stamp{given: now}
	if since != 0 {
		stamp.queued = now - since
	}
	w.stamps.add(w.m.Committed(), first, last, stamp)
	w.tracer.begin(w.id, w.m.Epoch(), first, last, now, stamp.queued)
	w.c.counters.appended[w.mode].Add(uint64(last - first + 1))
	job = w.collect(now)
	w.rearm()
	return first, last, job, nil
}

// refused makes the error of an append that gave out no LSN.
func (w *Writer) refused(op string, err error) error {
	var e *Error
	if errors.As(err, &e) {
		out := *e
		// Whatever became of earlier records, of this one nothing was written.
		out.Op, out.Unknown, out.From, out.To = op, false, 0, 0
		return &out
	}
	return wrap(op, w.name, err)
}

// collect takes what the machine wants sent and encodes it, each run of records once for all nodes. Callers hold mu.
func (w *Writer) collect(now protocol.Time) *sendJob {
	w.sends = w.m.TakeSends(w.sends[:0])
	if len(w.sends) == 0 {
		return nil
	}
	job := w.c.jobs.get(w.c)
	for i := range w.sends {
		s := w.sends[i]
		if s.Node < 0 {
			continue // went with an earlier one
		}
		switch s.Kind {
		case protocol.SendAppend:
			job = w.collectRun(job, now, i)
		case protocol.SendActivate:
			job = w.collectOne(job, now, s.Node, w.m.Activation(s.Node))
		case protocol.SendWatermark:
			w.m.FillPush(s.Node, &w.push)
			job = w.collectOne(job, now, s.Node, &w.push)
		}
	}
	return job
}

// collectRun encodes the records of send i and addresses them to every node that gets the same run.
func (w *Writer) collectRun(job *sendJob, now protocol.Time, i int) *sendJob {
	s := w.sends[i]
	pk := job.packet()
	pk.block = w.m.Fill(s, &pk.app, pk.block[:0])
	pk.w.Reset(pk.buf, wire.MaxFrameBytes, w.c.cluster, 0)
	if err := pk.w.Append(&pk.app); err != nil {
		w.c.log.Error("btrlog: cannot encode an append", "log", w.name, "from", uint64(s.From), "to", uint64(s.To), "error", err)
		return job
	}
	w.tracer.send(s.From, s.To, now)
	body := pk.w.Body()
	size := pk.w.Len()
	pk.buf = pk.w.Finish()[:0]
	shared := false
	for j := i; j < len(w.sends); j++ {
		if o := &w.sends[j]; o.Node >= 0 && o.Kind == s.Kind && o.From == s.From && o.To == s.To {
			p := &w.peers[o.Node]
			o.Node = -1
			place := w.place(p, now)
			if place == nil {
				continue
			}
			head := pk.w.Head(p.inc)
			if size <= place.limit {
				job = job.add(w.c, p.address(place), head[:], body)
				continue
			}
			shared = true
			p.courier.send(parcel{key: parcelKey{wire.KindAppend, uint64(s.From), uint64(s.To)}, head: head, body: body})
		}
	}
	if shared {
		pk.buf = nil // the couriers keep it until the nodes have answered
	}
	return job
}

// collectOne encodes a message for one node.
func (w *Writer) collectOne(job *sendJob, now protocol.Time, i int, m protocol.Message) *sendJob {
	p := &w.peers[i]
	place := w.place(p, now)
	if place == nil {
		return job
	}
	pk := job.packet()
	pk.w.Reset(pk.buf, place.limit, w.c.cluster, 0)
	if pk.w.Message(m) == nil {
		data := pk.w.Finish()
		pk.buf = data[:0]
		return job.add(w.c, p.address(place), nil, data)
	}
	if err := p.courier.message(keyOf(m), m); err != nil {
		w.c.log.Error("btrlog: cannot encode a message", "log", w.name, "node", string(p.node.id), "error", err)
	}
	return job
}

// place returns where a peer is, and notices when it is silent for long; nil if that is not known.
func (w *Writer) place(p *writerPeer, now protocol.Time) *place {
	switch {
	case p.asked == 0:
		p.asked = max(now, 1)
	case now-p.asked > fallbackAfter:
		p.port = 0 // the shard may be another after a restart; the well-known port forwards
		if now-p.asked > lookAfter {
			w.c.refreshSoon(p.node)
		}
	}
	at := p.node.place.Load()
	if at == nil {
		w.c.refreshSoon(p.node)
	}
	return at
}

// rearm makes sure that the thread ticks the writer in time. Callers hold mu.
func (w *Writer) rearm() {
	if at := min(w.m.NextTick(), w.expire); at < w.armed {
		w.armed = at
		w.c.arm(w, at)
	}
}

func (w *Writer) timer() *timer { return &w.t }

func (w *Writer) onAck(now protocol.Time, h wire.Header, a *protocol.Ack) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.peers {
		if p := &w.peers[i]; p.inc == h.Incarnation {
			p.asked, p.status = 0, a.Status
			if h.ReplyTo != 0 {
				p.port = h.ReplyTo
			}
		}
	}
	if Epoch(a.Epoch) == Epoch(w.m.Epoch()) {
		w.c.counters.refusal(a.Status)
	}
	w.tracer.ack(a, h.Incarnation, now)
	w.m.HandleAck(now, a)
}

func (w *Writer) onMessage(protocol.Time, wire.Header, protocol.Message, bool) {} // of an open, late

func (w *Writer) tick(now protocol.Time) {
	w.mu.Lock()
	w.armed = never
	w.m.Tick(now)
	if w.m.Resting() {
		w.stamps, w.sends = stamps{}, nil
	}
	job := w.advance(now)
	w.mu.Unlock()
	w.c.transmit(job)
}

func (w *Writer) settle(now protocol.Time) {
	w.mu.Lock()
	job := w.advance(now)
	w.mu.Unlock()
	w.c.transmit(job)
}

// advance does what a step of the machine made due: it publishes the watermark, wakes who waits, and returns what is to be
// sent. Callers hold mu.
func (w *Writer) advance(now protocol.Time) *sendJob {
	if w.err != nil {
		return nil
	}
	if c := uint64(w.m.Committed()); c > w.committed.Load() {
		w.countCommit(now, protocol.LSN(w.committed.Load()), protocol.LSN(c))
		w.tracer.commit(protocol.LSN(c), now)
		w.committed.Store(c)
		w.noRoom.Store(false)
		w.syncs.release(LSN(c))
		w.space.wakeFirst()
		w.callbacks.notify()
	}
	// While our own token is out a lost quorum is what the re-open is for.
	if err := w.m.Err(); err != nil && !(w.reopening && errors.Is(err, protocol.ErrQuorumLost)) {
		w.lose(err)
		return nil
	}
	if w.expire <= now {
		w.expireWaiters(now)
	}
	if w.m.NeedsRecordCheck() && !w.checking {
		w.checking = w.c.spawn(w.checkRecord)
	}
	if w.closing {
		w.drain()
	}
	job := w.collect(now)
	w.rearm()
	return job
}

// lose ends a writer whose machine has given up. What it gave out and did not see committed is unknown to it for ever.
func (w *Writer) lose(err error) {
	kind, _, retryable := kindOf(err)
	e := &Error{Kind: kind, Op: "write", Log: w.name, Epoch: Epoch(w.m.Epoch()), Retryable: retryable, Err: err}
	if next := w.m.Next(); next-1 > w.m.Committed() {
		e.From, e.To, e.Unknown = LSN(w.m.Committed()+1), LSN(next-1), true
	}
	w.c.log.Warn("btrlog: writer ended", "log", w.name, "epoch", uint64(w.m.Epoch()), "error", err)
	w.end(e)
}

// end wakes everybody with e and gives the writer's resources back. Callers hold mu.
func (w *Writer) end(e *Error) {
	if w.err != nil {
		return
	}
	w.err = e
	w.noRoom.Store(false) // whoever comes is told e
	w.c.countEnd(e)
	w.stamps = stamps{}
	w.syncs.fail()
	w.space.fail()
	w.c.routes.remove(w.id, w)
	w.c.timers.drop(&w.t)
	w.cancel()
	close(w.done)
}

func (w *Writer) clientClosed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := &Error{Kind: ErrClosed, Op: "write", Log: w.name, Epoch: Epoch(w.m.Epoch()), Err: errClientClosed}
	if next := w.m.Next(); next-1 > w.m.Committed() {
		e.From, e.To, e.Unknown = LSN(w.m.Committed()+1), LSN(next-1), true
	}
	w.end(e)
}

var errClientClosed = errors.New("the client was closed")

// checkRecord reads the log's record after a refusal, until it can be read: one refusal alone is not loss (P10).
func (w *Writer) checkRecord() {
	for try := 1; w.ctx.Err() == nil; try++ {
		ctx, cancel := context.WithTimeout(w.ctx, w.c.cfg.Timeout)
		log, err := w.c.cat.Load(ctx, w.name)
		cancel()
		if isUnavailable(err) && err != nil {
			if w.ctx.Err() != nil {
				return
			}
			// A network without metadata must not end a writer that still commits.
			w.c.log.Repeat(slog.LevelWarn, w.name, "btrlog: a node refused this writer and the log's record cannot be read", "log", w.name, "error", err)
			_ = sleep(w.ctx, time.Duration(min(try, 20))*100*time.Millisecond) // the loop looks at ctx
			continue
		}
		w.mu.Lock()
		w.checking = false
		if w.err == nil {
			w.m.RecordSeen(log.Record.Epoch, err != nil || log.Record.ID != w.id)
		}
		job := w.advance(w.c.now())
		w.mu.Unlock()
		w.c.transmit(job)
		return
	}
}

// Committed returns the highest LSN known committed: one atomic load. It never goes back.
func (w *Writer) Committed() LSN { return LSN(w.committed.Load()) }

// Done is closed when the writer has ended: closed, fenced, or lost. Err says which. A writer learns from the answers of the
// nodes that it was fenced: a fenced idle writer with its next append or watermark, and not before.
func (w *Writer) Done() <-chan struct{} { return w.done }

// Err returns nil while the writer lives, and then why it ended. With Unknown set, From and To are the LSNs that were given
// out and not seen committed; the next open of the log decides them.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		return nil
	}
	return w.err
}

// Trim removes the records below before, for good: they read as ErrTrimmed from here. The nodes free their space and delete
// archived objects that end below it in the background. before is at most one above Committed. nil: it is on record. Errors:
// ErrInvalid, definite; ErrNotFound; ErrUnavailable, Unknown says whether it may have been applied. Repeat it freely.
func (w *Writer) Trim(ctx context.Context, before LSN) error {
	const op = "trim"
	if w.c.closed() {
		return closedError(op, w.name)
	}
	if before > w.Committed()+1 {
		return &Error{Kind: ErrInvalid, Op: op, Log: w.name, Err: fmt.Errorf("cannot trim below LSN %d: the log is committed up to %d", before, w.Committed())}
	}
	ctx, done := w.c.call(ctx)
	defer done()
	log, err := w.c.cat.Trim(ctx, w.name, w.id, protocol.LSN(before))
	if err == nil {
		w.c.noteTrim(w.id, log.Record.TrimBefore)
	}
	return w.c.finish(op, w.name, err)
}

func (p *writerPeer) address(at *place) ring.Addr {
	if p.port != 0 {
		return at.addr.WithPort(p.port)
	}
	return at.addr
}
