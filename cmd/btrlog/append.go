package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
)

const appendLong = `Append records from standard input. The log must exist. With its first record the command opens the log for writing: the writer that
had it before, if any, is fenced and loses it. An input without a record disturbs nobody.

A record is one line without its line end, unless --chunk or --length-prefixed says otherwise. Records are sent as they are read, many
at a time; a slow producer's records are committed as they come.

At the end everything has been committed, and the command prints how much and where. When something fails it says which records are
committed for certain, which ones are not in the log for certain, and whose outcome is unknown: those may be in the log or not, and the
next one that opens the log decides. Ctrl-C ends the reading, and what was read is committed.`

type appendFlags struct {
	chunk    byteSize
	prefixed bool
	json     bool
}

func logAppend(c *connection) *cobra.Command {
	var o appendFlags
	cmd := &cobra.Command{
		Use:   "append NAME",
		Short: "Append records from standard input",
		Long:  appendLong,
		Example: `  printf 'one\ntwo\n' | btrlog log append orders
  btrlog log append --chunk 64KiB images < disk.img
  btrlog log cat --length-prefixed orders | btrlog log append --length-prefixed copy`,
		Args: oneArg("the log's name"), ValidArgsFunction: c.completeName,
	}
	f := cmd.Flags()
	f.Var(&o.chunk, "chunk", "make a record of every so many bytes, such as 64KiB, instead of every line")
	f.BoolVar(&o.prefixed, "length-prefixed", false, "each record comes with its length before it: four bytes, big-endian")
	jsonFlag(cmd, &o.json, "the result as one JSON object")
	run := c.with(func(ctx context.Context, cmd *cobra.Command, client *btrlog.Client, args []string) error {
		s, err := o.splitter(cmd)
		if err != nil {
			return err
		}
		// A name that is mistyped is found before anything is read, and without taking a log from anyone.
		info, err := infoFor(ctx, client, "append", args[0])
		if err != nil {
			return err
		}
		in := cmd.InOrStdin()
		if isTerminal(in) {
			fmt.Fprintf(cmd.ErrOrStderr(), "reading %s from the terminal, end with Ctrl-D\n", o.unit())
		}
		open := func(ctx context.Context) (*btrlog.Writer, error) {
			return client.OpenWriter(ctx, args[0], btrlog.WriterOptions{})
		}
		a := appender{open: open, log: args[0], durability: info.Options.Durability, timeout: c.timeout,
			progress: newProgress(cmd.ErrOrStderr(), "appended", sizeOf(in))}
		cause := a.copy(ctx, in, s)
		return a.finish(cmd.OutOrStdout(), o.json, cause)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := o.splitter(cmd); err != nil { // before anything is tried
			return err
		}
		return run(cmd, args)
	}
	return cmd
}

// unit is what the input is made of.
func (o *appendFlags) unit() string {
	if o.chunk != 0 || o.prefixed {
		return "records"
	}
	return "lines"
}

func (o *appendFlags) splitter(cmd *cobra.Command) (splitter, error) {
	switch {
	case o.chunk == 0 && cmd.Flags().Changed("chunk"):
		return nil, usagef("--chunk is 0; a record of a chunk has at least one byte")
	case o.chunk != 0 && o.prefixed:
		return nil, usagef("--chunk and --length-prefixed exclude each other")
	case o.chunk > btrlog.MaxRecordBytes:
		return nil, usagef("--chunk is %s; a record has at most %s", humanBytes(int64(o.chunk)), humanBytes(btrlog.MaxRecordBytes))
	case o.chunk != 0:
		return chunks{int(o.chunk)}, nil
	case o.prefixed:
		return prefixed{}, nil
	}
	return lines{}, nil
}

// appender copies an input into a log.
type appender struct {
	// open takes the log from its writer, so it waits for the first record: an input that has none, or is broken from its beginning,
	// fences nobody for nothing.
	open       func(ctx context.Context) (*btrlog.Writer, error)
	w          *btrlog.Writer // nil before the first record
	log        string
	durability btrlog.Durability
	timeout    time.Duration
	progress   *progress

	first, last btrlog.LSN // given out; zero: none
	records     int64
	bytes       int64
}

// errInterrupted: a signal came before the end of the input.
var errInterrupted = errors.New("interrupted")

// copy appends until the input ends (nil), the log refuses, or ctx ends. What was appended is not committed yet.
func (a *appender) copy(ctx context.Context, in io.Reader, s splitter) error {
	defer a.progress.done()
	full, empty := readBatches(ctx, in, s)
	for {
		var b *batch
		select {
		case b = <-full:
		case <-ctx.Done():
		}
		if ctx.Err() != nil || b == nil {
			return errInterrupted
		}
		err := b.each(func(rec []byte) error { return a.append(ctx, rec) })
		switch {
		case err != nil && ctx.Err() != nil:
			return errInterrupted
		case err != nil:
			return err
		case errors.Is(b.err, io.EOF):
			return nil
		case b.err != nil:
			return fmt.Errorf("record %d of the input: %w", a.records+1, b.err)
		}
		empty <- b // never blocks: there are as many places as batches
	}
}

func (a *appender) append(ctx context.Context, rec []byte) error {
	if a.w == nil {
		w, err := a.open(ctx)
		if err != nil {
			return err
		}
		a.w = w
	}
	lsn, err := a.w.Append(ctx, rec)
	if err != nil {
		return err
	}
	if a.first == 0 {
		a.first = lsn
	}
	a.last = lsn
	a.records++
	a.bytes += int64(len(rec))
	a.progress.show(a.records, a.bytes)
	return nil
}

// appendResult is what --json prints.
type appendResult struct {
	Log   string       `json:"log"`
	Epoch btrlog.Epoch `json:"epoch,omitempty"` // absent: there was no record to open the log for
	// Durability is what committed means for this log.
	Durability btrlog.Durability `json:"durability"`
	Records    int64             `json:"records"`
	Bytes      int64             `json:"bytes"`
	First      btrlog.LSN        `json:"first,omitempty"` // LSNs given out
	Last       btrlog.LSN        `json:"last,omitempty"`
	// Committed is true when all of them are. If not, CommittedTo is the last one that certainly is, and those behind it are unknown.
	Committed   bool       `json:"committed"`
	CommittedTo btrlog.LSN `json:"committed_to,omitempty"`
	Error       string     `json:"error,omitempty"`
}

// finish waits for the commit of what was appended, closes the writer, and says what became of the records. cause is why the copying
// ended. The waits have contexts of their own: after Ctrl-C the records that were sent still get their answer.
func (a *appender) finish(out io.Writer, asJSON bool, cause error) error {
	committed := a.settle(&cause)
	all := committed == a.last
	res := appendResult{Log: a.log, Durability: a.durability, Records: a.records, Bytes: a.bytes, First: a.first, Last: a.last, Committed: all}
	if a.w != nil {
		res.Epoch = a.w.Info().Epoch
	}
	if committed >= a.first {
		res.CommittedTo = committed
	}
	if cause == nil {
		var err error
		if asJSON {
			err = printJSON(out, res)
		} else {
			_, err = fmt.Fprintf(out, "appended %s\n", a.outcome(committed))
		}
		if err != nil {
			return said{fmt.Errorf("appended %s; this could not be printed: %w", a.outcome(committed), err)}
		}
		return nil
	}
	res.Error = oneLine(cause.Error())
	err := error(&hinted{fmt.Errorf("%w; %s", cause, a.statement(committed)), advice(cause)})
	if asJSON {
		err = errors.Join(err, printJSON(out, res))
	}
	return said{err}
}

// settle waits until nothing more becomes known of the records, closes the writer, and returns the last LSN that is committed. cause is
// set if it was nil and the wait failed.
func (a *appender) settle(cause *error) btrlog.LSN {
	if a.w == nil {
		return 0
	}
	var refused *btrlog.Error
	// A writer that refuses records for lack of answers, or has been fenced, has done its waiting.
	if a.last != 0 && !errors.As(*cause, &refused) {
		ctx, done := context.WithTimeout(context.Background(), a.timeout)
		err := a.w.Sync(ctx, a.last)
		done()
		if *cause == nil {
			*cause = err
		}
	}
	// Close hands the log over in order. If it cannot, nothing is lost: the next open finds out by itself.
	limit := a.timeout
	if a.w.Committed() < a.last {
		limit = min(limit, time.Second) // Sync, or the append that was refused, has waited long enough
	}
	ctx, done := context.WithTimeout(context.Background(), limit)
	_ = a.w.Close(ctx)
	done()
	return min(a.w.Committed(), a.last) // asked last: what is committed meanwhile is no longer unknown
}

// outcome counts what is committed, for a result without an error.
func (a *appender) outcome(committed btrlog.LSN) string {
	if a.records == 0 {
		return "0 records"
	}
	return fmt.Sprintf("%s, %s, %s", plural(a.records, "record"), lsnRange(a.first, committed), a.committed())
}

// committed is the word for it, which must not promise more than the log's mode holds (P14).
func (a *appender) committed() string {
	if a.durability == btrlog.Memory {
		return "committed in memory"
	}
	return "committed"
}

// statement says which records are in the log for certain, which are unknown, and that no others were written.
func (a *appender) statement(committed btrlog.LSN) string {
	switch {
	case a.records == 0:
		return "nothing was appended"
	case committed == a.last:
		return a.committed() + ": " + lsnRange(a.first, a.last) + "; nothing else was appended"
	case committed < a.first:
		return "outcome unknown: " + lsnRange(a.first, a.last) + "; nothing else was appended"
	}
	return a.committed() + ": " + lsnRange(a.first, committed) + "; outcome unknown: " + lsnRange(committed+1, a.last) + "; nothing else was appended"
}

// said marks an error that tells the whole outcome, so that an interruption does not hide it.
type said struct{ error }

func (s said) Unwrap() error { return s.error }

func isSaid(err error) bool {
	var s said
	return errors.As(err, &s)
}
