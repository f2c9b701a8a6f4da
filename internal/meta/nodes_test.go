package meta

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/memory"
)

func testNode(id protocol.NodeID, inc protocol.Incarnation) NodeRecord {
	return NodeRecord{ID: id, Incarnation: inc, UDP: "10.0.0.1:7000", HTTP: "10.0.0.1:7001", Zone: "z1", Shards: 2, Start: fmt.Sprint("start-", inc)}
}

func TestClusterIsDecidedOnce(t *testing.T) {
	w := newWorld(t, 1)
	var mu sync.Mutex
	ids := make(map[uint64]int)
	var wg sync.WaitGroup
	for i := range 16 {
		cfg := testConfig(uint64(i), func(ctx context.Context, _ time.Duration) error { return ctx.Err() })
		c, err := New(w.store, cfg)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			r, err := c.Cluster(t.Context())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			ids[r.ID]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(ids) != 1 || ids[0] != 0 {
		t.Fatalf("starters got the ids %v, want one that is not zero", ids)
	}
}

func TestRegisterNode(t *testing.T) {
	w := newWorld(t, 1)
	c := w.catalog(1)
	reg := func(inc protocol.Incarnation, start string, alive, force bool) (Node, error) {
		n := testNode("n1", inc)
		n.Start = start
		return c.RegisterNode(t.Context(), Registration{Node: n, Force: force, Alive: func(_ context.Context, old NodeRecord) bool {
			if old.ID != "n1" || old.UDP != n.UDP {
				t.Errorf("asked whether %+v is alive", old)
			}
			return alive
		}})
	}
	if n, err := reg(1, "s1", true, false); err != nil || n.Record.State != Active {
		t.Fatal(n, err)
	}
	if n, err := reg(1, "s2", true, false); err != nil || n.Record.Start != "s2" || n.Record.Revision != 2 {
		t.Fatalf("restart on the same directory: %+v, %v", n.Record, err)
	}
	_, err := reg(2, "s3", true, false)
	wantKind(t, "another directory while the process lives", err, ErrExists)
	if !strings.Contains(err.Error(), "10.0.0.1:7000") {
		t.Fatalf("error %v does not say where the other is", err)
	}
	if _, err := c.SetNodeState(t.Context(), "n1", Draining); err != nil {
		t.Fatal(err)
	}
	if n, err := reg(2, "s4", false, false); err != nil || n.Record.Incarnation != 2 || n.Record.State != Draining {
		t.Fatalf("wiped node: %+v, %v; want the new incarnation, still draining", n.Record, err)
	}
	if n, err := reg(3, "s5", true, true); err != nil || n.Record.Incarnation != 3 {
		t.Fatalf("forced: %+v, %v", n.Record, err)
	}
	if _, err := c.SetNodeState(t.Context(), "n1", Retired); err != nil {
		t.Fatal(err)
	}
	_, err = reg(3, "s6", false, true)
	wantKind(t, "start of a retired node", err, ErrExists)
	_, err = c.SetNodeState(t.Context(), "n1", "sleepy")
	wantKind(t, "unknown state", err, ErrInvalid)
	_, err = c.SetNodeState(t.Context(), "n9", Active)
	wantKind(t, "state of no node", err, ErrNotFound)
	_, err = c.LoadNode(t.Context(), "n9")
	wantKind(t, "no node", err, ErrNotFound)
	for what, change := range map[string]func(*NodeRecord){
		"id": func(n *NodeRecord) { n.ID = "-" }, "incarnation": func(n *NodeRecord) { n.Incarnation = 0 },
		"udp": func(n *NodeRecord) { n.UDP = "10.0.0.1" }, "port": func(n *NodeRecord) { n.UDP = "h:0" }, "host": func(n *NodeRecord) { n.UDP = ":7000" },
		"http": func(n *NodeRecord) { n.HTTP = "x" }, "zone": func(n *NodeRecord) { n.Zone = "a b" },
		"shards": func(n *NodeRecord) { n.Shards = 0 }, "start": func(n *NodeRecord) { n.Start = "" },
	} {
		n := testNode("n2", 1)
		change(&n)
		_, err := c.RegisterNode(t.Context(), Registration{Node: n})
		wantKind(t, what, err, ErrInvalid)
	}
	if _, err := c.RegisterNode(t.Context(), Registration{Node: testNode("n0", 9)}); err != nil {
		t.Fatal(err)
	}
	var got []protocol.NodeID
	for n, err := range c.Nodes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, n.Record.ID)
	}
	if !slices.Equal(got, []protocol.NodeID{"n0", "n1"}) {
		t.Fatalf("nodes %v", got)
	}
	w.rewrite("c1/nodes/n0.json", `"node": "n0"`, `"node": "n5"`)
	_, err = c.LoadNode(t.Context(), "n0")
	wantKind(t, "another node's record", err, ErrCorrupt)
}

func TestEnsembles(t *testing.T) {
	w := newWorld(t, 1)
	c := w.catalog(1)
	e := members(1, 2, 3)
	id := mustEnsemble(t, c, e)
	slices.Reverse(e)
	id2, stored, err := c.PutEnsemble(t.Context(), e)
	if err != nil || id2 != id || !stored.Equal(members(1, 2, 3)) {
		t.Fatalf("the same members in another order: id %s, %v, %v; want %s", id2, stored, err, id)
	}
	if n := w.store.Requests(faulty.AllOps); n != 1 {
		t.Fatalf("%d requests for one ensemble stored twice, want 1", n)
	}
	stored[0].Node = "mine" // the caller owns what it got
	for _, other := range []protocol.Ensemble{members(1, 2, 4), members(1, 2), {{Node: "n1", Incarnation: 1, Zone: "y"}}} {
		if mustEnsemble(t, c, other) == id {
			t.Fatalf("%v has the id of another ensemble", other)
		}
	}
	d := w.catalog(2)
	for range 2 {
		got, err := d.LoadEnsemble(t.Context(), id)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(members(1, 2, 3)) {
			t.Fatalf("loaded %v, %v", got, err)
		}
		got[0].Node = "mine"
	}
	if d.Requests() != (Requests{Reads: 1}) {
		t.Fatalf("two loads cost %+v", d.Requests())
	}
	for _, bad := range []protocol.Ensemble{nil, members(1, 1), members(0), {{Node: "a", Incarnation: 1}, {Node: "a", Incarnation: 2}}, {{Node: "a b", Incarnation: 1}},
		{{Node: "a", Incarnation: 1, Zone: "z\n"}}, make(protocol.Ensemble, protocol.MaxEnsemble+1)} {
		_, _, err := c.PutEnsemble(t.Context(), bad)
		wantKind(t, fmt.Sprint(bad), err, ErrInvalid)
	}
	w.rewrite("c1/ensembles/"+id+".json", `"0000000000000002"`, `"0000000000000009"`)
	_, err = w.catalog(3).LoadEnsemble(t.Context(), id)
	wantKind(t, "an ensemble that does not match its id", err, ErrCorrupt)
	_, err = c.LoadEnsemble(t.Context(), strings.Repeat("0", 32))
	wantKind(t, "no ensemble", err, ErrNotFound)
	_, err = c.LoadEnsemble(t.Context(), "../x")
	wantKind(t, "not an id", err, ErrInvalid)
}

// TestLoadClusterWritesNothing: a client with a mistyped root finds no cluster and founds none.
func TestLoadClusterWritesNothing(t *testing.T) {
	ctx := context.Background()
	store := memory.New(memory.Options{})
	seen := uint64(0)
	cat, err := New(store, Config{Random: func() uint64 { seen++; return seen }, Now: time.Now, Sleep: func(context.Context, time.Duration) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cat.LoadCluster(ctx); !errors.Is(err, ErrNotFound) {
		t.Fatalf("load from an empty store: %v, want ErrNotFound", err)
	}
	if page, err := store.List(ctx, "", "", 10); err != nil || len(page.Objects) != 0 {
		t.Fatalf("the load left %v in the store (%v)", page.Objects, err)
	}
	made, err := cat.Cluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := cat.LoadCluster(ctx); err != nil || got.ID != made.ID {
		t.Fatalf("loaded %+v, %v; made %+v", got, err, made)
	}
}
