// Command load offers appends at given rates to three nodes, an open loop, and prints what became of them. Run it in the directory bench:
//
//	go run ./cmd/load -rates 1000,5000,20000 -logs 8
//	go run ./cmd/load -target file -dir /tmp
//
// The nodes are processes of the built program and may use all processors. The client, with the generator in it, is a process that is bound
// to the last processor: that is all that it can take from the nodes. Latency is from the moment at which an append was due to the moment
// at which its commit was told to the program. A point is void if less than 99 % of what was offered was committed although a higher rate was
// achieved; it is saturated if none was. Peers: ../peerlogs/cmd/peers; the paper's figures: ../cmd/paper.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/btrlog/btrlog/bench/cluster"
	"github.com/btrlog/btrlog/bench/load"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if mine, err := load.ServeClient(ctx, args, map[string]load.Connect{cluster.Kind: cluster.Connect, load.FileKind: load.ConnectFile}); mine {
		return err
	}
	var plan load.Plan
	var cfg cluster.Config
	var target, rates, cpus, durability string
	var quorum int
	var asJSON bool
	f := flag.NewFlagSet("load", flag.ExitOnError)
	f.StringVar(&target, "target", cluster.Kind, "btrlog, or file: a local file with fdatasync")
	f.StringVar(&cfg.Binary, "btrlog", "", "the built program (default: it is built)")
	f.StringVar(&cfg.Dir, "dir", os.TempDir(), "directory on the device that is measured")
	f.IntVar(&cfg.Nodes, "nodes", 3, "log nodes")
	f.IntVar(&quorum, "quorum", 2, "write quorum")
	f.StringVar(&durability, "durability", "disk", "disk or memory")
	f.StringVar(&rates, "rates", "1000,5000,20000", "appends per second of all logs together, one run for each")
	f.IntVar(&plan.Logs, "logs", 8, "logs at the end of a run")
	f.IntVar(&plan.FirstLogs, "first-logs", 0, "logs at the beginning of a run; more are added evenly (default: all)")
	f.IntVar(&plan.RecordBytes, "bytes", 128, "size of a record")
	f.DurationVar(&plan.Warmup, "warmup", time.Second, "before what is measured")
	f.DurationVar(&plan.Length, "length", 5*time.Second, "length of a run")
	f.DurationVar(&plan.Interval, "interval", 500*time.Millisecond, "length of the parts that have figures of their own, in the JSON")
	f.Uint64Var(&plan.Seed, "seed", 1, "seed of the arrivals")
	f.StringVar(&cpus, "client-cpus", load.LastCPU(), "processors to which the client is bound, such as 1; all: not bound")
	f.BoolVar(&asJSON, "json", false, "print JSON instead of a table")
	if err := f.Parse(args); err != nil {
		return err
	}
	client, nodes, end, err := begin(target, cpus, durability, quorum, cfg)
	if err != nil {
		return err
	}
	defer end()
	out := struct {
		load.Machine
		Target     string        `json:"target"`
		ClientCPUs string        `json:"client_cpus"`
		Points     []*load.Point `json:"points"`
	}{load.Here(cfg.Dir), target, cpus, nil}
	for text := range strings.SplitSeq(rates, ",") {
		if plan.Rate, err = strconv.ParseFloat(text, 64); err != nil {
			return err
		}
		before := nodes()
		pt, err := client.Run(plan)
		if err != nil {
			return err
		}
		pt.NodeCPU = float64(nodes()-before) / 1e3 / float64(max(1, pt.Completed))
		out.Points = append(out.Points, pt)
	}
	load.Judge(out.Points)
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(out)
	}
	fmt.Printf("%s\ntarget %s, %s, %d logs, %d bytes, seed %d; the client is bound to processor %s, the nodes are not bound\n", out.Machine, target, durability, plan.Logs, plan.RecordBytes, plan.Seed, cpus)
	fmt.Print(load.Table(out.Points))
	return nil
}

// begin starts the client, and the nodes if it needs some; nodes is their processor time.
func begin(target, cpus, durability string, quorum int, cfg cluster.Config) (client *load.Client, nodes func() time.Duration, end func(), err error) {
	work, err := os.MkdirTemp(cfg.Dir, "load-")
	if err != nil {
		return nil, nil, nil, err
	}
	remove := func() { _ = os.RemoveAll(work) }
	if target == load.FileKind {
		if client, err = load.StartClient(load.FileKind, cpus, work); err != nil {
			remove()
			return nil, nil, nil, err
		}
		return client, func() time.Duration { return 0 }, func() { client.Stop(); remove() }, nil
	}
	if target != cluster.Kind {
		remove()
		return nil, nil, nil, fmt.Errorf("no target %q; btrlog and file are here, the others in peerlogs", target)
	}
	if cfg.Binary == "" {
		if cfg.Binary, err = load.BuildProduct(work); err != nil {
			remove()
			return nil, nil, nil, err
		}
	}
	c, err := cluster.Start(cfg)
	if err != nil {
		remove()
		return nil, nil, nil, err
	}
	stop := func() {
		if err := c.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "load:", err)
		}
		remove()
	}
	if client, err = c.Client(cpus, "load", quorum, durability); err != nil {
		stop()
		return nil, nil, nil, err
	}
	return client, c.Processor, func() { client.Stop(); stop() }, nil
}
