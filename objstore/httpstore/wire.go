// Package httpstore carries an object store over HTTP: [Handler] serves any objstore.Store, and [New]
// returns a Store that speaks to one or several such handlers. BtrLog's nodes serve their store this
// way to clients that know node addresses and no bucket; the conditions pass through, so everything
// above is the same code.
//
// The exchange, below [Path]:
//
//	PUT    <key>   body; If-None-Match: * | If-Match: "etag"; Btrlog-Metadata     → 200, description
//	GET    <key>   Range: bytes=a-b                                               → 200 or 206, description, body, trailer
//	HEAD   <key>                                                                  → 200, description
//	DELETE <key>                                                                  → 204
//	GET    (none)  ?prefix= &after= &limit=                                       → 200, JSON page
//	HEAD   (none)                                                                 → 204: does a store answer here?
//
// Invariants, each of which a test holds:
//
//  1. Every answer carries the header Btrlog-Store. An answer without it comes from something else (a
//     proxy, another program at the address, a node that is starting) and is never taken for a
//     verdict: above all, its 404 is not "no such object".
//  2. The kind of an error is the header Btrlog-Error, not the status; the status is for people and proxies.
//  3. The client reports ErrUnknown for every write that may have left this host and got no verdict.
//     It never sends such a write again: the second try would meet its own first one, or overwrite
//     what others wrote in between.
//  4. A body is complete only if its announced length arrived and the trailer names no error.
//  5. A body that is cut short is continued at another node only under the same ETag.
package httpstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/btrlog/btrlog/objstore"
)

// Path is where a node serves its store. It ends in a slash; the percent-encoded key follows.
const Path = "/btrlog/v1/store/"

const (
	headerStore    = "Btrlog-Store" // version of this exchange
	headerError    = "Btrlog-Error" // kind of error, as header or trailer
	headerMessage  = "Btrlog-Error-Message"
	headerMetadata = "Btrlog-Metadata" // JSON object of strings
	headerSize     = "Btrlog-Size"     // bytes of the whole object
	headerLength   = "Btrlog-Length"   // bytes of this body
	headerModified = "Btrlog-Modified" // RFC 3339 with nanoseconds; absent if the store has no clock

	storeVersion = "1"

	maxErrorBytes    = 8 << 10
	maxMetadataBytes = 64 << 10 // of the encoded header: the limit of 2048 bytes with its worst JSON quoting
	// maxPageBytes bounds a page: 1000 keys of 1024 bytes, each byte quoted as \u00XX, and their descriptions.
	maxPageBytes = objstore.MaxListLimit * (6*objstore.MaxKeyBytes + 1024)
)

// kinds maps the errors of objstore to the exchange. The names are part of the protocol.
var kinds = []struct {
	name   string
	status int
	kind   error
}{
	{"not-found", http.StatusNotFound, objstore.ErrNotFound},
	{"precondition", http.StatusPreconditionFailed, objstore.ErrPrecondition},
	{"conflict", http.StatusConflict, objstore.ErrConflict},
	{"unavailable", http.StatusServiceUnavailable, objstore.ErrUnavailable},
	{"unknown", http.StatusGatewayTimeout, objstore.ErrUnknown},
	{"damaged", http.StatusInternalServerError, objstore.ErrDamaged},
	{"invalid", http.StatusBadRequest, objstore.ErrInvalid},
	{"too-large", http.StatusRequestEntityTooLarge, objstore.ErrTooLarge},
	{"denied", http.StatusForbidden, objstore.ErrDenied},
}

// errorReply is the JSON body of an answer that is an error.
type errorReply struct {
	Error   string `json:"error"`
	Message string `json:"message"`
}

// kindOf returns the name and status of a store's error. The outermost kind decides: the cause of an
// unknown outcome can itself be of a definite kind. An error without a kind means an
// unknown outcome of a write, and no more than that a read failed.
func kindOf(err error, write bool) (name string, status int) {
	kind := objstore.ErrUnavailable
	if write {
		kind = objstore.ErrUnknown
	}
	var e *objstore.Error
	if errors.As(err, &e) {
		kind = e.Kind
	}
	for _, k := range kinds {
		if k.kind == kind {
			return k.name, k.status
		}
	}
	return kindOf(nil, write)
}

// kindNamed is the inverse; nil for a name that this version does not know.
func kindNamed(name string) error {
	for _, k := range kinds {
		if k.name == name {
			return k.kind
		}
	}
	return nil
}

// escapeKey percent-encodes everything but unreserved characters and slashes, so that no proxy
// has a reason to rewrite it.
func escapeKey(key string) string {
	return escape(key, "/")
}

func escape(s, keep string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte("-_.~", c) >= 0 || strings.IndexByte(keep, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.Write([]byte{'%', hex[c>>4], hex[c&15]})
	}
	return b.String()
}

// quoteETag makes an HTTP entity tag of an opaque ETag, which may hold any byte.
func quoteETag(etag string) string { return `"` + escape(etag, "") + `"` }

func unquoteETag(s string) (string, error) {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return "", fmt.Errorf("entity tag %.80q is not one quoted string", s)
	}
	return url.PathUnescape(s[1 : len(s)-1])
}

// setInfo writes an object's description; encoded as headers it fits HEAD as well as GET.
func setInfo(h http.Header, i objstore.Info) {
	h.Set("Etag", quoteETag(i.ETag))
	h.Set(headerSize, strconv.FormatInt(i.Size, 10))
	if !i.Modified.IsZero() {
		h.Set(headerModified, i.Modified.UTC().Format(time.RFC3339Nano))
	}
	if len(i.Metadata) != 0 {
		setMetadata(h, i.Metadata)
	}
}

func setMetadata(h http.Header, meta map[string]string) {
	text, _ := json.Marshal(meta) // a map of strings always encodes
	h.Set(headerMetadata, string(text))
}

func readMetadata(h http.Header) (map[string]string, error) {
	text := h.Get(headerMetadata)
	if text == "" {
		return nil, nil
	}
	if len(text) > maxMetadataBytes {
		return nil, fmt.Errorf("header %s has %d bytes, the limit is %d", headerMetadata, len(text), maxMetadataBytes)
	}
	var meta map[string]string
	if err := json.Unmarshal([]byte(text), &meta); err != nil {
		return nil, fmt.Errorf("header %s: %w", headerMetadata, err)
	}
	return meta, objstore.CheckMetadata(meta)
}

func readInfo(h http.Header, key string) (objstore.Info, error) {
	i := objstore.Info{Key: key}
	var err error
	if i.ETag, err = unquoteETag(h.Get("Etag")); err != nil {
		return i, err
	}
	if i.Size, err = readCount(h, headerSize); err != nil {
		return i, err
	}
	if m := h.Get(headerModified); m != "" {
		if i.Modified, err = time.Parse(time.RFC3339Nano, m); err != nil {
			return i, fmt.Errorf("header %s: %w", headerModified, err)
		}
	}
	i.Metadata, err = readMetadata(h)
	return i, err
}

func readCount(h http.Header, name string) (int64, error) {
	n, err := strconv.ParseInt(h.Get(name), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("header %s is %.40q, want a number of bytes", name, h.Get(name))
	}
	return n, nil
}

// formatRange writes a Range header; the whole object has none.
func formatRange(r objstore.Range) string {
	switch {
	case r == objstore.Whole:
		return ""
	case r.Length == 0, r.Offset+r.Length-1 < r.Offset && r.Length != 1:
		return fmt.Sprintf("bytes=%d-", r.Offset)
	}
	return fmt.Sprintf("bytes=%d-%d", r.Offset, r.Offset+r.Length-1)
}

// parseRange reads the forms that formatRange writes. Suffix ranges and lists of ranges are refused:
// no client of ours sends them, and a wrong part of an object is worse than an error.
func parseRange(s string) (objstore.Range, error) {
	if s == "" {
		return objstore.Whole, nil
	}
	bad := fmt.Errorf("range %.80q is not of the form bytes=first-last or bytes=first-", s)
	spec, ok := strings.CutPrefix(s, "bytes=")
	from, to, dash := strings.Cut(spec, "-")
	first, err := strconv.ParseInt(from, 10, 64)
	if !ok || !dash || err != nil || first < 0 {
		return objstore.Range{}, bad
	}
	if to == "" {
		return objstore.Range{Offset: first}, nil
	}
	last, err := strconv.ParseInt(to, 10, 64)
	if err != nil || last < first || last-first+1 <= 0 {
		return objstore.Range{}, bad
	}
	return objstore.Range{Offset: first, Length: last - first + 1}, nil
}

// pageReply is the JSON of a listing.
type pageReply struct {
	Objects []objectReply `json:"objects"`
	More    bool          `json:"more,omitempty"`
}

type objectReply struct {
	Key      string    `json:"key"`
	Size     int64     `json:"size"`
	ETag     []byte    `json:"etag"` // base64: an opaque ETag need not be UTF-8
	Modified time.Time `json:"modified,omitzero"`
}
