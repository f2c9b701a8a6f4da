package btrlog_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/stagetrace"
)

// nodeTraces asks a node over HTTP.
func nodeTraces(t *testing.T, address string) (traces []stagetrace.Node) {
	t.Helper()
	resp, err := http.Get("http://" + address + node.TracesPath)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&traces); err != nil {
		t.Fatal(err)
	}
	return traces
}

// What the writer notes of an append and what the nodes note of it are of the same append, and their times fit into each other.
func TestTracesOfWriterAndNodesFit(t *testing.T) {
	c := newCluster(t)
	c.config = func(cfg *node.Config) { cfg.TraceEvery = 4 }
	for _, n := range []string{"a", "b", "c"} {
		c.start(n)
	}
	client := c.client(func(cfg *btrlog.Config) { cfg.TraceEvery = 4 })
	info := c.create(client, "traced", btrlog.LogOptions{})
	w := c.writer(client, "traced")
	const records = 200
	for range records {
		fill(t, w, 1)
	}
	traces := w.Traces()
	if len(traces) != records/4 {
		t.Fatalf("%d traces of %d appends", len(traces), records)
	}
	type key struct {
		node string
		lsn  btrlog.LSN
	}
	at := map[key]stagetrace.Node{}
	for name := range c.nodes {
		for _, x := range nodeTraces(t, c.address(name)) {
			if x.Log != fmt.Sprintf("%016x", uint64(info.ID)) || x.Appends < 1 || x.Apply < 0 || x.Write <= 0 || x.Reply < 0 {
				t.Fatalf("node %s: %+v", name, x)
			}
			at[key{name, btrlog.LSN(x.LSN)}] = x
		}
	}
	acks, fit := 0, 0
	for _, x := range traces {
		if uint64(x.LSN)%4 != uint64(info.ID)%4 || x.Epoch != w.Info().Epoch || x.Queue != 0 || x.Hold < 0 || len(x.Acks) < 2 || len(x.Acks) > 3 {
			t.Fatalf("%+v", x)
		}
		for i, a := range x.Acks {
			acks++
			n, ok := at[key{a.Node, x.LSN}]
			if !ok {
				continue // of a batch one is traced
			}
			fit++
			// What the node took is a part of what its acknowledgement took, and the second of three commits it. The answer can be here before
			// the call that sent it has returned there.
			if took := time.Duration(n.Apply + n.Write); took > a.After || i < 2 && x.Hold+a.After > x.Commit {
				t.Fatalf("%+v LSN %d: node %s took %v of %v, commit after %v: %+v", n, x.LSN, a.Node, took, a.After, x.Commit, x)
			}
		}
	}
	if fit < acks/2 {
		t.Errorf("of %d acknowledgements %d have a trace of their node", acks, fit)
	}
	w = c.writer(c.client(func(cfg *btrlog.Config) { cfg.TraceEvery = -1 }), "traced")
	fill(t, w, 8)
	if got := w.Traces(); len(got) != 0 {
		t.Errorf("none are asked for, and there are %d", len(got))
	}
}
