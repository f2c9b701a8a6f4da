package sim

import (
	"context"
	"errors"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
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

// mergePacks has the archive merge packs, as any node may at any time.
func (n *node) mergePacks(p *proc, arch *archive.Archive) {
	w := n.w
	cat := w.newCatalog()
	keep := func(ctx context.Context, log protocol.LogID) (protocol.LSN, error) {
		l, err := cat.LoadByID(ctx, log)
		switch {
		case errors.Is(err, meta.ErrDeleted):
			return protocol.MaxLSN + 1, nil
		case errors.Is(err, meta.ErrNotFound):
			return 0, nil // nothing is dropped on a guess
		case err != nil:
			return 0, err
		}
		return l.Record.TrimBefore, nil
	}
	old := w.wall().Add(-2 * time.Duration(staleFor))
	ctx := p.context(w.now + 60*second)
	r, err := arch.MergePacks(ctx, old, keep)
	n.merged(r, err)
	var scrubbed archive.MergeResult
	n.scrub, scrubbed, err = arch.ScrubPack(ctx, n.scrub, old, keep)
	n.merged(scrubbed, err)
}

func (n *node) merged(r archive.MergeResult, err error) {
	w := n.w
	w.c.PacksMerged += r.Merged
	w.c.PacksDeleted += r.Deleted
	if err != nil || r != (archive.MergeResult{}) {
		w.tracef("%s: packs %+v, %v", n.id, r, err)
	}
}
