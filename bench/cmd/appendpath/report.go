package main

import (
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// series is one of those that take turns.
type series struct {
	name   string
	run    func() (*answer, error)
	blocks []*answer
	nodes  []float64 // µs of the nodes' processor time per commit, by block
}

// turns runs the blocks, one of each series after another; the first of each warms up.
func (o *options) turns(c *cluster, ss []*series) error {
	cycles, _, err := c.collections()
	if err != nil {
		return err
	}
	defer func() {
		if now, longest, err := c.collections(); err == nil {
			fmt.Printf("nodes: %.0f garbage collections in these blocks, longest pause so far %v\n", now-cycles, longest.Round(time.Microsecond))
		}
	}()
	for turn := range o.blocks + 1 {
		for _, s := range ss {
			if o.rest {
				// What a block leaves to be archived would else be work of the next one, which is of the other kind.
				if err := c.rest(); err != nil {
					return err
				}
			}
			before := c.processor()
			a, err := s.run()
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if a.Committed == 0 {
				return fmt.Errorf("%s: a block of %v without a commit", s.name, time.Duration(a.Seconds*1e9))
			}
			if turn > 0 {
				s.blocks = append(s.blocks, a)
				s.nodes = append(s.nodes, micro(c.processor()-before)/float64(a.Committed))
			}
		}
	}
	return nil
}

func rate(a *answer) float64 { return float64(a.Committed) / a.Seconds }
func p50(a *answer) float64  { return a.P50 }
func p99(a *answer) float64  { return a.P99 }

func (s *series) median(value func(*answer) float64) float64 {
	v := make([]float64, len(s.blocks))
	for i, a := range s.blocks {
		v[i] = value(a)
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// nodesMedian is of the nodes' processor time per commit, all nodes together, in µs.
func (s *series) nodesMedian() float64 {
	v := slices.Sorted(slices.Values(s.nodes))
	return v[len(v)/2]
}

func (s *series) sum(value func(*answer) float64) (sum float64) {
	for _, a := range s.blocks {
		sum += value(a)
	}
	return sum
}

func (s *series) most(value func(*answer) float64) (most float64) {
	for _, a := range s.blocks {
		most = max(most, value(a))
	}
	return most
}

// over is the ratio of the medians of s over those of base, with the quartiles of the ratios of neighbours.
func (s *series) over(base *series, value func(*answer) float64) string {
	low, high := s.quartiles(base, value)
	return fmt.Sprintf("%.2f (%.2f-%.2f)", s.median(value)/base.median(value), low, high)
}

func (s *series) quartiles(base *series, value func(*answer) float64) (low, high float64) {
	each := make([]float64, len(s.blocks))
	for i := range each {
		each[i] = value(s.blocks[i]) / value(base.blocks[i])
	}
	slices.Sort(each)
	return each[len(each)/4], each[3*len(each)/4]
}

// table prints what was measured; ratios are over the first row.
func table(what string, ss []*series) {
	fmt.Printf("%s; %d blocks each\n", what, len(ss[0].blocks))
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tper s\tp50 µs\tp99\tp99.9\tCPU client\tnodes\tcalls: send\treceive\tpoll\tdatagrams\tmallocs\tGCs\tlongest pause\trate over first\tp50\tp99\t")
	for i, s := range ss {
		n := s.sum(func(a *answer) float64 { return float64(a.Committed) })
		calls := func(kind string) float64 {
			return s.sum(func(a *answer) float64 { return float64(a.Calls[kind]) }) / n
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.1f\t%.1f\t%.3f\t%.3f\t%.3f\t%.3f\t%.4f\t%.0f\t%.0f\t", s.name, s.median(rate), s.median(p50), s.median(p99),
			s.median(func(a *answer) float64 { return a.P999 }), s.median(func(a *answer) float64 { return a.Processor }), s.nodesMedian(),
			calls("send"), calls("receive"), calls("poll"), s.sum(func(a *answer) float64 { return float64(a.Sent) })/n,
			s.median(func(a *answer) float64 { return a.Mallocs }), s.sum(func(a *answer) float64 { return float64(a.Pauses) }),
			s.most(func(a *answer) float64 { return a.PauseMax }))
		if i == 0 {
			fmt.Fprintln(w, "\t\t\t")
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t\n", s.over(ss[0], rate), s.over(ss[0], p50), s.over(ss[0], p99))
	}
	w.Flush() // to standard output; nobody is there to be told
	fmt.Println()
}
