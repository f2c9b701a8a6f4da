package collect

import (
	"context"
	"errors"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

// trimMemory is for how many rounds merging believes a trim point that it knows. One that has risen since keeps some bytes in the store for
// longer; to ask anew for each log of each merge would cost more than they do.
const trimMemory = 36

// mergesPerRound bounds the merges of one round.
const mergesPerRound = 32

// trimPoint is the LSN below which nothing of a log is wanted, as of a round.
type trimPoint struct {
	below protocol.LSN
	round uint64
}

func (c *Collector) learned(id protocol.LogID, below protocol.LSN) {
	c.trims[id] = trimPoint{below, c.round}
}

// MergePacks merges packs that the store has had for settled, and looks at one for what is not wanted any more. It belongs into the
// round that Round has done, on the same goroutine. A listing must not lag by as much as settled.
func (c *Collector) MergePacks(ctx context.Context, settled time.Duration) (sum archive.MergeResult, err error) {
	ctx, cancel := c.cfg.Bound(ctx)
	defer cancel()
	now, err := c.now(ctx)
	if err != nil {
		return sum, err
	}
	old := now.Add(-settled)
	for range mergesPerRound {
		r, err := c.cfg.Archive.MergePacks(ctx, old, c.wanted)
		sum.Add(r)
		if err != nil {
			return sum, err
		}
		if r == (archive.MergeResult{}) {
			break
		}
	}
	next, r, err := c.cfg.Archive.ScrubPack(ctx, c.scrub, old, c.wanted)
	sum.Add(r)
	c.scrub = next
	return sum, err
}

// wanted is archive.Keep: nothing is dropped on a guess, or before the record of the log says so (A4).
func (c *Collector) wanted(ctx context.Context, log protocol.LogID) (protocol.LSN, error) {
	if k, ok := c.trims[log]; ok && c.round-k.round < trimMemory {
		return k.below, nil
	}
	l, err := c.cfg.Catalog.LoadByID(ctx, log)
	switch {
	case errors.Is(err, meta.ErrDeleted):
		l.Record.TrimBefore = protocol.MaxLSN + 1
	case errors.Is(err, meta.ErrNotFound):
		return 0, nil // its creator may be on his way
	case err != nil:
		return 0, err
	}
	c.learned(log, l.Record.TrimBefore)
	return l.Record.TrimBefore, nil
}
