// Command demo runs the story that the README tells, with real parts: three log node processes on a real disk, a real
// PostgreSQL write-ahead log appended record by record by a writer process, a node killed, the writer killed, a second
// writer that takes over, and a reader process that compares every byte with the input and with what the first writer had
// noted as acknowledged in a file outside of BtrLog.
//
//	make demo        or:  go run ./demo -bin bin/btrlog
//
// The last line is "demo: ok …" and the exit code 0, or an error and 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "demo: failed:", err)
		os.Exit(1)
	}
}

// run dispatches on the role: the processes that write and read are this same program.
func run(args []string) error {
	role := "story"
	if len(args) > 0 && (args[0] == "writer" || args[0] == "reader") {
		role, args = args[0], args[1:]
	}
	fs := flag.NewFlagSet("demo "+role, flag.ContinueOnError)
	var o options
	fs.StringVar(&o.bin, "bin", "bin/btrlog", "the btrlog binary (make build)")
	fs.StringVar(&o.dir, "dir", "", "directory for nodes, store and results on the disk to be measured; default a new one below .cache, removed at the end")
	fs.BoolVar(&o.keep, "keep", false, "keep the directory")
	fs.IntVar(&o.single, "single", 2000, "appends at the end that are synced one by one, for the latency figures")
	fs.DurationVar(&o.timeout, "timeout", 5*time.Minute, "give up after so long")
	fs.StringVar(&o.store, "store", "", "store URL (roles writer and reader)")
	fs.StringVar(&o.log, "log", "pgwal", "name of the log")
	fs.StringVar(&o.acks, "acks", "", "file of acknowledged records (roles writer and reader)")
	if err := fs.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("the demo took longer than %v", o.timeout))
	defer cancel()
	switch role {
	case "writer":
		return writer(ctx, o)
	case "reader":
		return reader(ctx, o)
	}
	return story(ctx, o)
}

type options struct {
	bin, dir, store, log, acks string
	keep                       bool
	single                     int
	timeout                    time.Duration
}
