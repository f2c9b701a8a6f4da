package node

import (
	"context"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

// startWatchful starts a trio whose nodes notice soon that one is down.
func startWatchful(t *testing.T) *trio {
	t.Helper()
	x := &trio{t: t, store: &countingStore{Store: newStore(), part: "/arch/"}}
	for i, id := range []string{"a", "b", "c"} {
		x.nodes[i] = startNode(t, watchful(testConfig(t, id, x.store)))
		x.clients[i] = dial(t, x.nodes[i])
		x.peers = append(x.peers, x.nodes[i].Incarnation())
	}
	return x
}

func watchful(cfg Config) Config {
	cfg.PeerInterval, cfg.PeerTimeout, cfg.FlushGrace = 10*time.Millisecond, time.Second, 300*time.Millisecond
	return cfg
}

// inStore returns which LSNs up to last the objects of a log hold, and up to where they prove them committed.
func (x *trio) inStore(log protocol.LogID, last protocol.LSN) (held []bool, proven protocol.LSN) {
	x.t.Helper()
	objects, err := x.nodes[0].archive.Look(context.Background(), log, 0)
	if err != nil {
		x.t.Fatal(err)
	}
	held = make([]bool, last+1)
	proof := make([]bool, last+2)
	for _, o := range objects {
		for lsn := o.First; lsn <= min(o.Last, last); lsn++ {
			held[lsn] = true
			proof[lsn] = proof[lsn] || lsn <= o.CLSN
		}
	}
	for proof[proven+1] {
		proven++
	}
	return held, proven
}

// tail appends n records to all nodes; each append says that the one before it is committed.
func (x *trio) tail(w *writer, n int) {
	x.t.Helper()
	for range n {
		lsn := w.next
		x.send(w.append(1, 200), all(lsn))
		w.cLSN = lsn
	}
}

func wholeUpTo(held []bool) bool {
	for lsn := 1; lsn < len(held); lsn++ {
		if !held[lsn] {
			return false
		}
	}
	return true
}

// TestFailureSnapshot: with one of three nodes down the tail goes to the object store, what is committed with its proof and
// what may be without; once, and not again for what comes after.
func TestFailureSnapshot(t *testing.T) {
	x := startWatchful(t)
	w := newWriter(41)
	x.begin(w)
	for range 6 {
		lsn := w.next
		x.send(w.append(1, 200), 7)
		w.cLSN = lsn - 1 // as a writer that has several in flight
	}
	eventually(t, "the nodes to know each other", func() bool { return len(x.nodes[0].Status().Peers) == 2 && len(x.nodes[1].Status().Peers) == 2 })
	if got := x.store.puts.Load(); got != 0 {
		t.Fatalf("%d objects although nobody is down", got)
	}
	stopNode(t, x.nodes[2])
	for _, n := range x.nodes[:2] {
		eventually(t, "a snapshot at "+string(n.cfg.Node), func() bool { return n.Status().Flush.Snapshots == 1 })
	}
	held, proven := x.inStore(41, 6)
	if !wholeUpTo(held) || proven != 4 {
		t.Errorf("the store holds %v and proves LSNs up to %d; want all six, four of them", held[1:], proven)
	}
	if got := x.store.puts.Load(); got != 2 {
		t.Errorf("%d PUT requests for a committed and an uncommitted stretch", got)
	}
	for _, n := range x.nodes[:2] {
		if l, _ := logAt(n, 41); l.ArchivedThrough != 4 {
			t.Errorf("node %s: archived through %d, want 4", n.cfg.Node, l.ArchivedThrough)
		}
	}
	// What is written from here on has its quorum among the living, and is no reason for another snapshot.
	x.send(w.append(1, 200), 3)
	turned := x.nodes[0].threads[0].beat.Load()
	eventually(t, "the shard to look for endangered logs again", func() bool { return x.nodes[0].threads[0].beat.Load() > turned+2*int64(watchEvery) })
	for _, n := range x.nodes[:2] {
		if s := n.Status().Flush; s.Snapshots != 1 {
			t.Errorf("node %s: %d snapshots of one failure", n.cfg.Node, s.Snapshots)
		}
	}
	if got := x.store.puts.Load(); got != 2 {
		t.Errorf("%d PUT requests of one failure", got)
	}
}

// TestSnapshotOfEachNodesTail is trace H7: the leader's tail is not the tail. Each of the two that live lacks a record that the
// other one holds, and only one knows that both are committed.
func TestSnapshotOfEachNodesTail(t *testing.T) {
	x := startWatchful(t)
	w := newWriter(42)
	x.begin(w)
	x.send(w.append(1, 200), 7)
	x.send(w.append(1, 200), 1|4) // b misses LSN 2
	x.send(w.append(1, 200), 2|4) // a misses LSN 3
	w.cLSN = 3
	x.clients[0].ack(w.watermark(x.clients[0].inc, 0), protocol.StatusOK) // and b does not know that it holds a committed record
	stopNode(t, x.nodes[2])
	for _, n := range x.nodes[:2] {
		eventually(t, "a snapshot at "+string(n.cfg.Node), func() bool { return n.Status().Flush.Snapshots == 1 })
	}
	if held, _ := x.inStore(42, 3); !wholeUpTo(held) {
		t.Errorf("a committed record is not in the store: %v", held[1:])
	}
}

// TestSnapshotAfterAWipe: a node that comes back with an empty disk answers, and holds nothing: the one that it was is down.
func TestSnapshotAfterAWipe(t *testing.T) {
	x := startWatchful(t)
	w := newWriter(43)
	x.begin(w)
	x.tail(w, 3)
	stopNode(t, x.nodes[2])
	wiped := startNode(t, watchful(testConfig(t, "c", x.store)))
	if wiped.Incarnation() == x.peers[2] {
		t.Fatal("the same incarnation on another disk")
	}
	eventually(t, "a snapshot", func() bool { return x.nodes[0].Status().Flush.Snapshots+x.nodes[1].Status().Flush.Snapshots > 0 })
	if held, _ := x.inStore(43, 2); !wholeUpTo(held) {
		t.Errorf("the store holds %v", held[1:])
	}
	// The node itself is well, and said to be.
	eventually(t, "the new incarnation to be heard", func() bool {
		for _, p := range x.nodes[0].Status().Peers {
			if p.Node == "c" && p.Incarnation == wiped.Incarnation().String() && !p.Down {
				return true
			}
		}
		return false
	})
}

// TestSnapshotWaitsForTheStore: what a store that fails did not take is written when it answers again.
func TestSnapshotWaitsForTheStore(t *testing.T) {
	x := startWatchful(t)
	w := newWriter(44)
	x.begin(w)
	x.tail(w, 3)
	x.store.down.Store(12)
	stopNode(t, x.nodes[1])
	eventually(t, "a snapshot", func() bool { return x.nodes[0].Status().Flush.Snapshots > 0 })
	if held, proven := x.inStore(44, 3); !wholeUpTo(held) || proven != 2 {
		t.Errorf("the store holds %v and proves up to %d", held[1:], proven)
	}
	if x.store.down.Load() >= 0 {
		t.Error("the store never failed: this test proves nothing")
	}
}

// While one node is down, each record of a log that is archived up to its end is no reason for a snapshot, and an object, of its own.
func TestNoSnapshotForEachRecord(t *testing.T) {
	x := startWatchful(t)
	w := newWriter(45)
	x.begin(w)
	write := func(nodes int) {
		lsn := w.next
		x.send(w.append(1, 200), nodes)
		w.cLSN = lsn
		for i, c := range x.clients {
			if nodes&(1<<i) != 0 {
				c.ack(w.watermark(c.inc, 0), protocol.StatusOK)
			}
		}
	}
	write(7)
	stopNode(t, x.nodes[2])
	for _, n := range x.nodes[:2] {
		eventually(t, "a snapshot at "+string(n.cfg.Node), func() bool { return n.Status().Flush.Snapshots == 1 })
		eventually(t, "all to be archived", func() bool { l, _ := logAt(n, 45); return l.ArchivedThrough == 1 })
	}
	puts := x.store.puts.Load()
	for range 2 {
		write(3)
		for _, n := range x.nodes[:2] {
			turned := n.threads[0].beat.Load()
			eventually(t, "two looks for endangered logs", func() bool { return n.threads[0].beat.Load() > turned+3*int64(watchEvery)/2 })
		}
	}
	if got := x.store.puts.Load() - puts; got != 0 {
		t.Errorf("%d PUT requests for 2 records behind the snapshot", got)
	}
}

// TestHeartbeatOfASickNode: a shard that hangs gives no sign of life, whatever the process says.
func TestHeartbeatOfASickNode(t *testing.T) {
	n := startNode(t, testConfig(t, "a", newStore()))
	if code, body := httpGet(t, n, HeartbeatPath); code != 200 {
		t.Fatal(code, body)
	}
	n.threads[0].alive.Store(false)
	if code, body := httpGet(t, n, HeartbeatPath); code != 503 {
		t.Errorf("%d %s", code, body)
	}
	n.threads[0].alive.Store(true)
}
