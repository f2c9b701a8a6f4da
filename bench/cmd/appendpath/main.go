// Command appendpath measures the path of an append under load, as ratios of blocks that take turns in one run. Run it in the directory
// bench:
//
//	go run ./cmd/appendpath pipeline     appends in flight, callers at once: rate, latency, processor time, system calls, allocations
//	go run ./cmd/appendpath loss         rate with datagrams lost in both directions over that with none
//	go run ./cmd/appendpath overload     an open loop at a multiple of what can be sustained
//	go run ./cmd/appendpath memory       memory durability over disk durability
//	go run ./cmd/appendpath logs         many logs over one, the same rate in all
//	go run ./cmd/appendpath stages       where the time goes, by traces of writer and nodes, and what tracing costs
//
// Three nodes, a quorum of two and the client are processes of their own on one machine. The client does a block at a time; a block is
// some tenths of a second of one kind of load. Figures are medians over the blocks, ratios those of the medians, with the quartiles of
// the ratios of blocks that stood side by side. An absolute time or rate says something of this machine only.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/btrlog/btrlog"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "appendpath:", err)
		os.Exit(1)
	}
}

type options struct {
	binary, dir  string
	flags        []string // of the nodes
	blocks       int
	length       time.Duration
	work         string
	depths       string
	clients      variants
	loss         float64
	load         float64
	rate         float64
	logs, window int
	nodes        int
	segment      int64
	rest         bool
}

// variants are other builds of this program, by name, that are run as clients beside this one.
type variants [][2]string

func (v *variants) String() string { return "" }
func (v *variants) Set(text string) error {
	name, file, ok := strings.Cut(text, "=")
	if !ok {
		return errors.New("want NAME=FILE")
	}
	*v = append(*v, [2]string{name, file})
	return nil
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("say what to measure: pipeline, loss, overload, memory, logs or stages")
	}
	if args[0] == clientRole && len(args) == 2 {
		return runClient(ctx, args[1])
	}
	var o options
	var nodeFlags string
	f := flag.NewFlagSet("appendpath "+args[0], flag.ExitOnError)
	f.StringVar(&o.binary, "btrlog", "", "the binary of the nodes (default: it is built)")
	f.StringVar(&o.dir, "dir", "/dev/shm", "directory for the nodes' data; a tmpfs is not durable, and shows what software takes")
	f.StringVar(&nodeFlags, "node-flags", "", "more flags of the nodes, such as \"--engine uring\"")
	f.IntVar(&o.blocks, "blocks", 20, "blocks of each")
	f.DurationVar(&o.length, "length", 300*time.Millisecond, "length of a block")
	f.StringVar(&o.depths, "depths", "1,2,4,16,64,512", "pipeline: appends in flight; c8 is 8 callers that append and sync each")
	f.Var(&o.clients, "client", "pipeline: NAME=FILE, another build of this program, to be compared with this one; may be repeated")
	f.Float64Var(&o.loss, "loss", 0.01, "loss: chance of a datagram to be lost, each way")
	f.Float64Var(&o.load, "load", 1.5, "overload: offered load over what can be sustained")
	f.Float64Var(&o.rate, "rate", 1000, "logs: appends per second of all logs together")
	f.BoolVar(&o.rest, "rest", args[0] == "overload", "wait before each block until the nodes have nothing to do")
	f.IntVar(&o.logs, "logs", 10_000, "logs: how many")
	f.IntVar(&o.nodes, "nodes", 3, "nodes of the cluster, and of each log; a majority is its quorum")
	f.IntVar(&o.window, "window", 0, "append window of the logs (default: the product's)")
	f.Int64Var(&o.segment, "segment", 0, "overload: segment size of the log in bytes (default: the product's); with 256 MiB a short block is archived behind its end")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	o.flags = strings.Fields(nodeFlags)
	measure, ok := map[string]func(context.Context, *options) error{"pipeline": measurePipeline, "loss": measureLoss, "overload": measureOverload, "memory": measureMemory,
		"logs": measureLogs, "stages": measureStages}[args[0]]
	if !ok || f.NArg() > 0 {
		return fmt.Errorf("%q is not pipeline, loss, overload, memory, logs or stages, or there are arguments that are no flags", args[0])
	}
	if o.blocks < 1 || o.length <= 0 || o.nodes < 1 {
		return fmt.Errorf("%d blocks of %v, %d nodes", o.blocks, o.length, o.nodes)
	}
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil { // it becomes a part of the store's URL
		return err
	}
	if o.work, err = os.MkdirTemp("", "appendpath-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.work)
	if o.binary == "" {
		o.binary = filepath.Join(o.work, "btrlog")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, ".")
		build.Dir, build.Env = filepath.Join("..", "cmd", "btrlog"), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	return measure(ctx, &o)
}

// begin starts a cluster and one client with this program.
func (o *options) begin(ctx context.Context, relayed bool) (*cluster, *process, error) {
	c, err := startCluster(ctx, o.dir, o.binary, o.nodes, relayed, o.flags...)
	if err != nil {
		return nil, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, errors.Join(err, c.stop())
	}
	p, err := c.client(ctx, self)
	if err != nil {
		return nil, nil, errors.Join(err, c.stop())
	}
	return c, p, nil
}

// measurePipeline compares builds of the client at depths.
func measurePipeline(ctx context.Context, o *options) error {
	c, p, err := o.begin(ctx, false)
	if err != nil {
		return err
	}
	defer c.stop()
	names, programs := []string{"this"}, []*process{p}
	for _, v := range o.clients {
		p, err := c.client(ctx, v[1])
		if err != nil {
			return err
		}
		names, programs = append(names, v[0]), append(programs, p)
	}
	for i, p := range programs {
		if _, err := p.order(order{Do: "open", Log: names[i], Count: 1, Window: o.window}); err != nil {
			return err
		}
	}
	var least, most *series // of this client, by the rate
	for _, depth := range strings.Split(o.depths, ",") {
		ord := order{Do: "pipeline", For: o.length}
		if n, ok := strings.CutPrefix(depth, "c"); ok {
			ord.Do, depth = "callers", n
		}
		if _, err := fmt.Sscan(depth, &ord.Depth); err != nil || ord.Depth < 1 {
			return fmt.Errorf("-depths: %q", depth)
		}
		var ss []*series
		for i, p := range programs {
			ord := ord
			ord.Log = names[i]
			ss = append(ss, &series{name: names[i], run: func() (*answer, error) { return p.order(ord) }})
		}
		if err := o.turns(c, ss); err != nil {
			return err
		}
		what := fmt.Sprintf("%d in flight", ord.Depth)
		if ord.Do == "callers" {
			what = fmt.Sprintf("%d callers", ord.Depth)
		}
		table(what, ss)
		if least == nil || ss[0].median(rate) < least.median(rate) {
			least = ss[0]
		}
		if most == nil || ss[0].median(rate) > most.median(rate) {
			most = ss[0]
		}
	}
	processor := func(a *answer) float64 { return a.Processor }
	fmt.Printf("processor time per append, µs, must fall as the rate rises: client %.1f at %.0f per s, %.1f at %.0f: %s; nodes together %.1f, %.1f: %s\n",
		least.median(processor), least.median(rate), most.median(processor), most.median(rate), verdict(most.median(processor) < least.median(processor)),
		least.nodesMedian(), most.nodesMedian(), verdict(most.nodesMedian() < least.nodesMedian()))
	return nil
}

// measureLoss compares the rate with and without loss, at a depth that keeps the client busy.
func measureLoss(ctx context.Context, o *options) error {
	c, p, err := o.begin(ctx, true)
	if err != nil {
		return err
	}
	defer c.stop()
	if _, err := p.order(order{Do: "open", Log: "wal", Count: 1, Window: o.window}); err != nil {
		return err
	}
	for _, depth := range []int{1, 16, 64, 512} {
		with := func(chance float64) func() (*answer, error) {
			return func() (*answer, error) {
				for _, r := range c.relays {
					r.setLoss(chance)
				}
				return p.order(order{Do: "pipeline", Log: "wal", Depth: depth, For: o.length})
			}
		}
		ss := []*series{{name: "no loss", run: with(0)}, {name: fmt.Sprintf("%.3g %% lost", 100*o.loss), run: with(o.loss)}}
		if err := o.turns(c, ss); err != nil {
			return err
		}
		table(fmt.Sprintf("%d in flight, through relays", depth), ss)
	}
	var seen, lost uint64
	for _, r := range c.relays {
		for way := range 2 {
			seen += r.seen[way].Load()
			lost += r.lost[way].Load()
		}
	}
	fmt.Printf("%d datagrams through the relays, %d lost\n", seen, lost)
	return nil
}

// measureOverload finds what a log can sustain and offers a multiple of it, block by block.
func measureOverload(ctx context.Context, o *options) error {
	const every = 1024 // the default, so that it costs what it costs anybody
	o.flags = append(o.flags, "--trace-every", fmt.Sprint(every))
	c, p, err := o.begin(ctx, false)
	if err != nil {
		return err
	}
	defer c.stop()
	if _, err := p.order(order{Do: "open", Log: "wal", Count: 1, Window: o.window, TraceEvery: every, Segment: o.segment}); err != nil {
		return err
	}
	if err := c.apart(); err != nil {
		return err
	}
	window := o.window
	if window == 0 {
		window = 1024 // LogOptions.Window
	}
	peak, seed := 0.0, uint64(0)
	full := &series{name: "window full", run: func() (*answer, error) {
		a, err := p.order(order{Do: "pipeline", Log: "wal", Depth: window, For: o.length, Traces: true})
		if err == nil {
			peak = float64(a.Committed) / a.Seconds
		}
		return a, err
	}}
	over := &series{name: fmt.Sprintf("%.3g × offered", o.load), run: func() (*answer, error) {
		seed++
		return p.order(order{Do: "open-loop", Log: "wal", Rate: o.load * peak, Seed: seed, For: o.length, Traces: true})
	}}
	if err := o.turns(c, []*series{full, over}); err != nil {
		return err
	}
	table(fmt.Sprintf("window of %d; the client on one processor, the nodes on another", window), []*series{full, over})
	worth := over.median(func(a *answer) float64 { return float64(window) / (float64(a.Committed) / a.Seconds) * 1e6 })
	fmt.Printf("goodput over the full window's rate must be 0.8: %s\n", verdict(over.median(rate) >= 0.8*full.median(rate)))
	fmt.Printf("refused at once: %.0f %% of what was offered\n", 100*over.median(func(a *answer) float64 { return float64(a.Refused) / float64(max(1, a.Offered)) }))
	fmt.Printf("p99 must be what a full window is worth at the rate of the overload, %.0f µs, at most; it is %.2f times that: %s\n", worth, over.median(p99)/worth,
		verdict(over.median(p99) <= worth))
	part := func(of func(*queue) float64) float64 {
		return over.median(func(a *answer) float64 { return of(a.Queue) })
	}
	fmt.Printf("of it, each the median of the blocks' p99: generator late %.0f µs, admitted to committed %.0f µs, and a window of appends was served in %.0f µs\n\n",
		part(func(q *queue) float64 { return q.Late }), part(func(q *queue) float64 { return q.Admitted }), part(func(q *queue) float64 { return q.Served }))
	for _, s := range []*series{full, over} {
		var all []stages
		for _, a := range s.blocks {
			all = append(all, a.Traces...)
		}
		if len(all) > 0 {
			stageTable(fmt.Sprintf("%s, %d traces, µs", s.name, len(all)), all)
		}
	}
	return nil
}

func verdict(reached bool) string {
	if reached {
		return "reached"
	}
	return "missed"
}

// measureMemory compares durabilities, one record at a time.
func measureMemory(ctx context.Context, o *options) error {
	c, p, err := o.begin(ctx, false)
	if err != nil {
		return err
	}
	defer c.stop()
	var ss []*series
	for _, d := range []btrlog.Durability{btrlog.Disk, btrlog.Memory} {
		if _, err := p.order(order{Do: "open", Log: string(d), Count: 1, Durability: d}); err != nil {
			return err
		}
		ss = append(ss, &series{name: string(d), run: func() (*answer, error) {
			return p.order(order{Do: "pipeline", Log: string(d), Depth: 1, For: o.length})
		}})
	}
	if err := o.turns(c, ss); err != nil {
		return err
	}
	table("one in flight", ss)
	return nil
}

// measureLogs compares many logs with one at the same rate.
func measureLogs(ctx context.Context, o *options) error {
	c, p, err := o.begin(ctx, false)
	if err != nil {
		return err
	}
	defer c.stop()
	var ss []*series
	for _, n := range []int{1, o.logs} {
		name := fmt.Sprintf("of%d-", n)
		began := time.Now()
		if _, err := p.order(order{Do: "open", Log: name, Count: n}); err != nil {
			return err
		}
		fmt.Printf("%d logs made and opened in %v\n", n, time.Since(began).Round(time.Millisecond))
		seed := uint64(0)
		ss = append(ss, &series{name: fmt.Sprintf("%d logs", n), run: func() (*answer, error) {
			seed++
			return p.order(order{Do: "open-loop", Log: name, Rate: o.rate, Seed: seed, For: o.length})
		}})
	}
	if err := o.turns(c, ss); err != nil {
		return err
	}
	table(fmt.Sprintf("%.0f appends a second, open loop", o.rate), ss)
	return nil
}
