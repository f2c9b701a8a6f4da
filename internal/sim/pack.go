package sim

import (
	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/shard"
	"github.com/btrlog/btrlog/lst"
)

// source yields the records of a stretch, for the archive.
func source(view lst.View, s protocol.Segment) archive.RecordSource {
	return func(yield func(archive.Record, error) bool) {
		src := shard.NewSource(view, s)
		for src.Next() {
			r := src.Record()
			if !yield(archive.Record{LSN: r.LSN, Label: r.Label, More: r.More, Data: r.Data}, nil) {
				return
			}
		}
		if err := src.Err(); err != nil {
			yield(archive.Record{}, err)
		}
	}
}

// flushPack archives stretches of several logs in one object.
func (n *node) flushPack(p *proc, arch *archive.Archive, due []protocol.Segment, view lst.View, life int) {
	w := n.w
	plans := make([]archive.PackPlan, 0, len(due))
	for _, s := range due {
		plans = append(plans, archive.PackPlan{Plan: s, Source: source(view, s)})
	}
	w.c.add(&w.c.Packs)
	for i, r := range arch.FlushPack(p.context(w.now+20*second), plans) {
		s := plans[i].Plan
		if r.Err != nil {
			w.c.add(&w.c.FlushErrors)
			w.tracef("%s: log %s [%d,%d]@%d in a pack: %v", n.id, s.Log, s.First, s.Last, s.Label, r.Err)
		}
		n.archived(s.Log, r.Objects, life)
	}
}

// merged counts what merging in a round of collection did.
func (n *node) merged(r archive.MergeResult, err error) {
	w := n.w
	w.c.PacksMerged += r.Merged
	w.c.PacksDeleted += r.Deleted
	if err != nil || r != (archive.MergeResult{}) {
		w.tracef("%s: packs %+v, %v", n.id, r, err)
	}
}
