package lst

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/lst/vfs"
)

// With DropOldest the store stays within its budget for ever: data leaves from the
// front of each stream, idle state stays.
func TestDropOldestKeepsTheBudget(t *testing.T) {
	for _, inline := range []bool{true, false} {
		d := vfs.NewMem(vfs.MemOptions{Seed: 21})
		opt := Options{FS: d, SegmentBytes: 64 << 10, DiskBudgetBytes: 6 * 64 << 10, DropOldest: true, Inline: inline}
		s := mustOpen(t, "/db", opt)
		var b Batch
		b.Put([]byte("kept"), []byte("for ever"))
		b.Append(sid(9), 4, []byte("idle"))
		if _, err := s.Commit(&b, Forced); err != nil {
			t.Fatal(err)
		}
		const records = 6000
		for i := 0; i < records; i++ {
			appendOne(t, s, sid(i%7), uint64(i/7), payload(i%7, i/7, 400), Acknowledged)
			if used := d.UsedBytes(); used > opt.DiskBudgetBytes+2*opt.SegmentBytes {
				t.Fatalf("inline %v: %d bytes in use, the budget is %d", inline, used, opt.DiskBudgetBytes)
			}
		}
		st := s.Retention()
		if st.Dropped < 30 || st.Expired < 30 || st.UsedBytes > opt.DiskBudgetBytes {
			t.Fatalf("inline %v: %+v", inline, st)
		}
		for n := 0; n < 7; n++ {
			v, _ := s.View().Stat(sid(n))
			if v.Count == 0 || v.First == 0 || v.Count != v.EOF-v.First {
				t.Fatalf("inline %v: stream %d is %+v", inline, n, v)
			}
			if got, err := s.View().Get(sid(n), v.First, nil); err != nil || !bytes.Equal(got, payload(n, int(v.First), 400)) {
				t.Fatalf("inline %v: record %d of %d: %v", inline, v.First, n, err)
			}
		}
		if v, ok := s.View().Stat(sid(9)); !ok || v.EOF != 5 || v.Count != 0 {
			t.Fatalf("inline %v: the idle stream is %+v %v", inline, v, ok)
		}
		if err := checkLive(s); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, "/db", opt)
		if got, err := s.View().GetKV([]byte("kept"), nil); err != nil || string(got) != "for ever" {
			t.Fatalf("%q %v", got, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Records that arrive out of order do not hold a segment for ever.
func TestDropOldestOutOfOrder(t *testing.T) {
	d := vfs.NewMem(vfs.MemOptions{Seed: 22})
	opt := Options{FS: d, SegmentBytes: 64 << 10, DiskBudgetBytes: 5 * 64 << 10, DropOldest: true, Inline: true}
	s := mustOpen(t, "/db", opt)
	for i := 3000; i >= 0; i-- { // descending, over many leaves
		appended := i
		var b Batch
		b.Append(sid(1), uint64(appended), payload(1, i, 300))
		if _, err := s.Commit(&b, Acknowledged); err != nil && !errors.Is(err, ErrTrimmed) {
			t.Fatal(err)
		}
		appendOne(t, s, sid(2), uint64(3000-i), payload(2, i, 300), Acknowledged)
	}
	if st := s.Retention(); st.Dropped < 10 || st.UsedBytes > opt.DiskBudgetBytes {
		t.Fatalf("%+v", st)
	}
	if err := checkLive(s); err != nil {
		t.Fatal(err)
	}
}

// Retention says what state it is in, and why.
func TestRetentionStates(t *testing.T) {
	d := vfs.NewMem(vfs.MemOptions{Seed: 23})
	opt := Options{FS: d, SegmentBytes: 64 << 10, DiskBudgetBytes: 4 * 64 << 10, Inline: true}
	s := mustOpen(t, "/db", opt)
	if st := s.Retention(); st.State != RetentionOK || st.Reason != "" || st.BudgetBytes != opt.DiskBudgetBytes {
		t.Fatalf("%+v", st)
	}
	var seen []string
	seq := uint64(0)
	for {
		var b Batch
		b.Append(sid(1), seq, payload(1, int(seq), 500))
		if _, err := s.Commit(&b, Acknowledged); err != nil {
			if !errors.Is(err, ErrNoSpace) {
				t.Fatal(err)
			}
			break
		}
		seq++
		st := s.Retention()
		if n := len(seen); n == 0 || seen[n-1] != st.State.String() {
			seen = append(seen, st.State.String())
		}
		if st.State == RetentionHeld && !strings.Contains(st.Reason, "not trimmed") {
			t.Fatalf("held: %q", st.Reason)
		}
	}
	if got := strings.Join(seen, ", "); got != "ok, held, reserve only" && got != "ok, held" {
		t.Fatalf("states %s", got)
	}
	if st := s.Retention(); st.State != RetentionReserveOnly && st.State != RetentionHeld {
		t.Fatalf("%+v", st)
	}
	var b Batch
	b.Trim(sid(1), seq-10)
	if _, err := s.Commit(&b, Acknowledged); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Reclaim(); n == 0 || err != nil {
		t.Fatalf("%d %v", n, err)
	}
	if st := s.Retention(); st.State != RetentionOK || st.Dropped == 0 {
		t.Fatalf("%+v", st)
	}
}

// L19: age retention goes on whatever the clock does, and drops nothing young.
func TestAgeRetentionAndClockJumps(t *testing.T) {
	for _, c := range []struct {
		name string
		jump time.Duration
	}{{"steady", 0}, {"ahead and back", 10 * 365 * 24 * time.Hour}, {"behind and back", -10 * 365 * 24 * time.Hour}} {
		d := vfs.NewMem(vfs.MemOptions{Seed: 24})
		now := time.Unix(1_700_000_000, 0)
		opt := Options{FS: d, SegmentBytes: 64 << 10, RetainAge: time.Hour, Inline: true, Now: func() time.Time { return now }}
		s := mustOpen(t, "/db", opt)
		seq := uint64(0)
		// Half a segment a minute.
		minute := func() {
			for k := 0; k < 60; k++ {
				appendOne(t, s, sid(1), seq, payload(1, int(seq), 500), Acknowledged)
				seq++
			}
			now = now.Add(time.Minute)
		}
		for i := 0; i < 30; i++ {
			minute()
		}
		// The wall clock jumps between two runs of the process, and back after some
		// segments were made under the wrong time.
		reopen := func(by time.Duration) {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			now = now.Add(by)
			s = mustOpen(t, "/db", opt)
		}
		if c.jump < 0 {
			reopen(c.jump)
			for i := 0; i < 10; i++ {
				minute()
			}
			if v, _ := s.View().Stat(sid(1)); v.First != 0 {
				t.Fatalf("%s: data of half an hour was dropped: %+v", c.name, v)
			}
			reopen(-c.jump)
		}
		if c.jump > 0 {
			// Segments made ahead of time; what is older then goes, as it must.
			reopen(c.jump)
			for i := 0; i < 10; i++ {
				minute()
			}
			reopen(-c.jump)
		}
		for i := 0; i < 200; i++ {
			minute()
			if i%10 == 0 {
				if _, err := s.Reclaim(); err != nil {
					t.Fatal(err)
				}
			}
		}
		v, _ := s.View().Stat(sid(1))
		kept := v.EOF - v.First
		if kept < 60*55 || kept > 60*90 {
			t.Fatalf("%s: %d records are kept, an hour has 3600: %+v, %+v", c.name, kept, v, s.Retention())
		}
		// An idle store lets go of the rest too: an hour after the last record.
		now = now.Add(2 * time.Hour)
		if _, err := s.Reclaim(); err != nil {
			t.Fatal(err)
		}
		if v, _ := s.View().Stat(sid(1)); v.Count != 0 || v.EOF != seq {
			t.Fatalf("%s: an idle store keeps %+v", c.name, v)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// T6: dropping reads no data, and what is carried forward depends on streams and
// keys, not on messages.
func TestCarryIsIndependentOfMessages(t *testing.T) {
	var carried []float64
	for _, messages := range []int{40_000, 160_000} {
		d := vfs.NewMem(vfs.MemOptions{Seed: 25})
		c := &countFS{FS: d}
		opt := Options{FS: c, SegmentBytes: 256 << 10, DiskBudgetBytes: 8 * 256 << 10, DropOldest: true, Inline: true, TailCacheBytes: -1,
			SnapshotRecords: 1 << 30, SnapshotBytes: 64 << 10, SnapshotInterval: time.Hour, Now: func() time.Time { return time.Unix(1, 0) }}
		s := mustOpen(t, "/db", opt)
		var b Batch
		for k := 0; k < 300; k++ {
			b.Put(fmt.Appendf(nil, "key %d", k), []byte("value"))
			b.Append(sid(1000+k), 7, []byte("idle"))
		}
		if _, err := s.Commit(&b, Acknowledged); err != nil {
			t.Fatal(err)
		}
		reads, user := c.bytes.Load(), int64(0)
		for i := 0; i < messages; i += 20 {
			b.Reset()
			for k := i; k < i+20; k++ {
				b.Append(sid(k%50), uint64(k/50), payload(1, k, 100))
			}
			user += int64(b.Bytes())
			if _, err := s.Commit(&b, Acknowledged); err != nil {
				t.Fatal(err)
			}
		}
		st := s.Retention()
		if st.Dropped < 10 {
			t.Fatalf("%+v", st)
		}
		if n := c.bytes.Load() - reads; n > int64(st.Dropped)*4096 {
			t.Fatalf("%d bytes were read to drop %d segments", n, st.Dropped)
		}
		carried = append(carried, float64(s.Stats().WrittenBytes-user)/float64(st.Dropped))
		t.Logf("%d messages: %d segments dropped, %d bytes read, %.0f index bytes for each", messages, st.Dropped, c.bytes.Load()-reads, carried[len(carried)-1])
	}
	if carried[1] > 1.1*carried[0] {
		t.Fatalf("index bytes for each dropped segment: %.0f, with four times the messages %.0f", carried[0], carried[1])
	}
}

// Hot backup: a copy of the files of a store that is being written, newest first,
// opens; it holds what was acknowledged when it began.
func TestHotBackup(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		dir := t.TempDir()
		opt := Options{Mode: mode, SegmentBytes: 128 << 10, SnapshotRecords: 200}
		s := mustOpen(t, dir, opt)
		stop, done := make(chan struct{}), make(chan error, 1)
		started := make(chan struct{})
		go func() {
			var b Batch
			for seq := uint64(0); ; seq++ {
				if seq == 700 {
					close(started)
				}
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				b.Reset()
				b.Append(sid(1), seq, payload(1, int(seq), 300))
				if _, err := s.Commit(&b, Acknowledged); err != nil {
					done <- err
					return
				}
			}
		}()
		<-started
		st, _ := s.View().Stat(sid(1))
		for round := 0; round < 3; round++ {
			to := t.TempDir()
			files, err := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
			if err != nil {
				t.Fatal(err)
			}
			sort.Sort(sort.Reverse(sort.StringSlice(files)))
			for _, f := range files {
				raw, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(to, filepath.Base(f)), raw, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			r, err := OpenReadOnly(to, opt)
			if err != nil {
				t.Fatalf("mode %d: the copy does not open: %v", mode, err)
			}
			got, _ := r.View().Stat(sid(1))
			if got.EOF < st.EOF || got.Count != got.EOF {
				t.Fatalf("mode %d: the copy has %+v, at its beginning there was %+v", mode, got, st)
			}
			r.Close()
			st = got
			w, _, err := Open(to, opt)
			if err != nil {
				t.Fatalf("mode %d: the copy does not open for writing: %v", mode, err)
			}
			appendOne(t, w, sid(1), got.EOF, []byte("goes on"), Forced)
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		close(stop)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A publisher that sends again after a crash is told what is there already.
func TestDeduplicatingPublisher(t *testing.T) {
	_, opt := memStore(26, Direct)
	opt.SegmentBytes = 1 << 20
	s := mustOpen(t, "/db", opt)
	appendOne(t, s, sid(1), 0, []byte("a"), Forced)
	appendOne(t, s, sid(1), 1, []byte("b"), Forced)
	before := s.Stats().ActiveOffset
	var b Batch
	b.Append(sid(2), 0, []byte("new"))
	b.Append(sid(1), 1, []byte("again"))
	_, err := s.Commit(&b, Forced)
	var e *Exists
	if !errors.Is(err, ErrExists) || !errors.As(err, &e) || e.Stream != sid(1) || e.Seq != 1 || e.EOF != 2 {
		t.Fatalf("%v", err)
	}
	if _, ok := s.View().Stat(sid(2)); ok || s.Stats().ActiveOffset != before {
		t.Fatal("a part of the refused batch was written")
	}
	if got, err := s.View().Get(sid(1), 1, nil); err != nil || string(got) != "b" {
		t.Fatalf("%q %v", got, err)
	}
	b.Reset()
	b.Put([]byte("k"), make([]byte, maxValueBytes+1))
	if _, err := s.Commit(&b, Forced); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), fmt.Sprint(maxValueBytes)) {
		t.Fatalf("a value over the limit: %v", err)
	}
	b.Reset()
	b.Put([]byte("k"), make([]byte, maxValueBytes))
	b.DeleteStream(sid(1))
	if _, err := s.Commit(&b, Forced); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.View().Stat(sid(1)); ok {
		t.Fatal("the deleted stream is there")
	}
}

// A range of 64 records reads at most two nodes of the index.
func TestRangeTouchesTwoNodes(t *testing.T) {
	_, opt := memStore(27, Buffered)
	s := mustOpen(t, "/db", opt)
	var b Batch
	for seq := uint64(0); seq < 2000; seq++ {
		b.Append(sid(1), seq, []byte("record"))
	}
	if _, err := s.Commit(&b, Acknowledged); err != nil {
		t.Fatal(err)
	}
	most := 0
	for from := uint64(0); from+64 <= 2000; from += 13 {
		it := s.View().Range(sid(1), from, from+64)
		n := 0
		for it.Next() {
			n++
		}
		if n != 64 || it.Err() != nil {
			t.Fatalf("%d records from %d: %v", n, from, it.Err())
		}
		most = max(most, it.IndexNodes())
	}
	if most != 2 {
		t.Fatalf("%d index nodes for 64 records", most)
	}
}
