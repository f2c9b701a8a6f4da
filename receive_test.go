package btrlog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
)

// TestSyncReceivesForOthers has a Sync receive that is never answered, and then one goroutine after the other commit to another log
// of the same client, with and without Sync: the first Sync gives up the receiver's role, and its context ends it.
func TestSyncReceivesForOthers(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3", "n4")
	client := c.client()
	c.create(client, "stuck", btrlog.LogOptions{N: 1, Qw: 1, Nodes: []string{"n4"}})
	c.create(client, "orders", btrlog.LogOptions{Nodes: []string{"n1", "n2", "n3"}})
	stuck, w := c.writer(client, "stuck"), c.writer(client, "orders")
	c.stop("n4")
	lsn, err := stuck.Append(t.Context(), payload(1))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- stuck.Sync(ctx, lsn) }()
	for i := range 50 {
		lsn, err := w.Append(t.Context(), payload(btrlog.LSN(i+1)))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if err := w.Sync(t.Context(), lsn); err != nil {
				t.Fatal(err)
			}
			continue
		}
		eventually(t, "an append without Sync to be committed", func() bool { return w.Committed() >= lsn })
	}
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, btrlog.ErrUnavailable) {
			t.Errorf("a Sync that its context ended: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("a Sync outlives its context")
	}
}

// TestOpenIsWaitedFor: an open counts as one who waits, or the background could stand by behind a Sync while its answers lie in the socket.
func TestOpenIsWaitedFor(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	if err := c.writer(client, "orders").Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.stop("n2")
	c.stop("n3")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := client.OpenWriter(ctx, "orders", btrlog.WriterOptions{})
		ended <- err
	}()
	eventually(t, "the open to be waited for", func() bool { return client.Waiting() == 1 })
	cancel()
	if err := <-ended; err == nil {
		t.Error("a log was opened with one node of three")
	}
	if n := client.Waiting(); n != 0 {
		t.Errorf("%d wait after the open", n)
	}
}
