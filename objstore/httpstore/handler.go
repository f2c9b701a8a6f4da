package httpstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/objstore"
)

// HandlerOptions of [Handler]. The zero value is ready to use.
type HandlerOptions struct {
	// MaxPutBytes bounds the body of one PUT, which is held in memory; default 64 MiB. A larger one is ErrTooLarge.
	MaxPutBytes int64
	// MaxBufferedBytes bounds all bodies of PUTs in memory together; default 4 × MaxPutBytes. A PUT that
	// does not fit is ErrUnavailable at once.
	MaxBufferedBytes int64
	// MaxRequests bounds the requests that are served at once; default 256. More are ErrUnavailable at once.
	MaxRequests int64
	// BodyTimeout bounds the wait for the peer to send, or to take, the next 64 KiB of a body; default 30 s.
	BodyTimeout time.Duration
}

const chunkBytes = 64 << 10

// Handler serves the objects of store whose keys lie below prefix ("cluster" admits "cluster/x", not
// "cluster" itself and not "clusters/x"; "" admits all). Requests for others, and
// listings that could show others, are ErrDenied. Mount it at [Path], and not behind anything that
// strips the path. It checks no credentials: whoever reaches it can read and write below prefix.
//
// A PUT is applied only after its whole body has arrived. Requests are given up when their client
// goes away. The handler does not close the store.
func Handler(store objstore.Store, prefix string, o HandlerOptions) http.Handler {
	if o.MaxPutBytes == 0 {
		o.MaxPutBytes = 64 << 20
	}
	o.MaxPutBytes = min(o.MaxPutBytes, objstore.MaxBodyBytes)
	if o.MaxBufferedBytes == 0 {
		o.MaxBufferedBytes = 4 * o.MaxPutBytes
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = 256
	}
	if o.BodyTimeout == 0 {
		o.BodyTimeout = 30 * time.Second
	}
	if prefix = strings.TrimSuffix(prefix, "/"); prefix != "" {
		prefix += "/"
	}
	return &handler{store: store, prefix: prefix, o: o,
		chunks: sync.Pool{New: func() any { return new([chunkBytes]byte) }}}
}

type handler struct {
	store    objstore.Store
	prefix   string // empty, or ends in a slash
	o        HandlerOptions
	requests atomic.Int64
	buffered atomic.Int64
	chunks   sync.Pool
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(headerStore, storeVersion)
	w.Header().Set("Cache-Control", "no-store") // a cached object would be a stale read
	if r.ContentLength != 0 {
		// Also of a request that is refused: the server reads some of its body first.
		http.NewResponseController(w).SetReadDeadline(time.Now().Add(h.o.BodyTimeout))
	}
	key, ok := strings.CutPrefix(r.URL.Path, Path)
	if !ok {
		h.refuse(w, "", objstore.ErrInvalid, fmt.Errorf("the store is served below %s", Path))
		return
	}
	if key == "" && r.Method == http.MethodHead {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	defer h.requests.Add(-1)
	if n := h.requests.Add(1); n > h.o.MaxRequests {
		h.refuse(w, key, objstore.ErrUnavailable, fmt.Errorf("overloaded: more than %d requests at once", h.o.MaxRequests))
		return
	}
	if key == "" && r.Method == http.MethodGet {
		h.list(w, r)
		return
	}
	// The key's form is checked before its prefix: "prefix/../x" has the prefix too.
	if err := objstore.CheckKey(key); err != nil {
		h.refuse(w, key, objstore.ErrInvalid, err)
		return
	}
	if !strings.HasPrefix(key, h.prefix) {
		h.refuse(w, key, objstore.ErrDenied, fmt.Errorf("this node serves only keys below %q", h.prefix))
		return
	}
	switch r.Method {
	case http.MethodGet:
		h.get(w, r, key)
	case http.MethodHead:
		info, err := h.store.Head(r.Context(), key)
		if err != nil {
			h.fail(w, err, false)
			return
		}
		setInfo(w.Header(), info)
	case http.MethodPut:
		h.put(w, r, key)
	case http.MethodDelete:
		if err := h.store.Delete(r.Context(), key); err != nil {
			h.fail(w, err, true)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		h.refuse(w, key, objstore.ErrInvalid, fmt.Errorf("method %.20q is not GET, HEAD, PUT or DELETE", r.Method))
	}
}

// refuse answers what was decided here, before the store was asked: definite, not applied.
func (h *handler) refuse(w http.ResponseWriter, key string, kind, err error) {
	h.fail(w, &objstore.Error{Store: h.store.String(), Op: "serve", Key: key, Kind: kind, Err: err}, false)
}

func (h *handler) fail(w http.ResponseWriter, err error, write bool) {
	name, status := kindOf(err, write)
	w.Header().Set(headerError, name)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(errorReply{Error: name, Message: shorten(err.Error())})
}

// shorten keeps a message within maxErrorBytes, however its bytes are quoted.
func shorten(s string) string {
	const limit = maxErrorBytes / 8
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}

func (h *handler) put(w http.ResponseWriter, r *http.Request, key string) {
	cond, err := readCondition(r.Header)
	if err != nil {
		h.refuse(w, key, objstore.ErrInvalid, err)
		return
	}
	meta, err := readMetadata(r.Header)
	if err != nil {
		h.refuse(w, key, objstore.ErrInvalid, err)
		return
	}
	n := r.ContentLength
	switch {
	case n < 0:
		h.refuse(w, key, objstore.ErrInvalid, errors.New("a PUT must announce its Content-Length"))
		return
	case n > h.o.MaxPutBytes:
		h.refuse(w, key, objstore.ErrTooLarge, fmt.Errorf("body has %d bytes, this node accepts %d", n, h.o.MaxPutBytes))
		return
	}
	// The announced length is reserved before it is allocated: many clients that announce much and
	// send nothing must not exhaust the node's memory.
	defer h.buffered.Add(-n)
	if h.buffered.Add(n) > h.o.MaxBufferedBytes {
		h.refuse(w, key, objstore.ErrUnavailable, fmt.Errorf("overloaded: bodies of more than %d bytes at once", h.o.MaxBufferedBytes))
		return
	}
	body, err := h.readBody(w, r, n)
	if err != nil {
		// A part of a body is never handed to the store.
		h.refuse(w, key, objstore.ErrUnavailable, fmt.Errorf("the body did not arrive: %w", err))
		return
	}
	info, err := h.store.Put(r.Context(), key, body, meta, cond)
	if err != nil {
		h.fail(w, err, true)
		return
	}
	setInfo(w.Header(), info)
}

// readBody reads exactly n bytes, with a deadline for each chunk.
func (h *handler) readBody(w http.ResponseWriter, r *http.Request, n int64) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	control := http.NewResponseController(w)
	body := make([]byte, n)
	for at := 0; at < len(body); {
		control.SetReadDeadline(time.Now().Add(h.o.BodyTimeout))
		m, err := io.ReadFull(r.Body, body[at:min(at+chunkBytes, len(body))])
		if at += m; err != nil {
			return nil, fmt.Errorf("%d of %d bytes came: %w", at, n, err)
		}
	}
	// Else the deadline would strike while the store works on the object. Of a body that did not come
	// it stays: the server, too, waits for the rest before it answers.
	control.SetReadDeadline(time.Time{})
	return body, nil
}

func readCondition(h http.Header) (objstore.Condition, error) {
	none, match := h.Values("If-None-Match"), h.Values("If-Match")
	switch {
	case len(none) == 0 && len(match) == 0:
		return objstore.Always(), nil
	case len(none) == 1 && len(match) == 0 && none[0] == "*":
		return objstore.IfAbsent(), nil
	case len(none) == 0 && len(match) == 1:
		etag, err := unquoteETag(match[0])
		return objstore.IfMatch(etag), err
	}
	// A condition that is not understood must not be ignored: the writer believes to be protected.
	return objstore.Condition{}, errors.New(`the condition is neither If-None-Match: * nor If-Match: "etag"`)
}

func (h *handler) get(w http.ResponseWriter, r *http.Request, key string) {
	rng, err := parseRange(r.Header.Get("Range"))
	if err != nil {
		h.refuse(w, key, objstore.ErrInvalid, err)
		return
	}
	rc, info, err := h.store.Get(r.Context(), key, rng)
	if err != nil {
		h.fail(w, err, false)
		return
	}
	defer rc.Close()
	from, to, ok := rng.Resolve(info.Size)
	if !ok {
		h.refuse(w, key, objstore.ErrInvalid, fmt.Errorf("range %+v does not fit %d bytes", rng, info.Size))
		return
	}
	head := w.Header()
	setInfo(head, info)
	head.Set(headerLength, strconv.FormatInt(to-from, 10))
	head.Set("Content-Type", "application/octet-stream")
	// No Content-Length: a body that fails in the middle ends with a trailer that says why, and
	// HTTP allows none behind a body that is shorter than announced.
	head.Set("Trailer", headerError+", "+headerMessage)
	status := http.StatusOK
	if rng != objstore.Whole {
		head.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, info.Size))
		status = http.StatusPartialContent
	}
	w.WriteHeader(status)
	if err := h.copyBody(w, rc, to-from); err != nil {
		name, _ := kindOf(err, false)
		head.Set(headerError, name)
		head.Set(headerMessage, strconv.QuoteToASCII(shorten(err.Error())))
	}
}

// copyBody sends n bytes and the end of rc, where a store reports damage. The error is the store's;
// when the peer cannot be reached it aborts the answer.
func (h *handler) copyBody(w http.ResponseWriter, rc io.Reader, n int64) error {
	control := http.NewResponseController(w)
	chunk := h.chunks.Get().(*[chunkBytes]byte)
	defer h.chunks.Put(chunk)
	var sent int64
	for {
		m, err := rc.Read(chunk[:])
		if sent += int64(m); sent > n {
			return fmt.Errorf("the store sent more than the %d bytes it announced", n)
		}
		if m > 0 {
			control.SetWriteDeadline(time.Now().Add(h.o.BodyTimeout))
			if _, err := w.Write(chunk[:m]); err != nil {
				panic(http.ErrAbortHandler) // the peer is gone, there is nobody to tell
			}
		}
		if err == nil {
			continue
		}
		control.SetWriteDeadline(time.Now().Add(h.o.BodyTimeout))
		if err := control.Flush(); err != nil {
			panic(http.ErrAbortHandler)
		}
		control.SetWriteDeadline(time.Time{}) // the connection may serve others after this
		switch {
		case err != io.EOF:
			return err
		case sent < n:
			return fmt.Errorf("the store sent %d of the %d bytes it announced", sent, n)
		}
		return nil
	}
}

func (h *handler) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	prefix := q.Get("prefix")
	if !strings.HasPrefix(prefix, h.prefix) {
		h.refuse(w, prefix, objstore.ErrDenied, fmt.Errorf("this node lists only keys below %q", h.prefix))
		return
	}
	limit, err := strconv.Atoi(q.Get("limit"))
	if err != nil {
		h.refuse(w, prefix, objstore.ErrInvalid, fmt.Errorf("limit %.20q is not a number", q.Get("limit")))
		return
	}
	page, err := h.store.List(r.Context(), prefix, q.Get("after"), limit)
	if err != nil {
		h.fail(w, err, false)
		return
	}
	reply := pageReply{Objects: make([]objectReply, len(page.Objects)), More: page.More}
	for i, o := range page.Objects {
		reply.Objects[i] = objectReply{Key: o.Key, Size: o.Size, ETag: []byte(o.ETag), Modified: o.Modified}
	}
	text, err := json.Marshal(reply)
	if err != nil {
		h.fail(w, err, false)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.Write(text)
}
