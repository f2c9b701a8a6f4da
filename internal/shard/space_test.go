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
	c.Step(1000*protocol.Millisecond, 5, w2.append(1, 4_000))
	wantAck(t, commit(t, c), protocol.StatusOK)
	if c.Stats().Full {
		t.Fatal("still full")
	}
}
