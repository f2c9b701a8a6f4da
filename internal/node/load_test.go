package node

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/wire"
)

// gate is an Observer that holds a shard's thread.
type gate struct {
	mu   sync.Mutex
	held chan struct{} // not nil: the thread waits for it
	in   chan struct{}
}

func (g *gate) Batch(int, int, int, time.Duration) {
	g.mu.Lock()
	held := g.held
	g.held = nil
	g.mu.Unlock()
	if held != nil {
		close(g.in)
		<-held
	}
}

func TestOverloadIsSaidAtOnce(t *testing.T) {
	g := &gate{}
	cfg := testConfig(t, "a", newStore())
	cfg.InboxMessages, cfg.Observer = 4, g
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(3)
	c.begin(w)
	release := make(chan struct{})
	g.mu.Lock()
	g.held, g.in = release, make(chan struct{})
	g.mu.Unlock()
	c.send(&protocol.Read{Log: 3, Req: 1})
	<-g.in // the thread hangs
	answers := make(chan protocol.Message, 20)
	for range 20 {
		go func() {
			m, err := c.post(&protocol.Read{Log: 3, Req: 2})
			if err != nil {
				t.Error(err)
			}
			answers <- m
		}()
	}
	for range 16 {
		if r, ok := (<-answers).(*protocol.ReadReply); !ok || r.Status != protocol.StatusOverloaded {
			t.Fatalf("answer past the bound: %+v", r)
		}
	}
	close(release)
	for range 4 {
		if r, ok := (<-answers).(*protocol.ReadReply); !ok || r.Status != protocol.StatusOK {
			t.Fatalf("answer to accepted work: %+v", r)
		}
	}
}

// A disk that hangs holds the thread in its write; the node says so before anyone waits for ever.
func TestStuckShardIsNotReady(t *testing.T) {
	g := &gate{}
	cfg := testConfig(t, "a", newStore())
	cfg.Observer = g
	n := startNode(t, cfg)
	c := dial(t, n)
	release := make(chan struct{})
	g.mu.Lock()
	g.held, g.in = release, make(chan struct{})
	g.mu.Unlock()
	c.send(&protocol.Read{Log: 3})
	<-g.in
	if err := n.ready(); err != nil {
		t.Fatal(err)
	}
	n.threads[0].beat.Add(-int64(stuckAfter + time.Second))
	if err := n.ready(); err == nil || !strings.Contains(err.Error(), "disk may hang") {
		t.Fatalf("ready: %v", err)
	}
	says(t, n.Address(), HealthPath, ShardStuck)
	says(t, n.Address(), ReadyPath, ShardStuck)
	n.threads[0].beat.Add(-int64(stuckAfter + time.Second))
	if s := n.Status(); !strings.Contains(s.Detail[0].Problem, "no answer") {
		t.Fatalf("status of a shard that hangs: %+v", s.Detail[0])
	}
	close(release)
	eventually(t, "the node to be ready again", func() bool { return n.ready() == nil })
}

// Acknowledgements of one batch to one peer share datagrams, and a batch is one forced commit.
func TestGroupCommit(t *testing.T) {
	g := &gate{}
	cfg := testConfig(t, "a", newStore())
	cfg.Observer = g
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(3)
	c.begin(w)
	before := n.Status().Detail[0].Core
	release := make(chan struct{})
	g.mu.Lock()
	g.held, g.in = release, make(chan struct{})
	g.mu.Unlock()
	c.send(&protocol.Read{Log: 3})
	<-g.in
	const appends = 40
	for range appends {
		c.send(to(c.inc, w.append(1, 100)))
	}
	close(release)
	c.receive() // the read's answer
	got, datagrams := 0, 0
	for got < appends {
		ms, _ := c.receive()
		got += len(ms)
		datagrams++
	}
	after := n.Status().Detail[0].Core
	if commits := after.ForcedCommits - before.ForcedCommits; commits != 1 || datagrams != 1 || after.Records-before.Records != appends {
		t.Fatalf("%d appends that waited together took %d commits and %d datagrams", appends, commits, datagrams)
	}
}

// More answers than one flush takes.
func TestManyAnswersOfOneBatch(t *testing.T) {
	g := &gate{}
	cfg := testConfig(t, "a", newStore())
	cfg.Observer = g
	n := startNode(t, cfg)
	c := dial(t, n)
	if err := c.conn.SetReadBuffer(8 << 20); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	g.mu.Lock()
	g.held, g.in = release, make(chan struct{})
	g.mu.Unlock()
	c.send(&protocol.Read{Log: 3, Req: 1})
	<-g.in
	const reads, each = 2*maxPackets + 40, 20
	for i := range reads / each {
		var ms []protocol.Message
		for k := range each {
			ms = append(ms, &protocol.Read{Log: 3, Req: uint64(100 + i*each + k)})
		}
		c.send(ms...)
	}
	close(release)
	seen := map[uint64]bool{}
	for len(seen) < reads/each*each+1 {
		ms, _ := c.receive()
		for _, m := range ms {
			seen[m.(*protocol.ReadReply).Req] = true
		}
	}
	if s := n.Status().Detail[0]; s.Counters.Unanswered != 0 || s.Counters.Batches != 2 {
		t.Fatalf("%d answers in %d batches, %d without an answer", len(seen), s.Counters.Batches, s.Counters.Unanswered)
	}
}

// A log with memory durability is acknowledged without a force, and its fence is forced all the same.
func TestMemoryLog(t *testing.T) {
	n := startNode(t, testConfig(t, "a", newStore()))
	c, w := dial(t, n), newWriter(3)
	w.set.Memory = true
	c.begin(w)
	before := n.Status().Detail[0].Core
	for range 5 {
		c.ack(to(c.inc, w.append(1, 100)), protocol.StatusOK)
	}
	s := n.Status().Detail[0]
	if s.Core.ForcedCommits != before.ForcedCommits || s.Core.Commits != before.Commits+5 || !strings.HasPrefix(s.Logs[0].Durability, "memory") {
		t.Fatalf("before %+v, after %+v, %s", before, s.Core, s.Logs[0].Durability)
	}
	c.call(w.open(2))
	if got := n.Status().Detail[0].Core; got.ForcedCommits != before.ForcedCommits+1 {
		t.Fatalf("a promise was not forced: %+v", got)
	}
}

// The thread allocates nothing for an append: not when it receives, not when it commits, not when it answers.
func TestThreadAllocatesNothingPerAppend(t *testing.T) {
	cfg := testConfig(t, "a", newStore())
	cfg.SegmentBytes = 64 << 20
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(3)
	c.begin(w)
	var p wire.Writer
	buf := make([]byte, 2048)
	a := to(c.inc, w.append(1, 100))
	w.next--
	size := uint64(len(a.Block))
	addr := c.to.AddrPort()
	one := func() {
		a.First, a.SegOff = w.next, uint64(w.next-1)*size
		w.next++
		p.Reset(buf, 2048, c.cluster, 0)
		if err := p.Append(a); err != nil {
			t.Fatal(err)
		}
		if _, err := c.conn.WriteToUDPAddrPort(p.Finish(), addr); err != nil {
			t.Fatal(err)
		}
		got, _, err := c.conn.ReadFromUDPAddrPort(c.buf)
		if err != nil || got != wire.HeaderBytes+wire.AckBytes {
			t.Fatalf("%d bytes, %v", got, err)
		}
	}
	c.conn.SetReadDeadline(time.Now().Add(waitFor))
	for range 1000 {
		one()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const runs = 3000
	for range runs {
		one()
	}
	runtime.ReadMemStats(&after)
	// The store's index grows by a leaf for every 256 records, and other goroutines have their timers.
	if per := float64(after.Mallocs-before.Mallocs) / runs; per > 0.5 && !raceEnabled {
		t.Fatalf("%.2f allocations per append", per)
	}
	if got := n.Status().Detail[0].Core.Records; got != 4000 {
		t.Fatalf("%d records", got)
	}
}
