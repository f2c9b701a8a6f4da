package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
)

const lstLong = `Look at the files of the storage engine: at a store of a program that embeds it, or at a shard of a log node, which is
DIR/shard-0 and so on, below the node's directory.

The commands that take a directory change nothing in it, not one byte, and take no lock: they work beside the process that writes it, on a plain
copy of the segment files, and on files that are damaged or cut off. What they print of a directory that is being written belongs to one
moment.`

func lstCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lst",
		Short: "Inspect the storage engine's files, or measure it",
		Long:  lstLong,
		Example: `  btrlog lst info ./btrlog-node/shard-0
  btrlog lst verify ./btrlog-node/shard-0 && echo sound`,
	}
	group(cmd)
	cmd.AddCommand(lstInfoCommand(), lstVerifyCommand(), lstDumpCommand(), lstLocateCommand(), lstStatCommand(), lstBenchCommand())
	return cmd
}

// inspect opens the store in dir for the tools.
func inspect(dir string) (*lst.Inspection, error) {
	in, err := lst.Inspect(dir, lst.Options{})
	switch {
	case err == nil:
		return in, nil
	case errors.Is(err, lst.ErrNotFound):
		if shards := shardsBelow(dir); len(shards) > 0 {
			return nil, &hinted{err, "this is the directory of a log node; its stores are " + strings.Join(shards, ", ")}
		}
		return nil, &hinted{err, "name the directory that holds the files *.lst"}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil, &hinted{err, "name the directory that holds the files *.lst"}
	case errors.Is(err, fs.ErrPermission):
		return nil, &hinted{err, "run it as a user who may read the directory and its files"}
	}
	return nil, err
}

func shardsBelow(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "shard-*")) // the pattern is sound
	var out []string
	for _, d := range found {
		if st, err := os.Stat(d); err == nil && st.IsDir() {
			out = append(out, d)
		}
	}
	return out
}

// viewOf is for the commands that need an index.
func viewOf(in *lst.Inspection, dir string) (lst.View, error) {
	v, err := in.View()
	if err != nil {
		return v, damaged(err, dir)
	}
	return v, nil
}

// damaged adds what to do about damage.
func damaged(err error, dir string) error {
	return &hinted{err, fmt.Sprintf("'btrlog lst verify %s' finds all damage; restore the file from a copy, or replace the node and let its peers fill it", dir)}
}

// streamNames prints and reads stream ids. In a log node's store an id is a log and a label.
type streamNames struct{ node bool }

// namesOf looks for the mark that a log node leaves in its stores.
func namesOf(v lst.View) streamNames {
	mark, err := v.GetKV([]byte{'i'}, nil)
	return streamNames{node: err == nil && len(mark) == 8}
}

func (n streamNames) of(id lst.StreamID) string {
	if n.node {
		log, label := split(id)
		return fmt.Sprintf("%v/%d", log, label)
	}
	return id.String()
}

func split(id lst.StreamID) (protocol.LogID, protocol.Epoch) {
	return protocol.LogID(binary.BigEndian.Uint64(id[:8])), protocol.Epoch(binary.BigEndian.Uint64(id[8:]))
}

// streamJSON is a stream in JSON: its id, and in a log node's store what that means.
type streamJSON struct {
	Stream string `json:"stream"`
	Log    string `json:"log,omitempty"`
	Label  uint64 `json:"label,omitempty"`
}

func (n streamNames) json(id lst.StreamID) streamJSON {
	s := streamJSON{Stream: id.String()}
	if n.node {
		log, label := split(id)
		s.Log, s.Label = log.String(), uint64(label)
	}
	return s
}

// parseStream reads a stream id: 32 hexadecimal digits, or LOG/LABEL as a log node names them.
func parseStream(s string) (id lst.StreamID, err error) {
	if log, label, ok := strings.Cut(s, "/"); ok {
		l, err1 := strconv.ParseUint(log, 16, 64)
		e, err2 := strconv.ParseUint(label, 10, 64)
		if err1 != nil || err2 != nil {
			return id, usagef("%q is no stream; write LOG/LABEL with the log's id in hexadecimal, such as 00000000000000a1/3", s)
		}
		binary.BigEndian.PutUint64(id[:8], l)
		binary.BigEndian.PutUint64(id[8:], e)
		return id, nil
	}
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != len(id) {
		return id, usagef("%q is no stream; write its 32 hexadecimal digits, or LOG/LABEL for a store of a log node", s)
	}
	return lst.StreamID(raw), nil
}

// parseSegment reads a segment's number, or its file name.
func parseSegment(s string) (uint32, error) {
	base, name := strings.CutSuffix(filepath.Base(s), ".lst")
	radix := 10
	if name {
		radix = 16
	}
	n, err := strconv.ParseUint(base, radix, 32)
	if err != nil || n == 0 {
		return 0, usagef("%q is no segment; write its number, or its file name such as 0000000a.lst", s)
	}
	return uint32(n), nil
}

func segmentFile(n uint32) string { return fmt.Sprintf("%08x.lst", n) }

// place prints a position as file:offset.
func place(l lst.Location) string {
	if l.Segment == 0 {
		return "-"
	}
	return fmt.Sprintf("%s:%d", segmentFile(l.Segment), l.Offset)
}

// scanStore reads the whole store, with progress on a terminal.
func scanStore(cmd *cobra.Command, in *lst.Inspection, what string) (*lst.ScanReport, error) {
	return scanShowing(cmd.Context(), in, newProgress(cmd.ErrOrStderr(), what, in.TotalBytes()))
}

func scanShowing(ctx context.Context, in *lst.Inspection, p *progress) (*lst.ScanReport, error) {
	defer p.done()
	rep, err := in.Scan(func(records, bytes int64) error {
		p.show(records, bytes)
		return ctx.Err()
	})
	return rep, interruptedScan(ctx, err)
}

func interruptedScan(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted before the end; nothing is known of what was not read")
	}
	return err
}

// dirArg is the argument that all commands have.
func dirArg(_ *cobra.Command, args []string) error { return oneArg("the store's directory")(nil, args) }
