package btrlog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

func nodesIn(zones ...string) []meta.NodeRecord {
	var out []meta.NodeRecord
	for i, z := range zones {
		out = append(out, meta.NodeRecord{ID: protocol.NodeID(fmt.Sprintf("n%d", i)), Incarnation: protocol.Incarnation(i + 1), Zone: z, Shards: 1, State: meta.Active})
	}
	return out
}

func TestChooseSpreads(t *testing.T) {
	nodes := nodesIn("a", "a", "a", "a", "b", "b", "c")
	nodes[3].Shards = 3
	got := map[protocol.NodeID]int{}
	const logs = 3000
	for id := range protocol.LogID(logs) {
		e, err := choose(id*0x9e3779b97f4a7c15+1, nodes, 3, 3)
		if err != nil {
			t.Fatal(err)
		}
		if zonesOf(e) != 3 {
			t.Fatalf("log %v: %v is not in three zones", id, e)
		}
		again, _ := choose(id*0x9e3779b97f4a7c15+1, nodes, 3, 3)
		if !again.Equal(e) {
			t.Fatalf("log %v: %v, then %v", id, e, again)
		}
		for _, m := range e {
			got[m.Node]++
		}
	}
	// One node of zone a per log, in proportion to shards 1:1:1:3; one of two of zone b; the only one of zone c.
	for node, want := range map[protocol.NodeID]int{"n0": logs / 6, "n1": logs / 6, "n2": logs / 6, "n3": logs / 2, "n4": logs / 2, "n5": logs / 2, "n6": logs} {
		if n := got[node]; n < want*8/10 || n > want*12/10 {
			t.Errorf("node %s has %d logs, want about %d", node, n, want)
		}
	}
}

func TestChooseRefuses(t *testing.T) {
	nodes := nodesIn("a", "a", "b")
	nodes[1].State = meta.Draining
	for _, c := range []struct {
		n, zones int
		says     string
	}{
		{3, 0, "3 nodes are needed, 2 are registered and active [n0 n2]; not active: n1 (draining)"},
		{2, 3, "3 zones are needed, the active nodes are in 2"},
	} {
		if _, err := choose(1, nodes, c.n, c.zones); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%d nodes over %d zones: %v", c.n, c.zones, err)
		}
	}
	if e, err := choose(1, nodes, 2, 2); err != nil || len(e) != 2 || zonesOf(e) != 2 {
		t.Errorf("%v, %v", e, err)
	}
}
