// Command manylogs measures what many logs cost: three nodes as processes of the built binary, one client process (this one), and
// an object store in a process of its own that counts requests. It prints one JSON object. Run it in the directory bench:
//
//	go run ./cmd/manylogs idle       10,000 logs, one append each, then idle: memory per log, files, and what returns
//	go run ./cmd/manylogs neighbour  one firehose beside 100 quiet logs: on their shard, and on another shard of the same nodes
//	go run ./cmd/manylogs trickle    10,000 logs with a record each a minute: what archiving them asks of the store, and how late it is
//	go run ./cmd/manylogs takeover   1,000 logs taken over by a new client: time, and requests counted in front of the store
//
// What the figures mean is said beside each field of the results (idle.go, neighbour.go, takeover.go, trickle.go). Times are of the
// machine and its load; ratios and counts are what counts (MEASURE: ratios in one run, interleaved).
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are those of all measurements.
type options struct {
	binary, dir   string
	logs, shards  int
	settle, block time.Duration
	blocks        int
	recordBytes   int
	quiet         int
	perSecond     float64
	every         time.Duration
	flushAge      time.Duration
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == storeRole {
		storeProcess()
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "manylogs:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		return fmt.Errorf("say what to measure: idle, neighbour, trickle or takeover; -h after it lists its flags")
	}
	var o options
	f := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	f.StringVar(&o.binary, "btrlog", "", "the binary of the nodes (default: it is built)")
	f.StringVar(&o.dir, "dir", "", "directory for the nodes; its device is what is measured (default: the directory for temporary files)")
	f.IntVar(&o.logs, "logs", 0, "logs (default 10000 for idle, 1000 for takeover)")
	f.IntVar(&o.shards, "shards", 0, "shards of each node (default 1; 2 for neighbour)")
	f.DurationVar(&o.settle, "settle", 4*time.Minute, "idle: how long memory may take to return; trickle: how long requests are counted")
	f.DurationVar(&o.every, "every", time.Minute, "trickle: how often each log gets a record")
	f.DurationVar(&o.flushAge, "flush-age", time.Minute, "trickle: flush age of the logs")
	f.DurationVar(&o.block, "block", time.Second, "neighbour: length of a block; all of them together write some GB below -dir and into the memory of the store")
	f.IntVar(&o.blocks, "blocks", 20, "neighbour: blocks of each kind, interleaved")
	f.IntVar(&o.recordBytes, "record", 4096, "neighbour: bytes of a record of the firehose")
	f.IntVar(&o.quiet, "quiet", 100, "neighbour: quiet logs")
	f.Float64Var(&o.perSecond, "rate", 5, "neighbour: appends per second of each quiet log")
	if err := f.Parse(os.Args[2:]); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	temp, err := os.MkdirTemp(o.dir, "manylogs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	o.dir = temp
	if o.binary == "" {
		o.binary = filepath.Join(temp, "btrlog")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, ".")
		build.Dir, build.Env = filepath.Join("..", "cmd", "btrlog"), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	var result any
	switch os.Args[1] {
	case "idle":
		result, err = o.idle(ctx)
	case "neighbour":
		result, err = o.neighbour(ctx)
	case "trickle":
		result, err = o.trickle(ctx)
	case "takeover":
		result, err = o.takeover(ctx)
	default:
		err = fmt.Errorf("cannot measure %q", os.Args[1])
	}
	if err != nil {
		return err
	}
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(result)
}

func set(p *int, def int) {
	if *p == 0 {
		*p = def
	}
}
