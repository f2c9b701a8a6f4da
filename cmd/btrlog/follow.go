package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
)

const followLong = `Print the committed records of a log as they come: those from --from on, or else those that are committed from now on. The writer is not
disturbed. The command goes on when another writer takes the log over, when the log moves to other nodes, and, however long it takes, when nodes do
not answer; --verbose tells of that. Each record is printed at once, in the forms of 'btrlog log cat'.

Ctrl-C ends it with exit code 0, behind a whole record; so does --count, and a reader of the output that goes away. When the log is deleted, is
trimmed beyond what was printed, or has lost records, it ends with 1 and says how far it came.`

type followFlags struct {
	from, count uint64
	form        recordForm
}

func logFollow(c *connection) *cobra.Command {
	var o followFlags
	cmd := &cobra.Command{
		Use:   "follow NAME",
		Short: "Print the records of a log as they are committed",
		Long:  followLong,
		Example: `  btrlog log follow --lines orders
  btrlog log follow --from 1 --json orders | jq -r .lsn
  btrlog log follow --count 1 orders    # wait for the next record`,
		Args: oneArg("the log's name"), ValidArgsFunction: c.completeName,
	}
	f := cmd.Flags()
	f.Uint64Var(&o.from, "from", 0, "LSN of the first record; it may be the one behind the tail (default: the one behind the tail)")
	f.Uint64Var(&o.count, "count", 0, "end after so many records (default: go on)")
	o.form.flags(cmd)
	run := c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		return o.run(ctx, client, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.check(cmd); err != nil { // before anything is tried
			return err
		}
		return run(cmd, args)
	}
	return cmd
}

func (o *followFlags) check(cmd *cobra.Command) error {
	switch {
	case o.from == 0 && cmd.Flags().Changed("from"):
		return usagef("LSN 0 is before the first record; the first LSN is 1")
	case o.count == 0 && cmd.Flags().Changed("count"):
		return usagef("--count is 0; at least one record is needed, or no --count")
	}
	return o.form.check()
}

func (o *followFlags) run(ctx context.Context, client *btrlog.Client, name string, w, stderr io.Writer) error {
	ctx, release := whileRead(ctx, w)
	defer release()
	r, err := client.OpenReader(ctx, name)
	if err != nil {
		return err
	}
	from, err := o.start(ctx, client, r)
	if err != nil {
		return err
	}
	p := newProgress(stderr, "followed", 0)
	if isTerminal(w) {
		p = nil // it would write into the records
		if isTerminal(stderr) {
			fmt.Fprintf(stderr, "following log %s from LSN %d, end with Ctrl-C\n", name, from)
		}
	}
	defer p.done()
	out := newOutput(w, &o.form)
	var records, bytes int64
	for rec, rerr := range r.Follow(ctx, from) {
		if err = rerr; err == nil {
			err = out.put(ctx, rec)
		}
		if err != nil {
			break
		}
		records++
		bytes += int64(len(rec.Data))
		p.show(records, bytes)
		if o.count > 0 && uint64(records) == o.count {
			break
		}
	}
	if errors.Is(context.Cause(ctx), errReaderGone) {
		return nil
	}
	if ctx.Err() != nil {
		err = nil // a signal is how it ends; what is wrong with the output still counts
	}
	return printed(ctx, out, err, from)
}

// start is the first LSN to be printed.
func (o *followFlags) start(ctx context.Context, client *btrlog.Client, r *btrlog.Reader) (btrlog.LSN, error) {
	tail, err := r.Tail(ctx)
	if o.from == 0 {
		return tail + 1, err
	}
	info, ierr := client.Info(ctx, r.Name())
	if ierr != nil {
		return 0, ierr
	}
	from, first := btrlog.LSN(o.from), max(info.TrimBefore, 1)
	switch {
	case from < first:
		return 0, belowTrim(r.Name(), "--from", from, first)
	case errors.Is(err, btrlog.ErrUnavailable):
		return from, nil // too few nodes to say where the log ends: it is waited for
	case err != nil:
		return 0, err
	case from > tail+1:
		return 0, fmt.Errorf("log %q ends at LSN %d; --from %d is beyond the next one, LSN %d", r.Name(), tail, from, tail+1)
	}
	return from, nil
}

// belowTrim says that an LSN was trimmed.
func belowTrim(name, flag string, lsn, first btrlog.LSN) error {
	return fmt.Errorf("log %q is trimmed up to LSN %d; %s %d was removed; the first one left is LSN %d", name, first-1, flag, lsn, first)
}
