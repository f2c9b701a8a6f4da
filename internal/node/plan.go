package node

import (
	"container/heap"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/shard"
)

// The planner looks at a log when something happened in it (protocol.Shard.Touched), when a worker has reported, and when
// something of it is due by time, for which the logs stand in a queue. So a tick costs what is due, not what there is: very
// many idle logs cost nothing. What is left out here is never flushed, so every look at a log ends with the time of the next
// one (planLog).

// planned is what the planner remembers of a stretch that is not archived yet.
type planned struct {
	round    uint64        // of the last look that saw it
	seen     protocol.Time // when it was first seen
	complete protocol.Time // when it was first seen complete; 0: not yet
	next     protocol.Time // not before
	rank     int           // of this node among those that may archive it
	packed   bool          // it is left to the packer, whose rounds it waits for
	failures int
	outage   bool // the last failure was the store's silence, and ends with it
	busy     bool
	// objects are what the store holds of the stretch. They wait here for the stretches below, which other nodes may be
	// writing: archived-through rises without holes only.
	objects []protocol.ArchivedObject
}

// logPlan is a log of which something is to be archived, or was touched.
type logPlan struct {
	log     protocol.LogID
	entries map[planKey]*planned
	due     protocol.Time // when to look at it
	place   int           // in the queue, or -1
}

// never is later than any time.
const never = protocol.Time(math.MaxInt64)

// planner decides on the shard's thread what is due.
type planner struct {
	logs    map[protocol.LogID]*logPlan
	queue   dueQueue
	outages map[protocol.LogID]bool // logs with an entry that waits for the store to answer
	looks   uint64                  // at logs, so far
	stretch int                     // entries of all logs
	success uint64                  // flusher.flushed when it was last looked at
	union   []protocol.ArchivedObject
	pending atomic.Int64 // stretches that are due or will be
	others  handover
	snaps   map[protocol.LogID]*snapshot
	watch   protocol.Time // when failure snapshots are planned next
}

func (p *planner) init() {
	p.logs, p.outages = make(map[protocol.LogID]*logPlan), make(map[protocol.LogID]bool)
}

// dueQueue is a heap of logs by when to look at them.
type dueQueue []*logPlan

func (q dueQueue) Len() int           { return len(q) }
func (q dueQueue) Less(i, j int) bool { return q[i].due < q[j].due }
func (q dueQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

func (q *dueQueue) Push(x any) {
	l := x.(*logPlan)
	l.place = len(*q)
	*q = append(*q, l)
}

func (q *dueQueue) Pop() any {
	n := len(*q) - 1
	l := (*q)[n]
	(*q)[n], *q = nil, (*q)[:n]
	l.place = -1
	return l
}

// lookAt has a log looked at no later than due.
func (p *planner) lookAt(log protocol.LogID, due protocol.Time) {
	l := p.logs[log]
	switch {
	case l == nil:
		l = &logPlan{log: log, due: due, place: -1}
		p.logs[log] = l
		heap.Push(&p.queue, l)
	case l.place < 0:
		l.due = due
		heap.Push(&p.queue, l)
	case due < l.due:
		l.due = due
		heap.Fix(&p.queue, l.place)
	}
}

// planFlush sends what is due to the workers.
func (t *thread) planFlush(now protocol.Time) {
	p := &t.plan
	if s := t.n.flusher.flushed.Load(); s != p.success {
		// The store answers: what waits after a failure need not wait any longer.
		p.success = s
		for log := range p.outages {
			if l := p.logs[log]; l != nil {
				for _, e := range l.entries {
					if e.outage {
						e.outage, e.next = false, min(e.next, now)
					}
				}
				p.lookAt(log, now)
			}
		}
		clear(p.outages)
	}
	t.core.Touched(func(log protocol.LogID) { p.lookAt(log, now) })
	for len(p.queue) > 0 && p.queue[0].due <= now {
		l := heap.Pop(&p.queue).(*logPlan)
		due := l.due
		if !t.planLog(now, l) {
			// The workers have enough to do: those that wait longest go on with the next tick.
			p.lookAt(l.log, due)
			break
		}
	}
	t.planSnapshots(now)
	p.pending.Store(int64(p.stretch))
}

// planLog looks at one log, which is not in the queue, sends what is due of it to the workers, and queues it for when more is.
// It returns false if the workers would not take something; then the log is not queued.
func (t *thread) planLog(now protocol.Time, l *logPlan) (taken bool) {
	p := &t.plan
	grace := protocol.Time(t.n.cfg.FlushGrace)
	p.looks++
	p.stretch -= len(l.entries)
	next := never
	taken = true
	pending := protocol.Time(0)
	for _, e := range l.entries {
		if e.complete != 0 && e.rank == 0 && len(e.objects) == 0 && !e.packed {
			pending = max(pending, now-e.complete)
		}
	}
	perRank := p.others.wait(grace, pending)
	plan := func(e *planned, due protocol.Time, j job) {
		if e.busy { // the report will bring the log back
			return
		}
		switch due = max(due, e.next); {
		case due > now:
			next = min(next, due)
		case !t.dispatch(e, j):
			taken = false
		}
	}
	t.core.FlushableOf(l.log, now, func(s protocol.Segment) {
		e := l.entry(planKey{log: s.Log, label: s.Label, segStart: s.SegStart, first: s.First}, now, p.looks)
		if s.Complete && e.complete == 0 {
			e.complete = now
		}
		e.rank = s.Rank
		wait := perRank * protocol.Time(s.Rank)
		due := never
		if s.Complete {
			due = e.complete + wait
		}
		if s.FlushAge > 0 {
			// A live writer cuts an aged segment itself, and then it is complete; the extra grace is its head start.
			due = min(due, now-s.Age+s.FlushAge+grace+wait)
		}
		short := false
		if t.n.packing() && due <= now && e.next <= now && !e.busy && len(e.objects) == 0 {
			var err error
			if short, err = t.short(&s); err != nil && now < due+grace {
				// A record of this batch, most likely: the store has it at the next look. Later a worker says what is wrong.
				next = min(next, now+protocol.Time(tickEvery))
				return
			}
		}
		if short && !s.Holed && s.CLSN >= s.Last {
			e.packed = true
			// It waits for a round of the packer, in which the shard learns what others have packed and is asked for what it has
			// (packLog).
			t.n.packer.want()
			next = min(next, now+protocol.Time(t.n.cfg.PackEvery))
			return
		}
		if s.Holed && due <= now {
			// A node without the holes writes the whole, however slow it is; an object of each stretch beside the holes comes in addition. It
			// may also have left the whole to its packer, whose rounds are far apart; in these this node learns what others have packed.
			due = max(due, e.complete+maxHandover*grace)
			if short {
				due = max(due, e.complete+protocol.Time(s.Rank)*(grace+protocol.Time(t.n.cfg.PackEvery)))
				t.n.packer.want()
				next = min(next, now+protocol.Time(t.n.cfg.PackEvery))
			}
		}
		key := planKey{log: s.Log, label: s.Label, segStart: s.SegStart, first: s.First}
		if !s.Complete || len(e.objects) > 0 {
			s.Rank = max(s.Rank, 1) // another node may hold more of the segment, or this was done: look before writing
		}
		// The next node takes a complete one over after a grace, and a worker may be long in coming, and in reading.
		late := time.Now().Add(time.Duration(grace/2 - (now - due)))
		plan(e, due, job{t: t, key: key, seg: s, view: t.core.View(), late: late})
	})
	// A look at the store for a log whose next record to be archived is not here: an object of another node closes that hole. A
	// node that holds nothing of a log looks at once: a newcomer that does not know archived-through makes the next open wait
	// for records that are archived (P6).
	t.core.BehindOf(l.log, func(log protocol.LogID, archived protocol.LSN, blank bool) {
		key := planKey{log: log, first: archived}
		e := l.entry(key, now, p.looks)
		due := e.seen + patience*grace
		if blank {
			due = now
		}
		plan(e, due, job{t: t, key: key})
	})
	for k, e := range l.entries {
		if e.round != p.looks && !e.busy {
			delete(l.entries, k) // it is archived, or void
		}
	}
	p.stretch += len(l.entries)
	switch {
	case !taken:
	case next < never:
		p.lookAt(l.log, next)
	case len(l.entries) == 0:
		delete(p.logs, l.log)
	}
	return taken
}

func (l *logPlan) entry(k planKey, now protocol.Time, round uint64) *planned {
	e := l.entries[k]
	if e == nil {
		e = &planned{seen: now}
		if l.entries == nil {
			l.entries = make(map[planKey]*planned)
		}
		l.entries[k] = e
	}
	e.round = round
	return e
}

// dispatch gives a job to the workers; false if they have enough to do.
func (t *thread) dispatch(e *planned, j job) bool {
	select {
	case t.n.jobs <- j:
		e.busy = true
		return true
	default:
		return false
	}
}

// tell hands a report to the thread.
func (t *thread) tell(r report) {
	t.inbox.report(r)
	t.loop.Wake()
}

// reported takes a worker's report into the batch.
func (t *thread) reported(now protocol.Time, r *report) {
	if r.taken != nil {
		defer close(r.taken)
	}
	switch {
	case r.pack != nil:
		t.beginPacking(r.pack)
		return
	case r.learned:
		t.learned(now, r)
		return
	case r.deleted:
		t.core.Deleted(r.key.log)
		return
	case r.forget != 0:
		t.core.Forget(r.key.log, r.forget)
		return
	case r.key.snapshot:
		t.snapshotReported(now, r)
		return
	}
	p := &t.plan
	l, e := p.logs[r.key.log], (*planned)(nil)
	if l != nil {
		e = l.entries[r.key]
	}
	if e == nil {
		e = &planned{}
	}
	e.busy = false
	first := len(e.objects) == 0
	if len(r.objects) > 0 {
		e.objects = r.objects
	}
	switch {
	case r.back: // the packer asks again
	case r.err == nil && r.key.label == 0:
		// Should a hole be left, another node may still be about to close it: look again, ever more seldom.
		e.next = now + min(recheck, patience*protocol.Time(t.n.cfg.FlushGrace)<<min(e.failures, 16))
		e.failures++
	case r.err == nil:
		// A packed one waited for the packer's round, and not for the store.
		if first && e.complete != 0 && e.rank == 0 && len(r.objects) > 0 && !e.packed {
			p.others.took(protocol.Time(t.n.cfg.FlushGrace), now-e.complete)
		}
		e.failures, e.next = 0, now+recheck
	case errors.Is(r.err, archive.ErrSource) || errors.Is(r.err, shard.ErrGone):
		e.next = now // the plan is old: another is made
	default:
		e.next = now + min(lastPause, firstPause<<min(e.failures, 16))
		e.failures++
	}
	if e.outage = errors.Is(r.err, archive.ErrUnavailable); e.outage {
		p.outages[r.key.log] = true
	}
	p.lookAt(r.key.log, now)
	if len(r.objects) == 0 {
		return
	}
	p.union = append(p.union[:0], r.objects...)
	if l != nil {
		for k, e := range l.entries {
			if k != r.key {
				p.union = append(p.union, e.objects...)
			}
		}
	}
	t.core.Archived(now, r.key.log, p.union)
}
