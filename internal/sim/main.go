package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/btrlog/btrlog/internal/protocol"
)

const usage = `usage: btrlog sim run     [--seeds N] [--from S] [-v] [--json]
       btrlog sim mutants [--seeds N] [--from S] [--only NAMES] [--json]
       btrlog sim explore [--nodes N] [--quorum Q] [--writers W] [--records R] [--crashes C] [--wipes X] [--reopens L] [--rules NAME] [--json]

run      runs N seeds from S of the simulator. A violation is printed with its
         seed and all that the seed drew; -v adds the trace of what happened.
mutants  breaks one rule at a time and looks for a seed that notices.
explore  walks through all states of a small world.
`

// Main is btrlog sim: args are what follows "sim". It returns the exit status: 0 when nothing was violated (or every
// mutant was killed), 1 otherwise, 2 for a wrong call.
func Main(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	if args[0] == "explore" {
		return mainExplore(args[1:], stdout, stderr)
	}
	f := flag.NewFlagSet("btrlog sim "+args[0], flag.ContinueOnError)
	f.SetOutput(stderr)
	seeds := f.Int("seeds", 1000, "how many seeds; of mutants: at most how many each")
	from := f.Uint64("from", 1, "first seed")
	verbose := f.Bool("v", false, "print the trace of a seed that fails")
	only := f.String("only", "", "the mutants to try, by name with commas between; all if empty")
	asJSON := f.Bool("json", false, "print one JSON document")
	if err := f.Parse(args[1:]); err != nil {
		return 2
	}
	if *seeds < 1 || f.NArg() > 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	// A world is small and makes much garbage: memory for time.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	switch args[0] {
	case "run":
		return mainRun(Options{From: *from, Seeds: *seeds, Trace: *verbose}, *asJSON, stdout)
	case "mutants":
		return mainMutants(*from, *seeds, *only, *asJSON, stdout)
	}
	fmt.Fprint(stderr, usage)
	return 2
}

func mainRun(o Options, asJSON bool, stdout io.Writer) int {
	r := Run(o)
	if asJSON {
		writeJSON(stdout, r)
	} else {
		fmt.Fprintln(stdout, r.Text())
	}
	if !r.OK() {
		return 1
	}
	return 0
}

func mainExplore(args []string, stdout, stderr io.Writer) int {
	var o Exploration
	f := flag.NewFlagSet("btrlog sim explore", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.Nodes, "nodes", 3, "log nodes")
	f.IntVar(&o.Qw, "quorum", 2, "write quorum")
	f.IntVar(&o.Writers, "writers", 2, "how many open the log")
	f.IntVar(&o.Records, "records", 1, "how many records are appended")
	f.IntVar(&o.Crashes, "crashes", 1, "how often a node dies and starts again")
	f.IntVar(&o.Wipes, "wipes", 1, "how many disks are replaced by empty ones")
	f.BoolVar(&o.Tails, "tails", false, "opens ask for the tail together with the promise, as clients do")
	f.IntVar(&o.Damages, "damages", 0, "how many records on disks are damaged, 0 or 1")
	f.IntVar(&o.Reopens, "reopens", 0, "how many of the opens may be a live writer's")
	f.IntVar(&o.Flights, "flights", 0, "sends of a writer that may be under way before it holds a record; 0 is no limit")
	f.BoolVar(&o.Opened, "opened", false, "begin with a log that is open")
	f.IntVar(&o.MaxStates, "states", 0, "give up after so many states; 0 is never")
	f.BoolVar(&o.NoSymmetry, "no-symmetry", false, "count worlds apart that differ only in the names of nodes")
	rules := f.String("rules", "", "a mutant's name: break that rule, and find the shortest way to a violation")
	asJSON := f.Bool("json", false, "print one JSON document")
	verbose := f.Bool("v", false, "tell how far it is, on standard error")
	if err := f.Parse(args); err != nil {
		return 2
	}
	if err := o.check(); err != nil || f.NArg() > 0 {
		fmt.Fprintf(stderr, "btrlog sim explore: %v\n%s", err, usage)
		return 2
	}
	if *rules != "" {
		m, ok := mutantNamed(*rules)
		if !ok || m.Rules == (protocol.Rules{}) {
			fmt.Fprintf(stderr, "btrlog sim explore: no mutant of the state machines is called %q\n", *rules)
			return 2
		}
		o.Rules = m.Rules
	}
	if *verbose {
		o.Progress = func(states, frontier, depth int) {
			fmt.Fprintf(stderr, "%d states, depth %d, %d states to go on from\n", states, depth, frontier)
		}
	}
	r := Explore(o)
	if *asJSON {
		writeJSON(stdout, r)
	} else {
		fmt.Fprint(stdout, r.Text(o))
	}
	if r.Rule != "" || !r.Exhausted {
		return 1
	}
	return 0
}

func mainMutants(from uint64, seeds int, only string, asJSON bool, stdout io.Writer) int {
	killed := 0
	verdicts := Mutants(from, seeds, only, func(v Verdict) {
		if v.Killed {
			killed++
		}
		if asJSON {
			return
		}
		if v.Killed && v.Explorer {
			fmt.Fprintf(stdout, "%-28s killed by %s, by the explorer, in %d steps, after %d states (survived %d seeds): %s\n", v.Name, v.By, v.Steps, v.Events, v.Seeds, v.How)
		} else if v.Killed {
			fmt.Fprintf(stdout, "%-28s killed by %s, seed %d, after %d seeds, %d events: %s\n", v.Name, v.By, v.Seed, v.Seeds, v.Events, v.How)
		} else {
			fmt.Fprintf(stdout, "%-28s NOT KILLED in %d seeds (%s)\n", v.Name, v.Seeds, v.Breaks)
		}
	})
	if asJSON {
		writeJSON(stdout, struct {
			Mutants  int       `json:"mutants"`
			Killed   int       `json:"killed"`
			Verdicts []Verdict `json:"verdicts"`
		}{len(verdicts), killed, verdicts})
	} else {
		fmt.Fprintf(stdout, "mutants=%d killed=%d\n", len(verdicts), killed)
	}
	if killed < len(verdicts) {
		return 1
	}
	return 0
}

func writeJSON(w io.Writer, v any) {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	// The document is made of numbers and strings; what can fail is the writer, and then nobody is there to be told.
	_ = e.Encode(v)
}
