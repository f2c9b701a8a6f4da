package archive

import (
	"slices"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/memory"
)

func TestExpired(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	a := newArchive(t, memory.New(memory.Options{Now: func() time.Time { return now }}), Options{})
	start := now
	at := func(hours int) time.Time { return start.Add(time.Duration(hours) * time.Hour) }
	for i := range protocol.LSN(4) { // 1–40, one object an hour
		now = at(int(i))
		flush(t, a, plan(1, i*10+1, i*10+1, i*10+10, 40, 0))
	}
	now = at(4)
	flush(t, a, plan(1, 51, 51, 60, 60, 0)) // behind a hole
	size := int64(0)
	for _, o := range mustList(t, a) {
		size = max(size, o.Size)
	}
	for _, c := range []struct {
		what string
		from protocol.LSN
		r    Retention
		want protocol.LSN
	}{
		{"nothing asked", 1, Retention{}, 1},
		{"nothing is old enough", 1, Retention{Before: at(0)}, 1},
		{"one is", 1, Retention{Before: at(1)}, 11},
		{"the trim point is inside the second object", 15, Retention{Before: at(2)}, 21},
		{"the trim point is above", 33, Retention{Before: at(2)}, 33},
		{"all are, but behind the hole nothing may go", 1, Retention{Before: at(99)}, 41},
		{"the hole is lost on record", 1, Retention{Before: at(99), Lost: protocol.LostRanges{{From: 41, To: 45, Epoch: 2}, {From: 46, To: 50, Epoch: 3}}}, 61},
		{"a part of the hole is", 1, Retention{Before: at(99), Lost: protocol.LostRanges{{From: 41, To: 49, Epoch: 2}}}, 41},
		{"the trim point is in it", 44, Retention{Before: at(99), Lost: protocol.LostRanges{{From: 41, To: 50, Epoch: 2}}}, 61},
		{"bytes behind it", 1, Retention{Bytes: 1, Lost: protocol.LostRanges{{From: 41, To: 50, Epoch: 2}}}, 41},
		{"more bytes than there are", 1, Retention{Bytes: 99 * size}, 1},
		{"as many bytes as the last object has", 1, Retention{Bytes: 1}, 31},
		{"two objects' worth", 1, Retention{Bytes: size + 1}, 21},
		{"whichever asks for more", 1, Retention{Before: at(1), Bytes: 1}, 31},
		{"an empty log", 100, Retention{Before: at(99), Bytes: 1}, 100},
	} {
		if got, err := a.Expired(t.Context(), testLog, c.from, c.r); got != c.want || err != nil {
			t.Errorf("%s: %d, %v; want %d", c.what, got, err, c.want)
		}
	}
	// A young copy of old records keeps them: nobody can say which of the two a reader is about to use.
	now = at(50)
	flush(t, a, plan(2, 5, 5, 8, 8, 0)) // a repair of a later epoch
	if got, err := a.Expired(t.Context(), testLog, 1, Retention{Before: at(49)}); got > 5 || err != nil {
		t.Errorf("with a young copy of 5–8: %d, %v", got, err)
	}
}

func TestExpiredWithoutClock(t *testing.T) {
	a := newArchive(t, memory.New(memory.Options{}), Options{})
	flush(t, a, plan(1, 1, 1, 10, 10, 0))
	if got, err := a.Expired(t.Context(), testLog, 1, Retention{Before: time.Now()}); got != 1 || err != nil {
		t.Errorf("objects of unknown age were called old: %d, %v", got, err)
	}
}

func TestLogIDs(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	var want []protocol.LogID
	for _, id := range []protocol.LogID{1, 2, 0x0fffffffffffffff, 0x1000000000000000, ^protocol.LogID(0)} {
		for i := range protocol.LSN(3) {
			p := plan(1, i*10+1, i*10+1, i*10+10, 40, 0)
			p.Log = id
			flush(t, a, p)
		}
		want = append(want, id)
	}
	before := a.Counters().List.Attempts()
	var got []protocol.LogID
	for id, err := range a.LogIDs(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, id)
	}
	if !slices.Equal(got, want) {
		t.Errorf("logs %v, want %v", got, want)
	}
	if n := a.Counters().List.Attempts() - before; n != uint64(len(want)+1) {
		t.Errorf("%d requests for %d logs", n, len(want))
	}
}

func mustList(t *testing.T, a *Archive) []objstore.Info {
	t.Helper()
	var all []objstore.Info
	for o, err := range objstore.All(t.Context(), a.store, a.prefix) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}
