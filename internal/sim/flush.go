package sim

import (
	"cmp"
	"errors"
	"slices"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/collect"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
)

// flushEvery is how often a node of a healthy cluster looks for something to archive, lookEvery how often it looks whether others archived
// what it still holds, flushPatience how long a node waits for each one of lower rank.
const (
	flushEvery    = 40 * millisecond
	lookEvery     = 300 * millisecond
	flushPatience = 150 * millisecond
)

// flush is a node's flusher: segments go to the archive, what is archived goes from the disk. It runs beside the shard's
// thread; everything that touches the core is posted to it.
func (n *node) flush(p *proc, life int) {
	w := n.w
	arch, cat := w.newArchive(false, n.rng), w.newCatalog()
	since := map[segmentID]protocol.Time{}
	nextLook := w.now + between(n.rng, 0, lookEvery)
	for {
		every := w.p.flushEvery
		if w.healed {
			every = flushEvery
		}
		p.wait(w.now + every + protocol.Time(n.rng.Int64N(int64(every))))
		if w.now < n.noStore {
			continue
		}
		plans, view := n.plans(since)
		if len(plans) > 0 && n.rng.Float64() < w.p.packs {
			n.flushPack(p, arch, plans, view, life)
		} else {
			for _, s := range plans {
				n.flushOne(p, arch, s, view, life)
			}
		}
		if n.life == life {
			n.snapshots(p, arch, life)
		}
		if w.now >= nextLook {
			n.look(p, arch, cat, life)
			nextLook = w.now + lookEvery
			for k := range since {
				if w.now-since[k] > 20*second {
					delete(since, k)
				}
			}
		}
		n.tidy(p)
	}
}

type segmentID struct {
	log   protocol.LogID
	label protocol.Epoch
	start protocol.LSN
	first protocol.LSN
}

// plans lists what is due, in a fixed order, with the view that belongs to it (A3).
func (n *node) plans(since map[segmentID]protocol.Time) ([]protocol.Segment, lst.View) {
	w := n.w
	var all, due []protocol.Segment
	n.core.Flushable(w.now, func(s protocol.Segment) { all = append(all, s) })
	slices.SortFunc(all, func(a, b protocol.Segment) int {
		if a.Log != b.Log {
			if a.Log < b.Log {
				return -1
			}
			return 1
		}
		return int(int64(a.First) - int64(b.First))
	})
	for i, s := range all {
		if i > 0 && all[i-1].Log == s.Log && all[i-1].Last+1 < s.First {
			w.c.add(&w.c.HoledSegments)
		}
		id := segmentID{s.Log, s.Label, s.SegStart, s.First}
		first, seen := since[id]
		if !seen {
			since[id], first = w.now, w.now
		}
		patience := protocol.Time(s.Rank) * flushPatience
		switch {
		case s.Complete && w.now-first >= patience:
		case !s.Complete && s.FlushAge > 0 && s.Age > s.FlushAge+patience:
		default:
			continue
		}
		if w.mutant.FlushEarly {
			// Stamped as if W records were not acknowledged yet, and not written again.
			if k := (segmentID{s.Log, s.Label, s.SegStart, 0}); since[k] != 0 {
				continue
			} else {
				since[k] = 1 << 62
			}
			s.CLSN = max(s.First, s.Last-min(s.Last, protocol.LSN(w.p.window)))
		}
		due = append(due, s)
	}
	return due, n.core.View()
}

func (n *node) flushOne(p *proc, arch *archive.Archive, s protocol.Segment, view lst.View, life int) {
	w := n.w
	w.c.add(&w.c.Flushes)
	if w.mutant.StampLate {
		p.sleep(between(n.rng, 0, 2*flushPatience))
		if st, ok := n.core.Log(s.Log); ok {
			s.CLSN = max(s.CLSN, st.CLSN)
		}
	}
	objects, err := arch.Flush(p.context(w.now+20*second), s, source(view, s))
	if err != nil {
		w.c.add(&w.c.FlushErrors)
		w.tracef("%s: flush of log %s [%d,%d]@%d: %v", n.id, s.Log, s.First, s.Last, s.Label, err)
	}
	w.tracef("%s: flushed log %s %+v: %v", n.id, s.Log, s, objects)
	n.archived(s.Log, objects, life)
}

// archived tells the shard, on its thread, what the store holds.
func (n *node) archived(log protocol.LogID, objects []protocol.ArchivedObject, life int) {
	if len(objects) == 0 || n.life != life {
		return
	}
	n.post(func() {
		before, _ := n.core.Log(log)
		n.core.Archived(n.w.now, log, objects)
		if after, _ := n.core.Log(log); after.ArchivedThrough > before.ArchivedThrough {
			n.w.c.add(&n.w.c.ArchivedRaised)
			n.w.tracef("%s: log %s archived through %d, was %d, by %v", n.id, log, after.ArchivedThrough, before.ArchivedThrough, objects)
		}
	})
}

// look asks the store about every log for which only a look at the store helps.
func (n *node) look(p *proc, arch *archive.Archive, cat *meta.Catalog, life int) {
	type behind struct {
		log      protocol.LogID
		archived protocol.LSN
	}
	var all []behind
	n.core.Behind(func(log protocol.LogID, archived protocol.LSN, _ bool) { all = append(all, behind{log, archived}) })
	slices.SortFunc(all, func(a, b behind) int { return cmp.Compare(a.log, b.log) })
	for _, b := range all {
		n.w.c.add(&n.w.c.Looks)
		objects, err := collect.Look(p.context(n.w.now+20*second), arch, cat, b.log, b.archived)
		if err != nil {
			continue
		}
		n.archived(b.log, objects, life)
	}
}

// fullRelease is how long a log is idle before a node that is full drops its window, as in a node's thread.
const fullRelease = 2 * second

// tidy drops the windows of idle logs and gives files back. A full node is in more of a hurry, and looks whether it has room again.
func (n *node) tidy(*proc) {
	n.post(func() {
		idle := n.w.p.releaseIdle
		if n.core.Stats().Full {
			idle = min(idle, fullRelease)
		}
		n.core.Release(n.w.now, idle)
		n.core.AskForRoom(n.w.now)
	})
	n.tidying = true // behind the commit of that batch
}

func (n *node) reclaim() {
	n.tidying = false
	dropped, err := n.core.Store().Reclaim()
	n.w.c.Reclaimed += dropped
	if err != nil && !errors.Is(err, lst.ErrNoSpace) {
		n.died(err)
	}
}
