package main

import (
	"fmt"
	"strings"

	"github.com/btrlog/btrlog/bench/load"
)

type report struct {
	load.Machine
	Minutes    float64   `json:"minutes"`
	Seed       uint64    `json:"seed"`
	Logs       int       `json:"logs_of_a_sweep"`
	ClientCPUs string    `json:"client_cpus_of_a_sweep"`
	Results    []*result `json:"results"`
}

// What must be reached, and is aimed at.
const (
	p50Most, p50Aim              = 0.5, 0.25
	sustainedLeast, sustainedAim = 5, 10
	clientMost                   = 0.9 // of its processor
)

func (r *report) markdown(o *options) string {
	var b strings.Builder
	p := func(format string, a ...any) { fmt.Fprintf(&b, format, a...) }
	p("%s; %.0f minutes; seed %d; %d-byte records.\n\n", r.Machine, r.Minutes, r.Seed, o.bytes)
	p("**Class**: syncs of each process that holds data, per append, one append at a time; *proven* if there are two syncs for each in different processes, or one where there is one process. A node that lags syncs several at a time.\n\n")
	p("| system | set-up | syncs per append | class |\n|---|---|---|---|\n")
	for _, s := range r.Results {
		syncs, class := "", "not proven"
		if s.Class != nil {
			for i, n := range s.Class.PerNode {
				if i > 0 {
					syncs += ", "
				}
				syncs += fmt.Sprintf("%.2f", n)
			}
			if s.Class.Proven {
				class = "proven"
			} else if s.Class.Note != "" {
				class += ": " + s.Class.Note
			}
		}
		p("| %s | %s | %s | %s |\n", s.Name, s.What, syncs, class)
	}
	p("\n**One append in flight**, %d blocks of %d by turns: the product over the peer, ratio of the medians of the blocks, quartiles of the pairs. Must be ≤ %g, aim %g.\n\n", o.blocks, o.appends, p50Most, p50Aim)
	p("| peer | p50 | | p50 µs, product and peer | p99 | |\n|---|---|---|---|---|---|\n")
	for _, s := range r.Results {
		if s.P50 == nil {
			continue
		}
		p("| %s | %.2f (%.2f – %.2f) | %s | %.0f, %.0f | %.2f (%.2f – %.2f) | |\n", s.Name, s.P50.Ratio, s.P50.Low, s.P50.High, verdictLow(s, s.P50.Ratio), s.P50.A, s.P50.B, s.P99.Ratio, s.P99.Low, s.P99.High)
	}
	own := 0.0
	if len(r.Results) > 0 {
		own = load.Median(r.Results[0].Sustained)
	}
	best, bestName, bestBusy := 0.0, "", 0.0
	for _, s := range r.Results {
		if m := load.Median(s.Sustained); replicated(s) && m > best {
			best, bestName, bestBusy = m, s.Name, s.clientBusy()
		}
	}
	p("\n**Highest sustained rate** (%s), %d logs, %d rounds by turns, points of %v; the client is bound to processor %s, the nodes are not bound.\n\n", o.limitOf(), r.Logs, o.rounds, o.length, r.ClientCPUs)
	p("*Client* is the processor time that its process took of the one it has, at the highest good rate. From %.0f %% on it may be what limits the rate: a peer's is then not a limit of the peer, and its ratio is void.\n\n", 100*clientMost)
	p("| system | appends/s, median | rounds | client | product over it |\n|---|---|---|---|---|\n")
	for _, s := range r.Results {
		if len(s.Sustained) == 0 {
			continue
		}
		m := load.Median(s.Sustained)
		ratio := ""
		if m > 0 && s.Name != product {
			ratio = fmt.Sprintf("%.1f ×", own/m)
			if s.clientBusy() >= clientMost {
				ratio += ", void: limited by its client"
			}
		}
		var each []string
		for _, v := range s.Sustained {
			each = append(each, fmt.Sprintf("%.0f", v))
		}
		p("| %s | %.0f | %s | %.0f %% | %s |\n", s.Name, m, strings.Join(each, ", "), 100*s.clientBusy(), ratio)
	}
	if best > 0 {
		verdict := verdictHigh(own / best)
		if bestBusy >= clientMost {
			verdict = "void: limited by its client"
		}
		p("\nThe best replicated peer is %s: %.1f ×, must be ≥ %d, aim %d: **%s**.\n", bestName, own/best, sustainedLeast, sustainedAim, verdict)
	}
	p("\n**Not run**\n\n")
	for _, s := range r.Results {
		if s.Error != "" {
			first, _, _ := strings.Cut(s.Error, "\n")
			p("- %s: %s\n", s.Name, first)
		}
	}
	for _, n := range notRun {
		p("- %s: %s\n", n[0], n[1])
	}
	return b.String()
}

// clientBusy is the part of a processor that the client took at the highest rate that was sustained. The client of a sweep has one.
func (s *result) clientBusy() (busy float64) {
	best := 0.0
	for _, points := range s.Sweeps {
		for _, pt := range points {
			if rate := float64(pt.Completed) / pt.Seconds; pt.Verdict == "" && rate > best && pt.Achieved >= 0.99 {
				best, busy = rate, pt.ClientCPU*rate/1e6
			}
		}
	}
	return busy
}

// replicated says that a system is one with which the product's rate is compared.
func replicated(s *result) bool {
	return s.Name != product && s.Name != "file" && s.Class != nil && s.Class.Proven
}

func verdictLow(s *result, ratio float64) string {
	switch {
	case s.Name == "file" || s.Name == "bookkeeper":
		return "printed"
	case s.Class == nil || !s.Class.Proven:
		return "void: class not proven"
	case ratio <= p50Aim:
		return "reached, aim too"
	case ratio <= p50Most:
		return "reached"
	}
	return "**missed**"
}

func verdictHigh(ratio float64) string {
	switch {
	case ratio >= sustainedAim:
		return "reached, aim too"
	case ratio >= sustainedLeast:
		return "reached"
	}
	return "missed"
}
