// Package sim is a seeded simulator of the whole system: the production state machines, the real storage engine on a disk
// that loses what was not synced, the real archive and metadata code on an object store that is slow, fails, and applies
// what it calls unknown, and the real wire encoding on a network that loses, doubles, delays and reorders. One seed
// decides everything; the same seed gives the same bytes.
//
// A run draws its parameters (params.go), lets writers, readers and faults loose for some seconds of virtual time
// (nemesis.go), heals everything, demands liveness, and reads the logs back (run.go). The judges (check.go) know only what
// clients were told. What runs in a node is internal/shard and what it imports; the only parts written for the simulator
// are those that internal/node has for real: the loop around the core, the flusher's schedule, the sockets.
//
// Determinism: one event or proc runs at a time (sched.go); procs are coroutines, so that code that waits for the object
// store can be the production code. Nothing may iterate over a map where the order shows.
package sim

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sort"
	"strings"
	"time"
)

// Options of Run.
type Options struct {
	From  uint64 // first seed
	Seeds int    // how many
	// Mutant breaks a rule; the zero value is the product.
	Mutant Mutant
	// Trace keeps what happened of a seed that fails.
	Trace bool
	// Progress, if not nil, is called after each seed.
	Progress func(seed uint64, f *Failure)
	// Workers is how many seeds run at a time; 0 is one for each processor. Every world is alone with its seed, so the report is the same
	// for any number.
	Workers int

	required int // stands for requiredSeeds, if not zero
}

// Report is what a run over seeds found.
type Report struct {
	From     uint64         `json:"from"`
	Seeds    int            `json:"seeds"`
	Failures []*Failure     `json:"failures,omitempty"`
	Counters map[string]int `json:"counters"`
	// Missing names required counters that stayed zero: faults that were never tried. It is judged from requiredSeeds
	// seeds on.
	Missing []string `json:"missing,omitempty"`
	// Params is all that the seed drew, of a run of one seed.
	Params  string        `json:"params,omitempty"`
	Elapsed time.Duration `json:"elapsed_ns"`
	CPU     time.Duration `json:"cpu_ns"` // of the whole process, over the run
	// Sum is over every packet of every seed with its time: the same seeds give the same sum, on any machine.
	Sum  uint64 `json:"sum"`
	text string
}

// requiredSeeds is how many seeds must do everything at least once.
const requiredSeeds = 100

// missing names what so many seeds should have done and did not; fewer than enough need not do anything.
func missing(counters map[string]int, seeds, enough int) (names []string) {
	for _, name := range required {
		if seeds >= enough && counters[name] == 0 {
			names = append(names, name)
		}
	}
	return names
}

// OK reports whether nothing was violated and nothing left untried.
func (r *Report) OK() bool { return len(r.Failures) == 0 && len(r.Missing) == 0 }

// Run runs seeds. A failing seed is run a second time with a trace when Options ask for it; if it does
// not fail again in the same way, that is reported too: determinism is part of the promise.
func Run(o Options) *Report {
	start, cpu := time.Now(), cpuTime()
	r := &Report{From: o.From, Seeds: o.Seeds}
	var sum counters
	var bytes digest
	inOrder(o.Workers, o.Seeds, func(i int) outcome { return runSeed(o.From+uint64(i), o.Mutant, false) }, func(i int, out outcome) bool {
		seed := o.From + uint64(i)
		sum.merge(&out.counters)
		bytes.word(out.sum)
		if f := out.failure; f != nil {
			if o.Trace {
				again := runSeed(seed, o.Mutant, true)
				f.Trace = again.trace
				if again.sum != out.sum || again.failure == nil || again.failure.Message != f.Message {
					f.Message += " (and a second run of the seed went another way: the simulator is not deterministic)"
				}
			}
			r.Failures = append(r.Failures, f)
		}
		if o.Progress != nil {
			o.Progress(seed, out.failure)
		}
		return true
	})
	r.Sum = uint64(bytes)
	r.Counters, r.text = sum.table(), sum.text()
	if o.Seeds == 1 {
		r.Params = draw(o.From).String()
	}
	r.Missing = missing(r.Counters, o.Seeds, cmp.Or(o.required, requiredSeeds))
	r.Elapsed, r.CPU = time.Since(start), cpuTime()-cpu
	return r
}

// inOrder runs work(0), work(1) … work(n−1) on several goroutines and hands the results to use in order, on the caller's,
// until use returns false. At most a few results wait for their turn.
func inOrder[T any](workers, n int, work func(i int) T, use func(i int, result T) bool) {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	results := make(chan chan T, workers-1)
	stop := make(chan struct{})
	go func() {
		defer close(results)
		for i := range n {
			result := make(chan T, 1)
			select {
			case results <- result:
			case <-stop:
				return
			}
			go func() { result <- work(i) }()
		}
	}()
	defer close(stop)
	i := 0
	for result := range results {
		if !use(i, <-result) {
			return
		}
		i++
	}
}

// Mutants hunts every mutant over at most n seeds each and returns the verdicts in order.
func Mutants(from uint64, n int, only string, each func(Verdict)) []Verdict {
	var out []Verdict
	for _, m := range mutants() {
		if only != "" && !slices.Contains(strings.Split(only, ","), m.Name) {
			continue
		}
		v := hunt(m, from, n)
		if each != nil {
			each(v)
		}
		out = append(out, v)
	}
	return out
}

// Summary is the last line of a run.
func (r *Report) Summary() string {
	s := max(r.CPU.Seconds(), 1e-3)
	return fmt.Sprintf("seeds=%d failed=%d missing=%d commits=%d takeovers=%d faults=%d; per CPU-second: commits=%.0f takeovers=%.0f faults=%.0f; cpu=%.1fs elapsed=%.1fs sum=%016x",
		r.Seeds, len(r.Failures), len(r.Missing), r.Counters["Commits"], r.Counters["Takeovers"], r.faults(),
		float64(r.Counters["Commits"])/s, float64(r.Counters["Takeovers"])/s, float64(r.faults())/s, s, r.Elapsed.Seconds(), r.Sum)
}

// faults counts what the nemesis did; lost and doubled packets are not among it.
func (r *Report) faults() int {
	n := 0
	for _, k := range []string{"PowerCuts", "Kills", "Wipes", "Damages", "ClientCrashes", "Zombies", "AppliedButUnknown", "HiddenRetries"} {
		n += r.Counters[k]
	}
	return n
}

// Text is a report for people.
func (r *Report) Text() string {
	var b strings.Builder
	for _, f := range r.Failures {
		fmt.Fprintf(&b, "seed %d: %v\n%s\n", f.Seed, f, f.Params)
		b.Write(f.Trace)
	}
	if len(r.Failures) == 0 && r.Params != "" {
		b.WriteString(r.Params)
		b.WriteByte('\n')
	}
	b.WriteString(r.text)
	b.WriteByte('\n')
	if len(r.Missing) > 0 {
		sort.Strings(r.Missing)
		fmt.Fprintf(&b, "never happened: %s\n", strings.Join(r.Missing, ", "))
	}
	b.WriteString(r.Summary())
	return b.String()
}
