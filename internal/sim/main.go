package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"runtime/debug"
)

const usage = `usage: btrlog sim run     [--seeds N] [--from S] [-v] [--json]
       btrlog sim mutants [--seeds N] [--from S] [--json]

run      runs N seeds from S of the simulator. A violation is printed with its
         seed and all that the seed drew; -v adds the trace of what happened.
mutants  breaks one rule at a time and looks for a seed that notices.
`

// Main is btrlog sim: args are what follows "sim". It returns the exit status: 0 when nothing was violated (or every
// mutant was killed), 1 otherwise, 2 for a wrong call.
func Main(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	f := flag.NewFlagSet("btrlog sim "+args[0], flag.ContinueOnError)
	f.SetOutput(stderr)
	seeds := f.Int("seeds", 200, "how many seeds; of mutants: at most how many each")
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

func mainMutants(from uint64, seeds int, only string, asJSON bool, stdout io.Writer) int {
	killed := 0
	verdicts := Mutants(from, seeds, only, func(v Verdict) {
		if v.Killed {
			killed++
		}
		if asJSON {
			return
		}
		if v.Killed {
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
