package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

const (
	floorCName  = "floor (C)"
	floorGoName = "floor (Go)"
)

// scenario is a device and a number of nodes.
type scenario struct {
	name          string
	tmpfs         bool
	nodes, quorum int
}

var scenarios = []scenario{{"tmpfs3", true, 3, 2}, {"tmpfs1", true, 1, 1}, {"disk3", false, 3, 2}, {"disk1", false, 1, 1}}

// block is what one subject did in one turn; the processor times are per round.
type block struct {
	took            []time.Duration
	servers, client time.Duration
}

type result struct {
	Void      []string         `json:"void,omitempty"` // why the run says nothing
	Note      string           `json:"note,omitempty"`
	Blocks    int              `json:"blocks"`
	Scenarios []scenarioResult `json:"scenarios"`
}

type scenarioResult struct {
	Scenario string `json:"scenario"`
	Device   string `json:"device"`
	Nodes    int    `json:"nodes"`
	Quorum   int    `json:"quorum"`
	Rounds   int    `json:"most_rounds_in_a_block"`
	Samples  int    `json:"samples"` // of all subjects and blocks
	Rows     []row  `json:"rows"`
}

// row is one subject. Times are medians over the blocks, in microseconds; processor times are of all nodes together, and of the
// client.
type row struct {
	Name       string  `json:"name"`
	P50        float64 `json:"p50_us"`
	P99        float64 `json:"p99_us"`
	P999       float64 `json:"p999_us"`
	Max        float64 `json:"max_us"` // of all blocks
	ServersCPU float64 `json:"nodes_processor_us"`
	ClientCPU  float64 `json:"client_processor_us"`
	// Over the floor in Go; nil of the floors.
	P50Ratio  *ratio `json:"p50_over_floor,omitempty"`
	P99Ratio  *ratio `json:"p99_over_floor,omitempty"`
	P999Ratio *ratio `json:"p999_over_floor,omitempty"`
}

// ratio of medians, and the quartiles of the ratios block by block.
type ratio struct {
	Value float64 `json:"ratio"`
	Q1    float64 `json:"q1"`
	Q3    float64 `json:"q3"`
}

func (o *options) run(ctx context.Context) (*result, error) {
	r := &result{Blocks: o.blocks}
	if o.floorC == "" {
		r.Note = "no C compiler: the floor in Go was not compared with one in C"
	}
	for _, name := range strings.Split(o.scenarios, ",") {
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no scenario %q", name)
		}
		s, err := o.scenario(ctx, scenarios[i], r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r.Scenarios = append(r.Scenarios, *s)
	}
	return r, nil
}

func (o *options) scenario(ctx context.Context, sc scenario, r *result) (*scenarioResult, error) {
	parent, device, rounds := o.disk, "disk, direct synced writes", max(o.rounds/3, 30)
	if sc.tmpfs {
		parent, device, rounds = o.tmpfs, "tmpfs, not durable", o.rounds
	}
	dir, err := os.MkdirTemp(parent, "latency-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	var subjects []*subject
	defer func() {
		for _, s := range subjects {
			s.stop()
		}
	}()
	begin := func(s *subject, err error) error {
		subjects = append(subjects, s)
		return err
	}
	if o.floorC != "" {
		err = begin(o.cFloor(ctx, sc, dir))
	}
	if err == nil {
		err = begin(o.goFloor(ctx, sc, dir))
	}
	for _, v := range o.variants {
		if err == nil {
			err = begin(o.product(ctx, sc, v, dir))
		}
	}
	if err != nil {
		return nil, err
	}
	blocks, samples := make([][]*block, len(subjects)), 0
	for turn := range o.blocks + 1 { // the first one warms up
		for i, s := range subjects {
			b, err := s.block(rounds)
			if err != nil {
				return nil, err
			}
			if turn > 0 {
				blocks[i] = append(blocks[i], b)
				samples += len(b.took)
			}
		}
	}
	out := &scenarioResult{Scenario: sc.name, Device: device, Nodes: sc.nodes, Quorum: sc.quorum, Rounds: rounds, Samples: samples}
	floor := slices.IndexFunc(subjects, func(s *subject) bool { return s.name == floorGoName })
	for i, s := range subjects {
		out.Rows = append(out.Rows, summarise(s.name, blocks[i], blocks[floor], i > floor))
	}
	if floor > 0 {
		if q := out.Rows[floor].P50 / out.Rows[0].P50; q > 1.3 {
			r.Void = append(r.Void, fmt.Sprintf("%s: the floor in Go is %.2f times the floor in C, at most 1.3 is allowed", sc.name, q))
		}
	}
	return out, nil
}

func summarise(name string, own, floor []*block, product bool) row {
	quantile := func(q float64) func(*block) float64 {
		return func(b *block) float64 {
			sorted := slices.Sorted(slices.Values(b.took))
			return micro(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))])
		}
	}
	p50, p99, p999 := quantile(0.5), quantile(0.99), quantile(0.999)
	r := row{Name: name, P50: median(own, p50), P99: median(own, p99), P999: median(own, p999),
		ServersCPU: median(own, func(b *block) float64 { return micro(b.servers) }), ClientCPU: median(own, func(b *block) float64 { return micro(b.client) })}
	for _, b := range own {
		r.Max = max(r.Max, micro(slices.Max(b.took)))
	}
	if product {
		r.P50Ratio, r.P99Ratio, r.P999Ratio = compare(own, floor, p50), compare(own, floor, p99), compare(own, floor, p999)
	}
	return r
}

func compare(own, floor []*block, value func(*block) float64) *ratio {
	each := make([]float64, len(own))
	for i := range own {
		each[i] = value(own[i]) / value(floor[i])
	}
	slices.Sort(each)
	return &ratio{round(median(own, value) / median(floor, value)), round(each[len(each)/4]), round(each[3*len(each)/4])}
}

func median(blocks []*block, value func(*block) float64) float64 {
	v := make([]float64, len(blocks))
	for i, b := range blocks {
		v[i] = value(b)
	}
	slices.Sort(v)
	return round(v[len(v)/2])
}

func micro(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

func round(x float64) float64 { return math.Round(x*100) / 100 }

// table writes the result for people.
func (r *result) table(out io.Writer) {
	for _, s := range r.Scenarios {
		fmt.Fprintf(out, "%s: %d of %d nodes, %s, %d bytes, one in flight; %d blocks of at most %d, %d samples\n", s.Scenario, s.Quorum, s.Nodes,
			s.Device, recordBytes, r.Blocks, s.Rounds, s.Samples)
		w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(w, "\tp50 µs\tp99\tp99.9\tmax\tnodes' CPU\tclient's CPU\tp50/floor\tp99/floor\tp99.9/floor\t\n")
		for _, row := range s.Rows {
			fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t%.0f\t%.1f\t%.1f\t%v\t%v\t%v\t\n", row.Name, row.P50, row.P99, row.P999, row.Max, row.ServersCPU, row.ClientCPU,
				row.P50Ratio, row.P99Ratio, row.P999Ratio)
		}
		w.Flush() // to memory or a terminal
		fmt.Fprintln(out)
	}
	if r.Note != "" {
		fmt.Fprintln(out, r.Note)
	}
}

func (r *ratio) String() string {
	if r == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.2f-%.2f)", r.Value, r.Q1, r.Q3)
}

// What is promised of the ratios.
const (
	mostP50 = 1.5
	mostP99 = 2.0 // on tmpfs with three nodes: a disk's own tail varies more than that
)

// verdict returns why the run is void, and with check what is worse than promised.
func (r *result) verdict(check bool) error {
	var errs []error
	for _, v := range r.Void {
		errs = append(errs, errors.New("void: "+v))
	}
	if check && len(errs) == 0 {
		for _, s := range r.Scenarios {
			for _, row := range s.Rows {
				if row.P50Ratio != nil && row.P50Ratio.Value > mostP50 {
					errs = append(errs, fmt.Errorf("%s: p50 of %s is %v times the floor's, at most %.1f is allowed", s.Scenario, row.Name, row.P50Ratio, mostP50))
				}
				if s.Scenario == "tmpfs3" && row.P99Ratio != nil && row.P99Ratio.Value > mostP99 {
					errs = append(errs, fmt.Errorf("%s: p99 of %s is %v times the floor's, at most %.1f is allowed", s.Scenario, row.Name, row.P99Ratio, mostP99))
				}
			}
		}
	}
	return errors.Join(errs...)
}
