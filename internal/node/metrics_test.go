package node

import (
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/metrics"
)

// metricValues are a node's metrics by "name label label …"; of a distribution, the number of events.
func metricValues(n *Node) map[string]float64 {
	out := map[string]float64{}
	for _, f := range n.Metrics() {
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

func metric(n *Node, name string) float64 {
	v, ok := metricValues(n)[name]
	if !ok {
		return -1
	}
	return v
}

// step runs f and fails unless exactly the metrics in want moved by that much. What moves with the clock, and what the flusher
// and the store do in the background, is left out.
func step(t *testing.T, n *Node, what string, f func(), want map[string]float64) {
	t.Helper()
	before := metricValues(n)
	f()
	after := metricValues(n)
	for name, by := range want {
		if got := after[name] - before[name]; got != by {
			t.Errorf("%s: %s moved by %v, want %v", what, name, got, by)
		}
	}
	for name := range after {
		if _, listed := want[name]; !listed && after[name] != before[name] && exact(name) {
			t.Errorf("%s: %s moved by %v, want no change", what, name, after[name]-before[name])
		}
	}
}

func exact(name string) bool {
	for _, p := range []string{"btrlog_node_requests_", "btrlog_node_refusals", "btrlog_node_append", "btrlog_node_record", "btrlog_node_commits",
		"btrlog_node_promises", "btrlog_node_fencings", "btrlog_node_activations", "btrlog_node_logs", "btrlog_node_held", "btrlog_node_uncommitted",
		"btrlog_node_watermark", "btrlog_node_unarchived", "btrlog_node_parked", "btrlog_node_datagrams", "btrlog_node_forwarded", "btrlog_node_unanswered",
		"btrlog_node_streams", "btrlog_object_store_requests_total archive put"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

func TestNodeMetricsMoveExactly(t *testing.T) {
	n := startNode(t, testConfig(t, "a", newStore()))
	c, w := dial(t, n), newWriter(7)
	w.set.Peers = []protocol.Incarnation{c.inc}

	udp := func(more map[string]float64) map[string]float64 { // one datagram in and one out
		more["btrlog_node_datagrams_total 0 received"]++
		more["btrlog_node_datagrams_total 0 sent"]++
		return more
	}
	step(t, n, "open", func() { c.call(w.open(1)) }, udp(map[string]float64{"btrlog_node_requests_total 0 open": 1, "btrlog_node_promises_total 0": 1,
		"btrlog_node_commits_total 0 disk": 1, "btrlog_node_logs 0 promised": 1}))
	step(t, n, "activate", func() { c.ack(w.activate(c.inc, 1, 1), protocol.StatusOK) }, udp(map[string]float64{"btrlog_node_requests_total 0 activate": 1,
		"btrlog_node_activations_total 0": 1, "btrlog_node_commits_total 0 disk": 1, "btrlog_node_logs 0 promised": -1, "btrlog_node_logs 0 active": 1}))

	appended := func(requests, records float64) map[string]float64 {
		m := map[string]float64{"btrlog_node_requests_total 0 append": requests, "btrlog_node_records_total 0": records, "btrlog_node_record_bytes_total 0": 100 * records,
			"btrlog_node_commits_total 0 disk": requests, "btrlog_node_held_records 0": records, "btrlog_node_unarchived_records 0": records,
			"btrlog_node_unarchived_bytes 0": 104 * records}
		for _, s := range stageNames {
			m["btrlog_node_append_seconds 0 "+s+" disk"] = requests
		}
		return m
	}
	first := to(c.inc, w.append(3, 100))
	want := appended(1, 3)
	want["btrlog_node_uncommitted_records 0"], want["btrlog_node_watermark_lag_records 0"], want["btrlog_node_streams 0"] = 3, 3, 1

	step(t, n, "append", func() { c.ack(first, protocol.StatusOK) }, udp(want))

	// The same again is acknowledged and writes nothing.
	again := map[string]float64{"btrlog_node_requests_total 0 append": 1}
	for _, s := range stageNames {
		again["btrlog_node_append_seconds 0 "+s+" disk"] = 1
	}
	step(t, n, "the same append", func() { c.ack(first, protocol.StatusOK) }, udp(again))

	w.cLSN = 2
	step(t, n, "watermark", func() { c.ack(w.watermark(c.inc, 0), protocol.StatusOK) }, udp(map[string]float64{"btrlog_node_requests_total 0 watermark": 1,
		"btrlog_node_commits_total 0 disk": 1, "btrlog_node_uncommitted_records 0": -2, "btrlog_node_watermark_lag_records 0": -2}))

	step(t, n, "read", func() { c.call(&protocol.Read{Log: 7, Req: 1, From: 1, To: 2}) }, udp(map[string]float64{"btrlog_node_requests_total 0 read": 1}))

	// A newer open fences the writer; what he sends then is refused.
	step(t, n, "fence", func() { c.call(w.open(2)) }, udp(map[string]float64{"btrlog_node_requests_total 0 open": 1, "btrlog_node_promises_total 0": 1,
		"btrlog_node_fencings_total 0": 1, "btrlog_node_commits_total 0 disk": 1, "btrlog_node_logs 0 active": -1, "btrlog_node_logs 0 promised": 1}))
	late := to(c.inc, w.append(1, 100))
	refused := map[string]float64{"btrlog_node_requests_total 0 append": 1, "btrlog_node_refusals_total 0 append fenced": 1}
	for _, s := range stageNames {
		refused["btrlog_node_append_seconds 0 "+s+" disk"] = 1
	}
	step(t, n, "append of a fenced writer", func() { c.ack(late, protocol.StatusFenced) }, udp(refused))
	step(t, n, "open of an old epoch", func() { c.call(w.open(1)) }, udp(map[string]float64{"btrlog_node_requests_total 0 open": 1, "btrlog_node_refusals_total 0 open fenced": 1}))
	step(t, n, "fetch without a promise", func() { c.call(&protocol.Fetch{Log: 7, Epoch: 9, Incarnation: c.inc, From: 1, To: 2}) },
		udp(map[string]float64{"btrlog_node_requests_total 0 fetch": 1, "btrlog_node_refusals_total 0 fetch not-promised": 1}))

	step(t, n, "garbage", func() {
		c.sendRaw([]byte("garbage"))
		c.call(&protocol.Read{Log: 7, Req: 2}) // whose answer says that the garbage has been looked at
	}, map[string]float64{"btrlog_node_datagrams_total 0 received": 2, "btrlog_node_datagrams_total 0 bad": 1, "btrlog_node_datagrams_total 0 sent": 1,
		"btrlog_node_requests_total 0 read": 1})

	gone := map[string]float64{"btrlog_node_requests_total 0 drop": 1, "btrlog_node_commits_total 0 disk": 1, "btrlog_node_logs 0 promised": -1,
		"btrlog_node_logs 0 deleted": 1, "btrlog_node_held_records 0": -3, "btrlog_node_unarchived_records 0": -3, "btrlog_node_unarchived_bytes 0": -312,
		"btrlog_node_uncommitted_records 0": -1, "btrlog_node_watermark_lag_records 0": -1, "btrlog_node_streams 0": -1}

	step(t, n, "drop", func() { c.ack(&protocol.Drop{Log: 7, Epoch: 3, Incarnation: c.inc}, protocol.StatusOK) }, udp(gone))

}

// Appends of memory logs are in histograms of their own.
func TestMemoryAppendsAreNamed(t *testing.T) {
	n := startNode(t, testConfig(t, "a", newStore()))
	c, w := dial(t, n), newWriter(8)
	w.set.Memory = true
	c.begin(w)
	want := map[string]float64{"btrlog_node_requests_total 0 append": 1, "btrlog_node_commits_total 0 memory": 1}
	for _, s := range stageNames {
		want["btrlog_node_append_seconds 0 "+s+" memory"], want["btrlog_node_append_seconds 0 "+s+" disk"] = 1, 0
	}
	before := metricValues(n)
	c.ack(to(c.inc, w.append(1, 100)), protocol.StatusOK)
	after := metricValues(n)
	for name, by := range want {
		if got := after[name] - before[name]; got != by {
			t.Errorf("%s moved by %v, want %v", name, got, by)
		}
	}
}

// What is archived is not unarchived any more, and one segment is one PUT.
func TestArchiveMetrics(t *testing.T) {
	cfg := testConfig(t, "a", newStore())
	cfg.FlushGrace, cfg.IdleRelease = 20*time.Millisecond, 50*time.Millisecond
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(9)
	w.set.Peers = []protocol.Incarnation{c.inc}
	c.begin(w)
	c.ack(to(c.inc, w.append(5, 1000)), protocol.StatusOK)
	if got := metricValues(n); got["btrlog_node_unarchived_records 0"] != 5 || got["btrlog_node_unarchived_bytes 0"] != 5*1004 {
		t.Errorf("%v records, %v bytes are unarchived", got["btrlog_node_unarchived_records 0"], got["btrlog_node_unarchived_bytes 0"])
	}
	eventually(t, "the flush lag to grow", func() bool { return metric(n, "btrlog_node_flush_lag_seconds 0") > 0.02 })
	w.cLSN = 5
	c.ack(w.watermark(c.inc, 5), protocol.StatusOK)
	eventually(t, "the segment to be archived and let go", func() bool { return metric(n, "btrlog_node_held_records 0") == 0 })
	got := metricValues(n)
	for name, want := range map[string]float64{"btrlog_node_unarchived_records 0": 0, "btrlog_node_unarchived_bytes 0": 0, "btrlog_node_flush_lag_seconds 0": 0,
		"btrlog_node_flushes_total written": 1, "btrlog_node_flushes_total failed": 0, "btrlog_object_store_requests_total archive put ok": 1,
		"btrlog_node_flush_queue": 0} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if b := got["btrlog_object_store_bytes_total archive put"]; b < 5*1004 {
		t.Errorf("an object of %v bytes", b)
	}
}

// Reads that wait, and requests that find a queue full.
func TestQueueMetrics(t *testing.T) {
	g := &gate{}
	cfg := testConfig(t, "a", newStore())
	cfg.Observer, cfg.InboxMessages = g, 2
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(3)
	c.begin(w)
	answers := make(chan error, 8)
	post := func(m protocol.Message) {
		go func() {
			_, err := c.post(m)
			answers <- err
		}()
	}
	post(&protocol.Read{Log: 3, WaitAbove: 50})
	eventually(t, "the read to be parked", func() bool { return metric(n, "btrlog_node_parked_reads 0") == 1 })
	release := make(chan struct{})
	g.mu.Lock()
	g.held, g.in = release, make(chan struct{})
	g.mu.Unlock()
	c.send(&protocol.Read{Log: 3})
	<-g.in
	for range 4 {
		post(&protocol.Read{Log: 3})
	}
	eventually(t, "two to wait and two to be refused", func() bool {
		v := metricValues(n)
		return v["btrlog_node_inbox_requests 0"] == 2 && v["btrlog_node_refusals_total 0 read overloaded"] == 2 && v["btrlog_shard_answers 0"] == 0
	})
	if v := metricValues(n); v["btrlog_node_inbox_bytes 0"] != 512 || v["btrlog_node_http_requests"] != 3 || v["btrlog_node_parked_reads 0"] != 1 {
		t.Errorf("inbox of %v bytes, %v requests over HTTP, %v parked", v["btrlog_node_inbox_bytes 0"], v["btrlog_node_http_requests"], v["btrlog_node_parked_reads 0"])
	}
	close(release)
	for range 5 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	eventually(t, "all to be served", func() bool {
		v := metricValues(n)
		return v["btrlog_node_http_requests_total served"] == 5 && v["btrlog_node_http_requests"] == 0 && v["btrlog_node_parked_reads 0"] == 0
	})
}

// Every metric that is described is there, and every one that is there is described once, in the form that its readers expect.
func TestNodeMetricsAreDescribed(t *testing.T) {
	n := startNode(t, testConfig(t, "a", newStore()))
	have := map[*metrics.Desc]bool{}
	for _, f := range n.Metrics() {
		have[f.Desc] = true
	}
	names := map[string]bool{}
	for _, d := range Descs {
		if !have[d] {
			t.Errorf("%s is described and not there", d.Name)
		}
		delete(have, d)
		if names[d.Name] {
			t.Errorf("%s is described twice", d.Name)
		}
		names[d.Name] = true
		if strings.HasSuffix(d.Name, "_total") != (d.Kind == metrics.Counter) || d.Help == "" || d.Unit == "" || !strings.HasSuffix(d.Help, ".") {
			t.Errorf("%+v", d)
		}
	}
	for d := range have {
		t.Errorf("%s is there and not described", d.Name)
	}
	if code, text := httpGet(t, n, "/status"); code != 200 || !strings.Contains(text, `"node": "a"`) {
		t.Errorf("status by its short name: %d %.100s", code, text)
	}
	code, text := httpGet(t, n, MetricsPath)
	if code != 200 || !strings.Contains(text, "# TYPE btrlog_node_append_seconds histogram\n") || !strings.Contains(text, `btrlog_node_info{node="a",`) {
		t.Errorf("%d %.500s", code, text)
	}
}
