package btrlog_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/objstore"
)

// archived counts a log's objects that end below an LSN.
func (c *cluster) archived(log btrlog.LogID, below btrlog.LSN) int {
	c.t.Helper()
	n := 0
	for o, err := range objstore.All(c.t.Context(), c.inner, "arch/"+log.String()+"/") {
		var label, first, last btrlog.LSN
		if err == nil {
			_, err = fmt.Sscanf(o.Key, "arch/"+log.String()+"/%x/%x-%x-", &label, &first, &last)
		}
		if err != nil {
			c.t.Fatal(o.Key, err)
		}
		if last < below {
			n++
		}
	}
	return n
}

const anyLSN = ^btrlog.LSN(0)

func newCollectingCluster(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	c.collectEvery = 20 * time.Millisecond
	for _, n := range []string{"n1", "n2", "n3"} {
		c.start(n)
	}
	return c
}

// fillSegments appends until n objects are in the archive, and returns the last LSN.
func fillSegments(t *testing.T, c *cluster, w *btrlog.Writer, n int) btrlog.LSN {
	t.Helper()
	record := bytes.Repeat([]byte("x"), 8<<10)
	id := w.Info().ID
	want := c.archived(id, anyLSN) + n
	for range n*8 + 8 { // segments of 64 KiB
		if _, err := w.Append(t.Context(), record); err != nil {
			t.Fatal(err)
		}
	}
	last := w.Info().Next - 1
	if err := w.Sync(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	eventually(t, fmt.Sprintf("%d objects are archived", want), func() bool { return c.archived(id, anyLSN) >= want })
	return last
}

var smallSegments = btrlog.LogOptions{SegmentBytes: 64 << 10, Window: 4}

// A trim deletes the objects below it, and a reader that had listed them says trimmed, not lost.
func TestTrimmedObjectsAreDeleted(t *testing.T) {
	c := newCollectingCluster(t)
	client := c.client()
	c.create(client, "orders", smallSegments)
	w := c.writer(client, "orders")
	last := fillSegments(t, c, w, 5)
	for name := range c.nodes {
		eventually(t, "the nodes have dropped what is archived", func() bool { return c.dropped(name) >= 33 })
	}
	old := c.reader(c.client(), "orders")
	if _, err := old.Read(t.Context(), 1, nil); err != nil { // it knows the objects now
		t.Fatal(err)
	}
	if c.archived(w.Info().ID, 33) < 4 {
		t.Fatal("nothing to be deleted, so this test proves nothing")
	}
	if err := w.Trim(t.Context(), 33); err != nil {
		t.Fatal(err)
	}
	eventually(t, "objects below the trim point are gone", func() bool { return c.archived(w.Info().ID, 33) == 0 })
	var e *btrlog.Error
	if _, err := old.Read(t.Context(), 2, nil); !errors.As(err, &e) || e.Kind != btrlog.ErrTrimmed || e.To != 32 {
		t.Errorf("read of a trimmed record whose object is gone: %v", err)
	}
	for _, err := range old.Scan(t.Context(), 1, 0) {
		if !errors.Is(err, btrlog.ErrTrimmed) {
			t.Errorf("scan of trimmed records whose objects are gone: %v", err)
		}
		break
	}
	next := btrlog.LSN(33)
	for rec, err := range old.Scan(t.Context(), 0, 0) {
		if err != nil || rec.LSN != next {
			t.Fatalf("LSN %d, %v; want %d", rec.LSN, err, next)
		}
		next++
	}
	if next != last+1 {
		t.Errorf("scan ended before LSN %d, want %d", next, last+1)
	}
}

// Retention by size moves the trim point by itself, and never above what is archived; a takeover goes on behind it.
func TestRetentionBySize(t *testing.T) {
	c := newCollectingCluster(t)
	client := c.client()
	o := smallSegments
	o.RetainBytes = 3 * 64 << 10
	c.create(client, "orders", o)
	w := c.writer(client, "orders")
	last := fillSegments(t, c, w, 2)
	for i := range 3 {
		last = fillSegmentsUnderRetention(t, w)
		eventually(t, "the trim point follows", func() bool {
			info, err := client.Info(t.Context(), "orders")
			if err != nil {
				t.Fatal(err)
			}
			return info.TrimBefore > last-60 && c.archived(info.ID, info.TrimBefore) == 0
		})
		r := c.reader(c.client(), "orders")
		var first btrlog.LSN
		n := 0
		for rec, err := range r.Scan(t.Context(), 0, last) {
			if err != nil {
				t.Fatal(err)
			}
			if first == 0 {
				first = rec.LSN
			}
			n++
		}
		if kept := n * 8 << 10; kept < 3*64<<10 {
			t.Errorf("round %d: only %d bytes from LSN %d to %d were kept, %d are to be", i, kept, first, last, o.RetainBytes)
		}
		w = c.writer(client, "orders")
		if got := w.Info().Recovered; got != last {
			t.Fatalf("recovered %d, want %d", got, last)
		}
	}
}

func fillSegmentsUnderRetention(t *testing.T, w *btrlog.Writer) btrlog.LSN {
	t.Helper()
	record := bytes.Repeat([]byte("x"), 8<<10)
	for range 64 {
		if _, err := w.Append(t.Context(), record); err != nil {
			t.Fatal(err)
		}
	}
	last := w.Info().Next - 1
	if err := w.Sync(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	return last
}

// Retention by age trims what the store has had for long enough.
func TestRetentionByAge(t *testing.T) {
	c := newCollectingCluster(t)
	client := c.client()
	o := smallSegments
	o.RetainAge = time.Millisecond
	c.create(client, "orders", o)
	w := c.writer(client, "orders")
	last := fillSegmentsUnderRetention(t, w)
	eventually(t, "all that is archived is trimmed", func() bool {
		info, err := client.Info(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		return info.TrimBefore > last-16 && c.archived(info.ID, anyLSN) == 0
	})
	info, err := client.Info(t.Context(), "orders")
	if err != nil || info.TrimBefore > last+1 {
		t.Fatalf("trim point %d above the tail %d, %v", info.TrimBefore, last, err)
	}
	for rec, err := range c.reader(client, "orders").Scan(t.Context(), 0, last) {
		if err != nil {
			t.Fatalf("LSN %d: %v", rec.LSN, err)
		}
	}
}

// A deleted log's objects go, also of one whose name was taken again, and no other log's.
func TestDeletedLogsObjectsAreDeleted(t *testing.T) {
	c := newCollectingCluster(t)
	client := c.client()
	c.create(client, "kept", smallSegments)
	fillSegments(t, c, c.writer(client, "kept"), 2)
	old := c.create(client, "orders", smallSegments)
	fillSegments(t, c, c.writer(client, "orders"), 3)
	if err := client.Delete(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	c.create(client, "orders", smallSegments)
	w := c.writer(client, "orders")
	eventually(t, "the deleted log's objects are gone", func() bool { return c.archived(old.ID, anyLSN) == 0 })
	last := fillSegments(t, c, w, 1)
	if kept, err := client.Info(t.Context(), "kept"); err != nil || c.archived(kept.ID, anyLSN) < 2 {
		t.Errorf("another log's objects are gone: %v", err)
	}
	n := btrlog.LSN(0)
	for rec, err := range c.reader(c.client(), "orders").Scan(t.Context(), 1, last) {
		if n++; err != nil || rec.LSN != n {
			t.Fatalf("LSN %d, %v; want %d", rec.LSN, err, n)
		}
	}
	if n != last {
		t.Errorf("%d records of the new log, want %d", n, last)
	}
}
