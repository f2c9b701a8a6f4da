package httpstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/objstore"
)

// request is one operation, independent of the node that serves it.
type request struct {
	op, key string // for errors
	method  string
	path    string // behind Path, escaped, with the query
	header  http.Header
	body    *sharedBody // nil for none
	write   bool
	// accept, if not nil, reads the answer; its error makes the next node be tried. Reads only.
	accept func(*answer) error
}

// failure is why one node gave no answer.
type failure struct {
	node *node
	kind error // of objstore
	err  error
	// next says that another node may be tried: the request is a read, or certainly not applied.
	next bool
}

var (
	errNoReply = errors.New("no answer in time")
	errStalled = errors.New("the body stalled")
)

// send tries the nodes in turn. The answer is a success and carries the store's header.
func (s *Store) send(ctx context.Context, r request) (*answer, error) {
	first := int(s.preferred.Load())
	var failures []*failure
	for i := range s.nodes {
		n := s.nodes[(first+i)%len(s.nodes)]
		a, f := s.try(ctx, n, r)
		if f == nil {
			return a, nil
		}
		failures = append(failures, f)
		if f.next {
			s.avoid(n)
		}
		if ctx.Err() != nil {
			if !errors.Is(f.err, ctx.Err()) { // it may say so already
				f.err = fmt.Errorf("%w (%w)", f.err, ctx.Err())
			}
			break
		}
		if !f.next {
			break
		}
	}
	// The last one decides: all before it were certain not to have applied anything.
	last := failures[len(failures)-1]
	cause := fmt.Errorf("node %s: %w", last.node.base, last.err)
	for _, f := range failures[:len(failures)-1] {
		cause = fmt.Errorf("%w; before that node %s: %w", cause, f.node.base, f.err)
	}
	return nil, s.err(r.op, r.key, last.kind, cause)
}

// avoid lets the next request begin behind n, unless another request has moved on already.
func (s *Store) avoid(n *node) {
	s.preferred.CompareAndSwap(int64(n.index), int64((n.index+1)%len(s.nodes)))
}

func (s *Store) try(ctx context.Context, n *node, r request) (*answer, *failure) {
	t, f := s.protocol(ctx, n)
	if f != nil {
		return nil, f
	}
	timeout := s.o.RequestTimeout
	if r.body != nil {
		timeout += time.Duration(len(r.body.bytes)>>20) * time.Second
	}
	a, sent, err := s.roundTrip(ctx, t, n, r, timeout)
	if err != nil {
		f := &failure{node: n, kind: objstore.ErrUnavailable, err: err, next: true}
		n.protocol.Store(protocolUnknown)
		if sent && r.write {
			// Not another try, whatever its condition: this one may be applied, or be about to be.
			s.avoid(n)
			f.kind, f.next = objstore.ErrUnknown, false
		}
		return nil, f
	}
	if f := a.verdict(r.write); f != nil {
		f.node = n
		a.Close()
		return nil, f
	}
	if r.accept != nil {
		if err := r.accept(a); err != nil {
			a.Close()
			return nil, &failure{node: n, kind: objstore.ErrUnavailable, err: a.malformed(err), next: true}
		}
	}
	return a, nil
}

// protocol returns the transport for n. A node that is new or has failed is asked by a HEAD that touches
// no object: whether a failed HTTP/2 preface was all that went wrong could not be told of a write.
func (s *Store) protocol(ctx context.Context, n *node) (*http.Transport, *failure) {
	if n.secure {
		return s.tls, nil
	}
	switch n.protocol.Load() {
	case protocolHTTP1:
		return s.http1, nil
	case protocolHTTP2:
		return s.http2, nil
	}
	var err error
	for _, p := range []struct {
		is int32
		t  *http.Transport
	}{{protocolHTTP2, s.http2}, {protocolHTTP1, s.http1}} {
		var a *answer
		a, _, err = s.roundTrip(ctx, p.t, n, request{method: http.MethodHead}, s.o.DialTimeout)
		if err == nil {
			a.Close()
			n.protocol.Store(p.is)
			return p.t, nil
		}
		// Where nobody listens, or somebody does and is silent, the older protocol helps no more.
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" || errors.Is(err, errNoReply) || ctx.Err() != nil {
			break
		}
	}
	return nil, &failure{node: n, kind: objstore.ErrUnavailable, err: err, next: true}
}

// roundTrip sends r to n and waits for the answer's head. On an error, sent says whether a part of the request may have left.
func (s *Store) roundTrip(ctx context.Context, t *http.Transport, n *node, r request, timeout time.Duration) (a *answer, sent bool, err error) {
	tryCtx, cancel := context.WithCancelCause(ctx)
	// A connection in hand counts as sent. Later signs of the trace come from other goroutines
	// and can still be on their way when the transport has given up.
	var gotConn atomic.Bool
	traced := httptrace.WithClientTrace(tryCtx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { gotConn.Store(true) }})
	req, err := http.NewRequestWithContext(traced, r.method, n.base+Path+r.path, nil)
	if err != nil {
		cancel(nil)
		return nil, false, err
	}
	if r.header != nil {
		req.Header = r.header.Clone()
	}
	if r.body != nil && len(r.body.bytes) > 0 {
		// No GetBody: with it the transport would send again a request that an HTTP/2 peer has reset.
		req.Body = r.body.reader()
		req.ContentLength = int64(len(r.body.bytes))
		if req.ContentLength > expectBytes {
			req.Header.Set("Expect", "100-continue")
		}
	}
	timer := time.AfterFunc(timeout, func() { cancel(fmt.Errorf("%w (%v)", errNoReply, timeout)) })
	resp, err := t.RoundTrip(req)
	timer.Stop()
	if err != nil {
		if cause := context.Cause(tryCtx); errors.Is(cause, errNoReply) {
			err = cause
		}
		cancel(nil)
		return nil, gotConn.Load(), err
	}
	a = &answer{s: s, n: n, resp: resp, ctx: tryCtx, cancel: cancel}
	a.timer = time.AfterFunc(time.Hour, func() { cancel(fmt.Errorf("%w for %v", errStalled, s.o.IdleTimeout)) })
	a.timer.Stop()
	return a, true, nil
}

// expectBytes: a longer body waits until the node has accepted its head, so that a refusal is not lost in
// the reset of a connection whose bytes nobody reads.
const expectBytes = 256 << 10

// answer is a response whose head has arrived. Its reader is an io.Reader with a deadline on progress.
type answer struct {
	s      *Store
	n      *node
	resp   *http.Response
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// Read waits at most IdleTimeout. The time between two calls does not count.
func (a *answer) Read(p []byte) (int, error) {
	a.timer.Reset(a.s.o.IdleTimeout)
	n, err := a.resp.Body.Read(p)
	a.timer.Stop()
	if err != nil && err != io.EOF {
		if cause := context.Cause(a.ctx); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (a *answer) readAll(limit int) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(a, int64(limit)+1))
	if err == nil && len(text) > limit {
		err = fmt.Errorf("the answer is longer than %d bytes", limit)
	}
	return text, err
}

// Close gives the connection back if the body was read to its end, and drops it otherwise.
func (a *answer) Close() {
	a.timer.Stop()
	a.resp.Body.Close()
	a.cancel(nil)
	if a.s.closed.Load() {
		a.s.closeIdle()
	}
}

func (a *answer) malformed(err error) error {
	return fmt.Errorf("node %s: malformed answer with status %d: %w", a.n.base, a.resp.StatusCode, err)
}

// verdict returns nil for a success of the store itself.
func (a *answer) verdict(write bool) *failure {
	status := a.resp.StatusCode
	if a.resp.Header.Get(headerStore) != storeVersion {
		f := &failure{kind: objstore.ErrUnavailable, next: true, err: fmt.Errorf(
			"HTTP status %d from something that is no object store of version %s at %s; check the address and the node's version", status, storeVersion, Path)}
		switch {
		case status == http.StatusUnauthorized, status == http.StatusForbidden:
			f.kind, f.next = objstore.ErrDenied, false
		case write && (status < 400 || status >= 500 || status == http.StatusRequestTimeout):
			// A proxy that lost its server after it passed the request on answers like this.
			f.kind, f.next = objstore.ErrUnknown, false
		}
		return f
	}
	name := a.resp.Header.Get(headerError)
	if name == "" && status >= 200 && status < 300 {
		return nil
	}
	kind := kindNamed(name)
	message := a.message()
	if kind == nil {
		kind = objstore.ErrUnavailable
		if write {
			kind = objstore.ErrUnknown
		}
		message = fmt.Sprintf("HTTP status %d, error %.40q: %s", status, name, message)
	}
	return &failure{kind: kind, err: errors.New(message), next: kind == objstore.ErrUnavailable}
}

// message reads what the node says about its error; it is for people only.
func (a *answer) message() string {
	text, err := a.readAll(maxErrorBytes)
	var r errorReply
	if err != nil || json.Unmarshal(text, &r) != nil || r.Message == "" {
		return http.StatusText(a.resp.StatusCode) // a HEAD has no body
	}
	return strings.ToValidUTF8(r.Message, "?")
}

// sharedBody lends the caller's bytes to the transport and takes them back. A body that is detached before it was sent
// whole ends in an error; the announced length is then not reached, and the node applies nothing.
type sharedBody struct {
	mu       sync.Mutex
	bytes    []byte
	detached bool
}

func (b *sharedBody) detach() {
	b.mu.Lock()
	b.detached = true
	b.mu.Unlock()
}

func (b *sharedBody) reader() io.ReadCloser { return &bodyReader{b: b} }

type bodyReader struct {
	b  *sharedBody
	at int
}

var errDetached = errors.New("the request was given up")

func (r *bodyReader) Read(p []byte) (int, error) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if r.b.detached {
		return 0, errDetached
	}
	if r.at == len(r.b.bytes) {
		return 0, io.EOF
	}
	n := copy(p, r.b.bytes[r.at:])
	r.at += n
	return n, nil
}

func (r *bodyReader) Close() error { return nil }
