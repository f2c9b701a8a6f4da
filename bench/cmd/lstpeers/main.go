// Command lstpeers measures the storage engine lst: alone, row by row, and beside other Go engines. It writes the report
// between the markers of docs/BENCHMARKS.md. Run it in the directory bench:
//
//	go run ./cmd/lstpeers
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/btrlog/btrlog/bench/peers"
	"github.com/btrlog/btrlog/lst/lstbench"
)

func main() {
	peers.Child()
	lstbench.Child()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "lstpeers:", err)
		os.Exit(1)
	}
}

func run() error {
	out := flag.String("out", "../docs/BENCHMARKS.md", "write the report between the markers of this file; - prints it")
	dir := flag.String("dir", "", "measure below this directory, on its device (default: the directory for temporary files)")
	quick := flag.Bool("quick", false, "less data")
	large := flag.Bool("large", false, "the sizes of the requirements: 14 GB of disk")
	rows := flag.String("rows", "", "only these rows of lst alone, separated by commas; none: peers only")
	rounds := flag.Int("rounds", 6, "how many writers of each engine are killed")
	blocks := flag.Int("blocks", 30, "interleaved blocks of each comparison with a peer")
	seed := flag.Uint64("seed", 1, "of all random choices")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if *quick && *large {
		return fmt.Errorf("-quick and -large exclude each other")
	}
	scale := lstbench.Normal
	if *quick {
		scale = lstbench.Small
	} else if *large {
		scale = lstbench.Large
	}
	tmp, err := os.MkdirTemp(*dir, "lstpeers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)

	rep := newReport(lstbench.DeviceOf(tmp), *seed, scale)
	line := statusLine()
	each := func(r lstbench.Result) {
		line("")
		fmt.Printf("%-8s %s: %s %s (%s to %s)\n", r.Verdict, r.What, lstbench.Number(r.Value), r.Unit, lstbench.Number(r.Low), lstbench.Number(r.High))
		rep.results = append(rep.results, r)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	show := func(row string, done, total int) error {
		line(fmt.Sprintf("%s %d of %d", row, done, total))
		return ctx.Err()
	}
	fmt.Printf("seed %d, up to %d MB on disk, %s\n", *seed, scale.DiskBytes()>>20, rep.device)

	b := &peers.Bench{Dir: tmp, Blocks: *blocks, Seed: *seed, Device: rep.device, Progress: show}
	for _, e := range append([]peers.Engine{peers.LST}, peers.Others...) {
		if err := show("kill -9 of "+e.Name, 0, *rounds); err != nil {
			return err
		}
		p, err := peers.Class(e, tmp+"/class-"+strings.ReplaceAll(e.Name, "/", "-"), *rounds, *seed)
		if err != nil {
			return err
		}
		line("")
		fmt.Printf("class    %s (%s): %d acknowledged, %d lost in %d kills\n", p.Engine, p.Config, p.Acked, p.Lost, p.Rounds)
		rep.proofs = append(rep.proofs, p)
	}
	for _, fn := range []func() ([]lstbench.Result, error){
		func() ([]lstbench.Result, error) { return b.Unforced(rep.proofs) },
		b.Forced,
		b.Tail,
	} {
		results, err := fn()
		for _, r := range results {
			each(r)
		}
		if err != nil {
			return err
		}
	}
	if *rows != "none" {
		c := lstbench.Config{Dir: tmp, Scale: scale, Seed: *seed, Progress: show}
		if *rows != "" {
			c.Rows = strings.Split(*rows, ",")
		}
		if _, err := lstbench.Run(c, each); err != nil {
			return err
		}
	}
	line("")
	if *out == "-" {
		fmt.Print(rep.markdown())
		return nil
	}
	return rep.writeInto(*out)
}

// statusLine shows what runs, on a terminal only; an empty text removes it.
func statusLine() func(text string) {
	st, err := os.Stderr.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return func(string) {}
	}
	return func(text string) { fmt.Fprintf(os.Stderr, "\r%s\x1b[K", text) }
}
