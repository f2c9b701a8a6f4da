package lst

import (
	"testing"

	"github.com/btrlog/btrlog/lst/vfs"
)

// carryStore has n streams with a record each, and no snapshot of the last ones yet.
func carryStore(t *testing.T, n, every int) (*Store, *vfs.Mem, Options) {
	d, opt := memStore(51, Buffered)
	opt.SegmentBytes, opt.SnapshotRecords, opt.SnapshotBytes = 1<<20, 1<<30, 1<<40
	s := mustOpen(t, "/db", opt)
	var b Batch
	for k := range n {
		b.Append(sid(k), 0, payload(k, 0, 20))
	}
	if _, err := s.Commit(&b, Acknowledged); err != nil {
		t.Fatal(err)
	}
	s.opt.SnapshotRecords = every
	return s, d, opt
}

// While somebody drives a snapshot commits carry it evenly: none of them much more than
// its part, and together all of it before the next one is due.
func TestCommitsCarryEvenly(t *testing.T) {
	const streams, every = 2000, 500
	for _, base := range []bool{true, false} {
		s, _, _ := carryStore(t, streams, every)
		if !base {
			if err := s.Snapshot(); err != nil { // the first one is a base
				t.Fatal(err)
			}
			for k := range streams {
				appendOne(t, s, sid(k), 1, []byte("x"), Acknowledged)
			}
			for s.snap.running {
				appendOne(t, s, sid(0), s.View().mustEOF(t, sid(0)), []byte("x"), Acknowledged)
			}
			s.opt.SnapshotRecords = 1 << 30
			for k := range streams {
				appendOne(t, s, sid(k), s.View().mustEOF(t, sid(k)), []byte("x"), Acknowledged)
			}
			s.opt.SnapshotRecords = every
		}
		s.mu.Lock()
		s.snap.drivers++
		taken := s.snap.taken
		s.snapBegin()
		if s.snap.base != base {
			t.Fatalf("base %v", s.snap.base)
		}
		s.mu.Unlock()
		commits, most, sifts := 0, 0, 0
		for ; s.snap.taken == taken; commits++ {
			was, sift := s.snap.encoded, s.snap.sift
			appendOne(t, s, sid(1), s.View().mustEOF(t, sid(1)), []byte("x"), Acknowledged)
			most, sifts = max(most, s.snap.encoded-was), max(sifts, sift-s.snap.sift)
			if commits > every {
				t.Fatalf("base %v: not at its end after %d commits, %d of %d entries", base, commits, s.snap.encoded, s.snap.entries)
			}
		}
		if part := 5 * streams / every / 4; most > 4*part || commits < every/4 {
			t.Errorf("base %v: one of %d commits encoded %d entries, %d each would do", base, commits, most, part)
		}
		if !base && (sifts == 0 || sifts > 4*4*stepEntries) {
			t.Errorf("one commit put %d streams in order", sifts)
		}
		s.mu.Lock()
		s.snap.drivers--
		s.mu.Unlock()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func (v View) mustEOF(t *testing.T, id StreamID) uint64 {
	t.Helper()
	st, ok := v.Stat(id)
	if !ok {
		t.Fatalf("no stream %v", id)
	}
	return st.EOF
}

// A base takes some streams ahead; what becomes of them before they are written is in
// the store after a restart all the same.
func TestStreamsTakenAheadOfABase(t *testing.T) {
	s, d, opt := carryStore(t, 40, 1<<30)
	s.mu.Lock()
	s.snapBegin()
	for s.snap.encoded == 0 {
		s.encodeEntry(1 << 20)
	}
	ahead := append([]*stream(nil), s.snap.ahead...)
	s.mu.Unlock()
	if len(ahead) < 4 || !s.snap.base {
		t.Fatalf("%d streams are taken ahead, base %v", len(ahead), s.snap.base)
	}
	var b Batch
	b.DeleteStream(ahead[0].id) // goes
	b.DeleteStream(ahead[1].id) // comes back
	b.Trim(ahead[2].id, 5)
	b.Append(ahead[3].id, 1, []byte("grows"))
	if _, err := s.Commit(&b, Acknowledged); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	b.Append(ahead[1].id, 7, []byte("again"))
	between := ahead[0].id
	between[15]++ // created between two that were taken
	b.Append(between, 0, []byte("new"))
	if _, err := s.Commit(&b, Acknowledged); err != nil {
		t.Fatal(err)
	}
	check := func(v View, when string) {
		t.Helper()
		if _, ok := v.Stat(ahead[0].id); ok {
			t.Errorf("%s: the deleted stream is there", when)
		}
		if st, _ := v.Stat(ahead[1].id); st.EOF != 8 || st.Count != 1 {
			t.Errorf("%s: deleted and made again: %+v", when, st)
		}
		if st, _ := v.Stat(ahead[2].id); st.EOF != 5 || st.Count != 0 {
			t.Errorf("%s: trimmed: %+v", when, st)
		}
		if st, _ := v.Stat(ahead[3].id); st.EOF != 2 || st.Count != 2 {
			t.Errorf("%s: grown: %+v", when, st)
		}
		if st, _ := v.Stat(between); st.Count != 1 {
			t.Errorf("%s: created between: %+v", when, st)
		}
	}
	check(s.View(), "before")
	if err := s.Snapshot(); err != nil { // ends the base
		t.Fatal(err)
	}
	for i, when := range []string{"behind the base", "behind a delta"} {
		opt.FS = d.Clone()
		o := mustOpen(t, "/db", opt)
		check(o.View(), when)
		if i == 0 {
			if err := s.Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The next segment is made without rests as soon as the active one fills half as fast
// as it is made.
func TestAheadOfTheActiveSegment(t *testing.T) {
	s, _, _ := carryStore(t, 1, 1<<30)
	size := s.active.size
	for _, c := range []struct {
		used, done, more int64
		want             bool
	}{{64, size / 4, 0, true}, {size / 8, size / 4, 0, true}, {size/8 + 1, size / 4, 0, false}, {size / 2, size - 1, 0, false},
		{64, size / 4, size/8 - 64, true}, {64, size / 4, size / 8, false}, {64, size - 1, size, false}} {
		s.nextOff = c.used
		if got := s.ahead(c.done, size, c.more); got != c.want {
			t.Errorf("%d used, %d more, %d made: %v", c.used, c.more, c.done, got)
		}
	}
}
