package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
)

const catLong = `Print the committed records of a log. The writer is not disturbed.

Without --lines, --length-prefixed and --json the bytes of the records come one record behind the other, as they were appended, with nothing
between them. The range is checked first: --from and --to must be LSNs that the log has and has not trimmed. Without them it is
all that there is when the command starts; an empty log prints nothing.`

type catFlags struct {
	from, to uint64
	lines    bool
	prefixed bool
	json     bool
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
	f.BoolVar(&o.lines, "lines", false, "a line end behind each record")
	f.BoolVar(&o.prefixed, "length-prefixed", false, "each record's length before it: four bytes, big-endian")
	jsonFlag(cmd, &o.json, `one JSON object per record and line: its lsn, its size_bytes, and its data in base64`)
	run := c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		// From here a signal ends the command at once, as it ends cat(1): a reader holds nothing, and a write to a pipe that nobody reads could not
		// be interrupted otherwise.
		signal.Reset(os.Interrupt, syscall.SIGTERM)
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
	forms := 0
	for _, b := range []bool{o.lines, o.prefixed, o.json} {
		if b {
			forms++
		}
	}
	switch {
	case forms > 1:
		return usagef("--lines, --length-prefixed and --json exclude each other")
	case from && o.from == 0, to && o.to == 0:
		return usagef("LSN 0 is before the first record; the first LSN is 1")
	case from && to && o.from > o.to:
		return usagef("--from %d is behind --to %d", o.from, o.to)
	}
	return nil
}

func (o *catFlags) run(ctx context.Context, client *btrlog.Client, name string, out io.Writer, p *progress) error {
	r, err := client.OpenReader(ctx, name)
	if err != nil {
		return err
	}
	from, to, err := o.bounds(ctx, client, r)
	if err != nil || to < from {
		return err
	}
	if isTerminal(out) {
		p = nil // it would write into the records
	}
	defer p.done()
	w := bufio.NewWriterSize(out, 256<<10)
	var records, bytes int64
	next := from
	for rec, err := range r.Scan(ctx, from, to) {
		if err != nil {
			// What came before the failure is good and is printed; the message says where it ends.
			return errors.Join(w.Flush(), broken(err, from, next))
		}
		if err := o.write(w, rec); err != nil {
			return err
		}
		records++
		bytes += int64(len(rec.Data))
		next = rec.LSN + 1
		p.show(records, bytes)
	}
	if next != to+1 {
		return errors.Join(w.Flush(), fmt.Errorf("log %q: the records ended with LSN %d, %d was wanted", name, next-1, to))
	}
	return w.Flush()
}

// broken says how far the output goes.
func broken(err error, from, next btrlog.LSN) error {
	printed := "nothing was printed"
	if next > from {
		printed = "printed: " + lsnRange(from, next-1)
	}
	return &hinted{fmt.Errorf("%w; %s", err, printed), advice(err)}
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
		return 0, 0, fmt.Errorf("log %q is trimmed up to LSN %d; --from %d was removed; the first one left is LSN %d", name, first-1, from, first)
	case o.to != 0 && to < first:
		return 0, 0, fmt.Errorf("log %q is trimmed up to LSN %d; --to %d was removed; the first one left is LSN %d", name, first-1, to, first)
	}
	return from, to, nil
}

// recordJSON is what --json prints of a record.
type recordJSON struct {
	LSN  btrlog.LSN `json:"lsn"`
	Size int        `json:"size_bytes"`
	Data []byte     `json:"data"` // in base64
}

func (o *catFlags) write(w *bufio.Writer, rec btrlog.Record) error {
	if o.json {
		data := rec.Data
		if data == nil {
			data = []byte{} // an empty record is "", not null
		}
		return printJSON(w, recordJSON{rec.LSN, len(data), data})
	}
	if o.prefixed {
		var head [4]byte
		binary.BigEndian.PutUint32(head[:], uint32(len(rec.Data))) // a record has at most 8 MiB
		if _, err := w.Write(head[:]); err != nil {
			return err
		}
	}
	if _, err := w.Write(rec.Data); err != nil {
		return err
	}
	if o.lines {
		return w.WriteByte('\n')
	}
	return nil
}
