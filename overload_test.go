package btrlog_test

import (
	"errors"
	"testing"

	"github.com/btrlog/btrlog"
)

// P15: an append that the window has no room for is refused at once, and the refusal leaves no garbage behind.
func TestRefusalAllocatesNothing(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{Window: 4})
	w := c.writer(client, "orders")
	c.stop("n1")
	c.stop("n2")
	for range 4 {
		if _, err := w.TryAppend([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	next, rec := w.Info().Next, []byte("x")
	_, full := w.TryAppend(rec)
	if !errors.Is(full, btrlog.ErrWindowFull) {
		t.Fatal(full)
	}
	n := testing.AllocsPerRun(1000, func() {
		if _, err := w.TryAppend(rec); err != full {
			t.Fatal(err)
		}
	})
	if n > 0.01 {
		t.Errorf("%v allocations to be refused", n)
	}
	if got := w.Info().Next; got != next {
		t.Errorf("refused appends were given the LSNs %d to %d", next, got-1)
	}
	// Once there is room the next is taken, and a writer that has ended says so.
	c.start("n1")
	if err := w.Sync(t.Context(), next-1); err != nil {
		t.Fatal(err)
	}
	if _, err := w.TryAppend(rec); err != nil {
		t.Errorf("with room again: %v", err)
	}
	c.stop("n1")
	for full = nil; full == nil; {
		_, full = w.TryAppend(rec)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.TryAppend(rec); !errors.Is(err, btrlog.ErrClosed) {
		t.Errorf("after the client's end: %v", err)
	}
}
