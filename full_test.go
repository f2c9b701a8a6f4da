package btrlog_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/node"
)

// R15: the archive is down and all three nodes are full. Records that one node took and the others refused are part of the log,
// so an open must write them again on nodes without room: it does, from their reserve. Appends are refused with an error that
// says why. When the archive is back, everything goes on by itself and all is there.
func TestTakeoverOnFullNodes(t *testing.T) {
	const mib = 1 << 20
	c := newCluster(t)
	c.config = func(cfg *node.Config) {
		cfg.Shards, cfg.SegmentBytes, cfg.DiskBudgetBytes, cfg.IdleRelease = 1, mib, 4*mib, 100*time.Millisecond
		if cfg.Node == "n1" {
			cfg.DiskBudgetBytes = 5 * mib // it takes some more, which are on no other node
		}
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		c.start(n)
	}
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{Nodes: []string{"n1", "n2", "n3"}, SegmentBytes: 256 << 10, FlushAge: 100 * time.Millisecond})
	c.inner.archiveDown.Store(true)

	old := c.writer(client, "orders")
	full := func(n string) bool { return c.nodes[n].Status().Detail[0].Core.Full }
	record := func(lsn btrlog.LSN) []byte { return append(payload(lsn), make([]byte, 8000)...) }
	put := func(w *btrlog.Writer) {
		t.Helper()
		if _, err := w.Append(t.Context(), record(w.Info().Next)); err != nil {
			t.Fatal(err)
		}
	}
	for !(full("n1") && full("n2") && full("n3")) {
		if put(old); old.Info().Next > 1500 {
			t.Fatal("12 MB went into budgets of 4 and 5 MiB")
		}
		if !full("n2") || !full("n3") { // the window stays small until only n1 takes more
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			_ = old.Sync(ctx, old.Info().Next-1)
			cancel()
		}
	}
	only := btrlog.LSN(0) // the last that n1 took
	for _, l := range c.nodes["n1"].Status().Detail[0].Logs {
		only = max(only, btrlog.LSN(l.Highest))
	}
	if c.holds("n2", only) || c.holds("n3", only) {
		t.Fatalf("LSN %d is on more nodes than n1", only)
	}

	c.stop("n3") // so that the open hears of it from n1, and has n1 and n2 to write it to
	w := c.writer(c.client(), "orders")
	c.start("n3")
	if got := w.Info().Recovered; got < only {
		t.Fatalf("recovered up to LSN %d, n1 holds up to %d", got, only)
	}
	next := w.Info().Next
	put(w)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	err := w.Sync(ctx, next)
	cancel()
	if !errors.Is(err, btrlog.ErrUnavailable) || !strings.Contains(err.Error(), "no-space") || !strings.Contains(err.Error(), "disk budget") {
		t.Fatalf("sync of an append to full nodes: %v", err)
	}
	t.Logf("%v", err)
	// A second takeover, with an ordinary tail of nothing to repair.
	if w, err = c.client().OpenWriter(t.Context(), "orders", btrlog.WriterOptions{}); err != nil {
		t.Fatal(err)
	}

	c.inner.archiveDown.Store(false)
	eventually(t, "appends to be taken again", func() bool {
		next = w.Info().Next
		put(w)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return w.Sync(ctx, next) == nil
	})
	r := c.reader(client, "orders")
	want := btrlog.LSN(1)
	for rec, err := range r.Scan(t.Context(), 0, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.LSN != want || string(rec.Data) != string(record(want)) {
			t.Fatalf("LSN %d: %.20q, want LSN %d", rec.LSN, rec.Data, want)
		}
		want++
	}
	if want <= next {
		t.Fatalf("the scan ended before LSN %d of %d", want, next)
	}
	eventually(t, "the nodes to have room again", func() bool { return !full("n1") && !full("n2") && !full("n3") })
}
