package sim

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst/vfs"
	"github.com/btrlog/btrlog/objstore"
)

// TestProcs: order of events, waits, wakes, and that nothing of a killed proc runs any more.
func TestProcs(t *testing.T) {
	s := newScheduler()
	var got []string
	note := func(x string) { got = append(got, x) }
	a := s.spawn("a", func(p *proc) {
		note("a1")
		p.sleep(10)
		note("a2")
		p.wait(100)
		note("a3")
	})
	b := s.spawn("b", func(p *proc) {
		defer note("b unwinds")
		p.sleep(1000)
		note("b must not get here")
	})
	ended := false
	b.atEnd = func() { ended = true }
	s.at(20, a.wake)
	s.at(30, b.kill)
	s.spawn("c", func(p *proc) {
		p.sleep(40)
		note("c kills itself")
		p.kill()
		note("c must not get here")
	})
	s.run(2000, func() bool { return false })
	want := []string{"a1", "a2", "a3", "b unwinds", "c kills itself"}
	if len(got) != len(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	if !ended || len(s.procs) != 0 {
		t.Fatalf("ended %v, %d procs left", ended, len(s.procs))
	}
}

// TestDiskPendingSync: a forced write is durable when it has completed, and not before.
func TestDiskPendingSync(t *testing.T) {
	kept := map[bool]int{}
	for seed := uint64(0); seed < 64; seed++ {
		for _, settled := range []bool{false, true} {
			d := &disk{Mem: vfs.NewMem(vfs.MemOptions{Seed: seed})}
			f, err := d.Create("/f", vfs.DSync)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.SyncDir("/"); err != nil {
				t.Fatal(err)
			}
			want := bytes.Repeat([]byte{7}, 512)
			if _, err := f.WriteAt(want, 0); err != nil {
				t.Fatal(err)
			}
			if settled {
				if err := d.settle(); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := d.Mem.Crash().ReadFile("/f"); err == nil && bytes.Equal(got, want) {
				kept[settled]++
			}
		}
	}
	if kept[true] != 64 {
		t.Errorf("%d of 64 completed writes survived", kept[true])
	}
	if kept[false] == 0 || kept[false] == 64 {
		t.Errorf("%d of 64 writes in flight survived; both must happen", kept[false])
	}
}

// TestStoreRaces: two procs that read and then replace by the ETag they read race: one wins. And a request whose sender dies
// on the way is applied all the same.
func TestStoreRaces(t *testing.T) {
	s := newScheduler()
	p := &params{storeDelay: millisecond}
	st := newStore(s, derive(1, "store"), 1, p, &counters{})
	ctx := context.Background()
	if _, err := st.inner.Put(ctx, "k", []byte("0"), nil, objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	won, lost := 0, 0
	for i := range 2 {
		s.spawn("racer", func(q *proc) {
			ctx := q.context(1 << 60)
			info, err := st.Head(ctx, "k")
			if err != nil {
				t.Error(err)
			}
			_, err = st.Put(ctx, "k", []byte{byte('a' + i)}, nil, objstore.IfMatch(info.ETag))
			switch {
			case err == nil:
				won++
			case errors.Is(err, objstore.ErrPrecondition):
				lost++
			default:
				t.Error(err)
			}
		})
	}
	s.run(second, func() bool { return false })
	if won != 1 || lost != 1 {
		t.Fatalf("%d won, %d lost; both read before either wrote", won, lost)
	}
	dies := s.spawn("dies", func(q *proc) { _, _ = st.Put(q.context(1<<60), "late", nil, nil, objstore.IfAbsent()) })
	s.after(1, dies.kill)
	s.run(s.now+second, func() bool { return false })
	if _, err := st.inner.Head(ctx, "late"); err != nil {
		t.Fatalf("a request that had left was not applied: %v", err)
	}
}

// TestNetwork: faults happen, and none after heal.
func TestNetwork(t *testing.T) {
	s := newScheduler()
	p := &params{netDelay: millisecond, netJitter: millisecond, netLoss: 0.2, netDup: 0.2, netStall: 0.1, netStallMax: second}
	var c counters
	n := newNetwork(s, derive(3, "net"), p, &c)
	var got []byte
	n.hosts[2] = func(_ endpoint, b []byte) { got = append(got, b[0]) }
	for i := range 200 {
		n.send(1, 2, classRead, []byte{byte(i)})
	}
	s.run(10*second, func() bool { return false })
	if c.Lost == 0 || c.Duplicated == 0 || c.Delayed == 0 || len(got) != 200-c.Lost+c.Duplicated || bytes.Equal(got, sorted(got)) {
		t.Fatalf("lost %d, duplicated %d, delayed %d, %d of 200 arrived", c.Lost, c.Duplicated, c.Delayed, len(got))
	}
	got = nil
	n.block(1, 2, s.now+second)
	n.hosts[1] = func(endpoint, []byte) { got = append(got, 'r') }
	n.send(1, 2, classRead, []byte{1})
	n.heal()
	for range 100 {
		n.send(1, 2, classRead, []byte{2})
		n.send(2, 1, classRead, []byte{2})
	}
	s.run(s.now+10*second, func() bool { return false })
	if c.Partitioned != 1 || len(got) != 200 {
		t.Fatalf("%d stopped by the partition, %d of 200 arrived after it healed", c.Partitioned, len(got))
	}
}

func sorted(b []byte) []byte {
	out := bytes.Clone(b)
	for i := range out {
		for j := i + 1; j < len(out); j++ {
			if out[j] < out[i] {
				out[i], out[j] = out[j], out[i]
			}
		}
	}
	return out
}

// TestMayLose: the nemesis stays inside the failure model.
func TestMayLose(t *testing.T) {
	w := newWorld(1, Mutant{}, false)
	w.p.qw = 2
	e := protocol.Ensemble{}
	for _, n := range w.nodes[:3] {
		e = append(e, protocol.Member{Node: n.id, Incarnation: n.inc})
	}
	c := w.newClient("opener", func(c *client) { c.p.sleep(second) })
	w.targets[c] = e
	if !w.mayLose(w.nodes[0]) {
		t.Fatal("with three disks of a 3/2 ensemble one may be lost")
	}
	w.wipe(w.nodes[0])
	if w.mayLose(w.nodes[1]) {
		t.Fatal("with one disk of a 3/2 ensemble gone no other may be lost")
	}
	if !w.mayLose(w.nodes[0]) {
		t.Fatal("a disk that no ensemble names may be lost at any time")
	}
	c.p.kill()
	if !w.mayLose(w.nodes[1]) {
		t.Fatal("an open that is over names no ensemble")
	}
}
