package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/objstore/httpstore"
	"github.com/btrlog/btrlog/objstore/localdir"
)

var binary string

func TestMain(m *testing.M) {
	if text := os.Getenv(nodeRole); text != "" {
		nodeMain(text)
		return
	}
	dir, err := os.MkdirTemp("", "btrlog-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "btrlog")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = filepath.Join("..", "..", "cmd", "btrlog") // a module of its own
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// request is one request that the store saw.
type request struct{ Method, Key, Condition string }

// counter is the proxy: an HTTP server of its own in front of a local directory.
type counter struct {
	url string
	mu  sync.Mutex
	log []request
}

func newCounter(t *testing.T) *counter {
	t.Helper()
	store, err := localdir.Open(filepath.Join(t.TempDir(), "store"), localdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{url: "http://" + l.Addr().String()}
	inner := httpstore.Handler(store, "", httpstore.HandlerOptions{})
	srv := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.note(r)
		inner.ServeHTTP(w, r)
	})}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	go srv.Serve(l)
	t.Cleanup(func() {
		srv.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *counter) note(r *http.Request) {
	key, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), httpstore.Path))
	if err != nil {
		key = r.URL.Path
	}
	q := request{Method: r.Method, Key: key}
	if r.Header.Get("If-None-Match") != "" {
		q.Condition = "absent"
	} else if r.Header.Get("If-Match") != "" {
		q.Condition = "match"
	}
	c.mu.Lock()
	c.log = append(c.log, q)
	c.mu.Unlock()
}

// mark returns the number of requests so far; since, those after a mark that match.
func (c *counter) mark() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.log)
}

func (c *counter) since(mark int, match func(request) bool) []request {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []request
	for _, q := range c.log[mark:] {
		if match(q) {
			out = append(out, q)
		}
	}
	return out
}

func segment(q request) bool { return strings.HasPrefix(q.Key, "arch/") }

// nodeProcess is one node as a process of its own.
type nodeProcess struct {
	name, dir, addr, store string
	cmd                    *exec.Cmd
	out                    *os.File
}

type cluster struct {
	t     *testing.T
	ctx   context.Context
	store *counter
	nodes []*nodeProcess
}

func newCluster(t *testing.T, names ...string) *cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	c := &cluster{t: t, ctx: ctx, store: newCounter(t)}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			n.signal(syscall.SIGKILL)
		}
		cancel()
		if t.Failed() {
			for _, n := range c.nodes {
				b, _ := os.ReadFile(n.out.Name())
				t.Logf("node %s printed:\n%s", n.name, b)
			}
		}
	})
	for _, name := range names {
		n := &nodeProcess{name: name, dir: filepath.Join(t.TempDir(), name), addr: freeAddr(t), store: c.store.url}
		c.nodes = append(c.nodes, n)
		c.start(n)
	}
	for _, n := range c.nodes {
		c.await("node "+name(n)+" to be ready", func() bool { return n.status(ctx).Ready == "ready" })
	}
	return c
}

func name(n *nodeProcess) string { return n.name }

// freeAddr finds a port that is free for TCP and UDP now.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		u, err := net.ListenPacket("udp", addr)
		l.Close()
		if err == nil {
			u.Close()
			return addr
		}
	}
	t.Fatal("no free port on 127.0.0.1")
	return ""
}

func (c *cluster) start(n *nodeProcess) {
	c.t.Helper()
	out, err := os.Create(filepath.Join(c.t.TempDir(), "out"))
	if err != nil {
		c.t.Fatal(err)
	}
	n.out = out
	n.cmd = exec.Command(binary, "node", "--id", n.name, "--dir", n.dir, "--listen", n.addr, "--store", n.store)
	n.cmd.Stdout, n.cmd.Stderr = out, out
	if err := n.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
}

// signal sends a signal and, for SIGKILL, waits for the end.
func (n *nodeProcess) signal(s syscall.Signal) {
	if n.cmd.ProcessState != nil {
		return
	}
	_ = n.cmd.Process.Signal(s) // it may be gone
	if s == syscall.SIGKILL {
		_ = n.cmd.Wait() // killed is what it says
	}
}

// nodeStatus is what the tests look at of a node's status page.
type nodeStatus struct {
	Ready  string `json:"ready"`
	Shards []struct {
		Logs []struct {
			Name            string `json:"name"`
			Committed       uint64 `json:"committed"`
			ArchivedThrough uint64 `json:"archived_through"`
		} `json:"logs"`
	} `json:"shard_status"`
}

func (n *nodeProcess) status(ctx context.Context) nodeStatus {
	var st nodeStatus
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.addr+"/btrlog/v1/status", nil)
	if err != nil {
		return st
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return st
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || json.Unmarshal(b, &st) != nil {
		return nodeStatus{}
	}
	return st
}

func (n *nodeProcess) archived(ctx context.Context, log string) uint64 {
	for _, s := range n.status(ctx).Shards {
		for _, l := range s.Logs {
			if l.Name == log {
				return l.ArchivedThrough
			}
		}
	}
	return 0
}

func (c *cluster) await(what string, ok func() bool) {
	c.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			c.t.Fatalf("waiting for %s: %v", what, c.ctx.Err())
		}
	}
}

func (c *cluster) client() *btrlog.Client {
	c.t.Helper()
	client, err := btrlog.Connect(c.ctx, btrlog.Config{StoreURL: c.store.url})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { client.Close() })
	return client
}

func (c *cluster) writer(client *btrlog.Client, log string) *btrlog.Writer {
	c.t.Helper()
	w, err := client.OpenWriter(c.ctx, log, btrlog.WriterOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return w
}
