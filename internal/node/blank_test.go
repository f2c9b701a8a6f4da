package node

import (
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

// A promise for a log that does not exist is forgotten, on the disk too; one for a log that does is kept, whatever its state.
func TestPromisesForNoLogAreForgotten(t *testing.T) {
	cfg := testConfig(t, "a", newStore())
	cfg.CollectEvery = 50 * time.Millisecond
	n := startNode(t, cfg)
	catalog, err := meta.New(cfg.Store, meta.Config{Root: cfg.Root, Random: random64, Now: time.Now, Sleep: sleep})
	if err != nil {
		t.Fatal(err)
	}
	real, err := catalog.Create(t.Context(), "orders", meta.Options{N: 1, Qw: 1, SegmentBytes: 1 << 20, Window: 16, Durability: meta.Disk})
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, n)
	open := func(log protocol.LogID) {
		t.Helper()
		if r := c.call(&protocol.Open{Log: log, Epoch: 1, Req: 1}).(*protocol.OpenReply); r.Status != protocol.StatusOK {
			t.Fatalf("%+v", r)
		}
	}
	open(real.Record.ID)
	const made = 20
	for i := range protocol.LogID(made) {
		open(1000 + i)
	}
	known := func(n *Node) (logs int) {
		for _, s := range n.Status().Detail {
			logs += len(s.Logs)
		}
		return logs
	}
	eventually(t, "the promises for no log to be forgotten", func() bool { return known(n) == 1 })
	if l, _ := logAt(n, real.Record.ID); l.Promised != 1 {
		t.Errorf("the promise for a log that exists: %+v", l)
	}
	if got := metric(n, "btrlog_node_collected_total forgotten"); got < made {
		t.Errorf("%v forgotten, want %d", got, made)
	}
	stopNode(t, n)
	n = startNode(t, cfg)
	if got := known(n); got != 1 {
		t.Errorf("%d logs after a restart, want 1", got)
	}
}
