package node

import (
	"errors"
	"fmt"
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

// The thread allocates nothing for an append: not when it receives, not when it commits, not when it answers; nor for the watermark that
// an idle writer pushes behind each. What remains and is counted is the store's index, some objects for every 256 records. What is not
// counted are the store's snapshots, which ride along with commits, the trace of one append in 1,024, and other goroutines.
func TestThreadAllocatesNothingPerAppend(t *testing.T) {
	cfg := testConfig(t, "a", newStore())
	cfg.SegmentBytes, cfg.MemoryBudgetBytes = 64<<20, 1<<20
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(3)
	c.begin(w)
	var p wire.Writer
	buf := make([]byte, 2048)
	a := to(c.inc, w.append(1, 700))
	w.next--
	size := uint64(len(a.Block))
	push := &protocol.Watermark{Log: a.Log, Epoch: a.Epoch, Incarnation: a.Incarnation}
	addr := c.to.AddrPort()
	one := func() {
		a.First, a.SegOff = w.next, uint64(w.next-1)*size
		push.CLSN = w.next
		w.next++
		p.Reset(buf, 2048, c.cluster, 0)
		if err := errors.Join(p.Append(a), p.Message(push)); err != nil {
			t.Fatal(err)
		}
		c.conn.SetReadDeadline(time.Now().Add(waitFor))
		if _, err := c.conn.WriteToUDPAddrPort(p.Finish(), addr); err != nil {
			t.Fatal(err)
		}
		got, _, err := c.conn.ReadFromUDPAddrPort(c.buf)
		if err != nil || got != wire.HeaderBytes+2*wire.AckBytes {
			t.Fatalf("%d bytes, %v", got, err)
		}
	}
	warm, runs := 2000, 2000 // the tail cache is full before it counts
	if raceEnabled {
		warm, runs = 300, 300 // it allocates too
	}
	for range warm {
		one()
	}
	rate := runtime.MemProfileRate
	runtime.MemProfileRate = 1
	defer func() { runtime.MemProfileRate = rate }()
	before := threadAllocations(t)
	for range runs {
		one()
	}
	total, stacks := int64(0), []string{}
	for stack, count := range threadAllocations(t) {
		if count -= before[stack]; count > 0 {
			total += count
			stacks = append(stacks, fmt.Sprint(count, stack))
		}
	}
	t.Logf("%.4f allocations per append and watermark", float64(total)/float64(runs))
	if total > int64(runs/100) && !raceEnabled {
		t.Errorf("the thread allocates %d times for %d appends, in\n%s", total, runs, strings.Join(stacks, "\n"))
	}
	if got := n.Status().Detail[0].Core.Records; got != uint64(warm+runs) {
		t.Fatalf("%d records", got)
	}
}

// threadAllocations counts the objects that shards' threads have had allocated, by stack.
func threadAllocations(t *testing.T) map[string]int64 {
	t.Helper()
	for range 2 {
		runtime.GC() // the profile is of the last cycle that is complete
	}
	records := make([]runtime.MemProfileRecord, 1<<16)
	n, ok := runtime.MemProfile(records, true)
	if !ok {
		t.Fatalf("the profile has %d stacks", n)
	}
	out := map[string]int64{}
	for i := range records[:n] {
		var stack strings.Builder
		ours, other := false, false
		frames := runtime.CallersFrames(records[i].Stack())
		for more := true; more; {
			var f runtime.Frame
			f, more = frames.Next()
			ours = ours || strings.Contains(f.Function, "internal/node.(*thread).turn")
			other = other || strings.Contains(f.Function, "lst.(*Store).rideAlong") || strings.Contains(f.Function, "internal/node.(*tracer)")
			stack.WriteString(" < " + f.Function)
		}
		if ours && !other {
			out[stack.String()] += records[i].AllocObjects
		}
	}
	return out
}
