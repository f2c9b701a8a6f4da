// Command peers compares the product with what people use today, on one machine, each node a process of its own on one disk. Run it in the
// directory bench/peerlogs:
//
//	go run ./cmd/peers            writes docs/BENCHMARKS.md and peers.json
//	go run ./cmd/peers -quick     a few seconds for each, to see that all of them run
//
// It fetches what it needs through the Go module proxy and Maven, runs what this machine can run, and says what it could not and why.
//
//   - Class: before anything is compared, the syncs of every process that holds data are counted by strace while appends are made one at a time.
//   - One in flight: product and peer run at the same time and take turns block by block; nothing is bound to processors. Each client appends in
//     the way that is quickest for one caller: BookKeeper's in Java itself.
//   - Sustained: each system alone, an open loop whose rate is raised until the p99 reaches the limit or less than 99 % of what was offered is
//     answered; every bad point is tried again once. The client is bound to the last processor, the nodes are not bound. Rounds by turns.
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
	binary, dir, cache, cpus, out, document, only string
	self, java                                    string
	blocks, appends, bytes, traced, warm          int
	logs, refine, rounds                          int
	first, factor                                 float64
	length, limit                                 time.Duration
	quick, keep                                   bool
	seed                                          uint64
}

func main() {
	if err := role(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// role runs what this process is for: it starts itself as client and as node of some peers.
func role(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	kinds := map[string]load.Connect{cluster.Kind: cluster.Connect, load.FileKind: load.ConnectFile, "etcd": connectEtcd, "nats": connectNATS, "bookkeeper": connectBookKeeper}
	if mine, err := load.ServeClient(ctx, args, kinds); mine {
		return err
	}
	if len(args) == 2 && args[0] == etcdRole {
		return serveEtcd(ctx, args[1])
	}
	if len(args) == 2 && args[0] == natsRole {
		return serveNATS(ctx, args[1])
	}
	return compare(ctx, args)
}

func compare(ctx context.Context, args []string) error {
	var o options
	names := make([]string, len(systems))
	for i, s := range systems {
		names[i] = s.name
	}
	f := flag.NewFlagSet("peers", flag.ExitOnError)
	f.StringVar(&o.binary, "btrlog", "", "the built program (default: it is built)")
	f.StringVar(&o.dir, "dir", os.TempDir(), "directory on the disk that is measured")
	f.StringVar(&o.cache, "cache", filepath.Join("..", "..", ".cache", "peers"), "where what is fetched stays")
	f.StringVar(&o.only, "systems", strings.Join(names, ","), "which set-ups")
	f.StringVar(&o.cpus, "client-cpus", load.LastCPU(), "processors to which clients of an open loop are bound, such as 1; all: not bound")
	f.IntVar(&o.blocks, "blocks", 24, "blocks of each with one append in flight; 0: leave that out")
	f.IntVar(&o.appends, "appends", 300, "appends of a block")
	f.IntVar(&o.warm, "warm", 3000, "appends, one at a time, before anything of a system is timed: a virtual machine compiles what runs often")
	f.IntVar(&o.traced, "traced", 200, "appends under strace")
	f.IntVar(&o.bytes, "bytes", 128, "size of a record")
	f.IntVar(&o.rounds, "rounds", 2, "sweeps of each; 0: leave that out")
	f.IntVar(&o.logs, "logs", 8, "logs of a sweep")
	f.IntVar(&o.refine, "refine", 2, "rates that are tried between the last good and the first bad one")
	f.Float64Var(&o.first, "first", 500, "first rate of a sweep, appends per second")
	f.Float64Var(&o.factor, "factor", 1.6, "from one rate to the next")
	f.DurationVar(&o.length, "length", 3*time.Second, "length of a point")
	f.DurationVar(&o.limit, "limit", 10*time.Millisecond, "bound of the p99 of a sustained rate")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the arrivals")
	f.BoolVar(&o.quick, "quick", false, "few and short: to see that everything runs; its figures are worth nothing")
	f.BoolVar(&o.keep, "keep", false, "leave the directories of the systems, with what they wrote to standard error")
	f.StringVar(&o.out, "json", "peers.json", "file for everything as JSON")
	f.StringVar(&o.document, "doc", filepath.Join("..", "..", "docs", "BENCHMARKS.md"), "document whose part between the marks is rewritten; empty: none; with -quick none")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.quick {
		o.blocks, o.appends, o.traced, o.rounds, o.length, o.factor, o.refine, o.limit, o.warm, o.document = 3, 50, 50, 1, time.Second, 4, 0, time.Second, 50, ""
	}
	if o.factor <= 1 || o.first <= 0 {
		return fmt.Errorf("-first %g and -factor %g: the first must be positive, and the other above 1", o.first, o.factor)
	}
	var err error
	if o.self, err = os.Executable(); err != nil {
		return err
	}
	if o.cache, err = filepath.Abs(o.cache); err != nil {
		return err
	}
	if err := os.MkdirAll(o.cache, 0o755); err != nil {
		return err
	}
	r, err := o.measure(ctx)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.out, append(text, '\n'), 0o644); err != nil {
		return err
	}
	table := r.markdown(&o)
	fmt.Println(table)
	if o.document != "" {
		return load.Document(o.document, "peers", table)
	}
	return nil
}

func (o *options) measure(ctx context.Context) (*report, error) {
	r := &report{Machine: load.Here(o.dir), Seed: o.seed, Logs: o.logs, ClientCPUs: o.cpus}
	begin := time.Now()
	var chosen []*system
	for _, s := range systems {
		if slices.Contains(strings.Split(o.only, ","), s.name) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 || chosen[0].name != product {
		return nil, fmt.Errorf("-systems %s: %s must be among them", o.only, product)
	}
	say := func(format string, a ...any) {
		fmt.Fprintf(os.Stderr, "%v "+format+"\n", append([]any{time.Since(begin).Round(time.Second)}, a...)...)
	}
	for _, s := range chosen {
		out := &result{Name: s.name, What: s.what, Peer: s.peer}
		r.Results = append(r.Results, out)
		if s.prepare != nil {
			say("%s: fetch and build", s.name)
			if err := s.prepare(ctx, o); err != nil {
				out.Error = err.Error()
				continue
			}
		}
		if o.blocks > 0 {
			say("%s: durability, one in flight", s.name)
			if err := o.pair(ctx, chosen[0], s, out); err != nil {
				out.Error = err.Error()
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	for round := range o.rounds {
		for i, s := range chosen {
			out := r.Results[i]
			if out.Error != "" {
				continue
			}
			say("%s: sweep %d", s.name, round+1)
			points, best, err := o.sweep(ctx, s, o.seed+uint64(round))
			if err != nil {
				out.Error = err.Error()
			}
			out.Sweeps, out.Sustained = append(out.Sweeps, points), append(out.Sustained, best)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
		}
	}
	r.Minutes = time.Since(begin).Minutes()
	return r, nil
}
