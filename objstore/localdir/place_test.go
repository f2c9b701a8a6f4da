package localdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/btrlog/btrlog/objstore"
)

// The store's file system is not mounted any more, and another directory is in its place, empty or with another store: a program
// that goes on writes nothing there, calls nothing absent, and goes on when the store is back.
func TestAnotherDirectoryInItsPlace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put := func(key string) error {
		_, err := s.Put(t.Context(), key, []byte("v"), nil, objstore.IfAbsent())
		return err
	}
	if err := put("a"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	unavailable := func(when string) {
		t.Helper()
		_, headErr := s.Head(t.Context(), "a")
		_, _, getErr := s.Get(t.Context(), "a", objstore.Whole)
		_, listErr := s.List(t.Context(), "", "", 0)
		for op, err := range map[string]error{"put": put("b"), "head": headErr, "get": getErr, "list": listErr, "delete": s.Delete(t.Context(), "a")} {
			if !errors.Is(err, objstore.ErrUnavailable) {
				t.Errorf("%s %s: %v, want unavailable", op, when, err)
			}
		}
	}
	unavailable("without a directory")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	unavailable("in an empty directory")
	other, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	unavailable("in another store")
	if page, err := other.List(t.Context(), "", "", 0); err != nil || len(page.Objects) != 0 {
		t.Errorf("the other store holds %v, %v", page.Objects, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if err := put("b"); err != nil {
		t.Errorf("with the store back: %v", err)
	}
}
