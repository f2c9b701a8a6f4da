package main

import (
	"fmt"
	"time"

	"github.com/btrlog/btrlog/bench/cluster"
	"github.com/btrlog/btrlog/bench/load"
)

func (o *options) loadFigure(r *report) error {
	for _, d := range []string{"disk", "memory"} {
		err := o.cluster(nodesFor(d, o.disk), func(c *cluster.Cluster) error {
			client, err := c.Client(o.cpus, "load-"+d, 2, d)
			if err != nil {
				return err
			}
			p := load.Plan{Rate: o.peak, FirstLogs: 1, Logs: 60, RecordBytes: 128, Warmup: o.length / 5, Length: 6 * o.length, Seed: o.seed}
			before := c.Processor()
			pt, err := client.Run(p)
			client.Stop()
			if err != nil {
				return err
			}
			pt.NodeCPU = float64(c.Processor()-before) / 1e3 / float64(max(1, pt.Completed))
			if d == "disk" {
				r.Load = pt
			} else {
				r.LoadMemory = pt
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	var lines []line
	for _, x := range []struct {
		name string
		pt   *load.Point
	}{{"disk", r.Load}, {"memory", r.LoadMemory}} {
		p50, p99 := line{name: x.name + " p50"}, line{name: x.name + " p99"}
		for _, i := range x.pt.Intervals {
			if i.Completed > 0 {
				p50.add(i.Rate/1e3, i.P50/1e3)
				p99.add(i.Rate/1e3, i.P99/1e3)
			}
		}
		p50.dots, p99.dots = true, true
		lines = append(lines, p50, p99)
	}
	return o.draw("load", "Latency against load, 3 nodes, 2 of 3", "appends/s, thousands", "ms", true, lines...)
}

// nodesFor are nodes on which a durability is quickest: directly written ones have a record on the device before memory could answer, so those
// of memory write through the page cache.
func nodesFor(durability, dir string) cluster.Config {
	cfg := cluster.Config{Dir: dir, Nodes: 3}
	if durability == "memory" {
		cfg.Flags = []string{"--buffered"}
	}
	return cfg
}

func (o *options) quorumFigure(r *report) error {
	var lines []line
	for _, jitter := range []bool{true, false} {
		cfg := cluster.Config{Dir: o.tmpfs, Nodes: 3}
		word := "control"
		if jitter {
			cfg.Jitter, word = o.jitter, "jitter"
		}
		err := o.cluster(cfg, func(c *cluster.Cluster) error {
			two, err := c.Client(o.cpus, "two", 2, "disk")
			if err != nil {
				return err
			}
			defer two.Stop()
			three, err := c.Client(o.cpus, "three", 3, "disk")
			if err != nil {
				return err
			}
			defer three.Stop()
			var p50, p99 [2][]float64
			for k := range o.blocks {
				for i, client := range []*load.Client{two, three} {
					pt, err := client.Run(o.plan(o.seed + uint64(k)))
					if err != nil {
						return err
					}
					p50[i], p99[i] = append(p50[i], pt.P50), append(p99[i], pt.P99)
				}
			}
			a, b := load.Compare(p50[0], p50[1]), load.Compare(p99[0], p99[1])
			r.ratio("quorum", "p50, 2 of 3 over 3 of 3, "+word, a, 0)
			must := 0.0
			if jitter {
				must = 1
			}
			r.ratio("quorum", "p99, 2 of 3 over 3 of 3, "+word, b, must)
			if jitter {
				for i, name := range []string{"2 of 3", "3 of 3"} {
					x, y := line{name: name + " p50"}, line{name: name + " p99"}
					for k := range p50[i] {
						x.add(float64(k+1), p50[i][k]/1e3)
						y.add(float64(k+1), p99[i][k]/1e3)
					}
					lines = append(lines, x, y)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return o.draw("quorum", "2 of 3 against 3 of 3, jitter injected", "block", "ms", false, lines...)
}

// zoneRTT are the paper's round-trip times to three zones.
var zoneRTT = []time.Duration{270 * time.Microsecond, 440 * time.Microsecond, 540 * time.Microsecond}

func (o *options) zonesFigure(r *report) error {
	run := func(rtt []time.Duration, f func([]*load.Client) error) error {
		return o.cluster(cluster.Config{Dir: o.disk, Nodes: 3, RTT: rtt}, func(c *cluster.Cluster) error {
			client, err := c.Client(o.cpus, "zones", 2, "disk")
			if err != nil {
				return err
			}
			defer client.Stop()
			return f([]*load.Client{client})
		})
	}
	return run(zoneRTT, func(a []*load.Client) error {
		return run(make([]time.Duration, 3), func(b []*load.Client) error {
			var p50, p99 [2][]float64
			for k := range o.blocks {
				for i, client := range append(a, b...) {
					pt, err := client.Run(o.plan(o.seed + uint64(k)))
					if err != nil {
						return err
					}
					p50[i], p99[i] = append(p50[i], pt.P50), append(p99[i], pt.P99)
				}
			}
			r.ratio("zones", fmt.Sprintf("p50 with round trips of %v over the same relays without delay", zoneRTT), load.Compare(p50[0], p50[1]), 0)
			r.ratio("zones", "p99, the same", load.Compare(p99[0], p99[1]), 0)
			r.printed("zones", "p50 above that of the control, in round trips to the second nearest zone", (load.Median(p50[0])-load.Median(p50[1]))/float64(zoneRTT[1].Microseconds()))
			x, y := line{name: "three zones p50"}, line{name: "no delay p50"}
			for k := range p50[0] {
				x.add(float64(k+1), p50[0][k]/1e3)
				y.add(float64(k+1), p50[1][k]/1e3)
			}
			return o.draw("zones", "Three zones, 270, 440, 540 µs injected", "block", "ms", false, x, y)
		})
	})
}

func (o *options) ssdFigure(r *report) error {
	return o.cluster(nodesFor("memory", o.disk), func(m *cluster.Cluster) error {
		memory, err := m.Client("all", "memory", 2, "memory")
		if err != nil {
			return err
		}
		defer memory.Stop()
		return o.cluster(nodesFor("disk", o.disk), func(c *cluster.Cluster) error {
			disk, err := c.Client("all", "disk", 2, "disk")
			if err != nil {
				return err
			}
			defer disk.Stop()
			return o.ssdBlocks(r, memory, disk)
		})
	})
}

func (o *options) ssdBlocks(r *report, memory, disk *load.Client) error {
	var p50, p99 [2][]float64
	const appends = 400
	for k := range o.blocks + 1 {
		for i, client := range []*load.Client{memory, disk} {
			took, err := client.Closed(appends, 128)
			if err != nil {
				return err
			}
			if k == 0 {
				continue // to warm up
			}
			us := make([]float64, len(took))
			for j, t := range took {
				us[j] = float64(t) / 1e3
			}
			p50[i], p99[i] = append(p50[i], load.Median(us)), append(p99[i], load.At(us, 0.99))
		}
	}
	r.ratio("ssd", "p50 of memory on buffered nodes over disk on direct ones, one in flight", load.Compare(p50[0], p50[1]), 0.5)
	r.ratio("ssd", "p99, the same", load.Compare(p99[0], p99[1]), 0)
	x, y := line{name: "memory p50"}, line{name: "disk p50"}
	for k := range p50[0] {
		x.add(float64(k+1), p50[0][k]/1e3)
		y.add(float64(k+1), p50[1][k]/1e3)
	}
	return o.draw("ssd", "Durable in memory against on disk", "block", "ms", false, x, y)
}
