package lst

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/btrlog/btrlog/lst/vfs"
)

var (
	restartStreams = flag.Int("lst.streams", 20_000, "streams of the larger store of TestRestartFlatInStreams")
	restartRecords = flag.Int("lst.restart", 300_000, "records replayed by TestRecoveryRate")
)

// restartStore builds a store whose last interval is the same whatever its number
// of streams and its size, and returns what a restart reads.
func restartStore(t *testing.T, mode Mode, streams, records int) (RecoveryReport, *Store) {
	t.Helper()
	d := vfs.NewMem(vfs.MemOptions{Seed: 4})
	opt := Options{FS: d, Mode: mode, SegmentBytes: 4 << 20, SnapshotRecords: 10_000, SnapshotBytes: 1 << 40, SnapshotInterval: time.Hour, Inline: true, TailCacheBytes: -1}
	s := mustOpen(t, "/db", opt)
	var b Batch
	msg := make([]byte, 150)
	for i := 0; i < records; i++ {
		b.Append(sid(i%streams), uint64(i/streams), msg)
		if b.Len() == 50 {
			if _, err := s.Commit(&b, Acknowledged); err != nil {
				t.Fatal(err)
			}
			b.Reset()
		}
	}
	if err := s.Snapshot(); err != nil {
		t.Fatal(err)
	}
	// The last interval: 5,000 records of streams that the snapshot knows.
	for i := records; i < records+5000; i++ {
		b.Append(sid(i%streams), uint64(i/streams), msg)
		if b.Len() == 50 {
			if _, err := s.Commit(&b, Acknowledged); err != nil {
				t.Fatal(err)
			}
			b.Reset()
		}
	}
	opt.FS = d.Clone()
	opt.lazyInline = true
	again, rep, err := Open("/db", opt)
	if err != nil {
		t.Fatal(err)
	}
	if rep.BytesRead > rep.BoundBytes {
		t.Fatalf("%d bytes read, the bound is %d", rep.BytesRead, rep.BoundBytes)
	}
	return rep, again
}

// T5, L17, L18: what a restart reads, and how often it asks, does not depend on
// the number of streams or the size of the store.
func TestRestartFlatInStreams(t *testing.T) {
	records := 40_000
	if underRace && *restartStreams == 20_000 {
		*restartStreams = 3000
	}
	for _, mode := range []Mode{Buffered, Direct} {
		few, _ := restartStore(t, mode, 100, records)
		many, s := restartStore(t, mode, *restartStreams, max(records, *restartStreams))
		big, _ := restartStore(t, mode, 100, 3*records)
		t.Logf("mode %d: 100 streams: %d bytes in %d calls; %d streams: %d in %d; three times the records: %d in %d; bound %d", mode,
			few.BytesRead, few.Reads, *restartStreams, many.BytesRead, many.Reads, big.BytesRead, big.Reads, few.BoundBytes)
		if n := few.ReplayedRecords; n < 5000 || n > 10_000 || many.ReplayedRecords != n || big.ReplayedRecords != n {
			t.Fatalf("replayed %d, %d, %d", few.ReplayedRecords, many.ReplayedRecords, big.ReplayedRecords)
		}
		// Direct files are looked at whole in Inline mode: up to one segment and the next.
		for _, o := range []RecoveryReport{many, big} {
			// Where in its segment the interval ends moves both by one window of reading
			// and the calls for one more file.
			if float64(o.BytesRead) > 1.2*float64(few.BytesRead)+1<<20 || float64(o.Reads) > 1.2*float64(few.Reads)+8 {
				t.Fatalf("mode %d: %d bytes in %d calls, with 100 streams %d in %d", mode, o.BytesRead, o.Reads, few.BytesRead, few.Reads)
			}
		}
		// And what was not read is there when it is asked for.
		if s.ix.cold.Load() == nil {
			t.Fatal("everything was read")
		}
		st, ok := s.View().Stat(sid(7))
		if !ok || st.Count != st.EOF || st.EOF == 0 {
			t.Fatalf("stat %+v %v", st, ok)
		}
		if got, err := s.View().Get(sid(7), st.EOF-1, nil); err != nil || len(got) != 150 {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if s.ix.streams.len() != 1 {
			t.Fatalf("%d streams were read for one", s.ix.streams.len())
		}
		n := 0
		s.View().Streams(nil, func(StreamID) bool { n++; return true })
		if n != *restartStreams || s.Stats().Loading {
			t.Fatalf("%d streams", n)
		}
	}
}

// Recovery after the process ended without Close, to the last record verified:
// the rate is printed, 1 M records/s is asked for where nothing else runs.
func TestRecoveryRate(t *testing.T) {
	dir := t.TempDir()
	opt := Options{SegmentBytes: 1 << 30, SnapshotRecords: 1 << 30, SnapshotBytes: 1 << 40, SnapshotInterval: time.Hour}
	s := mustOpen(t, dir, opt)
	var b Batch
	msg := payload(1, 2, 128)
	for i := 0; i < *restartRecords; {
		b.Reset()
		for k := 0; k < 100; k++ {
			b.Append(sid(1), uint64(i), msg)
			i++
		}
		if _, err := s.Commit(&b, Acknowledged); err != nil {
			t.Fatal(err)
		}
	}
	copyDir := t.TempDir()
	raw, err := os.ReadFile(dir + "/" + segmentName(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copyDir+"/"+segmentName(1), raw, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before := cpuTime()
	again, rep, err := Open(copyDir, opt)
	spent := cpuTime() - before
	if err != nil || rep.ReplayedRecords != *restartRecords {
		t.Fatalf("%+v %v", rep, err)
	}
	last := uint64(*restartRecords - 1)
	if got, err := again.View().Get(sid(1), last, nil); err != nil || len(got) != len(msg) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	t.Logf("%d records in %v: %.2f M/s; %.2f M per second of processor time", rep.ReplayedRecords, rep.Elapsed,
		float64(rep.ReplayedRecords)/rep.Elapsed.Seconds()/1e6, float64(rep.ReplayedRecords)/spent.Seconds()/1e6)
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// cpuTime is what this process has used of the processors.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Readers ask for streams and keys while the restart's rest comes in, and the
// writer goes on: each sees the whole state of a stream or none of it.
func TestColdReadersBesideWriter(t *testing.T) {
	dir := t.TempDir()
	opt := Options{SegmentBytes: 4 << 20, SnapshotRecords: 3000, SnapshotInterval: time.Hour}
	s := mustOpen(t, dir, opt)
	const streams, each = 3000, 4
	var b Batch
	for i := 0; i < streams*each; {
		b.Reset()
		for k := 0; k < 200; k++ {
			b.Append(sid(i%streams), uint64(i/streams), payload(i%streams, i/streams, 40))
			i++
		}
		b.Put(fmt.Appendf(nil, "key %d", i%500), fmt.Appendf(nil, "value %d", i%500))
		if _, err := s.Commit(&b, Acknowledged); err != nil {
			t.Fatal(err)
		}
	}
	b.Reset()
	b.DeleteStream(sid(5))
	b.Trim(sid(6), 3)
	if _, err := s.Commit(&b, Acknowledged); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for round := uint64(0); round < 5; round++ {
		s = mustOpen(t, dir, opt)
		errs := make(chan error, 3)
		for g := uint64(0); g < 2; g++ {
			go func() {
				r := rand.New(rand.NewPCG(round, g))
				for i := 0; i < 2000; i++ {
					n := r.IntN(streams)
					st, ok := s.View().Stat(sid(n))
					switch {
					case n == 5 && ok, n == 6 && (st.Trim != 3 || st.First != 3), n != 5 && (!ok || st.EOF < each || st.Count != st.EOF-st.First):
						errs <- fmt.Errorf("round %d: stream %d is %+v %v", round, n, st, ok)
						return
					}
				}
				errs <- nil
			}()
		}
		go func() {
			var b Batch
			for i := 0; i < 300; i++ {
				n := 10 + (i*37+int(round)*11)%(streams-10)
				st, _ := s.View().Stat(sid(n))
				b.Reset()
				b.Append(sid(n), st.EOF, payload(n, int(st.EOF), 40))
				if _, err := s.Commit(&b, Acknowledged); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
		for g := 0; g < 3; g++ {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		if err := s.View().Err(); err != nil {
			t.Fatal(err)
		}
		if err := checkLive(s); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A restart looks only a window far behind the end it has found; the keeper looks at
// the rest, and a hole in durable data that is wider than the window stops the store.
func TestDamageBehindTheWindowIsFound(t *testing.T) {
	for _, hole := range []bool{false, true} {
		d := vfs.NewMem(vfs.MemOptions{Seed: 31})
		opt := Options{FS: d, Mode: Direct, SegmentBytes: 24 << 20, SnapshotRecords: 1 << 30, SnapshotBytes: 1 << 40, SnapshotInterval: time.Hour}
		s := mustOpen(t, "/db", opt)
		var b Batch
		from := int64(0)
		for seq := uint64(0); seq < 100; seq++ {
			b.Reset()
			b.Append(sid(1), seq, payload(1, int(seq), 120<<10))
			loc, err := s.Commit(&b, Forced)
			if err != nil {
				t.Fatal(err)
			}
			if seq == 20 {
				from = loc.Offset // a hole that begins inside a frame would be seen at once
			}
		}
		raw, err := d.ReadFile("/db/" + segmentName(1))
		if err != nil {
			t.Fatal(err)
		}
		if hole {
			clear(raw[from : from+zeroWindow+1<<20])
		}
		c := vfs.NewMem(vfs.MemOptions{})
		if err := c.MkdirAll("/db"); err != nil {
			t.Fatal(err)
		}
		c.WriteFile("/db/"+segmentName(1), raw)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		opt.FS = c
		s, rep, err := Open("/db", opt)
		if err != nil {
			t.Fatal(err)
		}
		if !hole && rep.BytesRead > rep.BoundBytes {
			t.Fatalf("%+v", rep)
		}
		seq := uint64(100)
		if hole {
			seq = uint64(rep.ReplayedRecords)
		}
		// The segment has room for some of these in front of the window's end only.
		for deadline := time.Now().Add(time.Minute); ; seq++ {
			b.Reset()
			b.Append(sid(1), seq, payload(1, int(seq), 120<<10))
			if _, err = s.Commit(&b, Forced); err != nil || !hole && seq == 300 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the damage was not found")
			}
		}
		var corrupt *Corruption
		if hole != errors.As(err, &corrupt) || !hole && err != nil {
			t.Fatalf("hole %v: %v", hole, err)
		}
		if hole && corrupt.File != "/db/"+segmentName(1) {
			t.Fatalf("%v", corrupt)
		}
		_ = s.Close() // a stopped store says so again
	}
}
