package lst

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/btrlog/btrlog/lst/vfs"
)

// The cases of users of similar systems, and the test of each:
//
//	L1  TestEveryTruncation, TestEveryByteFlipped (what is committed behind a cut is there at the next start)
//	L2  TestDamageInDurableDataIsReported, TestDamageBehindTheWindowIsFound
//	L3  TestPayloadHoldsSegmentFile (stale frames), TestDamageBehindTheWindowIsFound (preallocated files)
//	L4  TestPayloadHoldsSegmentFile
//	L5  TestEveryTruncation (the newest file empty), TestCrashAtEveryOperation
//	L6  TestCrashAtEveryOperation
//	L7  TestMissingSegmentIsNamed
//	L8  TestIdleStateIsCarried, TestModel
//	L9  TestIdleStateIsCarried, TestDropOldestKeepsTheBudget
//	L10 TestFullDiskFreesItself
//	L11 TestFullDiskFreesItself
//	L12 TestFailedSyncLatches
//	L13 TestTenThousandStreamsFewDescriptors
//	L14 TestReadersWhileDropping
//	L15 TestModel (read-only opens compare the directory byte for byte), TestReaderBesideLiveWriter
//	L16 TestEveryTruncation (read-only opens too)
//	L17 TestRestartFlatInStreams
//	L18 TestRestartFlatInStreams, TestRestartIsBounded
//	L19 TestAgeRetentionAndClockJumps
//	L20 TestReadersWhileDropping (descriptors), TestRetentionStates (pinned bytes)
//	L21 FuzzSegment, FuzzBodies, TestEveryByteFlipped
//	L22 TestCrashAtEveryOperation (power loss in every operation around a roll)
//	L23 TestCrashLoopLeaksNothing

func memStore(seed uint64, mode Mode) (*vfs.Mem, Options) {
	d := vfs.NewMem(vfs.MemOptions{Seed: seed})
	return d, Options{FS: d, Mode: mode, SegmentBytes: 32 << 10, SnapshotRecords: 100, Inline: true, Random: counter(byte(seed))}
}

func appendOne(t testing.TB, s *Store, id StreamID, seq uint64, val []byte, d Durability) Location {
	t.Helper()
	var b Batch
	b.Append(id, seq, val)
	loc, err := s.Commit(&b, d)
	if err != nil {
		t.Fatalf("append %d: %v", seq, err)
	}
	return loc
}

// lostAfterCrash commits n forced records, cuts the power and counts the losses.
func lostAfterCrash(t *testing.T, seed uint64, mode Mode, lie bool) int {
	d := vfs.NewMem(vfs.MemOptions{Seed: seed, LieAboutSync: lie})
	opt := Options{FS: d, Mode: mode, SegmentBytes: 32 << 10, SnapshotRecords: 50, Inline: true}
	s, _, err := Open("/db", opt)
	if err != nil {
		t.Fatal(err)
	}
	const n = 120
	for seq := uint64(0); seq < n; seq++ {
		appendOne(t, s, sid(1), seq, payload(1, int(seq), 200), Forced)
	}
	opt.FS = d.Crash()
	s, _, err = Open("/db", opt)
	if err != nil {
		if lie {
			return n
		}
		t.Fatalf("seed %d: %v", seed, err)
	}
	lost := 0
	for seq := uint64(0); seq < n; seq++ {
		if got, err := s.View().Get(sid(1), seq, nil); err != nil || !bytes.Equal(got, payload(1, int(seq), 200)) {
			lost++
		}
	}
	return lost
}

func TestForcedSurvivesPowerLoss(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		lostByLies := 0
		for seed := uint64(1); seed <= 30; seed++ {
			if n := lostAfterCrash(t, seed, mode, false); n != 0 {
				t.Fatalf("mode %d seed %d: %d forced records lost", mode, seed, n)
			}
			lostByLies += lostAfterCrash(t, seed, mode, true)
		}
		if lostByLies == 0 {
			t.Fatalf("mode %d: a disk that lies about syncs lost nothing: this test cannot fail", mode)
		}
	}
}

// L3, L4: a payload that is a whole segment file, and stale frames at other
// places, are never taken for frames.
func TestPayloadHoldsSegmentFile(t *testing.T) {
	d, opt := memStore(4, Buffered)
	opt.SegmentBytes = 256 << 10
	s := mustOpen(t, "/db", opt)
	for seq := uint64(0); seq < 50; seq++ {
		appendOne(t, s, sid(1), seq, payload(1, int(seq), 50), Forced)
	}
	file, err := d.ReadFile("/db/" + segmentName(1))
	if err != nil {
		t.Fatal(err)
	}
	appendOne(t, s, sid(2), 0, file, Forced)
	appendOne(t, s, sid(2), 1, []byte("behind"), Acknowledged)
	// A torn end right behind the payload makes recovery look at every byte.
	torn, _ := d.ReadFile("/db/" + segmentName(1))
	d = d.Clone()
	d.WriteFile("/db/"+segmentName(1), append(torn[:len(torn)-3], file...))
	opt.FS = d
	s, rep, err := Open("/db", opt)
	if err != nil {
		t.Fatal(err)
	}
	if rep.CutFile == "" || s.View().Has(sid(2), 1) {
		t.Fatalf("the torn record is still there: %+v", rep)
	}
	if got, err := s.View().Get(sid(2), 0, nil); err != nil || !bytes.Equal(got, file) {
		t.Fatalf("payload: %v", err)
	}
	if st, _ := s.View().Stat(sid(1)); st.Count != 50 {
		t.Fatalf("stat %+v", st)
	}
}

// L5, L6, L22, L23: power loss in every single operation of a life that rolls,
// snapshots, trims and drops; nothing forced is lost and no file is leaked.
func TestCrashAtEveryOperation(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		for at := int64(0); ; at++ {
			d, opt := memStore(uint64(at)+1, mode)
			d.CrashAfter(at)
			forced, trimmed := crashLife(opt)
			if !d.Crashed() {
				if at < 100 {
					t.Fatalf("life has only %d operations", at)
				}
				break
			}
			opt.FS = d.Crash()
			s, rep, err := Open("/db", opt)
			if err != nil {
				t.Fatalf("mode %d, crash in operation %d: %v", mode, at, err)
			}
			st, _ := s.View().Stat(sid(1))
			if st.EOF < forced || st.Trim < trimmed {
				t.Fatalf("mode %d, crash in operation %d: EOF %d trim %d, forced %d and %d; %+v", mode, at, st.EOF, st.Trim, forced, trimmed, rep)
			}
			for seq := st.Trim; seq < st.EOF; seq++ {
				if got, err := s.View().Get(sid(1), seq, nil); err != nil || !bytes.Equal(got, payload(1, int(seq), 700)) {
					t.Fatalf("mode %d, crash in operation %d: record %d: %v", mode, at, seq, err)
				}
			}
			appendOne(t, s, sid(1), st.EOF, payload(1, int(st.EOF), 700), Forced)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// crashLife works until the disk crashes; it returns the EOF and trim point
// whose commits were answered.
func crashLife(opt Options) (eof, trim uint64) {
	s, _, err := Open("/db", opt)
	if err != nil {
		return 0, 0
	}
	var b Batch
	for seq := uint64(0); seq < 150; seq++ {
		b.Reset()
		b.Append(sid(1), seq, payload(1, int(seq), 700))
		if _, err := s.Commit(&b, Forced); err != nil {
			return eof, trim
		}
		eof = seq + 1
		if seq%40 == 39 {
			b.Reset()
			b.Trim(sid(1), seq-10)
			if _, err := s.Commit(&b, Forced); err != nil {
				return eof, trim
			}
			trim = seq - 10
			if _, err := s.Reclaim(); err != nil {
				return eof, trim
			}
		}
	}
	_ = s.Close()
	return eof, trim
}

// L23: a crash loop does not leak files.
func TestCrashLoopLeaksNothing(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		d, opt := memStore(9, mode)
		s := mustOpen(t, "/db", opt)
		appendOne(t, s, sid(1), 0, []byte("x"), Forced)
		used := d.UsedBytes()
		for i := 0; i < 100; i++ {
			d.Kill()
			opt.FS = d
			s = mustOpen(t, "/db", opt)
		}
		if now := d.UsedBytes(); now > used {
			t.Fatalf("mode %d: 100 restarts took the disk from %d to %d bytes", mode, used, now)
		}
		if st, _ := s.View().Stat(sid(1)); st.Count != 1 {
			t.Fatalf("stat %+v", st)
		}
	}
}

// L7: a missing segment in the middle is an error that names it.
func TestMissingSegmentIsNamed(t *testing.T) {
	s := buildSmall(t, Buffered)
	_ = s.disk.Remove("/db/" + segmentName(3))
	opt := s.opt
	var c *Corruption
	if _, _, err := Open("/db", opt); !errors.As(err, &c) || filepath.Base(c.File) != segmentName(3) {
		t.Fatalf("open without a middle segment: %v", err)
	}
	if _, err := OpenReadOnly("/db", opt); !errors.As(err, &c) {
		t.Fatalf("read-only open without a middle segment: %v", err)
	}
}

// L8, L9 and T3: deletes, EOFs of emptied streams and key-values survive drops
// and crashes of all segments that ever held them.
func TestIdleStateIsCarried(t *testing.T) {
	d, opt := memStore(5, Direct)
	s := mustOpen(t, "/db", opt)
	var b Batch
	for seq := uint64(0); seq < 10; seq++ {
		b.Append(sid(7), seq, []byte("idle"))
	}
	b.Put([]byte("keep"), []byte("kept"))
	b.Put([]byte("gone"), []byte("x"))
	b.Append(sid(8), 3, []byte("deleted"))
	if _, err := s.Commit(&b, Forced); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	b.Trim(sid(7), 10)
	b.Delete([]byte("gone"))
	b.DeleteStream(sid(8))
	if _, err := s.Commit(&b, Forced); err != nil {
		t.Fatal(err)
	}
	dropped := 0
	for seq := uint64(0); seq < 400; seq++ {
		appendOne(t, s, sid(1), seq, payload(1, int(seq), 600), Forced)
		if seq%50 == 49 {
			b.Reset()
			b.Trim(sid(1), seq)
			if _, err := s.Commit(&b, Forced); err != nil {
				t.Fatal(err)
			}
			n, err := s.Reclaim()
			if err != nil {
				t.Fatal(err)
			}
			dropped += n
		}
	}
	if dropped < 5 {
		t.Fatalf("only %d segments dropped", dropped)
	}
	opt.FS = d.Crash()
	s = mustOpen(t, "/db", opt)
	v := s.View()
	if st, ok := v.Stat(sid(7)); !ok || st.EOF != 10 || st.Count != 0 || st.Trim != 10 {
		t.Fatalf("idle stream: %+v %v", st, ok)
	}
	if _, ok := v.Stat(sid(8)); ok {
		t.Fatal("deleted stream is back")
	}
	if got, err := v.GetKV([]byte("keep"), nil); err != nil || string(got) != "kept" {
		t.Fatalf("key-value: %q %v", got, err)
	}
	if _, err := v.GetKV([]byte("gone"), nil); !errors.Is(err, ErrNotFound) {
		t.Fatalf("deleted key: %v", err)
	}
}

// L10, L11: a full disk refuses, keeps everything, frees itself by trim and
// reclaim without more space, and goes on.
func TestFullDiskFreesItself(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		d, opt := memStore(6, mode)
		s := mustOpen(t, "/db", opt)
		d.SetCapacity(200 << 10)
		seq := uint64(0)
		fillUp := func() {
			t.Helper()
			var b Batch
			for {
				b.Reset()
				b.Append(sid(1), seq, payload(1, int(seq), 900))
				if _, err := s.Commit(&b, Forced); err != nil {
					if !errors.Is(err, ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
						t.Fatalf("full disk: %v", err)
					}
					return
				}
				seq++
			}
		}
		fillUp()
		full := seq
		if full < 50 {
			t.Fatalf("only %d records fit", full)
		}
		d.Kill() // also across a restart on the full disk
		s = mustOpen(t, "/db", opt)
		if st, _ := s.View().Stat(sid(1)); st.Count != full {
			t.Fatalf("mode %d: %d records after a restart on a full disk, want %d", mode, st.Count, full)
		}
		for round := 0; round < 5; round++ {
			var b Batch
			b.Trim(sid(1), seq-5)
			if _, err := s.Commit(&b, Forced); err != nil {
				t.Fatalf("mode %d: trim on a full disk: %v", mode, err)
			}
			if n, err := s.Reclaim(); err != nil || n == 0 {
				t.Fatalf("mode %d round %d: reclaim on a full disk dropped %d: %v", mode, round, n, err)
			}
			before := seq
			fillUp()
			if seq < before+20 {
				t.Fatalf("mode %d: only %d records after reclaiming", mode, seq-before)
			}
		}
		d.SetCapacity(0)
		appendOne(t, s, sid(1), seq, []byte("space is back"), Forced)
	}
}

// L12: after a failed sync nothing is acknowledged any more.
func TestFailedSyncLatches(t *testing.T) {
	d, opt := memStore(7, Buffered)
	s := mustOpen(t, "/db", opt)
	appendOne(t, s, sid(1), 0, []byte("good"), Forced)
	d.Inject(vfs.Fault{Ops: vfs.OpSync, Times: 1, Err: syscall.EIO})
	var b Batch
	b.Append(sid(1), 1, []byte("bad"))
	_, first := s.Commit(&b, Forced)
	if !errors.Is(first, syscall.EIO) {
		t.Fatalf("failed sync: %v", first)
	}
	b.Reset()
	b.Append(sid(1), 2, []byte("later"))
	if _, err := s.Commit(&b, Acknowledged); err == nil || err.Error() != first.Error() {
		t.Fatalf("commit after a failed sync: %v, want %v", err, first)
	}
	if err := s.Sync(); err == nil || err.Error() != first.Error() {
		t.Fatalf("sync after a failed sync: %v", err)
	}
}

// L14, L20: readers scan while segments are dropped; no fault, no wrong bytes,
// and descriptors stay bounded.
func TestReadersWhileDropping(t *testing.T) {
	for _, cache := range []int{-1, 512 << 10} {
		t.Run(fmt.Sprintf("cache%d", cache), func(t *testing.T) { readersWhileDropping(t, cache) })
	}
}

func readersWhileDropping(t *testing.T, cache int) {
	dir := t.TempDir()
	opt := Options{SegmentBytes: 64 << 10, SnapshotRecords: 300, MaxOpenFiles: 4, TailCacheBytes: cache, Mode: Mode(min(1, max(0, cache)))}
	s := mustOpen(t, dir, opt)
	var stop atomic.Bool
	var reads atomic.Int64
	var wg sync.WaitGroup
	fail := make(chan error, 16)
	for g := 0; g < 3; g++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			v := s.View()
			for !stop.Load() {
				for k := 1; k <= 4; k++ {
					it := v.Range(sid(k), 0, 1<<62)
					for it.Next() {
						if !bytes.Equal(it.Value(), payload(k, int(it.Seq()), 100)) {
							fail <- fmt.Errorf("stream %d record %d has wrong bytes", k, it.Seq())
							return
						}
						reads.Add(1)
					}
					if it.Err() != nil {
						fail <- it.Err()
						return
					}
					if st, ok := v.Stat(sid(k)); ok && st.Count != st.EOF-st.First {
						fail <- fmt.Errorf("torn stat %+v", st)
						return
					}
					if _, err := v.GetKV([]byte("state"), nil); err != nil && !errors.Is(err, ErrNotFound) {
						fail <- err
						return
					}
				}
			}
		}()
	}
	var b Batch
	dropped := 0
	for seq := uint64(0); seq < 2000; seq++ {
		b.Reset()
		for k := 1; k <= 4; k++ {
			b.Append(sid(k), seq, payload(k, int(seq), 100))
		}
		b.Put([]byte("state"), fmt.Append(nil, seq))
		if seq%250 == 249 {
			for k := 1; k <= 4; k++ {
				b.Trim(sid(k), seq-100)
			}
		}
		if _, err := s.Commit(&b, Acknowledged); err != nil {
			t.Fatal(err)
		}
		if seq%250 == 249 {
			n, err := s.Reclaim()
			if err != nil {
				t.Fatal(err)
			}
			dropped += n
		}
	}
	stop.Store(true)
	wg.Wait()
	select {
	case err := <-fail:
		t.Fatal(err)
	default:
	}
	if dropped < 5 || reads.Load() == 0 {
		t.Fatalf("%d segments dropped, %d reads", dropped, reads.Load())
	}
	if n := openDescriptors(t, dir); n > opt.MaxOpenFiles+8 {
		t.Fatalf("%d descriptors open", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := openDescriptors(t, dir); n != 0 {
		t.Fatalf("%d descriptors open after Close", n)
	}
}

func openDescriptors(t *testing.T, dir string) int {
	t.Helper()
	ents, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Logf("descriptors are not listed here: %v", err)
		return 0
	}
	n := 0
	for _, e := range ents {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && filepath.Dir(target) == dir {
			n++
		}
	}
	return n
}

func TestConcurrentCommits(t *testing.T) {
	s := mustOpen(t, t.TempDir(), Options{Mode: Direct, SegmentBytes: 1 << 20, SnapshotRecords: 500})
	defer s.Close()
	var wg sync.WaitGroup
	const writers, each = 16, 100
	errs := make(chan error, writers)
	for g := 0; g < writers; g++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var b Batch
			for seq := 0; seq < each; seq++ {
				b.Reset()
				b.Append(sid(g+1), uint64(seq), payload(g, seq, 64))
				if _, err := s.Commit(&b, Forced); err != nil {
					errs <- err
					return
				}
				if !s.View().Has(sid(g+1), uint64(seq)) {
					errs <- fmt.Errorf("own record %d is not visible", seq)
					return
				}
			}
			b.Reset()
			b.Append(sid(g+1), 0, []byte("again"))
			if _, err := s.Commit(&b, Forced); !errors.Is(err, ErrExists) {
				errs <- fmt.Errorf("second append: %w", err)
			}
		}()
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
	if n := s.Stats().Records; n != writers*each {
		t.Fatalf("%d records", n)
	}
}

// T5, L17, L18: restart work is that of one interval, whatever went before.
func TestRestartIsBounded(t *testing.T) {
	var work []int64
	for _, n := range []int{2_000, 20_000} {
		d, opt := memStore(11, Buffered)
		opt.SegmentBytes, opt.SnapshotRecords, opt.SnapshotBytes = 256<<10, 500, 64<<10
		s := mustOpen(t, "/db", opt)
		for seq := 0; seq < n; seq++ {
			appendOne(t, s, sid(seq%4), uint64(seq/4), payload(1, seq, 100), Acknowledged)
		}
		opt.FS = d.Clone()
		_, rep, err := Open("/db", opt)
		if err != nil {
			t.Fatal(err)
		}
		if rep.ReplayedRecords > 3*opt.SnapshotRecords {
			t.Fatalf("%d records replayed", rep.ReplayedRecords)
		}
		work = append(work, rep.ReplayedBytes+rep.SnapshotBytes)
	}
	if work[1] > work[0]+600<<10 {
		t.Fatalf("restart reads %d bytes behind 2,000 records and %d behind 20,000", work[0], work[1])
	}
}
