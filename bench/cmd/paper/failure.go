package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/btrlog/btrlog/bench/cluster"
	"github.com/btrlog/btrlog/bench/load"
)

// parts of the run of failureFigure, each of as many intervals.
const (
	whole = iota
	killed
	back
	thirds
)

const (
	perThird = 10 // intervals
	lost     = 2  // the node that is killed
)

// quantiles are those of an interval that figure 7 shows.
var quantiles = []struct {
	name  string
	paper float64 // how much higher it was in the paper with a node killed
	of    func(load.Interval) float64
}{
	{"p50", 0.21, func(i load.Interval) float64 { return i.P50 }},
	{"p95", 0.13, func(i load.Interval) float64 { return i.P95 }},
	{"p99", 0.15, func(i load.Interval) float64 { return i.P99 }},
}

// failureFigure kills a node after a third of the run and starts it after the second. A control with the same arrivals and delays, whose nodes
// all live, follows.
func (o *options) failureFigure(r *report) error {
	p := o.plan(o.seed)
	third := 2 * o.length
	p.Length, p.Interval = thirds*third, third/perThird
	var err error
	if r.Failure, err = o.failureRun(p, third); err != nil {
		return err
	}
	if r.FailureControl, err = o.failureRun(p, 0); err != nil {
		return err
	}
	bad := r.Failure.Failed + r.Failure.Unanswered + r.Failure.Refused
	r.row("failure", "appends that failed, were refused or had no answer, one node killed and returned", float64(bad), "= 0", bad == 0)
	var lines []line
	for k, q := range quantiles {
		run, control := thirdsOf(r.Failure, q.of), thirdsOf(r.FailureControl, q.of)
		if run[whole] == 0 || control[whole] == 0 {
			return fmt.Errorf("nothing was committed before the node was killed")
		}
		r.printed("failure", fmt.Sprintf("%s with a node killed over before, %%; the paper's rises by %.0f %%", q.name, 100*q.paper), 100*(run[killed]/run[whole]-1))
		r.printed("failure", "the same, of the injected delays alone, %", 100*(o.drawn(2)[k]/o.drawn(3)[k]-1))
		r.printed("failure", "the same, of the control, whose nodes all live, %", 100*(control[killed]/control[whole]-1))
		r.printed("failure", fmt.Sprintf("%s with the node back over before, %%", q.name), 100*(run[back]/run[whole]-1))
		l, c := line{name: q.name}, line{name: q.name + ", control", rule: true}
		for i, x := range r.Failure.Intervals {
			l.add(x.At, q.of(x)/1e3)
			if i < len(r.FailureControl.Intervals) {
				c.add(x.At, q.of(r.FailureControl.Intervals[i])/1e3)
			}
		}
		if k == 1 { // three quantiles and three levels cannot be told apart
			continue
		}
		paper := line{name: fmt.Sprintf("paper: %s + %.0f %%", q.name, 100*q.paper), rule: true}
		for _, at := range []time.Duration{third, 2 * third} {
			paper.add(at.Seconds(), run[whole]*(1+q.paper)/1e3)
		}
		lines = append(lines, l, c, paper)
	}
	return o.draw("failure", fmt.Sprintf("One node killed at %v, started at %v", third, 2*third), "s", "ms", true, lines...)
}

// failureRun is one run; a node is killed after third and started after another, if third is not 0.
func (o *options) failureRun(p load.Plan, third time.Duration) (pt *load.Point, err error) {
	err = o.cluster(cluster.Config{Dir: o.tmpfs, Nodes: 3, Jitter: o.jitter}, func(c *cluster.Cluster) error {
		client, err := c.Client(o.cpus, "failure", 2, "disk")
		if err != nil {
			return err
		}
		defer client.Stop()
		type result struct {
			pt  *load.Point
			err error
		}
		done := make(chan result, 1)
		if err := client.Open(p.Logs); err != nil { // so that the times below are those of the run, but for the time of an order
			return err
		}
		go func() {
			pt, err := client.Run(p)
			done <- result{pt, err}
		}()
		kill, start := time.NewTimer(p.Warmup+third), time.NewTimer(p.Warmup+2*third)
		defer kill.Stop()
		defer start.Stop()
		if third == 0 {
			kill.Stop()
			start.Stop()
		}
		for {
			select {
			case <-kill.C:
				c.KillNode(lost)
			case <-start.C:
				if err := c.StartNode(lost); err != nil {
					return err
				}
			case res := <-done:
				pt = res.pt
				return res.err
			}
		}
	})
	return pt, err
}

// thirdsOf are the medians of an interval's quantile in each third, without the intervals in which the node goes or comes.
func thirdsOf(pt *load.Point, of func(load.Interval) float64) (m [thirds]float64) {
	var all [thirds][]float64
	for i, x := range pt.Intervals {
		if t := i / perThird; t < thirds && (i%perThird > 0 || t == whole) {
			all[t] = append(all[t], of(x))
		}
	}
	for t := range m {
		m[t] = load.Median(all[t])
	}
	return m
}

// drawn are the quantiles of the second smallest of so many injected delays: what two of so many nodes make of them, if nothing else took time.
func (o *options) drawn(nodes int) []float64 {
	rng := rand.New(rand.NewPCG(o.seed, 7))
	us := make([]float64, 100_000)
	for i := range us {
		d := make([]time.Duration, nodes)
		for k := range d {
			d[k] = o.jitter.Draw(rng)
		}
		slices.Sort(d)
		us[i] = float64(d[1]) / 1e3
	}
	return []float64{load.At(us, 0.5), load.At(us, 0.95), load.At(us, 0.99)}
}
