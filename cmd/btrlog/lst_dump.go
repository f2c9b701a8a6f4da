package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
)

const lstDumpLong = `Print the frames of a segment, or the records of a stream, with their places in the files.

With --segment, --from and --to are byte offsets; damage is shown as what it is, and the dump goes on behind it. With --stream they are
sequences, --to the first that is not printed; a record that cannot be read is an error that names file and offset.

In a store of a log node a record's payload is printed without the bytes that the node adds.`

type dumpFlags struct {
	segment, stream string
	from, to        uint64
	ops             bool
	bytes           int
	json            bool
}

func lstDumpCommand() *cobra.Command {
	var o dumpFlags
	cmd := &cobra.Command{
		Use:   "dump DIR (--segment NUMBER | --stream STREAM)",
		Short: "Print the frames of a segment or the records of a stream",
		Long:  lstDumpLong,
		Example: `  btrlog lst dump --segment 0000000a.lst --ops ./data
  btrlog lst dump --stream 00000000000000a1/3 --from 100 --to 110 ./btrlog-node/shard-0
  btrlog lst dump --stream 000102030405060708090a0b0c0d0e0f --bytes -1 --json ./data | jq -r .payload`,
		Args: dirArg,
	}
	f := cmd.Flags()
	f.StringVar(&o.segment, "segment", "", "a segment, by number or file name")
	f.StringVar(&o.stream, "stream", "", "a stream: 32 hexadecimal digits, or LOG/LABEL in a store of a log node")
	f.Uint64Var(&o.from, "from", 0, "first offset or sequence")
	f.Uint64Var(&o.to, "to", 0, "offset or sequence to stop in front of (default: the end)")
	f.BoolVar(&o.ops, "ops", false, "list the operations of each batch too")
	f.IntVar(&o.bytes, "bytes", 64, "print so many bytes of each payload, key and value; -1 for all")
	jsonFlag(cmd, &o.json, "one JSON object per frame or record; bytes are in base64")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0]) }
	return cmd
}

func (o *dumpFlags) run(cmd *cobra.Command, dir string) error {
	switch {
	case (o.segment == "") == (o.stream == ""):
		return usagef("give one of --segment and --stream")
	case o.to > 0 && o.to < o.from:
		return usagef("--to %d is below --from %d", o.to, o.from)
	case o.segment != "" && max(o.from, o.to) > math.MaxInt64:
		return usagef("offsets end at 2^63-1")
	case o.stream != "" && o.ops:
		return usagef("--ops is for segments")
	}
	w := bufio.NewWriter(cmd.OutOrStdout())
	err := o.dump(cmd, w, dir)
	if ferr := w.Flush(); err == nil {
		err = ferr
	}
	if ctx := cmd.Context(); err != nil && ctx.Err() != nil {
		return errors.New("interrupted before the end")
	}
	return err
}

func (o *dumpFlags) dump(cmd *cobra.Command, w io.Writer, dir string) error {
	var number uint32
	var id lst.StreamID
	var err error
	if o.segment != "" {
		number, err = parseSegment(o.segment)
	} else {
		id, err = parseStream(o.stream)
	}
	if err != nil {
		return err
	}
	in, err := inspect(dir)
	if err != nil {
		return err
	}
	defer in.Close()
	stopped := func() error { return cmd.Context().Err() }
	if o.stream != "" {
		return o.records(in, w, dir, id, stopped)
	}
	names := streamNames{}
	if v, err := in.View(); err == nil {
		names = namesOf(v)
	}
	err = in.Frames(number, int64(o.from), int64(o.to), func(f *lst.Frame) error {
		if err := o.frame(w, f, names); err != nil {
			return err
		}
		return stopped()
	})
	if errors.Is(err, lst.ErrNotFound) {
		return &hinted{err, fmt.Sprintf("'btrlog lst info --quick %s' lists the segments", dir)}
	}
	return err
}

type frameJSON struct {
	placeJSON
	Kind   string     `json:"kind"`
	Claim  *placeJSON `json:"durable_before,omitempty"`
	Detail string     `json:"detail,omitempty"`
	Ops    int        `json:"operations,omitempty"`
	List   []opJSON   `json:"list,omitempty"`
}

type opJSON struct {
	Kind string `json:"kind"`
	*streamJSON
	Seq   *uint64    `json:"sequence,omitempty"`
	At    *placeJSON `json:"at,omitempty"`
	Key   []byte     `json:"key,omitempty"`
	Value []byte     `json:"value,omitempty"`
}

func (o *dumpFlags) frame(w io.Writer, f *lst.Frame, names streamNames) error {
	if o.json {
		j := frameJSON{placeJSON: placeOf(f.Location), Kind: f.Kind, Detail: f.Detail, Ops: len(f.Ops)}
		if f.Claim.Segment > 0 {
			p := placeOf(f.Claim)
			j.Claim = &p
		}
		for k := range f.Ops {
			if o.ops {
				j.List = append(j.List, o.opJSON(&f.Ops[k], names))
			}
		}
		return printJSON(w, j)
	}
	detail := f.Detail
	if len(f.Ops) > 0 {
		detail = opCounts(f.Ops)
	}
	if _, err := fmt.Fprintf(w, "%-21s %8d  %-7s  %s\n", place(f.Location), f.Length, f.Kind, detail); err != nil {
		return err
	}
	for k := range f.Ops {
		if o.ops {
			if _, err := fmt.Fprintf(w, "    %s\n", o.opLine(&f.Ops[k], names)); err != nil {
				return err
			}
		}
	}
	return nil
}

func hasStream(op *lst.Op) bool { return op.Kind != "put" && op.Kind != "delete" }

func (o *dumpFlags) opJSON(op *lst.Op, names streamNames) opJSON {
	j := opJSON{Kind: op.Kind, Key: o.clip(op.Key), Value: o.clip(op.Value)}
	if hasStream(op) {
		s := names.json(op.Stream)
		j.streamJSON = &s
		if op.Kind != "delete stream" {
			j.Seq = &op.Seq
		}
	}
	if op.At.Segment > 0 {
		p := placeOf(op.At)
		j.At = &p
	}
	return j
}

func (o *dumpFlags) opLine(op *lst.Op, names streamNames) string {
	switch op.Kind {
	case "put":
		return fmt.Sprintf("put %s = %s", o.quote(op.Key), o.quote(op.Value))
	case "delete":
		return "delete " + o.quote(op.Key)
	case "trim":
		return fmt.Sprintf("trim %s below %d", names.of(op.Stream), op.Seq)
	case "delete stream":
		return "delete stream " + names.of(op.Stream)
	}
	return fmt.Sprintf("%s %s %d at %s, %d bytes", op.Kind, names.of(op.Stream), op.Seq, place(op.At), op.At.Length)
}

// opCounts is for example "3 appends, 1 put".
func opCounts(ops []lst.Op) string {
	var order []string
	n := map[string]int64{}
	for k := range ops {
		if n[ops[k].Kind]++; n[ops[k].Kind] == 1 {
			order = append(order, ops[k].Kind)
		}
	}
	s := ""
	for i, k := range order {
		s += orElse(i > 0, ", ", "") + plural(n[k], k)
	}
	return s
}

type storedJSON struct {
	streamJSON
	Seq     uint64    `json:"sequence"`
	At      placeJSON `json:"at"`
	Payload []byte    `json:"payload,omitempty"`
	Bytes   int       `json:"payload_bytes"`
	CLSN    uint64    `json:"watermark,omitempty"`
}

func (o *dumpFlags) records(in *lst.Inspection, w io.Writer, dir string, id lst.StreamID, stopped func() error) error {
	v, err := viewOf(in, dir)
	if err != nil {
		return err
	}
	if _, ok := v.Stat(id); !ok {
		return unknownStream(o.stream, dir)
	}
	to := o.to
	if to == 0 {
		to = math.MaxUint64
	}
	names := namesOf(v)
	it := v.Range(id, o.from, to)
	for it.Next() {
		loc, err := v.Locate(id, it.Seq())
		if err == nil {
			err = o.record(w, id, it, loc, names)
		}
		if err == nil {
			err = stopped()
		}
		if err != nil {
			return err
		}
	}
	if err := it.Err(); err != nil {
		return damaged(err, dir)
	}
	return nil
}

func (o *dumpFlags) record(w io.Writer, id lst.StreamID, it *lst.Iterator, loc lst.Location, names streamNames) error {
	j := storedJSON{streamJSON: names.json(id), Seq: it.Seq(), At: placeOf(loc)}
	payload := it.Value()
	if names.node {
		_, label := split(id)
		s, err := protocol.DecodeStored(protocol.LSN(it.Seq()), label, payload)
		if err != nil {
			return fmt.Errorf("%s: %w", place(loc), err)
		}
		payload, j.CLSN = s.Data, uint64(s.CLSN)
	}
	j.Bytes, j.Payload = len(payload), o.clip(payload)
	if o.json {
		return printJSON(w, j)
	}
	_, err := fmt.Fprintf(w, "%12d  %-21s %8d  %s\n", j.Seq, place(loc), j.Bytes, o.quote(payload))
	return err
}

func (o *dumpFlags) clip(b []byte) []byte {
	if o.bytes >= 0 && len(b) > o.bytes {
		return b[:o.bytes]
	}
	return b
}

func (o *dumpFlags) quote(b []byte) string {
	s := strconv.QuoteToGraphic(string(o.clip(b)))
	return orElse(len(o.clip(b)) < len(b), s+"…", s)
}
