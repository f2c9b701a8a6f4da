package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog/lst/lstbench"
)

// lstBenchCommand is the verb "bench" of "lst".
func lstBenchCommand() *cobra.Command {
	var dir string
	var rows []string
	var quick, large, asJSON bool
	var seed uint64
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the storage engine against what it promises",
		Long: `Measure the storage engine against what it promises: one row of the table of its requirements after another, speeds as ratios against
the floor of the same work in the same run, everything else counted from outside. Each value comes with its spread, how it was counted, the device and
the mode. Nothing outside of a directory of its own is touched, and that is removed at the end.

The exit code is 1 if a row that must be reached was missed. On a machine that does other work too, that may say nothing about the engine.

The rows are ` + strings.Join(lstbench.Rows(), ", ") + `.`,
		Example: `  btrlog lst bench --quick
  btrlog lst bench --rows index-dense,append-raw --dir /mnt/nvme
  btrlog lst bench --json > result.json`,
		Args: noArgs,
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", "", "measure below this directory, on its device (default: the directory for temporary files)")
	f.StringSliceVar(&rows, "rows", nil, "only these rows, separated by commas")
	f.BoolVar(&quick, "quick", false, "less data: up to "+humanBytes(lstbench.Small.DiskBytes())+" on disk at a time instead of "+humanBytes(lstbench.Normal.DiskBytes()))
	f.BoolVar(&large, "large", false, "the sizes of the requirements: up to "+humanBytes(lstbench.Large.DiskBytes())+" on disk")
	f.Uint64Var(&seed, "seed", 1, "of all random choices")
	jsonFlag(cmd, &asJSON, "the results as one JSON document")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		lstbench.Child() // a writing process that a row has started
		if quick && large {
			return usagef("--quick and --large exclude each other")
		}
		scale := lstbench.Normal
		if quick {
			scale = lstbench.Small
		} else if large {
			scale = lstbench.Large
		}
		out, line := cmd.OutOrStdout(), newStatusLine(cmd.ErrOrStderr())
		report := func(r lstbench.Result) {
			if line.clear(); !asJSON {
				fmt.Fprint(out, resultText(r))
			}
		}
		if !asJSON {
			fmt.Fprintf(out, "seed %d, up to %s on disk\n", seed, humanBytes(scale.DiskBytes()))
		}
		results, err := lstbench.Run(lstbench.Config{
			Dir: dir, Rows: rows, Scale: scale, Seed: seed, ChildArgs: []string{"lst", "bench"}, Progress: func(row string, done, total int) error {
				line.show(row, done, total)
				return cmd.Context().Err()
			},
		}, report)
		line.clear()
		if errors.Is(err, lstbench.ErrRow) {
			return &usageError{err}
		}
		if asJSON {
			e := json.NewEncoder(out)
			e.SetIndent("", "  ")
			e.SetEscapeHTML(false)
			doc := struct {
				Seed    uint64            `json:"seed"`
				Results []lstbench.Result `json:"results"`
			}{seed, results}
			if jerr := e.Encode(doc); err == nil {
				err = jerr
			}
		}
		if err != nil {
			return err
		}
		missed := 0
		for _, r := range results {
			if r.Verdict == lstbench.Missed {
				missed++
			}
		}
		if missed > 0 {
			if !asJSON {
				fmt.Fprintf(out, "%s missed what they must reach\n", plural(int64(missed), "value"))
			}
			return &exitError{exitFailure}
		}
		return nil
	}
	return cmd
}

func resultText(r lstbench.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s %s: %s %s", r.Verdict, r.What, lstbench.Number(r.Value), r.Unit)
	if r.Blocks > 1 {
		fmt.Fprintf(&b, " (%s to %s)", lstbench.Number(r.Low), lstbench.Number(r.High))
	}
	if r.Must != nil {
		fmt.Fprintf(&b, ", must be %v", r.Must)
	}
	if r.Aim != nil {
		fmt.Fprintf(&b, ", aim %v", r.Aim)
	}
	fmt.Fprintf(&b, "\n         %s, %s; %s\n", r.Device, r.Mode, r.Counted)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "         %s\n", n)
	}
	return b.String()
}

// statusLine shows what runs, on a terminal only.
type statusLine struct {
	w     io.Writer
	drawn bool
}

func newStatusLine(w io.Writer) *statusLine {
	if !isTerminal(w) {
		return &statusLine{}
	}
	return &statusLine{w: w}
}

func (s *statusLine) show(row string, done, total int) {
	if s.w == nil {
		return
	}
	s.drawn = true
	if total == 0 {
		fmt.Fprintf(s.w, "\r%s\x1b[K", row)
		return
	}
	fmt.Fprintf(s.w, "\r%s %d of %d\x1b[K", row, done, total)
}

func (s *statusLine) clear() {
	if s.drawn {
		fmt.Fprint(s.w, "\r\x1b[K")
		s.drawn = false
	}
}
