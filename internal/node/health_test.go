package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// health asks one of the two paths and returns the answer's code and its report.
func health(t testing.TB, address, path string) (int, HealthReport) {
	t.Helper()
	resp, err := http.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var r HealthReport
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if (resp.StatusCode == http.StatusOK) != (len(r.Problems) == 0) || (r.Status == "ok") != (len(r.Problems) == 0) {
		t.Errorf("%s: code %d with %+v", path, resp.StatusCode, r)
	}
	return resp.StatusCode, r
}

// says waits until a path names exactly one problem, or none with the empty kind.
func says(t testing.TB, address, path string, kind ProblemKind) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s to say %q", path, kind), func() bool {
		_, r := health(t, address, path)
		return kind == "" && len(r.Problems) == 0 || len(r.Problems) == 1 && r.Problems[0].Kind == kind && r.Problems[0].Part != "" && r.Problems[0].Detail != ""
	})
}

// silentStore answers nothing while it is down.
type silentStore struct {
	objstore.Store
	down atomic.Bool
}

func (s *silentStore) err(op, key string) error {
	if !s.down.Load() {
		return nil
	}
	return &objstore.Error{Store: s.String(), Op: op, Key: key, Kind: objstore.ErrUnavailable, Err: errors.New("test: down")}
}

func (s *silentStore) Put(ctx context.Context, key string, body []byte, m map[string]string, c objstore.Condition) (objstore.Info, error) {
	if err := s.err("put", key); err != nil {
		return objstore.Info{}, err
	}
	return s.Store.Put(ctx, key, body, m, c)
}

func (s *silentStore) Get(ctx context.Context, key string, r objstore.Range) (io.ReadCloser, objstore.Info, error) {
	if err := s.err("get", key); err != nil {
		return nil, objstore.Info{}, err
	}
	return s.Store.Get(ctx, key, r)
}

func (s *silentStore) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := s.err("head", key); err != nil {
		return objstore.Info{}, err
	}
	return s.Store.Head(ctx, key)
}

func (s *silentStore) List(ctx context.Context, prefix, after string, limit int) (objstore.Page, error) {
	if err := s.err("list", prefix); err != nil {
		return objstore.Page{}, err
	}
	return s.Store.List(ctx, prefix, after, limit)
}

// freePort is a port that nobody has at this moment.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A node that waits for its object store is alive and not ready, refuses what it cannot do yet, and says what it is doing.
func TestHealthWhileStarting(t *testing.T) {
	store := &silentStore{Store: newStore()}
	store.down.Store(true)
	cfg := testConfig(t, "a", store)
	cfg.Listen, cfg.StartTimeout = freePort(t), waitFor
	started := make(chan error, 1)
	go func() {
		n, err := Start(context.Background(), cfg)
		if err == nil {
			t.Cleanup(func() { n.Close() })
		}
		started <- err
	}()
	eventually(t, "the port to be open", func() bool {
		conn, err := net.Dial("tcp", cfg.Listen)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	says(t, cfg.Listen, ReadyPath, Starting)
	says(t, cfg.Listen, HealthPath, "")
	if _, r := health(t, cfg.Listen, ReadyPath); r.Status != "starting" || !strings.Contains(r.Problems[0].Detail, "object store") {
		t.Errorf("ready while the store is down: %+v", r)
	}
	for _, path := range []string{StatusPath, IdentityPath} {
		resp, err := http.Get("http://" + cfg.Listen + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s of a node that starts: %s", path, resp.Status)
		}
	}
	resp, err := http.Get("http://" + cfg.Listen + MetricsPath)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), "btrlog_node_ready 0\n") {
		t.Errorf("metrics of a node that starts: %s, %v\n%.300s", resp.Status, err, text)
	}
	store.down.Store(false)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	says(t, cfg.Listen, ReadyPath, "")
}

// A thread that ended makes the node unhealthy, whether or not its store is well.
func TestDeadShardIsUnhealthy(t *testing.T) {
	cfg := testConfig(t, "a", newStore())
	cfg.Shards = 2
	n := startNode(t, cfg)
	says(t, n.Address(), HealthPath, "")
	if err := n.threads[1].loop.Close(); err != nil { // its socket is gone
		t.Fatal(err)
	}
	if err := <-n.Failed(); !strings.Contains(err.Error(), "shard 1") {
		t.Fatal(err)
	}
	says(t, n.Address(), HealthPath, ShardDead)
	says(t, n.Address(), ReadyPath, ShardDead)
}

func TestSilentObjectStoreIsNotReady(t *testing.T) {
	store := &silentStore{Store: newStore()}
	var out lockedBuffer
	cfg := testConfig(t, "a", store)
	cfg.StoreGrace, cfg.StoreProbe = 50*time.Millisecond, 10*time.Millisecond
	cfg.Log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	n := startNode(t, cfg)
	says(t, n.Address(), ReadyPath, "")
	store.down.Store(true)
	says(t, n.Address(), ReadyPath, StoreUnreachable) // nobody asked the store for anything but the node itself
	says(t, n.Address(), HealthPath, "")
	if got := metric(n, "btrlog_object_store_failing_seconds"); got < 0.05 {
		t.Errorf("failing for %v s", got)
	}
	if metric(n, "btrlog_node_ready") != 0 || metric(n, "btrlog_node_healthy") != 1 {
		t.Error("the metrics do not say what the paths say")
	}
	// Appends go on all the same.
	c, w := dial(t, n), newWriter(5)
	c.begin(w)
	c.ack(to(c.inc, w.append(1, 10)), protocol.StatusOK)
	eventually(t, "the log to tell", func() bool { return strings.Count(out.String(), "does not answer") == 1 })
	store.down.Store(false)
	says(t, n.Address(), ReadyPath, "")
	eventually(t, "the log to tell that it is back", func() bool { return strings.Count(out.String(), "answers again") == 1 })
	if strings.Count(out.String(), "\n") != 2 {
		t.Errorf("the log of one outage:\n%s", out.String())
	}
}

// refusingStore answers, and lets nobody write what matches: read-only credentials.
type refusingStore struct {
	objstore.Store
	refuse atomic.Bool
}

func (s *refusingStore) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	if s.refuse.Load() {
		return objstore.Info{}, &objstore.Error{Store: s.String(), Op: "put", Key: key, Kind: objstore.ErrDenied, Err: errors.New("403 AccessDenied")}
	}
	return s.Store.Put(ctx, key, body, meta, cond)
}

// A store that answers and takes no writes: the operator is told although nothing is silent, appends go on, and when the credentials are right
// again all of it is archived, without a restart (A7).
func TestStoreThatRefusesWrites(t *testing.T) {
	store := &refusingStore{Store: newStore()}
	cfg := testConfig(t, "a", store)
	cfg.StoreGrace, cfg.StoreProbe, cfg.FlushGrace = 50*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(5)
	c.begin(w)
	says(t, n.Address(), ReadyPath, "")
	store.refuse.Store(true)
	x := &trio{t: t, clients: [3]*client{c, c, c}}
	x.segments(w, 3, func(protocol.LSN) int { return 1 })
	says(t, n.Address(), ReadyPath, NotArchiving)
	says(t, n.Address(), HealthPath, "")
	if got := metric(n, "btrlog_object_store_requests_total archive put denied"); got < 1 {
		t.Errorf("%v refused requests are counted", got)
	}
	if f := n.Status().Flush; !strings.Contains(f.LastError, "AccessDenied") {
		t.Errorf("the status says %+v", f)
	}
	x.segments(w, 2, func(protocol.LSN) int { return 1 }) // appends go on
	store.refuse.Store(false)
	eventually(t, "the segments to be archived", func() bool {
		l, _ := logAt(n, 5)
		return l.ArchivedThrough == 20
	})
	says(t, n.Address(), ReadyPath, "")
}

// A shard at its disk budget is not ready, and is again when there is room, although nobody has appended since.
func TestDiskReserveIsNotReady(t *testing.T) {
	store := &countingStore{Store: newStore(), part: "/arch/"}
	store.down.Store(1 << 40)
	cfg := testConfig(t, "a", store)
	cfg.SegmentBytes, cfg.DiskBudgetBytes, cfg.FlushGrace, cfg.IdleRelease = 1<<20, 4<<20, 50*time.Millisecond, 100*time.Millisecond
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(5)
	w.set.Peers = []protocol.Incarnation{c.inc}
	w.set.SegmentBytes = 256 << 10
	c.begin(w)
	says(t, n.Address(), ReadyPath, "")
	for i := 0; ; i++ {
		if i == 1000 {
			t.Fatal("the budget is never used up")
		}
		w.cut()
		a := c.call(to(c.inc, w.append(1, 30<<10))).(*protocol.Ack)
		if a.Status == protocol.StatusNoSpace {
			w.next--
			break
		}
		w.cLSN = a.Last
	}
	says(t, n.Address(), ReadyPath, DiskReserveOnly)
	says(t, n.Address(), HealthPath, "")
	if got := metric(n, "btrlog_node_refusals_total 0 append no-space"); got != 1 {
		t.Errorf("%v refusals for want of space, want 1", got)
	}
	if metric(n, "btrlog_node_disk_reserve_only 0") != 1 || metric(n, "btrlog_node_disk_budget_bytes 0") != 4<<20 {
		t.Error("the metrics do not say that the budget is used up")
	}
	c.ack(w.watermark(c.inc, w.next-1), protocol.StatusOK)
	store.down.Store(0)
	says(t, n.Address(), ReadyPath, "")
}

func TestStoppingIsNotReady(t *testing.T) {
	n := startNode(t, testConfig(t, "a", newStore()))
	if ps := n.unready(); len(ps) != 0 {
		t.Fatalf("%+v", ps)
	}
	stopNode(t, n)
	if ps := n.unready(); len(ps) != 1 || ps[0].Kind != Stopping {
		t.Errorf("a node that was closed: %+v", ps)
	}
	if ps := n.unhealthy(); len(ps) != 0 {
		t.Errorf("a node that was closed is not healthy: %+v", ps)
	}
}

// lockedBuffer is a log that a test reads while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
