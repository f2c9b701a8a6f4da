package archive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

// Garbage is an object of the store that nobody needs.
type Garbage struct {
	Key  string
	Size int64 // bytes
	// Log whose segment it is; 0 of a pack.
	Log protocol.LogID
	Why Reason
}

// Reason says why an object is garbage.
type Reason string

// The reasons.
const (
	// Trimmed: all of it is below the trim point.
	Trimmed Reason = "trimmed"
	// OfDeletedLog: its log is deleted.
	OfDeletedLog Reason = "log deleted"
	// Merged: all that is wanted of the pack is in later ones.
	Merged Reason = "merged"
	// Unwanted: all that is in the pack is trimmed, or of deleted logs.
	Unwanted Reason = "all trimmed or deleted"
	// Doubled: all that is wanted of the pack is in packs whose names sort before its own.
	Doubled Reason = "doubled"
)

// maxDoubles bounds the members among which doubles are looked for, about 100 bytes each; what lies behind is not taken for one.
const maxDoubles = 1 << 21

// Garbage visits the objects of a log that Trim would delete; see there for what must be on record before they go.
func (a *Archive) Garbage(ctx context.Context, log protocol.LogID, below protocol.LSN, visit func(Garbage) error) error {
	why := Trimmed
	if below > protocol.MaxLSN {
		why = OfDeletedLog
	}
	prefix, cursor := a.logPrefix(log), ""
	for {
		page, err := a.list(ctx, prefix, cursor, 0)
		if err != nil {
			return fmt.Errorf("archive: listing the objects of log %v: %w", log, err)
		}
		for _, o := range page.Objects {
			cursor = o.Key
			// Damaged objects too: their names say all that is needed.
			if k, err := a.ParseKey(o.Key); err == nil && k.Last < below {
				if err := visit(Garbage{o.Key, o.Size, log, why}); err != nil {
					return err
				}
			}
		}
		if !page.More || len(page.Objects) == 0 {
			return nil
		}
	}
}

// GarbagePacks visits the packs that the store has had since before old and that may go: those that were merged, when what replaced
// them has been there since before old too (AP3), those of which nothing is wanted, and those of which all that is wanted is in others. It
// changes nothing. A pack that cannot be read is passed over.
//
// Of packs that hold the same, the one whose name sorts first stays, whoever looks: two that remove doubles at once leave one. That
// one may be merged meanwhile, and then what it held is in the pack that replaces it.
func (a *Archive) GarbagePacks(ctx context.Context, old time.Time, keep Keep, visit func(Garbage) error) error {
	packs, err := a.allPacks(ctx)
	if err != nil {
		return err
	}
	replaced, err := a.replacements(ctx, packs, old)
	if err != nil {
		return err
	}
	wanted := wants{ctx: ctx, keep: keep}
	stays := make(map[Key]bool) // members of packs before, in the order of names, that stay
	for _, p := range packs {
		if by, ok := replaced[p.hash]; ok && by.level > p.level {
			if by.settled {
				if err := visit(Garbage{p.name, p.size, 0, Merged}); err != nil {
					return err
				}
			}
			continue
		}
		if !p.settled(old) {
			continue
		}
		why, err := a.uselessness(ctx, p, &wanted, stays)
		if err == nil && why != "" {
			err = visit(Garbage{p.name, p.size, 0, why})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// uselessness says why nobody needs a pack that was not replaced, or ""; then its members are added to what stays.
func (a *Archive) uselessness(ctx context.Context, p *pack, wanted *wants, stays map[Key]bool) (Reason, error) {
	members, err := a.packDirectory(ctx, p)
	if err != nil {
		return "", ignoreBroken(err)
	}
	why := Unwanted
	for i := range members {
		ok, err := wanted.wanted(members[i].key)
		switch {
		case err != nil:
			return "", err
		case ok && !stays[members[i].key]:
			why = ""
		case ok && why == Unwanted:
			why = Doubled
		}
	}
	if why == "" && len(stays)+len(members) <= maxDoubles {
		for i := range members {
			stays[members[i].key] = true
		}
	}
	return why, nil
}

// Remove deletes garbage.
func (a *Archive) Remove(ctx context.Context, g Garbage) error {
	if err := a.remove(ctx, g.Key); err != nil {
		return fmt.Errorf("archive: deleting %q: %w", g.Key, err)
	}
	return nil
}

// replacement says by what a pack was replaced.
type replacement struct {
	level   uint8
	settled bool // the store has had it since before the time asked for
}

// replacements returns, by hash, the packs that others name as merged into them.
func (a *Archive) replacements(ctx context.Context, packs []*pack, old time.Time) (map[[HashBytes]byte]replacement, error) {
	replaced := make(map[[HashBytes]byte]replacement)
	for _, p := range packs {
		if p.level == 0 {
			continue
		}
		t, err := a.packTail(ctx, p)
		switch {
		case errors.Is(err, errPackGone), errors.Is(err, ErrDamaged), errors.Is(err, ErrTooNew):
			continue // merge names it
		case err != nil:
			return nil, err
		}
		for _, s := range t.sources {
			by := replaced[s]
			replaced[s] = replacement{max(by.level, p.level), by.settled || p.settled(old)}
		}
	}
	return replaced, nil
}
