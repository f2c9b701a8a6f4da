package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
)

func logDelete(c *connection) *cobra.Command {
	var sure bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a log and all its records, for ever",
		Long: `Delete a log and all its records, for ever. Its writer, if there is one, is fenced first, so that nothing is acknowledged any more. The name
is free afterwards; a log that is created under it is another log. The nodes delete its archived objects in the background.

There is no way back, so the command asks for --yes. When it fails, the log is still there, and its writer may be fenced already: repeat it.`,
		Example: "  btrlog log delete --yes orders",
		Args:    oneArg("the log's name"), ValidArgsFunction: c.completeName,
	}
	cmd.Flags().BoolVar(&sure, "yes", false, "delete it; without this nothing is done")
	run := c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		if err := client.Delete(ctx, args[0]); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "deleted log %s\n", args[0])
		return err
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !sure {
			return usagef("log %q was not deleted: its records would be gone for ever; if that is meant, repeat the command with --yes", args[0])
		}
		return run(cmd, args)
	}
	return cmd
}

func logTrim(c *connection) *cobra.Command {
	var before uint64
	cmd := &cobra.Command{
		Use:   "trim NAME",
		Short: "Remove the oldest records of a log, for ever",
		Long: `Remove the records of a log below an LSN, for ever. The writer is not disturbed. Nothing that is not committed can be trimmed; the records'
space on the nodes comes back, and archived objects that end below it are deleted in the background.`,
		Example: "  btrlog log trim --before 1000 orders    # LSN 1000 is the first one left",
		Args:    oneArg("the log's name"), ValidArgsFunction: c.completeName,
	}
	cmd.Flags().Uint64Var(&before, "before", 0, "LSN of the first record that stays; required")
	run := c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		if err := client.Trim(ctx, args[0], btrlog.LSN(before)); err != nil {
			return err
		}
		info, err := client.Info(ctx, args[0])
		if err != nil {
			return fmt.Errorf("the log was trimmed, but cannot be shown: %w", err)
		}
		gone := "nothing"
		if info.TrimBefore > 1 {
			gone = lsnRange(1, info.TrimBefore-1)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "log %s is trimmed: %s\n", info.Name, gone)
		return err
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case !cmd.Flags().Changed("before"):
			return usagef("--before is missing: the LSN of the first record that stays")
		case before == 0:
			return usagef("LSN 0 is before the first record; the first LSN is 1")
		}
		return run(cmd, args)
	}
	return cmd
}

func logSet(c *connection) *cobra.Command {
	var retain byteSize
	var retainAge, flushAge time.Duration
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Change what a log retains, and its flush age",
		Long: `Change what a log retains, and its flush age; what is not given stays. The writer is not disturbed. The other options of a log are those of its
creation; 'btrlog log replace' moves it to other nodes.

Retention trims: what it removes is gone for ever. The nodes look every ten minutes, and trim whole segments that are archived.`,
		Example: `  btrlog log set --retain 100GiB orders
  btrlog log set --retain-age 168h --retain 0 orders    # a week, whatever it takes`,
		Args: oneArg("the log's name"), ValidArgsFunction: c.completeName,
	}
	f := cmd.Flags()
	f.Var(&retain, "retain", "trim the oldest records beyond so many archived bytes, such as 100GiB; 0 is any size")
	f.DurationVar(&retainAge, "retain-age", 0, "trim what was archived longer ago than this, such as 168h; 0 is any age")
	f.DurationVar(&flushAge, "flush-age", 0, "age at which a segment is archived although it is not full, such as 5m; negative is never")
	run := c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		info, err := client.Info(ctx, args[0])
		if err != nil {
			return err
		}
		o := info.Options
		if f.Changed("retain") {
			o.RetainBytes = int64(retain)
		}
		if f.Changed("retain-age") {
			o.RetainAge = retainAge
		}
		if f.Changed("flush-age") {
			o.FlushAge = flushAge
		}
		if err := client.SetRetention(ctx, args[0], o.RetainAge, o.RetainBytes, o.FlushAge); err != nil {
			return err
		}
		flush := "never"
		if o.FlushAge > 0 {
			flush = o.FlushAge.String()
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "log %s retains %s, %s; flush age %s\n", info.Name,
			orElse(o.RetainAge > 0, o.RetainAge.String(), "any age"), orElse(o.RetainBytes > 0, humanBytes(o.RetainBytes), "any size"), flush)
		return err
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case !f.Changed("retain") && !f.Changed("retain-age") && !f.Changed("flush-age"):
			return usagef("nothing to change is given: --retain, --retain-age or --flush-age")
		case f.Changed("flush-age") && flushAge == 0:
			return usagef("--flush-age is 0; a negative one is never, and the default is 5m")
		case retainAge < 0:
			return usagef("--retain-age is %v; 0 is any age", retainAge)
		}
		return run(cmd, args)
	}
	return cmd
}

func logReplace(c *connection) *cobra.Command {
	var pairs []string
	cmd := &cobra.Command{
		Use:   "replace NAME",
		Short: "Move a log to other nodes, or adopt a replaced disk",
		Long: `Exchange nodes of a log: what is committed and not archived is copied to the new ones, and the log names them from then on. A node whose disk
was replaced is given for itself, n3=n3: under its name is another incarnation now, which does not count for the log before it is adopted.

The command opens the log for writing: the writer that had it before, if any, is fenced and loses it. Enough of the old nodes must answer
(N − Qw + 1 that still have their disks); otherwise nothing changes but that the writer may be fenced, and the command can be repeated.
A program that must not lose its log moves it itself, with the writer's Reopen.`,
		Example: `  btrlog log replace --node n3=n4 orders
  btrlog log replace --node n3=n3 orders    # n3 has a new disk
  btrlog nodes                              # which nodes there are`,
		Args: oneArg("the log's name"), ValidArgsFunction: c.completeName,
	}
	cmd.Flags().StringSliceVar(&pairs, "node", nil, "OLD=NEW: the node NEW takes the place of OLD; may be given several times; required")
	var swap map[string]string
	run := c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		info, err := client.Info(ctx, args[0])
		if err != nil {
			return err
		}
		if len(info.Nodes) == 0 {
			return &hinted{fmt.Errorf("log %q was never opened, so it has no nodes to replace", args[0]), "its first writer takes nodes that are there"}
		}
		w, err := client.OpenWriter(ctx, args[0], btrlog.WriterOptions{Replace: swap})
		if err != nil {
			return err
		}
		// The nodes are on record since the open. Close hands the log over in order; if it cannot, the next open finds out by itself.
		closing, done := context.WithTimeout(context.Background(), c.timeout)
		_ = w.Close(closing)
		done()
		now := w.Info()
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "log %s is on %s since epoch %d\n", now.Log, memberNames(membersOf(now.Nodes), ", "), now.Epoch)
		return err
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if swap, err = swapOf(pairs); err != nil { // before anything is tried
			return &usageError{err}
		}
		return run(cmd, args)
	}
	return cmd
}

// swapOf reads pairs OLD=NEW.
func swapOf(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, errors.New("--node is missing: OLD=NEW, for example n3=n4, or n3=n3 for a replaced disk")
	}
	swap := map[string]string{}
	var taken []string
	for _, p := range pairs {
		from, to, ok := strings.Cut(p, "=")
		if !ok || from == "" || to == "" {
			return nil, fmt.Errorf("--node %q is not OLD=NEW, for example n3=n4", p)
		}
		if _, dup := swap[from]; dup {
			return nil, fmt.Errorf("--node replaces %s twice", from)
		}
		swap[from] = to
		taken = append(taken, to)
	}
	if twice := repeated(taken); twice != "" {
		return nil, fmt.Errorf("--node puts %s in two places; a log has each node once", twice)
	}
	return swap, nil
}

// nodeJSON is a node as --json prints it.
type nodeJSON struct {
	Name        string `json:"name"`
	Zone        string `json:"zone,omitempty"`
	UDP         string `json:"udp"`
	HTTP        string `json:"http"`
	Shards      int    `json:"shards"`
	State       string `json:"state"`
	Incarnation string `json:"incarnation"`
}

func nodesCommand() *cobra.Command {
	var c connection
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes of a cluster, by name",
		Long: `List the log nodes that are registered in a cluster, by name: their zone, address, state and incarnation, which changes when a node's disk is
replaced. It is what the cluster's store says; whether a node answers is not asked.

Without --store and --nodes the command speaks to the node at ` + defaultListen + `, which is where 'btrlog dev' listens.`,
		Example: `  btrlog nodes
  btrlog nodes --json | jq -r 'select(.state == "active") | .udp'`,
		Args: noArgs,
	}
	c.flags(cmd)
	jsonFlag(cmd, &asJSON, "one JSON object per node and line")
	cmd.RunE = c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, _ []string) error {
		nodes, err := client.Nodes(ctx)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if asJSON {
			for _, n := range nodes {
				if err := printJSON(out, nodeJSON{n.Name, n.Zone, n.UDP, n.HTTP, n.Shards, n.State, incarnation(n.Incarnation)}); err != nil {
					return err
				}
			}
			return nil
		}
		rows := [][]string{{"NAME", "ZONE", "ADDRESS", "STATE", "SHARDS", "INCARNATION"}}
		for _, n := range nodes {
			rows = append(rows, []string{n.Name, orDash(n.Zone), n.UDP, n.State, fmt.Sprint(n.Shards), incarnation(n.Incarnation)})
		}
		return printRows(out, rows)
	})
	return cmd
}
