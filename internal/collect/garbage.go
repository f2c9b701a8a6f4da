package collect

import (
	"context"
	"errors"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

// Garbage visits every object that rounds of collection would delete as the metadata is now: below a trim point, of deleted logs, packs that
// were merged or of which nothing is wanted, of those that the store has had since before old; and packs all of which others hold. It changes nothing, moves no trim point for
// retention, and merges nothing; the caller may delete what it is shown, because a trim point only rises and a deleted log never
// comes back (A4). unknown are logs of the archive that the metadata does not know: a creator may be on his way, so they stay.
//
// Errors: archive.ErrUnavailable and meta.ErrUnavailable (call again), the store's refusal, or the visitor's own.
func Garbage(ctx context.Context, c *meta.Catalog, a *archive.Archive, old time.Time, visit func(archive.Garbage) error) (unknown []protocol.LogID, err error) {
	known := make(map[protocol.LogID]protocol.LSN)
	keep := func(ctx context.Context, id protocol.LogID) (protocol.LSN, error) {
		if below, ok := known[id]; ok {
			return below, nil
		}
		l, err := c.LoadByID(ctx, id)
		below := protocol.LSN(0)
		switch {
		case err == nil:
			below = l.Record.TrimBefore
		case errors.Is(err, meta.ErrDeleted):
			below = protocol.MaxLSN + 1
		case errors.Is(err, meta.ErrNotFound):
			unknown = append(unknown, id)
		default:
			return 0, err
		}
		known[id] = below
		return below, nil
	}
	for id, err := range a.LogIDs(ctx) {
		if err != nil {
			return unknown, err
		}
		below, err := keep(ctx, id)
		if err == nil && below > 1 {
			err = a.Garbage(ctx, id, below, visit)
		}
		if err != nil {
			return unknown, err
		}
	}
	return unknown, a.GarbagePacks(ctx, old, keep, visit)
}
