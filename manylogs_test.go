package btrlog_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/objstore"
)

// recordStore counts the requests for each log's record.
type recordStore struct {
	objstore.Store
	mu           sync.Mutex
	swaps, reads map[string]int
}

func (s *recordStore) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	if _, swap := cond.Match(); swap && strings.HasPrefix(key, "logs/") {
		s.mu.Lock()
		s.swaps[key]++
		s.mu.Unlock()
	}
	return s.Store.Put(ctx, key, body, meta, cond)
}

func (s *recordStore) Get(ctx context.Context, key string, r objstore.Range) (io.ReadCloser, objstore.Info, error) {
	if strings.HasPrefix(key, "logs/") {
		s.mu.Lock()
		s.reads[key]++
		s.mu.Unlock()
	}
	return s.Store.Get(ctx, key, r)
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one has found dead in pools
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Many logs of one client on three nodes, one append each: what they cost in memory, in files, and in requests when another
// client takes them all over. cmd/manylogs below bench measures the same with ten thousand, in processes of their own.
func TestManyLogsAreCheap(t *testing.T) {
	const logs = 150
	c := newCluster(t, "n1", "n2", "n3")
	first := c.client()
	name := func(i int) string { return fmt.Sprintf("log-%03d", i) }
	for i := range logs {
		c.create(first, name(i), btrlog.LogOptions{})
	}
	// So that what is made once is made.
	if err := c.writer(first, name(0)).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := heap()
	writers := make([]*btrlog.Writer, logs)
	var wg sync.WaitGroup
	for part := range 10 {
		wg.Go(func() {
			for i := part; i < logs; i += 10 {
				w, err := first.OpenWriter(t.Context(), name(i), btrlog.WriterOptions{})
				if err == nil {
					var lsn btrlog.LSN
					if lsn, err = w.Append(t.Context(), payload(1)); err == nil {
						err = w.Sync(t.Context(), lsn)
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
				writers[i] = w
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	eventually(t, "the nodes to know the watermarks", func() bool { return first.Stats().WatermarkLag == 0 })
	if s := first.Stats(); s.Writers != logs || s.RetainedRecords != logs || s.WindowInUse != 0 {
		t.Errorf("%+v", s)
	}
	// 64 KiB on the client and on each node would be allowed. The store's objects are in this process too.
	if per := int64(heap()-before) / logs; per > 64<<10 {
		t.Errorf("an idle log takes %d KiB on its client and three nodes together", per>>10)
	} else {
		t.Logf("an idle log takes %d bytes on its client and three nodes together", per)
	}
	runtime.KeepAlive(writers)
	for id, n := range c.nodes {
		active := 0.0
		for _, f := range n.Metrics() {
			for _, s := range f.Samples {
				switch {
				case f.Name == "btrlog_node_segment_files" && s.Value != 1:
					t.Errorf("node %s: shard %s has %v segment files for %d logs", id, s.Labels[0], s.Value, logs)
				case f.Name == "btrlog_node_logs" && s.Labels[1] == "active":
					active += s.Value
				}
			}
		}
		if active != logs {
			t.Errorf("node %s: %v active logs, want %d", id, active, logs)
		}
	}

	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	counted := &recordStore{Store: c.store, swaps: map[string]int{}, reads: map[string]int{}}
	second := c.client(func(cfg *btrlog.Config) { cfg.Store = counted })
	for part := range 10 {
		wg.Go(func() {
			for i := part; i < logs; i += 10 {
				w, err := second.OpenWriter(t.Context(), name(i), btrlog.WriterOptions{})
				if err != nil || w.Info().Recovered != 1 {
					t.Errorf("%s: %v", name(i), err)
					return
				}
			}
		})
	}
	wg.Wait()
	for i := range logs {
		key := "logs/" + name(i) + ".json"
		if counted.swaps[key] != 2 || counted.reads[key] != 1 {
			t.Errorf("takeover of %s: %d compare-and-swaps and %d reads of its record, want 2 and 1", name(i), counted.swaps[key], counted.reads[key])
		}
	}
}
