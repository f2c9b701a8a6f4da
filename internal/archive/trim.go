package archive

import (
	"context"
	"fmt"

	"github.com/btrlog/btrlog/internal/protocol"
)

// Trim deletes the objects of a log that end below LSN below, and returns how many. An object that reaches to below or
// further stays whole. MaxLSN+1 deletes all objects, for a deleted log.
//
// The caller has moved the trim point in the log's metadata (or recorded that the log is deleted) before. Reversed, a
// reader between the two would call trimmed records lost. It is also why the names may be freed (A4): a stalled flusher
// can create a deleted object again, but only with the same records, and every reader checks the trim point; the next Trim
// removes it.
//
// Errors: ErrUnavailable (call again), or the store's refusal. What was deleted before an error stays deleted.
func (a *Archive) Trim(ctx context.Context, log protocol.LogID, below protocol.LSN) (deleted int, err error) {
	err = a.Garbage(ctx, log, below, func(g Garbage) error {
		if err := a.remove(ctx, g.Key); err != nil {
			return err
		}
		deleted++
		return nil
	})
	if err != nil {
		return deleted, fmt.Errorf("archive: trimming log %v below LSN %d: %w", log, below, err)
	}
	return deleted, nil
}

// remove deletes one object. After an unknown outcome it is simply asked for again: to delete what is gone is no error.
func (a *Archive) remove(ctx context.Context, key string) error {
	return a.retry(ctx, func() error {
		err := a.store.Delete(ctx, key)
		a.counts.add(opDelete, err, 0)
		return err
	})
}
