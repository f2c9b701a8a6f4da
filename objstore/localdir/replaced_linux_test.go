package localdir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/objstore"
)

// The file of a replaced object is open until its blocks are freed, which nobody waits for: but Close does, or a process that opens and closes
// stores would collect descriptors and space.
func TestReplacedFilesAreLetGo(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Put(t.Context(), "k", []byte("0"), nil, objstore.IfAbsent())
	for i := range 100 {
		if err != nil {
			t.Fatal(err)
		}
		info, err = s.Put(t.Context(), "k", []byte{byte(i)}, nil, objstore.IfMatch(info.ETag))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(names) == 0 {
		t.Fatalf("open files of this process: %d, %v", len(names), err)
	}
	for _, name := range names {
		if at, err := os.Readlink(name); err == nil && strings.HasPrefix(at, dir) {
			t.Errorf("open after Close: %s", at)
		}
	}
}
