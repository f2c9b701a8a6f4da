package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog/lst"
)

const lstStatLong = `Print what the index knows of each stream: records present, their bytes, the first one, the end of the run that begins with it, EOF (the
highest sequence ever written, plus one) and the trim point. No record is read.

In a store of a log node a stream is a log's id and a label, and sequences are LSNs.`

type statFlags struct {
	stream string
	by     string
	top    int
	json   bool
}

func lstStatCommand() *cobra.Command {
	var o statFlags
	cmd := &cobra.Command{
		Use:   "stat DIR",
		Short: "Show count, bytes and ends of each stream",
		Long:  lstStatLong,
		Example: `  btrlog lst stat --top 10 ./btrlog-node/shard-0
  btrlog lst stat --stream 00000000000000a1/3 ./btrlog-node/shard-0
  btrlog lst stat --by id --json ./data`,
		Args: dirArg,
	}
	f := cmd.Flags()
	f.StringVar(&o.stream, "stream", "", "only this stream: 32 hexadecimal digits, or LOG/LABEL")
	f.StringVar(&o.by, "by", "bytes", "order: bytes, count or eof, largest first, or id")
	f.IntVar(&o.top, "top", 0, "only so many streams (default: all)")
	jsonFlag(cmd, &o.json, "one JSON object per stream")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0]) }
	return cmd
}

type streamStat struct {
	id lst.StreamID
	lst.Stat
}

type statJSON struct {
	streamJSON
	Count      uint64 `json:"count"`
	Bytes      uint64 `json:"bytes"`
	First      uint64 `json:"first"`
	Contiguous uint64 `json:"contiguous"`
	EOF        uint64 `json:"eof"`
	Trim       uint64 `json:"trim"`
}

var statOrders = map[string]func(a, b streamStat) int{
	"bytes": func(a, b streamStat) int { return cmp.Compare(b.Bytes, a.Bytes) },
	"count": func(a, b streamStat) int { return cmp.Compare(b.Count, a.Count) },
	"eof":   func(a, b streamStat) int { return cmp.Compare(b.EOF, a.EOF) },
	"id":    func(a, b streamStat) int { return 0 },
}

func (o *statFlags) run(cmd *cobra.Command, dir string) error {
	order := statOrders[o.by]
	if order == nil {
		return usagef("--by is %q; it can be bytes, count, eof or id", o.by)
	}
	if o.top < 0 {
		return usagef("--top is %d; it must be at least 1", o.top)
	}
	var only lst.StreamID
	var err error
	if o.stream != "" {
		if only, err = parseStream(o.stream); err != nil {
			return err
		}
	}
	in, err := inspect(dir)
	if err != nil {
		return err
	}
	defer in.Close()
	v, err := viewOf(in, dir)
	if err != nil {
		return err
	}
	names := namesOf(v)
	var all []streamStat
	if o.stream != "" {
		s, ok := v.Stat(only)
		if !ok {
			return unknownStream(o.stream, dir)
		}
		all = append(all, streamStat{only, s})
	} else {
		v.Streams(nil, func(id lst.StreamID) bool {
			if s, ok := v.Stat(id); ok {
				all = append(all, streamStat{id, s})
			}
			return cmd.Context().Err() == nil
		})
	}
	if err := v.Err(); err != nil {
		return damaged(err, dir)
	}
	slices.SortStableFunc(all, order)
	shown := all
	if o.top > 0 {
		shown = all[:min(o.top, len(all))]
	}
	if o.json {
		for _, s := range shown {
			if err := printJSON(cmd.OutOrStdout(), statJSON{names.json(s.id), s.Count, s.Bytes, s.First, s.Contiguous, s.EOF, s.Trim}); err != nil {
				return err
			}
		}
		return nil
	}
	return printStat(cmd.OutOrStdout(), shown, all, names)
}

func unknownStream(name, dir string) error {
	return &hinted{fmt.Errorf("stream %s: not found in %s", name, dir), fmt.Sprintf("'btrlog lst stat %s' shows the streams", dir)}
}

func printStat(w io.Writer, shown, all []streamStat, names streamNames) error {
	return table(w, func(w io.Writer) {
		fmt.Fprintf(w, "%s\tCOUNT\tBYTES\tFIRST\tCONTIGUOUS\tEOF\tTRIM\n", orElse(names.node, "LOG/LABEL", "STREAM"))
		for _, s := range shown {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\n", names.of(s.id), s.Count, s.Bytes, s.First, s.Contiguous, s.EOF, s.Trim)
		}
		var count, bytes uint64
		for _, s := range all {
			count, bytes = count+s.Count, bytes+s.Bytes
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t\t\t\t\n", plural(int64(len(all)), "stream"), count, bytes)
	})
}

const lstLocateLong = `Print where a record's payload is: file, offset and length in bytes. Only the index is read. Four bytes of checksum stand in front of it.

In a store of a log node the payload begins with a few bytes that the node adds.`

func lstLocateCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "locate DIR STREAM SEQUENCE",
		Short: "Say where a record is on disk",
		Long:  lstLocateLong,
		Example: `  btrlog lst locate ./data 000102030405060708090a0b0c0d0e0f 42
  btrlog lst locate --json ./btrlog-node/shard-0 00000000000000a1/3 42`,
		Args: func(_ *cobra.Command, args []string) error {
			switch len(args) {
			case 0, 1, 2:
				return usagef("%s is missing", []string{"the store's directory", "the stream", "the sequence"}[len(args)])
			case 3:
				return nil
			}
			return usagef("unexpected argument %q after the sequence", args[3])
		},
	}
	jsonFlag(cmd, &asJSON, "file, segment, offset and length as one JSON object")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := parseStream(args[1])
		if err != nil {
			return err
		}
		seq, err := strconv.ParseUint(args[2], 10, 63)
		if err != nil {
			return usagef("%q is no sequence; it is a number from 0 to 2^63-1", args[2])
		}
		in, err := inspect(args[0])
		if err != nil {
			return err
		}
		defer in.Close()
		v, err := viewOf(in, args[0])
		if err != nil {
			return err
		}
		loc, err := v.Locate(id, seq)
		if err != nil {
			return absentRecord(v, err, id, seq, args)
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), placeOf(loc))
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s:%d\n", place(loc), loc.Length)
		return err
	}
	return cmd
}

func absentRecord(v lst.View, err error, id lst.StreamID, seq uint64, args []string) error {
	var c *lst.Corruption
	if errors.As(err, &c) {
		return damaged(err, args[0])
	}
	s, ok := v.Stat(id)
	if !ok {
		return unknownStream(args[1], args[0])
	}
	if errors.Is(err, lst.ErrTrimmed) {
		return fmt.Errorf("record %d of stream %s: trimmed; the stream begins at %d", seq, args[1], s.Trim)
	}
	return fmt.Errorf("record %d of stream %s: not found; the stream has %s, the first is %d and EOF is %d", seq, args[1], plural(int64(s.Count), "record"), s.First, s.EOF)
}
