// Command paper measures what the figures of the paper's evaluation show, on this machine, and draws them. Run it in the directory bench:
//
//		go run ./cmd/paper              writes docs/BENCHMARKS.md, docs/figures/*.svg, *.png and paper.json
//		go run ./cmd/paper -quick -only failure
//
//	  - load (figure 6): latency against load. Logs are added over time, each with Poisson arrivals; every half second is a point.
//	  - failure (figure 7): one node is killed under load and started again.
//	  - quorum (figure 8): 2 of 3 against 3 of 3 by turns, with a jitter injected into each node's device, and without it as control.
//	  - zones: a delay injected into the network between the client and each node, and the same path without delay as control.
//	  - ssd: records durable in memory against on disk, one in flight, by turns.
//	  - cost: per append against the number of logs, the size of a record, the records of a batch, the append window and the number of nodes.
//
// Nodes and client are processes of their own on one machine; in an open loop the client is bound to the last processor and the nodes are not
// bound. On one disk all nodes wait for the same device, so figures 7 and 8 are taken on tmpfs with a delay that is injected: the
// distribution is named beside them and drawn from a seed.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/btrlog/btrlog/bench/cluster"
	"github.com/btrlog/btrlog/bench/load"
)

type options struct {
	binary, disk, tmpfs, cpus, only, out, document, figures string
	quick, check                                            bool
	seed                                                    uint64
	rate, peak                                              float64
	blocks                                                  int
	length                                                  time.Duration
	jitter                                                  cluster.Jitter
	began                                                   time.Time
}

// part is one of the figures.
type part struct {
	name string
	run  func(*options, *report) error
}

var parts = []part{{"load", (*options).loadFigure}, {"failure", (*options).failureFigure}, {"quorum", (*options).quorumFigure}, {"zones", (*options).zonesFigure},
	{"ssd", (*options).ssdFigure}, {"cost", (*options).costFigure}}

func main() {
	if err := role(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "paper:", err)
		os.Exit(1)
	}
}

func role(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if mine, err := load.ServeClient(ctx, args, map[string]load.Connect{cluster.Kind: cluster.Connect}); mine {
		return err
	}
	if mine, err := cluster.ServeNode(args); mine {
		return err
	}
	var o options
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	f := flag.NewFlagSet("paper", flag.ExitOnError)
	f.StringVar(&o.binary, "btrlog", "", "the built program (default: it is built)")
	f.StringVar(&o.disk, "disk", os.TempDir(), "directory on the disk that is measured")
	f.StringVar(&o.tmpfs, "tmpfs", "/dev/shm", "directory on a tmpfs")
	f.StringVar(&o.cpus, "client-cpus", load.LastCPU(), "processors to which clients of an open loop are bound, such as 1; all: not bound")
	f.StringVar(&o.only, "only", strings.Join(names, ","), "which parts")
	f.Float64Var(&o.rate, "rate", 400, "appends per second in failure, quorum and zones: below what the injected delays allow")
	f.Float64Var(&o.peak, "peak", 60000, "appends per second at the end of load")
	f.IntVar(&o.blocks, "blocks", 20, "blocks of each that take turns")
	f.DurationVar(&o.length, "length", 5*time.Second, "length of a block; load takes six of them, each third of failure two")
	f.Uint64Var(&o.seed, "seed", 1, "seed of arrivals and delays")
	f.DurationVar(&o.jitter.Mean, "jitter", 300*time.Microsecond, "mean of the injected delay of a device, exponential")
	f.Float64Var(&o.jitter.StallChance, "stall-chance", 0.01, "chance of an injected stall")
	f.DurationVar(&o.jitter.StallLeast, "stall-least", 2*time.Millisecond, "shortest injected stall")
	f.DurationVar(&o.jitter.StallMax, "stall-most", 8*time.Millisecond, "longest injected stall")
	f.BoolVar(&o.quick, "quick", false, "few and short, no document: to see that everything runs; its figures are worth nothing")
	f.BoolVar(&o.check, "check", false, "fail if a row is missed")
	f.StringVar(&o.out, "json", "paper.json", "file for everything as JSON")
	f.StringVar(&o.figures, "figures", filepath.Join("..", "docs", "figures"), "directory for the figures")
	f.StringVar(&o.document, "doc", filepath.Join("..", "docs", "BENCHMARKS.md"), "document whose part between the marks is rewritten, if all parts ran; empty: none")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.quick {
		o.blocks, o.length, o.document = 3, time.Second, ""
	}
	chosen := strings.Split(o.only, ",")
	for _, c := range chosen {
		if !slices.Contains(names, c) {
			return fmt.Errorf("-only %s: there are %s", c, strings.Join(names, ", "))
		}
	}
	o.jitter.Seed, o.began = o.seed, time.Now()
	return o.measure(ctx, chosen, len(chosen) == len(parts))
}

func (o *options) say(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "%v "+format+"\n", append([]any{time.Since(o.began).Round(time.Second)}, a...)...)
}

func (o *options) measure(ctx context.Context, chosen []string, all bool) error {
	work, err := os.MkdirTemp("", "paper-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if o.binary == "" {
		if o.binary, err = load.BuildProduct(work); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(o.figures, 0o755); err != nil {
		return err
	}
	r := &report{Machine: load.Here(o.disk), Seed: o.seed, Jitter: o.jitter.String(), ClientCPUs: o.cpus}
	for _, p := range parts {
		if !slices.Contains(chosen, p.name) {
			continue
		}
		o.say("%s", p.name)
		if err := p.run(o, r); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	r.Minutes = time.Since(o.began).Minutes()
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.out, append(text, '\n'), 0o644); err != nil {
		return err
	}
	table := r.markdown()
	fmt.Println(table)
	if o.document != "" && all {
		if err := load.Document(o.document, "paper", table); err != nil {
			return err
		}
	}
	for _, row := range r.Rows {
		if o.check && row.Verdict == missed {
			return fmt.Errorf("missed: %s: %.2f, must be %s", row.What, row.Value, row.Must)
		}
	}
	return nil
}

// cluster starts nodes; the error of stopping them goes to err.
func (o *options) cluster(cfg cluster.Config, f func(*cluster.Cluster) error) (err error) {
	cfg.Binary = o.binary
	c, err := cluster.Start(cfg)
	if err != nil {
		return err
	}
	defer func() {
		if e := c.Stop(); err == nil {
			err = e
		}
	}()
	return f(c)
}

func (o *options) plan(seed uint64) load.Plan {
	return load.Plan{Rate: o.rate, Logs: 4, RecordBytes: 128, Warmup: o.length / 5, Length: o.length, Seed: seed}
}
