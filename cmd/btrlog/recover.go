package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
)

const recoverLong = `Open a log that ordinary commands cannot open any more, because nodes or their disks are gone, and bring it onto nodes that are there. Nodes that
run with a new disk are adopted; --node puts others in the place of those that are not there.

Without --accept-loss nothing is lost: the command does what 'btrlog log replace' does, and fails when too few of the disks that the log knows
are left, or a committed record is nowhere. First try everything to bring one of the disks back: a node that answers with it is all that is needed.

With --accept-loss the log goes on without what cannot be had any more. --gone names the nodes that are not waited for, because they or their disks are
lost for good; a node that has a new disk is one of them. All others must answer. If the log can be opened without a loss, it is, and nothing
is lost. Otherwise, when for some time nobody has said anything new, the rest of the log is put together from the nodes that answer and
from the archive, and the command prints, and the log's record keeps, what is lost:

  lost       committed records that are nowhere
  skipped    numbers behind the last record that was found; records may have been acknowledged there. So many numbers (10^12) are skipped that
             none is given to a second record

Readers get an error for these LSNs, and everything else. There is no way back: what is lost stays lost, even if one of the nodes that were called
gone turns up. The previous writer of the log must be stopped: if it can still reach the nodes that were called gone, it goes on, and what it
writes there is lost.`

// recoverFlags are those of log recover.
type recoverFlags struct {
	accept bool
	gone   []string
	pairs  []string
	wait   time.Duration
	json   bool
}

func logRecover(c *connection) *cobra.Command {
	var o recoverFlags
	cmd := &cobra.Command{
		Use:   "recover NAME",
		Short: "Open a log that has lost nodes; with --accept-loss, without what they alone had",
		Long:  recoverLong,
		Example: `  btrlog log recover orders                                       # adopts new disks, loses nothing
  btrlog log recover --accept-loss --gone n2,n3 orders            # n2 and n3 have new disks
  btrlog log recover --accept-loss --gone n2,n3 --node n2=n4 --node n3=n5 orders`,
		Args: oneArg("the log's name"), ValidArgsFunction: c.completeName,
	}
	f := cmd.Flags()
	f.BoolVar(&o.accept, "accept-loss", false, "go on without the records that cannot be had any more")
	f.StringSliceVar(&o.gone, "gone", nil, "names of the nodes that are not waited for; with --accept-loss")
	f.StringSliceVar(&o.pairs, "node", nil, "OLD=NEW: the node NEW takes the place of OLD; may be given several times")
	f.DurationVar(&o.wait, "wait", 0, "how long nobody must have said anything new; with --accept-loss (default: a third of --timeout)")
	jsonFlag(cmd, &o.json, "the result as one JSON object")
	var swap map[string]string
	run := c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		return o.run(ctx, cmd, c, client, args[0], swap)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		switch { // before anything is tried
		case !o.accept && (len(o.gone) > 0 || cmd.Flags().Changed("wait")):
			return usagef("--gone and --wait are for --accept-loss, without which nothing is given up")
		case cmd.Flags().Changed("wait") && o.wait <= 0:
			return usagef("--wait is %v; it must be above 0", o.wait)
		}
		if twice := repeated(o.gone); twice != "" {
			return usagef("--gone names %s twice", twice)
		}
		if len(o.pairs) > 0 {
			if swap, err = swapOf(o.pairs); err != nil {
				return &usageError{err}
			}
		}
		return run(cmd, args)
	}
	return cmd
}

func (o *recoverFlags) run(ctx context.Context, cmd *cobra.Command, c *connection, client *btrlog.Client, name string, swap map[string]string) error {
	info, err := client.Info(ctx, name)
	if err != nil {
		return err
	}
	if len(info.Nodes) == 0 {
		return &hinted{fmt.Errorf("log %q was never opened, so there is nothing to recover", name), "its first writer takes nodes that are there"}
	}
	options := btrlog.WriterOptions{Replace: map[string]string{}}
	for _, n := range info.Nodes {
		if n.Replaced {
			options.Replace[n.Name] = n.Name
		}
	}
	for from, to := range swap {
		options.Replace[from] = to
	}
	if o.accept {
		for _, gone := range o.gone {
			if options.Replace[gone] == "" && slices.ContainsFunc(info.Nodes, func(n btrlog.NodeInfo) bool { return n.Name == gone }) {
				return usagef("node %s is called gone, and nothing takes its place: start it with an empty directory, or give another with --node %s=OTHER", gone, gone)
			}
		}
		// What is accepted is the loss of the log as it is now: if another opens it meanwhile, the consent is for nothing.
		options.AcceptLoss = &btrlog.AcceptLoss{Log: info.ID, Epoch: info.Epoch, Gone: o.gone, Wait: o.wait}
	}
	w, err := client.OpenWriter(ctx, name, options)
	if err != nil {
		return o.explain(name, err)
	}
	// All is on record since the open. Close hands the log over in order; if it cannot, the next open finds out by itself.
	closing, done := context.WithTimeout(context.Background(), c.timeout)
	_ = w.Close(closing)
	done()
	return o.print(cmd.OutOrStdout(), w.Info())
}

// explain says what to do next.
func (o *recoverFlags) explain(name string, err error) error {
	var e *btrlog.Error
	if !errors.As(err, &e) || !errors.Is(err, btrlog.ErrUnavailable) || len(e.Missing) == 0 && !strings.Contains(err.Error(), "neither found nor archived") {
		return err
	}
	hint := "start the nodes that do not answer"
	if len(e.Replaced) > 0 {
		hint = "bring back the disks that the log knows of " + strings.Join(e.Replaced, ", ")
	}
	if !o.accept {
		gone := ""
		if len(e.Missing) > 0 {
			gone = " --gone " + strings.Join(e.Missing, ",")
		}
		hint += fmt.Sprintf("; only if that can never be done: 'btrlog log recover --accept-loss%s %s' goes on without what is lost, see its --help", gone, name)
	} else {
		hint += "; nodes that will never answer must be named with --gone"
	}
	return &hinted{err, hint}
}

// recovered is what --json prints.
type recovered struct {
	Log   string       `json:"log"`
	Epoch btrlog.Epoch `json:"epoch"`
	Nodes []member     `json:"nodes"`
	// Tail is the last LSN: that of a record, or the last that was skipped. Next is the first that will be given out.
	Tail btrlog.LSN   `json:"tail"`
	Next btrlog.LSN   `json:"next"`
	Lost []lostFields `json:"lost"`
	// Copied counts the records that were written to nodes that lacked them.
	Copied int `json:"copied"`
}

// lostFields is a lost range as --json prints it.
type lostFields struct {
	From    btrlog.LSN   `json:"from"`
	To      btrlog.LSN   `json:"to"`
	Epoch   btrlog.Epoch `json:"epoch"`
	At      time.Time    `json:"at"`
	Skipped bool         `json:"skipped"`
}

func lostOf(lost []btrlog.LostRange) []lostFields {
	out := make([]lostFields, len(lost))
	for i, l := range lost {
		out[i] = lostFields{l.From, l.To, l.Epoch, l.At, l.Skipped}
	}
	return out
}

func (o *recoverFlags) print(out io.Writer, now btrlog.WriterInfo) error {
	res := recovered{Log: now.Log, Epoch: now.Epoch, Nodes: membersOf(now.Nodes), Tail: now.Recovered, Next: now.Next, Lost: lostOf(now.Lost), Copied: now.Copied}
	if o.json {
		return printJSON(out, res)
	}
	if _, err := fmt.Fprintf(out, "log %s is on %s since epoch %d; %s copied, the next LSN is %d\n", res.Log, memberNames(res.Nodes, ", "), res.Epoch,
		plural(int64(res.Copied), "record"), res.Next); err != nil {
		return err
	}
	if len(res.Lost) == 0 {
		_, err := fmt.Fprintln(out, "nothing is lost")
		return err
	}
	for _, l := range res.Lost {
		if _, err := fmt.Fprintln(out, lostLine(l)); err != nil {
			return err
		}
	}
	return nil
}

// lostLine tells of one lost range.
func lostLine(l lostFields) string {
	if l.Skipped {
		return fmt.Sprintf("skipped: %s; records may have been acknowledged there, none was found", lsnRange(l.From, l.To))
	}
	return fmt.Sprintf("lost: %s; committed, and nowhere", lsnRange(l.From, l.To))
}
