package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
)

// fenceJSON is what --json prints.
type fenceJSON struct {
	Log   string       `json:"log"`
	Epoch btrlog.Epoch `json:"epoch"`
	// Tail is the last record: all at or below are committed, and nothing else comes before the next open.
	Tail btrlog.LSN `json:"tail"`
	// Repaired counts the LSNs that the writer had sent, that were not committed everywhere, and that are now.
	Repaired int `json:"repaired_lsns"`
	// Before is who had the log, and Old its epoch; 0: nobody.
	Before string       `json:"opener_before,omitempty"`
	Old    btrlog.Epoch `json:"epoch_before"`
}

func logFence(c *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "fence NAME",
		Short: "Stop the writer of a log, and settle where the log ends",
		Long: `Take a log from its writer: nothing that the writer sends is acknowledged any more, wherever it runs and whether or not it notices. What it had sent
and nobody had acknowledged is decided, so that the tail that is printed stays as it is until somebody opens the log. The command opens the log
and closes it at once; it appends nothing, and the next writer opens the log as always.

When it fails, the writer may be fenced already: repeat it.`,
		Example: `  btrlog log fence orders
  btrlog log fence --json orders | jq .tail`,
		Args: oneArg("the log's name"), ValidArgsFunction: c.completeName,
	}
	jsonFlag(cmd, &asJSON, "the epoch, the tail and who had the log before as one JSON object")
	cmd.RunE = c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		before, err := infoFor(ctx, client, "fence", args[0])
		if err != nil {
			return err
		}
		w, err := client.OpenWriter(ctx, args[0], btrlog.WriterOptions{})
		if err != nil {
			return err
		}
		// The writer is fenced and the tail decided since the open. Close hands the log over in order; if it cannot, the next open finds out by
		// itself.
		closing, done := context.WithTimeout(context.Background(), c.timeout)
		_ = w.Close(closing)
		done()
		now := w.Info()
		res := fenceJSON{now.Log, now.Epoch, now.Recovered, now.Repaired, before.Opener, before.Epoch}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), res)
		}
		whose := "nobody had opened it before"
		if res.Old != 0 {
			whose = fmt.Sprintf("epoch %d, opened by %s, appends no more", res.Old, orDash(res.Before))
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "log %s is fenced since epoch %d, its tail is LSN %d; %s\n", res.Log, res.Epoch, res.Tail, whose)
		return err
	})
	return cmd
}
