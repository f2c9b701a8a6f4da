package node

import (
	"context"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

// trio is three nodes of one cluster, and a client of each.
type trio struct {
	t       *testing.T
	store   *countingStore
	nodes   [3]*Node
	clients [3]*client
	peers   []protocol.Incarnation
}

func startTrio(t *testing.T, grace time.Duration) *trio {
	t.Helper()
	x := &trio{t: t, store: &countingStore{Store: newStore(), part: "/arch/"}}
	for i, id := range []string{"a", "b", "c"} {
		cfg := testConfig(t, id, x.store)
		cfg.FlushGrace = grace
		x.nodes[i] = startNode(t, cfg)
		x.clients[i] = dial(t, x.nodes[i])
		x.peers = append(x.peers, x.nodes[i].Incarnation())
	}
	return x
}

func (x *trio) begin(w *writer) {
	w.set.Peers = x.peers
	for _, c := range x.clients {
		c.begin(w)
	}
}

// send sends one append to the nodes that mask names, and waits for their acknowledgements.
func (x *trio) send(a *protocol.Append, mask int) {
	x.t.Helper()
	for i, c := range x.clients {
		if mask>>i&1 != 0 {
			c.ack(to(c.inc, a), protocol.StatusOK)
		}
	}
}

// segments writes n segments of four records each. The last one is sealed.
func (x *trio) segments(w *writer, n int, mask func(lsn protocol.LSN) int) {
	x.t.Helper()
	for range n {
		w.cut()
		for range 4 {
			lsn := w.next
			x.send(w.append(1, 200), mask(lsn))
			w.cLSN = lsn
		}
	}
	for _, c := range x.clients {
		c.ack(w.watermark(c.inc, w.next-1), protocol.StatusOK)
	}
}

// archived waits until archived-through of a log is lsn at all nodes.
func (x *trio) archived(log protocol.LogID, lsn protocol.LSN) {
	x.t.Helper()
	for _, n := range x.nodes {
		eventually(x.t, "archived-through at "+string(n.cfg.Node), func() bool {
			l, _ := logAt(n, log)
			return l.ArchivedThrough == lsn
		})
	}
}

func all(protocol.LSN) int { return 7 }

func TestOnePutPerSegment(t *testing.T) {
	x := startTrio(t, 700*time.Millisecond)
	a, b := newWriter(11), newWriter(12)
	x.begin(a)
	x.begin(b)
	x.segments(a, 5, all)
	x.segments(b, 4, all)
	x.archived(11, 20)
	x.archived(12, 16)
	if got := x.store.puts.Load(); got != 9 {
		t.Fatalf("%d PUT requests for 9 segments of three healthy nodes", got)
	}
	leaders := 0
	for _, n := range x.nodes {
		if n.archive.Counters().Put.Attempts() > 0 {
			leaders++
		}
	}
	if leaders < 2 {
		t.Fatalf("the segments of two logs were all written by %d node", leaders)
	}
	// What is archived and outside the window is gone from the disk, and the window stays hot.
	for i, n := range x.nodes {
		l, _ := logAt(n, 11)
		if l.DroppedThrough != 20-8 {
			t.Fatalf("node %d dropped through %d", i, l.DroppedThrough)
		}
		r := x.clients[i].call(&protocol.Read{Log: 11, From: 13, To: 20}).(*protocol.ReadReply)
		checkRecords(t, 11, r.Records, 13, 20, 200)
	}
	objects, err := x.nodes[0].archive.Look(context.Background(), 11, 0)
	if err != nil || len(objects) != 5 {
		t.Fatalf("%d objects, %v", len(objects), err)
	}
	// All of it is in the store's state on disk: after a restart too, archived-through is what it was (H5).
	cfg := x.nodes[2].cfg
	stopNode(t, x.nodes[2])
	if l, _ := logAt(startNode(t, cfg), 11); l.ArchivedThrough != 20 || l.DroppedThrough != 12 {
		t.Fatalf("after a restart: %+v", l)
	}
}

// No node holds the whole segment; the union of what they hold is archived all the same (A2, L3).
func TestHolesAreClosedByTheUnion(t *testing.T) {
	x := startTrio(t, 100*time.Millisecond)
	w := newWriter(21)
	x.begin(w)
	x.segments(w, 2, func(lsn protocol.LSN) int { return []int{7, 6, 5, 3}[lsn%4] }) // each node misses one of four
	x.archived(21, 8)
}

// A node that missed some records learns from the store that the segment is archived.
func TestNodeWithHolesLooks(t *testing.T) {
	x := startTrio(t, 500*time.Millisecond)
	w := newWriter(22)
	x.begin(w)
	x.segments(w, 3, func(lsn protocol.LSN) int {
		if lsn == 1 || lsn == 7 {
			return 3
		}
		return 7
	})
	x.archived(22, 12)
	if got := x.store.puts.Load(); got != 3 {
		t.Fatalf("%d PUT requests for 3 segments", got)
	}
}

// The writer is gone and its last segment not full: it is archived when it has aged (decision 6).
func TestAgedTailIsArchived(t *testing.T) {
	x := startTrio(t, 300*time.Millisecond)
	w := newWriter(23)
	w.set.FlushAgeMS = 200
	x.begin(w)
	x.send(w.append(3, 100), 7)
	for _, c := range x.clients {
		w.cLSN = 3
		c.ack(w.watermark(c.inc, 0), protocol.StatusOK)
	}
	x.archived(23, 3)
	if got := x.store.puts.Load(); got != 1 {
		t.Fatalf("%d PUT requests for one aged tail", got)
	}
}

// While the object store is down, appends go on and nothing is lost; when it is back, everything is archived (A7).
func TestStoreOutage(t *testing.T) {
	store := &countingStore{Store: newStore(), part: "/arch/"}
	cfg := testConfig(t, "a", store)
	cfg.FlushGrace = 50 * time.Millisecond
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(31)
	c.begin(w)
	store.down.Store(1 << 40)
	x := &trio{t: t, clients: [3]*client{c, c, c}}
	x.segments(w, 3, func(protocol.LSN) int { return 1 })
	eventually(t, "the failure to show", func() bool {
		f := n.Status().Flush
		return store.puts.Load() > 0 && f.Running+int64(f.Failed) > 0 && f.Pending == 3
	})
	if l, _ := logAt(n, 31); l.ArchivedThrough != 0 || l.Highest != 12 {
		t.Fatalf("during the outage: %+v", l)
	}
	store.down.Store(0)
	eventually(t, "the segments to be archived", func() bool {
		l, _ := logAt(n, 31)
		return l.ArchivedThrough == 12 && n.Status().Flush.Pending == 0
	})
}

// A full disk refuses appends, keeps answering everything else, and takes appends again when archiving has made room (R15, O3).
func TestDiskBudget(t *testing.T) {
	store := &countingStore{Store: newStore(), part: "/arch/"}
	cfg := testConfig(t, "a", store)
	cfg.SegmentBytes, cfg.DiskBudgetBytes, cfg.FlushGrace, cfg.IdleRelease = 1<<20, 4<<20, 50*time.Millisecond, 100*time.Millisecond
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(41)
	c.begin(w)
	store.down.Store(1 << 40)
	full := false
	for i := 0; i < 400 && !full; i++ {
		w.cut()
		before := *w
		a := c.call(to(c.inc, w.append(1, 20_000))).(*protocol.Ack)
		switch a.Status {
		case protocol.StatusOK:
			w.cLSN = a.Last
		case protocol.StatusNoSpace:
			full = true
			*w = before
		default:
			t.Fatalf("append: %+v", a)
		}
	}
	if !full {
		t.Fatal("8 MB went into a budget of 4 MiB")
	}
	if r := c.call(w.open(1)).(*protocol.OpenReply); r.Status != protocol.StatusOK {
		t.Fatalf("open at a full node: %+v", r)
	}
	c.ack(w.watermark(c.inc, w.next-1), protocol.StatusOK)
	if n.Status().Detail[0].Core.RefusedNoSpace == 0 {
		t.Fatal("the status does not show the refusal")
	}
	store.down.Store(0)
	eventually(t, "appends to be taken again", func() bool {
		a := c.call(to(c.inc, w.append(1, 20_000))).(*protocol.Ack)
		if a.Status == protocol.StatusNoSpace {
			w.next--
			w.off = 0
		}
		return a.Status == protocol.StatusOK
	})
}
