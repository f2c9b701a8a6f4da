package node

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/bits"
	"sync"
	"time"

	"github.com/btrlog/btrlog/internal/collect"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// collectTimeout bounds the work on one log in one round; the next round goes on.
const collectTimeout = 10 * time.Minute

// collector is the goroutine of a node that collects (internal/collect), beside the shards (A7), one request after another.
type collector struct {
	*collect.Collector
	wg sync.WaitGroup

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
	n := c.Counts()
	s := CollectStatus{Rounds: n.Rounds, Deleted: n.Deleted, Expired: n.Expired, Failed: n.Failed}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastErr != "" {
		at := c.lastTime
		s.LastError, s.LastErrorAt = c.lastErr, &at
	}
	return s
}

// newCollector makes the collector of a node that has its incarnation, its catalog and its archive.
func (n *Node) newCollector() *collect.Collector {
	return collect.New(collect.Config{Incarnation: n.dir.inc, Catalog: n.catalog, Archive: n.archive, Clock: n.storeTime,
		Bound: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, collectTimeout)
		},
		Forget:  func(l collect.Known) { n.threads[l.Shard].tell(report{key: planKey{log: l.ID}, forget: l.Promised}) },
		Deleted: func(l collect.Known) { n.threads[l.Shard].tell(report{key: planKey{log: l.ID}, deleted: true}) },
		Failed: func(id protocol.LogID, err error) {
			c := &n.collector
			c.mu.Lock()
			c.lastErr, c.lastTime = err.Error(), time.Now()
			c.mu.Unlock()
			if id == 0 {
				n.log.Repeat(slog.LevelWarn, "", "packs not merged, will be tried again", "error", err)
				return
			}
			n.log.Repeat(slog.LevelWarn, "", "archived objects not collected, will be tried again", "log", id.String(), "error", err)
		},
	})
}

// collectLoop runs until ctx ends. Nodes begin at different parts of the interval.
func (n *Node) collectLoop(ctx context.Context) {
	giveWay()
	every := n.cfg.CollectEvery
	if every < 0 {
		return
	}
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
	var known []collect.Known
	for _, s := range n.Status().Detail {
		for i := range s.Logs {
			l := &s.Logs[i]
			known = append(known, collect.Known{Shard: s.Shard, ID: l.id, Name: l.Name, Peers: l.peers, Promised: l.Promised, Deleted: l.Deleted,
				Blank: l.Activated == 0 && l.Highest == 0 && !l.Deleted})
		}
	}
	// What ended the round early is counted and told; the next round tries again.
	if n.collector.Round(ctx, round, known) == nil && n.packing() {
		_ = n.collector.Note(ctx, 0, n.mergePacks(ctx))
	}
}

// storeTime asks the object store for its time, by writing an object. Of a Put that failed, or may have, the object from an earlier round
// is left: an earlier time expires less.
func (n *Node) storeTime(ctx context.Context) (time.Time, error) {
	store, key := n.requests.probe.Wrap(n.cfg.Store), "clock/"+string(n.cfg.Node)
	if n.cfg.Root != "" {
		key = n.cfg.Root + "/" + key
	}
	_, putErr := store.Put(ctx, key, []byte("its time of modification is the store's clock\n"), nil, objstore.Condition{})
	info, err := store.Head(ctx, key)
	if err != nil {
		return time.Time{}, fmt.Errorf("node: asking %s for its time: %w", n.cfg.Store, errors.Join(err, putErr))
	}
	return info.Modified, nil
}
