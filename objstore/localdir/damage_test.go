package localdir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/objtest"
)

// Every flipped byte and every truncation of an object's file is an error that names the file, never
// other content and never "not found".
func TestEveryDamageIsNoticed(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := s.Put(t.Context(), "a/obj", []byte("some body"), map[string]string{"clsn": "7"}, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	path := s.path("a/obj")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, bad []byte) {
		t.Helper()
		if err := os.WriteFile(path, bad, fileMode); err != nil {
			t.Fatal(err)
		}
		body, _, err := objstore.ReadAll(t.Context(), s, "a/obj", 1000)
		if !errors.Is(err, objstore.ErrDamaged) || !strings.Contains(err.Error(), path) {
			t.Fatalf("%s: read %q, %v; want ErrDamaged that names %s", what, body, err, path)
		}
		page, err := s.List(t.Context(), "", "", 0)
		if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != "a/obj" {
			t.Fatalf("%s: listing %+v, %v hides the object", what, page.Objects, err)
		}
	}
	for i := range good {
		for _, mask := range []byte{0x01, 0x80, 0xff} {
			bad := bytes.Clone(good)
			bad[i] ^= mask
			check(fmt.Sprintf("byte %d ^ %#x", i, mask), bad)
		}
		check(fmt.Sprintf("cut to %d", i), good[:i])
	}
	check("one byte more", append(bytes.Clone(good), 0))
	// A damaged object still counts as present for create-if-absent, and an unconditional Put mends it.
	if _, err := s.Put(t.Context(), "a/obj", nil, nil, objstore.IfAbsent()); !errors.Is(err, objstore.ErrPrecondition) {
		t.Fatalf("IfAbsent over a damaged object: %v", err)
	}
	if _, err := s.Put(t.Context(), "a/obj", nil, nil, objstore.IfMatch("x")); !errors.Is(err, objstore.ErrDamaged) {
		t.Fatalf("IfMatch over a damaged object: %v", err)
	}
	if _, err := s.Put(t.Context(), "a/obj", []byte("mended"), nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
}

func TestDamageInsideRangeOnly(t *testing.T) {
	s := open(t, t.TempDir())
	body := make([]byte, 3*blockBytes)
	if _, err := s.Put(t.Context(), "k", body, nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	path := s.path("k")
	file, _ := os.ReadFile(path)
	file[len(file)-1] ^= 1
	os.WriteFile(path, file, fileMode)
	read := func(r objstore.Range) error {
		rc, _, err := s.Get(t.Context(), "k", r)
		if err != nil {
			return err
		}
		defer rc.Close()
		_, err = io.Copy(io.Discard, rc)
		return err
	}
	if err := read(objstore.Range{Offset: 10, Length: blockBytes}); err != nil {
		t.Fatalf("range without damage: %v", err)
	}
	if err := read(objstore.Range{Offset: 2*blockBytes + 5, Length: 1}); !errors.Is(err, objstore.ErrDamaged) {
		t.Fatalf("range in a damaged block: %v", err)
	}
}

func TestMisplacedFile(t *testing.T) {
	s := open(t, t.TempDir())
	for _, k := range []string{"a", "b"} {
		if _, err := s.Put(t.Context(), k, []byte(k), nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(s.path("a"), s.path("b")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Head(t.Context(), "b"); !errors.Is(err, objstore.ErrDamaged) || !strings.Contains(err.Error(), `"a"`) {
		t.Fatalf("object a in the place of b: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "precious"), nil, fileMode)
	if _, err := Open(dir, Options{}); err == nil || !strings.Contains(err.Error(), "precious") {
		t.Fatalf("Open of a directory with other files: %v", err)
	}
	dir = t.TempDir()
	open(t, dir)
	os.WriteFile(filepath.Join(dir, markerName), []byte("btrlog object store, local directory, format 2\n"), fileMode)
	if _, err := Open(dir, Options{}); err == nil || !strings.Contains(err.Error(), "format 2") {
		t.Fatalf("Open of a newer format: %v", err)
	}
	file := filepath.Join(dir, "file")
	os.WriteFile(file, nil, fileMode)
	if _, err := Open(file, Options{}); err == nil {
		t.Fatal("Open of a file succeeded")
	}
	for _, u := range []string{"file://host/x", "file:relative", "file:///x?y=z", "file://"} {
		if _, err := objstore.Open(t.Context(), u); err == nil {
			t.Errorf("Open(%q) succeeded", u)
		}
	}
	dir = filepath.Join(t.TempDir(), "made", "on demand")
	s, err := objstore.Open(t.Context(), "file://"+strings.ReplaceAll(dir, " ", "%20"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "file://" + dir; s.String() != want {
		t.Fatalf("store is %s, want %s", s, want)
	}
}

// Files that people drop into the directory are not objects, unless their names could be.
func TestForeignNames(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for _, n := range []string{".DS_Store", "bad%zz", "lower%2e", "x%2Fy"} {
		os.WriteFile(filepath.Join(dir, n), []byte("?"), fileMode)
	}
	os.Mkdir(filepath.Join(dir, "lost+found"), dirMode)
	os.Mkdir(filepath.Join(dir, "empty.d"), dirMode)
	if page, err := s.List(t.Context(), "", "", 0); err != nil || len(page.Objects) != 0 {
		t.Fatalf("listing shows %+v, %v", page.Objects, err)
	}
}

func TestPathsAreDistinct(t *testing.T) {
	s := &Store{dir: "/s"}
	seen := make(map[string]string)
	for _, k := range objtest.EdgeKeys() {
		p := s.path(k)
		if other, dup := seen[p]; dup {
			t.Errorf("keys %.40q and %.40q share the path %s", k, other, p)
		}
		seen[p] = k
		if !s.owns(k, p) || !strings.HasPrefix(p, "/s/") {
			t.Errorf("key %.40q has path %s", k, p)
		}
		for e := range strings.SplitSeq(p, "/") {
			if len(e) > 255 || slices.Contains([]string{".", "..", markerName, tempDir, lockDir}, e) {
				t.Errorf("key %.40q has the path element %s", k, e)
			}
		}
	}
}

// A reader settles what a dead writer renamed but did not sync; afterwards it is not synced again.
func TestReaderSettles(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, dir), open(t, dir)
	if _, err := a.Put(t.Context(), "x/k", []byte("1"), nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	id := func() uint64 {
		f, h, err := b.openObject("get", "x/k", b.path("x/k"), false)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		return h.writeID
	}
	for name, read := range map[string]func() error{
		"head": func() error { _, err := b.Head(t.Context(), "x/k"); return err },
		"list": func() error { _, err := b.List(t.Context(), "x/", "", 0); return err },
		"get":  func() error { _, _, err := objstore.ReadAll(t.Context(), b, "x/k", 10); return err },
		"refused create": func() error {
			_, err := b.Put(t.Context(), "x/k", nil, nil, objstore.IfAbsent())
			if errors.Is(err, objstore.ErrPrecondition) {
				return nil
			}
			return fmt.Errorf("create over an object: %v", err)
		},
	} {
		if b.isDurable(b.path("x/k"), id()) {
			t.Fatalf("before %s: b believes to know an object it never saw", name)
		}
		if err := read(); err != nil {
			t.Fatal(err)
		}
		if !b.isDurable(b.path("x/k"), id()) || !b.madeDir[filepath.Dir(b.path("x/k"))] {
			t.Fatalf("%s reported an object without making its name durable", name)
		}
		// Another version is another name to settle.
		if _, err := a.Put(t.Context(), "x/k", []byte("1"), nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
	}
}

// Who reads to replace settles nothing: his Put does, of his version, and a refusal does, of the one that is there.
func TestReplacingSettlesLater(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, dir), open(t, dir)
	at := b.path("x/k")
	settled := func() bool {
		f, h, err := b.openObject("get", "x/k", at, false)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return b.isDurable(at, h.writeID)
	}
	first, err := a.Put(t.Context(), "x/k", []byte("1"), nil, objstore.Always())
	if err != nil {
		t.Fatal(err)
	}
	body, info, err := objstore.ReadAll(objstore.Replacing(t.Context()), b, "x/k", 10)
	if err != nil || string(body) != "1" || info.ETag != first.ETag {
		t.Fatalf("read %q %q, %v", body, info.ETag, err)
	}
	if settled() {
		t.Error("a read for who replaces it settled the object")
	}
	if _, err := b.Put(t.Context(), "x/k", []byte("2"), nil, objstore.IfMatch(first.ETag)); err != nil {
		t.Fatal(err)
	}
	if !settled() || !b.madeDir[filepath.Dir(at)] {
		t.Error("a put did not settle its own version")
	}
	if _, err := a.Put(t.Context(), "x/k", []byte("3"), nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(t.Context(), "x/k", []byte("4"), nil, objstore.IfMatch(first.ETag)); !errors.Is(err, objstore.ErrPrecondition) {
		t.Fatalf("put over another version: %v", err)
	}
	if !settled() {
		t.Error("a refusal told of a version that may not last")
	}
}

// A failed directory sync stops the store: later success would prove nothing.
func TestFailedSyncIsFinal(t *testing.T) {
	s := open(t, t.TempDir())
	if _, err := s.Put(t.Context(), "k", []byte("v"), nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	err := errors.New("input/output error")
	s.failed.Store(&err)
	for what, got := range map[string]error{
		"put":    func() error { _, err := s.Put(t.Context(), "k2", nil, nil, objstore.Always()); return err }(),
		"head":   func() error { _, err := s.Head(t.Context(), "k"); return err }(),
		"list":   func() error { _, err := s.List(t.Context(), "", "", 0); return err }(),
		"delete": s.Delete(t.Context(), "k"),
	} {
		if !errors.Is(got, objstore.ErrUnavailable) || !errors.Is(got, err) {
			t.Errorf("%s after a failed sync: %v", what, got)
		}
	}
}
