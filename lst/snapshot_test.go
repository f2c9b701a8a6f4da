package lst

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/btrlog/btrlog/lst/vfs"
)

// A base with so many pieces that its root needs more than what rides along with
// a commit: it still completes, by small commits alone.
func TestLargeRootCompletes(t *testing.T) {
	d := vfs.NewMem(vfs.MemOptions{Seed: 2})
	opt := Options{FS: d, SegmentBytes: 16 << 20, SnapshotRecords: 1 << 30, SnapshotBytes: 1 << 40, SnapshotInterval: time.Hour, Inline: true,
		Now: func() time.Time { return time.Unix(1, 0) }}
	s := mustOpen(t, "/db", opt)
	var b Batch
	key := func(i int) []byte {
		return fmt.Appendf(nil, "a key that is long enough to make the root large %08d", i)
	}
	const keys = 50_000
	for i := 0; i < keys; i += 500 {
		b.Reset()
		for k := i; k < i+500; k++ {
			b.Put(key(k), bytes.Repeat([]byte{byte(k)}, 90))
		}
		if _, err := s.Commit(&b, Acknowledged); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	s.snapBegin()
	s.mu.Unlock()
	due, seq := false, uint64(0)
	for ; s.Stats().Snapshots == 0; seq++ {
		if seq > 10_000 {
			t.Fatal("the snapshot does not end")
		}
		appendOne(t, s, sid(1), seq, []byte("small"), Acknowledged)
		s.mu.Lock()
		due = due || s.snap.rootDue > indexRoomBytes
		s.mu.Unlock()
	}
	if !due {
		t.Fatal("the root was not larger than what rides along")
	}
	for i := 0; i < keys; i += 2 {
		b.Reset()
		b.Delete(key(i))
		if i%5000 == 0 {
			if _, err := s.Commit(&b, Acknowledged); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Snapshot(); err != nil {
		t.Fatal(err)
	}
	opt.FS = d.Crash()
	s, rep, err := Open("/db", opt)
	if err != nil || rep.Snapshot != 2 {
		t.Fatalf("%v %+v", err, rep)
	}
	if st, _ := s.View().Stat(sid(1)); st.EOF != seq || s.Stats().KVs != keys-keys/5000 {
		t.Fatalf("%+v, %d keys", st, s.Stats().KVs)
	}
}

// A stream that is deleted and made again under its old id while a base is being
// written: the delta that reports the deletion must not take the new one with it.
func TestStreamMadeAgainDuringBase(t *testing.T) {
	_, opt := memStore(3, Direct)
	opt.SegmentBytes, opt.SnapshotRecords, opt.SnapshotBytes, opt.SnapshotInterval = 1<<20, 1<<30, 1<<40, time.Hour
	opt.Now = func() time.Time { return time.Unix(1, 0) }
	s := mustOpen(t, "/db", opt)
	var b Batch
	for k := 1; k < 200; k++ {
		b.Append(sid(k), 5, payload(k, 5, 100))
		b.Put(fmt.Appendf(nil, "%03d", k), bytes.Repeat([]byte("v"), 100))
	}
	if _, err := s.Commit(&b, Forced); err != nil {
		t.Fatal(err)
	}
	// The streams must be clean: a deletion of one that no snapshot has is no news.
	if err := s.Snapshot(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.snap.wantBase = true
	s.snapBegin()
	if !s.snap.base {
		t.Fatal("not a base")
	}
	s.mu.Unlock()
	for n := 0; s.Stats().Snapshots == 1; n++ {
		k := 199 - n*7%199 // from the end: not visited yet
		b.Reset()
		b.DeleteStream(sid(k))
		b.Delete(fmt.Appendf(nil, "%03d", k))
		if _, err := s.Commit(&b, Forced); err != nil {
			t.Fatal(err)
		}
		b.Reset()
		b.Append(sid(k), 9, payload(k, 9, 50))
		b.Put(fmt.Appendf(nil, "%03d", k), []byte("new"))
		if _, err := s.Commit(&b, Forced); err != nil {
			t.Fatal(err)
		}
	}
	want := map[StreamID]Stat{}
	s.View().Streams(nil, func(id StreamID) bool { want[id], _ = s.View().Stat(id); return true })
	if err := s.Snapshot(); err != nil { // the delta with the deletions
		t.Fatal(err)
	}
	s.lock.Close()
	again := mustOpen(t, "/db", opt)
	if again.snap.last.base {
		t.Fatal("not a delta")
	}
	n := 0
	again.View().Streams(nil, func(id StreamID) bool {
		n++
		if got, _ := again.View().Stat(id); got != want[id] {
			t.Fatalf("stream %v is %+v, was %+v", id, got, want[id])
		}
		return true
	})
	if n != len(want) || again.Stats().KVs != 199 {
		t.Fatalf("%d streams of %d, %d keys", n, len(want), again.Stats().KVs)
	}
}

// Two snapshots end in writes that are in flight together: the second must build on
// the first, not on the one before.
func TestSnapshotsInFlightTogether(t *testing.T) {
	_, opt := memStore(8, Direct)
	opt.SegmentBytes, opt.SnapshotRecords, opt.SnapshotInterval = 1<<20, 5, time.Hour
	opt.Now = func() time.Time { return time.Unix(1, 0) }
	s := mustOpen(t, "/db", opt)
	const writes = 40
	var flight []Write
	for n := uint64(0); n < writes; n++ {
		var b Batch
		for k := uint64(0); k < 10; k++ {
			b.Append(sid(1), n*10+k, []byte("x"))
		}
		w, err := s.Prepare(&b)
		if err != nil {
			t.Fatal(err)
		}
		flight = append(flight, w)
		if len(flight) < 3 {
			continue
		}
		for _, w := range flight {
			if err := s.Complete(w, w.Execute()); err != nil {
				t.Fatal(err)
			}
		}
		flight = flight[:0]
	}
	for _, w := range flight {
		if err := s.Complete(w, w.Execute()); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Stats().Snapshots; n < 3 {
		t.Fatalf("%d snapshots", n)
	}
	s.lock.Close()
	again := mustOpen(t, "/db", opt)
	if st, _ := again.View().Stat(sid(1)); st.Count != writes*10 || st.Contiguous != writes*10 {
		t.Fatalf("%+v, want %d records", st, writes*10)
	}
}

// Two snapshots stand in the last segment, and a write between them did not reach the
// disk: the first of them holds, not the one that the link names, whose segment it let
// go.
func TestTearBetweenSnapshots(t *testing.T) {
	d, opt := memStore(33, Buffered)
	opt.SnapshotRecords = 1 << 20
	s := mustOpen(t, "/db", opt)
	seq := uint64(0)
	add := func() Location {
		seq++
		return appendOne(t, s, sid(1), seq-1, make([]byte, 1000), Acknowledged)
	}
	add()
	if err := s.Snapshot(); err != nil {
		t.Fatal(err)
	}
	for s.Stats().Active == 1 {
		add()
	}
	var b Batch
	b.Trim(sid(1), seq)
	if _, err := s.Commit(&b, Acknowledged); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Reclaim(); n != 1 || err != nil {
		t.Fatalf("%d segments dropped, %v", n, err)
	}
	first := s.Stats().Snapshots
	torn := add()
	if err := s.Snapshot(); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Active != 2 || torn.Segment != 2 || st.Snapshots <= first {
		t.Fatalf("the snapshots were meant to be in segment 2: %+v", st)
	}
	for _, lazy := range []bool{false, true} {
		disk := d.Clone()
		name := segmentPath("/db", torn.Segment)
		data, _ := disk.ReadFile(name)
		data = append([]byte(nil), data...)
		data[torn.Offset+int64(torn.Length)/2] ^= 1
		disk.WriteFile(name, data)
		opt.FS, opt.lazyInline = disk, lazy
		again, rep, err := Open("/db", opt)
		if err != nil {
			t.Fatalf("lazy %v: %v", lazy, err)
		}
		st, _ := again.View().Stat(sid(1))
		if rep.CutFile != name || rep.CutOffset != torn.Offset || st.EOF != seq-1 || st.Trim != seq-1 || st.Count != 0 {
			t.Errorf("lazy %v: %+v, %+v", lazy, rep, st)
		}
		appendOne(t, again, sid(1), seq-1, []byte("again"), Forced)
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A commit, and a caller that writes snapshots, encodes a few entries at a time: what
// one encodes under the lock, every commit beside it waits for.
func TestSnapshotIsEncodedInSteps(t *testing.T) {
	_, opt := memStore(4, Direct)
	opt.SegmentBytes, opt.SnapshotRecords, opt.SnapshotBytes, opt.SnapshotInterval = 1<<20, 1<<30, 1<<40, time.Hour
	opt.Now = func() time.Time { return time.Unix(1, 0) }
	s := mustOpen(t, "/db", opt)
	const streams = 1000
	var b Batch
	for k := 1; k <= streams; k++ {
		b.Append(sid(k), 0, payload(k, 0, 50))
		b.Put(fmt.Appendf(nil, "%04d", k), []byte("value"))
	}
	if _, err := s.Commit(&b, Forced); err != nil {
		t.Fatal(err)
	}
	dirty := func() (n int) {
		s.View().Streams(nil, func(id StreamID) bool {
			if s.ix.byID.get(&id).dirty {
				n++
			}
			return true
		})
		s.ix.kvs.ascend(nil, func(e *kvEntry) bool {
			if e.dirty {
				n++
			}
			return true
		})
		return n
	}
	for round, base := range []bool{true, false} {
		b.Reset()
		for k := 1; k <= streams; k++ {
			b.Append(sid(k), uint64(1+round), payload(k, 1, 50))
			b.Put(fmt.Appendf(nil, "%04d", k), []byte("newer"))
		}
		if _, err := s.Commit(&b, Forced); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		s.snap.wantBase = base
		s.snapBegin()
		s.mu.Unlock()
		taken := s.Stats().Snapshots
		steps, last := 0, dirty()
		for ; s.Stats().Snapshots == taken; steps++ {
			if steps%2 == 0 {
				appendOne(t, s, sid(streams+1), uint64(steps+10_000*round), []byte("small"), Forced)
			} else {
				s.mu.Lock()
				s.encodeStep()
				s.mu.Unlock()
			}
			now := dirty()
			if last-now > stepEntries {
				t.Fatalf("base %v: step %d encoded %d entries, %d at most", base, steps, last-now, stepEntries)
			}
			last = now
			if steps > streams {
				t.Fatal("the snapshot does not end")
			}
		}
		if steps < 2*streams/stepEntries {
			t.Fatalf("%d entries in %d steps", 2*streams, steps)
		}
	}
	want := map[StreamID]Stat{}
	s.View().Streams(nil, func(id StreamID) bool { want[id], _ = s.View().Stat(id); return true })
	s.lock.Close()
	again := mustOpen(t, "/db", opt)
	if again.snap.last.number != 2 || len(want) != streams+1 || again.Stats().KVs != streams {
		t.Fatalf("snapshot %d, %d streams, %d keys", again.snap.last.number, len(want), again.Stats().KVs)
	}
	for id, st := range want {
		if got, _ := again.View().Stat(id); got != st {
			t.Fatalf("stream %v is %+v, was %+v", id, got, st)
		}
	}
}
