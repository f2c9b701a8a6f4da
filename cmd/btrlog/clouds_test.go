package main_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/btrlog/btrlog/objstore"
)

// On a server that somebody else wrote: three node processes, a bucket that is there and empty. Each test runs if the variable names
// a store; make test-s3, test-gcs and test-azure start servers and set them.
func TestNodesOnS3(t *testing.T)    { nodesOn(t, named(t, "BTRLOG_S3_NODES_URL")) }
func TestNodesOnGCS(t *testing.T)   { nodesOn(t, named(t, "BTRLOG_GCS_NODES_URL")) }
func TestNodesOnAzure(t *testing.T) { nodesOn(t, named(t, "BTRLOG_AZURE_NODES_URL")) }

func named(t *testing.T, variable string) string {
	store := os.Getenv(variable)
	if store == "" {
		t.Logf("%s is not set: nodes run on a local directory in all other tests", variable)
	}
	return store
}

// TestNodesAtGoogleRates puts in front of the server what Google's does and it does not: one object is written once in a second, and
// more is answered with 429. So it is at the self-test of a start, and when records of the cluster change quickly.
func TestNodesAtGoogleRates(t *testing.T) {
	store := named(t, "BTRLOG_GCS_NODES_URL")
	if store == "" {
		return
	}
	u, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(u.Query().Get("endpoint"))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	written := map[string]time.Time{}
	refused := 0
	through := httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(server) }, ModifyResponse: func(resp *http.Response) error {
		if name := resp.Request.URL.Query().Get("name"); resp.Request.Method == http.MethodPost && name != "" && resp.StatusCode == http.StatusOK {
			mu.Lock()
			written[name] = time.Now()
			mu.Unlock()
		}
		return nil
	}}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		often := r.Method == http.MethodPost && time.Since(written[r.URL.Query().Get("name")]) < time.Second
		if often {
			refused++
		}
		mu.Unlock()
		if often {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		through.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	u.Path += "/slowly"
	u.RawQuery = url.Values{"endpoint": {proxy.URL}}.Encode()
	nodesOn(t, u.String())
	if mu.Lock(); refused == 0 {
		t.Error("nothing was refused, so nothing was tested")
	}
	t.Logf("%d writes were refused", refused)
	mu.Unlock()
}

// nodesOn runs the cluster on a store: metadata and archive go through it, a node dies, a second writer takes over, and every byte comes back through the objects.
func nodesOn(t *testing.T, store string) {
	if store == "" {
		return
	}
	s, err := objstore.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	procs, addrs := make([]*process, 3), make([]string, 3)
	for i := range procs {
		id := fmt.Sprintf("n%d", i)
		procs[i], addrs[i] = nodeProcess(t, id, filepath.Join(t.TempDir(), id), store)
	}
	log := func(args ...string) []string { return append([]string{"log", "--store", store}, args...) }
	good(t, "", log("create", "--segment", "1MiB", "wal")...)

	// Random bytes: nothing of a wrong place can look right. The seed is fixed.
	data := make([]byte, 12<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(data)
	half := string(data[:6<<20])
	good(t, half, log("append", "--chunk", "16KiB", "wal")...)
	if res := procs[0].end(syscall.SIGKILL); res.signal != syscall.SIGKILL {
		t.Fatalf("the node ended with %+v", res)
	}
	good(t, string(data[6<<20:]), log("append", "--chunk", "16KiB", "wal")...)
	eventually(t, "ten segments are in the store", func() bool {
		page, err := s.List(t.Context(), "arch/", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Objects) >= 10
	})
	if got := good(t, "", log("cat", "wal")...); !bytes.Equal([]byte(got), data) {
		t.Errorf("%d bytes came back, %d were written", len(got), len(data))
	}
	// A client without credentials of the store reads what is archived through a node.
	if got := good(t, "", "log", "--nodes", addrs[1], "cat", "wal"); !bytes.Equal([]byte(got), data) {
		t.Errorf("%d bytes came back through a node, %d were written", len(got), len(data))
	}
	good(t, "", log("trim", "--before", "300", "wal")...)
	if got := good(t, "", log("cat", "wal")...); !bytes.Equal([]byte(got), data[299*16<<10:]) {
		t.Errorf("behind the trim point are %d bytes, want %d", len(got), len(data)-299*16<<10)
	}
	if out := good(t, "", log("info", "wal")...); !strings.Contains(out, "tail        768\n") {
		t.Errorf("info: %s", out)
	}
	for _, p := range procs[1:] {
		if res := p.end(syscall.SIGTERM); res.code != 0 {
			t.Errorf("%s ended with code %d, stderr %q", p.name, res.code, res.err)
		}
	}
}
