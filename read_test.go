package btrlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/objstore"
)

func TestScanFromArchiveToNodes(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{SegmentBytes: 64 << 10, Window: 16})
	w := c.writer(client, "orders")
	record := func(x btrlog.LSN) []byte { return bytes.Repeat(fmt.Appendf(nil, "%8d.", x), 100) }
	const n = 1000
	for x := btrlog.LSN(1); x <= n; x++ {
		if _, err := w.Append(t.Context(), record(x)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Sync(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	for name := range c.nodes {
		eventually(t, "the nodes have dropped what is archived", func() bool { return c.dropped(name) >= 800 })
	}
	r := c.reader(c.client(), "orders")
	scan := func(from, to btrlog.LSN) {
		t.Helper()
		next := max(from, 1)
		for rec, err := range r.Scan(t.Context(), from, to) {
			if err != nil {
				t.Fatalf("scan at LSN %d: %v", next, err)
			}
			if rec.LSN != next || !bytes.Equal(rec.Data, record(next)) {
				t.Fatalf("LSN %d, %.20q; want %d", rec.LSN, rec.Data, next)
			}
			next++
		}
		if want := max(to, 1); to != 0 && next != want+1 || to == 0 && next != n+1 {
			t.Fatalf("scan ended before LSN %d", next)
		}
	}
	before := c.store.archiveGets.Load()
	scan(0, 0)
	if c.store.archiveGets.Load() == before {
		t.Fatal("nothing was read from the archive, so this test proves nothing: keep less on the nodes")
	}
	scan(317, 318)
	scan(n-1, n)
	for _, x := range []btrlog.LSN{1, 500, n} {
		if data, err := r.Read(t.Context(), x, nil); err != nil || !bytes.Equal(data, record(x)) {
			t.Fatalf("read of LSN %d: %.20q, %v", x, data, err)
		}
	}
	// A consumer that leaves early, and one that asks for what is not there yet.
	for rec, err := range r.Scan(t.Context(), 1, 0) {
		if err != nil || rec.LSN != 1 {
			t.Fatal(rec.LSN, err)
		}
		break
	}
	var last error
	count := 0
	for _, err := range r.Scan(t.Context(), n-1, n+5) {
		if err != nil {
			last = err
			break
		}
		count++
	}
	var e *btrlog.Error
	if !errors.As(last, &e) || e.Kind != btrlog.ErrNotFound || e.From != n+1 || count != 2 {
		t.Fatalf("scan beyond the tail: %d records, %v", count, last)
	}
	// Trimmed is not lost, and a loss says which LSNs.
	if err := w.Trim(t.Context(), n+2); !errors.Is(err, btrlog.ErrInvalid) {
		t.Fatalf("trim above the tail: %v", err)
	}
	if err := w.Trim(t.Context(), 200); err != nil {
		t.Fatal(err)
	}
	// The process that trimmed sees it at once, another when it looks at the record next: a new reader does.
	_, err := c.reader(client, "orders").Read(t.Context(), 199, nil)
	if !errors.As(err, &e) || e.Kind != btrlog.ErrTrimmed || e.To != 199 {
		t.Fatalf("read below the trim point: %v", err)
	}
	if info, err := client.Info(t.Context(), "orders"); err != nil || info.TrimBefore != 200 {
		t.Fatalf("info: %+v, %v", info, err)
	}
	r = c.reader(c.client(), "orders")
	if _, err := r.Read(t.Context(), 1, nil); !errors.Is(err, btrlog.ErrTrimmed) {
		t.Fatalf("read below the trim point by a new reader: %v", err)
	}
	scanTrimmed := btrlog.LSN(200)
	for rec, err := range r.Scan(t.Context(), 0, 0) {
		if err != nil || rec.LSN != scanTrimmed {
			t.Fatalf("oldest untrimmed: LSN %d, %v", rec.LSN, err)
		}
		scanTrimmed++
	}
	c.lose(t, 400)
	r = c.reader(c.client(), "orders")
	next := btrlog.LSN(200)
	for rec, err := range r.Scan(t.Context(), 200, 900) {
		if err == nil {
			if rec.LSN != next {
				t.Fatalf("LSN %d, want %d", rec.LSN, next)
			}
			next++
			continue
		}
		if !errors.As(err, &e) || e.Kind != btrlog.ErrDataLoss || e.From != next || e.From > 400 || e.To < 400 {
			t.Fatalf("scan over a lost object at LSN %d: %v", next, err)
		}
		t.Logf("lost: %v", err)
		next = e.To + 1
	}
	if next > 800 {
		t.Fatalf("the loss reaches to LSN %d", next)
	}
	scan(next, n) // behind it everything is there
}

// lose deletes the archived objects that hold LSN x.
func (c *cluster) lose(t *testing.T, x btrlog.LSN) {
	t.Helper()
	lost := 0
	for o, err := range objstore.All(t.Context(), c.inner, "arch/") {
		if err != nil {
			t.Fatal(err)
		}
		if first, last, ok := rangeOf(o.Key); ok && first <= x && x <= last {
			if err := c.inner.Delete(t.Context(), o.Key); err != nil {
				t.Fatal(err)
			}
			lost++
		}
	}
	if lost == 0 {
		t.Fatalf("no object holds LSN %d", x)
	}
}

func TestConnectByNodesAlone(t *testing.T) {
	c := newClusterAt(t, "some/root", "n1", "n2", "n3")
	var addresses []string
	for _, n := range c.nodes {
		addresses = append(addresses, n.Address())
	}
	slices.Sort(addresses)
	client, err := btrlog.Connect(t.Context(), btrlog.Config{Nodes: append([]string{"127.0.0.1:1"}, addresses...), Logger: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	last := fill(t, w, 50)
	check(t, c.reader(client, "orders"), 1, last)
	if c.store.requests.Load() != 0 {
		t.Fatal("the client has used the store by itself")
	}
	nodes, err := client.Nodes(t.Context())
	if err != nil || !names(nodes, "n1", "n2", "n3") {
		t.Fatalf("nodes: %+v, %v", nodes, err)
	}
}

func TestTailWithoutWriter(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	r := c.reader(c.client(), "orders")
	if tail, err := r.Tail(t.Context()); err != nil || tail != 0 {
		t.Fatalf("tail of a log that nobody opened: %d, %v", tail, err)
	}
	dying := c.client()
	w := c.writer(dying, "orders")
	last := fill(t, w, 20)
	if tail, err := r.Tail(t.Context()); err != nil || tail != last {
		t.Fatalf("tail: %d, %v; want %d", tail, err, last)
	}
	// One more on one node alone, and its writer is gone.
	c.stop("n2")
	c.stop("n3")
	if _, err := w.Append(t.Context(), payload(last+1)); err != nil {
		t.Fatal(err)
	}
	impatient := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := r.Tail(ctx)
		return err
	}
	if err := impatient(); !errors.Is(err, btrlog.ErrUnavailable) {
		t.Fatalf("one node of three told a tail: %v", err)
	}
	eventually(t, "n1 has the record", func() bool { return c.holds("n1", last+1) })
	if err := dying.Close(); err != nil {
		t.Fatal(err)
	}
	c.start("n2")
	var e *btrlog.Error
	eventually(t, "both nodes answer in time, and decide nothing", func() bool {
		err := impatient()
		if !errors.As(err, &e) || e.Kind != btrlog.ErrUnavailable || !slices.Contains(e.Missing, "n3") {
			t.Fatalf("an undecided tail: %v", err)
		}
		return e.From == last+1
	})
	c.start("n3")
	if tail, err := r.Tail(t.Context()); err != nil || tail != last {
		t.Fatalf("tail with one copy and two nodes that have none: %d, %v; want %d", tail, err, last)
	}
	if _, err := r.Read(t.Context(), last+1, nil); !errors.Is(err, btrlog.ErrNotFound) {
		t.Fatalf("read of what is not committed: %v", err)
	}
	// The next open decides: one copy among the answers is enough to be in. With n3 away the answers are those of n1 and n2.
	c.stop("n3")
	w = c.writer(c.client(), "orders")
	if w.Info().Recovered != last+1 {
		t.Fatalf("recovered %d, want %d", w.Info().Recovered, last+1)
	}
	check(t, r, 1, last+1)
}

// TestArchiveWithoutNodes: with every node gone, what objects prove by themselves can still be read (A3), and nothing else.
func TestArchiveWithoutNodes(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{SegmentBytes: 64 << 10, Window: 16})
	w := c.writer(client, "orders")
	record := func(x btrlog.LSN) []byte { return bytes.Repeat(fmt.Appendf(nil, "%8d.", x), 100) }
	const n, archived = 300, 200
	for x := btrlog.LSN(1); x <= n; x++ {
		if _, err := w.Append(t.Context(), record(x)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Sync(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a node has dropped what is archived", func() bool { return c.dropped("n1") >= archived })
	r := c.reader(c.client(), "orders")
	for _, name := range []string{"n1", "n2", "n3"} {
		c.stop(name)
	}
	next := btrlog.LSN(1)
	for rec, err := range r.Scan(t.Context(), 1, archived) {
		if err != nil || rec.LSN != next || !bytes.Equal(rec.Data, record(next)) {
			t.Fatalf("scan at LSN %d: %d, %.20q, %v", next, rec.LSN, rec.Data, err)
		}
		next++
	}
	if next != archived+1 {
		t.Fatalf("the scan ended before LSN %d", next)
	}
	if data, err := r.Read(t.Context(), 100, nil); err != nil || !bytes.Equal(data, record(100)) {
		t.Fatalf("read of an archived record without nodes: %.20q, %v", data, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := r.Read(ctx, n, nil); !errors.Is(err, btrlog.ErrUnavailable) {
		t.Fatalf("read of a record that only nodes hold, without nodes: %v", err)
	}
}
