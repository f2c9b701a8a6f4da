package main

import (
	"fmt"
	"strings"

	"github.com/btrlog/btrlog/bench/load"
)

type report struct {
	load.Machine
	Minutes        float64      `json:"minutes"`
	Seed           uint64       `json:"seed"`
	Jitter         string       `json:"jitter"`
	ClientCPUs     string       `json:"client_cpus"`
	Rows           []row        `json:"rows"`
	Load           *load.Point  `json:"load,omitempty"`
	LoadMemory     *load.Point  `json:"load_memory,omitempty"`
	Failure        *load.Point  `json:"failure,omitempty"`
	FailureControl *load.Point  `json:"failure_control,omitempty"`
	Cost           []*costPoint `json:"cost,omitempty"`
}

type row struct {
	Part    string      `json:"part"`
	What    string      `json:"what"`
	Value   float64     `json:"value"`
	Must    string      `json:"must,omitempty"`
	Verdict string      `json:"verdict"`
	Ratio   *load.Ratio `json:"blocks,omitempty"`
}

const missed = "**missed**"

func (r *report) row(part, what string, value float64, must string, reached bool) {
	v := "reached"
	if !reached {
		v = missed
	}
	r.Rows = append(r.Rows, row{Part: part, What: what, Value: value, Must: must, Verdict: v})
}

func (r *report) printed(part, what string, value float64) {
	r.Rows = append(r.Rows, row{Part: part, What: what, Value: value, Verdict: "printed"})
}

// ratio adds a comparison; it must be below most, unless that is 0.
func (r *report) ratio(part, what string, v load.Ratio, most float64) {
	x := row{Part: part, What: what, Value: v.Ratio, Verdict: "printed", Ratio: &v}
	if most > 0 {
		x.Must, x.Verdict = fmt.Sprintf("≤ %g", most), "reached"
		if v.Ratio > most || v.Ratio == 0 {
			x.Verdict = missed
		}
	}
	r.Rows = append(r.Rows, x)
}

// markdown is the part of the document. It names figures by their place there.
func (r *report) markdown() string {
	var b strings.Builder
	p := func(format string, a ...any) { fmt.Fprintf(&b, format, a...) }
	p("%s; %.0f minutes; seed %d; 128-byte records unless said otherwise; clients of open loops bound to processor %s, nodes not bound.\n", r.Machine, r.Minutes, r.Seed, r.ClientCPUs)
	p("Injected into each node's device in *failure* and *quorum* (tmpfs), from a seed of its own: %s.\n\n", r.Jitter)
	p("| part | what | value | spread | medians | must | |\n|---|---|---|---|---|---|---|\n")
	for _, x := range r.Rows {
		spread, medians := "", ""
		if x.Ratio != nil {
			spread = fmt.Sprintf("%.2f – %.2f, %d blocks", x.Ratio.Low, x.Ratio.High, x.Ratio.Blocks)
			medians = fmt.Sprintf("%.0f µs, %.0f µs", x.Ratio.A, x.Ratio.B)
		}
		p("| %s | %s | %.3g | %s | %s | %s | %s |\n", x.Part, x.What, x.Value, spread, medians, x.Must, x.Verdict)
	}
	if r.Load != nil && r.LoadMemory != nil {
		p("\n**Latency against load** (figure 6), each half second of which 99 %% was committed, some of them; ![load](figures/load.svg)\n\n")
		p("| durability | logs | committed/s | p50 µs | p95 | p99 | p99.9 |\n|---|---|---|---|---|---|---|\n")
		for _, x := range []struct {
			name string
			pt   *load.Point
		}{{"disk", r.Load}, {"memory", r.LoadMemory}} {
			step := max(1, len(x.pt.Intervals)/12)
			for i := 0; i < len(x.pt.Intervals); i += step {
				if v := x.pt.Intervals[i]; v.Offered > 0 && float64(v.Completed) >= 0.99*float64(v.Offered) {
					p("| %s | %d | %.0f | %.0f | %.0f | %.0f | %.0f |\n", x.name, v.Logs, v.Rate, v.P50, v.P95, v.P99, v.P999)
				}
			}
		}
	}
	for _, f := range []struct {
		part, title string
	}{{"failure", "One node killed and returned (figure 7)"}, {"quorum", "Quorum (figure 8)"}, {"zones", "Zones"}, {"ssd", "SSD off"}} {
		if r.has(f.part) {
			p("\n**%s**: ![%s](figures/%s.svg)\n", f.title, f.part, f.part)
		}
	}
	if len(r.Cost) > 0 {
		p("\n**Cost of an append**: ![logs](figures/cost-logs.svg) ![bytes](figures/cost-bytes.svg) ![batch](figures/cost-batch.svg) ![window](figures/cost-window.svg) ![nodes](figures/cost-nodes.svg)\n\n")
		p("Of *batch*, committed/s are batches, processor times are per record, latencies per batch.\n\n")
		p("| against | | committed/s | achieved | client µs of processor | nodes µs of processor, together | p50 µs | p99 µs |\n|---|---|---|---|---|---|---|---|\n")
		for _, c := range r.Cost {
			p("| %s | %.0f | %.0f | %.1f %% | %.1f | %.1f | %.0f | %.0f |\n", c.What, c.X, float64(c.Point.Completed)/c.Point.Seconds, 100*c.Point.Achieved, c.Point.ClientCPU, c.Point.NodeCPU, c.Point.P50, c.Point.P99)
		}
	}
	return b.String()
}

func (r *report) has(part string) bool {
	for _, x := range r.Rows {
		if x.Part == part {
			return true
		}
	}
	return false
}
