package btrlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/wire"
)

// WriterOptions of OpenWriter. The zero value opens the log with the nodes that its record names.
type WriterOptions struct {
	// Nodes, if not empty, is the new set of nodes, by name (P11): they take part at their current incarnations, and what is
	// committed and not archived is copied to them before the log opens. The same names again adopt a node whose disk was
	// replaced.
	Nodes []string
	// Replace exchanges nodes, old name to new name; a node given for itself is adopted at its current incarnation.
	Replace map[string]string
	// Qw is the write quorum of the new set; zero keeps the log's when the number of nodes stays, else takes the majority.
	Qw int
	// WindowBytes bounds the bytes that are given out and not committed; zero is 64 MiB.
	WindowBytes int
	// RetainRecords and RetainBytes bound what is kept after its commit, for slow nodes and for reads that cost no network;
	// zero is the log's window and 8 MiB. A writer that has appended nothing for 30 s (ten minutes, if a node lacks something)
	// keeps the last 16 records at most, and 16 KiB.
	RetainRecords, RetainBytes int
	// AcceptLoss, if not nil, lets the open go on without records that cannot be had any more. See there; nil loses nothing.
	AcceptLoss *AcceptLoss
}

// OpenWriter opens a log for writing: it fences the previous writer, recovers exactly the committed log, and returns when
// a quorum has activated the new epoch. Two conditional writes of metadata, no read of archived data. Without a deadline
// of ctx it gives up after Config.Timeout.
//
// Errors: ErrNotFound; ErrFenced: a newer open won meanwhile; ErrUnavailable with Missing: nothing was guessed and nothing
// is lost, but the previous writer may be fenced already; ErrInvalid; ErrClosed. Every call may be repeated, one with
// AcceptLoss after a new look at the log.
func (c *Client) OpenWriter(ctx context.Context, name string, o WriterOptions) (*Writer, error) {
	const op = "open writer"
	if c.closed() {
		return nil, closedError(op, name)
	}
	ctx, done := c.call(ctx)
	defer done()
	if err := checkWriterOptions(name, &o); err != nil {
		return nil, err
	}
	res, err := c.takeover(ctx, op, name, &o, nil)
	if err != nil {
		return nil, c.finish(op, name, err)
	}
	c.noteLoss(name, res.result)
	w, err := c.newWriter(ctx, name, res, &o)
	if err != nil {
		return nil, c.finish(op, name, err)
	}
	return w, nil
}

func checkWriterOptions(name string, o *WriterOptions) error {
	if len(o.Nodes) > 0 && len(o.Replace) > 0 {
		return invalid("open writer", name, "set Nodes or Replace, not both")
	}
	if o.WindowBytes < 0 || o.RetainRecords < 0 || o.RetainBytes < 0 || o.RetainRecords > protocol.MaxWindow || o.Qw < 0 {
		return invalid("open writer", name, "negative or too large: window bytes %d, retain %d records (at most %d) and %d bytes, Qw %d",
			o.WindowBytes, o.RetainRecords, protocol.MaxWindow, o.RetainBytes, o.Qw)
	}
	return nil
}

// taken is a takeover that succeeded.
type taken struct {
	rec    meta.LogRecord
	result *protocol.OpenResult
	limit  int // smallest datagram limit of the nodes
	times  OpenTimes
}

// takeover takes the token (P1), drives the opener, and installs (P7). live, if not nil, is the writer that re-opens its own
// log: its owner must still stand, and it is told of the token before any node is.
func (c *Client) takeover(ctx context.Context, op, name string, o *WriterOptions, live *Writer) (_ *taken, err error) {
	var known *meta.Log
	var owner meta.Owner
	if len(o.Nodes) > 0 || len(o.Replace) > 0 || o.AcceptLoss != nil {
		// A target that cannot work is refused before the token is taken, or a typing error would cost the old writer its log.
		log, err := c.cat.Load(ctx, name)
		if err != nil {
			return nil, err
		}
		recorded, target, _, err := c.target(ctx, &log.Record, o)
		if err != nil {
			return nil, err
		}
		if o.AcceptLoss != nil {
			if err := o.AcceptLoss.consent(&log.Record); err != nil {
				return nil, err
			}
			owner = log.Record.Owner() // it must stand when the token is taken
		}
		if _, err := o.loss(ctx, name, recorded, target); err != nil {
			return nil, err
		}
		known = &log
	}
	raise := meta.Raise{Nonce: c.cat.Nonce(), Opener: c.cfg.Name, From: owner, Known: known}
	if live != nil {
		raise = live.raise(raise)
	}
	began := time.Now()
	defer func() { c.countOpen(began, err) }()
	c.expectWait()
	raised, err := c.cat.RaiseEpoch(ctx, name, raise)
	if err != nil {
		return nil, err
	}
	if live != nil {
		if err := live.tokenTaken(&raised.Record); err != nil {
			return nil, err
		}
	}
	rec := &raised.Record
	recorded, target, qw, err := c.target(ctx, rec, o)
	if err != nil {
		return nil, err
	}
	loss, err := o.loss(ctx, name, recorded, target)
	if err != nil {
		return nil, err
	}
	call, err := c.newOpenCall(ctx, op, rec, recorded, target, qw, loss)
	if err != nil {
		return nil, err
	}
	call.clock.since = time.Now()
	call.clock.times.Token = call.clock.since.Sub(began)
	c.routes.add(rec.ID, call)
	defer call.release()
	installed, err := c.drive(ctx, call, &raised, qw)
	if err != nil {
		return nil, call.explain(ctx, err)
	}
	call.mu.Lock()
	defer call.mu.Unlock()
	call.clock.now(call.o.Stage()) // the thread that brought the last answer may not have come to it
	return &taken{rec: installed, result: call.o.Result(), limit: call.limit, times: call.clock.times}, nil
}

// target returns the recorded and the wanted ensemble and the wanted write quorum. A log that nobody opened yet has no
// recorded ensemble; nothing can be committed anywhere before the first install, so the wanted nodes stand for it.
func (c *Client) target(ctx context.Context, rec *meta.LogRecord, o *WriterOptions) (recorded, target protocol.Ensemble, qw int, err error) {
	qw = rec.Options.Qw
	if rec.Ensemble != "" {
		if recorded, err = c.cat.LoadEnsemble(ctx, rec.Ensemble); err != nil {
			return nil, nil, 0, err
		}
	}
	switch {
	case len(o.Nodes) > 0:
		target, err = c.named(ctx, o.Nodes)
	case len(o.Replace) > 0:
		target, err = c.replaced(ctx, rec.Name, recorded, o.Replace)
	case recorded != nil:
		return recorded, recorded, qw, nil
	default:
		var nodes []meta.NodeRecord
		if nodes, err = c.nodeRecords(ctx); err != nil {
			return nil, nil, 0, err
		}
		if target, err = choose(rec.ID, nodes, rec.Options.N, rec.Options.Zones); err != nil {
			return nil, nil, 0, &Error{Kind: ErrUnavailable, Log: rec.Name, Retryable: true, Err: err}
		}
		target, err = sorted(target)
	}
	if err != nil {
		return nil, nil, 0, err
	}
	if o.Qw != 0 {
		qw = o.Qw
	} else if len(target) != rec.Options.N {
		qw = len(target)/2 + 1
	}
	if qw > len(target) {
		return nil, nil, 0, invalid("", rec.Name, "write quorum %d of %d nodes", qw, len(target))
	}
	if recorded == nil {
		recorded = target
	}
	return recorded, target, qw, nil
}

func (c *Client) replaced(ctx context.Context, log string, recorded protocol.Ensemble, swap map[string]string) (protocol.Ensemble, error) {
	out := slices.Clone(recorded)
	for old, new := range swap {
		i := slices.IndexFunc(recorded, func(m protocol.Member) bool { return string(m.Node) == old })
		if i < 0 {
			names := make([]string, len(recorded))
			for k, m := range recorded {
				names[k] = string(m.Node)
			}
			return nil, invalid("", log, "node %q is not one of the log's; %s are", old, strings.Join(names, " "))
		}
		if _, moves := swap[new]; new != old && !moves && slices.ContainsFunc(recorded, func(m protocol.Member) bool { return string(m.Node) == new }) {
			return nil, invalid("", log, "node %q holds the log already; a log has each node once", new)
		}
		e, err := c.named(ctx, []string{new})
		if err != nil {
			return nil, err
		}
		out[i] = e[0]
	}
	return sorted(out)
}

// tailBytes is what a node is asked to send of its tail with its answer to Open; it sends at most one datagram of it. More is read
// over HTTP, from one node.
const tailBytes = 16 << 10

// openCall drives one protocol.Opener over UDP and HTTP.
type openCall struct {
	c      *Client
	op     string
	name   string
	id     protocol.LogID
	epoch  protocol.Epoch
	t      timer
	cancel context.CancelFunc
	limit  int
	nodes  map[protocol.NodeID]*openPeer
	notify chan struct{} // something for drive to look at

	mu       sync.Mutex
	o        *protocol.Opener
	sends    []protocol.OpenSend
	install  *protocol.Install
	look     *protocol.LSN         // the opener wants to know what the archive holds above it
	read     *protocol.ArchiveRead // and records of it
	members  protocol.Ensemble     // all that take part
	answered map[protocol.Incarnation]bool
	tries    map[openKey]int
	clock    openClock
	released bool // nobody waits for it any more: it must send nothing
}

type openPeer struct {
	node    *node
	courier *courier
	port    uint16 // learned by reply_to; 0: the well-known one
}

type openKey struct {
	node protocol.NodeID
	parcelKey
}

func (c *Client) newOpenCall(ctx context.Context, op string, rec *meta.LogRecord, recorded, target protocol.Ensemble, qw int,
	loss *protocol.AcceptLoss) (*openCall, error) {

	call := &openCall{c: c, op: op, name: rec.Name, id: rec.ID, epoch: rec.Epoch, nodes: map[protocol.NodeID]*openPeer{}, notify: make(chan struct{}, 1),
		answered: map[protocol.Incarnation]bool{}, tries: map[openKey]int{}}
	call.t = newTimer(call)
	call.members = slices.Clone(recorded)
	for _, m := range target {
		if recorded.Index(m.Incarnation) < 0 {
			call.members = append(call.members, m)
		}
	}
	inner, cancel := context.WithCancel(ctx)
	call.cancel = cancel
	call.limit = wire.MaxDatagramBytes
	for i, n := range c.located(ctx, call.members) {
		call.nodes[call.members[i].Node] = &openPeer{node: n, courier: newCourier(inner, c, n, call)}
		if p := n.place.Load(); p != nil {
			call.limit = min(call.limit, p.limit)
		}
	}
	deadline, _ := ctx.Deadline() // call has set one
	o, err := protocol.NewOpener(protocol.OpenerConfig{
		Log: rec.ID, Epoch: rec.Epoch, Recorded: recorded, Qw: recordedQw(rec, recorded, qw), History: rec.History, Trimmed: rec.TrimBefore - 1,
		Lost: rec.LostRanges(), Loss: loss, Target: target, TargetQw: qw, Settings: settings(rec), BlockBytes: wire.BlockLimit(call.limit), TailBytes: tailBytes,
		Deadline: protocol.Time(deadline.Sub(c.begin)),
	})
	if err != nil {
		cancel()
		return nil, invalid(op, rec.Name, "%v", err)
	}
	call.o = o
	return call, nil
}

// recordedQw is the write quorum of the recorded ensemble. Before the first install none is recorded and the wanted one
// stands for it.
func recordedQw(rec *meta.LogRecord, recorded protocol.Ensemble, targetQw int) int {
	if rec.Ensemble == "" {
		return targetQw
	}
	return min(rec.Options.Qw, len(recorded))
}

func settings(rec *meta.LogRecord) protocol.Settings {
	return protocol.Settings{Name: rec.Name, Window: uint32(rec.Options.Window), SegmentBytes: uint64(rec.Options.SegmentBytes),
		FlushAgeMS: uint32(min(rec.Options.FlushAge.Milliseconds(), 1<<32-1)), Memory: rec.Options.Durability == meta.Memory}
}

// drive runs the open until its result, and makes P7's compare-and-swap when the opener asks for it.
func (c *Client) drive(ctx context.Context, call *openCall, raised *meta.Log, qw int) (meta.LogRecord, error) {
	rec := raised.Record
	call.mu.Lock()
	call.o.Start(c.now())
	call.mu.Unlock()
	call.settle(c.now())
	for {
		call.mu.Lock()
		install, result, err := call.install, call.o.Result(), call.o.Err()
		look, read := call.look, call.read
		call.install, call.look, call.read = nil, nil, nil
		call.mu.Unlock()
		switch {
		case err != nil:
			return rec, err
		case result != nil:
			return rec, nil
		case look != nil || read != nil:
			call.lookForLoss(ctx, look, read)
			continue
		case install != nil:
			c.expectWait()
			log, err := c.installed(ctx, call.name, raised, install, qw)
			if err == nil {
				rec = log.Record
			}
			call.mu.Lock()
			call.o.Installed(c.now(), err)
			call.mu.Unlock()
			call.settle(c.now())
			continue
		}
		if call.lead() {
			<-call.notify
			continue
		}
		select {
		case <-call.notify:
			c.receiver.waited()
		case <-ctx.Done():
			c.receiver.waited()
			// The opener's own deadline is the same instant; its error knows more.
			call.tick(protocol.Time(1<<63 - 1))
			call.mu.Lock()
			err := call.o.Err()
			call.mu.Unlock()
			if c.closed() || errors.Is(ctx.Err(), context.Canceled) || err == nil {
				return rec, context.Cause(ctx)
			}
			return rec, err
		}
	}
}

func (c *Client) installed(ctx context.Context, name string, raised *meta.Log, in *protocol.Install, qw int) (meta.Log, error) {
	id, _, err := c.cat.PutEnsemble(ctx, in.Ensemble)
	if err != nil {
		return meta.Log{}, err
	}
	i := meta.Install{Owner: raised.Record.Owner(), Ensemble: id, Start: in.Start, Lost: in.Lost, Known: raised}
	if o := raised.Record.Options; o.N != len(in.Ensemble) || o.Qw != qw {
		i.N, i.Qw, i.Zones = len(in.Ensemble), qw, min(o.Zones, len(in.Ensemble))
	}
	return c.cat.Install(ctx, name, i)
}

// explain adds what an error of the opener does not carry: which nodes are missing.
func (call *openCall) explain(ctx context.Context, err error) error {
	kind, unknown, retryable := kindOf(err)
	e := &Error{Kind: kind, Op: call.op, Log: call.name, Unknown: unknown, Retryable: retryable, Err: err}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		e.Err = fmt.Errorf("given up in stage %q: %w", call.o.Stage(), err)
	}
	if kind != ErrUnavailable {
		return e
	}
	call.mu.Lock()
	defer call.mu.Unlock()
	if errors.Is(err, protocol.ErrUnavailable) {
		e.Err = &plainly{fmt.Sprintf("%s, in stage %q", call.o.Lacks(), call.o.FailedIn()), err}
	}
	for _, m := range call.members {
		if call.answered[m.Incarnation] {
			continue
		}
		e.Missing = append(e.Missing, string(m.Node))
		if p := call.nodes[m.Node].node.place.Load(); p != nil && p.inc != m.Incarnation && call.answered[p.inc] {
			e.Replaced = append(e.Replaced, string(m.Node))
		}
	}
	return e
}

func (call *openCall) release() {
	call.mu.Lock()
	call.released = true
	call.mu.Unlock()
	call.c.routes.remove(call.id, call)
	call.c.timers.drop(&call.t)
	call.cancel()
}

func (call *openCall) timer() *timer { return &call.t }

func (call *openCall) clientClosed() { call.cancel() }

func (call *openCall) onAck(now protocol.Time, h wire.Header, a *protocol.Ack) {
	call.mu.Lock()
	defer call.mu.Unlock()
	if a.Epoch == call.epoch { // others are meant for a writer of this process
		call.heard(h)
		call.c.counters.refusal(a.Status)
	}
	call.o.Handle(now, a)
}

func (call *openCall) onMessage(now protocol.Time, h wire.Header, m protocol.Message, whole bool) {
	call.mu.Lock()
	defer call.mu.Unlock()
	call.heard(h)
	call.c.counters.refusal(statusOf(m))
	if r, ok := m.(*protocol.OpenReply); ok && !whole && r.Log == call.id && r.Epoch == call.epoch && r.Status == protocol.StatusOK && r.Through < protocol.MaxLSN {
		// The node holds more than a datagram can tell. The opener takes one answer per node, so it must be the one that
		// is told over HTTP.
		for _, member := range call.members {
			if member.Incarnation == r.Incarnation {
				call.courierOpen(member.Node)
			}
		}
		return
	}
	call.o.Handle(now, m)
}

// heard notes an answer and the port at which the log's shard of that node listens.
func (call *openCall) heard(h wire.Header) {
	call.answered[h.Incarnation] = true
	for _, m := range call.members {
		if m.Incarnation == h.Incarnation && h.ReplyTo != 0 {
			call.nodes[m.Node].port = h.ReplyTo
		}
	}
}

func (call *openCall) tick(now protocol.Time) {
	call.mu.Lock()
	call.o.Tick(now)
	call.mu.Unlock()
	call.settle(now)
}

// settle sends what the opener wants sent, arms its timer, and tells drive.
func (call *openCall) settle(now protocol.Time) {
	call.mu.Lock()
	if call.released {
		call.mu.Unlock()
		return
	}
	call.clock.now(call.o.Stage())
	call.sends = call.o.Sends(call.sends[:0])
	if i := call.o.PendingInstall(); i != nil {
		call.install = i
	}
	if after, ok := call.o.PendingLook(); ok {
		call.look = &after
	}
	if r := call.o.PendingRead(); r != nil {
		call.read = r
	}
	over := call.o.Result() != nil || call.o.Err() != nil
	wake := call.install != nil || call.look != nil || call.read != nil || over
	next := call.o.NextTick()
	job := call.c.jobs.get(call.c)
	for sends := call.sends; len(sends) > 0; {
		n := 1
		if len(sends) > 1 && readsTail(sends[1].Msg) && sends[1].To == sends[0].To {
			n = 2
		}
		job = call.post(job, sends[:n])
		sends = sends[n:]
	}
	clear(call.sends)
	if !over {
		call.c.arm(call, next)
	}
	call.mu.Unlock()
	call.c.transmit(job)
	if wake {
		select {
		case call.notify <- struct{}{}:
		default:
		}
	}
}

// readsTail reports whether a message is the read of a tail that goes with Open.
func readsTail(m protocol.Message) bool {
	f, ok := m.(*protocol.Fetch)
	return ok && f.From == 0
}

// post sends one message of an open, or Open with the read of the tail, which need one packet and cost the node one forced
// write: by UDP if it fits, over HTTP if it does not, and both ways from the second try on, so that neither a path without
// UDP nor an answer that does not fit a datagram ends the open.
func (call *openCall) post(job *sendJob, sends []protocol.OpenSend) *sendJob {
	p := call.nodes[sends[0].To]
	if p == nil {
		return job
	}
	key := openKey{sends[0].To, keyOf(sends[0].Msg)}
	try := call.tries[key]
	call.tries[key]++
	if try > 1 {
		p.port = 0 // the shard may have moved; the well-known port forwards
		call.c.refreshSoon(p.node)
	}
	sent := false
	if place := p.node.place.Load(); place != nil && key.kind != wire.KindFetch {
		pk := job.packet()
		pk.w.Reset(pk.buf[:0], place.limit, call.c.cluster, 0)
		if pk.w.Message(sends[0].Msg) == nil {
			for _, s := range sends[1:] {
				_ = pk.w.Message(s.Msg) // small; without it the opener asks again
			}
			addr := place.addr
			if p.port != 0 {
				addr = addr.WithPort(p.port)
			}
			job = job.add(call.c, addr, nil, pk.w.Finish())
			sent = true
		}
	}
	if !sent || try > 0 {
		for _, s := range sends {
			if err := p.courier.message(keyOf(s.Msg), s.Msg); err != nil {
				call.c.log.Error("btrlog: cannot encode a message of an open", "log", call.name, "node", string(s.To), "error", err)
			}
		}
	}
	return job
}

// courierOpen asks a node over HTTP what it holds.
func (call *openCall) courierOpen(id protocol.NodeID) {
	m := &protocol.Open{Log: call.id, Epoch: call.epoch, Req: uint64(call.epoch), Name: call.name}
	if err := call.nodes[id].courier.message(keyOf(m), m); err != nil {
		call.c.log.Error("btrlog: cannot encode a message of an open", "log", call.name, "node", string(id), "error", err)
	}
}

func keyOf(m protocol.Message) parcelKey {
	k := parcelKey{kind: wire.KindOf(m)}
	switch m := m.(type) {
	case *protocol.Append:
		k.a, k.b = uint64(m.First), uint64(m.Label)<<2|uint64(m.Kind)
	case *protocol.Fetch:
		k.a = m.Req
	case *protocol.Watermark:
		k.a, k.b = uint64(m.CLSN), uint64(m.Sealed)
	}
	return k
}
