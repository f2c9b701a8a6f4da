package node

import (
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/shard"
	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/lst/vfs"
)

// Logs in which nothing happens are not looked at until something of them is due, and then all of it is sent to the workers,
// however few plans those take at a time. Each tick used to look at every log.
func TestIdleLogsCostNothingUntilTheyAreDue(t *testing.T) {
	const logs, inc = 1000, protocol.Incarnation(9)
	core, _, err := shard.Open("/s", lst.Options{FS: vfs.NewMem(vfs.MemOptions{Seed: 3}), Mode: lst.Direct, SegmentBytes: 4 << 20, Inline: true}, inc, protocol.Rules{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	th := &thread{n: &Node{cfg: Config{FlushGrace: time.Second}, jobs: make(chan job, 16)}, core: core}
	th.plan.init()
	th.plan.watch = never
	commit := func() {
		t.Helper()
		if _, err := core.Commit(1); err != nil {
			t.Fatal(err)
		}
	}
	const age = 3600 * protocol.Time(time.Second)
	for id := protocol.LogID(1); id <= logs; id++ {
		w := newWriter(id)
		w.set.FlushAgeMS, w.set.Peers = uint32(time.Hour.Milliseconds()), []protocol.Incarnation{inc}
		core.Step(1, 1, w.open(1))
		core.Step(1, 1, w.activate(inc, 1, 1))
		core.Step(1, 1, to(inc, w.append(1, 50)))
		w.cLSN = 1
		core.Step(1, 1, w.watermark(inc, 0))
	}
	commit()
	th.planFlush(2)
	if th.plan.looks != logs || th.plan.pending.Load() != logs {
		t.Fatalf("%d looks at %d new logs, %d stretches to come", th.plan.looks, logs, th.plan.pending.Load())
	}
	for now := protocol.Time(3); now < age; now += age / 1000 {
		th.planFlush(now)
	}
	if th.plan.looks != logs || len(th.n.jobs) != 0 {
		t.Fatalf("%d looks at idle logs, %d plans", th.plan.looks-logs, len(th.n.jobs))
	}
	done := make(map[protocol.LogID]int)
	now := age + 3*protocol.Time(time.Second)
	for range 2 * logs / cap(th.n.jobs) {
		th.planFlush(now)
		for len(th.n.jobs) > 0 {
			j := <-th.n.jobs
			done[j.key.log]++
			th.reported(now, &report{key: j.key, objects: []protocol.ArchivedObject{{Label: 1, First: 1, Last: 1, CLSN: 1}}})
		}
		commit()
		now += protocol.Time(tickEvery)
	}
	for id := protocol.LogID(1); id <= logs; id++ {
		if l, _ := core.Log(id); done[id] != 1 || l.ArchivedThrough != 1 {
			t.Fatalf("log %v: %d plans, archived through %d", id, done[id], l.ArchivedThrough)
		}
	}
	if n := th.plan.looks; n > 4*logs {
		t.Fatalf("%d looks at %d logs", n, logs)
	}
	if th.plan.pending.Load() != 0 || len(th.plan.logs) != 0 || len(th.plan.queue) != 0 {
		t.Fatalf("with all archived the planner has %d stretches, %d logs, %d queued", th.plan.pending.Load(), len(th.plan.logs), len(th.plan.queue))
	}
}
