package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/btrlog/btrlog/objstore"
)

// compressed is what 'archive verify --deep --json' prints.
type compressed struct {
	Sound   bool
	Bytes   int64
	Plain   int64 `json:"plain_bytes"`
	Damaged []string
}

// Nodes that compress archive fewer bytes, which are read and verified as if they did not; nodes that do not compress any more go on
// with what is there.
func TestCompressedArchive(t *testing.T) {
	t.Parallel()
	dir, store := t.TempDir(), storeURL(t)
	procs, addrs := make([]*process, 3), make([]string, 3)
	launch := func(how string) {
		for i := range procs {
			id := fmt.Sprintf("n%d", i)
			procs[i], addrs[i] = nodeProcess(t, id, filepath.Join(dir, id), store, "--compress", how)
		}
	}
	end := func() {
		for _, p := range procs {
			if res := p.end(syscall.SIGTERM); res.code != 0 {
				t.Errorf("%s ended with code %d, stderr %q", p.name, res.code, res.err)
			}
		}
	}
	with := func(args ...string) []string { return append(args, "--store", store) }
	bad(t, run(t, "", "node", "--store", store, "--dir", t.TempDir(), "--compress", "lz4"), 2, `"lz4" is not known`)

	launch("zstd")
	good(t, "", with("log", "create", "--segment", "64KiB", "orders")...)
	var lines strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&lines, "order %d of customer %d: one of article %d, two of article %d, to be delivered\n", i, i%97, i%31, i%11)
	}
	verify := func() (v compressed) {
		t.Helper()
		res := run(t, "", with("archive", "verify", "--deep", "--json", "orders")...)
		if err := json.Unmarshal([]byte(res.out), &v); err != nil || (res.code == 0) != v.Sound {
			t.Fatalf("code %d, %v: %s%s", res.code, err, res.out, res.err)
		}
		return v
	}
	// Segments are archived several at a time: one may be there before the one before it.
	through := func(plain int64) (v compressed) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d bytes of records are in the archive", plain), func() bool {
			v = verify()
			return v.Sound && v.Plain >= plain
		})
		return v
	}
	check := func(want string) {
		t.Helper()
		for _, how := range [][]string{{"--store", store}, {"--nodes", addrs[1]}} {
			if got := good(t, "", append([]string{"log", "cat", "--lines", "orders"}, how...)...); got != want {
				t.Errorf("%v: %d bytes came back, %d were written", how, len(got), len(want))
			}
		}
	}
	good(t, lines.String(), with("log", "append", "orders")...)
	if v := through(4 << 16); v.Bytes*2 > v.Plain {
		t.Errorf("%+v", v)
	}
	check(lines.String())
	end()

	launch("none")
	good(t, lines.String(), with("log", "append", "orders")...)
	through(8 << 16)
	check(lines.String() + lines.String())

	s, err := objstore.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	page, err := s.List(t.Context(), "arch/", "", 0)
	if err != nil || len(page.Objects) == 0 {
		t.Fatal(page, err)
	}
	key := page.Objects[0].Key
	r, info, err := s.Get(t.Context(), key, objstore.Whole)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if len(body) > 32<<10 {
		t.Errorf("the first segment has %d bytes: it is not compressed", len(body))
	}
	body[len(body)/2] ^= 1
	if _, err := s.Put(t.Context(), key, body, info.Metadata, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	if v := verify(); v.Sound || len(v.Damaged) != 1 || !strings.Contains(v.Damaged[0], key) {
		t.Errorf("with a changed byte: %+v", v)
	}
	end()
}
