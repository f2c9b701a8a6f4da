package node

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

// batches is an Observer that holds the thread once, and then notes how many messages each batch had.
type batches struct {
	gate
	thread *thread
	mu2    sync.Mutex
	seen   []int
}

func (b *batches) Batch(shard, messages, records int, d time.Duration) {
	b.mu2.Lock()
	b.seen = append(b.seen, messages)
	b.mu2.Unlock()
	b.gate.Batch(shard, messages, records, d)
}

// held starts a node whose thread stands, with logs 3 and 4 open, and returns how to let it go on.
func held(t *testing.T) (*client, *batches, [2]*writer, func()) {
	t.Helper()
	g := &batches{}
	cfg := testConfig(t, "a", newStore())
	cfg.SegmentBytes, cfg.Observer = 32<<20, g
	n := startNode(t, cfg)
	g.thread = n.threads[0]
	c := dial(t, n)
	if err := c.conn.SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	ws := [2]*writer{newWriter(3), newWriter(4)}
	for _, w := range ws {
		c.begin(w)
	}
	release := make(chan struct{})
	g.gate.mu.Lock()
	g.gate.held, g.gate.in = release, make(chan struct{})
	g.gate.mu.Unlock()
	c.send(&protocol.Read{Log: 3})
	<-g.gate.in
	return c, g, ws, func() {
		g.mu2.Lock()
		g.seen = nil
		g.mu2.Unlock()
		close(release)
	}
}

// acks receives until n acknowledgements have come.
func (c *client) acks(n int) {
	c.t.Helper()
	for n > 0 {
		ms, _ := c.receive()
		for _, m := range ms {
			if a, ok := m.(*protocol.Ack); ok {
				if a.Status != protocol.StatusOK {
					c.t.Fatalf("%+v", a)
				}
				n--
			}
		}
	}
}

// Appends of 16 KiB, of which fifteen fit a share. A quiet log's append that arrives behind a hundred of them is in the first
// batch all the same, and the others come by shares.
func TestQuietLogPassesAFirehose(t *testing.T) {
	c, g, w, release := held(t)
	c.send(to(c.inc, w[1].append(1, 100)))
	for range 100 {
		c.send(to(c.inc, w[0].append(1, 16<<10)))
	}
	c.send(to(c.inc, w[1].append(1, 100)))
	release()
	c.acks(102)
	g.mu2.Lock()
	defer g.mu2.Unlock()
	if want := []int{17, 15, 15, 15, 15, 15, 10}; !slices.Equal(g.seen, want) {
		t.Errorf("batches of %v messages, want %v", g.seen, want)
	}
}

// A log that is alone fills the batch.
func TestLoneLogFillsTheBatch(t *testing.T) {
	c, g, w, release := held(t)
	for range 100 {
		c.send(to(c.inc, w[0].append(1, 16<<10)))
	}
	g.thread.shares.mixed = 0 // the other log was heard of long ago; the thread stands in Batch
	release()
	c.acks(100)
	g.mu2.Lock()
	defer g.mu2.Unlock()
	if want := []int{100}; !slices.Equal(g.seen, want) {
		t.Errorf("batches of %v messages, want %v", g.seen, want)
	}
}

// Two logs that both send all they can get the same.
func TestTwoFirehosesShareEachBatch(t *testing.T) {
	c, g, w, release := held(t)
	for range 50 {
		for _, w := range w {
			c.send(to(c.inc, w.append(1, 16<<10)))
		}
	}
	release()
	c.acks(100)
	g.mu2.Lock()
	defer g.mu2.Unlock()
	// In the first turn nobody waits yet: each has a share of 256 KiB, then of 128 KiB.
	if want := []int{30, 14, 14, 14, 14, 14}; !slices.Equal(g.seen, want) {
		t.Errorf("batches of %v messages, want %v", g.seen, want)
	}
}

// What waits is bounded, and however much one log has sent there is room for another.
func TestBacklogIsBounded(t *testing.T) {
	var b backlog
	const size = 64 << 10
	fill := func(log protocol.LogID) (n int) {
		for b.room(log, size) {
			b.push(log, item{msg: b.copyOf(&protocol.Append{Log: log, Block: make([]byte, 10)}), size: size, copied: true})
			n++
		}
		return n
	}
	first, second, third := fill(1), fill(2), fill(3)
	if whole := deferredBytes / size; first != whole/2 || second != whole/4 || third != whole/8 {
		t.Errorf("%d, %d and %d of %d", first, second, third, whole)
	}
	if b.bytes > deferredBytes || b.items != first+second+third {
		t.Errorf("%d bytes in %d items", b.bytes, b.items)
	}
	for b.items > 0 {
		for _, q := range b.order {
			it := b.pop(q)
			b.recycle(&it)
		}
		b.drop()
	}
	if b.bytes != 0 || len(b.queues) != 0 || len(b.order) != 0 || len(b.spare) != min(keepAppends, first+second+third) {
		t.Errorf("emptied: %d bytes, %d queues, %d in order, %d spare", b.bytes, len(b.queues), len(b.order), len(b.spare))
	}
	if b.shrink(); b.spare != nil || b.idle != nil {
		t.Error("an empty backlog keeps memory")
	}
}

// A full inbox has room for a log that has nothing in it, up to twice its bounds, and counts what the thread has not stepped.
func TestInboxHasRoomForOthers(t *testing.T) {
	b := &inbox{maxItems: 2, maxBytes: 1 << 20}
	put := func(log protocol.LogID) bool { return b.put(item{msg: &protocol.Read{Log: log}, size: 256}) }
	got := ""
	for _, log := range []protocol.LogID{1, 1, 1, 2, 2, 3, 4} {
		got += fmt.Sprintf("%d:%v ", log, put(log))
	}
	if want := "1:true 1:true 1:false 2:true 2:false 3:true 4:false "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var in contents
	b.take(&in)
	if items, _ := b.depth(); len(in.items) != 4 || items != 4 || put(1) {
		t.Errorf("taken %d, %d count, and log 1 finds room before anything was stepped", len(in.items), items)
	}
	for _, it := range in.items {
		log, _ := logOf(it.msg)
		in.done = append(in.done, done{log, it.size})
	}
	b.take(&in)
	if items, bytes := b.depth(); items != 0 || bytes != 0 || len(b.use) != 0 || !put(1) {
		t.Errorf("all was stepped: %d items of %d bytes, %d logs", items, bytes, len(b.use))
	}
	if n := b.refusals(); n != 4 {
		t.Errorf("%d refusals, want 4", n)
	}
}
