package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog/lst"
)

const lstInfoLong = `Print what a store is made of: its segments, the snapshots that an open would load, what recovery would do, the streams and keys, and
what the bytes of its files are.

The space figures need a pass over all files, which checks them too; --quick leaves them out, and reads headers, the newest snapshot and
what was written since. A store that does not open is shown as far as it can be read; the exit code is 1 then.`

func lstInfoCommand() *cobra.Command {
	var asJSON, quick bool
	cmd := &cobra.Command{
		Use:   "info DIR",
		Short: "Show segments, snapshots, recovery and space of a store",
		Long:  lstInfoLong,
		Example: `  btrlog lst info ./btrlog-node/shard-0
  btrlog lst info --quick --json ./data | jq .segments`,
		Args: dirArg,
	}
	jsonFlag(cmd, &asJSON, "everything as one JSON object")
	cmd.Flags().BoolVar(&quick, "quick", false, "leave out the figures that need a pass over all files")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in, err := inspect(args[0])
		if err != nil {
			return err
		}
		defer in.Close()
		d := infoJSON{Directory: args[0]}
		if !quick {
			rep, err := scanStore(cmd, in, "read")
			if err != nil {
				return err
			}
			d.Space, d.Damages = spaceOf(rep), &rep.DamageCount
		}
		if err := d.fill(in); err != nil {
			return damaged(err, args[0])
		}
		if asJSON {
			err = printJSON(cmd.OutOrStdout(), d)
		} else {
			err = d.print(cmd.OutOrStdout())
		}
		if err == nil && in.Damage != nil {
			err = damaged(in.Damage, args[0])
		}
		return err
	}
	return cmd
}

type infoJSON struct {
	Directory string         `json:"directory"`
	Kind      string         `json:"kind,omitempty"` // of the owner
	Opens     bool           `json:"opens"`
	Damage    string         `json:"damage,omitempty"`
	Format    int            `json:"format_version"`
	Files     int64          `json:"file_bytes"`
	End       *placeJSON     `json:"end,omitempty"`
	Segments  []segmentJSON  `json:"segments"`
	Foreign   []string       `json:"foreign_files,omitempty"`
	Snapshots []snapshotJSON `json:"snapshots"` // newest first
	Recovery  recoveryJSON   `json:"recovery"`
	Streams   int64          `json:"streams"`
	Keys      int64          `json:"keys"`
	Records   uint64         `json:"records"`
	Payload   uint64         `json:"payload_bytes"`
	Space     *spaceJSON     `json:"space,omitempty"`
	Damages   *int           `json:"damages,omitempty"`
}

type placeJSON struct {
	File    string `json:"file"`
	Segment uint32 `json:"segment"`
	Offset  int64  `json:"offset"`
	Length  int    `json:"length,omitempty"`
}

func placeOf(l lst.Location) placeJSON {
	return placeJSON{File: segmentFile(l.Segment), Segment: l.Segment, Offset: l.Offset, Length: l.Length}
}

type segmentJSON struct {
	Number   uint32     `json:"segment"`
	File     string     `json:"file"`
	State    string     `json:"state"`
	Bytes    int64      `json:"file_bytes"`
	Used     int64      `json:"used_bytes"`
	Format   int        `json:"format_version"`
	Zeroed   bool       `json:"preallocated"`
	Block    int        `json:"block_bytes"`
	Created  *time.Time `json:"created,omitempty"`
	Problem  string     `json:"problem,omitempty"`
	FramesAt int64      `json:"frames_from"`
	FramesTo int64      `json:"frames_to"`
}

type snapshotJSON struct {
	Number  uint64    `json:"snapshot"`
	Base    bool      `json:"base"`
	Root    placeJSON `json:"root"`
	Replay  placeJSON `json:"replay_from"`
	Taken   time.Time `json:"taken"`
	Records uint64    `json:"records"`
	Pieces  int       `json:"pieces"`
	Bytes   int64     `json:"bytes"`
	Missing string    `json:"missing,omitempty"`
}

type recoveryJSON struct {
	Snapshot uint64 `json:"snapshot"`
	Records  int    `json:"replayed_records"`
	Bytes    int64  `json:"walked_bytes"`
	CutFile  string `json:"cut_file,omitempty"`
	CutAt    int64  `json:"cut_offset,omitempty"`
	CutBytes int64  `json:"cut_bytes,omitempty"`
	Reason   string `json:"cut_reason,omitempty"`
	Millis   int64  `json:"elapsed_ms"`
}

type spaceJSON struct {
	Files    int64 `json:"file_bytes"`
	Live     int64 `json:"payload_bytes"`
	Dead     int64 `json:"dead_payload_bytes"`
	KVs      int64 `json:"key_value_bytes"`
	Headers  int64 `json:"record_header_bytes"`
	Index    int64 `json:"index_bytes"`
	Padding  int64 `json:"padding_bytes"`
	SegHeads int64 `json:"segment_header_bytes"`
	Unused   int64 `json:"unused_bytes"`
	Damaged  int64 `json:"damaged_bytes"`
	Cut      int64 `json:"cut_bytes"`
	Records  int64 `json:"records_in_files"`
}

func spaceOf(rep *lst.ScanReport) *spaceJSON {
	s := rep.Space
	return &spaceJSON{s.FileBytes, s.LivePayload, s.DeadPayload, s.KeyValues, s.RecordHeaders, s.Index, s.Padding, s.SegmentHeaders, s.Unused, s.Damaged, s.Cut, rep.Records}
}

func snapshotOf(s lst.SnapshotInfo) snapshotJSON {
	return snapshotJSON{s.Number, s.Base, placeOf(s.Root), placeOf(s.Replay), s.Taken.UTC(), s.Records, s.Pieces, s.Bytes, s.Missing}
}

func (d *infoJSON) fill(in *lst.Inspection) error {
	d.Segments, d.Snapshots, d.Foreign = []segmentJSON{}, []snapshotJSON{}, in.Foreign
	for _, s := range in.Segments {
		j := segmentJSON{Number: s.Number, File: s.File, State: string(s.State), Bytes: s.FileBytes, Used: s.To - s.From, Format: s.Format, Zeroed: s.Zeroed,
			Block: s.Block, Problem: s.Problem, FramesAt: s.From, FramesTo: s.To}
		if s.Format > 0 {
			t := s.Created.UTC()
			j.Created = &t
		}
		d.Format, d.Files = max(d.Format, s.Format), d.Files+s.FileBytes
		d.Segments = append(d.Segments, j)
	}
	for _, s := range in.Snapshots {
		d.Snapshots = append(d.Snapshots, snapshotOf(s))
	}
	r := in.Report
	d.Recovery = recoveryJSON{r.Snapshot, r.ReplayedRecords, r.ReplayedBytes, r.CutFile, r.CutOffset, r.CutBytes, r.CutReason, r.Elapsed.Milliseconds()}
	v, err := in.View()
	if err != nil {
		d.Damage = err.Error()
		return nil
	}
	d.Opens = true
	if end := in.End(); end.Segment > 0 {
		p := placeOf(end)
		d.End = &p
	}
	if namesOf(v).node {
		d.Kind = "log node"
	}
	v.Streams(nil, func(id lst.StreamID) bool {
		s, _ := v.Stat(id)
		d.Streams++
		d.Records += s.Count
		d.Payload += s.Bytes
		return true
	})
	v.KVs(nil, func(_, _ []byte) bool { d.Keys++; return true })
	return v.Err()
}

func (d *infoJSON) print(w io.Writer) error {
	err := table(w, func(w io.Writer) {
		row := func(key, format string, args ...any) { fmt.Fprintf(w, key+"\t"+format+"\n", args...) }
		row("store", "%s%s", d.Directory, orElse(d.Kind != "", ", a shard of a "+d.Kind, ""))
		row("format", "%d", d.Format)
		row("files", "%s, %s", plural(int64(len(d.Segments)), "segment"), humanBytes(d.Files))
		for i, f := range d.Foreign {
			row(orElse(i == 0, "not the store's", ""), "%s", f)
		}
		if !d.Opens {
			row("state", "damaged: it does not open")
		} else {
			row("streams", "%d with %s, %s of payload", d.Streams, plural(int64(d.Records), "record"), humanBytes(int64(d.Payload)))
			row("keys", "%d", d.Keys)
		}
		if d.End != nil {
			row("end", "%s:%d", d.End.File, d.End.Offset)
		}
		r := d.Recovery
		row("recovery", "snapshot %s, %s replayed, %s walked, %v", orElse(r.Snapshot > 0, fmt.Sprint(r.Snapshot), "none"), plural(int64(r.Records), "record"), humanBytes(r.Bytes), millis(r.Millis))
		if r.CutFile != "" {
			row("torn tail", "%s at offset %d, %d bytes: %s", r.CutFile, r.CutAt, r.CutBytes, r.Reason)
		}
		for i, s := range d.Snapshots {
			row(orElse(i == 0, "snapshots", ""), "%d, %s, %s in %s, %s, root at %s:%d, taken %s", s.Number, orElse(s.Base, "base", "delta"), humanBytes(s.Bytes),
				plural(int64(s.Pieces), "piece"), plural(int64(s.Records), "record"), s.Root.File, s.Root.Offset, stamp(s.Taken))
		}
		if d.Damages != nil {
			row("damages", "%d", *d.Damages)
		}
	})
	if err == nil && d.Space != nil {
		fmt.Fprintln(w)
		err = d.Space.print(w)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	return table(w, func(w io.Writer) {
		fmt.Fprintln(w, "SEGMENT\tSTATE\tFILE\tFRAMES\tFORMAT\tBLOCK\tCREATED\tPROBLEM")
		for _, s := range d.Segments {
			created := "-"
			if s.Created != nil {
				created = stamp(*s.Created)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", segmentFile(s.Number), s.State, humanBytes(s.Bytes), humanBytes(s.Used), s.Format, s.Block, created, orDash(s.Problem))
		}
	})
}

// print says what the files' bytes are, each line also as a part of the payload, which is what the rest is the price of.
func (s *spaceJSON) print(w io.Writer) error {
	return table(w, func(w io.Writer) {
		fmt.Fprintln(w, "SPACE\tBYTES\t\tOVER PAYLOAD")
		for _, r := range []struct {
			what string
			n    int64
		}{
			{"payload", s.Live}, {"dead payload", s.Dead}, {"record headers", s.Headers}, {"keys and values", s.KVs}, {"index", s.Index}, {"padding", s.Padding},
			{"segment headers", s.SegHeads}, {"unused", s.Unused}, {"torn or removable", s.Cut}, {"damaged", s.Damaged}, {"files", s.Files},
		} {
			over := "-"
			if s.Live > 0 {
				over = fmt.Sprintf("%.2f %%", 100*float64(r.n)/float64(s.Live))
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", r.what, r.n, humanBytes(r.n), over)
		}
	})
}
