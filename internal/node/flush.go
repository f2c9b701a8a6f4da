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
	"github.com/btrlog/btrlog/internal/collect"
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

// job is one plan for a worker.
type job struct {
	t    *thread
	key  planKey
	seg  protocol.Segment // of a flush; a look has none
	view lst.View
	late time.Time // when another node may be about to write it too
}

// report is what a worker found out.
type report struct {
	key     planKey
	objects []protocol.ArchivedObject
	err     error
	deleted bool            // the log of key is deleted
	forget  protocol.Epoch  // not zero: the log of key does not exist, and this is what it was promised
	learned bool            // objects are what a pack of another node holds of the log of key
	back    bool            // nothing was done about it
	pack    packRequest     // not nil: what there is to be packed is asked for, and nothing reported
	taken   chan<- struct{} // closed, if not nil, when the shard has taken the report
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
	since     time.Time // of the first failure behind the last plan that was carried out; zero: none
}

func (f *flusher) start(ctx context.Context, n *Node, workers int) {
	for range workers {
		f.wg.Go(func() {
			giveWay()
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
		f.mu.Lock()
		f.since = time.Time{}
		f.mu.Unlock()
		return
	case errors.Is(err, shard.ErrGone) || errors.Is(err, archive.ErrSource):
		return // planned again
	case errors.Is(err, context.Canceled):
		return // the node stops
	}
	f.failed.Add(1)
	f.mu.Lock()
	f.lastErr, f.lastTime = err.Error(), time.Now()
	if f.since.IsZero() {
		f.since = f.lastTime
	}
	f.mu.Unlock()
	n.log.Repeat(slog.LevelWarn, "", "segment not archived, will be tried again", "log", j.key.log.String(), "first", j.key.first, "error", err)
}

// failing returns for how long no plan could be carried out, and the latest error; 0 while they can, and while there are none.
func (f *flusher) failing() (time.Duration, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.since.IsZero() {
		return 0, ""
	}
	return time.Since(f.since), f.lastErr
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
		r.objects, r.err = collect.Look(ctx, n.archive, n.catalog, j.key.log, j.key.first)
	} else {
		src := records(j.view, j.seg)
		if !j.key.snapshot { // a failure snapshot is in a hurry: another disk may die
			p := pacer{spread: n.cfg.FlushGrace / paceShare, waiting: func() int { return len(n.jobs) }, now: time.Now, sleep: sleep}
			src = p.paced(ctx, j.seg, src)
		}
		j.seg.Late = time.Now().After(j.late)
		r.objects, r.err = n.archive.Flush(ctx, j.seg, src)
	}
	return r
}

// records yields the records of a stretch as the archive takes them. It may be run more than once.
func records(v lst.View, seg protocol.Segment) iter.Seq2[archive.Record, error] {
	return func(yield func(archive.Record, error) bool) {
		src := shard.NewSource(v, seg)
		since := 0
		for src.Next() {
			r := src.Record()
			if since += protocol.EncodedSize(len(r.Data)); since >= yieldBytes {
				since = 0
				letOthers()
			}
			if !yield(archive.Record{LSN: r.LSN, Label: r.Label, More: r.More, Data: r.Data}, nil) {
				return
			}
		}
		if err := src.Err(); err != nil {
			yield(archive.Record{}, err)
		}
	}
}
