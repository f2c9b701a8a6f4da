// Command archive measures what archiving costs and how fast the archive is read: three nodes as processes of the built binary, readers
// as processes of their own, and two stores behind a proxy that counts and shapes: the store that a program of this project
// serves (embedded), and versitygw, a server that speaks S3 and was written by others. It prints the table that
// "make bench-archive" must show, with what each row must reach, and one JSON object. Run it in the directory bench:
//
//	go run ./cmd/archive                    everything, about twenty minutes
//	go run ./cmd/archive -only puts,cold    some rows
//	go run ./cmd/archive -log 256MiB -cold 128MiB -memory 1GiB -blocks 4   a look whether it works
//
// Rows: puts, cold, client, record, memory, p99, disk. What the figures mean is said beside each in rows.go and latency.go. The PUTs of
// ten thousand idle logs are measured by cmd/manylogs trickle.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

// The roles of processes that this program starts of itself.
const (
	storeRole   = "store-process"
	scanRoleArg = "scan-process"
	clientArg   = "client-process"
	streamsArg  = "streams-process"
)

type options struct {
	self, binary, versitygw string
	dir, disk               string
	backends, only          []string
	log, cold, memory       int64
	rtt                     time.Duration
	megabits                float64
	repeat, blocks          int
	block                   time.Duration
	rate                    float64
}

func (o *options) linkBytes() float64 { return o.megabits * 1e6 / 8 }

func (o *options) wants(row string) bool { return len(o.only) == 0 || slices.Contains(o.only, row) }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "archive:", err)
		os.Exit(1)
	}
}

// asRole runs one of the roles; false: there is none.
func asRole(ctx context.Context) (bool, error) {
	if len(os.Args) < 3 {
		return false, nil
	}
	arg := func(i int) string { return append(os.Args, "", "", "")[i] }
	switch os.Args[1] {
	case storeRole:
		rtt, err1 := time.ParseDuration(arg(3))
		rate, err2 := strconv.ParseFloat(arg(4), 64)
		if err := errors.Join(err1, err2); err != nil {
			return true, err
		}
		return true, storeProcess(arg(2), rtt, rate)
	case scanRoleArg:
		log, err1 := strconv.ParseUint(arg(3), 16, 64)
		to, err2 := strconv.ParseUint(arg(4), 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return true, err
		}
		return true, scanRole(ctx, arg(2), protocol.LogID(log), to)
	case clientArg:
		return true, clientRole(ctx, arg(2), arg(3))
	case streamsArg:
		width, err := strconv.Atoi(arg(4))
		if err != nil {
			return true, err
		}
		return true, streamsRole(ctx, arg(2), arg(3), width)
	}
	return false, nil
}

// size is a flag in bytes, as 512MiB or 2GiB.
func size(p *int64, name, value, usage string) {
	parse := func(s string) error {
		shift := 0
		for i, unit := range []string{"KiB", "MiB", "GiB"} {
			if rest, ok := strings.CutSuffix(s, unit); ok {
				s, shift = rest, 10*(i+1)
			}
		}
		n, err := strconv.ParseInt(s, 10, 32)
		*p = n << shift
		return err
	}
	_ = parse(value) // a constant of this file
	flag.Func(name, usage+" (default "+value+")", parse)
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if is, err := asRole(ctx); is {
		return err
	}
	var o options
	var backends, only string
	flag.StringVar(&o.binary, "btrlog", "", "the binary of the nodes (default: it is built)")
	flag.StringVar(&o.versitygw, "versitygw", "", "the binary of versitygw (default: the one that 'make test-s3' has built)")
	flag.StringVar(&o.dir, "dir", "/dev/shm", "directory, on tmpfs, for nodes and stores; it takes about 3 times -log")
	flag.StringVar(&o.disk, "disk", os.TempDir(), "directory on a disk, for the row disk")
	flag.StringVar(&backends, "stores", embedded+","+versitygw, "the stores")
	flag.StringVar(&only, "only", "", "the rows to measure (default: all)")
	size(&o.log, "log", "2GiB", "bytes of records of the log that is read")
	size(&o.cold, "cold", "1GiB", "of which so much by each cold scan and each set of plain streams")
	size(&o.memory, "memory", "10GiB", "bytes of the scan whose memory is looked at")
	flag.DurationVar(&o.rtt, "rtt", 20*time.Millisecond, "round trip of the shaped link")
	flag.Float64Var(&o.megabits, "mbit", 1000, "bandwidth of the shaped link each way, in Mbit/s")
	flag.IntVar(&o.repeat, "repeat", 3, "how often each kind of read is done, interleaved")
	flag.IntVar(&o.blocks, "blocks", 20, "p99: blocks with flushing and as many without, interleaved")
	flag.DurationVar(&o.block, "block", 2*time.Second, "p99: length of a block")
	flag.Float64Var(&o.rate, "rate", 3000, "p99: appends of 4 KiB a second")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	o.backends = strings.Split(backends, ",")
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	var err error
	if o.self, err = os.Executable(); err != nil {
		return err
	}
	for _, d := range []*string{&o.dir, &o.disk} {
		temp, err := os.MkdirTemp(*d, "bench-archive-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temp)
		*d = temp
	}
	if o.binary == "" {
		o.binary = filepath.Join(o.disk, "btrlog")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, ".")
		build.Dir, build.Env = filepath.Join("..", "cmd", "btrlog"), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	if o.versitygw == "" {
		found, _ := filepath.Glob(filepath.Join("..", ".cache", "s3", "versitygw-v*"))
		if len(found) == 0 && slices.Contains(o.backends, versitygw) {
			return errors.New("there is no versitygw: 'make test-s3' builds it; name another with -versitygw, or leave it out with -stores embedded")
		}
		if len(found) > 0 {
			o.versitygw = found[len(found)-1]
		}
	}
	for k, v := range map[string]string{"AWS_ACCESS_KEY_ID": s3Key, "AWS_SECRET_ACCESS_KEY": s3Key, "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"} {
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	rows, err := o.table(ctx)
	if perr := printTable(rows); perr != nil || err != nil {
		return errors.Join(err, perr)
	}
	for _, r := range rows {
		if r.Bound != "" && !r.Reached {
			return fmt.Errorf("%s, %s: %s, must be %s", r.What, r.Store, r.Value, r.Bound)
		}
	}
	return nil
}

// row is one line of the table.
type row struct {
	What    string         `json:"what"`
	Store   string         `json:"store"`
	Value   string         `json:"value"`
	Bound   string         `json:"must_be,omitempty"`
	Reached bool           `json:"reached"`
	Detail  map[string]any `json:"detail,omitempty"`
}

func atMost(what, store string, v, bound float64, format string, detail map[string]any) row {
	return row{what, store, fmt.Sprintf(format, v), "≤ " + fmt.Sprintf(format, bound), v <= bound, detail}
}

func atLeast(what, store string, v, bound float64, detail map[string]any) row {
	return row{what, store, fmt.Sprintf("%.3f", v), fmt.Sprintf("≥ %.2f", bound), v >= bound, detail}
}

func printed(what, store, value string, detail map[string]any) row {
	return row{What: what, Store: store, Value: value, Reached: true, Detail: detail}
}

func (o *options) table(ctx context.Context) (rows []row, err error) {
	add := func(more []row, err error) error {
		for _, r := range more {
			fmt.Fprintf(os.Stderr, "%s, %s: %s %s\n", r.What, r.Store, r.Value, r.Bound)
		}
		rows = append(rows, more...)
		return err
	}
	for _, name := range o.backends {
		if o.wants("puts") || o.wants("cold") || o.wants("client") || o.wants("record") {
			if err := add(o.reading(ctx, name)); err != nil {
				return rows, err
			}
		}
	}
	if o.wants("memory") {
		if err := add(o.memoryRow(ctx)); err != nil {
			return rows, err
		}
	}
	for _, name := range o.backends {
		if o.wants("p99") {
			if err := add(o.latencyRow(ctx, name, o.dir, true)); err != nil {
				return rows, err
			}
		}
		if o.wants("disk") {
			if err := add(o.latencyRow(ctx, name, o.disk, false)); err != nil {
				return rows, err
			}
		}
	}
	return rows, nil
}

func printTable(rows []row) error {
	w := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tSTORE\tMEASURED\tMUST BE\t")
	for _, r := range rows {
		note := ""
		if !r.Reached {
			note = "NOT REACHED"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.What, r.Store, r.Value, r.Bound, note)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(rows)
}
