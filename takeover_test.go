package btrlog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
)

func TestTakeoverFencesAndLosesNothing(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	c.create(c.client(), "orders", btrlog.LogOptions{})
	r := c.reader(c.client(), "orders")
	var total btrlog.LSN
	acked := map[btrlog.LSN]string{}
	for reign := range 5 {
		old := c.writer(c.client(), "orders")
		if old.Info().Recovered < total {
			t.Fatalf("reign %d recovered %d, %d were acknowledged", reign, old.Info().Recovered, total)
		}
		total = old.Info().Recovered
		// Appends run on while the next writer takes over.
		var mu sync.Mutex
		var wg sync.WaitGroup
		started := make(chan struct{})
		var once sync.Once
		for g := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					rec := fmt.Sprintf("reign %d goroutine %d record %d", reign, g, i)
					lsn, err := old.Append(t.Context(), []byte(rec))
					if err == nil {
						err = old.Sync(t.Context(), lsn)
					}
					if err != nil {
						if !errors.Is(err, btrlog.ErrFenced) {
							t.Errorf("append or sync of a fenced writer: %v", err)
						}
						return
					}
					mu.Lock()
					acked[lsn] = rec
					total = max(total, lsn)
					mu.Unlock()
					if i == 20 {
						once.Do(func() { close(started) })
					}
				}
			})
		}
		<-started
		next := c.writer(c.client(), "orders")
		<-old.Done()
		wg.Wait()
		if !errors.Is(old.Err(), btrlog.ErrFenced) {
			t.Fatalf("the old writer ended with %v", old.Err())
		}
		if err := old.Close(t.Context()); !errors.Is(err, btrlog.ErrFenced) {
			t.Fatalf("close of a fenced writer: %v", err)
		}
		if next.Info().Recovered < total {
			t.Fatalf("recovered %d, acknowledged up to %d", next.Info().Recovered, total)
		}
		if err := next.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got := map[btrlog.LSN]string{}
	for rec, err := range r.Scan(t.Context(), 0, 0) {
		if err != nil {
			t.Fatal(err)
		}
		got[rec.LSN] = string(rec.Data)
	}
	for lsn, rec := range acked {
		if got[lsn] != rec {
			t.Errorf("LSN %d is %q, acknowledged was %q", lsn, got[lsn], rec)
		}
	}
}

func TestTakeoverCostsTwoSwapsAndAppendsNone(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	fill(t, w, 200)
	for range 3 {
		if err := w.Close(t.Context()); err != nil { // or its own look at the record would be counted
			t.Fatal(err)
		}
		swaps, gets := c.store.swaps.Load(), c.store.archiveGets.Load()
		w = c.writer(client, "orders")
		if n := c.store.swaps.Load() - swaps; n != 2 {
			t.Fatalf("a takeover made %d compare-and-swaps, want 2", n)
		}
		if n := c.store.archiveGets.Load() - gets; n != 0 {
			t.Fatalf("a takeover read %d archived objects", n)
		}
		before := c.store.requests.Load()
		last := fill(t, w, 500)
		if n := c.store.requests.Load() - before; n != 0 {
			t.Fatalf("500 appends made %d metadata requests", n)
		}
		if w.Committed() != last {
			t.Fatalf("committed %d, want %d", w.Committed(), last)
		}
	}
}

// TestTailComesWithThePromise: an open that finds a short tail sends no message over HTTP, which is where a recovery read goes:
// the bytes come in the datagram of the promise, or in the one behind it.
func TestTailComesWithThePromise(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	c.create(c.client(), "orders", btrlog.LogOptions{})
	dead, err := btrlog.Connect(t.Context(), btrlog.Config{Store: c.store, Logger: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	w := c.writer(dead, "orders")
	fill(t, w, 10)
	c.stop("n2")
	c.stop("n3")
	const tail = 12 // below what is told in one datagram
	for i := range tail {
		if _, err := w.Append(t.Context(), fmt.Appendf(nil, "tail %d", i)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "n1 to hold the tail", func() bool { return c.holds("n1", 10+tail) })
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	c.start("n2")
	next := c.client()
	messages := func() uint64 { return c.nodes["n1"].Status().HTTP.Served + c.nodes["n2"].Status().HTTP.Served }
	before := messages()
	w = c.writer(next, "orders")
	defer w.Close(t.Context())
	info := w.Info()
	if info.Repaired != tail || info.Recovered != 10+tail {
		t.Errorf("recovered %d, repaired %d", info.Recovered, info.Repaired)
	}
	// What is not answered within 30 ms, for instance because the disk is busy, is sent again over HTTP too.
	if n := messages() - before; n != 0 && info.Opened.Total() < 30*time.Millisecond {
		t.Errorf("the open sent %d messages over HTTP, times %+v", n, info.Opened)
	}
	r := c.reader(next, "orders")
	for i := range tail {
		got, err := r.Read(t.Context(), btrlog.LSN(11+i), nil)
		if err != nil || string(got) != fmt.Sprintf("tail %d", i) {
			t.Errorf("LSN %d is %q, %v", 11+i, got, err)
		}
	}
}

func TestOneNodeDownAndBack(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	fill(t, w, 50)
	c.stop("n2")
	last := fill(t, w, 100)
	c.start("n2")
	last = max(last, fill(t, w, 1))
	// What it missed is sent again: with another node down, the one that was away makes the quorum.
	c.stop("n3")
	last = fill(t, w, 100)
	c.stop("n1")
	c.start("n3")
	last = fill(t, w, 20)
	c.start("n1")
	check(t, c.reader(c.client(), "orders"), 1, last)
}

func TestTooFewNodes(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client(func(cfg *btrlog.Config) { cfg.Timeout = 3 * time.Second })
	if _, err := client.Create(t.Context(), "wide", btrlog.LogOptions{N: 5}); !errors.Is(err, btrlog.ErrUnavailable) || !strings.Contains(err.Error(), "5 nodes are needed, 3 are registered") {
		t.Fatalf("create over too few nodes: %v", err)
	}
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	last := fill(t, w, 10)
	c.stop("n1")
	c.stop("n2")
	lsn, err := w.Append(t.Context(), payload(last+1))
	if err != nil {
		t.Fatal(err)
	}
	var e *btrlog.Error
	if err := w.Sync(t.Context(), lsn); !errors.As(err, &e) || e.Kind != btrlog.ErrUnavailable || !e.Unknown || e.From != lsn || e.To != lsn || !slices.Contains(e.Missing, "n1") || !slices.Contains(e.Missing, "n2") {
		t.Fatalf("sync without a quorum: %+v", err)
	}
	// It ends a wait, not the append.
	c.start("n1")
	if err := w.Sync(t.Context(), lsn); err != nil {
		t.Fatal(err)
	}
	c.stop("n1")
	_, err = client.OpenWriter(t.Context(), "orders", btrlog.WriterOptions{})
	if !errors.As(err, &e) || e.Kind != btrlog.ErrUnavailable || !e.Retryable || !slices.Contains(e.Missing, "n1") || !slices.Contains(e.Missing, "n2") || slices.Contains(e.Missing, "n3") {
		t.Fatalf("open without a quorum: %+v", err)
	}
	c.start("n1")
	if w := c.writer(client, "orders"); w.Info().Recovered != lsn {
		t.Fatalf("recovered %d, want %d", w.Info().Recovered, lsn)
	}
}

func TestReplaceNode(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3", "n4")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{Nodes: []string{"n1", "n2", "n3"}})
	w := c.writer(client, "orders")
	fill(t, w, 300)
	c.stop("n2")
	last := fill(t, w, 50)
	w, err := client.OpenWriter(t.Context(), "orders", btrlog.WriterOptions{Replace: map[string]string{"n2": "n4"}})
	if err != nil {
		t.Fatal(err)
	}
	if i := w.Info(); i.Recovered != last || !names(i.Nodes, "n1", "n3", "n4") {
		t.Fatalf("after the replacement: %+v", i)
	}
	last = fill(t, w, 50)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The newcomer has everything: it serves with one of the old ones alone, whichever.
	r := c.reader(c.client(), "orders")
	c.stop("n1")
	check(t, r, 1, last)
	// A wiped disk comes back by the same name.
	c.start("n1")
	c.stop("n3")
	c.wipe("n3")
	c.start("n3")
	w, err = client.OpenWriter(t.Context(), "orders", btrlog.WriterOptions{Replace: map[string]string{"n3": "n3"}})
	if err != nil {
		t.Fatal(err)
	}
	last = fill(t, w, 50)
	c.stop("n1")
	last = fill(t, w, 10)
	check(t, r, 1, last)
	if _, err := client.OpenWriter(t.Context(), "orders", btrlog.WriterOptions{Replace: map[string]string{"n2": "n4"}}); !errors.Is(err, btrlog.ErrInvalid) {
		t.Fatalf("replacing a node that the log does not have: %v", err)
	}
	fill(t, w, 1) // the refusal has not cost the writer its log
}

func names(nodes []btrlog.NodeInfo, want ...string) bool {
	var got []string
	for _, n := range nodes {
		got = append(got, n.Name)
	}
	slices.Sort(got)
	return slices.Equal(got, want)
}

func TestReopenLive(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3", "n4", "n5")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{Nodes: []string{"n1", "n2", "n3"}})
	w := c.writer(client, "orders")
	var stop atomic.Bool
	var wg sync.WaitGroup
	var count atomic.Int64
	for range 3 {
		wg.Go(func() {
			for !stop.Load() {
				lsn, err := w.Append(t.Context(), []byte("x"))
				if err == nil {
					err = w.Sync(t.Context(), lsn)
				}
				if err != nil {
					t.Errorf("append during a re-open: %v", err)
					return
				}
				count.Add(1)
			}
		})
	}
	at := func(n int64) { eventually(t, "appends go on", func() bool { return count.Load() >= n || t.Failed() }) }
	at(50)
	for _, nodes := range [][]string{{"n1", "n2", "n4"}, {"n1", "n2", "n3", "n4", "n5"}, {"n3", "n4", "n5"}} {
		epoch := w.Info().Epoch
		if err := w.Reopen(t.Context(), btrlog.WriterOptions{Nodes: nodes}); err != nil {
			t.Fatal(err)
		}
		if i := w.Info(); i.Epoch != epoch+1 || !names(i.Nodes, nodes...) {
			t.Fatalf("after the re-open: %+v", i)
		}
		at(count.Load() + 50)
	}
	// A target that does not answer is refused and the writer goes on.
	c.stop("n1")
	c.stop("n2")
	err := w.Reopen(t.Context(), btrlog.WriterOptions{Nodes: []string{"n1", "n2", "n3"}})
	if !errors.Is(err, btrlog.ErrUnavailable) {
		t.Fatalf("re-open on dead nodes: %v", err)
	}
	at(count.Load() + 50)
	stop.Store(true)
	wg.Wait()
	last := w.Committed()
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if last != btrlog.LSN(count.Load()) {
		t.Fatalf("committed %d, %d appends were acknowledged", last, count.Load())
	}
	n := btrlog.LSN(0)
	for rec, err := range c.reader(client, "orders").Scan(t.Context(), 1, last) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; rec.LSN != n || string(rec.Data) != "x" {
			t.Fatalf("LSN %d %q at %d", rec.LSN, rec.Data, n)
		}
	}
	if n != last {
		t.Fatalf("%d records, want %d", n, last)
	}
}

func TestDelete(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	info := c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	last := fill(t, w, 20)
	if _, err := client.Create(t.Context(), "orders", btrlog.LogOptions{}); !errors.Is(err, btrlog.ErrExists) {
		t.Fatalf("create again: %v", err)
	}
	r := c.reader(client, "orders")
	if err := client.Delete(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	lsn, err := w.Append(t.Context(), payload(last+1))
	if err == nil {
		err = w.Sync(t.Context(), lsn)
	}
	if !errors.Is(err, btrlog.ErrNotFound) && !errors.Is(err, btrlog.ErrFenced) {
		t.Fatalf("append to a deleted log: %v", err)
	}
	<-w.Done()
	if _, err := client.OpenWriter(t.Context(), "orders", btrlog.WriterOptions{}); !errors.Is(err, btrlog.ErrNotFound) {
		t.Fatalf("open of a deleted log: %v", err)
	}
	if _, err := r.Tail(t.Context()); !errors.Is(err, btrlog.ErrNotFound) {
		t.Fatalf("tail of a deleted log: %v", err)
	}
	if again := c.create(client, "orders", btrlog.LogOptions{}); again.ID == info.ID {
		t.Fatal("the new log has the old one's id")
	}
	w = c.writer(client, "orders")
	if w.Info().Recovered != 0 {
		t.Fatalf("a new log recovered up to %d", w.Info().Recovered)
	}
	fill(t, w, 3)
	var listed []string
	for l, err := range client.Logs(t.Context(), "ord") {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, l.Name)
	}
	if !slices.Equal(listed, []string{"orders"}) {
		t.Fatalf("logs: %v", listed)
	}
}

func TestFollowAcrossTakeoversAndOutage(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3", "n4")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{Nodes: []string{"n1", "n2", "n3"}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var seen atomic.Uint64
	ended := make(chan error, 1)
	epochs := map[btrlog.LSN]btrlog.Epoch{} // as they were told with the records; of the goroutine until it has ended
	r := c.reader(c.client(), "orders")
	go func() {
		next := btrlog.LSN(1)
		for rec, err := range r.Follow(ctx, 0) {
			if err != nil {
				ended <- err
				return
			}
			if rec.LSN != next || string(rec.Data) != string(payload(next)) {
				ended <- fmt.Errorf("LSN %d %q, want %d", rec.LSN, rec.Data, next)
				return
			}
			epochs[next] = rec.Epoch
			seen.Store(uint64(next))
			next++
		}
		ended <- errors.New("it ended without an error")
	}()
	follows := func(last btrlog.LSN) {
		t.Helper()
		eventually(t, fmt.Sprintf("the follower is at LSN %d", last), func() bool {
			select {
			case err := <-ended:
				t.Fatal(err)
			default:
			}
			return seen.Load() == uint64(last)
		})
	}
	follows(fill(t, c.writer(client, "orders"), 100))
	w := c.writer(client, "orders")
	follows(fill(t, w, 100))
	c.stop("n1")
	follows(fill(t, w, 10))
	w, err := client.OpenWriter(t.Context(), "orders", btrlog.WriterOptions{Replace: map[string]string{"n1": "n4"}})
	if err != nil {
		t.Fatal(err)
	}
	follows(fill(t, w, 10))
	c.stop("n2")
	c.stop("n3")
	c.start("n2")
	c.start("n3")
	follows(fill(t, w, 10))
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("follow ended with %v", err)
	}
	info, err := client.Info(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	reign := func(x btrlog.LSN) (e btrlog.Epoch) {
		for _, h := range info.History {
			if h.Start <= x {
				e = h.Epoch
			}
		}
		return e
	}
	// 0 where the record of the log was not read again yet. A takeover whose read quorum had heard of a lower watermark than the
	// follower repairs what the follower has seen, and counts it to its own reign from then on (P5, P6): never to an earlier one.
	for x, e := range epochs {
		if e != 0 && e != reign(x) && (e > reign(x) || !slices.ContainsFunc(info.History, func(h btrlog.Reign) bool { return h.Epoch == e && h.Start <= x })) {
			t.Errorf("LSN %d was followed as of epoch %d; the history says %d: %+v", x, e, reign(x), info.History)
		}
	}
	for rec, err := range r.Scan(t.Context(), 0, 0) {
		if err != nil || rec.Epoch != reign(rec.LSN) {
			t.Fatalf("scan: LSN %d of epoch %d, want %d, %v", rec.LSN, rec.Epoch, reign(rec.LSN), err)
		}
	}
}

// A node that came back on an empty disk answers, and is not the node that the log knows: an open that fails says so instead
// of asking for it to be started.
func TestReplacedDiskIsNamed(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client(func(cfg *btrlog.Config) { cfg.Timeout = 2 * time.Second })
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	last := fill(t, w, 10)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.stop("n3")
	c.wipe("n3")
	c.start("n3")
	c.stop("n2")
	client = c.client(func(cfg *btrlog.Config) { cfg.Timeout = 2 * time.Second })
	info, err := client.Info(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range info.Nodes {
		if n.Replaced != (n.Name == "n3") {
			t.Errorf("info of %s: replaced is %v", n.Name, n.Replaced)
		}
	}
	const says = `; no answer from n2; n3 (running, but with another data directory than the log knows: once the others answer, adopt it with WriterOptions.Replace{"n3": "n3"})`
	named := func(what string, err error) {
		t.Helper()
		var e *btrlog.Error
		if !errors.As(err, &e) || e.Kind != btrlog.ErrUnavailable || !slices.Equal(e.Missing, []string{"n2", "n3"}) || !slices.Equal(e.Replaced, []string{"n3"}) ||
			!strings.HasSuffix(err.Error(), says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = client.OpenWriter(t.Context(), "orders", btrlog.WriterOptions{})
	named("open", err)
	named("delete", client.Delete(t.Context(), "orders"))
	c.start("n2")
	w, err = client.OpenWriter(t.Context(), "orders", btrlog.WriterOptions{Replace: map[string]string{"n3": "n3"}})
	if err != nil || w.Info().Recovered != last {
		t.Fatalf("open that adopts the node: %v", err)
	}
	if info, err = client.Info(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	for _, n := range info.Nodes {
		if n.Replaced {
			t.Errorf("info after the adoption: %+v", n)
		}
	}
	fill(t, w, 3)
}
