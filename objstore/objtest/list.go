package objtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/objstore"
)

// listModel is a dumb second implementation of List.
func listModel(keys []string, prefix, after string, limit int) (page []string, more bool) {
	for _, k := range keys {
		if strings.HasPrefix(k, prefix) && k > after {
			if len(page) == limit {
				return page, true
			}
			page = append(page, k)
		}
	}
	return page, false
}

func checkList(t *testing.T, s objstore.Store, keys []string, prefix, after string, limit int) {
	t.Helper()
	page, err := s.List(t.Context(), prefix, after, limit)
	if err != nil {
		t.Fatal(err)
	}
	if limit == 0 {
		limit = objstore.MaxListLimit
	}
	want, more := listModel(keys, prefix, after, limit)
	var got []string
	for _, o := range page.Objects {
		got = append(got, o.Key)
		if o.ETag == "" || o.Size != int64(len(o.Key)) || o.Metadata != nil {
			t.Fatalf("List entry %+v: want size %d, an ETag and no metadata", o, len(o.Key))
		}
	}
	what := fmt.Sprintf("List(%.20q, %.20q, %d)", prefix, after, limit)
	wantKeys(t, what, got, want)
	// Real servers call a full page cut although nothing follows.
	if page.More != more && (more || len(got) < limit) {
		t.Fatalf("%s: More is %v, want %v", what, page.More, more)
	}
}

func testList(t *testing.T, s objstore.Store, l Limits) {
	var keys []string
	for _, d := range []string{"", "d/", "d/e/", "d-/", "d.d/", "d0/"} {
		for i := range 7 {
			keys = append(keys, fmt.Sprintf("%s%02d", d, i*3))
		}
	}
	keys = append(keys, "d", "e", "d/e", "d/e.x", "d/e-x", "d/e0", "z/y/x/w")
	slices.Sort(keys)
	keys = l.usable(keys)
	for _, k := range keys {
		put(t, s, k, k, objstore.Always())
	}
	prefixes := []string{"", "d", "d/", "d/e", "d/e/", "d/e/0", "d-", "d.d/", "none", "none/", "z", "z/y/x/w", "z/y/x/w/", "/", "d//", "0"}
	afters := append([]string{"", "0", "d", "d/", "d/e/", "d/e/03", "d/e/zzz", "d/f", "d0", "zz", "c"}, keys[len(keys)/2])
	for _, p := range prefixes {
		for _, a := range afters {
			for _, n := range []int{0, 1, 2, 7, len(keys)} {
				checkList(t, s, keys, p, a, n)
			}
		}
	}
	gone := keys[len(keys)/3]
	if err := s.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	keys = slices.DeleteFunc(keys, func(k string) bool { return k == gone })
	checkList(t, s, keys, "", "", 0)
}

func testListLong(t *testing.T, s objstore.Store, l Limits) {
	p := strings.Repeat("p", 200)
	var keys []string
	for _, k := range []string{"", "!x", "/x", "0x", "/a/b", "!", "!x/y", "0", "/0", "%", "%/x", "é", "é/x"} {
		keys = append(keys, p+k, p[:199]+k, p[:198]+k, "dir/"+p+p+k)
	}
	slices.Sort(keys)
	keys = l.usable(slices.Compact(keys))
	for _, k := range keys {
		put(t, s, k, k, objstore.Always())
	}
	for _, prefix := range []string{"", "p", p, p + "/", p + "!", p[:199], p[:199] + "/", "dir/", "dir/" + p, "dir/" + p + p + "/"} {
		for _, after := range append([]string{""}, keys...) {
			checkList(t, s, keys, prefix, after, 3)
		}
		checkList(t, s, keys, prefix, "", 0)
	}
}
