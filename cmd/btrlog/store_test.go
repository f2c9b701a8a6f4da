package main_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/httpstore"
	"github.com/btrlog/btrlog/objstore/localdir"
)

// storeServer is an object store behind HTTP that can fail.
type storeServer struct {
	url  string
	mode atomic.Int32
	// forbidden, if not nil: objects whose key has this text are not written, and what begins with it is not listed.
	forbidden atomic.Pointer[string]
}

const (
	storeWell     = iota
	storeDown     // connections are closed without an answer
	storeReadOnly // what would change something is forbidden
)

func newStoreServer(t *testing.T) *storeServer {
	t.Helper()
	store, err := localdir.Open(filepath.Join(t.TempDir(), "store"), localdir.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &storeServer{url: "http://" + l.Addr().String()}
	inner := httpstore.Handler(&guarded{store, s}, "", httpstore.HandlerOptions{})
	srv := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.mode.Load() == storeDown {
			panic(http.ErrAbortHandler)
		}
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
	return s
}

// guarded refuses writes while the store is read-only, and what is forbidden.
type guarded struct {
	objstore.Store
	s *storeServer
}

func (g *guarded) denied(op, key string) error {
	if part := g.s.forbidden.Load(); part != nil && strings.Contains(key, *part) {
		return &objstore.Error{Store: g.String(), Op: op, Key: key, Kind: objstore.ErrDenied, Err: errors.New("forbidden")}
	}
	if g.s.mode.Load() == storeReadOnly && op != "list" {
		return &objstore.Error{Store: g.String(), Op: op, Key: key, Kind: objstore.ErrDenied, Err: errors.New("the bucket is read-only")}
	}
	return nil
}

func (g *guarded) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	if err := g.denied("put", key); err != nil {
		return objstore.Info{}, err
	}
	return g.Store.Put(ctx, key, body, meta, cond)
}

func (g *guarded) Delete(ctx context.Context, key string) error {
	if err := g.denied("delete", key); err != nil {
		return err
	}
	return g.Store.Delete(ctx, key)
}

func (g *guarded) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	if err := g.denied("list", prefix); err != nil {
		return objstore.Page{}, err
	}
	return g.Store.List(ctx, prefix, startAfter, limit)
}

// The object store is away, and then read-only: a node does not start, what needs metadata fails and says why, what needs none goes on, and when
// the store is well again nothing is missing.
func TestStoreTrouble(t *testing.T) {
	t.Parallel()
	s := newStoreServer(t)
	dir := filepath.Join(t.TempDir(), "n")
	start := func() result {
		return run(t, "", "node", "--id", "n", "--dir", dir, "--store", s.url, "--listen", "127.0.0.1:0", "--start-timeout", "1s")
	}
	s.mode.Store(storeDown)
	bad(t, start(), 1, "object store "+s.url, "did not answer within 1s")
	s.mode.Store(storeReadOnly)
	bad(t, start(), 1, s.url, "access denied", "the object store refuses it; check who may write there")
	s.mode.Store(storeWell)
	p, _ := nodeProcess(t, "n", dir, s.url)
	log := func(args ...string) []string { return append([]string{"log", "--store", s.url}, args...) }
	hasty := func(args ...string) result { return run(t, "lost\n", append(log("--timeout", "1s"), args...)...) }
	good(t, "", log("create", "--n", "1", "l")...)
	good(t, "1\n2\n", log("append", "l")...)
	cmd := command(context.Background(), log("append", "l")...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	live := mustStart(t, cmd)
	write := func(line string) {
		t.Helper()
		if _, err := io.WriteString(in, line); err != nil {
			t.Fatalf("append ended: %v; %+v", err, live.wait())
		}
	}
	write("3\n")
	eventually(t, "LSN 3 is committed", func() bool { return strings.Contains(good(t, "", log("info", "l")...), "tail        3\n") })

	s.mode.Store(storeDown)
	for _, args := range [][]string{{"list"}, {"append", "l"}} {
		bad(t, hasty(args...), 1, "connect: unavailable", "cluster.json", "run the command again when the nodes and the object store answer")
	}
	write("4\n") // a writer that has its log needs no metadata

	s.mode.Store(storeReadOnly)
	for _, args := range [][]string{{"create", "--n", "1", "x"}, {"append", "l"}, {"fence", "l"}, {"trim", "--before", "2", "l"}, {"delete", "--yes", "l"}} {
		res := hasty(args...)
		bad(t, res, 1, "access denied", "the bucket is read-only", "the object store refuses it; check who may write there")
		if res.out != "" {
			t.Errorf("%v prints %q", args, res.out)
		}
	}
	write("5\n")
	eventually(t, "what was written without the store is read without writing to it", func() bool {
		return good(t, "", log("cat", "--lines", "l")...) == "1\n2\n3\n4\n5\n"
	})
	good(t, "", log("list")...)

	s.mode.Store(storeWell)
	in.Close()
	if res := live.wait(); res.code != 0 || res.out != "appended 3 records, LSN 3..5, committed\n" {
		t.Errorf("the writer that lived through it: %+v", res)
	}
	good(t, "6\n", log("append", "l")...)
	if got := good(t, "", log("cat", "--lines", "l")...); got != "1\n2\n3\n4\n5\n6\n" {
		t.Errorf("the log holds %q", got)
	}
	if got := good(t, "", log("list")...); strings.Count(got, "\n") != 2 {
		t.Errorf("the logs are\n%s", got)
	}
	if res := p.end(syscall.SIGTERM); res.code != 0 {
		t.Errorf("the node ended with code %d, stderr %q", res.code, res.err)
	}
}
