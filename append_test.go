package btrlog_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
)

func TestWindow(t *testing.T) {
	const window = 8
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "small", btrlog.LogOptions{Window: window})
	w := c.writer(client, "small")
	c.stop("n1")
	c.stop("n2")
	for i := range window {
		if _, err := w.TryAppend(payload(btrlog.LSN(i + 1))); err != nil {
			t.Fatalf("append %d of a window of %d: %v", i+1, window, err)
		}
	}
	if _, err := w.TryAppend(nil); !errors.Is(err, btrlog.ErrWindowFull) {
		t.Fatalf("append above the window: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var e *btrlog.Error
	if lsn, err := w.Append(short, nil); !errors.As(err, &e) || e.Kind != btrlog.ErrUnavailable || e.Unknown || lsn != 0 {
		t.Fatalf("append that waits in vain: LSN %d, %v", lsn, err)
	}
	if n := w.Info().Next; n != window+1 {
		t.Fatalf("a failed append spent an LSN: next is %d", n)
	}
	// Many wait; all get their LSN when there is space again, none twice.
	const waiting = 40
	var mu sync.Mutex
	var wg sync.WaitGroup
	got := map[btrlog.LSN]string{}
	for i := range waiting {
		wg.Go(func() {
			rec := fmt.Sprintf("waiter %d", i)
			lsn, err := w.Append(t.Context(), []byte(rec))
			if err == nil {
				err = w.Sync(t.Context(), lsn)
			}
			if err != nil {
				t.Errorf("append that waited for space: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got[lsn] = rec
		})
	}
	c.start("n1")
	wg.Wait()
	if len(got) != waiting {
		t.Fatalf("%d LSNs for %d records", len(got), waiting)
	}
	r := c.reader(c.client(), "small")
	for lsn, rec := range got {
		if data, err := r.Read(t.Context(), lsn, nil); err != nil || string(data) != rec {
			t.Fatalf("LSN %d: %q, %v; want %q", lsn, data, err, rec)
		}
	}
	if _, _, err := w.AppendBatch(t.Context(), make([][]byte, window+1)); !errors.Is(err, btrlog.ErrTooLarge) {
		t.Fatalf("batch above the window: %v", err)
	}
}

func TestSyncOfAnotherLSN(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	if err := w.Sync(t.Context(), 1); !errors.Is(err, btrlog.ErrInvalid) {
		t.Fatalf("sync of an LSN that was not given out: %v", err)
	}
	fill(t, w, 3)
	c.stop("n1")
	c.stop("n2")
	lsn, err := w.Append(t.Context(), payload(4))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var e *btrlog.Error
	if err := w.Sync(ctx, lsn); !errors.As(err, &e) || !e.Unknown || !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled sync: %v", err)
	}
	// A cancelled wait is no cancelled append: the LSN is spent and commits.
	c.start("n2")
	if err := w.Sync(t.Context(), lsn); err != nil {
		t.Fatal(err)
	}
	if last := fill(t, w, 1); last != lsn+1 {
		t.Fatalf("the next LSN was %d, want %d", last, lsn+1)
	}
}

func TestOnCommit(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	const n = 500
	var last, running atomic.Uint64
	reached := make(chan struct{})
	w.OnCommit(func(lsn btrlog.LSN) {
		if running.Add(1) != 1 {
			t.Error("two calls at once")
		}
		defer running.Store(0)
		if uint64(lsn) <= last.Load() {
			t.Errorf("call with %d after %d", lsn, last.Load())
		}
		if lsn < n { // a callback may append
			if _, err := w.TryAppend([]byte("from the callback")); err != nil && !errors.Is(err, btrlog.ErrWindowFull) {
				t.Error(err)
			}
		} else if last.Load() < n {
			close(reached)
		}
		last.Store(uint64(lsn))
	})
	for range n {
		if _, err := w.Append(t.Context(), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	<-reached
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if btrlog.LSN(last.Load()) != w.Committed() {
		t.Fatalf("the last call was with %d, committed is %d", last.Load(), w.Committed())
	}
}

func TestClientCloseWakesEverybody(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	last := fill(t, w, 5)
	r := c.reader(client, "orders")
	c.stop("n1")
	c.stop("n2")
	lsn, err := w.Append(t.Context(), payload(last+1))
	if err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 3)
	ready := make(chan struct{}, 1)
	go func() { ends <- w.Sync(context.Background(), lsn) }()
	go func() {
		_, err := client.OpenWriter(context.Background(), "orders", btrlog.WriterOptions{})
		ends <- err
	}()
	go func() {
		for rec, err := range r.Follow(context.Background(), 1) {
			if err != nil {
				ends <- err
				return
			}
			if rec.LSN == 1 {
				ready <- struct{}{}
			}
		}
	}()
	<-ready
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-ends; !errors.Is(err, btrlog.ErrClosed) && !errors.Is(err, btrlog.ErrFenced) {
			t.Errorf("a wait that Close ended: %v", err)
		}
	}
	if _, err := client.OpenReader(t.Context(), "orders"); !errors.Is(err, btrlog.ErrClosed) {
		t.Errorf("open reader after Close: %v", err)
	}
	if _, err := client.Create(t.Context(), "other", btrlog.LogOptions{}); !errors.Is(err, btrlog.ErrClosed) {
		t.Errorf("create after Close: %v", err)
	}
	// The open may have fenced the writer before Close came, which is then what the writer says.
	if _, err := w.Append(t.Context(), nil); !errors.Is(err, btrlog.ErrClosed) && !errors.Is(err, btrlog.ErrFenced) {
		t.Errorf("append after Close: %v", err)
	}
}

func TestCloseLeavesNothingBehind(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	c.create(c.client(), "orders", btrlog.LogOptions{})
	use := func() {
		client, err := btrlog.Connect(t.Context(), btrlog.Config{Store: c.store, Logger: testLog(t), MaxDatagramBytes: 1400})
		if err != nil {
			t.Fatal(err)
		}
		w := c.writer(client, "orders")
		w.OnCommit(func(btrlog.LSN) {})
		fill(t, w, 20)
		lsn, err := w.Append(t.Context(), payload(w.Info().Next))
		if err != nil {
			t.Fatal(err)
		}
		r := c.reader(client, "orders")
		for rec, err := range r.Follow(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			if rec.LSN >= lsn {
				break
			}
		}
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
	}
	use() // what the first use makes for good, such as connections of the nodes to themselves
	mine := func() int {
		buf := make([]byte, 1<<20)
		return strings.Count(string(buf[:runtime.Stack(buf, true)]), "btrlog.(*")
	}
	goroutines, files := mine(), descriptors(t)
	for range 5 {
		use()
	}
	eventually(t, fmt.Sprintf("goroutines fall to %d", goroutines), func() bool { return mine() <= goroutines })
	eventually(t, fmt.Sprintf("descriptors fall to %d", files), func() bool { return descriptors(t) <= files })
}

func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestManyLogs has the one receiver serve many logs, and nodes of several shards.
func TestManyLogs(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3", "n4")
	client := c.client()
	const logs, records = 40, 30
	var wg sync.WaitGroup
	for i := range logs {
		wg.Go(func() {
			name := fmt.Sprintf("log-%d", i)
			if _, err := client.Create(t.Context(), name, btrlog.LogOptions{}); err != nil {
				t.Error(err)
				return
			}
			w, err := client.OpenWriter(t.Context(), name, btrlog.WriterOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			for n := range records {
				lsn, err := w.Append(t.Context(), fmt.Appendf(nil, "%s %d", name, n+1))
				if err == nil && n%10 == 9 {
					err = w.Sync(t.Context(), lsn)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
			if err := w.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	reader := c.client()
	used := map[string]int{}
	for i := range logs {
		name := fmt.Sprintf("log-%d", i)
		info, err := reader.Info(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range info.Nodes {
			used[n.Name]++
		}
		n := 0
		for rec, err := range c.reader(reader, name).Scan(t.Context(), 0, 0) {
			if n++; err != nil || string(rec.Data) != fmt.Sprintf("%s %d", name, n) {
				t.Fatalf("%s: LSN %d %q, %v", name, rec.LSN, rec.Data, err)
			}
		}
		if n != records {
			t.Fatalf("%s has %d records, want %d", name, n, records)
		}
	}
	for n, count := range used {
		if count < logs/2 {
			t.Errorf("node %s has only %d of %d logs", n, count, logs)
		}
	}
}
