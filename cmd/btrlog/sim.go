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
		simExplore(),
		simVerb("run", 200, "Run seeds and check them", simRunLong, `  btrlog sim run --seeds 1000
  btrlog sim run --from 4711 --seeds 1 -v     # one seed again, with its trace`),
		simVerb("mutants", 1000, "Break one rule at a time and demand that it is noticed", `Break one rule of the protocol at a time, and look for a seed that notices: the same workload and the same judges as those of run. A
few rules that this workload hardly gets at are left to the explorer. It fails if one goes unnoticed: a check that cannot fail is no check.

The last line is mutants=N killed=N.`, "  btrlog sim mutants\n  btrlog sim mutants --only no-repair,reply-before-commit"))
	return cmd
}

const simRunLong = `Run seeds and check them. A violation is printed with its seed and all that the seed drew.

The table counts what happened in all seeds together: what was asked (Appends, Opens, Tails, Trims), what went wrong on purpose (Kills,
PowerCuts, Wipes, Partitioned, Duplicated), and what the protocol made of it (Commits, Takeovers, Repaired, Copied, Archived…). The last
line is the verdict: failed seeds, and missing, the events that so many seeds should have met and did not; then counts per second.`

func simExplore() *cobra.Command {
	cmd := &cobra.Command{Use: "explore", Short: "Walk through every state of a small world", Args: noArgs,
		Long: `Walk through every state that a small world can get into, nearest first: the real state machines of nodes, openers and writers, and a
network that loses, doubles and reorders without bound. Each state is judged by the contents of records; a violation comes with a shortest way
there. Worlds that differ only in the names of nodes are one.

"exhausted" means that no state is left to go on from; there is no bound on the depth. The exit code is 0 if the world is exhausted and no rule
was broken.`,
		Example: `  btrlog sim explore
  btrlog sim explore --records 2 --crashes 1 --wipes 1 -v       # minutes
  btrlog sim explore --opened --records 2 --rules watermark-before-activate`}
	f := cmd.Flags()
	numbers := []string{"nodes", "quorum", "writers", "records", "crashes", "wipes", "damages", "reopens", "flights", "states"}
	f.Int("nodes", 3, "log nodes")
	f.Int("quorum", 2, "write quorum")
	f.Int("writers", 2, "how often the log is opened, each time by another writer")
	f.Int("records", 1, "how many records are appended")
	f.Int("crashes", 1, "how often a node dies and starts again")
	f.Int("wipes", 1, "how many disks are replaced by empty ones")
	f.Int("damages", 0, "how many records on disks become unreadable, 0 or 1; each counts as a disk that is lost")
	f.Int("reopens", 0, "how many of the opens may be a live writer's own")
	f.Int("flights", 0, "how many sends of a writer may be under way before it holds a record; 0 is no limit")
	f.Int("states", 0, "give up after so many states; 0 is never")
	opened := f.Bool("opened", false, "begin with a log that is open and active on every node")
	tails := f.Bool("tails", false, "opens ask for the tail together with the promise, as clients do: more states")
	symmetry := f.Bool("no-symmetry", false, "count worlds apart that differ only in the names of nodes")
	rules := f.String("rules", "", "break the rule of this mutant, and find the shortest way to a violation")
	verbose := f.BoolP("verbose", "v", false, "tell how far it is, on standard error")
	var asJSON bool
	jsonFlag(cmd, &asJSON, "the result as one JSON document")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		args := []string{"explore", fmt.Sprintf("-opened=%t", *opened), fmt.Sprintf("-tails=%t", *tails), fmt.Sprintf("-no-symmetry=%t", *symmetry), "-rules=" + *rules, fmt.Sprintf("-v=%t", *verbose),
			fmt.Sprintf("-json=%t", asJSON)}
		for _, n := range numbers {
			args = append(args, fmt.Sprintf("-%s=%s", n, f.Lookup(n).Value))
		}
		if code := sim.Main(args, cmd.OutOrStdout(), cmd.ErrOrStderr()); code != exitOK {
			return &exitError{code}
		}
		return nil
	}
	return cmd
}

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
