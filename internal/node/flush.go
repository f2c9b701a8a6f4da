package node

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/shard"
	"github.com/btrlog/btrlog/lst"
)

// Archiving. A shard's thread plans (planFlush): it names stretches of committed records that are due, each with the view and
// the watermark of that moment (A3). A few workers carry the plans out, and report what the object store holds; the shard
// takes the report into its next batch, which makes archived-through durable and drops the data in one commit (H5). The store
// is never waited for on a shard's thread (A7).
//
// Who writes: the node of rank 0 at once, the one of rank k when k graces have passed without the others, and then it looks
// first; so one healthy cluster makes one PUT per segment (A2).

const (
	// flushTimeout bounds one plan's work on the object store.
	flushTimeout = 2 * time.Minute
	// patience is after how many graces a node whose lowest record is not the next to be archived looks what the store has.
	patience = 5
	// Pauses after failures: the first, doubled each time up to the last.
	firstPause = protocol.Time(time.Second)
	lastPause  = 30 * protocol.Time(time.Second)
	// recheck is when a stretch that is in the store, but not yet below archived-through, is looked for again.
	recheck = protocol.Time(time.Minute)
	// maxJobs bounds the plans that wait for a worker; more are planned again later.
	maxJobs = 256
)

// planKey names a stretch. The zero label stands for a look at all of a log.
type planKey struct {
	log      protocol.LogID
	label    protocol.Epoch
	segStart protocol.LSN
	first    protocol.LSN
	snapshot bool // of a failure snapshot
}

// planned is what the planner remembers of a stretch that is not archived yet.
type planned struct {
	round    uint64        // of the last tick that saw it
	seen     protocol.Time // when it was first seen
	complete protocol.Time // when it was first seen complete; 0: not yet
	next     protocol.Time // not before
	failures int
	outage   bool // the last failure was the store's silence, and ends with it
	busy     bool
	// objects are what the store holds of the stretch. They wait here for the stretches below, which other nodes may be
	// writing: archived-through rises without holes only.
	objects []protocol.ArchivedObject
}

// planner decides on the shard's thread what is due.
type planner struct {
	entries map[planKey]*planned
	round   uint64
	segs    []protocol.Segment        // of one log
	success uint64                    // flusher.flushed when it was last looked at
	union   []protocol.ArchivedObject // scratch
	pending atomic.Int64              // stretches that are due or will be
	snaps   map[protocol.LogID]*snapshot
	watch   protocol.Time // when failure snapshots are planned next
}

// job is one plan for a worker.
type job struct {
	t    *thread
	key  planKey
	seg  protocol.Segment // of a flush; a look has none
	view lst.View
}

// report is what a worker found out.
type report struct {
	key     planKey
	objects []protocol.ArchivedObject
	err     error
	forget  protocol.Epoch // not zero: the log of key does not exist, and this is what it was promised
}

// planFlush sends what is due to the workers.
func (t *thread) planFlush(now protocol.Time) {
	p := &t.plan
	p.round++
	p.segs = p.segs[:0]
	if s := t.n.flusher.flushed.Load(); s != p.success {
		// The store answers: what waits after a failure need not wait any longer.
		p.success = s
		for _, e := range p.entries {
			if e.outage {
				e.next = now
			}
		}
	}
	t.core.Flushable(now, func(s protocol.Segment) {
		// Flushable goes from log to log, and upward within one.
		if n := len(p.segs); n > 0 && p.segs[n-1].Log != s.Log {
			t.planLog(now)
			p.segs = p.segs[:0]
		}
		p.segs = append(p.segs, s)
	})
	t.planLog(now)
	t.planLooks(now)
	t.planSnapshots(now)
	for k, e := range p.entries {
		if e.round != p.round && !e.busy {
			delete(p.entries, k) // it is archived, or void
		}
	}
	p.pending.Store(int64(len(p.entries)))
}

// planLog plans the stretches of one log, which stand in plan.segs.
func (t *thread) planLog(now protocol.Time) {
	p := &t.plan
	grace := protocol.Time(t.n.cfg.FlushGrace)
	for i := range p.segs {
		s := &p.segs[i]
		e := p.entry(planKey{log: s.Log, label: s.Label, segStart: s.SegStart, first: s.First}, now)
		if s.Complete && e.complete == 0 {
			e.complete = now
		}
		plan := *s
		if !s.Complete || len(e.objects) > 0 {
			plan.Rank = max(plan.Rank, 1) // another node may hold more of the segment, or this was done: look before writing
		}
		wait := grace * protocol.Time(s.Rank)
		due := s.Complete && now >= e.complete+wait ||
			// A live writer cuts an aged segment itself, and then it is complete; the extra grace is its head start.
			s.FlushAge > 0 && s.Age >= s.FlushAge+grace+wait
		if due {
			t.dispatch(now, e, job{t: t, key: planKey{log: s.Log, label: s.Label, segStart: s.SegStart, first: s.First}, seg: plan, view: t.core.View()})
		}
	}
}

// planLooks plans a look at the store for every log whose next record to be archived is not here: an object of another node
// closes that hole. A node that holds nothing of a log looks at once: a newcomer that does not know archived-through makes
// the next open wait for records that are archived (P6).
func (t *thread) planLooks(now protocol.Time) {
	p := &t.plan
	t.core.Behind(func(log protocol.LogID, archived protocol.LSN, blank bool) {
		key := planKey{log: log, first: archived}
		e := p.entry(key, now)
		if blank || now >= e.seen+patience*protocol.Time(t.n.cfg.FlushGrace) {
			t.dispatch(now, e, job{t: t, key: key})
		}
	})
}

func (p *planner) entry(k planKey, now protocol.Time) *planned {
	e := p.entries[k]
	if e == nil {
		e = &planned{seen: now}
		p.entries[k] = e
	}
	e.round = p.round
	return e
}

// dispatch gives a job to the workers, unless it is with them, waits after a failure, or they have enough to do.
func (t *thread) dispatch(now protocol.Time, e *planned, j job) {
	if e.busy || now < e.next {
		return
	}
	select {
	case t.n.jobs <- j:
		e.busy = true
	default:
	}
}

// reported takes a worker's report into the batch.
func (t *thread) reported(now protocol.Time, r *report) {
	if r.forget != 0 {
		t.core.Forget(r.key.log, r.forget)
		return
	}
	if r.key.snapshot {
		t.snapshotReported(now, r)
		return
	}
	e := t.plan.entries[r.key]
	if e == nil {
		e = &planned{}
	}
	e.busy = false
	if len(r.objects) > 0 {
		e.objects = r.objects
	}
	switch {
	case r.err == nil && r.key.label == 0:
		// Should a hole be left, another node may still be about to close it: look again, ever more seldom.
		e.next = now + min(recheck, patience*protocol.Time(t.n.cfg.FlushGrace)<<min(e.failures, 16))
		e.failures++
	case r.err == nil:
		e.failures, e.next = 0, now+recheck
	case errors.Is(r.err, archive.ErrSource) || errors.Is(r.err, shard.ErrGone):
		e.next = now // the plan is old: another is made
	default:
		e.next = now + min(lastPause, firstPause<<min(e.failures, 16))
		e.failures++
	}
	e.outage = errors.Is(r.err, archive.ErrUnavailable)
	if len(r.objects) == 0 {
		return
	}
	t.plan.union = append(t.plan.union[:0], r.objects...)
	for k, e := range t.plan.entries {
		if k.log == r.key.log && k != r.key {
			t.plan.union = append(t.plan.union, e.objects...)
		}
	}
	t.core.Archived(now, r.key.log, t.plan.union)
}

// flusher is the workers and their counters.
type flusher struct {
	wg      sync.WaitGroup
	flushed atomic.Uint64 // plans carried out
	failed  atomic.Uint64 // plans that ended with an error
	running atomic.Int64
	// snapshots counts failure snapshots of logs that were completed.
	snapshots atomic.Uint64
	mu        sync.Mutex
	lastErr   string
	lastTime  time.Time
}

func (f *flusher) start(ctx context.Context, n *Node, workers int) {
	for range workers {
		f.wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case j := <-n.jobs:
					f.running.Add(1)
					r := j.run(ctx, n)
					f.running.Add(-1)
					f.note(n, &j, r.err)
					j.t.inbox.report(r)
					j.t.loop.Wake()
				}
			}
		})
	}
}

func (f *flusher) note(n *Node, j *job, err error) {
	switch {
	case err == nil:
		f.flushed.Add(1)
		return
	case errors.Is(err, shard.ErrGone) || errors.Is(err, archive.ErrSource):
		return // planned again
	case errors.Is(err, context.Canceled):
		return // the node stops
	}
	f.failed.Add(1)
	f.mu.Lock()
	f.lastErr, f.lastTime = err.Error(), time.Now()
	f.mu.Unlock()
	n.log.Repeat(slog.LevelWarn, "", "segment not archived, will be tried again", "log", j.key.log.String(), "first", j.key.first, "error", err)
}

func (f *flusher) last() (string, time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lastErr, f.lastTime
}

// run carries a plan out.
func (j *job) run(ctx context.Context, n *Node) report {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	r := report{key: j.key}
	if j.key.label == 0 {
		r.objects, r.err = n.look(ctx, j.key.log, j.key.first)
	} else {
		r.objects, r.err = n.archive.Flush(ctx, j.seg, records(j.view, j.seg))
	}
	return r
}

// look finds what the store has of a log above an LSN. What is trimmed needs no object (P3: every *untrimmed* LSN): it counts
// as one, under the epoch of the record that says so, which raises no watermark of a node that missed that epoch.
func (n *Node) look(ctx context.Context, log protocol.LogID, after protocol.LSN) ([]protocol.ArchivedObject, error) {
	objects, err := n.archive.Look(ctx, log, after)
	if err != nil {
		return nil, err
	}
	switch rec, err := n.catalog.LoadByID(ctx, log); {
	case errors.Is(err, meta.ErrDeleted) || errors.Is(err, meta.ErrNotFound):
	case err != nil:
		return nil, err
	case rec.Record.TrimBefore > after+1:
		through := rec.Record.TrimBefore - 1
		objects = append(objects, protocol.ArchivedObject{Label: rec.Record.Epoch, First: 1, Last: through, CLSN: through})
	}
	return objects, nil
}

// records yields the records of a stretch as the archive takes them. It may be run more than once.
func records(v lst.View, seg protocol.Segment) iter.Seq2[archive.Record, error] {
	return func(yield func(archive.Record, error) bool) {
		src := shard.NewSource(v, seg)
		for src.Next() {
			r := src.Record()
			if !yield(archive.Record{LSN: r.LSN, Label: r.Label, More: r.More, Data: r.Data}, nil) {
				return
			}
		}
		if err := src.Err(); err != nil {
			yield(archive.Record{}, err)
		}
	}
}
