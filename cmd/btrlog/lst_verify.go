package main

import (
	"fmt"
	"io"
	"sort"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog/lst"
)

const lstVerifyLong = `Read every byte of a store and check it: the checksum of each frame and record, that each snapshot which may still be needed is whole, and
the index against the records: the place of every record, and each stream's count, bytes, contiguous end and EOF by descent of the index
against a full scan.

A torn tail, as a crash leaves it, is no damage: the next open for writing cuts it off. The exit code is 0 if the store is sound, and 1
with the first damage and the number of all of them if it is not.`

func lstVerifyCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Check every frame, snapshot and figure of a store",
		Long:  lstVerifyLong,
		Example: `  btrlog lst verify ./btrlog-node/shard-0
  btrlog lst verify --json ./data | jq .damages`,
		Args: dirArg,
	}
	jsonFlag(cmd, &asJSON, "the result as one JSON object")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in, err := inspect(args[0])
		if err != nil {
			return err
		}
		defer in.Close()
		rep, err := scanStore(cmd, in, "verified")
		if err != nil {
			return err
		}
		names := streamNames{}
		if v, err := in.View(); err == nil {
			names = namesOf(v)
		}
		if asJSON {
			err = printJSON(cmd.OutOrStdout(), verifyOf(in, rep, names))
		} else {
			err = printVerify(cmd.OutOrStdout(), in, rep, names)
		}
		if err != nil || rep.DamageCount == 0 {
			return err
		}
		return &hinted{fmt.Errorf("%s; the first: %w", plural(int64(rep.DamageCount), "damage"), rep.Damages[0]),
			"restore the file from a copy, or replace the node and let its peers fill it"}
	}
	return cmd
}

type verifyJSON struct {
	Sound       bool             `json:"sound"`
	DamageCount int              `json:"damage_count"`
	Damages     []damageJSON     `json:"damages"`
	Unreadable  []unreadableJSON `json:"unreadable,omitempty"`
	Lost        int              `json:"unreadable_records"`
	NotCompared string           `json:"not_compared,omitempty"`
	Streams     int              `json:"streams_compared"`
	KVs         int              `json:"keys_compared"`
	Records     int64            `json:"records"`
	Frames      map[string]int64 `json:"frames"`
	Snapshots   []snapshotJSON   `json:"snapshots"` // oldest first
	Torn        *damageJSON      `json:"torn_tail,omitempty"`
	Bytes       int64            `json:"bytes_read"`
	Millis      int64            `json:"elapsed_ms"`
}

type damageJSON struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	Reason string `json:"reason"`
}

type unreadableJSON struct {
	streamJSON
	From uint64 `json:"from"`
	To   uint64 `json:"to"` // the first that is not
}

func verifyOf(in *lst.Inspection, rep *lst.ScanReport, names streamNames) verifyJSON {
	v := verifyJSON{
		Sound: rep.DamageCount == 0, DamageCount: rep.DamageCount, Damages: []damageJSON{}, Lost: rep.UnreadableCount, NotCompared: rep.NotCompared, Streams: rep.Streams,
		KVs: rep.KVs, Records: rep.Records, Frames: rep.Frames, Snapshots: []snapshotJSON{}, Bytes: rep.BytesRead, Millis: rep.Elapsed.Milliseconds(),
	}
	for _, d := range rep.Damages {
		v.Damages = append(v.Damages, damageJSON{d.File, d.Offset, d.Reason})
	}
	for _, u := range rep.Unreadable {
		v.Unreadable = append(v.Unreadable, unreadableJSON{names.json(u.Stream), u.From, u.To})
	}
	for _, s := range rep.Snapshots {
		v.Snapshots = append(v.Snapshots, snapshotOf(s))
	}
	if r := in.Report; r.CutFile != "" {
		v.Torn = &damageJSON{r.CutFile, r.CutOffset, r.CutReason}
	}
	return v
}

func printVerify(w io.Writer, in *lst.Inspection, rep *lst.ScanReport, names streamNames) error {
	err := table(w, func(w io.Writer) {
		row := func(key, format string, args ...any) { fmt.Fprintf(w, key+"\t"+format+"\n", args...) }
		row("read", "%s, %s, %s", plural(int64(len(in.Segments)), "segment"), humanBytes(rep.BytesRead), plural(rep.Records, "record"))
		row("frames", "%s", frameCounts(rep.Frames))
		whole := 0
		for _, s := range rep.Snapshots {
			if s.Missing == "" {
				whole++
			}
		}
		row("snapshots", "%d whole, %d outlived or broken", whole, len(rep.Snapshots)-whole)
		if rep.NotCompared != "" {
			row("index", "not compared with the records: %s", rep.NotCompared)
		} else {
			row("index", "%s and %s agree with a full scan", plural(int64(rep.Streams), "stream"), plural(int64(rep.KVs), "key"))
			if rep.DamageCount > 0 {
				row("", "but for the damages below")
			}
		}
		if r := in.Report; r.CutFile != "" {
			row("torn tail", "%s at offset %d, %d bytes; the next open for writing cuts it off", r.CutFile, r.CutOffset, r.CutBytes)
		}
		row("damages", "%s", orElse(rep.DamageCount == 0, "none", fmt.Sprint(rep.DamageCount)))
		for _, d := range rep.Damages {
			row("", "%s:%d: %s", d.File, d.Offset, d.Reason)
		}
		if more := rep.DamageCount - len(rep.Damages); more > 0 {
			row("", "and %d more", more)
		}
		if rep.UnreadableCount > 0 {
			row("unreadable", "%s", plural(int64(rep.UnreadableCount), "record"))
		}
		for _, u := range rep.Unreadable {
			row("", "stream %s, %d to %d", names.of(u.Stream), u.From, u.To-1)
		}
	})
	return err
}

func frameCounts(m map[string]int64) string {
	var kinds []string
	for k := range m {
		kinds = append(kinds, k)
	}
	sort.Strings(kinds)
	s := ""
	for i, k := range kinds {
		s += fmt.Sprintf("%s%d %s", orElse(i > 0, ", ", ""), m[k], k)
	}
	return orElse(s != "", s, "none")
}
