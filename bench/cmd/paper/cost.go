package main

import (
	"fmt"

	"github.com/btrlog/btrlog/bench/cluster"
	"github.com/btrlog/btrlog/bench/load"
)

// costPoint is the cost of an append in one setting.
type costPoint struct {
	What  string      `json:"what"`
	X     float64     `json:"x"`
	Point *load.Point `json:"point"`
}

// costFigure measures processor time and latency per append against one thing at a time. All else is the default: 3 nodes, 8 logs, 128 bytes,
// 2,000 appends a second. Large records are offered at fewer a second, so that the disk is not what is measured.
func (o *options) costFigure(r *report) error {
	logs, sizes := []int{1, 10, 100, 1000, 10000}, []int{0, 128, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 1 << 20}
	batches, windows := []int{1, 2, 4, 16, 64, 256}, []int{1, 4, 16, 64, 256, 1024}
	if o.quick {
		logs, sizes, batches, windows = []int{1, 100}, []int{0, 8 << 10}, []int{1, 16}, []int{4, 1024}
	}
	one := func(what string, x float64, c *cluster.Cluster, client *load.Client, p load.Plan) error {
		before := c.Processor()
		pt, err := client.Run(p)
		if err != nil {
			return fmt.Errorf("%s %g: %w", what, x, err)
		}
		pt.NodeCPU = float64(c.Processor()-before) / 1e3 / float64(max(1, pt.Completed))
		r.Cost = append(r.Cost, &costPoint{what, x, pt})
		return nil
	}
	base := o.plan(o.seed)
	base.Logs, base.Rate = 8, 2000
	nodes := []int{3, 4, 5, 6}
	if o.quick {
		nodes = []int{3, 6}
	}
	for _, nodes := range nodes {
		err := o.cluster(cluster.Config{Dir: o.disk, Nodes: nodes}, func(c *cluster.Cluster) error {
			client, err := c.Client(o.cpus, "cost", nodes/2+1, "disk")
			if err != nil {
				return err
			}
			defer client.Stop()
			if err := one("nodes", float64(nodes), c, client, base); err != nil || nodes != 3 {
				return err
			}
			for _, n := range sizes {
				p := base
				p.RecordBytes, p.Rate = n, min(2000, 16e6/float64(max(1, n)))
				if err := one("bytes", float64(n), c, client, p); err != nil {
					return err
				}
			}
			for _, n := range logs {
				p := base
				p.Logs = n
				if err := one("logs", float64(n), c, client, p); err != nil {
					return err
				}
			}
			// With another client each: 500 batches a second.
			for _, n := range batches {
				p := base
				p.Rate = 500
				if err := o.other(c, 0, n, func(client *load.Client) error { return one("batch", float64(n), c, client, p) }); err != nil {
					return err
				}
				perRecord(r.Cost[len(r.Cost)-1].Point, n)
			}
			// As many at a time as the window lets. The client's time has the offers in it that were refused.
			for _, n := range windows {
				p := base
				p.Logs, p.Rate = 1, 20_000
				if err := o.other(c, n, 1, func(client *load.Client) error { return one("window", float64(n), c, client, p) }); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, what := range []string{"logs", "bytes", "batch", "window", "nodes"} {
		node, client, p50 := line{name: "nodes, µs of processor"}, line{name: "client, µs of processor"}, line{name: "p50, µs"}
		for _, c := range r.Cost {
			if c.What == what {
				node.add(max(1, c.X), c.Point.NodeCPU)
				client.add(max(1, c.X), c.Point.ClientCPU)
				p50.add(max(1, c.X), c.Point.P50)
			}
		}
		if err := o.drawLog("cost-"+what, "Cost of an append against "+what, what, "µs", node, client, p50); err != nil {
			return err
		}
	}
	return nil
}

// other runs f with a client whose logs have this append window, and whose appends are batches of so many records.
func (o *options) other(c *cluster.Cluster, window, batch int, f func(*load.Client) error) error {
	client, err := c.BatchClient(o.cpus, fmt.Sprintf("cost-w%d-b%d-", window, batch), 2, "disk", window, batch)
	if err != nil {
		return err
	}
	defer client.Stop()
	return f(client)
}

// perRecord turns processor times per batch into such per record.
func perRecord(p *load.Point, batch int) {
	p.ClientCPU /= float64(batch)
	p.NodeCPU /= float64(batch)
}
