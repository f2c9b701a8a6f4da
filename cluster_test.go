package btrlog_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/memory"
)

// cluster is a set of real nodes in this process, over a store in memory and directories that end with the test.
type cluster struct {
	t     *testing.T
	store *countingStore // of the clients
	inner *countingStore // of the nodes
	nodes map[string]*node.Node
	dirs  map[string]string
	ports map[string]int
	zones map[string]string
	root  string
	// collectEvery is for nodes that are started from here on.
	collectEvery time.Duration
	// config, if not nil, changes how a node is started.
	config func(*node.Config)
}

// countingStore counts requests by kind of key.
type countingStore struct {
	objstore.Store
	swaps, gets, archiveGets, archivePuts, requests atomic.Int64
	archiveDown                                     atomic.Bool // archive writes fail
}

func (s *countingStore) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	s.requests.Add(1)
	if _, swap := cond.Match(); swap {
		s.swaps.Add(1)
	}
	if archiveKey(key) {
		s.archivePuts.Add(1)
		if s.archiveDown.Load() {
			return objstore.Info{}, &objstore.Error{Store: s.String(), Op: "put", Key: key, Kind: objstore.ErrUnavailable, Err: errors.New("test: down")}
		}
	}
	return s.Store.Put(ctx, key, body, meta, cond)
}

func (s *countingStore) Get(ctx context.Context, key string, r objstore.Range) (io.ReadCloser, objstore.Info, error) {
	s.requests.Add(1)
	s.gets.Add(1)
	if archiveKey(key) {
		s.archiveGets.Add(1)
	}
	return s.Store.Get(ctx, key, r)
}

func (s *countingStore) List(ctx context.Context, prefix, after string, limit int) (objstore.Page, error) {
	s.requests.Add(1)
	return s.Store.List(ctx, prefix, after, limit)
}

func archiveKey(key string) bool {
	ok, _ := filepath.Match("arch/*", key)
	return ok || len(key) > 5 && key[:5] == "arch/"
}

func newCluster(t *testing.T, names ...string) *cluster {
	t.Helper()
	return newClusterAt(t, "", names...)
}

func newClusterAt(t *testing.T, root string, names ...string) *cluster {
	t.Helper()
	base := memory.New(memory.Options{Now: time.Now})
	c := &cluster{t: t, store: &countingStore{Store: base}, inner: &countingStore{Store: base}, nodes: map[string]*node.Node{}, dirs: map[string]string{}, ports: map[string]int{},
		zones: map[string]string{}, root: root}
	for _, n := range names {
		c.start(n)
	}
	t.Cleanup(func() {
		for n := range c.nodes {
			c.stop(n)
		}
	})
	return c
}

// start starts a node on the directory and port that it had before.
func (c *cluster) start(name string) {
	c.t.Helper()
	if c.dirs[name] == "" {
		c.dirs[name] = c.t.TempDir()
	}
	cfg := node.Config{PackEvery: -1, Dir: c.dirs[name], Node: protocol.NodeID(name), Zone: c.zones[name], Store: c.inner, Root: c.root,
		Listen: fmt.Sprintf("127.0.0.1:%d", c.ports[name]), Shards: 2, SegmentBytes: 32 << 20, FlushGrace: 100 * time.Millisecond,
		CollectEvery: c.collectEvery, Log: testLog(c.t)}
	if c.config != nil {
		c.config(&cfg)
	}
	n, err := node.Start(c.t.Context(), cfg)
	if err != nil {
		c.t.Fatalf("start node %s: %v", name, err)
	}
	c.ports[name] = n.Port()
	c.nodes[name] = n
}

func (c *cluster) address(name string) string { return fmt.Sprintf("127.0.0.1:%d", c.ports[name]) }

func (c *cluster) stop(name string) {
	n := c.nodes[name]
	delete(c.nodes, name)
	if err := n.Close(); err != nil {
		c.t.Errorf("close node %s: %v", name, err)
	}
}

// wipe makes the stopped node start with an empty directory the next time.
func (c *cluster) wipe(name string) { c.dirs[name] = c.t.TempDir() }

func (c *cluster) client(change ...func(*btrlog.Config)) *btrlog.Client {
	c.t.Helper()
	cfg := btrlog.Config{Store: c.store, Name: c.t.Name(), Logger: testLog(c.t)}
	for _, f := range change {
		f(&cfg)
	}
	client, err := btrlog.Connect(c.t.Context(), cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := client.Close(); err != nil {
			c.t.Errorf("close client: %v", err)
		}
	})
	return client
}

func (c *cluster) create(client *btrlog.Client, name string, o btrlog.LogOptions) btrlog.LogInfo {
	c.t.Helper()
	info, err := client.Create(c.t.Context(), name, o)
	if err != nil {
		c.t.Fatal(err)
	}
	return info
}

func (c *cluster) writer(client *btrlog.Client, name string) *btrlog.Writer {
	c.t.Helper()
	w, err := client.OpenWriter(c.t.Context(), name, btrlog.WriterOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return w
}

func (c *cluster) reader(client *btrlog.Client, name string) *btrlog.Reader {
	c.t.Helper()
	r, err := client.OpenReader(c.t.Context(), name)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// testLog writes warnings and worse to the test's log.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// payload is the record that every test writes at an LSN.
func payload(lsn btrlog.LSN) []byte { return fmt.Appendf(nil, "record %d", lsn) }

// fill appends n records, of which every test knows what they are, and syncs the last.
func fill(t *testing.T, w *btrlog.Writer, n int) btrlog.LSN {
	t.Helper()
	var last btrlog.LSN
	for range n {
		want := w.Info().Next
		got, err := w.Append(t.Context(), payload(want))
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("append gave LSN %d, want %d", got, want)
		}
		last = got
	}
	if err := w.Sync(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	return last
}

// check reads [from, to] and compares.
func check(t *testing.T, r *btrlog.Reader, from, to btrlog.LSN) {
	t.Helper()
	next := from
	for rec, err := range r.Scan(t.Context(), from, to) {
		if err != nil {
			t.Fatalf("scan at LSN %d: %v", next, err)
		}
		if rec.LSN != next || string(rec.Data) != string(payload(next)) {
			t.Fatalf("scan gave LSN %d %.60q, want %d", rec.LSN, rec.Data, next)
		}
		next++
	}
	if next != to+1 {
		t.Fatalf("scan ended before LSN %d, want %d", next, to+1)
	}
}

// eventually waits for a condition; it is the tests' only way to wait.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		<-tick.C
	}
}

// holds reports whether a node has a copy of LSN x of some log.
func (c *cluster) holds(name string, x btrlog.LSN) bool {
	for _, s := range c.nodes[name].Status().Detail {
		for _, l := range s.Logs {
			if btrlog.LSN(l.Highest) >= x {
				return true
			}
		}
	}
	return false
}

// dropped returns the highest LSN up to which a node has dropped a log that is archived.
func (c *cluster) dropped(name string) (through btrlog.LSN) {
	for _, s := range c.nodes[name].Status().Detail {
		for _, l := range s.Logs {
			through = max(through, btrlog.LSN(l.DroppedThrough))
		}
	}
	return through
}

// rangeOf returns the LSNs of a segment object, from its key.
func rangeOf(key string) (first, last btrlog.LSN, ok bool) {
	name := key[strings.LastIndexByte(key, '/')+1:]
	n, err := fmt.Sscanf(name, "%016x-%016x-", &first, &last)
	return first, last, err == nil && n == 2
}
