// Command latency measures append and sync of one record at a time beside the floor of the hardware in the same run. It prints
// tables, and with -json one JSON object. Run it in the directory bench:
//
//	go run ./cmd/latency
//
// Every scenario has a floor and the product, each with node processes of its own and one client process, and all of them run at
// the same time; they take turns block by block, so that what else the machine does hits all alike. A block is some hundred
// rounds, one at a time. For each block p50, p99 and p99.9 are exact, of all its samples. A ratio is the median over the blocks of
// the product's value, over the median of the floor's; its spread is the first and third quartile of the ratios of the blocks that
// stood side by side.
//
// The floor in Go must come within 1.3 times of the floor in C (../../floor/floor.c), or the run is void. Without a C compiler
// that is not checked, and the report says so.
//
// tmpfs is not durable. It shows what software takes, because its writes cost next to nothing; so tail ratios are taken there.
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
)

func main() {
	if err := role(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "latency:", err)
		os.Exit(1)
	}
}

// role runs what this process is for: it starts itself as floor and as client.
func role(args []string) error {
	switch { // these end by their signals
	case len(args) == 2 && args[0] == floorServerRole:
		return floorServer(args[1])
	case len(args) > 2 && args[0] == floorClientRole:
		return floorClient(args[1], args[2:])
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(args) == 5 && args[0] == clientRole {
		return productClient(ctx, args[1], args[2], args[3], args[4])
	}
	return measure(ctx, args)
}

// variants are the values of -variant.
type variants []variant

// variant is one way to run the product.
type variant struct {
	name           string
	binary, client string // others than the default ones
	flags          []string
}

func (v *variants) String() string { return "" }

func (v *variants) Set(text string) error {
	words := strings.Fields(text)
	if len(words) == 0 {
		return fmt.Errorf("a variant has a name")
	}
	one := variant{name: words[0]}
	for _, w := range words[1:] {
		if file, ok := strings.CutPrefix(w, "binary="); ok {
			one.binary = file
		} else if file, ok := strings.CutPrefix(w, "client="); ok {
			one.client = file
		} else {
			one.flags = append(one.flags, w)
		}
	}
	*v = append(*v, one)
	return nil
}

type options struct {
	binary, tmpfs, disk, scenarios, out string
	blocks, rounds, depth               int
	check                               bool
	variants                            variants
	work                                string // for programs that are built
	floorC                              string // empty: no compiler
}

func measure(ctx context.Context, args []string) error {
	var o options
	f := flag.NewFlagSet("latency", flag.ExitOnError)
	f.StringVar(&o.binary, "btrlog", "", "the binary of the nodes (default: it is built)")
	f.StringVar(&o.tmpfs, "tmpfs", "/dev/shm", "directory on a tmpfs")
	f.StringVar(&o.disk, "disk", "", "directory on the disk that is measured (default: the directory for temporary files)")
	f.StringVar(&o.scenarios, "scenarios", "tmpfs3,disk3,disk1", "of tmpfs3, tmpfs1, disk3, disk1: the device and the number of nodes")
	f.IntVar(&o.blocks, "blocks", 24, "blocks of each, at least 20 for tails that mean something")
	f.IntVar(&o.rounds, "rounds", 1000, "rounds in a block on tmpfs; a third of it on the disk")
	f.IntVar(&o.depth, "depth", 1, "appends in flight; with more than one the times are those between two commits, which the floor's are not, and only the variants "+
		"can be compared")
	f.BoolVar(&o.check, "check", false, "fail if a ratio is worse than what is promised: p50 1.5, on tmpfs with three nodes p99 2.0")
	f.StringVar(&o.out, "json", "", "file for the result as JSON; - is standard output, instead of the tables")
	f.Var(&o.variants, "variant", "name and node flags of one way to run the product, such as \"plain --engine plain\"; the words binary=FILE and client=FILE "+
		"name other builds of btrlog and of this program; may be repeated (default: one without flags)")
	if err := f.Parse(args); err != nil {
		return err
	}
	if len(o.variants) == 0 {
		o.variants = variants{{name: "btrlog"}}
	}
	if o.depth < 1 || o.depth > 1024 || (o.check && o.depth > 1) {
		return fmt.Errorf("%d appends in flight; 1 to 1024 are possible, and what is promised is of one", o.depth)
	}
	if o.blocks < 1 || o.rounds < 30 {
		return fmt.Errorf("%d blocks of %d rounds; at least 1 of 30 are needed", o.blocks, o.rounds)
	}
	var err error
	if o.work, err = os.MkdirTemp("", "latency-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.work)
	if err := o.build(ctx); err != nil {
		return err
	}
	r, err := o.run(ctx)
	if err != nil {
		return err
	}
	if o.out != "-" {
		r.table(os.Stdout)
	}
	if o.out != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		if o.out == "-" {
			_, err = fmt.Println(string(text))
		} else {
			err = os.WriteFile(o.out, append(text, '\n'), 0o644)
		}
		if err != nil {
			return err
		}
	}
	return r.verdict(o.check)
}

// build makes the programs that were not given.
func (o *options) build(ctx context.Context) error {
	if o.binary == "" {
		o.binary = filepath.Join(o.work, "btrlog")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, ".")
		build.Dir, build.Env = filepath.Join("..", "cmd", "btrlog"), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	source := ""
	for _, dir := range []string{"floor", filepath.Join("bench", "floor")} { // from bench, and from above it
		if p := filepath.Join(dir, "floor.c"); fileExists(p) {
			source = p
		}
	}
	compiler, err := exec.LookPath("cc")
	if err != nil || source == "" {
		return nil // the report says so
	}
	o.floorC = filepath.Join(o.work, "floor")
	if out, err := exec.CommandContext(ctx, compiler, "-O2", "-o", o.floorC, source).CombinedOutput(); err != nil {
		return fmt.Errorf("cc: %w\n%s", err, out)
	}
	return nil
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
