// Package prometheus registers the metrics of a btrlog.Client with a prometheus.Registerer. It is a module of its own, so that
// only programs that have such a registry get its library.
//
//	client, err := btrlog.Connect(ctx, config)
//	err = registry.Register(prometheus.Collector(client))
//
// A program without a registry writes client.Metrics() with metrics.Write behind a path of its own.
package prometheus

import (
	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/metrics"
	prom "github.com/prometheus/client_golang/prometheus"
)

// Collector returns a collector of the client's metrics, which docs/METRICS.md lists. Each scrape looks at every open writer
// for a moment. A program with several clients wraps the registerer of each with a label of its own
// (prometheus.WrapRegistererWith). After Client.Close the counters stay as they were.
func Collector(client *btrlog.Client) prom.Collector {
	c := &collector{client: client, descs: make(map[*metrics.Desc]*prom.Desc)}
	for _, d := range btrlog.MetricDescs() {
		c.descs[d] = prom.NewDesc(d.Name, d.Help, d.Labels, nil)
	}
	return c
}

type collector struct {
	client *btrlog.Client
	descs  map[*metrics.Desc]*prom.Desc
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prom.Desc) {
	for _, d := range btrlog.MetricDescs() {
		out <- c.descs[d]
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prom.Metric) {
	for _, f := range c.client.Metrics() {
		desc := c.descs[f.Desc]
		for _, s := range f.Samples {
			switch f.Kind {
			case metrics.Counter:
				out <- prom.MustNewConstMetric(desc, prom.CounterValue, s.Value, s.Labels...)
			case metrics.Gauge:
				out <- prom.MustNewConstMetric(desc, prom.GaugeValue, s.Value, s.Labels...)
			case metrics.Distribution:
				buckets := make(map[float64]uint64, metrics.Buckets-1)
				total := uint64(0)
				for i, n := range s.Histogram.Counts {
					if total += n; i < metrics.Buckets-1 {
						buckets[metrics.Bound(i).Seconds()] = total
					}
				}
				out <- prom.MustNewConstHistogram(desc, total, s.Histogram.Sum.Seconds(), buckets, s.Labels...)
			}
		}
	}
}
