package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog/internal/sim"
)

func simCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run the seeded simulator of the protocol",
		Long: `Run the seeded simulator of the protocol. It drives the production code of nodes, writers and readers through a simulated network, disk,
object store and clock, injects faults, and checks that nothing committed is lost or forged. The same seed is the same run, byte for byte.

The exit code is 0 if nothing was violated, and 1 otherwise.`,
	}
	group(cmd)
	cmd.AddCommand(
		simVerb("run", 200, "Run seeds and check them", simRunLong, `  btrlog sim run --seeds 1000
  btrlog sim run --from 4711 --seeds 1 -v     # one seed again, with its trace`),
		simVerb("mutants", 200, "Break one rule at a time and demand that a seed notices", `Break one rule of the protocol at a time, and look for a seed that notices. It fails if one
goes unnoticed: a check that cannot fail is no check.`, "  btrlog sim mutants"))
	return cmd
}

const simRunLong = `Run seeds and check them. A violation is printed with its seed and all that the seed drew.

The table counts what happened in all seeds together: what was asked (Appends, Opens, Tails, Trims), what went wrong on purpose (Kills,
PowerCuts, Wipes, Partitioned, Duplicated), and what the protocol made of it (Commits, Takeovers, Repaired, Copied, Archived…). The last
line is the verdict: failed seeds, and missing, the events that so many seeds should have met and did not; then counts per second.`

func simVerb(verb string, seeds int, short, long, example string) *cobra.Command {
	var from uint64
	var only string
	var verbose, asJSON bool
	cmd := &cobra.Command{Use: verb, Short: short, Long: long, Example: example, Args: noArgs}
	f := cmd.Flags()
	f.IntVar(&seeds, "seeds", seeds, "how many seeds; of mutants: at most how many each")
	f.Uint64Var(&from, "from", 1, "first seed")
	if verb == "mutants" {
		f.StringVar(&only, "only", "", "the mutants to try, by name with commas between; all if empty")
	}
	f.BoolVarP(&verbose, "verbose", "v", false, "print the trace of a seed that fails")
	jsonFlag(cmd, &asJSON, "the result as one JSON document")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if seeds < 1 {
			return usagef("--seeds is %d; at least 1 is needed", seeds)
		}
		if verb == "run" && !asJSON {
			fmt.Fprintln(cmd.OutOrStdout(), "counts of all seeds together; 'btrlog sim run --help' explains them")
		}
		// The simulator looks at no clock and no signal, so it is ended from outside: it has nothing to leave in order.
		stop := context.AfterFunc(cmd.Context(), func() {
			os.Exit(report(cmd.ErrOrStderr(), cmd, errInterrupted))
		})
		defer stop()
		args := []string{verb, fmt.Sprintf("-seeds=%d", seeds), fmt.Sprintf("-from=%d", from), fmt.Sprintf("-v=%t", verbose), fmt.Sprintf("-json=%t", asJSON), "-only=" + only}
		if code := sim.Main(args, cmd.OutOrStdout(), cmd.ErrOrStderr()); code != exitOK {
			return &exitError{code}
		}
		return nil
	}
	return cmd
}
