package httpstore

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/localdir"
	"github.com/btrlog/btrlog/objstore/memory"
	"github.com/btrlog/btrlog/objstore/objtest"
)

// serve runs h as a node does, below Path of a ServeMux. http2 lets it accept HTTP/2 without TLS too.
func serve(t *testing.T, h http.Handler, http2 bool) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(Path, h)
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(http2)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv
}

func client(t *testing.T, o Options, urls ...string) *Store {
	t.Helper()
	s, err := New(urls, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.(*Store)
}

// deadURL is an address where nobody listens.
func deadURL(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited 10 s in vain for: %s", what)
		}
	}
}

func TestConformance(t *testing.T) {
	backends := map[string]func(t *testing.T) objstore.Store{
		"memory": func(t *testing.T) objstore.Store { return memory.New(memory.Options{Name: "t", Now: time.Now}) },
		"localdir": func(t *testing.T) objstore.Store {
			s, err := localdir.Open(t.TempDir(), localdir.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		},
	}
	for name, open := range backends {
		for _, http2 := range []bool{false, true} {
			if name == "localdir" && !http2 {
				continue // what differs by protocol shows on memory, at a tenth of the time
			}
			t.Run(fmt.Sprintf("%s/http2=%v", name, http2), func(t *testing.T) {
				objtest.Run(t, func(t *testing.T) objstore.Store {
					return client(t, Options{}, serve(t, Handler(open(t), "", HandlerOptions{}), http2).URL)
				})
			})
		}
	}
}

// HTTP/2 where the node can, HTTP/1.1 elsewhere, and the choice is made anew after the node was replaced.
func TestProtocolIsFound(t *testing.T) {
	h := Handler(memory.New(memory.Options{}), "", HandlerOptions{})
	seen := make(chan int, 10)
	note := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			seen <- r.ProtoMajor
		}
		h.ServeHTTP(w, r)
	})
	for want, srv := range map[int]*httptest.Server{1: serve(t, note, false), 2: serve(t, note, true)} {
		s := client(t, Options{}, srv.URL)
		if _, err := s.Put(t.Context(), "k", nil, nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		if got := <-seen; got != want {
			t.Errorf("PUT by HTTP/%d, want HTTP/%d", got, want)
		}
	}
	addr := "127.0.0.1:0"
	var s *Store
	for _, http2 := range []bool{true, false, true} {
		srv := &http.Server{Handler: note, Protocols: new(http.Protocols)}
		srv.Protocols.SetHTTP1(true)
		srv.Protocols.SetUnencryptedHTTP2(http2)
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		addr = l.Addr().String()
		go srv.Serve(l)
		if s == nil {
			s = client(t, Options{}, "http://"+addr)
		}
		if _, err := s.Head(t.Context(), "k"); err != nil {
			t.Fatalf("http2=%v: %v", http2, err)
		}
		srv.Close()
		if _, err := s.Head(t.Context(), "k"); !errors.Is(err, objstore.ErrUnavailable) {
			t.Fatalf("Head at a closed server: %v", err)
		}
	}
}

// The suite over several nodes, the first of which is dead.
func TestConformanceFailover(t *testing.T) {
	objtest.Run(t, func(t *testing.T) objstore.Store {
		m := memory.New(memory.Options{})
		a := serve(t, Handler(m, "", HandlerOptions{}), true)
		b := serve(t, Handler(m, "", HandlerOptions{}), false)
		return client(t, Options{}, deadURL(t), a.URL, b.URL)
	})
}

func TestTLS(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(Path, Handler(memory.New(memory.Options{}), "", HandlerOptions{}))
	srv := httptest.NewUnstartedServer(mux)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	s := client(t, Options{TLS: srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()}, srv.URL)
	if _, err := s.Put(t.Context(), "k", []byte("v"), nil, objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	if body, _, err := objstore.ReadAll(t.Context(), s, "k", 10); err != nil || string(body) != "v" {
		t.Fatalf("%q, %v", body, err)
	}
}

// Nothing of the client runs on after Close, also if readers were left half read.
func TestNoGoroutineLeft(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		m := memory.New(memory.Options{})
		srv := serve(t, Handler(m, "", HandlerOptions{}), http2)
		before := runtime.NumGoroutine()
		s := client(t, Options{}, deadURL(t), srv.URL)
		if _, err := s.Put(t.Context(), "k", bytes.Repeat([]byte("x"), 1<<20), nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			rc, _, err := s.Get(t.Context(), "k", objstore.Whole)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := rc.Read(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			rc.Close()
			if _, err := s.Head(t.Context(), "absent"); err == nil {
				t.Fatal("an absent object has a head")
			}
		}
		s.Close()
		eventually(t, fmt.Sprintf("http2=%v: goroutines to end", http2), func() bool { return runtime.NumGoroutine() <= before })
	}
}

// One connection serves one request after the other, whatever their outcome.
func TestConnectionsAreReused(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		m := memory.New(memory.Options{})
		mux := http.NewServeMux()
		mux.Handle(Path, Handler(m, "", HandlerOptions{}))
		srv := httptest.NewUnstartedServer(mux)
		srv.Config.Protocols = new(http.Protocols)
		srv.Config.Protocols.SetHTTP1(true)
		srv.Config.Protocols.SetUnencryptedHTTP2(http2)
		conns := make(chan string, 100)
		srv.Config.ConnState = func(c net.Conn, s http.ConnState) {
			if s == http.StateNew {
				conns <- c.RemoteAddr().String()
			}
		}
		srv.Start()
		s := client(t, Options{}, srv.URL)
		if _, err := s.Put(t.Context(), "k", []byte("body"), nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		base := len(conns) // the protocol's detection takes one more connection over HTTP/1.1
		for range 20 {
			if _, _, err := objstore.ReadAll(t.Context(), s, "k", 10); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Head(t.Context(), "absent"); err == nil {
				t.Fatal("an absent object has a head")
			}
			if _, err := s.Put(t.Context(), "k", []byte("body"), nil, objstore.IfAbsent()); err == nil {
				t.Fatal("created twice")
			}
			if _, err := s.List(t.Context(), "", "", 0); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(conns); n != base || base > 2 {
			t.Errorf("http2=%v: %d connections for requests in a row, %d after the first", http2, n, base)
		}
		s.Close()
		srv.Close()
	}
}
