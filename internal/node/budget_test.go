package node

import (
	"syscall"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst/vfs"
)

// What fits the memory budget is read without the disk; what does not is read from the shard's store.
func TestMemoryBudget(t *testing.T) {
	disk := vfs.NewMem(vfs.MemOptions{Seed: 5})
	cfg := testConfig(t, "a", newStore())
	cfg.FS, cfg.SegmentBytes, cfg.MemoryBudgetBytes = disk, 32<<20, 1<<20
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(5)
	w.set.SegmentBytes = 64 << 20
	c.begin(w)
	const records, size = 300, 10 << 10 // three times the budget
	for range records {
		w.cLSN = c.ack(to(c.inc, w.append(1, size)), protocol.StatusOK).Last
	}
	c.ack(w.watermark(c.inc, 0), protocol.StatusOK)
	if got := metric(n, "btrlog_node_memory_budget_bytes 0"); got != 1<<20 {
		t.Errorf("the budget is %v bytes", got)
	}
	read := func(from, to protocol.LSN) *protocol.ReadReply {
		t.Helper()
		return c.mustPost(&protocol.Read{Log: 5, From: from, To: to, MaxBytes: 4 << 20}).(*protocol.ReadReply)
	}
	disk.Inject(vfs.Fault{Ops: vfs.OpRead, Err: syscall.EIO})
	const hot = 50 // half of the budget, with the room that its chunks need
	checkRecords(t, 5, read(records-hot+1, records).Records, records-hot+1, records, size)
	if r := read(1, 10); len(r.Records) != 0 {
		t.Errorf("%d of the oldest records were read without the disk", len(r.Records))
	}
	disk.ClearFaults()
	checkRecords(t, 5, read(1, records).Records, 1, records, size)
}
