package gcs

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/oauth2"
	"google.golang.org/api/option"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/objtest"
	"github.com/btrlog/btrlog/objstore/remote"
)

var buckets atomic.Int64

// server returns options for a bucket on the server that BTRLOG_GCS_URL names, one of its own for each call: the URL's with a number.
// `make test-gcs` starts a server and sets the variable.
func server(t *testing.T) (Options, bool) {
	t.Helper()
	raw := os.Getenv("BTRLOG_GCS_URL")
	if raw == "" {
		t.Log("BTRLOG_GCS_URL is not set: no real server is tested; make test-gcs starts one")
		return Options{}, false
	}
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return Options{Bucket: fmt.Sprintf("%s-%d-%d", u.Host, time.Now().UnixNano(), buckets.Add(1)), Endpoint: u.Query().Get("endpoint")}, true
}

func mustNew(t *testing.T, o Options) *store {
	t.Helper()
	s, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.(*store)
}

// create makes the bucket of o, and leaves it and its objects behind.
func create(t *testing.T, o Options) {
	t.Helper()
	o.Transport = nil
	if err := mustNew(t, o).bucket.Create(t.Context(), "test", nil); err != nil {
		t.Fatal(err)
	}
}

func TestRealServer(t *testing.T) {
	o, ok := server(t)
	if !ok {
		return
	}
	for _, prefix := range []string{"", "some/prefix"} {
		l := objtest.Limits{Refuses: func(k string) bool { return len(prefix)+1+len(k) > objstore.MaxKeyBytes && prefix != "" }}
		t.Run("prefix="+prefix, func(t *testing.T) {
			objtest.RunLimited(t, l, func(t *testing.T) objstore.Store {
				o, _ := server(t)
				o.Prefix = prefix
				create(t, o)
				s, err := New(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				return s
			})
		})
	}
	objtest.RunRemote(t, objtest.Remote{
		Open: func(t *testing.T, around func(http.RoundTripper) http.RoundTripper) objstore.Store {
			o, _ := server(t)
			create(t, o)
			o.Transport = around(remote.NewTransport())
			return mustNew(t, o)
		},
		Deaf: func(req *http.Request, absent, match bool) {
			q := req.URL.Query()
			if g := q.Get("ifGenerationMatch"); g != "" && (g == "0" && absent || g != "0" && match) {
				q.Del("ifGenerationMatch")
				req.URL.RawQuery = q.Encode()
			}
		},
		Gone: func(t *testing.T) objstore.Store { return mustNew(t, o) },
	})
}

// TestBucketForNodes makes the bucket that BTRLOG_GCS_NODES_URL names, for the test of the program that runs after this one.
func TestBucketForNodes(t *testing.T) {
	raw := os.Getenv("BTRLOG_GCS_NODES_URL")
	if raw == "" {
		t.Log("BTRLOG_GCS_NODES_URL is not set: there is none to make")
		return
	}
	s, err := objstore.Open(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.(*store).bucket.Create(t.Context(), "test", nil); err != nil {
		t.Fatal(err)
	}
}

// Bodies of errors as Google sends them.
const (
	noObjectXML  = `<?xml version='1.0' encoding='UTF-8'?><Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message><Details>No such object: logs/k</Details></Error>`
	noBucketXML  = `<?xml version='1.0' encoding='UTF-8'?><Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist.</Message></Error>`
	badRangeXML  = `<?xml version='1.0' encoding='UTF-8'?><Error><Code>InvalidRange</Code><Message>The requested range cannot be satisfied.</Message></Error>`
	noObjectJSON = `{"error":{"code":404,"message":"No such object: logs/k","errors":[{"message":"No such object: logs/k","domain":"global","reason":"notFound"}]}}`
	noBucketJSON = `{"error":{"code":404,"message":"The specified bucket does not exist.","errors":[{"message":"The specified bucket does not exist.","domain":"global","reason":"notFound"}]}}`
)

func jsonError(code int, reason string) string {
	return fmt.Sprintf(`{"error":{"code":%d,"message":"test","errors":[{"message":"test","domain":"global","reason":"%s"}]}}`, code, reason)
}

func TestOutcomes(t *testing.T) {
	type answer struct {
		status int
		body   string
	}
	var next atomic.Value
	var requests atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		a := next.Load().(answer)
		if a.status == 0 { // the reply is lost
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(a.status)
		fmt.Fprint(w, a.body)
	}))
	defer srv.Close()
	s := mustNew(t, Options{Bucket: "logs", Endpoint: srv.URL})
	put := func(c objstore.Condition) func() error {
		return func() error { _, err := s.Put(t.Context(), "k", []byte("v"), nil, c); return err }
	}
	get := func() error { _, _, err := s.Get(t.Context(), "k", objstore.Whole); return err }
	head := func() error { _, err := s.Head(t.Context(), "k"); return err }
	list := func() error { _, err := s.List(t.Context(), "", "", 0); return err }
	del := func() error { return s.Delete(t.Context(), "k") }
	create, replace := put(objstore.IfAbsent()), put(objstore.IfMatch("17"))
	for _, c := range []struct {
		what   string
		status int
		body   string
		do     func() error
		want   error
		says   string
	}{
		{"create, taken", 412, jsonError(412, "conditionNotMet"), create, objstore.ErrPrecondition, "conditionNotMet"},
		{"replace, replaced meanwhile", 412, jsonError(412, "conditionNotMet"), replace, objstore.ErrPrecondition, "conditionNotMet"},
		{"create, conflict in flight", 409, jsonError(409, "conflict"), create, objstore.ErrConflict, "conflict"},
		{"replace, written too often", 429, jsonError(429, "rateLimitExceeded"), replace, objstore.ErrUnavailable, "rateLimitExceeded"},
		{"create, no bucket", 404, noBucketJSON, create, objstore.ErrDenied, "bucket"},
		{"replace, no bucket", 404, noBucketJSON, replace, objstore.ErrDenied, "bucket"},
		{"create, backend error", 503, jsonError(503, "backendError"), create, objstore.ErrUnknown, "backendError"},
		{"create, internal error", 500, jsonError(500, "backendError"), create, objstore.ErrUnknown, "500"},
		{"create, bad gateway", 502, "<html>", create, objstore.ErrUnknown, "502"},
		{"create, upload broken", 408, "", create, objstore.ErrUnknown, "408"},
		{"create, reply lost", 0, "", create, objstore.ErrUnknown, ""},
		{"create, an answer that says nothing", 200, "{}", create, objstore.ErrUnknown, "does not describe"},
		{"create, denied", 403, jsonError(403, "forbidden"), create, objstore.ErrDenied, "forbidden"},
		{"create, kept by a retention policy", 403, jsonError(403, "retentionPolicyNotMet"), replace, objstore.ErrDenied, "retentionPolicyNotMet"},
		{"create, too large", 413, jsonError(413, "uploadTooLarge"), create, objstore.ErrTooLarge, "uploadTooLarge"},
		{"create, invalid", 400, jsonError(400, "invalid"), create, objstore.ErrInvalid, "invalid"},
		{"delete, reply lost", 0, "", del, objstore.ErrUnknown, ""},
		{"delete, no bucket", 404, noBucketJSON, del, objstore.ErrDenied, "bucket"},
		{"delete, absent", 404, noObjectJSON, del, nil, ""},
		{"get, absent", 404, noObjectXML, get, objstore.ErrNotFound, ""},
		{"get, no bucket", 404, noBucketXML, get, objstore.ErrDenied, "bucket"},
		{"get, denied", 403, "", get, objstore.ErrDenied, "403"},
		{"get, absent, in other words", 404, "nothing here", get, objstore.ErrDenied, "bucket"}, // the bucket is asked for, and it is absent too
		{"get, behind the end", 416, badRangeXML, get, objstore.ErrInvalid, "InvalidRange"},
		{"get, other endpoint", 301, "", get, objstore.ErrDenied, "endpoint"},
		{"get, internal error", 500, "", get, objstore.ErrUnavailable, "500"},
		{"get, reply lost", 0, "", get, objstore.ErrUnavailable, ""},
		{"head, absent", 404, noObjectJSON, head, objstore.ErrNotFound, ""},
		{"head, no bucket", 404, noBucketJSON, head, objstore.ErrDenied, "bucket"},
		{"list, no bucket", 404, noBucketJSON, list, objstore.ErrDenied, "bucket"},
		{"list, throttled", 429, jsonError(429, "rateLimitExceeded"), list, objstore.ErrUnavailable, "rateLimitExceeded"},
	} {
		next.Store(answer{c.status, c.body})
		before := requests.Load()
		err := c.do()
		var e *objstore.Error
		switch n := requests.Load() - before; {
		case err == nil && c.want == nil:
		case !errors.As(err, &e) || e.Kind != c.want:
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		case (e.Op == "put" || e.Op == "delete") && n != 1:
			t.Errorf("%s: %d requests; a write must be tried once", c.what, n)
		case !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "alt=json"):
			t.Errorf("%s: the message does not say %q, or too much: %v", c.what, c.says, err)
		}
	}
}

// TestGenerations: an ETag is a generation and nothing else. 0 is Google's word for "there is no object".
func TestGenerations(t *testing.T) {
	for etag, want := range map[string]int64{"1": 1, "1700000000000000": 1700000000000000, "0": math.MaxInt64, "-1": math.MaxInt64, "": math.MaxInt64,
		"*": math.MaxInt64, "d41d8cd98f00b204e9800998ecf8427e": math.MaxInt64, "99999999999999999999": math.MaxInt64} {
		if got := generation(etag); got != want {
			t.Errorf("%q: %d, want %d", etag, got, want)
		}
	}
}

// TestIgnoredRange: a server that sends the whole object when a part is asked for.
func TestIgnoredRange(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Goog-Generation", "17")
		fmt.Fprint(w, "0123456789")
	}))
	defer srv.Close()
	s := mustNew(t, Options{Bucket: "logs", Endpoint: srv.URL})
	for _, r := range []objstore.Range{{Offset: 0, Length: 2}, {Offset: 3, Length: 2}, {Offset: 3}} {
		if _, _, err := s.Get(t.Context(), "k", r); !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// TestList: a server with short pages, one without order.
func TestList(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Pages of two, whatever was asked for, and an empty one before the end; startOffset is ignored.
		var from int
		_, _ = fmt.Sscan(r.URL.Query().Get("pageToken"), &from)
		var items []string
		for _, n := range names[from:min(from+2, len(names))] {
			items = append(items, fmt.Sprintf(`{"name":"%s","size":"1","generation":"17"}`, n))
		}
		next := ""
		if from < len(names) {
			next = fmt.Sprintf(`,"nextPageToken":"%d"`, min(from+2, len(names)))
		}
		fmt.Fprintf(w, `{"items":[%s]%s}`, strings.Join(items, ","), next)
	}))
	defer srv.Close()
	s := mustNew(t, Options{Bucket: "logs", Endpoint: srv.URL})
	for _, c := range []struct {
		after string
		limit int
		want  string
		more  bool
	}{{"", 0, "abcd", false}, {"", 3, "abc", true}, {"b", 0, "cd", false}, {"bb", 1, "c", true}, {"c", 2, "d", false}, {"d", 0, "", false}} {
		page, err := s.List(t.Context(), "", c.after, c.limit)
		got := ""
		for _, o := range page.Objects {
			got += o.Key
		}
		if got != c.want || page.More != c.more || err != nil {
			t.Errorf("after %q at most %d: %q, more %v, %v; want %q, %v", c.after, c.limit, got, page.More, err, c.want, c.more)
		}
	}
	names = []string{"b", "a"}
	if _, err := s.List(t.Context(), "", "", 0); !errors.Is(err, objstore.ErrDenied) || !strings.Contains(err.Error(), "order") {
		t.Error(err)
	}
}

func TestURL(t *testing.T) {
	t.Setenv("STORAGE_EMULATOR_HOST", "")
	try := func(raw, want string) {
		t.Helper()
		s, err := objstore.Open(t.Context(), raw)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = s.String()
		}
		if !strings.Contains(got, want) || strings.Contains(got, "secret") {
			t.Errorf("%s: %s, want %q", raw, got, want)
		}
	}
	// Credentials that cannot be read, so that no machine's own are looked for.
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "/does/not/exist.json")
	for raw, want := range map[string]string{
		"gs://b/p/q?endpoint=http://127.0.0.1:1": "gs://b/p/q at 127.0.0.1:1",
		"gs://b":                                 "looking for credentials",
		"gs://?endpoint=http://127.0.0.1:1":      "no bucket",
		"gs://b?endpont=x":                       `"endpont" is not known`,
		"gs://k:secret@b":                        "credentials do not belong",
		"gs://b?endpoint=127.0.0.1:1":            "must be http://host:port",
		"gs://b?endpoint=http://127.0.0.1:1/x":   "without credentials and path",
		"gs://b?endpoint=x&endpoint=y":           "one value",
		"gs://b/a//b":                            "prefix",
	} {
		try(raw, want)
	}
	t.Setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:2")
	try("gs://b", "gs://b at 127.0.0.1:2")
	try("gs://b?endpoint=http://127.0.0.1:1", "gs://b at 127.0.0.1:1")
	t.Setenv("STORAGE_EMULATOR_HOST", "ftp://127.0.0.1:2")
	try("gs://b", "STORAGE_EMULATOR_HOST must be")
}

// TestCredentials: they go to a server with TLS, and not to one without.
func TestCredentials(t *testing.T) {
	t.Setenv("STORAGE_EMULATOR_HOST", "")
	var got atomic.Value
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.Header.Get("Authorization"))
		fmt.Fprint(w, `{}`)
	})
	secure, plain := httptest.NewTLSServer(h), httptest.NewServer(h)
	defer secure.Close()
	defer plain.Close()
	token := []option.ClientOption{option.WithTokenSource(oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "token"}))}
	for _, c := range []struct {
		server *httptest.Server
		want   string
	}{{secure, "Bearer token"}, {plain, ""}} {
		s := mustNew(t, Options{Bucket: "b", Endpoint: c.server.URL, Transport: c.server.Client().Transport, Credentials: token})
		if _, err := s.List(t.Context(), "", "", 0); err != nil {
			t.Fatal(err)
		}
		if got.Load() != c.want {
			t.Errorf("%s got the credentials %q, want %q", c.server.URL, got.Load(), c.want)
		}
	}
}
