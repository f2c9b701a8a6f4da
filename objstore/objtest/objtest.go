// Package objtest is the conformance suite of objstore.Store. A backend passes
// it, or it is no backend:
//
//	func TestConformance(t *testing.T) {
//		objtest.Run(t, func(t *testing.T) objstore.Store { return open(t) })
//	}
package objtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/btrlog/btrlog/objstore"
)

// Limits are what a server cannot do, and BtrLog does not need. The zero value is a store without limits of its own.
type Limits struct {
	// Tree: the server keeps objects as files of a directory. It cannot hold both "a" and "a/b", nor an element of more than
	// 255 bytes.
	Tree bool
	// Refuses, if not nil, reports keys that the server would not keep apart from others, and that the backend therefore refuses
	// with ErrInvalid. It is tested that it does.
	Refuses func(key string) bool
}

// usable drops the keys that are beyond the limits.
func (l Limits) usable(keys []string) []string {
	if l.Refuses != nil {
		keys = slices.DeleteFunc(slices.Clone(keys), l.Refuses)
	}
	if !l.Tree {
		return keys
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool {
		for e := range strings.SplitSeq(k, "/") {
			if len(e) > 255 {
				return true
			}
		}
		return slices.ContainsFunc(keys, func(other string) bool { return strings.HasPrefix(other, k+"/") })
	})
}

// Run runs the whole suite. open returns an empty store (or an empty prefix of one) that the
// suite may fill; it is called once per subtest.
func Run(t *testing.T, open func(t *testing.T) objstore.Store) { RunLimited(t, Limits{}, open) }

// RunLimited is Run for a server with limits.
func RunLimited(t *testing.T, l Limits, open func(t *testing.T) objstore.Store) {
	limited := func(run func(*testing.T, objstore.Store, Limits)) func(*testing.T, objstore.Store) {
		return func(t *testing.T, s objstore.Store) { run(t, s, l) }
	}
	for _, c := range []struct {
		name string
		run  func(*testing.T, objstore.Store)
	}{
		{"PutGetHeadDelete", testBasics},
		{"Conditions", testConditions},
		{"ConditionsAreNotVersions", testEqualBodies},
		{"Metadata", testMetadata},
		{"Ranges", testRanges},
		{"ReadersKeepTheirVersion", testSnapshotRead},
		{"BigObject", testBig},
		{"Keys", limited(testKeys)},
		{"InvalidArguments", testInvalid},
		{"ListOrderAndPages", limited(testList)},
		{"ListLongElements", limited(testListLong)},
		{"CancelledContext", testCancelled},
		{"RaceIfAbsent", testRaceIfAbsent},
		{"RaceIfMatch", testRaceIfMatch},
		{"RaceCounter", testRaceCounter},
		{"RaceReaders", testRaceReaders},
		{"LostReply", testLostReply},
		{"Probe", testProbe},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t)
			defer func() {
				if err := s.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			}()
			c.run(t, s)
		})
	}
}

func put(t *testing.T, s objstore.Store, key, body string, cond objstore.Condition) objstore.Info {
	t.Helper()
	info, err := s.Put(t.Context(), key, []byte(body), nil, cond)
	if err != nil {
		t.Fatalf("Put %q %v: %v", key, cond, err)
	}
	return info
}

func wantBody(t *testing.T, s objstore.Store, key, want string) objstore.Info {
	t.Helper()
	got, info, err := objstore.ReadAll(t.Context(), s, key, objstore.MaxBodyBytes)
	if err != nil {
		t.Fatalf("Get %q: %v", key, err)
	}
	if string(got) != want {
		t.Fatalf("Get %q: %.40q (%d bytes), want %.40q (%d bytes)", key, got, len(got), want, len(want))
	}
	return info
}

func wantErr(t *testing.T, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%s: error %v, want %v", what, err, kind)
	}
	var e *objstore.Error
	if !errors.As(err, &e) || e.Store == "" || e.Op == "" {
		t.Fatalf("%s: error %v does not name store and operation", what, err)
	}
}

func testBasics(t *testing.T, s objstore.Store) {
	ctx := t.Context()
	_, err := s.Head(ctx, "no/such")
	wantErr(t, "Head of an absent key", err, objstore.ErrNotFound)
	_, _, err = s.Get(ctx, "no/such", objstore.Whole)
	wantErr(t, "Get of an absent key", err, objstore.ErrNotFound)
	if err := s.Delete(ctx, "no/such"); err != nil {
		t.Fatalf("Delete of an absent key: %v", err)
	}
	if !strings.Contains(err.Error(), "no/such") {
		t.Fatalf("error %v does not name the key", err)
	}
	for _, body := range []string{"one", "", "three and more"} {
		w := put(t, s, "a/key", body, objstore.Always())
		r := wantBody(t, s, "a/key", body)
		h, err := s.Head(ctx, "a/key")
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range []objstore.Info{w, r, h} {
			if i.Key != "a/key" || i.Size != int64(len(body)) || i.ETag == "" || i.ETag != w.ETag {
				t.Fatalf("Infos of one version differ: put %+v, get %+v, head %+v", w, r, h)
			}
		}
	}
	if err := s.Delete(ctx, "a/key"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Head(ctx, "a/key")
	wantErr(t, "Head after Delete", err, objstore.ErrNotFound)
	put(t, s, "a/key", "again", objstore.IfAbsent())
	_, _, err = objstore.ReadAll(ctx, s, "a/key", 4)
	wantErr(t, "ReadAll beyond its bound", err, objstore.ErrTooLarge)
}

func testConditions(t *testing.T, s objstore.Store) {
	ctx := t.Context()
	try := func(body string, c objstore.Condition) error {
		_, err := s.Put(ctx, "k", []byte(body), nil, c)
		return err
	}
	wantErr(t, "IfMatch on an absent key", try("x", objstore.IfMatch("0123456789abcdef0123456789abcdef")), objstore.ErrPrecondition)
	first := put(t, s, "k", "first", objstore.IfAbsent())
	wantErr(t, "IfAbsent on a present key", try("x", objstore.IfAbsent()), objstore.ErrPrecondition)
	wantErr(t, "IfAbsent with equal body", try("first", objstore.IfAbsent()), objstore.ErrPrecondition)
	wantErr(t, "IfMatch with another ETag", try("x", objstore.IfMatch(first.ETag+"0")), objstore.ErrPrecondition)
	wantBody(t, s, "k", "first")
	second := put(t, s, "k", "second", objstore.IfMatch(first.ETag))
	wantErr(t, "IfMatch with an old ETag", try("x", objstore.IfMatch(first.ETag)), objstore.ErrPrecondition)
	wantBody(t, s, "k", "second")
	third := put(t, s, "k", "third", objstore.Always())
	wantErr(t, "IfMatch after an unconditional write", try("x", objstore.IfMatch(second.ETag)), objstore.ErrPrecondition)
	// The ETag of a read and of a listing serve as well as that of the write.
	if got := wantBody(t, s, "k", "third").ETag; got != third.ETag {
		t.Fatalf("ETag read %q, written %q", got, third.ETag)
	}
	page, err := s.List(ctx, "k", "", 0)
	if err != nil || len(page.Objects) != 1 || page.Objects[0].ETag != third.ETag {
		t.Fatalf("List: %+v, %v; want the ETag %q", page, err, third.ETag)
	}
	if err := s.Delete(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "IfMatch after Delete", try("x", objstore.IfMatch(third.ETag)), objstore.ErrPrecondition)
	put(t, s, "k", "fourth", objstore.IfAbsent())
}

// Different bodies have different ETags, whatever the metadata; equal bodies may have equal ones, and a program
// that relies on either answer would be wrong on some server. What must hold: an IfMatch with the current ETag succeeds.
func testEqualBodies(t *testing.T, s objstore.Store) {
	a := put(t, s, "k", "A", objstore.Always())
	b := put(t, s, "k", "B", objstore.IfMatch(a.ETag))
	if a.ETag == b.ETag {
		t.Fatalf("different bodies have one ETag %q", a.ETag)
	}
	a2 := put(t, s, "k", "A", objstore.IfMatch(b.ETag))
	put(t, s, "k", "C", objstore.IfMatch(a2.ETag))
}

func testMetadata(t *testing.T, s objstore.Store) {
	ctx := t.Context()
	meta := map[string]string{"clsn": "42", "empty": "", "with-blank": "a b;c=\"d\""}
	given := maps.Clone(meta)
	if _, err := s.Put(ctx, "m", []byte("x"), given, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	clear(given) // the store does not keep the caller's map
	body := []byte("y")
	if _, err := s.Put(ctx, "m2", body, nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	body[0] = 'z' // nor the caller's body
	wantBody(t, s, "m2", "y")
	h, err := s.Head(ctx, "m")
	if err != nil || !maps.Equal(h.Metadata, meta) {
		t.Fatalf("Head: metadata %v, %v; want %v", h.Metadata, err, meta)
	}
	h.Metadata["clsn"] = "0" // the caller owns what it got
	if g := wantBody(t, s, "m", "x"); !maps.Equal(g.Metadata, meta) {
		t.Fatalf("Get: metadata %v, want %v", g.Metadata, meta)
	}
	// A Put replaces body and metadata together.
	put(t, s, "m", "x", objstore.Always())
	if g := wantBody(t, s, "m", "x"); len(g.Metadata) != 0 {
		t.Fatalf("metadata %v survived a Put without any", g.Metadata)
	}
	big := map[string]string{"k": strings.Repeat("v", objstore.MaxMetadataBytes-1)}
	if _, err := s.Put(ctx, "m", nil, big, objstore.Always()); err != nil {
		t.Fatalf("metadata of exactly the limit: %v", err)
	}
	if h, err := s.Head(ctx, "m"); err != nil || !maps.Equal(h.Metadata, big) {
		t.Fatalf("metadata of exactly the limit was not kept: %v", err)
	}
}

func testRanges(t *testing.T, s objstore.Store) {
	ctx := t.Context()
	body := make([]byte, 200_000)
	for i := range body {
		body[i] = byte(i * 7 / 3)
	}
	put(t, s, "r", string(body), objstore.Always())
	put(t, s, "empty", "", objstore.Always())
	n := int64(len(body))
	for _, r := range []objstore.Range{
		{Offset: 0, Length: 0}, {Offset: 0, Length: 1}, {Offset: 0, Length: n}, {Offset: 0, Length: n + 1}, {Offset: 1, Length: 0},
		{Offset: 65535, Length: 2}, {Offset: 65536, Length: 65536}, {Offset: 65537, Length: 70000}, {Offset: n - 1, Length: 1},
		{Offset: n - 1, Length: 0}, {Offset: n - 5, Length: 100}, {Offset: 131072, Length: 1},
	} {
		rc, info, err := s.Get(ctx, "r", r)
		if err != nil {
			t.Fatalf("Get %+v: %v", r, err)
		}
		got, err := io.ReadAll(rc)
		rc.Close()
		end := n
		if r.Length != 0 {
			end = min(n, r.Offset+r.Length)
		}
		if err != nil || !bytes.Equal(got, body[r.Offset:end]) {
			t.Fatalf("Get %+v: %d bytes, %v; want %d bytes from %d", r, len(got), err, end-r.Offset, r.Offset)
		}
		if info.Size != n {
			t.Fatalf("Get %+v: Info.Size %d, want the whole object's %d", r, info.Size, n)
		}
	}
	for _, r := range []objstore.Range{{Offset: n, Length: 0}, {Offset: n, Length: 1}, {Offset: n + 1, Length: 0}, {Offset: -1, Length: 1}, {Offset: 0, Length: -1}} {
		_, _, err := s.Get(ctx, "r", r)
		wantErr(t, fmt.Sprintf("Get %+v of %d bytes", r, n), err, objstore.ErrInvalid)
	}
	wantBody(t, s, "empty", "")
	_, _, err := s.Get(ctx, "empty", objstore.Range{Offset: 0, Length: 1})
	wantErr(t, "one byte of the empty object", err, objstore.ErrInvalid)
}

func testSnapshotRead(t *testing.T, s objstore.Store) {
	old := strings.Repeat("old.", 100_000)
	put(t, s, "v", old, objstore.Always())
	rc, info, err := s.Get(t.Context(), "v", objstore.Whole)
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	first := make([]byte, 10)
	if _, err := io.ReadFull(rc, first); err != nil {
		t.Fatal(err)
	}
	put(t, s, "v", strings.Repeat("new!", 100_000), objstore.IfMatch(info.ETag))
	rest, err := io.ReadAll(rc)
	// A server may also break the read off; it may not mix versions.
	if err == nil && string(first)+string(rest) != old {
		t.Fatalf("a read that began before a replacement returned a mixture")
	}
	put(t, s, "v", "x", objstore.Always())
	if err := s.Delete(t.Context(), "v"); err != nil {
		t.Fatal(err)
	}
}

func testBig(t *testing.T, s objstore.Store) {
	body := make([]byte, 17<<20)
	x := uint32(1)
	for i := range body {
		x = x*1664525 + 1013904223
		body[i] = byte(x >> 24)
	}
	info, err := s.Put(t.Context(), "big", body, map[string]string{"clsn": "9"}, objstore.IfAbsent())
	if err != nil {
		t.Fatal(err)
	}
	got, i2, err := objstore.ReadAll(t.Context(), s, "big", 17<<20)
	if err != nil || sha256.Sum256(got) != sha256.Sum256(body) || i2.ETag != info.ETag {
		t.Fatalf("17 MiB came back as %d bytes, %v, ETag %q want %q", len(got), err, i2.ETag, info.ETag)
	}
	rc, _, err := s.Get(t.Context(), "big", objstore.Range{Offset: 16<<20 - 3, Length: 70_000})
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	part, err := io.ReadAll(rc)
	if err != nil || !bytes.Equal(part, body[16<<20-3:][:70_000]) {
		t.Fatalf("range across 16 MiB: %d bytes, %v", len(part), err)
	}
}

// EdgeKeys are valid keys that have broken stores.
func EdgeKeys() []string {
	long := strings.Repeat("k", objstore.MaxKeyBytes)
	keys := []string{
		"a", "a/b", "a/b/c", "a.d", "a.d/b", "a.d/b.d", ".hidden", ".tmp", ".tmp/x", ".locks", "..a", "a..", "...", "~",
		"%", "%25", "%2E", "%+", "a%+", "a%+/b", "a%", "blank in it", " lead", "trail ", "plus+and&amp=?#[]*:;|<>\"'`",
		"ümlaut/ключ/鍵", "\U0001F511", "A", "CON", "x.", "x./y", "-", "_", "a-b", "a0", "a!b",
		long, long[:1023] + "/"[:0], strings.Repeat("a/", 511) + "b", strings.Repeat("%/", 511) + "%", strings.Repeat("é", 512),
		strings.Repeat("p", 200), strings.Repeat("p", 199) + "%", strings.Repeat("p", 198) + "%%%", strings.Repeat("p", 199) + "é",
		strings.Repeat("p", 300), strings.Repeat("p", 300) + "/" + strings.Repeat("q", 300),
		strings.Repeat("p", 203) + "." + "d",
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func testKeys(t *testing.T, s objstore.Store, l Limits) {
	for _, k := range EdgeKeys() {
		if l.Refuses != nil && l.Refuses(k) {
			_, err := s.Put(t.Context(), k, nil, nil, objstore.Always())
			wantErr(t, fmt.Sprintf("Put %.40q", k), err, objstore.ErrInvalid)
		}
	}
	keys := l.usable(EdgeKeys())
	for i, k := range keys {
		put(t, s, k, fmt.Sprint(i), objstore.IfAbsent())
	}
	for i, k := range keys {
		wantBody(t, s, k, fmt.Sprint(i))
		if h, err := s.Head(t.Context(), k); err != nil || h.Key != k {
			t.Fatalf("Head %q: key %q, %v", k, h.Key, err)
		}
	}
	var got []string
	for o, err := range objstore.All(t.Context(), s, "") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, o.Key)
	}
	wantKeys(t, "all", got, keys)
	if l.Tree {
		return
	}
	// Deleting one of a key and its extension leaves the other.
	if err := s.Delete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	_, err := s.Head(t.Context(), "a")
	wantErr(t, "Head of the deleted parent", err, objstore.ErrNotFound)
	if _, err := s.Head(t.Context(), "a/b"); err != nil {
		t.Fatal(err)
	}
}

func wantKeys(t *testing.T, what string, got, want []string) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	for i := range max(len(got), len(want)) {
		g, w := "nothing", "nothing"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Fatalf("%s: %d keys, want %d; key %d is %.60q, want %.60q", what, len(got), len(want), i, g, w)
		}
	}
}

func testInvalid(t *testing.T, s objstore.Store) {
	ctx := t.Context()
	for _, k := range []string{"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a/.", "nul\x00", "line\n", "bad\xff",
		`back\slash`, strings.Repeat("k", objstore.MaxKeyBytes+1), "a\ufffd"} {
		_, err := s.Put(ctx, k, nil, nil, objstore.Always())
		wantErr(t, fmt.Sprintf("Put %.20q", k), err, objstore.ErrInvalid)
		_, _, err = s.Get(ctx, k, objstore.Whole)
		wantErr(t, fmt.Sprintf("Get %.20q", k), err, objstore.ErrInvalid)
		_, err = s.Head(ctx, k)
		wantErr(t, fmt.Sprintf("Head %.20q", k), err, objstore.ErrInvalid)
		wantErr(t, fmt.Sprintf("Delete %.20q", k), s.Delete(ctx, k), objstore.ErrInvalid)
	}
	for _, m := range []map[string]string{{"": "v"}, {"Upper": "v"}, {"under_score": "v"}, {"k": "line\n"}, {"k": "ü"}, {"k": " lead"},
		{strings.Repeat("k", 65): "v"}, {"k": strings.Repeat("v", objstore.MaxMetadataBytes)}} {
		_, err := s.Put(ctx, "k", nil, m, objstore.Always())
		wantErr(t, fmt.Sprintf("Put with metadata %.40v", m), err, objstore.ErrInvalid)
	}
	for _, n := range []int{-1, objstore.MaxListLimit + 1} {
		_, err := s.List(ctx, "", "", n)
		wantErr(t, fmt.Sprintf("List with limit %d", n), err, objstore.ErrInvalid)
	}
	page, err := s.List(ctx, "", "", 0)
	if err != nil || len(page.Objects) != 0 || page.More {
		t.Fatalf("store holds %+v, %v after invalid requests only", page, err)
	}
}

func testCancelled(t *testing.T, s objstore.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Put(ctx, "k", nil, nil, objstore.Always())
	if !errors.Is(err, context.Canceled) || !(errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrUnknown)) {
		t.Fatalf("Put with a cancelled context: %v", err)
	}
	if _, err := s.Head(ctx, "k"); !errors.Is(err, context.Canceled) || errors.Is(err, objstore.ErrNotFound) {
		t.Fatalf("Head with a cancelled context: %v", err)
	}
	if _, err := s.List(ctx, "", "", 0); !errors.Is(err, context.Canceled) {
		t.Fatalf("List with a cancelled context: %v", err)
	}
}

// each runs f in n goroutines that start together.
func each(n int, f func(i int)) {
	var ready, done sync.WaitGroup
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			ready.Wait()
			f(i)
		})
	}
	done.Wait()
}
