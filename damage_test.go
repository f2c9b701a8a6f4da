package btrlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/objstore"
)

// TestDamagedObjectIsALoss: an archived object with a flipped byte does not become readable by waiting. When no node has its
// records any more, a scan and a follower say ErrDataLoss with the range, and what lies behind it can be read (A5, R18).
func TestDamagedObjectIsALoss(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{SegmentBytes: 64 << 10, Window: 16})
	w := c.writer(client, "orders")
	record := func(x btrlog.LSN) []byte { return bytes.Repeat(fmt.Appendf(nil, "%8d.", x), 100) }
	const n, archived, hit = 400, 300, 100
	for x := btrlog.LSN(1); x <= n; x++ {
		if _, err := w.Append(t.Context(), record(x)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Sync(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	for name := range c.nodes {
		eventually(t, "the nodes have dropped what is archived", func() bool { return c.dropped(name) >= archived })
	}
	flip(t, c.inner, hit)

	r := c.reader(c.client(), "orders")
	var lost *btrlog.Error
	read := func(name string, seq func(func(btrlog.Record, error) bool), next btrlog.LSN) btrlog.LSN {
		t.Helper()
		for rec, err := range seq {
			if err != nil {
				if !errors.As(err, &lost) || !errors.Is(err, btrlog.ErrDataLoss) || lost.From > hit || lost.To < hit {
					t.Fatalf("%s at LSN %d: %v, want ErrDataLoss around LSN %d", name, next, err, hit)
				}
				return lost.To + 1
			}
			if rec.LSN != next || !bytes.Equal(rec.Data, record(next)) {
				t.Fatalf("%s: LSN %d, %.20q; want %d", name, rec.LSN, rec.Data, next)
			}
			next++
		}
		return next
	}
	next := read("scan", r.Scan(t.Context(), 1, n), 1)
	if next > archived {
		t.Fatalf("the loss of one object reaches to LSN %d", next-1)
	}
	if end := read("scan behind the loss", r.Scan(t.Context(), next, n), next); end != n+1 {
		t.Fatalf("the scan behind the loss ended at LSN %d", end-1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if got := read("follow", r.Follow(ctx, 1), 1); got != next {
		t.Fatalf("the follower found the loss to end at %d, the scan at %d", got-1, next-1)
	}
	if _, err := r.Read(t.Context(), hit, nil); !errors.Is(err, btrlog.ErrDataLoss) {
		t.Fatalf("read of a record in a damaged object: %v", err)
	}
}

// flip damages the archived objects that hold LSN x.
func flip(t *testing.T, store objstore.Store, x btrlog.LSN) {
	t.Helper()
	flipped := 0
	for o, err := range objstore.All(t.Context(), store, "arch/") {
		if err != nil {
			t.Fatal(err)
		}
		first, last, ok := rangeOf(o.Key)
		if !ok || x < first || x > last {
			continue
		}
		body, info, err := objstore.ReadAll(t.Context(), store, o.Key, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for i := 100; i < len(body); i += 1000 {
			body[i] ^= 1
		}
		if _, err := store.Put(t.Context(), o.Key, body, info.Metadata, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		flipped++
	}
	if flipped == 0 {
		t.Fatalf("no object holds LSN %d", x)
	}
}
