//go:build linux

// Command torture runs a cluster of real processes and hurts it: four log nodes, an object store and two clients, each in a
// network namespace of its own, behind a switch in user space. Faults are drawn from a seed, one after another with times
// without a fault between them. What the clients did and saw is judged in the end. docs/TORTURE.md says how.
//
//	make torture DURATION=10m
//
// It needs Linux and root, and ends by itself. Exit code 0 if nothing was violated, 1 if something was or the run could not be
// finished, 2 for a wrong command line.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/btrlog/btrlog/torture/history"
)

type options struct {
	duration        time.Duration
	seed            uint64
	binary          string
	dir, name       string
	json, keep, dry bool
}

var errUsage = errors.New("wrong command line")

func main() {
	err := dispatch(os.Args[1:])
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "torture: failed:", err)
		os.Exit(1)
	}
}

// dispatch: clients and store are this same program.
func dispatch(args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "worker":
			return runWorker(args[1:])
		case "store":
			return runStore(args[1:])
		}
	}
	fs := flag.NewFlagSet("torture", flag.ContinueOnError)
	var o options
	fs.DurationVar(&o.duration, "duration", time.Minute, "time of the schedule; starting, reading everything in the end and judging come on top")
	fs.Uint64Var(&o.seed, "seed", 0, "of schedule and switch; 0 draws one, which is printed")
	fs.StringVar(&o.binary, "btrlog", "bin/btrlog", "the btrlog binary (make build)")
	fs.StringVar(&o.dir, "dir", ".cache/torture", "directory for the data of the run, on the disk to be used")
	fs.StringVar(&o.name, "name", "bt", "name of the run, part of the names of its namespaces: two at a time need two names")
	fs.BoolVar(&o.json, "json", false, "print the result as one JSON object on standard output, and the rest on standard error")
	fs.BoolVar(&o.keep, "keep", false, "keep data, histories and messages of the processes; a run that fails keeps them always")
	only := fs.String("only", "", "kinds of faults to draw from, with commas between them; all unless set")
	fs.BoolVar(&o.dry, "plan", false, "print the schedule and end; needs neither root nor nodes")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w: %v", errUsage, err)
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("%w: %q is no flag", errUsage, fs.Arg(0))
	}
	if !regexp.MustCompile(`^[a-z0-9]{1,8}$`).MatchString(o.name) {
		return fmt.Errorf("%w: --name is 1 to 8 lower-case letters and digits", errUsage)
	}
	if least := controlTime + mostWindow + settleTime; o.duration < least {
		return fmt.Errorf("%w: --duration is at least %v, one fault", errUsage, least)
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	var named []string
	if *only != "" {
		named = strings.Split(*only, ",")
	}
	from, err := kindsOf(named, clockMoves)
	if err != nil {
		return fmt.Errorf("%w: --only: %v", errUsage, err)
	}
	p := makePlan(o.seed, o.duration, from)
	if o.dry {
		p.print(os.Stdout)
		return nil
	}
	return torture(&o, p)
}

// slack is how long a run may take beside its schedule.
func slack(duration time.Duration) time.Duration { return 3*time.Minute + duration/2 }

func torture(o *options, p plan) (err error) {
	var out io.Writer = os.Stdout
	if o.json {
		out = os.Stderr
	}
	if err := prepare(o); err != nil {
		return err
	}
	limit := o.duration + slack(o.duration)
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("the run took longer than %v", limit))
	defer cancel()
	ctx, interrupted := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer interrupted()
	ctx, fatal := context.WithCancelCause(ctx)
	defer fatal(nil)
	// The last resort, should a clean-up hang: the children die with this process, and the next run of the name removes the rest.
	time.AfterFunc(limit+time.Minute, func() {
		fmt.Fprintln(os.Stderr, "torture: failed: clean-up hangs")
		os.Exit(1)
	})

	dir := filepath.Join(o.dir, o.name)
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := clearDir(dir); err != nil {
		return err
	}
	p.print(out)
	fmt.Fprintln(out)
	hosts := append(append([]string{}, allNodes...), "store")
	net, err := newNetwork(ctx, "bt-"+o.name+"-", append(hosts, clients...), o.seed)
	c := &cluster{dir: dir, binary: o.binary, net: net, fatal: fatal}
	defer func() {
		c.stop()
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if net != nil {
			err = errors.Join(err, net.close(clean))
		}
		if err == nil && !o.keep {
			err = clearDir(dir)
		} else {
			fmt.Fprintf(out, "kept: %s\n", dir)
			err = errors.Join(err, unmountBelow(dir))
		}
	}()
	if err != nil {
		return err
	}
	if c.self, err = os.Executable(); err != nil {
		return err
	}
	if err := c.start(ctx); err != nil {
		return err
	}
	t := &trial{plan: p, cluster: c, out: out}
	runErr := t.run(ctx)
	if ctx.Err() != nil && context.Cause(ctx) != nil {
		runErr = errors.Join(context.Cause(ctx), runErr)
	}
	if errors.Is(runErr, context.Canceled) {
		return fmt.Errorf("interrupted: %w", runErr)
	}
	t.say("the histories are judged")
	var events [][]history.Event
	for _, path := range c.histories {
		e, err := history.Load(path)
		if err != nil {
			return err
		}
		events = append(events, e)
	}
	r := judge(p, t.windows, t.logs, events, t.stalls)
	r.Frames = net.sw.Counts()
	if runErr != nil {
		r.violate("the run did not go through: %v", runErr)
	}
	r.print(out)
	if o.json {
		if err := r.printJSON(os.Stdout); err != nil {
			return err
		}
	}
	if len(r.Violations) > 0 {
		return fmt.Errorf("%d violations; again with --seed %d", len(r.Violations), o.seed)
	}
	return nil
}

// prepare says what is missing.
func prepare(o *options) error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces, tmpfs and SIGSTOP of nodes need root; run it as root")
	}
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is missing; install iproute2 and nftables", tool)
		}
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("the switch needs TAP devices: %w", err)
	}
	if _, err := os.Stat(o.binary); err != nil {
		return fmt.Errorf("the btrlog binary: %w; make build makes it", err)
	}
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	o.binary, err = filepath.Abs(o.binary)
	return err
}

// lockDir makes the directory of a run, and holds it for this process.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("a run of this name is under way (%s); give this one another --name", dir)
	}
	return f, nil
}

// clearDir removes what an earlier run left.
func clearDir(dir string) error {
	if err := unmountBelow(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}
