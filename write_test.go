package btrlog_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/btrlog/btrlog"
)

func TestAppendSyncRead(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	if i := w.Info(); i.Epoch != 1 || i.Recovered != 0 || i.Next != 1 || len(i.Nodes) != 3 || i.Qw != 2 || i.Durability != btrlog.Disk {
		t.Fatalf("info of a new log: %+v", i)
	}
	last := fill(t, w, 300)
	if w.Committed() < last {
		t.Fatalf("committed %d after a sync of %d", w.Committed(), last)
	}
	other := c.reader(c.client(), "orders") // without the writer's cache
	check(t, other, 1, last)
	got, err := other.Read(t.Context(), 7, []byte("x"))
	if err != nil || string(got) != "x"+string(payload(7)) {
		t.Fatalf("read: %q, %v", got, err)
	}
	if tail, err := other.Tail(t.Context()); err != nil || tail != last {
		t.Fatalf("tail: %d, %v; want %d", tail, err, last)
	}
	if _, err := other.Read(t.Context(), last+1, nil); !errors.Is(err, btrlog.ErrNotFound) {
		t.Fatalf("read above the tail: %v", err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Append(t.Context(), nil); !errors.Is(err, btrlog.ErrClosed) {
		t.Fatalf("append after close: %v", err)
	}
	if err := w.Sync(t.Context(), last); err != nil {
		t.Fatalf("sync of what was committed, after close: %v", err)
	}
	w = c.writer(client, "orders")
	if i := w.Info(); i.Recovered != last || i.Epoch != 2 || i.Repaired != 0 {
		t.Fatalf("info after a clean close: %+v", i)
	}
	fill(t, w, 10)
	check(t, other, 1, last+10)
}

func TestBatchesAndLargeRecords(t *testing.T) {
	for _, size := range []int{0, 1200, 9 << 10, 1 << 20, btrlog.MaxRecordBytes} {
		c := newCluster(t, "n1", "n2", "n3")
		client := c.client(func(cfg *btrlog.Config) { cfg.MaxDatagramBytes = 1400 })
		c.create(client, "big", btrlog.LogOptions{SegmentBytes: 1 << 20})
		w := c.writer(client, "big")
		var want [][]byte
		for i := range 3 {
			rec := bytes.Repeat([]byte{byte('a' + i)}, size)
			lsn, err := w.Append(t.Context(), rec)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, rec)
			if err := w.Sync(t.Context(), lsn); err != nil {
				t.Fatalf("record of %d bytes: %v", size, err)
			}
		}
		batch := [][]byte{[]byte("one"), {}, []byte("three")}
		first, last, err := w.AppendBatch(t.Context(), batch)
		if err != nil || first != 4 || last != 6 {
			t.Fatalf("batch: %d to %d, %v", first, last, err)
		}
		want = append(want, batch...)
		if err := w.Sync(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		r := c.reader(c.client(), "big")
		for i, rec := range want {
			got, err := r.Read(t.Context(), btrlog.LSN(i+1), nil)
			if err != nil || !bytes.Equal(got, rec) {
				t.Fatalf("record %d of %d bytes: %d bytes, %v", i+1, size, len(got), err)
			}
		}
		if _, err := w.Append(t.Context(), make([]byte, btrlog.MaxRecordBytes+1)); !errors.Is(err, btrlog.ErrTooLarge) {
			t.Fatalf("too large: %v", err)
		}
		// A takeover repairs what it finds, whatever its size.
		w2 := c.writer(client, "big")
		if w2.Info().Recovered != last {
			t.Fatalf("recovered %d, want %d", w2.Info().Recovered, last)
		}
	}
}
