package node

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/internal/shard"
	"github.com/btrlog/btrlog/internal/wire"
)

const (
	// tickEvery is how often a shard looks for segments to archive and for reads that waited long enough.
	tickEvery = 50 * time.Millisecond
	// maxTick bounds the pause between two looks.
	maxTick = time.Second
	// releaseEvery is how often it looks for idle logs, and has the store give back files.
	releaseEvery = time.Second
	// maxBatchBytes, maxBatchMessages and maxReceives are where a batch ends although more has arrived: whoever waits for its
	// answer, and what is due by time, must not wait for a flood of others to end.
	maxBatchBytes    = 2 << 20
	maxBatchMessages = 4096
	maxReceives      = 16
	// yieldEvery is how often the thread goes through the scheduler. A goroutine that never does counts as one that hogs its
	// processor after 10 ms, and from then on the scheduler's monitor takes the processor away from every system call that it sees
	// under way, and looks fifty times as often: that was a tenth of a node's processor time.
	yieldEvery = 5 * time.Millisecond
	// busyPackets is how many datagrams of one receive say that more are coming: then the thread looks for them at once, and else it
	// lets the call that sends its answers wait for them too. With plain system calls these are two, and a look costs no more.
	busyPackets = 4
)

// thread is one shard: a core, a socket, and the one OS thread that drives both.
type thread struct {
	n     *Node
	index int
	port  uint16
	// maxBatch is maxBatchBytes, or less when the store's files are small: a batch goes into one file.
	maxBatch int
	core     *shard.Core
	loop     ring.Loop
	busy     int // busyPackets, or one
	inbox    inbox

	reclaim  chan struct{} // wakes the reclaimer
	stopping atomic.Bool
	alive    atomic.Bool  // in the loop, not latched
	beat     atomic.Int64 // protocol.Time of the last turn

	// The thread's own.
	reader  wire.Reader
	app     protocol.Append
	push    protocol.Watermark
	in      contents
	shares  shares
	backlog backlog
	origins []origin
	post    post
	plan    planner
	packing *packing // nil: none is under way
	parked  map[protocol.LogID][]parkedRead
	nparked int

	nextTick, nextRelease protocol.Time
	yielded               protocol.Time
	stepped               uint64 // messages when shrink looked last
	counters              counters
	tally                 tally
	tracer                tracer
}

// origin is where the answer to a message goes: a socket or an HTTP request. Its index plus one is the machine's Peer.
type origin struct {
	to   ring.Addr
	call *call
}

// parkedRead is a long poll that waits for the watermark of its log to rise.
type parkedRead struct {
	call *call
	msg  *protocol.Read
}

// counters of a thread, for the status page. Each is written by the thread alone.
type counters struct {
	messages, batches, badPackets, otherCluster, otherVersion, unexpected, forwarded, overloaded, lost atomic.Uint64
}

// run is the thread's life. It returns nil after stop, and otherwise why the node must end.
func (t *thread) run() error {
	runtime.LockOSThread()
	if cpus := t.n.cfg.PinCPUs; len(cpus) == 0 {
		defer runtime.UnlockOSThread()
	} else if err := pin(cpus[t.index%len(cpus)]); err != nil { // and the OS thread ends with the goroutine
		return fmt.Errorf("node: shard %d: %w", t.index, err)
	}
	defer t.finish()
	for !t.stopping.Load() {
		if err := t.turn(); err != nil {
			return fmt.Errorf("node: shard %d: %w", t.index, err)
		}
	}
	return t.loop.Flush() // the answers of the last batch
}

// stop makes run return after the batch under way. Any goroutine may call it.
func (t *thread) stop() {
	t.stopping.Store(true)
	t.loop.Wake()
}

// turn is one batch: what has arrived, one commit, the answers.
func (t *thread) turn() error {
	now := t.n.now()
	t.beat.Store(int64(now))
	before := t.counters.messages.Load()
	t.shares.begin(now, len(t.backlog.order), t.maxBatch)
	more, err := t.receive(now)
	if err != nil {
		return err
	}
	t.drain(now)
	t.serve(now)
	if now >= t.nextTick {
		t.tick(now)
	}
	if err := t.commit(now, int(t.counters.messages.Load()-before)); err != nil {
		return err
	}
	// The answers leave with the wait, or else with the next turn's receive: one system call does both.
	if !more && t.backlog.empty() {
		if now-t.yielded > protocol.Time(yieldEvery) {
			t.yielded = now
			runtime.Gosched()
		}
		if _, err := t.loop.Wait(time.Duration(t.nextTick - t.n.now())); err != nil {
			return err
		}
	}
	return nil
}

// receive steps the datagrams that have arrived, or lets them wait; more says that there may be others.
func (t *thread) receive(now protocol.Time) (more bool, err error) {
	for range maxReceives {
		// A full batch ends it, but not while logs are mixed: who is quiet may be behind others in the socket (F1).
		if (t.core.BatchBytes() >= t.maxBatch || len(t.origins) >= maxBatchMessages) && !t.shares.isMixed(now) {
			break
		}
		packets, err := t.loop.Recv()
		if err != nil {
			return false, err
		}
		for i := range packets {
			t.packet(now, &packets[i])
		}
		if len(packets) < ringBatch {
			return len(packets) >= t.busy, nil
		}
	}
	return true, nil
}

// packet steps the messages of one datagram. What cannot be read is counted and never answered (W3), but for a peer of another
// version, which is told ours.
func (t *thread) packet(now protocol.Time, p *ring.Packet) {
	r := &t.reader
	if err := r.Reset(p.Data, t.n.cluster); err != nil {
		switch {
		case errors.Is(err, wire.ErrCluster):
			t.counters.otherCluster.Add(1)
		case wire.Answerable(err):
			t.counters.otherVersion.Add(1)
			t.post.raw(p.From, wire.AppendNotice(nil, t.n.cluster))
		default:
			t.counters.badPackets.Add(1)
		}
		return
	}
	to := p.From
	if port := r.Header().ReplyTo; port != 0 {
		to = to.WithPort(port)
	}
	for r.Next() {
		if owner := t.n.owner(r.Log()); owner != t.index {
			t.forward(owner, to)
			continue
		}
		switch r.Kind() {
		case wire.KindAppend:
			// The record's bytes are copied once, from the datagram into the commit.
			if err := r.Append(&t.app); err != nil {
				t.counters.badPackets.Add(1)
				continue
			}
			t.admit(now, &t.app, to)
			continue
		case wire.KindWatermark: // one for each record of a log that gets one now and then
			if err := r.Watermark(&t.push); err != nil {
				t.counters.badPackets.Add(1)
				continue
			}
			t.admit(now, &t.push, to)
			continue
		}
		m, err := r.Message()
		if err != nil {
			t.counters.badPackets.Add(1)
			continue
		}
		if _, ok := logOf(m); !ok {
			t.counters.unexpected.Add(1)
			continue
		}
		t.admit(now, m, to)
	}
	if r.Err() != nil {
		t.counters.badPackets.Add(1)
	}
}

// forward hands the current message to the shard that owns its log, which answers from its own socket and says its port, so
// that the next message goes there.
func (t *thread) forward(owner int, to ring.Addr) {
	m, err := t.reader.Message() // a copy: the datagram's memory is ours only for this batch
	if err != nil {
		t.counters.badPackets.Add(1)
		return
	}
	if _, ok := logOf(m); !ok {
		t.counters.unexpected.Add(1)
		return
	}
	t.counters.forwarded.Add(1)
	if o := t.n.threads[owner]; o.inbox.put(item{msg: m, size: sizeOf(m), from: to}) {
		o.loop.Wake()
		return
	}
	t.counters.overloaded.Add(1)
	t.n.threads[owner].tally.answered(kindOf(m), protocol.StatusOverloaded)
	t.post.message(to, refusal(m, protocol.StatusOverloaded, t.core.Incarnation()))
}

func (t *thread) step(now protocol.Time, m protocol.Message, from origin) {
	t.counters.messages.Add(1)
	t.tally.stepped(m)
	if a, ok := m.(*protocol.Append); ok {
		t.trace(a)
	}
	t.origins = append(t.origins, from)
	t.core.Step(now, protocol.Peer(len(t.origins)), m)
}

// drain takes what other threads have queued into the backlog.
func (t *thread) drain(now protocol.Time) {
	t.inbox.take(&t.in)
	for i := range t.in.items {
		it := t.in.items[i]
		log, _ := logOf(it.msg)
		it.inbox = true
		t.shares.saw(now, log)
		t.backlog.push(log, it)
	}
	for i := range t.in.reports {
		t.reported(now, &t.in.reports[i])
	}
	for _, c := range t.in.asks {
		c <- t.status(now)
	}
	if len(t.in.looks) > 0 {
		p := t.look(now)
		for _, c := range t.in.looks {
			c <- p
		}
	}
}

// fullRelease is how long a log must have been idle before its archived window is dropped at a node that has no room.
const fullRelease = 2 * time.Second

// tick does what is due by time.
func (t *thread) tick(now protocol.Time) {
	began := time.Now()
	t.expire(now)
	t.planFlush(now)
	t.packSome(now)
	if now >= t.nextRelease {
		t.nextRelease = now + protocol.Time(releaseEvery)
		idle := t.n.cfg.IdleRelease
		if t.core.Stats().Full {
			idle = min(idle, fullRelease) // room for those who write is worth more than the memory of those who do not
			if t.packing == nil && len(t.plan.logs) > 0 {
				t.n.packer.full()
			}
		}
		t.core.Release(now, protocol.Time(idle))
		t.core.AskForRoom(now)
		t.shrink()
		select {
		case t.reclaim <- struct{}{}:
		default:
		}
	}
	// With very many logs a look at all of them takes long; it must stay a small part of the thread's time. A process that was
	// stopped inside the look has not looked long, so there is a bound.
	t.nextTick = t.n.now() + protocol.Time(min(max(tickEvery, 20*time.Since(began)), maxTick))
}

// shrink gives back the memory of a burst when nothing has arrived for a while.
func (t *thread) shrink() {
	n := t.counters.messages.Load()
	if n == t.stepped && len(t.origins) == 0 && t.post.used == 0 {
		t.backlog.shrink()
		t.post.packets, t.origins, t.in.items, t.in.done = nil, nil, nil, nil
	}
	t.stepped = n
}

// commit ends the batch that began at turn, and sends its answers, which is all that the outside ever hears of it.
func (t *thread) commit(turn protocol.Time, messages int) error {
	before := t.core.Stats()
	began := time.Now()
	now := t.n.now()
	answers, err := t.core.Commit(now)
	if err != nil {
		t.alive.Store(false)
		return err
	}
	written := time.Since(began)
	after := t.core.Stats()
	t.noteFull(after.Full)
	if len(t.origins) > 0 {
		t.counters.batches.Add(1)
		if t.n.cfg.Observer != nil {
			t.n.cfg.Observer.Batch(t.index, messages, int(after.Records-before.Records), written)
		}
	}
	for i := range answers.Acks {
		a := &answers.Acks[i]
		t.tally.answered(requestKind(a.Ack.Kind), a.Ack.Status)
		o := &t.origins[a.To-1]
		if o.call != nil {
			o.call.ack = a.Ack
			o.call.end(callAck)
			o.call = nil
		} else {
			t.post.ack(o.to, &a.Ack)
		}
		if t.nparked > 0 {
			t.unpark(a.Ack.Log, a.Ack.CLSN)
		}
	}
	for i := range answers.Replies {
		t.reply(now, &answers.Replies[i])
	}
	// A request without an answer is told so: it was malformed in a way that the machine does not answer, or undone.
	for i := range t.origins {
		if c := t.origins[i].call; c != nil {
			t.counters.lost.Add(1)
			c.end(callLost)
		}
	}
	clear(t.origins)
	t.origins = t.origins[:0]
	err = t.post.queue()
	if t.tally.appends > 0 {
		// A batch that wrote nothing, such as one of records that are held already, made no difference of durability.
		forced := after.Commits == before.Commits || after.ForcedCommits > before.ForcedCommits
		apply, reply := time.Duration(now-turn), time.Since(began)-written
		if t.tracer.lsn != 0 {
			t.tracer.done(t.tally.appends, now, written, reply)
		}
		t.tally.times(forced, apply, written, reply)
	}
	return err
}

// noteFull publishes whether appends are refused for want of space, and says when that changes.
func (t *thread) noteFull(full bool) {
	if full == t.tally.full.Load() {
		return
	}
	t.tally.full.Store(full)
	if full {
		t.n.cfg.Log.Warn("disk budget used up, or disk full: appends are refused until there is room for a while", "shard", t.index)
	} else {
		t.n.cfg.Log.Warn("appends are taken again", "shard", t.index)
	}
}

// reply sends one reply, or parks it.
func (t *thread) reply(now protocol.Time, r *protocol.ReplyOut) {
	t.tally.answered(statusOf(r.Msg))
	o := &t.origins[r.To-1]
	if o.call == nil {
		limit := t.post.limit(o.to)
		if len(r.Refs) > 0 {
			limit = min(limit, maxDatagramReply)
		}
		fillDatagram(t.core.View(), r, limit)
		t.post.message(o.to, r.Msg)
		return
	}
	c := o.call
	o.call = nil
	if m, ok := r.Msg.(*protocol.ReadReply); ok && c.waitAbove != 0 && m.Status == protocol.StatusOK && m.CLSN <= c.waitAbove && now < c.until {
		if t.nparked < maxParked {
			t.park(m.Log, c)
			return
		}
	}
	c.reply, c.view = *r, t.core.View()
	c.end(callReply)
}

// maxDatagramReply bounds what a thread reads from its store for one answer, in bytes, however large a datagram the path takes.
const maxDatagramReply = 16 << 10

// maxParked bounds the long polls of one shard; more are answered at once.
const maxParked = 4096

func (t *thread) park(log protocol.LogID, c *call) {
	t.parked[log] = append(t.parked[log], parkedRead{c, c.read})
	t.nparked++
}

// unpark queues the reads that waited for a watermark below clsn again.
func (t *thread) unpark(log protocol.LogID, clsn protocol.LSN) {
	list := t.parked[log]
	if len(list) == 0 {
		return
	}
	t.resume(log, func(p *parkedRead) bool { return clsn > p.call.waitAbove })
}

// expire queues the reads that waited long enough.
func (t *thread) expire(now protocol.Time) {
	if t.nparked == 0 {
		return
	}
	for log := range t.parked {
		t.resume(log, func(p *parkedRead) bool { return now >= p.call.until })
	}
}

// resume moves the parked reads of a log for which due holds to what waits for the next turn, to be stepped again.
func (t *thread) resume(log protocol.LogID, due func(*parkedRead) bool) {
	list := t.parked[log]
	keep := list[:0]
	for i := range list {
		if due(&list[i]) {
			list[i].call.waitAbove = 0 // this time the answer stands
			t.backlog.push(log, item{msg: list[i].msg, size: 256, call: list[i].call})
			t.nparked--
		} else {
			keep = append(keep, list[i])
		}
	}
	clear(list[len(keep):])
	if len(keep) == 0 {
		delete(t.parked, log)
	} else {
		t.parked[log] = keep
	}
}

// finish answers everything that still waits, and closes the inbox and the loop, which is its owner's to close. No answer of it
// speaks of a write.
func (t *thread) finish() {
	t.alive.Store(false)
	if err := t.loop.Close(); err != nil {
		t.n.cfg.Log.Warn("closing a socket", "shard", t.index, "error", err)
	}
	left := t.inbox.close()
	for _, it := range append(left.items, t.backlog.all()...) {
		if it.call != nil {
			it.call.end(callStop)
		}
	}
	for i := range t.origins {
		if c := t.origins[i].call; c != nil {
			c.end(callStop)
		}
	}
	for _, list := range t.parked {
		for _, p := range list {
			p.call.end(callStop)
		}
	}
	for _, c := range left.looks {
		close(c)
	}
	for _, c := range left.asks {
		c <- ShardStatus{Shard: t.index, Problem: "the shard has stopped"}
	}
}
