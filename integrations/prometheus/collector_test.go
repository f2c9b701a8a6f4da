package prometheus_test

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/integrations/prometheus"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/metrics"
	"github.com/btrlog/btrlog/objstore/memory"
	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// One node, one client, three records.
func start(t *testing.T) (*node.Node, *btrlog.Client) {
	t.Helper()
	store := memory.New(memory.Options{})
	n, err := node.Start(t.Context(), node.Config{Dir: t.TempDir(), Node: "n1", Listen: "127.0.0.1:0", Store: store, Buffered: true, SegmentBytes: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	client, err := btrlog.Connect(t.Context(), btrlog.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if _, err := client.Create(t.Context(), "orders", btrlog.LogOptions{N: 1, Qw: 1}); err != nil {
		t.Fatal(err)
	}
	w, err := client.OpenWriter(t.Context(), "orders", btrlog.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, last, err := w.AppendBatch(t.Context(), [][]byte{[]byte("a"), []byte("b"), []byte("c")})
	if err == nil {
		err = w.Sync(t.Context(), last)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n, client
}

// The registry takes the collector, and what it gathers is what the client says.
func TestCollector(t *testing.T) {
	_, client := start(t)
	registry := prom.NewPedanticRegistry()
	if err := registry.Register(prometheus.Collector(client)); err != nil {
		t.Fatal(err)
	}
	got, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]*dto.MetricFamily{}
	for _, f := range got {
		names[f.GetName()] = f
	}
	for _, d := range btrlog.MetricDescs() {
		if names[d.Name] == nil {
			t.Errorf("%s was not gathered", d.Name)
		}
	}
	for _, m := range names["btrlog_client_append_seconds"].Metric {
		labels := map[string]string{}
		for _, l := range m.Label {
			labels[l.GetName()] = l.GetValue()
		}
		want := uint64(0)
		if labels["durability"] == "disk" {
			want = 3
		}
		h := m.Histogram
		if h.GetSampleCount() != want || h.Bucket[len(h.Bucket)-1].GetCumulativeCount() != want || len(h.Bucket) != metrics.Buckets-1 {
			t.Errorf("%v: %d samples, want %d", labels, h.GetSampleCount(), want)
		}
	}
}

// The text that a node and metrics.Write make is what the readers of that format read, and its names are as its users expect.
func TestTextFormat(t *testing.T) {
	n, client := start(t)
	resp, err := http.Get("http://" + n.Address() + node.MetricsPath)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("%v, %s", err, resp.Header.Get("Content-Type"))
	}
	var own bytes.Buffer
	if err := metrics.Write(&own, client.Metrics()); err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string][]byte{"node": text, "client": own.Bytes()} {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		want := node.Descs
		if what == "client" {
			want = btrlog.MetricDescs()
		}
		if len(families) != len(want) {
			t.Errorf("%s: %d families were read, want %d: %v", what, len(families), len(want), slices.Sorted(maps.Keys(families)))
		}
		problems, err := promlint.New(bytes.NewReader(text)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: %s", what, p.Metric, p.Text)
		}
	}
}
