package sim

import (
	"cmp"
	"slices"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
)

// Failure snapshots (P12): each node listens to the others, and archives the tails of logs of which too many of them are down.
// The heartbeats are those of the state of the world as the node could see it: a node that is down or behind a blocked link in
// either direction gives no sign of life.

// silent is how long a node may be unheard.
const silent = 700 * millisecond

// snapped is what a node remembers of a log's snapshot: of which absent nodes, up to where, since when.
type snapped struct {
	absent uint64
	limit  protocol.LSN
	seen   protocol.Time
	done   bool
}

// listen takes the heartbeats of this moment.
func (n *node) listen() *protocol.Living {
	w := n.w
	if n.detector == nil || n.detectorLife != n.life {
		n.detector, n.detectorLife, n.snaps = protocol.NewDetector(silent), n.life, map[protocol.LogID]*snapped{}
	}
	for _, o := range w.nodes {
		if o != n && o.state == nodeUp && !w.net.isBlocked(n.ep, o.ep) && !w.net.isBlocked(o.ep, n.ep) {
			n.detector.Heard(o.inc, w.now)
		}
	}
	return n.detector.Living(w.now)
}

// snapshots makes the failure snapshots that are due.
func (n *node) snapshots(p *proc, arch *archive.Archive, life int) {
	w := n.w
	type endangered struct {
		log    protocol.LogID
		rank   int
		limit  protocol.LSN
		absent uint64
	}
	var all []endangered
	n.core.Endangered(n.listen(), func(inc protocol.Incarnation) { n.detector.Sought(inc, w.now) },
		func(log protocol.LogID, rank int, limit protocol.LSN, absent uint64) {
			all = append(all, endangered{log, rank, limit, absent})
		})
	slices.SortFunc(all, func(a, b endangered) int { return cmp.Compare(a.log, b.log) })
	for _, e := range all {
		s := n.snaps[e.log]
		if s == nil || s.absent != e.absent {
			s = &snapped{absent: e.absent, limit: e.limit, seen: w.now}
			n.snaps[e.log] = s
		}
		if s.done || w.now < s.seen+protocol.Time(e.rank)*flushPatience {
			continue
		}
		s.done = true
		w.c.add(&w.c.Snapshots)
		var plans []protocol.Segment
		n.core.Snapshot(e.log, s.limit, w.now, func(seg protocol.Segment) {
			seg.Rank = min(e.rank, 1)
			plans = append(plans, seg)
		})
		view := n.core.View()
		for _, seg := range plans {
			if seg.First > seg.CLSN {
				w.c.add(&w.c.UnprovenObjects)
			}
			n.flushOne(p, arch, seg, view, life)
		}
	}
}
