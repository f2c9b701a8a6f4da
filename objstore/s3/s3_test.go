package s3

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/objtest"
	"github.com/btrlog/btrlog/objstore/remote"
)

var keys = credentials.NewStaticCredentialsProvider("test", "testtest", "")

// fake starts a server of another project in this process, with an empty bucket, behind a handler.
func fake(t *testing.T, around func(http.Handler) http.Handler) Options {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("logs"); err != nil {
		t.Fatal(err)
	}
	var h http.Handler = gofakes3.New(backend).Server()
	if around != nil {
		h = around(h)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return Options{Bucket: "logs", Endpoint: server.URL, PathStyle: true, Credentials: keys}
}

func mustNew(t *testing.T, o Options) objstore.Store {
	t.Helper()
	s, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestProbe tries the conditions, also concurrently, on a server in this process. That server deviates from S3 in what a cut
// listing says and in metadata, so the whole suite runs on real servers only: TestRealServer.
func TestProbe(t *testing.T) {
	for _, prefix := range []string{"", "some/prefix"} {
		o := fake(t, nil)
		o.Prefix = prefix
		s := mustNew(t, o)
		if err := objstore.Probe(t.Context(), s, "probe"); err != nil {
			t.Errorf("prefix %q: %v", prefix, err)
		}
		want := map[string]string{"clsn": "42", "with-blank": "a b"}
		for _, key := range []string{"a/1", "a/2", "b"} {
			if _, err := s.Put(t.Context(), key, []byte("0123456789"), want, objstore.IfAbsent()); err != nil {
				t.Fatal(err)
			}
		}
		info, err := s.Head(t.Context(), "a/2")
		if err != nil || info.Key != "a/2" || info.Size != 10 || !maps.Equal(info.Metadata, want) || info.Modified.IsZero() {
			t.Errorf("%+v, %v", info, err)
		}
		r, info, err := s.Get(t.Context(), "a/2", objstore.Range{Offset: 3, Length: 4})
		if err != nil {
			t.Fatal(err)
		}
		part, err := io.ReadAll(r)
		if r.Close(); string(part) != "3456" || err != nil || info.Size != 10 {
			t.Errorf("%q of %d bytes, %v", part, info.Size, err)
		}
		page, err := s.List(t.Context(), "a/", "a/1", 10)
		if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != "a/2" {
			t.Errorf("%+v, %v", page, err)
		}
	}
}

// TestRealServer runs the suite on the server that BTRLOG_S3_URL names, in the way of an operator: URL and environment. Each
// subtest has a bucket of its own, the URL's with a number, and leaves its objects there. BTRLOG_S3_TREE says that it keeps
// objects in a directory tree. `make test-s3` starts a server and sets the variables.
func TestRealServer(t *testing.T) {
	raw := os.Getenv("BTRLOG_S3_URL")
	if raw == "" {
		t.Log("BTRLOG_S3_URL is not set: no server but the one in this process is tested; make test-s3 starts one")
		return
	}
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	run := time.Now().UnixNano()
	fresh := func(t *testing.T) objstore.Store {
		own := *u
		own.Host = fmt.Sprintf("%s-%d-%d", u.Host, run, n.Add(1))
		s, err := objstore.Open(t.Context(), own.String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.(*store).client.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: &own.Host}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	objtest.RunLimited(t, objtest.Limits{Tree: os.Getenv("BTRLOG_S3_TREE") != ""}, fresh)
}

// TestRemote runs what happens between SDK and server on a server in this process. AWS_CA_BUNDLE wants the SDK's own kind of client,
// and must not disturb a transport of one's own.
func TestRemote(t *testing.T) {
	tls := httptest.NewTLSServer(nil)
	defer tls.Close()
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CA_BUNDLE", bundle)
	objtest.RunRemote(t, objtest.Remote{
		Open: func(t *testing.T, around func(http.RoundTripper) http.RoundTripper) objstore.Store {
			o := fake(t, nil)
			o.Transport = around(remote.NewTransport())
			return mustNew(t, o)
		},
		Deaf: func(req *http.Request, absent, match bool) {
			if absent {
				req.Header.Del("If-None-Match")
			}
			if match {
				req.Header.Del("If-Match")
			}
		},
		Gone: func(t *testing.T) objstore.Store {
			o := fake(t, nil)
			o.Bucket = "gone"
			return mustNew(t, o)
		},
		HeadIsMute: true,
	})
}

// TestBrokenConditionsAreRefused: a server that ignores conditions, as some do, loses logs. The probe must say so.
func TestBrokenConditionsAreRefused(t *testing.T) {
	for _, header := range []string{"If-None-Match", "If-Match"} {
		s := mustNew(t, fake(t, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Del(header)
				h.ServeHTTP(w, r)
			})
		}))
		err := objstore.Probe(t.Context(), s, "probe")
		if err == nil || objstore.Retryable(err) {
			t.Errorf("a server that ignores %s is accepted: %v", header, err)
		} else {
			t.Logf("%s: %v", header, err)
		}
	}
}

func TestOutcomes(t *testing.T) {
	xml := func(code string) string {
		return "<?xml version=\"1.0\"?><Error><Code>" + code + "</Code><Message>test</Message></Error>"
	}
	type answer struct {
		status int
		code   string
	}
	var next atomic.Value
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		a := next.Load().(answer)
		if a.status == 0 { // the reply is lost
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(a.status)
		if r.Method != http.MethodHead {
			fmt.Fprint(w, xml(a.code))
		}
	}))
	defer server.Close()
	server.Config.ErrorLog = nil
	s := mustNew(t, Options{Bucket: "logs", Endpoint: server.URL, PathStyle: true, Credentials: keys})
	put := func(c objstore.Condition) func() error {
		return func() error { _, err := s.Put(t.Context(), "k", []byte("v"), nil, c); return err }
	}
	get := func() error { _, _, err := s.Get(t.Context(), "k", objstore.Whole); return err }
	for _, c := range []struct {
		what   string
		status int
		code   string
		do     func() error
		want   error
	}{
		{"create, taken", 412, "PreconditionFailed", put(objstore.IfAbsent()), objstore.ErrPrecondition},
		{"create, conflict in flight", 409, "ConditionalRequestConflict", put(objstore.IfAbsent()), objstore.ErrConflict},
		{"replace, absent", 404, "NoSuchKey", put(objstore.IfMatch(`"x"`)), objstore.ErrPrecondition},
		{"create, slow down", 503, "SlowDown", put(objstore.IfAbsent()), objstore.ErrUnavailable},
		{"create, a proxy that lost its server", 503, "ServiceUnavailable", put(objstore.IfAbsent()), objstore.ErrUnknown},
		{"create, internal error", 500, "InternalError", put(objstore.IfAbsent()), objstore.ErrUnknown},
		{"create, bad gateway", 502, "BadGateway", put(objstore.IfAbsent()), objstore.ErrUnknown},
		{"create, reply lost", 0, "", put(objstore.IfAbsent()), objstore.ErrUnknown},
		{"delete, reply lost", 0, "", func() error { return s.Delete(t.Context(), "k") }, objstore.ErrUnknown},
		{"create, denied", 403, "AccessDenied", put(objstore.IfAbsent()), objstore.ErrDenied},
		{"create, no bucket", 404, "NoSuchBucket", put(objstore.IfAbsent()), objstore.ErrDenied},
		{"create, too large", 400, "EntityTooLarge", put(objstore.IfAbsent()), objstore.ErrTooLarge},
		{"create, a server without conditions", 501, "NotImplemented", put(objstore.IfAbsent()), objstore.ErrInvalid},
		{"get, absent", 404, "NoSuchKey", get, objstore.ErrNotFound},
		{"get, no bucket", 404, "NoSuchBucket", get, objstore.ErrDenied},
		{"get, denied", 403, "AccessDenied", get, objstore.ErrDenied},
		{"get, behind the end", 416, "InvalidRange", get, objstore.ErrInvalid},
		{"get, other region", 301, "PermanentRedirect", get, objstore.ErrDenied},
		{"get, internal error", 500, "InternalError", get, objstore.ErrUnavailable},
		{"get, reply lost", 0, "", get, objstore.ErrUnavailable},
		{"head, absent", 404, "", func() error { _, err := s.Head(t.Context(), "k"); return err }, objstore.ErrNotFound},
		{"list, slow down", 503, "SlowDown", func() error { _, err := s.List(t.Context(), "", "", 0); return err }, objstore.ErrUnavailable},
	} {
		next.Store(answer{c.status, c.code})
		before := requests.Load()
		err := c.do()
		var e *objstore.Error
		if !errors.As(err, &e) || e.Kind != c.want {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
			continue
		}
		n := requests.Load() - before
		if write := e.Op == "put" || e.Op == "delete"; write && n != 1 {
			t.Errorf("%s: %d requests; a write must be tried once, or its own 412 looks like a lost race", c.what, n)
		}
		if c.code != "" && e.Op != "head" && !strings.Contains(err.Error(), c.code) {
			t.Errorf("%s: the message does not name %s: %v", c.what, c.code, err)
		}
	}
}

// TestDeleteOfAnAbsentKey: some servers answer it with 404.
func TestDeleteOfAnAbsentKey(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(404)
		fmt.Fprint(w, "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>test</Message></Error>")
	}))
	defer server.Close()
	s := mustNew(t, Options{Bucket: "logs", Endpoint: server.URL, PathStyle: true, Credentials: keys})
	if err := s.Delete(t.Context(), "k"); err != nil {
		t.Error(err)
	}
}

// TestNotSent: what certainly did not leave this machine was not applied.
func TestNotSent(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close() // nobody listens there now
	o := Options{Bucket: "logs", Endpoint: server.URL, PathStyle: true, Credentials: keys}
	if _, err := mustNew(t, o).Put(t.Context(), "k", []byte("v"), nil, objstore.IfAbsent()); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("no server: %v", err)
	}
	o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{}, errors.New("test: no credentials")
	})
	if _, err := mustNew(t, o).Put(t.Context(), "k", []byte("v"), nil, objstore.IfAbsent()); !errors.Is(err, objstore.ErrUnavailable) || !strings.Contains(err.Error(), "no credentials") {
		t.Errorf("no credentials: %v", err)
	}
}

// TestCutReply: a body that ends early is an error, not the end of the object.
func TestCutReply(t *testing.T) {
	o := fake(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Length", "10")
			w.Header().Set("ETag", `"x"`)
			w.WriteHeader(200)
			fmt.Fprint(w, "12345")
			panic(http.ErrAbortHandler)
		})
	})
	if b, _, err := objstore.ReadAll(t.Context(), mustNew(t, o), "k", 100); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("%q, %v", b, err)
	}
}

// TestIgnoredRange: a server that sends the whole object when a part is asked for.
func TestIgnoredRange(t *testing.T) {
	o := fake(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			h.ServeHTTP(w, r)
		})
	})
	s := mustNew(t, o)
	if _, err := s.Put(t.Context(), "k", []byte("0123456789"), nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Get(t.Context(), "k", objstore.Range{Offset: 3, Length: 2}); !errors.Is(err, objstore.ErrUnavailable) || !strings.Contains(err.Error(), "Content-Range") {
		t.Error(err)
	}
}

func TestURL(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	for raw, want := range map[string]string{
		"s3://b/p/q?region=eu-west-1":                           "s3://b/p/q",
		"s3://b?endpoint=http://127.0.0.1:7070&path-style=true": "s3://b at 127.0.0.1:7070",
		"s3://?region=x":                                        "no bucket",
		"s3://b?regoin=x":                                       `"regoin" is not known`,
		"s3://k:secret@b?region=x":                              "credentials do not belong",
		"s3://b?path-style=perhaps&region=x":                    "true or false",
		"s3://b?endpoint=127.0.0.1:7070":                        "http://host:port",
		"s3://b?region=x&region=y":                              "one value",
		"s3://b":                                                "no region",
		"s3://b/a//b?region=x":                                  "prefix",
	} {
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
}

// TestBrokenServer tries the server that BTRLOG_S3_BROKEN_URL names: one that ignores conditions and must be refused, in the
// words that an operator needs.
func TestBrokenServer(t *testing.T) {
	raw := os.Getenv("BTRLOG_S3_BROKEN_URL")
	if raw == "" {
		t.Log("BTRLOG_S3_BROKEN_URL is not set: only servers that a handler in this process breaks are refused; see TestBrokenConditionsAreRefused")
		return
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "S3RVER")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "S3RVER")
	s, err := objstore.Open(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	st := s.(*store)
	if _, err := st.client.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: &st.bucket}); err != nil {
		t.Fatal(err)
	}
	err = objstore.Probe(t.Context(), s, "probe")
	if err == nil || objstore.Retryable(err) || errors.Is(err, objstore.ErrUnknown) {
		t.Fatalf("a server without conditional writes is accepted: %v", err)
	}
	t.Log(err)
}
