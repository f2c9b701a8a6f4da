// Package remote is what backends have in common that reach their store over HTTP through somebody else's SDK: whether a request
// was sent, and a body that is not taken for complete before its end.
package remote

import (
	"context"
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

// Limits of the HTTP client. A request as a whole is bounded by its context.
const (
	DialTimeout   = 5 * time.Second
	HeaderTimeout = 30 * time.Second
	IdleTimeout   = 90 * time.Second
	Connections   = 256 // per host
)

// NewTransport returns a transport with these limits. It takes proxies from the environment. It speaks HTTP/1.1: over HTTP/2 all
// requests to a host would share one connection, and many connections carry more.
func NewTransport() *http.Transport {
	d := &net.Dialer{Timeout: DialTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: d.DialContext,
		MaxIdleConns: Connections, MaxIdleConnsPerHost: Connections, MaxConnsPerHost: Connections, IdleConnTimeout: IdleTimeout,
		TLSHandshakeTimeout: DialTimeout, ResponseHeaderTimeout: HeaderTimeout, ExpectContinueTimeout: time.Second, DisableCompression: true,
	}
}

// NoRedirect is an http.Client's CheckRedirect: credentials are not taken to another place.
func NoRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Fate is what is known about the requests under one context of Track. Its methods may be called concurrently.
type Fate struct {
	sent     atomic.Bool
	requests atomic.Int64
	most     int64 // 0 is no bound
	mu       sync.Mutex
	last     string
}

// Sent reports whether a request got a connection. If none did, it certainly was not applied: no route, no name, no credentials.
func (f *Fate) Sent() bool { return f.sent.Load() }

// NotFound returns the beginning of the body of the last answer with status 404, which says whether it is the object or the bucket that
// is missing. SDKs do not all pass it on.
func (f *Fate) NotFound() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

type fateKey struct{}

// Track returns a context whose requests are watched, if they go through a Tracker.
func Track(ctx context.Context) (context.Context, *Fate) { return TrackAtMost(ctx, 0) }

// TrackAtMost is Track for an SDK that repeats by itself without a bound: from the most+1st on, requests fail with an error that is not sent
// again.
func TrackAtMost(ctx context.Context, most int) (context.Context, *Fate) {
	f := &Fate{most: int64(most)}
	return context.WithValue(ctx, fateKey{}, f), f
}

// Tracker is the transport below everything that an SDK adds, so that it sees the store's requests and no others: a token that is
// fetched first has another client.
type Tracker struct{ Base http.RoundTripper }

// notFoundBytes bounds what Fate.NotFound keeps.
const notFoundBytes = 1024

// RoundTrip implements http.RoundTripper.
func (t Tracker) RoundTrip(req *http.Request) (*http.Response, error) {
	f, ok := req.Context().Value(fateKey{}).(*Fate)
	if !ok {
		return t.Base.RoundTrip(req)
	}
	if n := f.requests.Add(1); f.most > 0 && n > f.most {
		return nil, fmt.Errorf("%d requests for one read were cut short, no more are made", f.most)
	}
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { f.sent.Store(true) }}
	resp, err := t.Base.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	if err == nil && resp.StatusCode == http.StatusNotFound {
		head, _ := io.ReadAll(io.LimitReader(resp.Body, notFoundBytes)) // a cut answer says less, and is still a 404
		f.mu.Lock()
		f.last = string(head)
		f.mu.Unlock()
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(strings.NewReader(string(head)), resp.Body), resp.Body}
	}
	return resp, err
}

// CloseIdleConnections is called by http.Client's.
func (t Tracker) CloseIdleConnections() {
	if c, ok := t.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Body makes sure that a cut reply is no end: its errors are *objstore.Error of kind ErrUnavailable.
type Body struct {
	store, key string
	r          io.ReadCloser
	left       int64
}

// NewBody returns a reader of exactly want bytes of r, which it closes.
func NewBody(store, key string, r io.ReadCloser, want int64) *Body {
	return &Body{store: store, key: key, r: r, left: want}
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.left -= int64(n)
	switch {
	case err == nil && b.left >= 0, err == io.EOF && b.left == 0:
		return n, err
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	case err == nil:
		err = fmt.Errorf("more bytes than announced")
	}
	return n, &objstore.Error{Store: b.store, Op: "get", Key: b.key, Kind: objstore.ErrUnavailable, Err: err}
}

// Close implements io.Closer.
func (b *Body) Close() error { return b.r.Close() }

// Arrived checks the part of an object of size bytes that a server sent, [from, to), against the range that was asked for. A server
// that ignores ranges sends all, and that would be read as other bytes. kind is the error's kind for an objstore.Error.
func Arrived(r objstore.Range, from, to, size int64) (kind, err error) {
	lo, hi, ok := r.Resolve(size)
	switch {
	case !ok:
		return objstore.ErrInvalid, fmt.Errorf("the range begins at %d, behind the end of an object of %d bytes", r.Offset, size)
	case from != lo || to != hi:
		return objstore.ErrUnavailable, fmt.Errorf("the server did not answer with the range that was asked for: bytes %d to %d of %d, but %d to %d", lo, hi, size, from, to)
	}
	return nil, nil
}

// ContentRange parses the header "bytes 0-9/100" as [from, to) of size. There are servers that call the part behind the end
// "bytes 100-99/100" instead of refusing it.
func ContentRange(h string) (from, to, size int64, err error) {
	var last int64
	if n, e := fmt.Sscanf(h, "bytes %d-%d/%d", &from, &last, &size); n != 3 || e != nil || from < 0 || last < from-1 || size <= last {
		return 0, 0, 0, fmt.Errorf("the server did not answer with the range that was asked for: Content-Range is %q", h)
	}
	return from, last + 1, size, nil
}
