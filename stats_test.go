package btrlog_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/metrics"
)

// values are a client's metrics by "name label label …"; of a distribution, the number of events.
func values(c *btrlog.Client) map[string]float64 {
	out := map[string]float64{}
	for _, f := range c.Metrics() {
		for _, s := range f.Samples {
			v := s.Value
			if s.Histogram != nil {
				v = float64(s.Histogram.Count())
			}
			out[strings.Join(append([]string{f.Name}, s.Labels...), " ")] = v
		}
	}
	return out
}

// moved fails unless the metrics named in want have changed by that much since before, and no other refusal, end or failure was counted.
func moved(t *testing.T, what string, before, after, want map[string]float64) {
	t.Helper()
	for name, by := range want {
		if _, ok := after[name]; !ok && by != 0 {
			t.Errorf("%s: there is no %s", what, name)
		}
		if got := after[name] - before[name]; got != by {
			t.Errorf("%s: %s moved by %v, want %v", what, name, got, by)
		}
	}
	for name := range after {
		exact := slices.ContainsFunc([]string{"btrlog_client_append", "btrlog_client_opens_", "btrlog_client_writers", "btrlog_client_window"},
			func(p string) bool { return strings.HasPrefix(name, p) })
		if _, listed := want[name]; exact && !listed && after[name] != before[name] {
			t.Errorf("%s: %s moved by %v, want no change", what, name, after[name]-before[name])
		}
	}
}

func TestClientMetricsMoveExactly(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{Window: 64})
	c.create(client, "scratch", btrlog.LogOptions{Durability: btrlog.Memory})

	zero := values(client)
	w := c.writer(client, "orders")
	opened := values(client)
	moved(t, "open", zero, opened, map[string]float64{"btrlog_client_writers": 1, "btrlog_client_opens_total ok": 1, "btrlog_client_open_seconds": 1,
		"btrlog_client_window_records": 64,
		// Two compare-and-swaps, the ensemble, and what was read for them.
		"btrlog_object_store_requests_total metadata put ok": 3})

	fill(t, w, 10)
	if _, last, err := w.AppendBatch(t.Context(), [][]byte{[]byte("a"), []byte("b"), []byte("c")}); err != nil || w.Sync(t.Context(), last) != nil {
		t.Fatal(err)
	}
	appended := values(client)
	want := map[string]float64{"btrlog_client_appended_records_total disk": 13}
	for _, stage := range []string{"queue", "quorum", "total"} {
		want["btrlog_client_append_seconds "+stage+" disk"] = 13
	}
	moved(t, "append", opened, appended, want)
	eventually(t, "all nodes to know the watermark", func() bool { return client.Stats().WatermarkLag == 0 })
	if s := client.Stats(); s.RetainedRecords != 13 || s.Writers != 1 || s.WindowInUse != 0 {
		t.Errorf("after 13 records: %+v", s)
	}

	m := c.writer(client, "scratch")
	fill(t, m, 2)
	both := values(client)
	want = map[string]float64{"btrlog_client_appended_records_total memory": 2, "btrlog_client_writers": 1, "btrlog_client_opens_total ok": 1,
		"btrlog_client_open_seconds": 1, "btrlog_client_window_records": 1024}
	for _, stage := range []string{"queue", "quorum", "total"} {
		want["btrlog_client_append_seconds "+stage+" memory"] = 2
	}
	moved(t, "append to a memory log", appended, both, want)

	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	closed := values(client)
	moved(t, "close", both, closed, map[string]float64{"btrlog_client_writers": -1, "btrlog_client_writers_ended_total closed": 1, "btrlog_client_window_records": -1024})

	// Another client takes the log: the next append learns it.
	other := c.client()
	c.writer(other, "orders")
	if lsn, err := w.Append(t.Context(), []byte("late")); err == nil {
		err = w.Sync(t.Context(), lsn)
		if !errors.Is(err, btrlog.ErrFenced) {
			t.Fatalf("sync of a fenced writer: %v", err)
		}
	}
	fenced := values(client)
	moved(t, "fenced", closed, fenced, map[string]float64{"btrlog_client_writers": -1, "btrlog_client_writers_ended_total fenced": 1,
		"btrlog_client_window_records": -64, "btrlog_client_appended_records_total disk": 1})
	if n := fenced["btrlog_client_refusals_total fenced"] - closed["btrlog_client_refusals_total fenced"]; n < 1 || n > 3 {
		t.Errorf("%v refusals for the fence, want those of one to three nodes", n)
	}

	// Without a quorum an open fails, and says so once.
	c.stop("n1")
	c.stop("n2")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := client.OpenWriter(ctx, "orders", btrlog.WriterOptions{}); err == nil {
		t.Fatal("opened without a quorum")
	}
	moved(t, "failed open", fenced, values(client), map[string]float64{"btrlog_client_opens_total failed": 1})
}

// The window's use and those who wait for it, with all nodes gone.
func TestClientMetricsOfAFullWindow(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{Window: 8})
	w := c.writer(client, "orders")
	for _, n := range []string{"n1", "n2", "n3"} {
		c.stop(n)
	}
	for i := range 8 {
		if _, err := w.TryAppend(fmt.Appendf(nil, "%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { _, err := w.Append(ctx, []byte("no room")); ended <- err }()
	go func() { ended <- w.Sync(ctx, 8) }()
	eventually(t, "both to wait", func() bool {
		s := client.Stats()
		return s.WaitingForSpace == 1 && s.WaitingForCommit == 1
	})
	if s := client.Stats(); s.WindowInUse != 8 || s.Window != 8 || s.RetainedRecords != 8 || s.RetainedBytes != 8 {
		t.Errorf("with a full window: %+v", s)
	}
	cancel()
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("a wait without nodes succeeded")
		}
	}
	if s := client.Stats(); s.WaitingForSpace != 0 || s.WaitingForCommit != 0 {
		t.Errorf("after the waits: %+v", s)
	}
}

// The time that an append waited for space is in its stage, and in no other's.
func TestQueueStageIsTheWaitForSpace(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{Window: 1})
	w := c.writer(client, "orders")
	stop := client.Metrics
	for range 50 {
		if _, err := w.Append(t.Context(), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Sync(t.Context(), 50); err != nil {
		t.Fatal(err)
	}
	sums := map[string]time.Duration{}
	for _, f := range stop() {
		if f.Name == "btrlog_client_append_seconds" {
			for _, s := range f.Samples {
				if s.Labels[1] == "disk" {
					sums[s.Labels[0]] = s.Histogram.Sum
				}
			}
		}
	}
	if sums["queue"] == 0 || sums["quorum"] == 0 || sums["queue"]+sums["quorum"] != sums["total"] {
		t.Errorf("queue %v and quorum %v in a total of %v", sums["queue"], sums["quorum"], sums["total"])
	}
}

// Every metric that is described is there at once, and every one that is there is described.
func TestClientMetricsAreDescribed(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	have := map[*metrics.Desc]bool{}
	for _, f := range client.Metrics() {
		have[f.Desc] = true
	}
	// Counters can be read to the end, by a last scrape for example.
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(client.Metrics()); n != len(have) {
		t.Errorf("%d metrics after Close, %d before", n, len(have))
	}
	for _, d := range btrlog.MetricDescs() {
		if !have[d] {
			t.Errorf("%s is described and not there", d.Name)
		}
		delete(have, d)
	}
	for d := range have {
		t.Errorf("%s is there and not described", d.Name)
	}
}
