package btrlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/objstore"
)

// silentStore answers no request for the record of a log while it is silent.
type silentStore struct {
	objstore.Store
	silent  atomic.Bool
	waiting chan struct{}
}

func (s *silentStore) Get(ctx context.Context, key string, r objstore.Range) (io.ReadCloser, objstore.Info, error) {
	if s.silent.Load() && strings.Contains(key, "logs/") {
		select {
		case s.waiting <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return nil, objstore.Info{}, &objstore.Error{Store: s.String(), Op: "get", Key: key, Kind: objstore.ErrUnavailable, Err: ctx.Err()}
	}
	return s.Store.Get(ctx, key, r)
}

// The object store is silent: a read of the writer that needs it ends at its own deadline, not at that of one that came before.
func TestWriterReadsWaitForThemselvesOnly(t *testing.T) {
	c := newCluster(t, "n1")
	s := &silentStore{Store: c.store, waiting: make(chan struct{}, 1)}
	client := c.client(func(cfg *btrlog.Config) { cfg.Store = s })
	c.create(client, "orders", btrlog.LogOptions{N: 1, Qw: 1, Window: 16})
	w, err := client.OpenWriter(t.Context(), "orders", btrlog.WriterOptions{RetainRecords: 1, RetainBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	for range 64 {
		if _, err := w.Append(t.Context(), []byte("r")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Sync(t.Context(), 64); err != nil {
		t.Fatal(err)
	}
	s.silent.Store(true)
	patient, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	first := make(chan error, 1)
	go func() { _, err := w.Read(patient, 1, nil); first <- err }()
	<-s.waiting
	hasty, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if _, err := w.Read(hasty, 1, nil); err == nil {
		t.Error("a read without the object store succeeded")
	}
	select {
	case err := <-first:
		t.Fatalf("the first read ended before the second: %v", err)
	default:
	}
	cancel()
	if err := <-first; err == nil {
		t.Error("the first read succeeded without the object store")
	}
}

// A transaction rolls back while no quorum answers: its writer reads every record that it gave out, and nobody else does.
func TestWriterReadsWhatIsNotCommitted(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{SegmentBytes: 64 << 10, Window: 16})
	w := c.writer(client, "orders")
	record := func(x btrlog.LSN) []byte { return bytes.Repeat(fmt.Appendf(nil, "%8d.", x), 100) }
	const n = 400
	for x := btrlog.LSN(1); x <= n; x++ {
		if _, err := w.Append(t.Context(), record(x)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Sync(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	c.stop("n2")
	c.stop("n3")
	if _, err := w.Append(t.Context(), record(n+1)); err != nil {
		t.Fatal(err)
	}
	before := c.store.requests.Load()
	for _, x := range []btrlog.LSN{n + 1, n, n - 10} {
		got, err := w.Read(t.Context(), x, []byte("kept "))
		if err != nil || string(got) != "kept "+string(record(x)) {
			t.Fatalf("read of LSN %d: %.20q, %v", x, got, err)
		}
	}
	if got := c.store.requests.Load(); got != before {
		t.Errorf("reads of the writer's own tail made %d requests of the store", got-before)
	}
	if w.Committed() != n {
		t.Fatalf("committed %d: this test proves nothing", w.Committed())
	}
	for _, x := range []btrlog.LSN{0, n + 2} {
		if _, err := w.Read(t.Context(), x, nil); !errors.Is(err, btrlog.ErrInvalid) {
			t.Errorf("read of LSN %d, which was not given out: %v", x, err)
		}
	}

	c.start("n2")
	c.start("n3")
	if err := w.Sync(t.Context(), n+1); err != nil {
		t.Fatal(err)
	}
	// What the writer dropped long ago comes from nodes or archive.
	if got, err := w.Read(t.Context(), 3, nil); err != nil || !bytes.Equal(got, record(3)) {
		t.Fatalf("read of LSN 3: %.20q, %v", got, err)
	}
	if err := w.Trim(t.Context(), 11); err != nil {
		t.Fatal(err)
	}
	var e *btrlog.Error
	if _, err := w.Read(t.Context(), 10, nil); !errors.As(err, &e) || e.Kind != btrlog.ErrTrimmed || e.To != 10 {
		t.Errorf("read below the trim point: %v", err)
	}

	// A fenced writer no longer says what a record of its own is, unless it knows it committed.
	c.stop("n2")
	c.stop("n3")
	last, err := w.Append(t.Context(), record(n+2))
	if err != nil {
		t.Fatal(err)
	}
	c.start("n2")
	c.start("n3")
	second := c.writer(c.client(), "orders")
	if _, err := w.Append(t.Context(), record(n+3)); err == nil { // an idle writer would not hear of it
		<-w.Done()
	}
	if w.Committed() < last {
		if _, err := w.Read(t.Context(), last, nil); !errors.Is(err, btrlog.ErrFenced) {
			t.Errorf("read of LSN %d of a fenced writer: %v", last, err)
		}
	}
	if got, err := w.Read(t.Context(), n+1, nil); err != nil || !bytes.Equal(got, record(n+1)) {
		t.Errorf("read of committed LSN %d of a fenced writer: %.20q, %v", n+1, got, err)
	}
	if err := second.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
