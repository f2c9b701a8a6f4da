package httpstore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/memory"
	"github.com/btrlog/btrlog/objstore/objtest"
)

// Escaped keys hold nothing that a proxy could rewrite, and come back as they were.
func TestKeyEscaping(t *testing.T) {
	for _, key := range objtest.EdgeKeys() {
		esc := escapeKey(key)
		for i := range len(esc) {
			if c := esc[i]; c != '%' && c != '/' && escape(string(c), "") != string(c) {
				t.Fatalf("key %.40q escaped to %.60q has %q", key, esc, c)
			}
		}
		r := httptest.NewRequest(http.MethodGet, Path+esc, nil)
		if got := strings.TrimPrefix(r.URL.Path, Path); got != key {
			t.Fatalf("key %.40q came back as %.40q", key, got)
		}
	}
}

func TestETagQuoting(t *testing.T) {
	for _, etag := range []string{"", "abc", `"quoted"`, `W/"weak"`, "ü\x00\n", "a%20b", "*", "0x8D4BCC2E4835CD0"} {
		got, err := unquoteETag(quoteETag(etag))
		if err != nil || got != etag {
			t.Errorf("ETag %q came back as %q, %v", etag, got, err)
		}
	}
	for _, bad := range []string{"", `"`, "abc", `W/"abc"`, `"%zz"`} {
		if got, err := unquoteETag(bad); err == nil {
			t.Errorf("entity tag %q was read as %q", bad, got)
		}
	}
}

func TestRangeHeader(t *testing.T) {
	for _, r := range []objstore.Range{objstore.Whole, {Offset: 0, Length: 1}, {Offset: 5}, {Offset: 5, Length: 1}, {Offset: 1 << 40, Length: 1 << 40}} {
		if got, err := parseRange(formatRange(r)); err != nil || got != r {
			t.Errorf("range %+v came back as %+v, %v", r, got, err)
		}
	}
	huge := objstore.Range{Offset: 10, Length: math.MaxInt64}
	if got, err := parseRange(formatRange(huge)); err != nil || got != (objstore.Range{Offset: 10}) {
		t.Errorf("range %+v became %+v, %v; want up to the end", huge, got, err)
	}
	for _, bad := range []string{"bytes=-5", "bytes=5-4", "bytes=1-2,4-5", "bytes=", "bytes=a-b", "bytes=-1-5", "items=0-1", "0-1",
		"bytes=0-9223372036854775807", "bytes=99999999999999999999-"} {
		if got, err := parseRange(bad); err == nil {
			t.Errorf("range %q was read as %+v", bad, got)
		}
	}
}

// do sends one raw request and returns status, kind and body.
func do(t *testing.T, url, method, path string, header map[string]string, body io.Reader) (int, string, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.URL.Opaque = strings.TrimPrefix(url, "http:") + path // exactly these bytes
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get(headerError), string(text)
}

// No spelling of a request reaches a key outside the prefix.
func TestPrefixCannotBeEscaped(t *testing.T) {
	m := memory.New(memory.Options{})
	for _, k := range []string{"mine/x", "mine", "mines/x", "other/x", "x"} {
		if _, err := m.Put(t.Context(), k, []byte("secret of "+k), nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
	}
	for _, prefix := range []string{"mine", "mine/"} {
		counts := faulty.New(m, faulty.Config{})
		h := Handler(counts, prefix, HandlerOptions{})
		viaMux, direct := serve(t, h, false), httptest.NewServer(h)
		defer direct.Close()
		if status, _, body := do(t, viaMux.URL, http.MethodGet, Path+"mine/x", nil, nil); status != 200 || body != "secret of mine/x" {
			t.Fatalf("the key inside: %d %q", status, body)
		}
		counts.ResetCounts()
		for _, srv := range []*httptest.Server{viaMux, direct} {
			for _, key := range []string{"other/x", "mine", "mines/x", "x", "/other/x", "mine/../other/x", "mine/%2e%2e/other/x", "mine%2f..%2fother/x",
				"mine%2F%2e%2E%2Fother%2Fx", "mine/..%2fother/x", "./other/x", "mine//../../other/x", "mine/./../other/x", "mine/..", "%6dine",
				"mine%00/../other/x", "mine/x/../../other/x", "mine\\..\\other/x", "../store/other/x", "MINE/x", "mine%252f..%252fother"} {
				for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete} {
					status, kind, body := do(t, srv.URL, method, Path+key, nil, nil)
					if status < 300 || strings.Contains(body, "secret") {
						t.Errorf("prefix %q: %s %s: %d %s %q", prefix, method, key, status, kind, body)
					}
				}
			}
			for _, q := range []string{"", "?", "?limit=5", "?prefix=&limit=5", "?prefix=mine&limit=5", "?prefix=mines/&limit=5", "?prefix=other/&limit=5",
				"?prefix=other/&prefix=mine/&limit=5"} {
				status, _, body := do(t, srv.URL, http.MethodGet, Path+q, nil, nil)
				if status != http.StatusForbidden || strings.Contains(body, "other/x") {
					t.Errorf("prefix %q: list %s: %d %q", prefix, q, status, body)
				}
			}
		}
		if n := counts.Requests(faulty.AllOps); n != 0 {
			t.Errorf("%d requests for keys outside the prefix reached the store: %v", n, counts.Counts())
		}
		s := client(t, Options{}, viaMux.URL)
		_, err := s.Put(t.Context(), "other/x", nil, nil, objstore.Always())
		isErr(t, "Put outside", err, objstore.ErrDenied)
		_, err = s.List(t.Context(), "", "", 0)
		isErr(t, "List of everything", err, objstore.ErrDenied)
		page, err := s.List(t.Context(), "mine/", "", 0)
		if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != "mine/x" {
			t.Fatalf("List inside: %+v, %v", page, err)
		}
	}
}

// A condition or header that is not understood refuses the write; ignored, it would apply it without protection.
func TestMalformedRequests(t *testing.T) {
	m := memory.New(memory.Options{})
	if _, err := m.Put(t.Context(), "k", []byte("0123456789"), nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	srv := serve(t, Handler(m, "", HandlerOptions{}), false)
	for _, h := range []map[string]string{
		{"If-None-Match": `"abc"`}, {"If-None-Match": ""}, {"If-Match": "*"}, {"If-Match": `"a", "b"x`}, {"If-Match": `W/"a"`},
		{"If-Match": `"a"`, "If-None-Match": "*"}, {headerMetadata: "{"}, {headerMetadata: `{"a":1}`}, {headerMetadata: `{"A":"b"}`},
		{headerMetadata: `{"k":"` + strings.Repeat("v", objstore.MaxMetadataBytes) + `"}`},
	} {
		if status, kind, _ := do(t, srv.URL, http.MethodPut, Path+"k", h, strings.NewReader("new")); status != 400 || kind != "invalid" {
			t.Errorf("PUT with %.60v: %d %s, want 400 invalid", h, status, kind)
		}
	}
	// Without a length there is no bound to reserve.
	if status, kind, _ := do(t, srv.URL, http.MethodPut, Path+"k", nil, io.MultiReader(strings.NewReader("new"))); status != 400 || kind != "invalid" {
		t.Errorf("PUT without Content-Length: %d %s", status, kind)
	}
	for _, rng := range []string{"bytes=-5", "bytes=1-2,4-5", "bytes=10-", "bytes=10-12", "rubbish"} {
		if status, kind, _ := do(t, srv.URL, http.MethodGet, Path+"k", map[string]string{"Range": rng}, nil); status != 400 || kind != "invalid" {
			t.Errorf("GET with range %q: %d %s, want 400 invalid", rng, status, kind)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPatch, http.MethodOptions} {
		if status, kind, _ := do(t, srv.URL, method, Path+"k", nil, nil); status != 400 || kind != "invalid" {
			t.Errorf("%s: %d %s, want 400 invalid", method, status, kind)
		}
	}
	for _, q := range []string{"?limit=x", "?limit=-1", "?limit=1001", "?limit="} {
		if status, kind, _ := do(t, srv.URL, http.MethodGet, Path+q, nil, nil); status != 400 || kind != "invalid" {
			t.Errorf("list %s: %d %s, want 400 invalid", q, status, kind)
		}
	}
	if body, _, err := objstore.ReadAll(t.Context(), m, "k", 100); err != nil || string(body) != "0123456789" {
		t.Fatalf("after refused requests the object is %q, %v", body, err)
	}
}

// The bounds refuse at once, definitely, and give back what they reserved.
func TestHandlerLimits(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		entered, release := make(chan struct{}), make(chan struct{})
		inner := &slow{Store: memory.New(memory.Options{}), entered: entered, release: release}
		h := Handler(inner, "", HandlerOptions{MaxPutBytes: 1 << 20, MaxBufferedBytes: 1<<20 + 10, MaxRequests: 2})
		s := client(t, Options{}, serve(t, h, http2).URL)
		_, err := s.Put(t.Context(), "k", make([]byte, 1<<20+1), nil, objstore.Always())
		isErr(t, "a body over the limit", err, objstore.ErrTooLarge)
		done := make(chan error, 1)
		go func() {
			_, err := s.Put(t.Context(), "slow/1", make([]byte, 1<<20), nil, objstore.Always())
			done <- err
		}()
		<-entered
		_, err = s.Put(t.Context(), "k", make([]byte, 11), nil, objstore.Always())
		isErr(t, "bodies over the limit together", err, objstore.ErrUnavailable)
		if !strings.Contains(err.Error(), "overloaded") {
			t.Fatalf("%v does not say overloaded", err)
		}
		if _, err = s.Put(t.Context(), "k", make([]byte, 10), nil, objstore.Always()); err != nil {
			t.Fatalf("a body that fits: %v", err)
		}
		done2 := make(chan error, 1)
		go func() {
			_, err := s.Put(t.Context(), "slow/2", nil, nil, objstore.Always())
			done2 <- err
		}()
		<-entered
		_, err = s.Head(t.Context(), "k")
		isErr(t, "more requests than allowed", err, objstore.ErrUnavailable)
		close(release)
		for _, c := range []chan error{done, done2} {
			if err := <-c; err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Put(t.Context(), "k", make([]byte, 1<<20), nil, objstore.Always()); err != nil {
			t.Fatalf("after the load: %v", err)
		}
		hh := h.(*handler)
		eventually(t, "reservations to be returned", func() bool { return hh.buffered.Load() == 0 && hh.requests.Load() == 0 })
	})
}

// A peer that announces a body and does not send it is dropped, and nothing is applied. The server itself would wait
// for the rest of such a body without end, refused or not.
func TestStalledUpload(t *testing.T) {
	m := memory.New(memory.Options{})
	h := Handler(m, "in", HandlerOptions{BodyTimeout: 50 * time.Millisecond})
	srv := serve(t, h, false)
	for _, key := range []string{"in/k", "out/k"} {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintf(conn, "PUT %s%s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nonly this", Path, key)
		if _, err := io.ReadAll(conn); err != nil {
			t.Fatalf("%s: the connection of a stalled upload stays open: %v", key, err)
		}
		if _, err := m.Head(t.Context(), key); err == nil {
			t.Fatal("a part of a body was stored")
		}
	}
	eventually(t, "the reservation to be returned", func() bool { return h.(*handler).buffered.Load() == 0 })
}

// What answers without the store's header is no store, whatever it says.
func TestForeignAnswers(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		for _, c := range []struct {
			status            int
			put, get          error
			otherNodeIsWanted bool
		}{
			{200, objstore.ErrUnknown, objstore.ErrUnavailable, false},
			{302, objstore.ErrUnknown, objstore.ErrUnavailable, false},
			{400, objstore.ErrUnavailable, objstore.ErrUnavailable, true},
			{401, objstore.ErrDenied, objstore.ErrDenied, false},
			{403, objstore.ErrDenied, objstore.ErrDenied, false},
			{404, objstore.ErrUnavailable, objstore.ErrUnavailable, true},
			{412, objstore.ErrUnavailable, objstore.ErrUnavailable, true},
			{502, objstore.ErrUnknown, objstore.ErrUnavailable, false},
			{504, objstore.ErrUnknown, objstore.ErrUnavailable, false},
		} {
			foreign := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", Path+"elsewhere")
				w.Header().Set("Etag", `"x"`)
				w.WriteHeader(c.status)
			})
			url := serve(t, foreign, http2).URL
			s := client(t, Options{}, url)
			_, err := s.Put(t.Context(), "k", []byte("x"), nil, objstore.IfAbsent())
			isErr(t, fmt.Sprintf("Put answered by a foreign %d", c.status), err, c.put)
			_, err = s.Head(t.Context(), "k")
			isErr(t, fmt.Sprintf("Head answered by a foreign %d", c.status), err, c.get)
			isErr(t, "Delete", s.Delete(t.Context(), "k"), c.put)
			s = client(t, Options{}, url, serve(t, Handler(memory.New(memory.Options{}), "", HandlerOptions{}), http2).URL)
			if _, err = s.Put(t.Context(), "k", []byte("x"), nil, objstore.IfAbsent()); (err == nil) != c.otherNodeIsWanted {
				t.Errorf("Put at a foreign %d and a store: %v", c.status, err)
			}
		}
	})
}

// Answers of the store that contradict themselves or the request are no answers.
func TestMalformedAnswers(t *testing.T) {
	var reply http.HandlerFunc
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(headerStore, storeVersion)
		if r.URL.Path != Path || r.Method != http.MethodHead {
			reply(w, r)
		}
	}), true)
	s := client(t, Options{}, srv.URL)
	head := func(kv ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			for i := 0; i < len(kv); i += 2 {
				w.Header().Set(kv[i], kv[i+1])
			}
		}
	}
	for _, reply = range []http.HandlerFunc{
		head(), head("Etag", "bare", headerSize, "3"), head("Etag", `"e"`), head("Etag", `"e"`, headerSize, "-1"),
		head("Etag", `"e"`, headerSize, "4"), head("Etag", `"e"`, headerSize, "3", headerModified, "yesterday"),
		head("Etag", `"e"`, headerSize, "3", headerMetadata, "{"), head(headerError, "no-such-kind"),
	} {
		_, err := s.Put(t.Context(), "k", []byte("abc"), nil, objstore.IfAbsent())
		isErr(t, "Put with a malformed answer", err, objstore.ErrUnknown)
		_, _, err = s.Get(t.Context(), "k", objstore.Range{Offset: 1, Length: 1})
		isErr(t, "Get with a malformed answer", err, objstore.ErrUnavailable)
	}
	for _, text := range []string{
		``, `{`, `[]`, `{"more":true}`, `{"objects":[{"key":"other"}]}`, `{"objects":[{"key":"p/a"}]}`, `{"objects":[{"key":"p/c"},{"key":"p/c"}]}`,
		`{"objects":[{"key":"p/c"},{"key":"p/d"},{"key":"p/e"}]}`, `{"objects":[{"key":"p/c","size":-1}]}`, `{"objects":[{"key":"p/../c"}]}`,
	} {
		reply = func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, text) }
		page, err := s.List(t.Context(), "p/", "p/b", 2)
		if err == nil {
			t.Fatalf("page %s was taken for %+v", text, page)
		}
		isErr(t, "List answered "+text, err, objstore.ErrUnavailable)
	}
}

func TestNewRefusesBadURLs(t *testing.T) {
	if _, err := New(nil, Options{}); err == nil {
		t.Error("New without nodes succeeded")
	}
	for _, u := range []string{"", "127.0.0.1:70", "ftp://h", "http://", "http:opaque", "http://user:secret@h", "http://h?q=1", "http://h#f", "http://h:port"} {
		_, err := New([]string{"http://good:1", u}, Options{})
		if err == nil || !strings.Contains(err.Error(), "node 2 of 2") || strings.Contains(err.Error(), "secret") {
			t.Errorf("New(%q): %v", u, err)
		}
	}
	s, err := New([]string{"http://a:1/", "http://b:2"}, Options{})
	if err != nil || s.String() != "http://a:1"+Path+" (and 1 more nodes)" {
		t.Errorf("%v, %v", s, err)
	}
}

// A store's URL names one node.
func TestOpenByURL(t *testing.T) {
	srv := serve(t, Handler(memory.New(memory.Options{}), "", HandlerOptions{}), true)
	s, err := objstore.Open(t.Context(), srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Put(t.Context(), "k", []byte("v"), nil, objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{"http://user:secret@h:1", "https://h:1?x=y"} {
		if _, err := objstore.Open(t.Context(), u); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%q): %v", u, err)
		}
	}
}

// Listings with arguments longer than any key need no request that long.
func TestListWithLongArguments(t *testing.T) {
	m := memory.New(memory.Options{})
	long := strings.Repeat("k", objstore.MaxKeyBytes)
	for _, k := range []string{"a", long, "z"} {
		if _, err := m.Put(t.Context(), k, []byte("x"), nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
	}
	s := client(t, Options{}, serve(t, Handler(m, "", HandlerOptions{}), true).URL)
	for _, c := range []struct{ prefix, after string }{
		{"", long}, {"", long + "k"}, {"", strings.Repeat("k", 10<<20)}, {"", long[:1023]}, {strings.Repeat("k", 10<<20), ""}, {"\xff", ""}, {"", "k\xff"},
	} {
		want, err := m.List(t.Context(), c.prefix, c.after, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.List(t.Context(), c.prefix, c.after, 0)
		if err != nil || len(got.Objects) != len(want.Objects) {
			t.Errorf("List(%.10q…, %.10q…): %d objects, %v; want %d", c.prefix, c.after, len(got.Objects), err, len(want.Objects))
		}
	}
}

// A full page of the longest keys in their worst quoting passes.
func TestLargestPage(t *testing.T) {
	m := memory.New(memory.Options{})
	for i := range objstore.MaxListLimit {
		key := fmt.Sprintf("%04d", i) + strings.Repeat("<", objstore.MaxKeyBytes-4)
		if _, err := m.Put(t.Context(), key, nil, nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
	}
	s := client(t, Options{}, serve(t, Handler(m, "", HandlerOptions{}), true).URL)
	page, err := s.List(t.Context(), "", "", 0)
	if err != nil || len(page.Objects) != objstore.MaxListLimit || page.More {
		t.Fatalf("%d objects, more %v, %v", len(page.Objects), page.More, err)
	}
}

// Metadata whose names are as many as they can be arrives whole.
func TestMostMetadata(t *testing.T) {
	both(t, func(t *testing.T, http2 bool) {
		s := client(t, Options{}, serve(t, Handler(memory.New(memory.Options{}), "", HandlerOptions{}), http2).URL)
		meta := make(map[string]string)
		for i := range objstore.MaxMetadataBytes / 4 {
			meta[fmt.Sprintf("%03x", i)] = `"`
		}
		if _, err := s.Put(t.Context(), "k", nil, meta, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		info, err := s.Head(t.Context(), "k")
		if err != nil || len(info.Metadata) != len(meta) || info.Metadata["1ff"] != `"` {
			t.Fatalf("%d entries, %v; want %d", len(info.Metadata), err, len(meta))
		}
	})
}

// slow waits inside Put, for keys below slow/.
type slow struct {
	*memory.Store
	entered, release chan struct{}
}

func (s *slow) Put(ctx context.Context, key string, body []byte, meta map[string]string, c objstore.Condition) (objstore.Info, error) {
	if strings.HasPrefix(key, "slow/") {
		s.entered <- struct{}{}
		<-s.release
	}
	return s.Store.Put(ctx, key, bytes.Clone(body), meta, c)
}
