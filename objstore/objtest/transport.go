package objtest

import (
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
)

// Remote is a backend that reaches a server over HTTP by somebody else's SDK.
type Remote struct {
	// Open opens an empty store whose requests go through around(a transport).
	Open func(t *testing.T, around func(http.RoundTripper) http.RoundTripper) objstore.Store
	// Deaf removes the conditions from a request, as a server that ignores them sees it. Only parts that match absent or match.
	Deaf func(req *http.Request, absent, match bool)
	// Gone opens a store whose bucket does not exist; nil if none can be had.
	Gone func(t *testing.T) objstore.Store
	// HeadIsMute: the server answers HEAD without a body, so that a missing bucket looks like a missing object.
	HeadIsMute bool
}

// RunRemote tests what becomes of requests between the SDK and the server: what is repeated, what is unknown, what is refused. It runs
// beside Run.
func RunRemote(t *testing.T, r Remote) {
	t.Run("LostReply", r.lostReply)
	t.Run("NotSent", r.notSent)
	t.Run("Throttled", r.throttled)
	t.Run("RateOfOneObject", r.rate)
	t.Run("ReadsAreRepeated", r.repeated)
	t.Run("CutReply", r.cut)
	t.Run("IgnoredConditions", r.deaf)
	if r.Gone != nil {
		t.Run("BucketGone", r.gone)
	}
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// open opens a store whose requests go through hook, which may call next.
func (r Remote) open(t *testing.T, hook func(req *http.Request, next http.RoundTripper) (*http.Response, error)) objstore.Store {
	t.Helper()
	s := r.Open(t, func(next http.RoundTripper) http.RoundTripper {
		return tripper(func(req *http.Request) (*http.Response, error) { return hook(req, next) })
	})
	t.Cleanup(func() { s.Close() })
	return s
}

func writes(req *http.Request) bool {
	return req.Method != http.MethodGet && req.Method != http.MethodHead
}

// status is an answer without a body that says more.
func status(req *http.Request, code int) *http.Response {
	if req.Body != nil {
		req.Body.Close()
	}
	return &http.Response{StatusCode: code, Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: req}
}

// lostReply: a write that was applied and not answered is unknown, and is not sent a second time by the SDK, whose refusal would look
// like a lost race.
func (r Remote) lostReply(t *testing.T) {
	var lose atomic.Bool
	var requests atomic.Int64
	s := r.open(t, func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil && writes(req) && lose.Load() {
			requests.Add(1)
			resp.Body.Close()
			return nil, errors.New("test: connection reset by peer")
		}
		return resp, err
	})
	lossy := func(what string, do func() error) {
		t.Helper()
		requests.Store(0)
		lose.Store(true)
		err := do()
		lose.Store(false)
		wantErr(t, what, err, objstore.ErrUnknown)
		if n := requests.Load(); n != 1 {
			t.Fatalf("%s: sent %d times, want once", what, n)
		}
	}
	write := func(body string, c objstore.Condition) func() error {
		return func() error { _, err := s.Put(t.Context(), "k", []byte(body), nil, c); return err }
	}
	lossy("a create", write("one", objstore.IfAbsent()))
	info := wantBody(t, s, "k", "one")
	wantErr(t, "the same create again", write("one", objstore.IfAbsent())(), objstore.ErrPrecondition)
	lossy("a replacement", write("two", objstore.IfMatch(info.ETag)))
	wantBody(t, s, "k", "two")
	lossy("a write", write("three", objstore.Always()))
	wantBody(t, s, "k", "three")
	lossy("a delete", func() error { return s.Delete(t.Context(), "k") })
	_, err := s.Head(t.Context(), "k")
	wantErr(t, "Head after the delete", err, objstore.ErrNotFound)
}

// notSent: what did not get a connection was not applied.
func (r Remote) notSent(t *testing.T) {
	s := r.open(t, func(req *http.Request, _ http.RoundTripper) (*http.Response, error) {
		return nil, errors.New("test: no route to host")
	})
	_, err := s.Put(t.Context(), "k", []byte("v"), nil, objstore.IfAbsent())
	wantErr(t, "Put", err, objstore.ErrUnavailable)
	if errors.Is(err, objstore.ErrUnknown) || !strings.Contains(err.Error(), "no route to host") {
		t.Errorf("Put: %v; want the cause", err)
	}
	wantErr(t, "Delete", s.Delete(t.Context(), "k"), objstore.ErrUnavailable)
}

// throttled: 429 says that the request was not looked at; 500, 502 and a bare 503 say nothing.
func (r Remote) throttled(t *testing.T) {
	var code atomic.Int64
	var requests atomic.Int64
	s := r.open(t, func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		if c := int(code.Load()); c != 0 && writes(req) {
			requests.Add(1)
			resp, err := next.RoundTrip(req) // the server gets it: a connection, and here it is even applied
			if err != nil {
				return nil, err
			}
			resp.Body.Close()
			return status(req, c), nil
		}
		return next.RoundTrip(req)
	})
	for c, want := range map[int]error{429: objstore.ErrUnavailable, 500: objstore.ErrUnknown, 502: objstore.ErrUnknown, 503: objstore.ErrUnknown,
		504: objstore.ErrUnknown, 401: objstore.ErrDenied, 403: objstore.ErrDenied, 409: objstore.ErrConflict, 412: objstore.ErrPrecondition} {
		requests.Store(0)
		code.Store(int64(c))
		_, err := s.Put(t.Context(), "k", []byte("v"), nil, objstore.Always())
		code.Store(0)
		wantErr(t, fmt.Sprintf("Put answered with %d", c), err, want)
		if n := requests.Load(); n != 1 {
			t.Errorf("Put answered with %d: sent %d times, want once", c, n)
		}
	}
}

// rate: a service that lets one object be written once in an interval, and answers 429 meanwhile, passes the self-test. The interval is
// shorter than a real one's second.
func (r Remote) rate(t *testing.T) {
	const interval = 30 * time.Millisecond
	var mu sync.Mutex
	last := map[string]time.Time{}
	refused := 0
	s := r.open(t, func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		if req.Method != http.MethodPut && req.Method != http.MethodPost {
			return next.RoundTrip(req)
		}
		object := req.URL.Path + " " + req.URL.Query().Get("name") // an upload to Google names it in the query
		mu.Lock()
		if time.Since(last[object]) < interval {
			refused++
			mu.Unlock()
			return status(req, http.StatusTooManyRequests), nil
		}
		last[object] = time.Now()
		mu.Unlock()
		return next.RoundTrip(req)
	})
	if err := objstore.Probe(t.Context(), s, "probe"); err != nil {
		t.Fatalf("Probe: %v", err)
	}
	if mu.Lock(); refused == 0 {
		t.Error("nothing was refused, so nothing was tested")
	}
	mu.Unlock()
}

// repeated: a read is repeated by the SDK, after a pause of its own, so that one bad answer is not seen above.
func (r Remote) repeated(t *testing.T) {
	var bad atomic.Int64
	s := r.open(t, func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		if !writes(req) && bad.Add(-1) == 0 {
			return status(req, http.StatusServiceUnavailable), nil
		}
		return next.RoundTrip(req)
	})
	put(t, s, "k", "body", objstore.IfAbsent())
	bad.Store(1)
	wantBody(t, s, "k", "body")
	bad.Store(1)
	if _, err := s.Head(t.Context(), "k"); err != nil {
		t.Errorf("Head: %v", err)
	}
	bad.Store(1)
	if page, err := s.List(t.Context(), "", "", 0); err != nil || len(page.Objects) != 1 {
		t.Errorf("List: %+v, %v", page, err)
	}
	if n := bad.Load(); n >= 1 {
		t.Errorf("%d answers were not spoilt: nothing was tested", n)
	}
}

// cutBody ends after half of what was announced.
type cutBody struct {
	io.Reader
	io.Closer
}

// cut: a body that ends early is an error or is fetched anew from there, but never the end of the object.
func (r Remote) cut(t *testing.T) {
	var cuts atomic.Int64
	s := r.open(t, func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil && req.Method == http.MethodGet && resp.StatusCode < 300 && resp.ContentLength > 100_000 && cuts.Add(-1) >= 0 {
			resp.Body = cutBody{io.MultiReader(io.LimitReader(resp.Body, resp.ContentLength/2), broken{}), resp.Body}
		}
		return resp, err
	})
	body := strings.Repeat("0123456789", 60_000)
	put(t, s, "k", body, objstore.IfAbsent())
	for _, n := range []int64{1, 100} {
		cuts.Store(n)
		got, _, err := objstore.ReadAll(t.Context(), s, "k", objstore.MaxBodyBytes)
		if left := cuts.Swap(0); left == n {
			t.Fatal("nothing was cut, so nothing was tested")
		}
		if err == nil && string(got) != body {
			t.Errorf("a reply that was cut %d times: %d bytes without an error, want %d", n, len(got), len(body))
		}
		if err != nil {
			wantErr(t, "a cut reply", err, objstore.ErrUnavailable)
		}
	}
	wantBody(t, s, "k", body)

	// A server that never sends a byte of a body is not asked for ever.
	var asked atomic.Int64
	mute := r.open(t, func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil && req.Method == http.MethodGet && resp.StatusCode < 300 && resp.ContentLength > 100_000 {
			if asked.Add(1) > 1000 {
				return nil, errors.New("test: asked too often")
			}
			resp.Body = cutBody{broken{}, resp.Body}
		}
		return resp, err
	})
	put(t, mute, "k", body, objstore.IfAbsent())
	_, _, err := objstore.ReadAll(t.Context(), mute, "k", objstore.MaxBodyBytes)
	wantErr(t, "a body without a byte", err, objstore.ErrUnavailable)
	if n := asked.Load(); n > 20 {
		t.Errorf("asked %d times for a body that never comes", n)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// deaf: a server that ignores a condition is refused at the start, and the error says which.
func (r Remote) deaf(t *testing.T) {
	for _, c := range []struct {
		absent, match bool
		want          string
	}{{true, false, "create-if-absent"}, {false, true, "replace-if-match"}} {
		s := r.open(t, func(req *http.Request, next http.RoundTripper) (*http.Response, error) {
			own := req.Clone(req.Context())
			r.Deaf(own, c.absent, c.match)
			return next.RoundTrip(own)
		})
		err := objstore.Probe(t.Context(), s, "probe")
		if err == nil || objstore.Retryable(err) || errors.Is(err, objstore.ErrUnknown) || errors.Is(err, objstore.ErrDenied) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("a server that ignores %s: %v", c.want, err)
			continue
		}
		t.Log(err)
	}
}

// gone: a missing bucket is the operator's matter. Taken for a missing object it would be a lost segment, or one never written.
func (r Remote) gone(t *testing.T) {
	s := r.Gone(t)
	t.Cleanup(func() { s.Close() })
	ctx := t.Context()
	ops := map[string]func(context.Context) error{
		"put": func(ctx context.Context) error {
			_, err := s.Put(ctx, "k", []byte("v"), nil, objstore.IfAbsent())
			return err
		},
		"replace": func(ctx context.Context) error {
			_, err := s.Put(ctx, "k", []byte("v"), nil, objstore.IfMatch("1"))
			return err
		},
		"get": func(ctx context.Context) error { _, _, err := s.Get(ctx, "k", objstore.Whole); return err },
		"part": func(ctx context.Context) error {
			_, _, err := s.Get(ctx, "k", objstore.Range{Offset: 1, Length: 2})
			return err
		},
		"head":   func(ctx context.Context) error { _, err := s.Head(ctx, "k"); return err },
		"list":   func(ctx context.Context) error { _, err := s.List(ctx, "", "", 0); return err },
		"delete": func(ctx context.Context) error { return s.Delete(ctx, "k") },
	}
	if r.HeadIsMute {
		delete(ops, "head")
	}
	for name, do := range ops {
		err := do(ctx)
		if !errors.Is(err, objstore.ErrDenied) {
			t.Errorf("%s without a bucket: %v, want %v", name, err, objstore.ErrDenied)
			continue
		}
		t.Logf("%s: %v", name, err)
	}
	if err := objstore.Probe(ctx, s, "probe"); !errors.Is(err, objstore.ErrDenied) {
		t.Errorf("Probe without a bucket: %v", err)
	}
}
