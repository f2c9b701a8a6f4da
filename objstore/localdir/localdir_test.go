package localdir

import (
	"testing"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/objtest"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	objtest.Run(t, func(t *testing.T) objstore.Store { return open(t, t.TempDir()) })
}
