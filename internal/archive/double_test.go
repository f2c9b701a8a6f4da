package archive

import (
	"bytes"
	"io"
	"slices"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/memory"
)

// A stretch that is in several packs, whole or in part, is lost only when all copies are: a reader tries each of them, and merging does not
// leave out the good one for being a double.
func TestOneGoodCopyIsEnough(t *testing.T) {
	const last = 9
	// Each pack holds LSNs 1 to last of log 1 in the same members, or in one where whole is its number, and a log of its own.
	for _, whole := range []int{-1, 0, mergeFan - 1} {
		for good := range mergeFan {
			s := memory.New(memory.Options{})
			a := newArchive(t, s, Options{})
			for i := range mergeFan {
				plans := []PackPlan{stretch(1, 1, 1, 4), stretch(1, 1, 5, last), stretch(protocol.LogID(i+2), 1, 1, 3)}
				if i == whole {
					plans = []PackPlan{stretch(1, 1, 1, last), stretch(protocol.LogID(i+2), 1, 1, 3)}
				}
				before := packNames(t, a)
				flushPack(t, a, plans...)
				if i == good {
					continue
				}
				for _, name := range packNames(t, a) {
					if !slices.Contains(before, name) {
						damageMembers(t, a, name, 1)
					}
				}
			}
			check := func() {
				t.Helper()
				a := newArchive(t, s, Options{}) // nothing is cached
				checkLog(t, a, 1, 1, last, 1)
				for i := range mergeFan {
					checkLog(t, a, protocol.LogID(i+2), 1, 3, 1)
				}
			}
			check()
			if r, err := a.MergePacks(t.Context(), inFuture, keepAll); err != nil || r.Merged != mergeFan {
				t.Fatalf("%+v, %v", r, err)
			}
			if r, err := a.MergePacks(t.Context(), inFuture, keepAll); err != nil || r.Deleted != mergeFan {
				t.Fatalf("%+v, %v", r, err)
			}
			check()
			if t.Failed() {
				t.Fatalf("good copy %d, whole copy %d", good, whole)
			}
		}
	}
}

// damageMembers flips a bit in the first record of each member of a log.
func damageMembers(t *testing.T, a *Archive, name string, log protocol.LogID) {
	t.Helper()
	rc, _, err := a.store.Get(t.Context(), name, objstore.Range{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(rc)
	if err != nil {
		t.Fatal(err)
	}
	members, err := a.packDirectory(t.Context(), mustPack(t, a, name))
	if err != nil {
		t.Fatal(err)
	}
	whole := bytes.Clone(b)
	for _, m := range members {
		if m.key.Log == log {
			b[m.offset+m.size/2-20] ^= 1
		}
	}
	if bytes.Equal(whole, b) {
		t.Fatalf("%s holds nothing of log %v", name, log)
	}
	if _, err := a.store.Put(t.Context(), name, b, nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
}
