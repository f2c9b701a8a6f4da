package node

import (
	"errors"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/shard"
)

// Failure snapshots (P12, paper 4.3). When N − Qw other nodes of a log are down, each node that lives writes what it holds of
// the log's tail to the object store, up to what it held when it noticed; later records have their quorum among the living.
// The first of them by hash writes at once, each next one a grace later and only what the objects of the others lack (H7: one
// node's tail is not the tail). Nothing waits for a snapshot and nothing relies on one: it makes the loss of another disk
// cost less.

// watchEvery is how often a shard looks for logs that need a snapshot.
const watchEvery = protocol.Time(1e9) / 4

// snapshot is a log's failure snapshot.
type snapshot struct {
	down     uint64        // which nodes are down; another set is another snapshot
	limit    protocol.LSN  // highest LSN held when that was noticed
	seen     protocol.Time // when it was noticed
	next     protocol.Time // not before
	running  int           // plans with the workers
	failures int
	failed   bool // one of the plans under way failed
	busy     bool // one could not be given away: the workers have enough to do
	stale    bool // one of them had its records changed meanwhile
	wrote    bool // there was something to write
	done     bool
	// objects are what the store is known to hold of the tail: archived-through rises without holes only, in whatever order the
	// plans end.
	objects []protocol.ArchivedObject
	listed  bool // still endangered
}

// planSnapshots sends what failure snapshots need to the workers.
func (t *thread) planSnapshots(now protocol.Time) {
	p := &t.plan
	if now < p.watch {
		return
	}
	p.watch = now + min(watchEvery, protocol.Time(t.n.cfg.PeerInterval))
	for _, s := range p.snaps {
		s.listed = false
	}
	w := &t.n.watcher
	t.core.Endangered(w.living.Load(), func(inc protocol.Incarnation) { w.seek(inc, now) }, func(log protocol.LogID, rank int, limit protocol.LSN, down uint64) {
		s := p.snaps[log]
		if s == nil || s.down != down && s.running == 0 {
			s = &snapshot{down: down, limit: limit, seen: now}
			if p.snaps == nil {
				p.snaps = make(map[protocol.LogID]*snapshot)
			}
			p.snaps[log] = s
		}
		s.listed = true
		if s.done || s.running > 0 || now < max(s.next, s.seen+protocol.Time(rank)*protocol.Time(t.n.cfg.FlushGrace)) {
			return
		}
		s.failed, s.stale, s.busy = false, false, false
		s.objects = s.objects[:0] // whoever tries again finds them again
		t.core.Snapshot(log, s.limit, now, func(seg protocol.Segment) {
			// Another node may be first after all: look before writing. The first by hash writes at once.
			seg.Rank = min(rank+s.failures, 1)
			key := planKey{log: seg.Log, label: seg.Label, segStart: seg.SegStart, first: seg.First, snapshot: true}
			select {
			case t.n.jobs <- job{t: t, key: key, seg: seg, view: t.core.View()}:
				s.running++
				s.wrote = true
			default:
				s.busy = true
			}
		})
		if s.running == 0 {
			t.snapshotEnded(now, s)
		}
	})
	for log, s := range p.snaps {
		if !s.listed && s.running == 0 {
			// The nodes are back. Before, a log keeps its entry although all of it is archived: the next record would make
			// a new one, and an object of its own.
			delete(p.snaps, log)
		}
	}
}

// snapshotReported takes a worker's report.
func (t *thread) snapshotReported(now protocol.Time, r *report) {
	s := t.plan.snaps[r.key.log]
	if s == nil {
		return
	}
	s.running--
	if len(r.objects) > 0 {
		s.objects = append(s.objects, r.objects...)
		t.core.Archived(now, r.key.log, s.objects)
	}
	if r.err != nil {
		s.failed = true
		s.stale = s.stale || errors.Is(r.err, archive.ErrSource) || errors.Is(r.err, shard.ErrGone)
	}
	if s.running == 0 {
		t.snapshotEnded(now, s)
	}
}

func (t *thread) snapshotEnded(now protocol.Time, s *snapshot) {
	switch {
	case s.busy && !s.failed:
		s.next = now + firstPause
	case !s.failed:
		s.done = true
		s.objects = nil
		if s.wrote {
			t.n.flusher.snapshots.Add(1)
		}
	case s.stale:
		// The records have been flushed or voided meanwhile: what is left is planned anew.
	default:
		s.next = now + min(lastPause, firstPause<<min(s.failures, 16))
		s.failures++
	}
}
