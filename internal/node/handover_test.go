package node

import (
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/shard"
	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/lst/vfs"
)

// planningThread is a shard's thread that plans, and takes nothing but what a test gives it. Nobody takes its jobs.
func planningThread(t *testing.T, inc protocol.Incarnation, cfg Config) *thread {
	t.Helper()
	core, _, err := shard.Open("/s", lst.Options{FS: vfs.NewMem(vfs.MemOptions{Seed: 3}), Mode: lst.Direct, SegmentBytes: 4 << 20, Inline: true}, inc, protocol.Rules{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := core.Close(); err != nil {
			t.Error(err)
		}
	})
	n := &Node{cfg: cfg, jobs: make(chan job, 64)}
	n.packer.init()
	th := &thread{n: n, core: core}
	th.plan.init()
	th.plan.watch = never
	return th
}

// A store that is slow for all nodes must not be sent each segment by each of them: a node that waits for its own segments leaves the
// others' to the others. It used to take them over after a grace, while they were being written.
func TestSlowStoreIsNoReasonToTakeOver(t *testing.T) {
	const inc, other = protocol.Incarnation(9), protocol.Incarnation(10)
	const grace = protocol.Time(time.Second)
	th := planningThread(t, inc, Config{FlushGrace: time.Duration(grace)})
	core := th.core
	w := newWriter(1)
	w.set.Peers = []protocol.Incarnation{inc, other}
	core.Step(1, 1, w.open(1))
	core.Step(1, 1, w.activate(inc, 1, 1))
	const segments = 16
	for range segments {
		w.seg, w.off = protocol.LSN(w.next), 0 // each record is a segment
		core.Step(1, 1, to(inc, w.append(1, 50)))
	}
	w.cLSN = segments
	core.Step(1, 1, w.watermark(inc, segments))
	if _, err := core.Commit(1); err != nil {
		t.Fatal(err)
	}
	planned := func(now protocol.Time) (first, second []planKey) {
		th.planFlush(now)
		for len(th.n.jobs) > 0 {
			j := <-th.n.jobs
			if j.seg.Rank == 0 {
				first = append(first, j.key)
			} else {
				second = append(second, j.key)
			}
		}
		return first, second
	}
	mine, theirs := planned(2)
	if len(mine) < 2 || len(mine) > segments-2 || len(theirs) > 0 {
		t.Fatalf("%d segments are this node's, %d of the other's are planned at once", len(mine), len(theirs))
	}
	for now := grace / 4; now < 8*grace; now += grace / 4 {
		if first, second := planned(now); len(first)+len(second) > 0 {
			t.Fatalf("after %v, with its own segments not archived yet, %d of the other node's are taken over", time.Duration(now), len(second))
		}
	}
	// Its own took so long; the others get as much and more. Then somebody has died.
	for _, k := range mine {
		th.reported(8*grace, &report{key: k, objects: []protocol.ArchivedObject{{Label: 1, First: k.first, Last: k.first, CLSN: k.first}}})
	}
	if _, second := planned(9 * grace); len(second) > 0 {
		t.Fatalf("%d segments are taken over as soon as a slow store has taken this node's own", len(second))
	}
	if _, second := planned((maxHandover+1)*grace + 2); len(second) != segments-len(mine) {
		t.Fatalf("%d of %d segments of a dead node are taken over", len(second), segments-len(mine))
	}
}

// One quick store, and what waits for a dead node waits for a grace as before.
func TestHandoverFollowsTheStore(t *testing.T) {
	const grace = protocol.Time(2 * time.Second)
	var h handover
	if got := h.wait(grace, 0); got != grace {
		t.Errorf("with nothing known %v", time.Duration(got))
	}
	for range 50 {
		h.took(grace, grace/10)
	}
	if got := h.wait(grace, 0); got != grace {
		t.Errorf("with a quick store %v", time.Duration(got))
	}
	for range 50 {
		h.took(grace, 3*grace)
	}
	if got := h.wait(grace, 0); got < 6*grace || got > 7*grace {
		t.Errorf("where a segment takes %v, %v", time.Duration(3*grace), time.Duration(got))
	}
	for range 50 {
		h.took(grace, grace/10)
	}
	if got := h.wait(grace, 0); got != grace {
		t.Errorf("with a store that is quick again %v", time.Duration(got))
	}
	// One outage is forgotten. A segment that had waited for an hour used to have the next sixty wait for half a minute.
	h.took(grace, 3600*grace)
	for range 40 {
		h.took(grace, grace/10)
	}
	if got := h.wait(grace, 0); got != grace {
		t.Errorf("40 segments after an outage %v", time.Duration(got))
	}
	if got := h.wait(grace, 1000*grace); got != maxHandover*grace {
		t.Errorf("without an end %v", time.Duration(got))
	}
}

// A record that came in this batch is not in the store yet, so nobody knows how long its segment is. It used to be taken for a long one, and became
// an object of its own. And what another node has packed is not looked for while the stretch below it is still on its way.
func TestYoungAndLearnedStretchesAreNoObjects(t *testing.T) {
	const inc = protocol.Incarnation(9)
	const grace = protocol.Time(time.Second)
	th := planningThread(t, inc, Config{FlushGrace: time.Duration(grace), PackEvery: 40 * time.Second})
	n, core := th.n, th.core
	w := newWriter(1)
	w.set.Peers = []protocol.Incarnation{inc}
	core.Step(1, 1, w.open(1))
	core.Step(1, 1, w.activate(inc, 1, 1))
	for range 2 {
		w.cut() // each record is a segment
		core.Step(1, 1, to(inc, w.append(1, 50)))
	}
	w.cLSN = 2
	core.Step(1, 1, w.watermark(inc, 2))
	th.planFlush(2)
	if len(n.jobs) > 0 {
		t.Fatalf("%d segments are no objects of packs before they are in the store", len(n.jobs))
	}
	if _, err := core.Commit(2); err != nil {
		t.Fatal(err)
	}
	th.planFlush(3 + protocol.Time(tickEvery))
	if len(n.jobs) > 0 || len(n.packer.wake) == 0 {
		t.Fatalf("%d segments are not left to the packer", len(n.jobs))
	}
	now := 10 * grace
	th.learned(now, &report{key: planKey{log: 1}, objects: []protocol.ArchivedObject{{Label: 1, First: 2, Last: 2, CLSN: 2}}})
	th.planFlush(now)
	if len(n.jobs) > 0 {
		t.Fatal("a stretch that another node has packed is looked for")
	}
	if l, _ := core.Log(1); l.ArchivedThrough != 0 {
		t.Fatalf("archived through %d with a hole below", l.ArchivedThrough)
	}
	th.learned(now, &report{key: planKey{log: 1}, objects: []protocol.ArchivedObject{{Label: 1, First: 1, Last: 1, CLSN: 1}}})
	th.planFlush(now + 2*recheck)
	if l, _ := core.Log(1); l.ArchivedThrough != 2 {
		t.Fatalf("archived through %d, of 2 that were packed", l.ArchivedThrough)
	}
}

// Short segments wait for the rounds of the packer, which are far apart however quick the store is. That used to be taken for a slow store, and
// a node with idle logs waited for half a minute before it took over from a dead one.
func TestPackingIsNoSlowStore(t *testing.T) {
	const inc, other = protocol.Incarnation(9), protocol.Incarnation(10)
	const grace = protocol.Time(time.Second)
	th := planningThread(t, inc, Config{FlushGrace: time.Duration(grace), PackEvery: 40 * time.Second})
	n, core := th.n, th.core
	const segments, log = 16, 1
	w := newWriter(log)
	w.set.Peers = []protocol.Incarnation{inc, other}
	core.Step(1, 1, w.open(1))
	core.Step(1, 1, w.activate(inc, 1, 1))
	write := func(now protocol.Time, size int) {
		t.Helper()
		for range segments {
			w.cut() // each record is a segment
			core.Step(now, 1, to(inc, w.append(1, size)))
			w.cLSN = w.next - 1
			core.Step(now, 1, w.watermark(inc, w.cLSN))
			if _, err := core.Commit(now); err != nil {
				t.Fatal(err)
			}
		}
	}
	object := func(k planKey) *report {
		return &report{key: k, objects: []protocol.ArchivedObject{{Label: k.label, First: k.first, Last: k.first, CLSN: k.first}}}
	}
	write(1, 50)
	th.planFlush(2)
	if len(n.jobs) > 0 {
		t.Fatalf("%d short segments are not left to the packer", len(n.jobs))
	}
	now, packed := 40*grace, 0
	for k, e := range th.plan.logs[log].entries {
		if e.rank == 0 {
			th.reported(now, object(k))
			packed++
		}
	}
	for k, e := range th.plan.logs[log].entries {
		if e.rank > 0 { // the other node's pack
			th.learned(now, object(k))
		}
	}
	if l, _ := core.Log(log); packed == 0 || packed == segments || l.ArchivedThrough != segments {
		t.Fatalf("%d of %d segments were packed here, archived through %d", packed, segments, l.ArchivedThrough)
	}
	// Long ones now. The other node dies.
	write(now, 100<<10)
	th.planFlush(now)
	mine := len(n.jobs)
	for len(n.jobs) > 0 {
		j := <-n.jobs
		if j.seg.Rank > 0 {
			t.Fatalf("segment at %d is taken over at once", j.key.first)
		}
		th.reported(now, object(j.key))
	}
	th.planFlush(now + grace)
	if got := len(n.jobs); mine == segments || got != segments-mine {
		t.Errorf("%d segments of a dead node are taken over after a grace, of %d", got, segments-mine)
	}
}

// A stretch that lacks a record here is left to the nodes that have it all, and to their packers. It used to become an object of its own after a
// few graces, while a slow store took the whole, or before they had their round.
func TestHolesAreLeftToOthers(t *testing.T) {
	const inc = protocol.Incarnation(9)
	const grace, every = protocol.Time(time.Second), 40 * protocol.Time(time.Second)
	for _, c := range []struct {
		size          int
		early, latest protocol.Time // not before, and by when
	}{
		{50, every, 6 * (every + grace)},
		{1 << 20, maxHandover * grace, (maxHandover + 1) * grace},
	} {
		th := planningThread(t, inc, Config{FlushGrace: time.Duration(grace), PackEvery: time.Duration(every)})
		n, core := th.n, th.core
		w := newWriter(1)
		w.set.Peers = []protocol.Incarnation{inc, 10, 11}
		core.Step(1, 1, w.open(1))
		core.Step(1, 1, w.activate(inc, 1, 1))
		core.Step(1, 1, to(inc, w.append(1, c.size)))
		w.append(1, c.size) // is lost on the way
		core.Step(1, 1, to(inc, w.append(1, c.size)))
		w.cLSN = 3
		core.Step(1, 1, w.watermark(inc, 3))
		if _, err := core.Commit(1); err != nil {
			t.Fatal(err)
		}
		// jobs are the first LSNs of the stretches that go out.
		jobs := func(from, to protocol.Time) (stretches []protocol.LSN) {
			for now := from; now < to; now += grace / 4 {
				th.planFlush(now)
				for len(n.jobs) > 0 {
					if j := <-n.jobs; j.key.label != 0 { // no look at the store
						stretches = append(stretches, j.key.first)
					}
				}
			}
			return stretches
		}
		if early := jobs(2, c.early); len(early) > 0 {
			t.Errorf("records of %d bytes: the stretches at %v go out before other nodes can have archived the whole", c.size, early)
		}
		if small := c.size == 50; small && len(n.packer.wake) == 0 {
			t.Errorf("the packer does not look what others have packed")
		}
		// The other two are dead.
		if late := jobs(c.early, c.latest); len(late) != 2 {
			t.Errorf("records of %d bytes: the stretches at %v are archived in the end, of 1 and 3", c.size, late)
		}
	}
}
