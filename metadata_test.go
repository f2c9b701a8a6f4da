package btrlog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/objstore/faulty"
)

// TestTakeoverUnderMetadataFaults lets each compare-and-swap of a takeover suffer each fault once: the open succeeds, takes
// one epoch, and loses nothing (P1, R13, R14).
func TestTakeoverUnderMetadataFaults(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	c.create(c.client(), "orders", btrlog.LogOptions{})
	last := btrlog.LSN(0)
	epoch := btrlog.Epoch(0)
	for _, fault := range []faulty.Fault{faulty.Unavailable, faulty.Conflict, faulty.LostRequest, faulty.LostReply, faulty.HiddenRetry} {
		for skip := range 2 {
			store := faulty.New(c.store, faulty.Config{})
			client := c.client(func(cfg *btrlog.Config) { cfg.Store = store })
			store.Add(faulty.Rule{Ops: faulty.PutIfMatch, Prefix: "logs/", Fault: fault, Skip: skip, Count: 1})
			w := c.writer(client, "orders")
			if i := w.Info(); i.Recovered != last || i.Epoch != epoch+1 {
				t.Fatalf("fault %d at swap %d: %+v, want LSN %d and epoch %d", fault, skip+1, i, last, epoch+1)
			}
			epoch++
			last = fill(t, w, 5)
			if err := w.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	check(t, c.reader(c.client(), "orders"), 1, last)
}

// TestReopenThatFailedIsRepeated takes the token, loses the metadata store before the install, and comes back: nothing that
// was given out is lost, and the writer was not taken for fenced by its own token.
func TestReopenThatFailedIsRepeated(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3", "n4")
	store := faulty.New(c.store, faulty.Config{})
	client := c.client(func(cfg *btrlog.Config) { cfg.Store = store })
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		t.Cleanup(cancel)
		return ctx
	}
	c.create(client, "orders", btrlog.LogOptions{Nodes: []string{"n1", "n2", "n3"}})
	w := c.writer(client, "orders")
	last := fill(t, w, 10)

	// Before the token: the writer goes on.
	store.Add(faulty.Rule{Ops: faulty.PutIfMatch, Prefix: "logs/", Fault: faulty.Unavailable})
	var e *btrlog.Error
	o := btrlog.WriterOptions{Replace: map[string]string{"n3": "n4"}}
	if err := w.Reopen(short(), o); !errors.As(err, &e) || e.Kind != btrlog.ErrUnavailable || e.Unknown || !e.Retryable {
		t.Fatalf("re-open without the store: %v", err)
	}
	last = fill(t, w, 10)

	// Between token and install: it waits.
	store.Heal()
	store.Add(faulty.Rule{Ops: faulty.PutIfMatch, Prefix: "logs/", Fault: faulty.Unavailable, Skip: 1})
	if err := w.Reopen(short(), o); !errors.As(err, &e) || e.Kind != btrlog.ErrUnavailable || !e.Unknown || !e.Retryable {
		t.Fatalf("re-open that lost the store half way: %v", err)
	}
	if err := w.Err(); err != nil {
		t.Fatalf("the writer has ended: %v", err)
	}
	if _, err := w.TryAppend(nil); !errors.Is(err, btrlog.ErrWindowFull) {
		t.Fatalf("append between two epochs: %v", err)
	}
	appended := make(chan error, 1)
	go func() {
		lsn, err := w.Append(t.Context(), payload(last+1))
		if err == nil {
			err = w.Sync(t.Context(), lsn)
		}
		appended <- err
	}()
	store.Heal()
	if err := w.Reopen(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if err := <-appended; err != nil {
		t.Fatal(err)
	}
	last = fill(t, w, 10)
	check(t, c.reader(c.client(), "orders"), 1, last)

	// A token whose outcome is not known, and which was applied, is found again by its nonce.
	store.Add(faulty.Rule{Ops: faulty.PutIfMatch, Prefix: "logs/", Fault: faulty.LostReply, Count: 1})
	store.Add(faulty.Rule{Ops: faulty.Get, Prefix: "logs/", Fault: faulty.Unavailable})
	if err := w.Reopen(short(), btrlog.WriterOptions{}); !errors.As(err, &e) || !e.Retryable {
		t.Fatalf("re-open with a token of unknown outcome: %v", err)
	}
	store.Heal()
	if err := w.Reopen(t.Context(), btrlog.WriterOptions{}); err != nil {
		t.Fatal(err)
	}
	last = fill(t, w, 10)
	check(t, c.reader(c.client(), "orders"), 1, last)
}
