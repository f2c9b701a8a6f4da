package btrlog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
)

// A Close that could not drain must not turn into success when it is called once more.
func TestEveryCloseReturnsWhatTheFirstDid(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	last := fill(t, w, 5)
	c.stop("n1")
	c.stop("n2")
	for range 2 {
		if _, err := w.Append(t.Context(), []byte("unknown")); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	first := w.Close(short)
	var e *btrlog.Error
	if !errors.As(first, &e) || e.Kind != btrlog.ErrUnavailable || !e.Unknown || e.Retryable || e.From != last+1 || e.To != last+2 {
		t.Fatalf("close without a quorum: %+v, %v", e, first)
	}
	if err := w.Err(); !errors.As(err, &e) || e.Kind != btrlog.ErrClosed || !e.Unknown || e.From != last+1 || e.To != last+2 {
		t.Errorf("why the writer ended: %v", err)
	}
	c.start("n1") // which changes nothing: the writer is released
	for range 2 {
		if err := w.Close(t.Context()); err != first {
			t.Errorf("another close: %v, the first: %v", err, first)
		}
	}

	w = c.writer(client, "orders")
	for range 2 {
		if err := w.Close(t.Context()); err != nil {
			t.Errorf("close of a drained writer: %v", err)
		}
	}
}

func TestCloseAfterTheClientsClose(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	c.stop("n1")
	c.stop("n2")
	if _, err := w.Append(t.Context(), []byte("unknown")); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	var e *btrlog.Error
	for range 2 {
		if err := w.Close(t.Context()); !errors.As(err, &e) || e.Kind != btrlog.ErrClosed || !e.Unknown || e.From != 1 || e.To != 1 {
			t.Errorf("close after the client's: %v", err)
		}
	}
}

func TestOnCommitTakesNilAndAddsFunctions(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	var told [2]btrlog.LSN
	w.OnCommit(nil)
	w.OnCommit(func(lsn btrlog.LSN) { told[0] = lsn })
	w.OnCommit(func(lsn btrlog.LSN) { told[1] = lsn })
	last := fill(t, w, 5)
	if err := w.Close(t.Context()); err != nil { // waits for the last call
		t.Fatal(err)
	}
	if told[0] != last || told[1] != last {
		t.Errorf("told %v, committed %d", told, last)
	}
}
