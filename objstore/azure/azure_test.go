package azure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/objtest"
	"github.com/btrlog/btrlog/objstore/remote"
)

var containers atomic.Int64

// server returns options for a container on the server that BTRLOG_AZURE_URL names, one of its own for each call: the URL's with a
// number. `make test-azure` starts a server and sets the variable.
func server(t *testing.T) (Options, bool) {
	t.Helper()
	raw := os.Getenv("BTRLOG_AZURE_URL")
	if raw == "" {
		t.Log("BTRLOG_AZURE_URL is not set: no real server is tested; make test-azure starts one")
		return Options{}, false
	}
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	return Options{Container: fmt.Sprintf("%s-%d-%d", u.Host, time.Now().UnixNano(), containers.Add(1)), Account: q.Get("account"), Endpoint: q.Get("endpoint")}, true
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

// create makes the container of o, and leaves it and its blobs behind.
func create(t *testing.T, o Options) {
	t.Helper()
	o.Transport = nil
	if _, err := mustNew(t, o).client.Create(t.Context(), nil); err != nil && !bloberror.HasCode(err, bloberror.ContainerAlreadyExists) {
		t.Fatal(err)
	}
}

var limits = objtest.Limits{Refuses: func(k string) bool { return checkName(k) != nil }}

func TestRealServer(t *testing.T) {
	o, ok := server(t)
	if !ok {
		return
	}
	for _, prefix := range []string{"", "some/prefix"} {
		t.Run("prefix="+prefix, func(t *testing.T) {
			l := limits
			l.Refuses = func(k string) bool { return checkName(strings.TrimPrefix(prefix+"/"+k, "/")) != nil }
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
			// A signature in the URL, because one of a request would cover the conditions that are removed here.
			o.SAS = signature(t, o, sas.ContainerPermissions{Read: true, Add: true, Create: true, Write: true, Delete: true, List: true})
			o.Transport = around(remote.NewTransport())
			return mustNew(t, o)
		},
		Deaf: deaf,
		Gone: func(t *testing.T) objstore.Store { return mustNew(t, o) },
	})
}

// signature returns what gives access to a container.
func signature(t *testing.T, o Options, p sas.ContainerPermissions) string {
	t.Helper()
	signed, err := mustNew(t, o).client.GetSASURL(p, time.Now().Add(time.Hour), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, query, _ := strings.Cut(signed, "?")
	return query
}

func deaf(req *http.Request, absent, match bool) {
	if absent {
		req.Header.Del("If-None-Match")
	}
	if match {
		req.Header.Del("If-Match")
	}
}

// TestContainerForNodes makes the container that BTRLOG_AZURE_NODES_URL names, for the test of the program that runs after this one.
func TestContainerForNodes(t *testing.T) {
	raw := os.Getenv("BTRLOG_AZURE_NODES_URL")
	if raw == "" {
		t.Log("BTRLOG_AZURE_NODES_URL is not set: there is none to make")
		return
	}
	s, err := objstore.Open(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.(*store).client.Create(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

// TestReadOnly: credentials that cannot write are the operator's matter, and reads work with them.
func TestReadOnly(t *testing.T) {
	o, ok := server(t)
	if !ok {
		return
	}
	create(t, o)
	owner := mustNew(t, o)
	if _, err := owner.Put(t.Context(), "k", []byte("v"), nil, objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	o.SAS = signature(t, o, sas.ContainerPermissions{Read: true, List: true})
	s := mustNew(t, o)
	if body, _, err := objstore.ReadAll(t.Context(), s, "k", 10); err != nil || string(body) != "v" {
		t.Errorf("Get: %q, %v", body, err)
	}
	if page, err := s.List(t.Context(), "", "", 0); err != nil || len(page.Objects) != 1 {
		t.Errorf("List: %+v, %v", page, err)
	}
	_, err := s.Put(t.Context(), "k2", []byte("v"), nil, objstore.IfAbsent())
	for what, err := range map[string]error{"put": err, "delete": s.Delete(t.Context(), "k"), "probe": objstore.Probe(t.Context(), s, "probe")} {
		if !errors.Is(err, objstore.ErrDenied) || objstore.Retryable(err) || strings.Contains(err.Error(), "sig=") || strings.Contains(err.Error(), "broken") {
			t.Errorf("%s: %v, want %v and no signature in it", what, err, objstore.ErrDenied)
		} else {
			t.Logf("%s: %v", what, err)
		}
	}
}

// answers starts a server that answers as status and code say. A status of 0 loses the reply.
func answers(t *testing.T) (s *store, set func(status int, code string), requests *atomic.Int64) {
	type answer struct {
		status int
		code   string
	}
	var next atomic.Value
	requests = new(atomic.Int64)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		a := next.Load().(answer)
		if a.status == 0 {
			panic(http.ErrAbortHandler)
		}
		if a.code != "" {
			w.Header().Set("x-ms-error-code", a.code)
		}
		w.Header().Set("Retry-After-Ms", "1")
		w.WriteHeader(a.status)
	}))
	t.Cleanup(srv.Close)
	s = mustNew(t, Options{Container: "logs", Endpoint: srv.URL + "/" + emulatorAccount, Key: emulatorKey})
	return s, func(status int, code string) { next.Store(answer{status, code}) }, requests
}

func TestOutcomes(t *testing.T) {
	s, set, requests := answers(t)
	put := func(c objstore.Condition) func() error {
		return func() error { _, err := s.Put(t.Context(), "k", []byte("v"), nil, c); return err }
	}
	get := func() error { _, _, err := s.Get(t.Context(), "k", objstore.Whole); return err }
	head := func() error { _, err := s.Head(t.Context(), "k"); return err }
	del := func() error { return s.Delete(t.Context(), "k") }
	create, replace := put(objstore.IfAbsent()), put(objstore.IfMatch("0x8D"))
	for _, c := range []struct {
		what   string
		status int
		code   string
		do     func() error
		want   error
	}{
		{"create, taken", 409, "BlobAlreadyExists", create, objstore.ErrPrecondition},
		{"replace, replaced meanwhile", 412, "ConditionNotMet", replace, objstore.ErrPrecondition},
		{"replace, absent", 404, "BlobNotFound", replace, objstore.ErrPrecondition},
		{"replace, no container", 404, "ContainerNotFound", replace, objstore.ErrDenied},
		{"replace, under a lease", 412, "LeaseIdMissing", replace, objstore.ErrDenied},
		{"create, conflict in flight", 409, "OperationConflict", create, objstore.ErrConflict},
		{"create, no container", 404, "ContainerNotFound", create, objstore.ErrDenied},
		{"create, container being deleted", 409, "ContainerBeingDeleted", create, objstore.ErrDenied},
		{"create, immutable", 409, "BlobImmutableDueToPolicy", create, objstore.ErrDenied},
		{"create, another kind of blob", 409, "InvalidBlobType", create, objstore.ErrInvalid},
		{"create, throttled", 503, "ServerBusy", create, objstore.ErrUnavailable},
		{"create, a proxy that lost its server", 503, "", create, objstore.ErrUnknown},
		{"create, timed out inside", 500, "OperationTimedOut", create, objstore.ErrUnknown},
		{"create, internal error", 500, "InternalError", create, objstore.ErrUnknown},
		{"create, reply lost", 0, "", create, objstore.ErrUnknown},
		{"create, denied", 403, "AuthorizationFailure", create, objstore.ErrDenied},
		{"create, too large", 413, "RequestBodyTooLarge", create, objstore.ErrTooLarge},
		{"create, an old server", 400, "InvalidHeaderValue", create, objstore.ErrInvalid},
		{"delete, reply lost", 0, "", del, objstore.ErrUnknown},
		{"delete, no container", 404, "ContainerNotFound", del, objstore.ErrDenied},
		{"get, absent", 404, "BlobNotFound", get, objstore.ErrNotFound},
		{"get, no container", 404, "ContainerNotFound", get, objstore.ErrDenied},
		{"get, denied", 403, "AuthorizationPermissionMismatch", get, objstore.ErrDenied},
		{"get, archived", 409, "BlobArchived", get, objstore.ErrDenied},
		{"get, behind the end", 416, "InvalidRange", get, objstore.ErrInvalid},
		{"get, reply lost", 0, "", get, objstore.ErrUnavailable},
		{"head, absent", 404, "BlobNotFound", head, objstore.ErrNotFound},
		{"head, no container", 404, "ContainerNotFound", head, objstore.ErrDenied},
		{"list, throttled", 503, "ServerBusy", func() error { _, err := s.List(t.Context(), "", "", 0); return err }, objstore.ErrUnavailable},
	} {
		set(c.status, c.code)
		before := requests.Load()
		err := c.do()
		var e *objstore.Error
		if !errors.As(err, &e) || e.Kind != c.want {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
			continue
		}
		if n := requests.Load() - before; (e.Op == "put" || e.Op == "delete") && n != 1 {
			t.Errorf("%s: %d requests; a write must be tried once", c.what, n)
		}
		if c.code != "" && !strings.Contains(err.Error(), c.code) {
			t.Errorf("%s: the message does not name %s: %v", c.what, c.code, err)
		}
	}
	set(404, "BlobNotFound")
	if err := del(); err != nil {
		t.Errorf("to delete an absent key: %v", err)
	}
}

// failing is a chain of credentials that finds none.
type failing struct{}

func (failing) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{}, errors.New("test: no credentials")
}

func TestNoCredentials(t *testing.T) {
	s := mustNew(t, Options{Container: "logs", Account: "nobody", Credential: failing{}})
	if _, err := s.Put(t.Context(), "k", []byte("v"), nil, objstore.IfAbsent()); !errors.Is(err, objstore.ErrUnavailable) || !strings.Contains(err.Error(), "no credentials") {
		t.Error(err)
	}
}

// TestIgnoredRange: a server that sends the whole object when a part is asked for.
func TestIgnoredRange(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "0123456789") }))
	defer srv.Close()
	s := mustNew(t, Options{Container: "logs", Endpoint: srv.URL + "/" + emulatorAccount, Key: emulatorKey})
	if _, _, err := s.Get(t.Context(), "k", objstore.Range{Offset: 3, Length: 2}); !errors.Is(err, objstore.ErrUnavailable) || !strings.Contains(err.Error(), "Content-Range") {
		t.Error(err)
	}
}

// TestListWithoutOrder: what an account with a hierarchical namespace does, and a server that ignores startFrom.
func TestList(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Pages of two, whatever was asked for, and an empty one before the end; startFrom is ignored.
		var from int
		_, _ = fmt.Sscan(r.URL.Query().Get("marker"), &from)
		fmt.Fprint(w, `<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>`)
		for _, n := range names[from:min(from+2, len(names))] {
			fmt.Fprintf(w, `<Blob><Name>%s</Name><Properties><Etag>0x8D</Etag><Content-Length>1</Content-Length></Properties></Blob>`, n)
		}
		next := ""
		if from < len(names) {
			next = fmt.Sprint(min(from+2, len(names)))
		}
		fmt.Fprintf(w, `</Blobs><NextMarker>%s</NextMarker></EnumerationResults>`, next)
	}))
	defer srv.Close()
	s := mustNew(t, Options{Container: "logs", Endpoint: srv.URL + "/" + emulatorAccount, Key: emulatorKey})
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
	names = []string{"a/b", "a-b"}
	if _, err := s.List(t.Context(), "", "", 0); !errors.Is(err, objstore.ErrDenied) || !strings.Contains(err.Error(), "hierarchical") {
		t.Error(err)
	}
}

func TestMetadataNames(t *testing.T) {
	all := map[string]string{"clsn": "42", "a-b": "x", "-d5": "y", "5": "5", "-5": "=", "d5": "==", "h-h": "", "hh": "a=b", "--": " "}
	seen := map[string]bool{}
	carried := map[string]*string{}
	for k, v := range encodeMetadata(all) {
		for i, c := range k {
			if !(c == '_' || c >= 'a' && c <= 'z' || i > 0 && c >= '0' && c <= '9') {
				t.Errorf("%q is no identifier", k)
			}
		}
		seen[k] = true
		carried[http.CanonicalHeaderKey(k)] = v
	}
	if got := decodeMetadata(carried); len(seen) != len(all) || !maps.Equal(got, all) {
		t.Errorf("%v came back as %v", all, got)
	}
}

func TestURL(t *testing.T) {
	for _, k := range []string{"AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING"} {
		t.Setenv(k, "")
	}
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
	for raw, want := range map[string]string{
		"az://c/p/q?account=acc":                               "az://c/p/q at acc.blob.core.windows.net",
		"az://c?endpoint=http://127.0.0.1:1/devstoreaccount1":  "az://c at 127.0.0.1:1",
		"az://?account=acc":                                    "no container",
		"az://c":                                               "no account",
		"az://c?acount=acc":                                    `"acount" is not known`,
		"az://k:secret@c?account=acc":                          "credentials do not belong",
		"az://c?account=acc&account=b":                         "one value",
		"az://c?account=evil.example/":                         "no name of a storage account",
		"az://c?endpoint=127.0.0.1:1":                          "the endpoint must be",
		"az://c?endpoint=http://127.0.0.1:1/acc/c":             "nothing else",
		"az://c/a//b?account=acc":                              "prefix",
		"az://c/a./b?account=acc":                              "ends in a dot",
		"az://c?endpoint=https://acc.blob.core.windows.net%3F": "the endpoint must be",
	} {
		try(raw, want)
	}
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "secret")
	try("az://c", "AZURE_STORAGE_CONNECTION_STRING is malformed")
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "DefaultEndpointsProtocol=https;AccountName=acc;AccountKey="+emulatorKey)
	try("az://c", "az://c at acc.blob.core.windows.net")
	try("az://c?account=other", "az://c at other.blob.core.windows.net")
	t.Setenv("AZURE_STORAGE_ACCOUNT", "env")
	t.Setenv("AZURE_STORAGE_KEY", "secret")
	try("az://c?account=acc", "the account's key is malformed")
	t.Setenv("AZURE_STORAGE_KEY", emulatorKey)
	try("az://c?account=acc", "az://c at acc.blob.core.windows.net")
	t.Setenv("AZURE_STORAGE_ACCOUNT", "")
	try("az://c?endpoint=https://127.0.0.1:1", "a key needs the account's name")
	try("az://c?endpoint=https://acc.blob.core.windows.net", "az://c at acc.blob.core.windows.net")
	t.Setenv("AZURE_STORAGE_KEY", "")
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=secret")
	try("az://c?account=acc", "az://c at acc.blob.core.windows.net")
}
