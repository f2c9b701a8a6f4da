package httpstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/memory"
)

// both runs f over HTTP/1.1 and over HTTP/2.
func both(t *testing.T, f func(t *testing.T, http2 bool)) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) { f(t, http2) })
	}
}

func isErr(t *testing.T, what string, err, kind error) {
	t.Helper()
	var e *objstore.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Fatalf("%s: error %v, want the kind %v", what, err, kind)
	}
}

// Every kind of error arrives as what it is, with the node's message, for every method.
func TestErrorsKeepTheirKind(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		for _, k := range kinds {
			s := client(t, Options{}, serve(t, Handler(failing{k.kind}, "", HandlerOptions{}), http2).URL)
			ctx := t.Context()
			_, err := s.Put(ctx, "k", []byte("x"), nil, objstore.Always())
			isErr(t, "Put", err, k.kind)
			if !strings.Contains(err.Error(), "the cause") || !strings.Contains(err.Error(), "http://127.0.0.1") {
				t.Fatalf("%v does not name cause and node", err)
			}
			isErr(t, "Delete", s.Delete(ctx, "k"), k.kind)
			_, _, err = s.Get(ctx, "k", objstore.Whole)
			isErr(t, "Get", err, k.kind)
			_, err = s.Head(ctx, "k")
			isErr(t, "Head", err, k.kind)
			_, err = s.List(ctx, "k", "", 1)
			isErr(t, "List", err, k.kind)
		}
		// An error without a kind says nothing about a write.
		s := client(t, Options{}, serve(t, Handler(failing{}, "", HandlerOptions{}), http2).URL)
		_, err := s.Put(t.Context(), "k", nil, nil, objstore.IfAbsent())
		isErr(t, "Put", err, objstore.ErrUnknown)
		_, err = s.Head(t.Context(), "k")
		isErr(t, "Head", err, objstore.ErrUnavailable)
	})
}

// failing fails every method with one kind whose cause is of another.
type failing struct{ kind error }

func (f failing) err() error {
	cause := fmt.Errorf("the cause: %w", objstore.ErrConflict)
	if f.kind == nil {
		return cause
	}
	return &objstore.Error{Store: "failing", Op: "op", Key: "k", Kind: f.kind, Err: cause}
}

func (f failing) Put(context.Context, string, []byte, map[string]string, objstore.Condition) (objstore.Info, error) {
	return objstore.Info{}, f.err()
}

func (f failing) Get(context.Context, string, objstore.Range) (io.ReadCloser, objstore.Info, error) {
	return nil, objstore.Info{}, f.err()
}
func (f failing) Head(context.Context, string) (objstore.Info, error) {
	return objstore.Info{}, f.err()
}
func (f failing) List(context.Context, string, string, int) (objstore.Page, error) {
	return objstore.Page{}, f.err()
}
func (f failing) Delete(context.Context, string) error { return f.err() }
func (f failing) String() string                       { return "failing" }
func (f failing) Close() error                         { return nil }

// A connection that cannot be made has applied nothing: reads and writes go to the next node, and the dead one is not
// asked again first.
func TestFailoverOnDial(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		m := memory.New(memory.Options{})
		s := client(t, Options{}, deadURL(t), deadURL(t), serve(t, Handler(m, "", HandlerOptions{}), http2).URL)
		if _, err := s.Put(t.Context(), "k", []byte("v"), nil, objstore.IfAbsent()); err != nil {
			t.Fatal(err)
		}
		if got := s.preferred.Load(); got != 2 {
			t.Fatalf("the next request begins with node %d, want the living node 2", got)
		}
		if body, _, err := objstore.ReadAll(t.Context(), s, "k", 10); err != nil || string(body) != "v" {
			t.Fatalf("%q, %v", body, err)
		}
	})
}

func TestAllNodesDead(t *testing.T) {
	a, b := deadURL(t), deadURL(t)
	s := client(t, Options{}, a, b)
	_, err := s.Put(t.Context(), "k", nil, nil, objstore.IfAbsent())
	isErr(t, "Put", err, objstore.ErrUnavailable)
	if !strings.Contains(err.Error(), a) || !strings.Contains(err.Error(), b) {
		t.Fatalf("%v does not name both nodes", err)
	}
	isErr(t, "Delete", s.Delete(t.Context(), "k"), objstore.ErrUnavailable)
	_, err = s.List(t.Context(), "", "", 0)
	isErr(t, "List", err, objstore.ErrUnavailable)
}

// A node whose own store is out of reach says so definitely; another node may reach it.
func TestFailoverOnUnavailable(t *testing.T) {
	m := memory.New(memory.Options{})
	sick := faulty.New(m, faulty.Config{})
	sick.Add(faulty.Rule{Fault: faulty.Unavailable})
	s := client(t, Options{}, serve(t, Handler(sick, "", HandlerOptions{}), true).URL, serve(t, Handler(m, "", HandlerOptions{}), true).URL)
	if _, err := s.Put(t.Context(), "k", []byte("v"), nil, objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Head(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
}

// saboteur lets requests through until armed, and then breaks writes in one of several ways.
type saboteur struct {
	inner http.Handler
	mode  atomic.Int32 // what happens to the next write
	asked atomic.Int32 // writes that arrived
	hold  chan struct{}
}

const (
	fine = iota
	dieBefore
	dieAfter
	hangAfter
	proxyError
)

func (s *saboteur) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut && r.Method != http.MethodDelete {
		s.inner.ServeHTTP(w, r)
		return
	}
	s.asked.Add(1)
	mode := s.mode.Load()
	if mode == dieAfter || mode == hangAfter || mode == proxyError {
		s.inner.ServeHTTP(&swallow{header: make(http.Header)}, r)
	}
	switch mode {
	case fine:
		s.inner.ServeHTTP(w, r)
	case dieBefore, dieAfter:
		panic(http.ErrAbortHandler)
	case hangAfter:
		<-s.hold
	case proxyError:
		w.WriteHeader(http.StatusBadGateway)
	}
}

type swallow struct{ header http.Header }

func (s *swallow) Header() http.Header         { return s.header }
func (s *swallow) Write(p []byte) (int, error) { return len(p), nil }
func (s *swallow) WriteHeader(int)             {}

// A write that may have been sent is ErrUnknown, whatever its condition, on a new connection and on one that was used before,
// and neither node gets it a second time.
func TestUnknownOutcome(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		for _, mode := range []int32{dieBefore, dieAfter, hangAfter, proxyError} {
			for _, used := range []bool{false, true} {
				t.Run(fmt.Sprintf("mode%d/used=%v", mode, used), func(t *testing.T) {
					m := memory.New(memory.Options{})
					first := &saboteur{inner: Handler(m, "", HandlerOptions{}), hold: make(chan struct{})}
					second := &saboteur{inner: Handler(m, "", HandlerOptions{})}
					o := Options{RequestTimeout: 5 * time.Second}
					if mode == hangAfter {
						o.RequestTimeout = 100 * time.Millisecond
					}
					s := client(t, o, serve(t, first, http2).URL, serve(t, second, http2).URL)
					t.Cleanup(func() { close(first.hold) })
					body := []byte("mine")
					for i, c := range []objstore.Condition{objstore.IfAbsent(), objstore.Always(), objstore.IfMatch("0")} {
						s.preferred.Store(0)
						key := fmt.Sprint("k", i)
						if used {
							first.mode.Store(fine)
							if _, err := s.Put(t.Context(), "other", body, nil, objstore.Always()); err != nil {
								t.Fatal(err)
							}
						}
						first.mode.Store(mode)
						first.asked.Store(0)
						_, err := s.Put(t.Context(), key, body, nil, c)
						isErr(t, c.String(), err, objstore.ErrUnknown)
						if n := first.asked.Load(); n != 1 {
							t.Fatalf("the write arrived %d times", n)
						}
						// Looking tells, and asks the other node.
						_, headErr := s.Head(t.Context(), key)
						_, match := c.Match()
						if applied := mode != dieBefore && !match; (headErr == nil) != applied {
							t.Fatalf("Head after a write that was applied: %v: %v", applied, headErr)
						}
					}
					s.preferred.Store(0)
					first.asked.Store(0)
					isErr(t, "Delete", s.Delete(t.Context(), "k0"), objstore.ErrUnknown)
					if n := first.asked.Load(); n != 1 || second.asked.Load() != 0 {
						t.Fatalf("the delete arrived %d times, writes at the second node %d times", n, second.asked.Load())
					}
				})
			}
		}
	})
}

// A write cancelled while it is under way is unknown and says what cancelled it.
func TestCancelDuringWrite(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		reached := make(chan struct{})
		inner := faulty.New(memory.New(memory.Options{}), faulty.Config{Delay: func(ctx context.Context, _ faulty.Op, _ string) error {
			close(reached)
			<-ctx.Done() // that the node gives up with its client is part of the test
			return ctx.Err()
		}})
		s := client(t, Options{}, serve(t, Handler(inner, "", HandlerOptions{}), http2).URL)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-reached; cancel() }()
		_, err := s.Put(ctx, "k", []byte("v"), nil, objstore.IfAbsent())
		isErr(t, "Put", err, objstore.ErrUnknown)
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("%v does not wrap context.Canceled", err)
		}
	})
}

// After Put returned, the caller's bytes are not looked at: a timed-out write is applied as it was given or not at all.
func TestBodyIsNotSharedAfterReturn(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		inner := memory.New(memory.Options{})
		entered, resume := make(chan struct{}), make(chan struct{})
		done := make(chan struct{})
		h := Handler(inner, "", HandlerOptions{})
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				defer close(done)
				r.Body.Read(make([]byte, 0))
				close(entered)
				<-resume
			}
			h.ServeHTTP(w, r)
		}), http2)
		s := client(t, Options{}, srv.URL)
		body := bytes.Repeat([]byte("a"), 32<<20) // more than the sockets' buffers hold
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-entered; cancel() }()
		_, err := s.Put(ctx, "k", body, nil, objstore.Always())
		isErr(t, "Put", err, objstore.ErrUnknown)
		for i := range body {
			body[i] = 'b'
		}
		close(resume)
		<-done
		if got, _, err := objstore.ReadAll(t.Context(), inner, "k", 64<<20); err == nil {
			t.Fatalf("an abandoned body of %d bytes was applied, %d of them overwritten later", len(got), bytes.Count(got, []byte("b")))
		}
	})
}

// The transport can hold a body's reader longer than the Put lasts.
func TestDetachedBody(t *testing.T) {
	b := &sharedBody{bytes: []byte("abc")}
	r := b.reader()
	two := make([]byte, 2)
	if n, err := r.Read(two); n != 2 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	b.detach()
	for _, r := range []io.Reader{r, b.reader()} {
		if n, err := r.Read(two); n != 0 || err == nil || err == io.EOF {
			t.Fatalf("a detached body gave %d bytes, %v; want an error that cannot be taken for its end", n, err)
		}
	}
}

// cutter breaks the connection of a GET after some bytes, as the death of a node does.
type cutter struct {
	inner http.Handler
	after int
	cuts  atomic.Int32 // how many GETs suffer
}

func (c *cutter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && c.cuts.Add(-1) >= 0 {
		w = &cutWriter{ResponseWriter: w, left: c.after}
	}
	c.inner.ServeHTTP(w, r)
}

type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *cutWriter) Write(p []byte) (int, error) {
	if len(p) > c.left {
		c.ResponseWriter.Write(p[:c.left])
		http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}

func testBody() []byte {
	body := make([]byte, 600_000)
	for i := range body {
		body[i] = byte(i * 31 / 7)
	}
	return body
}

// A node that dies in the middle of a body: the rest comes from the next one, of whole objects and of ranges.
func TestServerDiesMidBody(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		m := memory.New(memory.Options{})
		want := testBody()
		if _, err := m.Put(t.Context(), "k", want, nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		for _, rng := range []objstore.Range{objstore.Whole, {Offset: 1000}, {Offset: 7, Length: 500_000}} {
			dying := &cutter{inner: Handler(m, "", HandlerOptions{}), after: 200_001}
			dying.cuts.Store(1)
			s := client(t, Options{}, serve(t, dying, http2).URL, serve(t, Handler(m, "", HandlerOptions{}), http2).URL)
			rc, info, err := s.Get(t.Context(), "k", rng)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(rc)
			rc.Close()
			from, to, _ := rng.Resolve(info.Size)
			if err != nil || !bytes.Equal(got, want[from:to]) {
				t.Fatalf("%+v: %d bytes, %v; want %d bytes", rng, len(got), err, to-from)
			}
			if s.preferred.Load() != 1 {
				t.Fatal("the next request begins with the node that died")
			}
		}
	})
}

// Without anybody to continue, a cut body is an error and never an early end.
func TestCutBodyIsAnError(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		m := memory.New(memory.Options{})
		if _, err := m.Put(t.Context(), "k", testBody(), nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		dying := &cutter{inner: Handler(m, "", HandlerOptions{}), after: 100_000}
		dying.cuts.Store(1000)
		s := client(t, Options{}, serve(t, dying, http2).URL)
		rc, _, err := s.Get(t.Context(), "k", objstore.Whole)
		if err != nil {
			t.Fatal(err)
		}
		defer rc.Close()
		n, err := io.Copy(io.Discard, rc)
		isErr(t, "reading", err, objstore.ErrUnavailable)
		if n != 400_000 {
			t.Fatalf("%d bytes came, want those of the first try and %d continuations", n, maxResumes)
		}
	})
}

// A continuation under another ETag would mix two versions.
func TestReplacedDuringRead(t *testing.T) {
	for name, change := range map[string]func(m *memory.Store) error{
		"replaced": func(m *memory.Store) error {
			_, err := m.Put(context.Background(), "k", bytes.Repeat([]byte("n"), 600_000), nil, objstore.Always())
			return err
		},
		"shorter": func(m *memory.Store) error {
			_, err := m.Put(context.Background(), "k", []byte("n"), nil, objstore.Always())
			return err
		},
		"deleted": func(m *memory.Store) error { return m.Delete(context.Background(), "k") },
	} {
		t.Run(name, func(t *testing.T) {
			m := memory.New(memory.Options{})
			if _, err := m.Put(t.Context(), "k", testBody(), nil, objstore.Always()); err != nil {
				t.Fatal(err)
			}
			dying := &cutter{inner: Handler(m, "", HandlerOptions{}), after: 100_000}
			dying.cuts.Store(1)
			s := client(t, Options{}, serve(t, dying, true).URL)
			rc, _, err := s.Get(t.Context(), "k", objstore.Whole)
			if err != nil {
				t.Fatal(err)
			}
			defer rc.Close()
			if err := change(m); err != nil {
				t.Fatal(err)
			}
			_, err = io.Copy(io.Discard, rc)
			isErr(t, "reading", err, objstore.ErrUnavailable)
			if !strings.Contains(err.Error(), "while it was read") {
				t.Fatalf("%v does not say what happened", err)
			}
		})
	}
}

// damaged finds damage in the middle or at the very end.
type damaged struct {
	objstore.Store
	at int64
}

func (d damaged) Get(ctx context.Context, key string, r objstore.Range) (io.ReadCloser, objstore.Info, error) {
	rc, info, err := d.Store.Get(ctx, key, r)
	if err != nil {
		return nil, info, err
	}
	bad := &objstore.Error{Store: "damaged", Op: "get", Key: key, Kind: objstore.ErrDamaged, Err: errors.New("block 7")}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(rc, d.at), errReader{bad}), rc}, info, nil
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

// Damage that a store finds while it sends arrives as damage, and is not asked for again elsewhere.
func TestDamageMidBody(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		m := memory.New(memory.Options{})
		if _, err := m.Put(t.Context(), "k", testBody(), nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		for _, at := range []int64{0, 1, 300_000, 600_000} {
			counts := faulty.New(damaged{m, at}, faulty.Config{})
			h := Handler(counts, "", HandlerOptions{})
			s := client(t, Options{}, serve(t, h, http2).URL, serve(t, h, http2).URL)
			_, _, err := objstore.ReadAll(t.Context(), s, "k", 1<<20)
			isErr(t, fmt.Sprint("damage at ", at), err, objstore.ErrDamaged)
			if !strings.Contains(err.Error(), "block 7") {
				t.Fatalf("%v lacks the store's message", err)
			}
			if n := counts.Requests(faulty.Get); n != 1 {
				t.Fatalf("the object was read %d times", n)
			}
		}
	})
}

// A store that fails half way is asked again; S3 resets connections now and then.
func TestStoreCutsBody(t *testing.T) {
	m := faulty.New(memory.New(memory.Options{}), faulty.Config{})
	want := testBody()
	if _, err := m.Put(t.Context(), "k", want, nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	m.Add(faulty.Rule{Fault: faulty.CutBody, Count: 2})
	s := client(t, Options{}, serve(t, Handler(m, "", HandlerOptions{}), true).URL)
	if got, _, err := objstore.ReadAll(t.Context(), s, "k", 1<<20); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
}

// A node that accepts and is silent costs a read one timeout, and then the next node answers.
func TestHangingNode(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		m := memory.New(memory.Options{})
		if _, err := m.Put(t.Context(), "k", testBody(), nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		var once sync.Once
		inner := Handler(m, "", HandlerOptions{})
		hang := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodHead && r.URL.Path == Path:
				inner.ServeHTTP(w, r)
			case r.Method == http.MethodGet: // the head and a part of the body, then silence
				inner.ServeHTTP(&hangWriter{ResponseWriter: w, release: release, left: 70_000}, r)
			default:
				<-release
			}
		})
		s := client(t, Options{RequestTimeout: 100 * time.Millisecond, IdleTimeout: 100 * time.Millisecond},
			serve(t, hang, http2).URL, serve(t, inner, http2).URL)
		t.Cleanup(func() { once.Do(func() { close(release) }) })
		if _, err := s.Head(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		s.preferred.Store(0)
		if got, _, err := objstore.ReadAll(t.Context(), s, "k", 1<<20); err != nil || !bytes.Equal(got, testBody()) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	})
}

type hangWriter struct {
	http.ResponseWriter
	release chan struct{}
	left    int
}

func (h *hangWriter) Unwrap() http.ResponseWriter { return h.ResponseWriter }

func (h *hangWriter) Write(p []byte) (int, error) {
	if h.left -= len(p); h.left < 0 {
		http.NewResponseController(h.ResponseWriter).Flush()
		<-h.release
	}
	return h.ResponseWriter.Write(p)
}

// The end of the caller's time is said once.
func TestDeadlineIsSaidOnce(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		release := make(chan struct{})
		s := client(t, Options{}, serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }), http2).URL)
		t.Cleanup(func() { close(release) })
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := s.Head(ctx, "k")
		if !errors.Is(err, context.DeadlineExceeded) || strings.Count(err.Error(), context.DeadlineExceeded.Error()) != 1 {
			t.Errorf("head of a silent node: %v", err)
		}
	})
}
