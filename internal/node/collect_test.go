package node

import (
	"context"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore/memory"
)

// A node whose clock is ahead by a year takes nothing for a year older than it is: the store's clock says what is old (A5).
func TestRetentionGoesByTheStoresClock(t *testing.T) {
	start := time.Now().Add(-365 * 24 * time.Hour)
	clock := make(chan time.Time, 1)
	clock <- start
	now := func() time.Time { at := <-clock; clock <- at; return at }
	cfg := testConfig(t, "a", memory.New(memory.Options{Now: now}))
	cfg.CollectEvery, cfg.FlushGrace = -1, 20*time.Millisecond
	n := startNode(t, cfg)
	ctx := context.Background()
	o := meta.DefaultOptions()
	o.N, o.Qw, o.Retention.Age = 1, 1, time.Hour
	log, err := n.catalog.Create(ctx, "orders", o)
	if err != nil {
		t.Fatal(err)
	}
	w, c := newWriter(log.Record.ID), dial(t, n)
	w.set.Name, w.set.Qw, w.set.Peers = "orders", 1, []protocol.Incarnation{c.inc}
	c.begin(w)
	c.ack(to(c.inc, w.append(4, 100)), protocol.StatusOK)
	w.cLSN = 4
	c.ack(w.watermark(c.inc, 4), protocol.StatusOK)
	eventually(t, "the segment to be archived", func() bool { l, _ := logAt(n, w.log); return l.ArchivedThrough == 4 })
	trimmed := func(round uint64) protocol.LSN {
		t.Helper()
		n.collect(ctx, round)
		if s := n.collector.status(); s.Failed != 0 {
			t.Fatalf("collection failed: %s", s.LastError)
		}
		log, err := n.catalog.Load(ctx, "orders")
		if err != nil {
			t.Fatal(err)
		}
		return log.Record.TrimBefore
	}
	if at := trimmed(1); at > 1 {
		t.Fatalf("records that were archived just now are trimmed before LSN %d, with retention for an hour", at)
	}
	<-clock
	clock <- start.Add(2 * time.Hour)
	if at := trimmed(2); at != 5 {
		t.Fatalf("after two hours trimmed before LSN %d, want 5", at)
	}
}

// A node that did not hear of a deletion reads of it in the metadata, drops what it holds, and takes nothing more (R11); else it would
// hold it for ever, and archive again and again what is deleted from the archive.
func TestNodeLearnsOfADeletionThatItDidNotHear(t *testing.T) {
	cfg := testConfig(t, "a", memory.New(memory.Options{}))
	cfg.CollectEvery, cfg.FlushGrace = -1, 20*time.Millisecond
	n := startNode(t, cfg)
	ctx := context.Background()
	o := meta.DefaultOptions()
	o.N, o.Qw = 1, 1
	log, err := n.catalog.Create(ctx, "orders", o)
	if err != nil {
		t.Fatal(err)
	}
	w, c := newWriter(log.Record.ID), dial(t, n)
	w.set.Name, w.set.Qw, w.set.Peers = "orders", 1, []protocol.Incarnation{c.inc}
	c.begin(w)
	c.ack(to(c.inc, w.append(4, 100)), protocol.StatusOK)
	n.collect(ctx, 1)
	if l, _ := logAt(n, w.log); l.Deleted || l.Highest != 4 {
		t.Fatalf("the node has dropped a log that nobody deleted: %+v", l)
	}
	if err := n.catalog.Delete(ctx, "orders", meta.Owner{ID: log.Record.ID}); err != nil {
		t.Fatal(err)
	}
	n.collect(ctx, 2)
	eventually(t, "the node to drop the log", func() bool { l, _ := logAt(n, w.log); return l.Deleted && l.Highest == 0 })
	c.ack(to(c.inc, w.append(1, 100)), protocol.StatusDeleted)
	for round := uint64(3); round < 200; round++ { // thorough ones among them
		n.collect(ctx, round)
	}
	if s := n.collector.status(); s.Failed != 0 {
		t.Fatalf("collection failed: %s", s.LastError)
	}
}
