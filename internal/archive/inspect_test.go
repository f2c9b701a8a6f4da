package archive

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

func TestContents(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	flush(t, a, plan(1, 1, 1, 10, 10, 0))
	flush(t, a, plan(1, 11, 11, 30, 25, 0)) // proves up to 25
	flushPack(t, a, stretch(testLog, 1, 31, 35), stretch(5, 1, 1, 9), stretch(testLog, 2, 40, 45))
	flush(t, a, plan(1, 1, 3, 7, 7, 0)) // a double
	flush(t, a, plan(2, 3, 3, 7, 7, 0)) // another label: none
	c, err := a.Contents(t.Context(), testLog)
	if err != nil || len(c.Stored) != 6 || len(c.Broken)+len(c.Foreign) != 0 || c.Through() != 45 {
		t.Fatalf("%+v, %v", c, err)
	}
	for _, s := range c.Stored {
		if s.Double != (s.Key.First == 3 && s.Key.Label == 1) || s.Replaced || s.Packed != (s.Key.First > 30) {
			t.Errorf("%+v", s)
		}
		if err := a.Verify(t.Context(), &s); err != nil {
			t.Error(err)
		}
	}
	for _, m := range []struct {
		from, through protocol.LSN
		lost          protocol.LostRanges
		want          []protocol.Range
	}{
		{1, 25, nil, nil},
		{1, 45, nil, []protocol.Range{{From: 26, To: 30}, {From: 36, To: 39}}},
		{28, 50, nil, []protocol.Range{{From: 28, To: 30}, {From: 36, To: 39}, {From: 46, To: 50}}},
		{1, 50, protocol.LostRanges{{From: 26, To: 30, Epoch: 2}, {From: 37, To: 38, Epoch: 2}, {From: 47, To: 99, Epoch: 3}},
			[]protocol.Range{{From: 36, To: 36}, {From: 39, To: 39}, {From: 46, To: 46}}},
		{60, 50, nil, nil},
	} {
		if got := c.Missing(m.from, m.through, m.lost); !slices.Equal(got, m.want) {
			t.Errorf("%d to %d without %v: %v, want %v", m.from, m.through, m.lost, got, m.want)
		}
	}
}

// What is broken is named, and what was merged is no double while it waits to be deleted.
func TestContentsOfABrokenStore(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	flush(t, a, plan(1, 1, 1, 10, 10, 0))
	whole := keys(t, a)[0]
	for i := range protocol.LSN(mergeFan) {
		flushPack(t, a, stretch(testLog, 1, 11+i, 11+i))
	}
	if r, err := a.MergePacks(t.Context(), inFuture, keepAll); r.Merged != mergeFan || err != nil {
		t.Fatal(r, err)
	}
	put := func(key string, b []byte) {
		if _, err := s.Put(t.Context(), key, b, nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
	}
	cut := whole
	cut.Hash[0]++
	put(a.KeyString(cut), []byte("short"))
	put(a.logPrefix(testLog)+"readme", []byte("hello"))
	damaged := whole
	damaged.First, damaged.Last = 100, 109
	put(a.KeyString(damaged), make([]byte, 4096))
	c, err := a.Contents(t.Context(), testLog)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Broken) != 1 || !strings.Contains(c.Broken[0], a.KeyString(cut)) || len(c.Foreign) != 1 {
		t.Errorf("broken %q, foreign %q", c.Broken, c.Foreign)
	}
	replaced := 0
	for _, s := range c.Stored {
		if s.Double {
			t.Errorf("%+v", s)
		}
		if s.Replaced {
			replaced++
		}
		if err := a.Verify(t.Context(), &s); errors.Is(err, ErrDamaged) != (s.Key == damaged) || err != nil && !strings.Contains(err.Error(), a.KeyString(damaged)) {
			t.Errorf("%+v: %v", s.Key, err)
		}
	}
	if replaced != mergeFan {
		t.Errorf("%d of %d sources are known to be replaced", replaced, mergeFan)
	}
	name := packNames(t, a)[0]
	put(name, make([]byte, 500))
	if c, err = newArchive(t, s, Options{}).Contents(t.Context(), testLog); err != nil || len(c.Broken) != 2 || !strings.Contains(c.Broken[1], name) {
		t.Errorf("%q, %v", c.Broken, err)
	}
}
