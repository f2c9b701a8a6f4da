package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/btrlog/btrlog"
)

// TestOnePutForEachSegment: N full segments on three healthy nodes are N objects and N PUT attempts, counted in front of the
// store (A2; paper 4.1, idempotent segment flushes).
func TestOnePutForEachSegment(t *testing.T) {
	const segments, perSegment = 24, 16
	c := newCluster(t, "a", "b", "c")
	client := c.client()
	if _, err := client.Create(c.ctx, "full", btrlog.LogOptions{SegmentBytes: 64 << 10}); err != nil {
		t.Fatal(err)
	}
	w := c.writer(client, "full")
	before := c.store.mark()
	rec := bytes.Repeat([]byte{'x'}, (64<<10)/perSegment-4) // with its frame of 4 bytes sixteen of them fill a segment exactly
	for range segments * perSegment {
		if _, err := w.Append(c.ctx, rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(c.ctx); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		c.await("node "+n.name+" to know all segments archived", func() bool { return n.archived(c.ctx, "full") == segments*perSegment })
	}
	puts := c.store.since(before, func(q request) bool { return segment(q) && q.Method == "PUT" })
	objects := map[string]bool{}
	for _, q := range puts {
		objects[q.Key] = true
		if q.Condition != "absent" {
			t.Errorf("PUT of %s without If-None-Match", q.Key)
		}
	}
	looks := c.store.since(before, func(q request) bool { return segment(q) && q.Method != "PUT" || q.Key == "" })
	t.Logf("%d segments: %d objects, %d PUT attempts, %d other requests", segments, len(objects), len(puts), len(looks))
	if len(objects) != segments || len(puts) != segments {
		t.Fatalf("%d segments made %d objects with %d PUT attempts", segments, len(objects), len(puts))
	}
}

// TestRequestsOfATakeover: with Qr nodes up, a takeover makes two compare-and-swaps and reads no segment object; an append
// makes no request at all.
func TestRequestsOfATakeover(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	first := c.client()
	if _, err := first.Create(c.ctx, "moved", btrlog.LogOptions{SegmentBytes: 64 << 10}); err != nil {
		t.Fatal(err)
	}
	w := c.writer(first, "moved")
	var acked btrlog.LSN
	for i := range 300 {
		lsn, err := w.Append(c.ctx, fmt.Appendf(nil, "first writer, record %d %s", i, strings.Repeat(".", 1000)))
		if err != nil {
			t.Fatal(err)
		}
		acked = lsn
	}
	if err := w.Sync(c.ctx, acked); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		c.await("node "+n.name+" to archive something", func() bool { return n.archived(c.ctx, "moved") > 0 })
	}

	second := c.client()
	c.nodes[0].signal(syscall.SIGKILL) // two of three are Qr
	mark := c.store.mark()
	w2 := c.writer(second, "moved")
	swaps := c.store.since(mark, func(q request) bool {
		return q.Method == "PUT" && q.Key == "logs/moved.json"
	})
	reads := c.store.since(mark, func(q request) bool { return q.Method == "GET" && strings.HasPrefix(q.Key, "logs/") })
	gets := c.store.since(mark, func(q request) bool { return q.Method == "GET" && segment(q) })
	t.Logf("takeover with two of three nodes: %d compare-and-swaps, %d reads of the log's record, %d reads of segments", len(swaps), len(reads), len(gets))
	if len(swaps) != 2 || len(gets) != 0 || len(reads) > 1 {
		t.Fatalf("takeover: swaps %v, record reads %v, segment reads %v", swaps, reads, gets)
	}
	for _, q := range swaps {
		if q.Condition != "match" {
			t.Errorf("the log's record was written without If-Match: %v", q)
		}
	}
	if got := w2.Info().Recovered; got != acked {
		t.Fatalf("the second writer found tail %d, acknowledged were %d", got, acked)
	}

	mark = c.store.mark()
	for i := range 200 {
		lsn, err := w2.Append(c.ctx, fmt.Appendf(nil, "second writer, record %d", i))
		if err != nil {
			t.Fatal(err)
		}
		if err := w2.Sync(c.ctx, lsn); err != nil {
			t.Fatal(err)
		}
	}
	meta := c.store.since(mark, func(q request) bool { return q.Key != "" && !segment(q) })
	if len(meta) != 0 {
		t.Fatalf("200 appends made metadata requests: %v", meta)
	}

	// The older writer is fenced at its next append, and says so.
	lsn, err := w.Append(c.ctx, []byte("too late"))
	if err == nil {
		err = w.Sync(c.ctx, lsn)
	}
	if !errors.Is(err, btrlog.ErrFenced) {
		t.Fatalf("the older writer's append ended with %v, want ErrFenced", err)
	}
	r, err := second.OpenReader(c.ctx, "moved")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for rec, err := range r.Scan(c.ctx, 1, acked+200) {
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("first writer, record %d ", n)
		if rec.LSN > acked {
			want = fmt.Sprintf("second writer, record %d", n-300)
		}
		if !strings.HasPrefix(string(rec.Data), want) {
			t.Fatalf("LSN %d is %.40q, want %q", rec.LSN, rec.Data, want)
		}
		n++
	}
	if n != 500 {
		t.Fatalf("read %d records, want 500", n)
	}
}
