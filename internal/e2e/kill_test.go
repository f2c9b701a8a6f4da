package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/httpstore"
	"github.com/btrlog/btrlog/objstore/localdir"
)

var killsFlag = flag.Int("kills", 4, "TestKilledAtStoreRequests: at how many requests nodes are killed; 0: at a hundred and more, some minutes")

// nodeRole in the environment makes this program a node: the one of the binary, but everything that it does now and then it does
// several times a second.
const nodeRole = "BTRLOG_E2E_NODE"

type nodeSpec struct{ ID, Dir, Listen, Store string }

func nodeMain(text string) {
	var spec nodeSpec
	err := json.Unmarshal([]byte(text), &spec)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var store objstore.Store
	if err == nil {
		store, err = objstore.Open(ctx, spec.Store)
	}
	if err == nil {
		var n *node.Node
		n, err = node.Start(ctx, node.Config{Dir: spec.Dir, Node: protocol.NodeID(spec.ID), Listen: spec.Listen, Store: store, Buffered: true, SegmentBytes: 1 << 20,
			FlushGrace: 300 * time.Millisecond, PackEvery: 200 * time.Millisecond, PackSettled: 500 * time.Millisecond, CollectEvery: 400 * time.Millisecond,
			PeerInterval: 100 * time.Millisecond, PeerTimeout: time.Second, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		if err == nil {
			err = n.Wait(ctx)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// executioner is a store in front of which each node has a port of its own. It kills the node that makes a certain request.
type executioner struct {
	store objstore.Store
	inner http.Handler
	urls  []string // of the nodes
	own   string   // for the test itself: not counted

	mu     sync.Mutex
	seen   map[string]int // requests since arm, by class
	at     kill
	strike func(i int)
	killed chan int
}

func newExecutioner(t *testing.T, nodes int) *executioner {
	t.Helper()
	store, err := localdir.Open(filepath.Join(t.TempDir(), "store"), localdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e := &executioner{store: store, inner: httpstore.Handler(store, "", httpstore.HandlerOptions{}), seen: map[string]int{}, killed: make(chan int, 1)}
	serve := func(h http.HandlerFunc) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Protocols: new(http.Protocols), Handler: h}
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(true)
		go srv.Serve(l)
		t.Cleanup(func() { srv.Close() })
		return "http://" + l.Addr().String()
	}
	for i := range nodes {
		e.urls = append(e.urls, serve(func(w http.ResponseWriter, r *http.Request) { e.serve(i, w, r) }))
	}
	e.own = serve(e.inner.ServeHTTP)
	return e
}

func (e *executioner) serve(i int, w http.ResponseWriter, r *http.Request) {
	key, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), httpstore.Path))
	if err != nil {
		key = r.URL.Path
	}
	e.mu.Lock()
	first, _, _ := strings.Cut(key, "/")
	class := r.Method + " " + cmp.Or(first, "listing")
	e.seen[class]++
	strike, after := class == e.at.class && e.seen[class] == e.at.number, e.at.after
	e.mu.Unlock()
	if !strike {
		e.inner.ServeHTTP(w, r)
		return
	}
	if after {
		e.inner.ServeHTTP(httptest.NewRecorder(), r)
	}
	e.strike(i)
	e.killed <- i
	panic(http.ErrAbortHandler)
}

// kill is when a node is to die: with the request of a class that has a number since arm, before or after it is applied.
type kill struct {
	class  string
	number int
	after  bool
}

// arm begins to count.
func (e *executioner) arm(at kill) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen, e.at = map[string]int{}, at
}

// disarm returns what was asked since arm.
func (e *executioner) disarm() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = kill{}
	return maps.Clone(e.seen) // requests go on being counted
}

// killClasses are the requests to die at: what changes something in the store, and what leads to it. Numbers beyond the second are
// of requests that come again and again, whatever a node does.
var killClasses = []string{"PUT arch", "PUT pack", "DELETE arch", "DELETE pack", "PUT logs", "GET pack", "GET listing"}

// killWorld is three such nodes, and what was written.
type killWorld struct {
	*cluster
	e       *executioner
	client  *btrlog.Client
	ids     map[string]protocol.LogID
	records map[string]int
	trimmed map[string]btrlog.LSN
}

func (w *killWorld) launch(i int) {
	n := w.nodes[i]
	spec, err := json.Marshal(nodeSpec{n.name, n.dir, n.addr, w.e.urls[i]})
	if err != nil {
		w.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	n.cmd = exec.Command(self)
	n.cmd.Env = append(os.Environ(), nodeRole+"="+string(spec))
	n.cmd.Stdout, n.cmd.Stderr = n.out, n.out
	if err := n.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
}

const (
	killSegment = 64 << 10
	killRecords = 34 // of 4 KiB: two full segments, and a tail
	// shortLogs in each round have so few records.
	shortLogs, shortRecords = 9, 2
)

func killRecord(log string, i int) []byte {
	return fmt.Appendf(make([]byte, 0, 4096), "%-4092s", fmt.Sprintf("%s record %d", log, i))
}

// write writes logs; they are closed together, so that the short ones are due together.
func (w *killWorld) write(logs map[string]int) {
	w.t.Helper()
	writers := map[string]*btrlog.Writer{}
	for log, n := range logs {
		segment := int64(killSegment)
		if n == shortRecords {
			segment *= 16 // what is short beside its segment is packed
		}
		info, err := w.client.Create(w.ctx, log, btrlog.LogOptions{SegmentBytes: segment, FlushAge: 200 * time.Millisecond})
		if err != nil {
			w.t.Errorf("create %s: %v", log, err)
			return
		}
		w.ids[log], w.records[log] = protocol.LogID(info.ID), n
		writer, err := w.client.OpenWriter(w.ctx, log, btrlog.WriterOptions{})
		if err != nil {
			w.t.Errorf("open %s: %v", log, err)
			return
		}
		writers[log] = writer
	}
	for log, writer := range writers {
		for i := range logs[log] {
			if _, err := writer.Append(w.ctx, killRecord(log, i+1)); err != nil {
				w.t.Errorf("append to %s: %v", log, err)
				return
			}
		}
	}
	for log, writer := range writers {
		if err := writer.Close(w.ctx); err != nil {
			w.t.Errorf("close of %s: %v", log, err)
			return
		}
	}
}

// round writes logs, long ones and short ones, trims the long one of the round before, deletes a short one, and waits until a
// quorum of the nodes, one of which may die and is started again, knows everything archived.
func (w *killWorld) round(k int) {
	w.t.Helper()
	name := func(kind string, k int) string { return fmt.Sprintf("%s-%d", kind, k) }
	work := make(chan struct{})
	go func() {
		defer close(work)
		logs := map[string]int{name("long", k): killRecords}
		for i := range shortLogs {
			logs[name(fmt.Sprint("short", i), k)] = shortRecords
		}
		w.write(logs)
		if k > 0 && !w.t.Failed() {
			long, point := name("long", k-1), btrlog.LSN(killRecords-5)
			if err := w.client.Trim(w.ctx, long, point); err != nil {
				w.t.Errorf("trim of %s: %v", long, err)
				return
			}
			w.trimmed[long] = point
			gone := name("short0", k-1)
			if err := w.client.Delete(w.ctx, gone); err != nil {
				w.t.Errorf("delete of %s: %v", gone, err)
				return
			}
			w.records[gone] = 0
		}
	}()
	done := false
	for !done {
		select {
		case i := <-w.e.killed:
			w.launch(i)
		case <-work:
			done = true
		}
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
	for _, kind := range []string{"long", "short0", fmt.Sprint("short", shortLogs-1)} {
		log := name(kind, k)
		w.await("a quorum to know "+log+" archived", func() bool {
			select {
			case i := <-w.e.killed:
				w.launch(i)
			default:
			}
			know := 0 // one that was down all the time has never heard of the log
			for _, n := range w.nodes {
				if n.archived(w.ctx, log) >= uint64(w.records[log]) {
					know++
				}
			}
			return know >= 2
		})
	}
}

// unsound says what 'archive verify --deep' would find, and what it counts as doubles or as not collected yet; "" is nothing.
func (w *killWorld) unsound() string {
	a, err := archive.New(w.e.store, archive.Options{})
	if err != nil {
		return err.Error()
	}
	for log, id := range w.ids {
		c, err := a.Contents(w.ctx, id)
		if err != nil {
			return fmt.Sprintf("%s: %v", log, err)
		}
		if len(c.Broken)+len(c.Foreign) > 0 {
			return fmt.Sprintf("%s: broken %v, foreign %v", log, c.Broken, c.Foreign)
		}
		if w.records[log] == 0 {
			continue // deleted
		}
		if m := c.Missing(max(protocol.LSN(w.trimmed[log]), 1), protocol.LSN(w.records[log]), nil); len(m) > 0 {
			return fmt.Sprintf("%s: missing %v", log, m)
		}
		for i := range c.Stored {
			s := &c.Stored[i]
			switch err := a.Verify(w.ctx, s); {
			case errors.Is(err, objstore.ErrNotFound):
				return fmt.Sprintf("%s: %s is gone, it was merged", log, s.Name)
			case err != nil:
				return fmt.Sprintf("%s: %v", log, err)
			case s.Double && !s.Packed && s.Key.Kind == archive.Committed, s.Replaced:
				// Doubles of other kinds are made without kills too: a failure snapshot is followed by the segment, and two nodes that merge at once
				// make equal members, of which the next merge of these packs leaves one.
				return fmt.Sprintf("%s: %s [%d, %d]: double %v, replaced %v", log, s.Name, s.Key.First, s.Key.Last, s.Double, s.Replaced)
			case !s.Packed && s.Key.Last < protocol.LSN(w.trimmed[log]):
				return fmt.Sprintf("%s: %s is below the trim point", log, s.Name)
			}
		}
	}
	return ""
}

// TestKilledAtStoreRequests kills the node that makes a request of the object store, before or after the store applies it, and
// starts it again: in archiving, packing, merging, trimming and deleting, whatever the request falls into. At the end nothing is
// missing in the archive or damaged, no segment is there twice, and what should be gone is.
func TestKilledAtStoreRequests(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	limit := 2 * time.Minute
	if *killsFlag == 0 {
		limit = 20 * time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	w := &killWorld{cluster: &cluster{t: t, ctx: ctx}, e: newExecutioner(t, 3), ids: map[string]protocol.LogID{}, records: map[string]int{}, trimmed: map[string]btrlog.LSN{}}
	w.e.strike = func(i int) { w.nodes[i].signal(syscall.SIGKILL) }
	for i := range w.e.urls {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		w.nodes = append(w.nodes, &nodeProcess{name: fmt.Sprintf("n%d", i), dir: filepath.Join(t.TempDir(), "node"), addr: freeAddr(t), out: out})
		w.launch(i)
	}
	defer func() {
		for _, n := range w.nodes {
			n.signal(syscall.SIGKILL)
			if t.Failed() {
				b, _ := os.ReadFile(n.out.Name())
				t.Logf("node %s printed:\n%s", n.name, b[max(0, len(b)-20000):])
			}
		}
	}()
	for _, n := range w.nodes {
		w.await("node "+n.name+" to be ready", func() bool { return n.status(ctx).Ready == "ready" })
	}
	var err error
	if w.client, err = btrlog.Connect(ctx, btrlog.Config{StoreURL: w.e.own, Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	defer w.client.Close()

	w.e.arm(kill{})
	const before = 9 // rounds, so that there are packs to be merged
	for k := range before {
		w.round(k)
	}
	each := w.e.disarm()
	t.Logf("%d rounds make these requests: %v", before, each)
	var kills []kill
	for _, class := range killClasses {
		for number := range 3 {
			if each[class] > number*before/2 || number == 0 {
				kills = append(kills, kill{class, number + 1, false}, kill{class, number + 1, true})
			}
		}
	}
	rng.Shuffle(len(kills), func(i, j int) { kills[i], kills[j] = kills[j], kills[i] })
	for *killsFlag == 0 && len(kills) < 100 {
		kills = append(kills, kills...)
	}
	if *killsFlag > 0 {
		kills = kills[:min(len(kills), *killsFlag)]
	}
	struck := map[string]int{}
	for i, k := range kills {
		w.e.arm(k)
		w.round(before + i)
		if seen := w.e.disarm(); seen[k.class] >= k.number {
			struck[fmt.Sprintf("%s, applied: %v", k.class, k.after)]++
		}
	}
	t.Logf("%d rounds with a kill; killed at: %v", len(kills), struck)
	if len(struck) == 0 {
		t.Fatal("nobody was killed")
	}
	why := ""
	w.await("the archive to be sound", func() bool {
		now := w.unsound()
		if now != why && now != "" {
			t.Logf("not yet: %s", now)
		}
		why = now
		return why == ""
	})
	for log, n := range w.records {
		if n == 0 {
			continue
		}
		r, err := w.client.OpenReader(ctx, log)
		if err != nil {
			t.Fatal(err)
		}
		next := max(w.trimmed[log], 1)
		for rec, err := range r.Scan(ctx, 0, 0) {
			if err != nil || rec.LSN != next || string(rec.Data) != string(killRecord(log, int(next))) {
				t.Fatalf("%s: LSN %d %.40q, %v; want LSN %d", log, rec.LSN, rec.Data, err, next)
			}
			next++
		}
		if next != btrlog.LSN(n+1) {
			t.Fatalf("%s ends at LSN %d, want %d", log, next-1, n)
		}
	}
}
