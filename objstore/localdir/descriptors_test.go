//go:build unix

package localdir

import (
	"errors"
	"syscall"
	"testing"

	"github.com/btrlog/btrlog/objstore"
)

// A process without a free descriptor for a moment cannot sync a directory. That is no failed sync, after which the store would
// refuse everything until the process is restarted.
func TestNoDescriptorForASync(t *testing.T) {
	s, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put := func(key string) error {
		_, err := s.Put(t.Context(), key, []byte("v"), nil, objstore.IfAbsent())
		return err
	}
	if err := put("d/a"); err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}
	defer restore()
	s.step = func(step string) {
		if step == "renamed" {
			none := limit
			none.Cur = 0
			if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = put("d/b")
	restore()
	s.step = func(string) {}
	if !errors.Is(err, objstore.ErrUnknown) || !errors.Is(err, syscall.EMFILE) {
		t.Errorf("a put whose name could not be synced: %v, want an unknown outcome for want of a descriptor", err)
	}
	if _, err := s.Head(t.Context(), "d/b"); err != nil {
		t.Errorf("with descriptors again: %v", err)
	}
	if err := put("d/c"); err != nil {
		t.Errorf("with descriptors again: %v", err)
	}
}
