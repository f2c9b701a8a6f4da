package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/metrics"
)

const metricsPath = "../../docs/METRICS.md"

// docs/METRICS.md is what the tables of metrics say. 'go test ./cmd/btrlog -run TestMetricsDocs -rewrite' writes it.
func TestMetricsDocs(t *testing.T) {
	var b bytes.Buffer
	writeMetrics(&b)
	if *rewrite {
		if err := os.WriteFile(metricsPath, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(metricsPath)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, b.Bytes()) {
		t.Errorf("%s is not what the metrics say; run: go test ./cmd/btrlog -run TestMetricsDocs -rewrite", metricsPath)
	}
}

func writeMetrics(w io.Writer) {
	fmt.Fprintf(w, "# Metrics\n\nGenerated from the tables of the code: do not edit, run `go test ./cmd/btrlog -run TestMetricsDocs -rewrite`.\n"+
		"What to watch, and what to do then, is in [OPERATIONS.md](OPERATIONS.md#metrics).\n\n"+
		"Counters begin at zero with the process or the client. Histograms have two buckets for each power of two from 8 µs to 17 s.\n\n")
	fmt.Fprintf(w, "## Of a node\n\nAt `/metrics` of its HTTP port, in the text format of Prometheus.\n\n")
	metricsTable(w, node.Descs)
	fmt.Fprintf(w, "\n## Of a client\n\nFrom `Client.Metrics`. `metrics.Write` writes them in the same format; the module `integrations/prometheus` registers them.\n\n")
	metricsTable(w, btrlog.MetricDescs())
}

func metricsTable(w io.Writer, descs []*metrics.Desc) {
	fmt.Fprintf(w, "| name | kind | unit | labels | meaning |\n|---|---|---|---|---|\n")
	for _, d := range descs {
		fmt.Fprintf(w, "| `%s` | %s | %s | %s | %s |\n", d.Name, d.Kind, d.Unit, strings.Join(d.Labels, ", "), d.Help)
	}
}
