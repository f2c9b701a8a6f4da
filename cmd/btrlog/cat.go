package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
)

const catLong = `Print the committed records of a log. The writer is not disturbed.

Without --lines, --length-prefixed and --json the bytes of the records come one record behind the other, as they were appended, with nothing
between them. The range is checked first: --from and --to must be LSNs that the log has and has not trimmed. Without them it is
all that there is when the command starts; an empty log prints nothing. 'btrlog log follow' goes on behind the tail.

When it fails, or is interrupted, what was printed ends with a whole record, and the message says with which one.`

type catFlags struct {
	from, to uint64
	form     recordForm
}

func logCat(c *connection) *cobra.Command {
	var o catFlags
	cmd := &cobra.Command{
		Use:   "cat NAME",
		Short: "Print the records of a log",
		Long:  catLong,
		Example: `  btrlog log cat --lines orders
  btrlog log cat --from 1000 --to 1999 orders > part
  btrlog log cat --json orders | jq -r '.data | @base64d'`,
		Args: oneArg("the log's name"), ValidArgsFunction: c.completeName,
	}
	f := cmd.Flags()
	f.Uint64Var(&o.from, "from", 0, "LSN of the first record (default: the first one that is not trimmed)")
	f.Uint64Var(&o.to, "to", 0, "LSN of the last record (default: the tail)")
	o.form.flags(cmd)
	run := c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		return o.run(ctx, client, args[0], cmd.OutOrStdout(), newProgress(cmd.ErrOrStderr(), "read", 0))
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.check(cmd); err != nil { // before anything is tried
			return err
		}
		return run(cmd, args)
	}
	return cmd
}

func (o *catFlags) check(cmd *cobra.Command) error {
	from, to := cmd.Flags().Changed("from"), cmd.Flags().Changed("to")
	if err := o.form.check(); err != nil {
		return err
	}
	switch {
	case from && o.from == 0, to && o.to == 0:
		return usagef("LSN 0 is before the first record; the first LSN is 1")
	case from && to && o.from > o.to:
		return usagef("--from %d is behind --to %d", o.from, o.to)
	}
	return nil
}

func (o *catFlags) run(ctx context.Context, client *btrlog.Client, name string, w io.Writer, p *progress) error {
	r, err := client.OpenReader(ctx, name)
	if err != nil {
		return err
	}
	from, to, err := o.bounds(ctx, client, r)
	if err != nil || to < from {
		return err
	}
	if isTerminal(w) {
		p = nil // it would write into the records
	}
	p.expect(int64(to - from + 1))
	defer p.done()
	out := newOutput(w, &o.form)
	var records, bytes int64
	next := from
	for rec, rerr := range r.Scan(ctx, from, to) {
		if err = rerr; err == nil {
			err = out.put(ctx, rec)
		}
		if err != nil {
			break
		}
		records++
		bytes += int64(len(rec.Data))
		next = rec.LSN + 1
		p.show(records, bytes)
	}
	if err == nil && next != to+1 {
		err = fmt.Errorf("log %q: the records ended with LSN %d, %d was wanted", name, next-1, to)
	}
	return printed(ctx, out, err, from)
}

// printed waits for the output, and says of a failure how far the output goes: what came before it is good.
func printed(ctx context.Context, out *output, err error, from btrlog.LSN) error {
	last, werr := out.finish(ctx)
	certain := ""
	switch {
	case werr != nil:
		// The reader of the log may only have ended because of it. How much of the last write was taken is not known.
		err, certain = werr, " for certain"
	case err != nil && ctx.Err() != nil:
		err = errInterrupted
	}
	if err == nil {
		return nil
	}
	what := "nothing was printed" + certain
	if last >= from {
		what = "printed" + certain + ": " + lsnRange(from, last)
	}
	return said{&hinted{fmt.Errorf("%w; %s", err, what), advice(err)}}
}

// bounds checks the wanted range against the log as it is now. to < from: the log holds nothing.
func (o *catFlags) bounds(ctx context.Context, client *btrlog.Client, r *btrlog.Reader) (from, to btrlog.LSN, err error) {
	name := r.Name()
	info, err := client.Info(ctx, name)
	if err != nil {
		return 0, 0, err
	}
	tail, err := r.Tail(ctx)
	if err != nil && (o.to == 0 || !errors.Is(err, btrlog.ErrUnavailable)) {
		return 0, 0, err
	}
	if err != nil {
		// Too few nodes to say where the log ends. A range with an end can still be read, as far as the living nodes vouch for it.
		tail = max(btrlog.LSN(o.from), btrlog.LSN(o.to))
	}
	from, to = btrlog.LSN(o.from), btrlog.LSN(o.to)
	first := max(info.TrimBefore, 1)
	if from == 0 {
		from = first
	}
	if to == 0 {
		to = tail
	}
	switch {
	case o.from != 0 && from > tail:
		return 0, 0, fmt.Errorf("log %q ends at LSN %d; --from %d is beyond it", name, tail, from)
	case o.to != 0 && to > tail:
		return 0, 0, fmt.Errorf("log %q ends at LSN %d; --to %d is beyond it", name, tail, to)
	case o.from != 0 && from < first:
		return 0, 0, belowTrim(name, "--from", from, first)
	case o.to != 0 && to < first:
		return 0, 0, belowTrim(name, "--to", to, first)
	}
	return from, to, nil
}
