package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/btrlog/btrlog/objstore"
)

// archived is a line of 'archive ls --json' and of 'archive verify --json'.
type archived struct {
	Log             string
	Sound           bool
	Copies, Doubles int
	First, Through  uint64
	Missing         []lsnPair
	Pending         []lsnPair `json:"not_archived_yet"`
	Unknown         []lsnPair
	Silent          []string
	Damaged         []string
	Stretches       []struct {
		First, Last uint64
		Object      string
		Packed      bool
	}
}

type lsnPair struct{ From, To uint64 }

func archivedOf(t *testing.T, res result, code int) (a archived) {
	t.Helper()
	if res.code != code {
		t.Fatalf("code %d, want %d: %s", res.code, code, res.err)
	}
	if err := json.Unmarshal([]byte(res.out), &a); err != nil {
		t.Fatalf("%q: %v", res.out, err)
	}
	return a
}

// What is archived is listed and found sound; what is then taken away or changed is found and named.
func TestArchiveCommands(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, filepath.Join(t.TempDir(), "cluster"))
	nodes := []string{"--nodes", c.nodes()}
	cmd := func(args ...string) result { t.Helper(); return run(t, "", append(args, nodes...)...) }
	good(t, "", append([]string{"log", "create", "--segment", "64KiB", "orders"}, nodes...)...)
	good(t, "", append([]string{"log", "create", "empty"}, nodes...)...)
	lines := strings.Repeat(strings.Repeat("x", 999)+"\n", 500)
	good(t, lines, append([]string{"log", "append", "orders"}, nodes...)...)
	var ls archived
	eventually(t, "six segments in the archive", func() bool {
		ls = archivedOf(t, cmd("archive", "ls", "--json", "orders"), 0)
		return len(ls.Stretches) >= 6
	})
	for _, args := range [][]string{{"archive", "ls"}, {"archive", "verify"}, {"archive", "verify", "--deep", "orders", "empty"}, {"archive", "ls", "orders"}} {
		if out := good(t, "", append(args, nodes...)...); !strings.Contains(out, "RECORDS") || !strings.Contains(out, "LSN 1..") {
			t.Errorf("%v: %q", args, out)
		}
	}
	if v := archivedOf(t, cmd("archive", "verify", "--deep", "--json", "orders"), 0); !v.Sound || v.First != 1 || v.Through < ls.Through || v.Doubles != 0 || len(v.Missing)+len(v.Damaged) != 0 {
		t.Errorf("%+v", v)
	}
	// Before, what is taken away would be no loss: the nodes would archive it again.
	eventually(t, "the nodes take all for archived", func() bool {
		for _, n := range statusOf(t, c.Store).Nodes {
			if n.Unarchived != 0 {
				return false
			}
		}
		return true
	})
	store, err := objstore.Open(t.Context(), c.Store)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s := ls.Stretches[2]
	r, info, err := store.Get(t.Context(), s.Object, objstore.Range{})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Delete(t.Context(), s.Object); err != nil {
		t.Fatal(err)
	}
	res := cmd("archive", "verify", "--json", "orders")
	if want := fmt.Sprintf(`"missing":[{"from":%d,"to":%d}]`, s.First, s.Last); !strings.Contains(res.out, want) {
		t.Errorf("the JSON lacks %s: %s", want, res.out)
	}
	v := archivedOf(t, res, 1)
	if v.Sound || len(v.Missing) != 1 || v.Missing[0].From != s.First || v.Missing[0].To != s.Last {
		t.Errorf("with %d..%d deleted: %+v", s.First, s.Last, v)
	}
	bad(t, cmd("archive", "verify"), 1, "missing or damaged")
	flipped := append([]byte(nil), body...)
	flipped[len(flipped)/2] ^= 1
	if _, err := store.Put(t.Context(), s.Object, flipped, info.Metadata, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	if v := archivedOf(t, cmd("archive", "verify", "--json", "orders"), 0); !v.Sound {
		t.Errorf("a listing does not show a changed byte: %+v", v)
	}
	if v := archivedOf(t, cmd("archive", "verify", "--deep", "--json", "orders"), 1); len(v.Damaged) != 1 || !strings.Contains(v.Damaged[0], s.Object) {
		t.Errorf("with a changed byte: %+v", v)
	}
	if _, err := store.Put(t.Context(), s.Object, body, info.Metadata, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	// With the store itself, past the nodes.
	if v := archivedOf(t, run(t, "", "archive", "verify", "--deep", "--json", "--store", c.Store, "orders"), 0); !v.Sound {
		t.Errorf("%+v", v)
	}
	bad(t, cmd("archive", "ls", "nosuch"), 1, `"nosuch"`)
	bad(t, cmd("archive", "ls", "a", "b"), 2, "unexpected argument")
	bad(t, run(t, "", "archive", "verify", "--nodes", closedPort(t)), 1)
}

// What a listing showed may be gone when it is read, for it was trimmed, or merged into another object: that is no damage.
func TestArchiveVerifyBesideATrim(t *testing.T) {
	c := mustCluster(t, filepath.Join(t.TempDir(), "cluster"))
	nodes := []string{"--nodes", c.nodes()}
	good(t, "", append([]string{"log", "create", "--segment", "64KiB", "orders"}, nodes...)...)
	good(t, strings.Repeat(strings.Repeat("x", 999)+"\n", 300), append([]string{"log", "append", "orders"}, nodes...)...)
	var ls archived
	eventually(t, "three segments in the archive", func() bool {
		ls = archivedOf(t, run(t, "", append([]string{"archive", "ls", "--json", "orders"}, nodes...)...), 0)
		return len(ls.Stretches) >= 3
	})
	store, err := objstore.Open(t.Context(), c.Store)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	target, err := url.Parse("http://" + strings.Split(c.nodes(), ",")[0])
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	var once sync.Once
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, path.Base(ls.Stretches[0].Object)) {
			once.Do(func() { // the first object is being read: now it is trimmed, and the next one too
				good(t, "", append([]string{"log", "trim", "--before", strconv.FormatUint(ls.Stretches[2].First, 10), "orders"}, nodes...)...)
				for _, s := range ls.Stretches[:2] {
					if err := store.Delete(t.Context(), s.Object); err != nil {
						t.Error(err)
					}
				}
			})
		}
		forward.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	v := archivedOf(t, run(t, "", "archive", "verify", "--deep", "--json", "--store", proxy.URL, "orders"), 0)
	if !v.Sound || v.First != ls.Stretches[2].First || v.Through < ls.Through {
		t.Errorf("%+v", v)
	}
}

// What is below the trim point, and what is of a deleted log, is shown first, and goes when that is asked for; the rest stays.
func TestArchiveGC(t *testing.T) {
	c := mustCluster(t, filepath.Join(t.TempDir(), "cluster"))
	nodes := []string{"--nodes", c.nodes()}
	cmd := func(args ...string) result { t.Helper(); return run(t, "", append(args, nodes...)...) }
	lines := strings.Repeat(strings.Repeat("x", 999)+"\n", 300)
	for _, log := range []string{"kept", "gone"} {
		good(t, "", append([]string{"log", "create", "--segment", "64KiB", log}, nodes...)...)
		good(t, lines, append([]string{"log", "append", log}, nodes...)...)
	}
	var ls archived
	eventually(t, "segments of both logs in the archive", func() bool {
		gone := archivedOf(t, cmd("archive", "ls", "--json", "gone"), 0)
		ls = archivedOf(t, cmd("archive", "ls", "--json", "kept"), 0)
		return len(ls.Stretches) >= 4 && len(gone.Stretches) >= 4
	})
	if res := cmd("archive", "gc"); res.code != 0 || res.out != "nothing to delete\n" {
		t.Errorf("%+v", res)
	}
	good(t, "", append([]string{"log", "trim", "--before", strconv.FormatUint(ls.Stretches[2].First+1, 10), "kept"}, nodes...)...)
	good(t, "", append([]string{"log", "delete", "--yes", "gone"}, nodes...)...)
	keys := func(args ...string) map[string]string {
		t.Helper()
		res := cmd(append([]string{"archive", "gc", "--json"}, args...)...)
		if res.code != 0 {
			t.Fatal(res.err)
		}
		out := map[string]string{}
		for line := range strings.Lines(res.out) {
			var o struct{ Key, Why string }
			if err := json.Unmarshal([]byte(line), &o); err != nil {
				t.Fatal(err)
			}
			if o.Key != "" {
				out[o.Key] = o.Why
			}
		}
		return out
	}
	shown := keys()
	trimmed, deleted := 0, 0
	for _, why := range shown {
		switch why {
		case "trimmed":
			trimmed++
		case "log deleted":
			deleted++
		}
	}
	if trimmed != 2 || deleted < 4 || len(shown) != trimmed+deleted || shown[ls.Stretches[0].Object] != "trimmed" || shown[ls.Stretches[1].Object] != "trimmed" {
		t.Fatalf("%v of %+v", shown, ls.Stretches)
	}
	if again := keys(); len(again) != len(shown) {
		t.Errorf("to look changed something: %v", again)
	}
	if res := cmd("archive", "gc"); res.code != 0 || !strings.Contains(res.out, "would go; --yes deletes them") {
		t.Errorf("%+v", res)
	}
	if went := keys("--yes"); len(went) != len(shown) {
		t.Errorf("deleted %v, shown were %v", went, shown)
	}
	if left := keys(); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	if v := archivedOf(t, cmd("archive", "verify", "--deep", "--json", "kept"), 0); !v.Sound {
		t.Errorf("%+v", v)
	}
}
