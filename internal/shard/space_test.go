package shard

import (
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/lst/vfs"
)

// A shard whose segments are smaller than the room it wants to see before it takes appends again must take them again all
// the same. And however many promises and watermarks arrive while it is full, the trims that free it must still fit. Both
// found by the simulator (its seed 41 of then).
func TestFullShardOfSmallSegmentsRecovers(t *testing.T) {
	disk := vfs.NewMem(vfs.MemOptions{Seed: 4})
	opt := options(disk, lst.Direct)
	opt.SegmentBytes = 128 << 10
	opt.MaxRecordBytes = 32 << 10
	opt.DiskBudgetBytes = 4 * opt.SegmentBytes
	opt.Inline = true
	c, _, err := Open(testDir, opt, testInc, protocol.Rules{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, c)
	var last protocol.LSN
	for full := false; !full; {
		c.Step(1, 5, w.append(1, 4_000))
		a, err := c.Commit(1)
		if err != nil {
			t.Fatal(err)
		}
		if full = a.Acks[0].Ack.Status == protocol.StatusNoSpace; !full {
			last = wantAck(t, a, protocol.StatusOK).Last
		}
		if last > 400 {
			t.Fatal("the budget is not kept")
		}
	}
	// Takeovers go on while the shard is full, until it has to refuse those too; then nothing is answered.
	refused := false
	for e := protocol.Epoch(2); e < 2000 && !refused; e++ {
		c.Step(2, 5, w.open(e))
		a, err := c.Commit(2)
		if err != nil {
			t.Fatal(err)
		}
		refused = len(a.Replies) == 0
	}
	if !refused {
		t.Fatal("2000 promises fit into the reserve of a full shard")
	}
	c.Archived(3, testLog, []protocol.ArchivedObject{{Label: 1, First: 1, Last: last, CLSN: last}})
	commit(t, c)
	if n, err := c.Store().Reclaim(); err != nil || n == 0 {
		t.Fatalf("reclaim after everything was archived: %d segments, %v", n, err)
	}
	st, _ := c.Log(testLog)
	w2 := newWriter(testLog)
	w2.hist = w.hist
	do(t, c, w2.open(st.Promised+1))
	wantAck(t, do(t, c, w2.activate(st.Promised+1, last+1)), protocol.StatusOK)
	waitForRoom(t, c, 1000*protocol.Millisecond)
	c.Step(4000*protocol.Millisecond, 5, w2.append(1, 4_000))
	wantAck(t, commit(t, c), protocol.StatusOK)
	if c.Stats().Full {
		t.Fatal("still full")
	}
}

// R15: a full shard takes the repairs of takeovers, as many as its reserve is large; beyond that it refuses them as it does
// appends. Then archiving frees it all the same, and it takes appends again.
func TestRepairsFitIntoAFullShard(t *testing.T) {
	disk := vfs.NewMem(vfs.MemOptions{Seed: 8})
	opt := options(disk, lst.Direct)
	opt.SegmentBytes, opt.MaxRecordBytes, opt.Inline = 256<<10, 32<<10, true
	opt.DiskBudgetBytes, opt.ReserveBytes = 4*opt.SegmentBytes, 2*opt.SegmentBytes
	c, _, err := Open(testDir, opt, testInc, protocol.Rules{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, c)
	now := protocol.Time(1)
	step := func(m protocol.Message) protocol.Ack {
		t.Helper()
		now += 60 * protocol.Millisecond
		c.Step(now, 5, m)
		a := commit(t, c)
		if len(a.Acks) != 1 {
			t.Fatalf("%T: %d acknowledgements", m, len(a.Acks))
		}
		return a.Acks[0].Ack
	}
	var last protocol.LSN
	for {
		a := step(w.append(1, 4_000))
		if a.Status == protocol.StatusNoSpace {
			break
		}
		if last = a.Last; last > 400 {
			t.Fatal("the budget is not kept")
		}
	}
	repaired := 0
	epoch := protocol.Epoch(1)
	for full := false; !full; {
		epoch++
		do(t, c, w.open(epoch))
		// What is repaired is committed with the takeover and stays, as nothing is archived: the worst case.
		rep := newWriter(testLog)
		rep.epoch, rep.next, rep.seg = epoch, last+1, last+1
		for i := range 8 {
			m := rep.append(1, 4_000)
			m.Kind = protocol.AppendRepair
			a := step(m)
			if full = a.Status == protocol.StatusNoSpace; full {
				break
			}
			if a.Status != protocol.StatusOK {
				t.Fatalf("repair %d at epoch %d of a full shard: %+v", i, epoch, a)
			}
			repaired += 4_000
			last = a.Last
		}
		if epoch == 2 && full {
			t.Fatal("a full shard refuses the repairs of the first takeover")
		}
		if repaired > 3*int(opt.SegmentBytes) {
			t.Fatalf("%d bytes of repairs went into a reserve of %d", repaired, opt.ReserveBytes)
		}
		if a := step(w.activate(epoch, last+1)); a.Status != protocol.StatusOK {
			t.Fatalf("activation at epoch %d of a full shard: %+v", epoch, a)
		}
		if a := step(&protocol.Watermark{Log: testLog, Epoch: epoch, Incarnation: testInc, CLSN: last}); a.Status != protocol.StatusOK {
			t.Fatalf("watermark at epoch %d of a full shard: %+v", epoch, a)
		}
		if a := step(w.append(1, 4_000)); a.Status != protocol.StatusNoSpace {
			t.Fatalf("append at epoch %d of a full shard: %+v", epoch, a)
		}
	}
	if s := c.Stats(); !s.Full || !s.ReserveUsed || s.Rebuilds != 0 {
		t.Fatalf("stats of a shard whose reserve is used up: %+v", s)
	}
	if used := disk.UsedBytes(); used > opt.DiskBudgetBytes+opt.ReserveBytes+2*opt.SegmentBytes {
		t.Fatalf("%d bytes are used with a budget of %d and a reserve of %d", used, opt.DiskBudgetBytes, opt.ReserveBytes)
	}
	c.Archived(now, testLog, []protocol.ArchivedObject{{Label: 1, First: 1, Last: last, CLSN: last}})
	commit(t, c)
	if n, err := c.Store().Reclaim(); err != nil || n == 0 {
		t.Fatalf("reclaim after everything was archived: %d segments, %v", n, err)
	}
	if a := step(w.activate(epoch+1, last+1)); a.Status != protocol.StatusOK {
		t.Fatalf("activation: %+v", a)
	}
	waitForRoom(t, c, now+60*protocol.Millisecond)
	now += 2 * roomFor
	if a := step(w.append(1, 4_000)); a.Status != protocol.StatusOK || c.Stats().Full {
		t.Fatalf("append after everything was archived: %+v, %+v", a, c.Stats())
	}
}
