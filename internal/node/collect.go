package node

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// Collection of what the archive need not keep (A5): retention moves a log's trim point in its record, then objects below the
// trim point, and all objects of deleted logs, are deleted. In that order: reversed, a reader between the two would call
// trimmed records lost.
//
// Any node may collect any log at any time, and two at once do no harm: a trim point only rises, and to delete what is gone is
// no error. So nobody is elected; the nodes of a log take turns by the clock, and one that is down only makes its turns fall
// out. A stalled flusher may create an object again after its deletion (A4); it holds nothing that any reader would be shown,
// and a later round deletes it.
//
// One goroutine of a node collects, beside the shards (A7), one request after another.

const (
	// thorough is how many rounds apart a log is listed although its trim point has not moved: for what stalled flushers left.
	thorough = 61 // a prime, so that it is the turn of each of the log's nodes
	// orphanRounds is how many rounds apart a node lists all logs of the archive, for those of deleted logs that no node knows
	// any more.
	orphanRounds = 128
	// collectTimeout bounds the work on one log in one round; the next round goes on.
	collectTimeout = 10 * time.Minute
)

// collector is the goroutine's state and counters.
type collector struct {
	wg   sync.WaitGroup
	done map[protocol.LogID]protocol.LSN // trim point up to which a log was collected
	// blank are the logs that the last round saw promised and without anything, with their promise.
	blank map[protocol.LogID]protocol.Epoch
	clock time.Time // of the object store, as of this round; zero: not asked yet

	rounds, deleted, expired, failed, forgotten atomic.Uint64

	mu       sync.Mutex
	lastErr  string
	lastTime time.Time
}

// CollectStatus says how collection goes. Counts are since the start of the node.
type CollectStatus struct {
	Rounds      uint64     `json:"rounds"`
	Deleted     uint64     `json:"deleted"` // objects
	Expired     uint64     `json:"expired"` // trim points that retention moved
	Failed      uint64     `json:"failed"`  // logs that a round could not finish
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at,omitempty"`
}

func (c *collector) status() CollectStatus {
	s := CollectStatus{Rounds: c.rounds.Load(), Deleted: c.deleted.Load(), Expired: c.expired.Load(), Failed: c.failed.Load()}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastErr != "" {
		at := c.lastTime
		s.LastError, s.LastErrorAt = c.lastErr, &at
	}
	return s
}

// collectLoop runs until ctx ends. Nodes begin at different parts of the interval.
func (n *Node) collectLoop(ctx context.Context) {
	every := n.cfg.CollectEvery
	if every < 0 {
		return
	}
	n.collector.done = make(map[protocol.LogID]protocol.LSN)
	h := fnv.New64a()
	h.Write([]byte(n.cfg.Node))
	offset, _ := bits.Mul64(h.Sum64(), uint64(every)) // in [0, every)
	for {
		now := time.Now().UnixNano()
		round := (now - int64(offset)) / int64(every)
		timer := time.NewTimer(time.Duration((round+1)*int64(every) + int64(offset) - now))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		n.collect(ctx, uint64(round+1))
	}
}

// collect does one round.
func (n *Node) collect(ctx context.Context, round uint64) {
	c := &n.collector
	c.clock = time.Time{}
	seen := make(map[protocol.LogID]bool)
	before := c.blank
	c.blank = make(map[protocol.LogID]protocol.Epoch)
	for _, s := range n.Status().Detail {
		for i := range s.Logs {
			l := &s.Logs[i]
			seen[l.id] = true
			if l.Activated == 0 && l.Highest == 0 && !l.Deleted {
				c.blank[l.id] = l.Promised
				if before[l.id] == l.Promised {
					if n.collectNote(ctx, l.id, n.forget(ctx, s.Shard, l.id, l.Promised)) != nil {
						return
					}
				}
				continue // it has nothing in the archive, or there is no log at all
			}
			if !turn(l.id, l.peers, n.dir.inc, round) {
				continue
			}
			if n.collectNote(ctx, l.id, n.collectLog(ctx, l.id, l.Name, l.Deleted, (round+uint64(l.id))%thorough == 0)) != nil {
				return
			}
		}
	}
	for id := range c.done {
		if !seen[id] {
			delete(c.done, id)
		}
	}
	if round%orphanRounds == uint64(n.dir.inc)%orphanRounds {
		for id, err := range n.archive.LogIDs(ctx) {
			if err == nil && !seen[id] {
				err = n.collectLog(ctx, id, "", true, true)
			}
			if n.collectNote(ctx, id, err) != nil {
				return
			}
		}
	}
	if n.packing() && n.collectNote(ctx, 0, n.mergePacks(ctx)) != nil {
		return
	}
	c.rounds.Add(1)
}

// forget has a shard drop the state of a log that does not exist. An open that somebody makes up, and any that was made for
// a log whose creation failed, would take its room for ever otherwise. The promise is older than this look by a round.
func (n *Node) forget(ctx context.Context, shard int, id protocol.LogID, promised protocol.Epoch) error {
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	_, err := n.catalog.LoadByID(ctx, id)
	switch {
	case errors.Is(err, meta.ErrDeleted):
		return nil // it was a log
	case !errors.Is(err, meta.ErrNotFound):
		return err
	}
	n.collector.forgotten.Add(1)
	t := n.threads[shard]
	t.inbox.report(report{key: planKey{log: id}, forget: promised})
	t.loop.Wake()
	return nil
}

// turn says whether this node collects the log in this round. A node of which the log's settings do not speak does so in any.
func turn(log protocol.LogID, peers []protocol.Incarnation, inc protocol.Incarnation, round uint64) bool {
	for i, p := range peers {
		if p == inc {
			return (round+uint64(log))%uint64(len(peers)) == uint64(i)
		}
	}
	return true
}

// collectLog collects one log. name is the one that this node knows; deleted says that it was told of the log's deletion, which
// the metadata must confirm: nothing is deleted on hearsay.
func (n *Node) collectLog(ctx context.Context, id protocol.LogID, name string, deleted, thorough bool) error {
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	c := &n.collector
	const all = protocol.MaxLSN + 1
	if c.done[id] == all && !thorough { // a deleted log never comes back
		return nil
	}
	var rec meta.LogRecord
	log, err := meta.Log{}, error(meta.ErrNotFound)
	if name != "" && !deleted {
		log, err = n.catalog.Load(ctx, name) // one request in place of two
	}
	if errors.Is(err, meta.ErrNotFound) || err == nil && log.Record.ID != id {
		log, err = n.catalog.LoadByID(ctx, id)
	}
	switch {
	case errors.Is(err, meta.ErrDeleted):
		return n.collectBelow(ctx, id, all)
	case errors.Is(err, meta.ErrNotFound):
		return nil // its creator may be on his way
	case err != nil:
		return err
	}
	rec = log.Record
	if r := rec.Options.Retention; r != (meta.Retention{}) {
		want := archive.Retention{Bytes: r.Bytes, Lost: rec.LostRanges()}
		if r.Age > 0 {
			now, err := n.storeTime(ctx)
			if err != nil {
				return err
			}
			if !now.IsZero() {
				want.Before = now.Add(-r.Age)
			}
		}
		point, err := n.archive.Expired(ctx, id, rec.TrimBefore, want)
		if err != nil {
			return err
		}
		if point > rec.TrimBefore {
			moved, err := n.catalog.Trim(ctx, rec.Name, id, point)
			if err != nil {
				return err
			}
			c.expired.Add(1)
			rec = moved.Record
		}
	}
	if c.done[id] >= rec.TrimBefore && !thorough || rec.TrimBefore <= 1 {
		return nil
	}
	return n.collectBelow(ctx, id, rec.TrimBefore)
}

// storeTime returns what the object store takes for the present, zero if it has no clock. The ages of objects are reckoned in its
// time, and a node whose own clock is ahead must not take them for older than they are: what retention trims is gone. It
// is asked once in a round, by writing an object.
func (n *Node) storeTime(ctx context.Context) (time.Time, error) {
	c := &n.collector
	if !c.clock.IsZero() {
		return c.clock, nil
	}
	store, key := n.requests.probe.Wrap(n.cfg.Store), "clock/"+string(n.cfg.Node)
	if n.cfg.Root != "" {
		key = n.cfg.Root + "/" + key
	}
	// Of a Put that failed, or may have, the object from an earlier round is left: an earlier time expires less.
	_, putErr := store.Put(ctx, key, []byte("its time of modification is the store's clock\n"), nil, objstore.Condition{})
	info, err := store.Head(ctx, key)
	if err != nil {
		return time.Time{}, fmt.Errorf("node: asking %s for its time: %w", n.cfg.Store, errors.Join(err, putErr))
	}
	c.clock = info.Modified
	return c.clock, nil
}

func (n *Node) collectBelow(ctx context.Context, id protocol.LogID, below protocol.LSN) error {
	deleted, err := n.archive.Trim(ctx, id, below)
	n.collector.deleted.Add(uint64(deleted))
	if err == nil {
		n.collector.done[id] = below
	}
	return err
}

// collectNote notes an error, with log 0 one of the packs; what it returns ends the round: the node stops, or the store does not answer anyway.
func (n *Node) collectNote(ctx context.Context, id protocol.LogID, err error) error {
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	c := &n.collector
	c.failed.Add(1)
	c.mu.Lock()
	c.lastErr, c.lastTime = err.Error(), time.Now()
	c.mu.Unlock()
	if id == 0 {
		n.log.Repeat(slog.LevelWarn, "", "packs not merged, will be tried again", "error", err)
	} else {
		n.log.Repeat(slog.LevelWarn, "", "archived objects not collected, will be tried again", "log", id.String(), "error", err)
	}
	if errors.Is(err, archive.ErrUnavailable) || errors.Is(err, meta.ErrUnavailable) {
		return err
	}
	return nil
}
