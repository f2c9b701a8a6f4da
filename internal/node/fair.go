package node

import (
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
)

// Fairness among the logs of a shard. They share one batch, one commit and one socket, so a log that sends all it can would
// make the others wait twice: in a commit that is large for its sake, and behind it in the socket and the inbox. So each log
// has a share of a batch, and what exceeds it waits in a queue of its log for the next ones:
//
//	F1  A message is stepped at once if its log has nothing waiting and its share of the batch is not used up. So the
//	    messages of a quiet log never wait for those of others, but for the batch that is being written.
//	F2  While logs are mixed, what waits gets into a batch in turns, fairBytes of all logs together. A log that is alone may fill
//	    the batch: it delays nobody, and larger writes are cheaper.
//	F3  What waits is bounded (P15): datagrams by deferredBytes, of which no log gets more than what is left for others; the
//	    inbox by its own limits, past which a log that has nothing queued there finds room all the same.
const (
	fairBytes     = 256 << 10
	minQuantum    = 32 << 10
	deferredBytes = 16 << 20
	// mixedFor is how long after a message of another log the logs count as mixed.
	mixedFor = 100 * time.Millisecond
	// readCost is what a read over UDP counts for: its answer is read from the store on the shard's thread.
	readCost = maxDatagramReply
	// slots is the size of the table of shares.
	slots = 1024
)

// shares says how much of this turn's batch each log has used.
type shares struct {
	turn    uint32
	quantum int // what a log may use in this turn
	fair    int // and what it may when logs are mixed
	last    protocol.LogID
	mixed   protocol.Time // when a message of another log than the one before came last
	table   [slots]share
}

type share struct {
	log  protocol.LogID
	turn uint32
	used int
}

// begin starts a turn. waiting is how many logs have a queue, most what the batch takes.
func (s *shares) begin(now protocol.Time, waiting, most int) {
	s.turn++
	s.fair = min(most, max(minQuantum, fairBytes/max(1, waiting)))
	s.quantum = most
	if s.isMixed(now) {
		s.quantum = s.fair
	}
}

func (s *shares) isMixed(now protocol.Time) bool {
	return s.mixed != 0 && now-s.mixed < protocol.Time(mixedFor)
}

// saw notes that a message of a log has arrived.
func (s *shares) saw(now protocol.Time, log protocol.LogID) {
	if s.last != log {
		if s.last != 0 {
			s.mixed, s.quantum = now, s.fair
		}
		s.last = log
	}
}

// take uses up cost bytes of a log's share; false if they exceed what is left. The first message always fits. Two logs in one
// slot of the table forget each other's use, which at worst lets a log have two shares.
func (s *shares) take(log protocol.LogID, cost int) bool {
	e := &s.table[uint64(log)*0x9e3779b97f4a7c15>>(64-10)]
	if e.turn != s.turn || e.log != log {
		*e = share{log: log, turn: s.turn}
	}
	if e.used > 0 && e.used+cost > s.quantum {
		return false
	}
	e.used += max(1, cost)
	return true
}

// costOf is what a message counts for. Over HTTP the records of an answer are read elsewhere, and a log that is alone delays
// nobody with its reads.
func (s *shares) costOf(m protocol.Message, http bool, now protocol.Time) int {
	switch m := m.(type) {
	case *protocol.Append:
		return len(m.Block)
	case *protocol.Read, *protocol.Fetch:
		if !http && s.isMixed(now) {
			return readCost
		}
	}
	return 256
}

// backlog is what waits for later turns. It belongs to the thread.
type backlog struct {
	queues map[protocol.LogID]*queue
	order  []*queue // those that are not empty, the next one to be served first
	idle   []*queue
	spare  []*protocol.Append
	items  int
	bytes  int // of copied datagrams
}

type queue struct {
	log   protocol.LogID
	items []item
	first int
	bytes int // of copied datagrams
}

const (
	keepQueues  = 64
	keepAppends = 256
	keepBlock   = 64 << 10 // a larger block is not kept
)

func (b *backlog) empty() bool { return b.items == 0 }

func (b *backlog) waits(log protocol.LogID) bool { return b.items > 0 && b.queues[log] != nil }

func (b *backlog) push(log protocol.LogID, it item) {
	q := b.queues[log]
	if q == nil {
		if n := len(b.idle); n > 0 {
			q, b.idle = b.idle[n-1], b.idle[:n-1]
		} else {
			q = new(queue)
		}
		q.log = log
		if b.queues == nil {
			b.queues = make(map[protocol.LogID]*queue)
		}
		b.queues[log] = q
		b.order = append(b.order, q)
	}
	q.items = append(q.items, it)
	b.items++
	if it.copied {
		q.bytes += it.size
		b.bytes += it.size
	}
}

// room reports whether a datagram may wait (F3).
func (b *backlog) room(log protocol.LogID, size int) bool {
	used := 0
	if q := b.queues[log]; q != nil {
		used = q.bytes
	}
	return used+size <= deferredBytes-b.bytes
}

func (b *backlog) pop(q *queue) item {
	it := q.items[q.first]
	q.items[q.first] = item{}
	q.first++
	b.items--
	if it.copied {
		q.bytes -= it.size
		b.bytes -= it.size
	}
	return it
}

// copyOf is an append that outlives its datagram.
func (b *backlog) copyOf(a *protocol.Append) *protocol.Append {
	var c *protocol.Append
	if n := len(b.spare); n > 0 {
		c, b.spare = b.spare[n-1], b.spare[:n-1]
	} else {
		c = new(protocol.Append)
	}
	block := append(c.Block[:0], a.Block...)
	*c = *a
	c.Block = block
	return c
}

func (b *backlog) recycle(it *item) {
	if a, ok := it.msg.(*protocol.Append); ok && it.copied && len(b.spare) < keepAppends && cap(a.Block) <= keepBlock {
		b.spare = append(b.spare, a)
	}
}

// drop forgets queues that are empty, and moves the one that was served first to the end.
func (b *backlog) drop() {
	rest := b.order[:0]
	for _, q := range b.order {
		if q.first < len(q.items) {
			rest = append(rest, q)
			continue
		}
		delete(b.queues, q.log)
		if q.items, q.first = q.items[:0], 0; len(b.idle) < keepQueues && cap(q.items) <= 4096 {
			b.idle = append(b.idle, q)
		}
	}
	clear(b.order[len(rest):])
	b.order = rest
	if len(rest) > 1 {
		q := rest[0]
		copy(rest, rest[1:])
		rest[len(rest)-1] = q
	}
}

// all returns everything that waits and forgets it.
func (b *backlog) all() (out []item) {
	for _, q := range b.order {
		out = append(out, q.items[q.first:]...)
	}
	*b = backlog{}
	return out
}

// shrink gives back what only a burst needs.
func (b *backlog) shrink() {
	if b.empty() {
		*b = backlog{}
	}
}

// admit steps a message of a datagram if its log may go on in this batch, and else lets it wait, or refuses it.
func (t *thread) admit(now protocol.Time, m protocol.Message, to ring.Addr) {
	log, _ := logOf(m)
	t.shares.saw(now, log)
	cost := t.shares.costOf(m, false, now)
	if !t.backlog.waits(log) && t.core.BatchBytes() < t.maxBatch && len(t.origins) < maxBatchMessages && t.shares.take(log, cost) {
		t.step(now, m, origin{to: to})
		return
	}
	size := sizeOf(m)
	if !t.backlog.room(log, size) {
		t.counters.overloaded.Add(1)
		t.tally.answered(kindOf(m), protocol.StatusOverloaded)
		switch r := refusal(m, protocol.StatusOverloaded, t.core.Incarnation()).(type) {
		case *protocol.Ack:
			t.post.ack(to, r)
		default:
			t.post.message(to, r)
		}
		return
	}
	switch a := m.(type) { // these two are in memory that the next datagram is read into
	case *protocol.Append:
		m = t.backlog.copyOf(a)
	case *protocol.Watermark:
		c := *a
		m = &c
	}
	t.backlog.push(log, item{msg: m, size: size, from: to, copied: true})
}

// serve steps what waits, in turns.
func (t *thread) serve(now protocol.Time) {
	b := &t.backlog
	if b.empty() {
		return
	}
	for _, q := range b.order {
		for q.first < len(q.items) && t.core.BatchBytes() < t.maxBatch && len(t.origins) < maxBatchMessages {
			it := &q.items[q.first]
			if !t.shares.take(q.log, t.shares.costOf(it.msg, it.call != nil, now)) {
				break
			}
			next := b.pop(q)
			t.step(now, next.msg, origin{to: next.from, call: next.call})
			if r, ok := next.msg.(*protocol.Read); ok && next.call != nil {
				next.call.read = r
			}
			if next.inbox {
				t.in.done = append(t.in.done, done{q.log, next.size})
			}
			b.recycle(&next)
		}
	}
	b.drop()
}
