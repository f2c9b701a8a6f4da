package httpstore

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/objstore"
)

// Options of [New]. The zero value is ready to use.
type Options struct {
	// DialTimeout bounds a connection's establishment and the first exchange on it; default 2 s.
	DialTimeout time.Duration
	// RequestTimeout bounds one try at one node, from its begin to the head of the answer; default 10 s,
	// to which one second is added for each MiB of a PUT's body. A request to n nodes that all hang takes n times as long.
	RequestTimeout time.Duration
	// IdleTimeout bounds the wait for the next bytes of an answer's body; default 10 s.
	IdleTimeout time.Duration
	// TLS is used for https URLs; nil means the system's roots.
	TLS *tls.Config
}

// maxResumes bounds how often the reader of one Get continues a body that was cut.
const maxResumes = 3

// New returns a Store that uses the handlers of the nodes at baseURLs, such as http://10.0.0.1:7070. All of them
// must serve the same store. It connects to nothing yet.
//
// Requests go to one node until it fails, then to the next in the list, beginning with the first; give clients
// different orders to spread their load. A read is tried once at every node. So is a write as long
// as it is certain that no earlier node has applied it; otherwise it is ErrUnknown.
// Over http it speaks HTTP/2 without TLS to nodes that can, HTTP/1.1 to others. It does not use proxies
// and does not follow redirects.
//
// The limits of the nodes' handlers apply ([HandlerOptions]). All methods may be called concurrently. Readers must
// be closed before the Store is.
func New(baseURLs []string, o Options) (objstore.Store, error) {
	if len(baseURLs) == 0 {
		return nil, errors.New("httpstore: no node given; name at least one, for example http://10.0.0.1:7070")
	}
	if o.DialTimeout == 0 {
		o.DialTimeout = 2 * time.Second
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = 10 * time.Second
	}
	if o.IdleTimeout == 0 {
		o.IdleTimeout = 10 * time.Second
	}
	s := &Store{o: o}
	s.dialer.Dialer = net.Dialer{Timeout: o.DialTimeout, KeepAlive: 15 * time.Second}
	for i, b := range baseURLs {
		base, err := checkBase(b)
		if err != nil {
			return nil, fmt.Errorf("httpstore: node %d of %d: %w", i+1, len(baseURLs), err)
		}
		s.nodes = append(s.nodes, &node{index: i, base: base, secure: strings.HasPrefix(base, "https:")})
	}
	s.name = s.nodes[0].base + Path
	if n := len(s.nodes) - 1; n > 0 {
		s.name += fmt.Sprintf(" (and %d more nodes)", n)
	}
	s.http1 = s.transport(func(p *http.Protocols) { p.SetHTTP1(true) })
	s.http2 = s.transport(func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) })
	s.tls = s.transport(func(p *http.Protocols) { p.SetHTTP1(true); p.SetHTTP2(true) })
	return s, nil
}

// checkBase does not repeat the URL in its errors: it may carry credentials.
func checkBase(raw string) (string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.Opaque != "":
		return "", errors.New("the URL is not of the form http://host:port")
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return "", errors.New("the URL has a user, query or fragment; give http://host:port alone")
	}
	return strings.TrimSuffix(u.Scheme+"://"+u.Host+u.EscapedPath(), "/"), nil
}

// Store is the client; see [New].
type Store struct {
	name  string
	o     Options
	nodes []*node
	// preferred is the index of the node that the next request begins with.
	preferred         atomic.Int64
	http1, http2, tls *http.Transport
	dialer            Dialer
	closed            atomic.Bool
}

type node struct {
	index  int
	base   string // no slash at its end
	secure bool
	// protocol is found by the first request and forgotten at each failure: the program at the address
	// may be another one when it returns.
	protocol atomic.Int32
}

const (
	protocolUnknown = iota
	protocolHTTP1
	protocolHTTP2
)

func (s *Store) transport(set func(*http.Protocols)) *http.Transport {
	p := new(http.Protocols)
	set(p)
	return &http.Transport{
		DialContext:            s.dialer.DialContext,
		TLSHandshakeTimeout:    s.o.DialTimeout,
		TLSClientConfig:        s.o.TLS,
		Protocols:              p,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        time.Minute,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 2 * maxMetadataBytes,
		// Many requests share a connection; a dead one must not take all of them into their timeouts.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second, WriteByteTimeout: 10 * time.Second},
	}
}

// String names the first node.
func (s *Store) String() string { return s.name }

// Close closes all connections.
func (s *Store) Close() error {
	s.closed.Store(true)
	s.closeIdle()
	s.dialer.CloseAll()
	return nil
}

// Connections returns how many TCP connections are open.
func (s *Store) Connections() int { return s.dialer.Open() }

func (s *Store) closeIdle() {
	s.http1.CloseIdleConnections()
	s.http2.CloseIdleConnections()
	s.tls.CloseIdleConnections()
}

func (s *Store) err(op, key string, kind, cause error) error {
	return &objstore.Error{Store: s.name, Op: op, Key: key, Kind: kind, Err: cause}
}

func (s *Store) check(ctx context.Context, op, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return s.err(op, key, objstore.ErrInvalid, err)
	}
	return objstore.CheckContext(ctx, s.name, op, key)
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	if err := objstore.CheckPut(s.name, key, body, meta); err != nil {
		return objstore.Info{}, err
	}
	if err := objstore.CheckContext(ctx, s.name, "put", key); err != nil {
		return objstore.Info{}, err
	}
	h := make(http.Header)
	if len(meta) != 0 {
		setMetadata(h, meta)
	}
	if etag, ok := cond.Match(); ok {
		h.Set("If-Match", quoteETag(etag))
	} else if cond.IsIfAbsent() {
		h.Set("If-None-Match", "*")
	}
	b := &sharedBody{bytes: body}
	// The transport may still read the body after it gave up; the caller may overwrite it by then.
	defer b.detach()
	a, err := s.send(ctx, request{op: "put", key: key, method: http.MethodPut, path: escapeKey(key), header: h, body: b, write: true})
	if err != nil {
		return objstore.Info{}, err
	}
	defer a.Close()
	info, err := readInfo(a.resp.Header, key)
	if err == nil && info.Size != int64(len(body)) {
		err = fmt.Errorf("%d bytes are stored, %d were sent", info.Size, len(body))
	}
	if err != nil {
		return objstore.Info{}, s.err("put", key, objstore.ErrUnknown, a.malformed(err))
	}
	return info, nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.check(ctx, "delete", key); err != nil {
		return err
	}
	a, err := s.send(ctx, request{op: "delete", key: key, method: http.MethodDelete, path: escapeKey(key), write: true})
	if err == nil {
		a.Close()
	}
	return err
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := s.check(ctx, "head", key); err != nil {
		return objstore.Info{}, err
	}
	a, err := s.send(ctx, request{op: "head", key: key, method: http.MethodHead, path: escapeKey(key)})
	if err != nil {
		return objstore.Info{}, err
	}
	defer a.Close()
	info, err := readInfo(a.resp.Header, key)
	if err != nil {
		return objstore.Info{}, s.err("head", key, objstore.ErrUnavailable, a.malformed(err))
	}
	return info, nil
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	limit, err := objstore.CheckList(s.name, prefix, limit)
	if err != nil {
		return objstore.Page{}, err
	}
	if err := objstore.CheckContext(ctx, s.name, "list", prefix); err != nil {
		return objstore.Page{}, err
	}
	if len(prefix) > objstore.MaxKeyBytes {
		return objstore.Page{}, nil // no key is that long
	}
	// Bytes behind the longest possible key decide no comparison with one.
	startAfter = startAfter[:min(len(startAfter), objstore.MaxKeyBytes+1)]
	query := "?prefix=" + escape(prefix, "") + "&after=" + escape(startAfter, "") + "&limit=" + strconv.Itoa(limit)
	var page objstore.Page
	a, err := s.send(ctx, request{op: "list", key: prefix, method: http.MethodGet, path: query, accept: func(a *answer) (err error) {
		page, err = readPage(a, prefix, startAfter, limit)
		return err
	}})
	if err != nil {
		return objstore.Page{}, err
	}
	a.Close()
	return page, nil
}

// readPage checks the page against the request: a listing that skips or repeats keys without a
// sign of it would make a log look shorter than it is.
func readPage(a *answer, prefix, after string, limit int) (objstore.Page, error) {
	text, err := a.readAll(maxPageBytes)
	if err != nil {
		return objstore.Page{}, err
	}
	var r pageReply
	if err := json.Unmarshal(text, &r); err != nil {
		return objstore.Page{}, err
	}
	if len(r.Objects) > limit || r.More && len(r.Objects) == 0 {
		return objstore.Page{}, fmt.Errorf("a page of %d objects for a limit of %d, more: %v", len(r.Objects), limit, r.More)
	}
	page := objstore.Page{More: r.More}
	for _, o := range r.Objects {
		if err := objstore.CheckKey(o.Key); err != nil {
			return objstore.Page{}, err
		}
		if !strings.HasPrefix(o.Key, prefix) || o.Key <= after || o.Size < 0 {
			return objstore.Page{}, fmt.Errorf("%q of %d bytes does not belong behind %q in a listing of %q", o.Key, o.Size, after, prefix)
		}
		after = o.Key
		page.Objects = append(page.Objects, objstore.Info{Key: o.Key, Size: o.Size, ETag: string(o.ETag), Modified: o.Modified})
	}
	return page, nil
}
