// Package collect removes what the archive need not keep (A5): retention moves a log's trim point in its record, then objects below
// the trim point, and all objects of deleted logs, are deleted. In that order: reversed, a reader between the two would call
// trimmed records lost.
//
// Any process may collect any log at any time, and two at once do no harm: a trim point only rises, and to delete what is gone is
// no error. So nobody is elected; the nodes of a log take turns by the clock, and one that is down only makes its turns fall
// out. A stalled flusher may create an object again after its deletion (A4); it holds nothing that any reader would be shown,
// and a later round deletes it.
//
// Nodes drive it by the wall clock, the simulator by its own.
package collect

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

const (
	defaultThorough = 61
	defaultOrphans  = 128
)

// Config of a Collector. The functions are required.
type Config struct {
	Incarnation protocol.Incarnation // whose turns these are
	Catalog     *meta.Catalog
	Archive     *archive.Archive
	// Clock returns what the object store takes for the present, zero if it has no clock. The ages of objects are reckoned in its
	// time, and a node whose own clock is ahead must not take them for older than they are: what retention trims is gone. It
	// is asked once in a round at most.
	Clock func(context.Context) (time.Time, error)
	// Bound bounds the work on one log in one round; the next round goes on.
	Bound func(context.Context) (context.Context, context.CancelFunc)
	// Forget drops the state of a log that does not exist.
	Forget func(Known)
	// Deleted drops what a shard holds of a log that is deleted. It may not have heard of that, and would archive what it holds, and hold
	// it, for ever.
	Deleted func(Known)
	// Failed is told what could not be finished, and will be tried again.
	Failed func(protocol.LogID, error)
	// Thorough is how many rounds apart a log is listed although its trim point has not moved: for what stalled flushers left. It should
	// be a prime, so that it is the turn of each of the log's nodes; zero is 61.
	Thorough uint64
	// Orphans is how many rounds apart a node lists all logs of the archive, for those of deleted logs that no node knows any
	// more; zero is 128.
	Orphans uint64
	// Rules are broken by the simulator alone.
	Rules Rules
}

// Rules are switches that break a rule each; the zero value is the product (see protocol.Rules).
type Rules struct {
	// DeleteFirst breaks A4: objects go before the trim point that retention asks for is on record.
	DeleteFirst bool
	// NeverAgain breaks A4: what a stalled creator brings back after its deletion is never looked for.
	NeverAgain bool
}

// Known is a log as one shard of the node knows it.
type Known struct {
	Shard    int
	ID       protocol.LogID
	Name     string
	Peers    []protocol.Incarnation
	Promised protocol.Epoch
	Deleted  bool
	// Blank: promised, and nothing else. It has nothing in the archive, or there is no log at all.
	Blank bool
}

// Collector does the rounds of one process. Round is for one goroutine; Counts may be called at any time.
type Collector struct {
	cfg  Config
	done map[protocol.LogID]protocol.LSN // trim point up to which a log was collected
	// blank are the logs that the last round saw promised and without anything, with their promise.
	blank map[protocol.LogID]protocol.Epoch
	clock time.Time // of the object store, as of this round; zero: not asked yet
	round uint64
	trims map[protocol.LogID]trimPoint // that merging believes
	scrub string                       // where the next look for dead packs begins

	rounds, deleted, expired, failed, forgotten atomic.Uint64
}

// Counts are since the start of the process.
type Counts struct {
	Rounds    uint64
	Deleted   uint64 // objects
	Expired   uint64 // trim points that retention moved
	Failed    uint64 // logs that a round could not finish
	Forgotten uint64 // promises for logs that do not exist
}

// New returns a Collector that has done nothing yet.
func New(cfg Config) *Collector {
	if cfg.Thorough == 0 {
		cfg.Thorough = defaultThorough
	}
	if cfg.Orphans == 0 {
		cfg.Orphans = defaultOrphans
	}
	return &Collector{cfg: cfg, done: make(map[protocol.LogID]protocol.LSN), trims: make(map[protocol.LogID]trimPoint)}
}

// Counts returns what was done so far.
func (c *Collector) Counts() Counts {
	return Counts{c.rounds.Load(), c.deleted.Load(), c.expired.Load(), c.failed.Load(), c.forgotten.Load()}
}

// Round does one round over the logs that the node's shards know. It returns an error if it ended early: the node stops, or the store
// does not answer anyway. What else fails is told to Failed, and the next round tries again.
func (c *Collector) Round(ctx context.Context, round uint64, logs []Known) error {
	c.clock, c.round = time.Time{}, round
	for log, k := range c.trims {
		if round-k.round >= trimMemory {
			delete(c.trims, log)
		}
	}
	seen := make(map[protocol.LogID]bool)
	before := c.blank
	c.blank = make(map[protocol.LogID]protocol.Epoch)
	for _, l := range logs {
		if l.Blank { // and not seen: of a deleted log it may be all that anybody knows, and what the archive has of that goes as an orphan
			c.blank[l.ID] = l.Promised
			if before[l.ID] == l.Promised {
				if err := c.Note(ctx, l.ID, c.forget(ctx, l)); err != nil {
					return err
				}
			}
			continue
		}
		seen[l.ID] = true
		if !c.turn(l, round) {
			continue
		}
		if err := c.Note(ctx, l.ID, c.log(ctx, l, (round+uint64(l.ID))%c.cfg.Thorough == 0)); err != nil {
			return err
		}
	}
	for id := range c.done {
		if !seen[id] {
			delete(c.done, id)
		}
	}
	if round%c.cfg.Orphans == uint64(c.cfg.Incarnation)%c.cfg.Orphans {
		for id, err := range c.cfg.Archive.LogIDs(ctx) {
			if err == nil && !seen[id] {
				err = c.log(ctx, Known{ID: id, Deleted: true}, true)
			}
			if err := c.Note(ctx, id, err); err != nil {
				return err
			}
		}
	}
	c.rounds.Add(1)
	return nil
}

// forget has a shard drop the state of a log that does not exist. An open that somebody makes up, and any that was made for
// a log whose creation failed, would take its room for ever otherwise. The promise is older than this look by a round.
func (c *Collector) forget(ctx context.Context, l Known) error {
	ctx, cancel := c.cfg.Bound(ctx)
	defer cancel()
	_, err := c.cfg.Catalog.LoadByID(ctx, l.ID)
	switch {
	case errors.Is(err, meta.ErrDeleted):
		return nil // it was a log
	case !errors.Is(err, meta.ErrNotFound):
		return err
	}
	c.forgotten.Add(1)
	c.cfg.Forget(l)
	return nil
}

// turn says whether this node collects the log in this round. A node of which the log's settings do not speak does so in any.
func (c *Collector) turn(l Known, round uint64) bool {
	for i, p := range l.Peers {
		if p == c.cfg.Incarnation {
			return (round+uint64(l.ID))%uint64(len(l.Peers)) == uint64(i)
		}
	}
	return true
}

// log collects one log. Its name is the one that this node knows; Deleted says that it was told of the log's deletion, which
// the metadata must confirm: nothing is deleted on hearsay.
func (c *Collector) log(ctx context.Context, l Known, thorough bool) error {
	ctx, cancel := c.cfg.Bound(ctx)
	defer cancel()
	thorough = thorough && !c.cfg.Rules.NeverAgain
	id := l.ID
	const all = protocol.MaxLSN + 1
	if c.done[id] == all && l.Deleted && !thorough { // a deleted log never comes back
		return nil
	}
	log, err := meta.Log{}, error(meta.ErrNotFound)
	if l.Name != "" && !l.Deleted {
		log, err = c.cfg.Catalog.Load(ctx, l.Name) // one request in place of two
	}
	if errors.Is(err, meta.ErrNotFound) || err == nil && log.Record.ID != id {
		log, err = c.cfg.Catalog.LoadByID(ctx, id)
	}
	switch {
	case errors.Is(err, meta.ErrDeleted):
		if !l.Deleted {
			c.cfg.Deleted(l)
		}
		c.learned(id, all)
		return c.below(ctx, id, all)
	case errors.Is(err, meta.ErrNotFound):
		return nil // its creator may be on his way
	case err != nil:
		return err
	}
	rec := log.Record
	if r := rec.Options.Retention; r != (meta.Retention{}) {
		want := archive.Retention{Bytes: r.Bytes, Lost: rec.LostRanges()}
		if r.Age > 0 {
			now, err := c.now(ctx)
			if err != nil {
				return err
			}
			if !now.IsZero() {
				want.Before = now.Add(-r.Age)
			}
		}
		point, err := c.cfg.Archive.Expired(ctx, id, rec.TrimBefore, want)
		if err != nil {
			return err
		}
		if point > rec.TrimBefore {
			if c.cfg.Rules.DeleteFirst {
				if err := c.below(ctx, id, point); err != nil {
					return err
				}
			}
			// The trim point comes before the deletion. Reversed, a reader between the two would call trimmed records lost.
			moved, err := c.cfg.Catalog.Trim(ctx, rec.Name, id, point)
			if err != nil {
				return err
			}
			c.expired.Add(1)
			rec = moved.Record
		}
	}
	c.learned(id, rec.TrimBefore)
	if c.done[id] >= rec.TrimBefore && !thorough || rec.TrimBefore <= 1 {
		return nil
	}
	return c.below(ctx, id, rec.TrimBefore)
}

func (c *Collector) now(ctx context.Context) (time.Time, error) {
	if !c.clock.IsZero() {
		return c.clock, nil
	}
	now, err := c.cfg.Clock(ctx)
	if err == nil {
		c.clock = now
	}
	return now, err
}

func (c *Collector) below(ctx context.Context, id protocol.LogID, below protocol.LSN) error {
	deleted, err := c.cfg.Archive.Trim(ctx, id, below)
	c.deleted.Add(uint64(deleted))
	if err == nil {
		c.done[id] = below
	}
	return err
}

// Note counts and tells an error of a log, or with log 0 of what the caller does in a round beside this; what it returns ends the round.
func (c *Collector) Note(ctx context.Context, id protocol.LogID, err error) error {
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	c.failed.Add(1)
	c.cfg.Failed(id, err)
	if errors.Is(err, archive.ErrUnavailable) || errors.Is(err, meta.ErrUnavailable) {
		return err
	}
	return nil
}

// Look finds what the store has of a log above an LSN. What is trimmed needs no object (P3: every *untrimmed* LSN), nor does what the
// log's record calls lost (P5): each counts as one, under the epoch of the record that says so, which raises no watermark of a node that
// missed that epoch. Nodes learn of lost ranges with their activation; but where all that were activated have been replaced since, nobody
// would ever come past a lost range, and no open that loses nothing more could end.
func Look(ctx context.Context, a *archive.Archive, c *meta.Catalog, log protocol.LogID, after protocol.LSN) ([]protocol.ArchivedObject, error) {
	objects, err := a.Look(ctx, log, after)
	if err != nil {
		return nil, err
	}
	l, err := c.LoadByID(ctx, log)
	switch {
	case errors.Is(err, meta.ErrDeleted) || errors.Is(err, meta.ErrNotFound):
		return objects, nil
	case err != nil:
		return nil, err
	}
	none := func(first, last protocol.LSN) {
		if last > after {
			objects = append(objects, protocol.ArchivedObject{Label: l.Record.Epoch, First: first, Last: last, CLSN: last})
		}
	}
	none(1, l.Record.TrimBefore-1)
	for _, r := range l.Record.Lost {
		none(r.From, r.To)
	}
	return objects, nil
}
