package lst

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/btrlog/btrlog/lst/vfs"
)

// A read-only opener beside a live writer that rolls, trims and drops sees a
// consistent, growing store and no false damage.
func TestReaderBesideLiveWriter(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		dir := t.TempDir()
		opt := Options{Mode: mode, SegmentBytes: 128 << 10, SnapshotRecords: 200}
		s := mustOpen(t, dir, opt)
		appendOne(t, s, sid(1), 0, payload(1, 0, 300), Forced)
		done := make(chan error, 1)
		go func() {
			var b Batch
			for seq := uint64(1); seq < 1500; seq++ {
				b.Reset()
				b.Append(sid(1), seq, payload(1, int(seq), 300))
				if seq%200 == 0 {
					b.Trim(sid(1), seq-50)
				}
				if _, err := s.Commit(&b, Acknowledged); err != nil {
					done <- err
					return
				}
				if seq%200 == 0 {
					if _, err := s.Reclaim(); err != nil {
						done <- err
						return
					}
				}
			}
			done <- nil
		}()
		r, err := OpenReadOnly(dir, opt)
		if err != nil {
			t.Fatalf("mode %d: %v", mode, err)
		}
		last, rounds := uint64(0), 0
		for running := true; running; rounds++ {
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				running = false
			default:
			}
			if err := r.Refresh(); err != nil {
				t.Fatalf("mode %d, refresh %d: %v", mode, rounds, err)
			}
			st, ok := r.View().Stat(sid(1))
			if !ok || st.EOF < last || st.Count != st.EOF-st.First {
				t.Fatalf("mode %d: stat %+v %v after EOF %d", mode, st, ok, last)
			}
			last = st.EOF
			got, err := r.View().Get(sid(1), st.EOF-1, nil)
			if running && errors.Is(err, ErrTrimmed) {
				continue // the writer has trimmed and dropped past it since the refresh
			}
			if err != nil || !bytes.Equal(got, payload(1, int(st.EOF-1), 300)) {
				t.Fatalf("mode %d: record %d: %v", mode, st.EOF-1, err)
			}
		}
		if last != 1500 {
			t.Fatalf("mode %d: the reader ended at %d", mode, last)
		}
		r.Close()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

const killEnv = "LST_TEST_KILL_DIR"

// The child of TestKill9 appends and prints what was acknowledged.
func TestKillChild(t *testing.T) {
	dir := os.Getenv(killEnv)
	if dir == "" {
		return // nothing to do unless TestKill9 started this process
	}
	s := mustOpen(t, dir, Options{SegmentBytes: 256 << 10, SnapshotRecords: 300})
	st, _ := s.View().Stat(sid(1))
	for seq := st.EOF; ; seq++ {
		appendOne(t, s, sid(1), seq, payload(1, int(seq), 200), Acknowledged)
		fmt.Println(seq)
		if seq%500 == 499 {
			var b Batch
			b.Trim(sid(1), seq-100)
			if _, err := s.Commit(&b, Acknowledged); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Reclaim(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

var killRounds = flag.Int("lst.kills", 10, "rounds of TestKill9")

// attached is a reader beside a writer that is killed: it sees a growing store,
// whole records and no damage, whatever happens to the writer.
func attached(dir string, stop <-chan struct{}, result chan<- error) {
	var r *Reader
	last, n := uint64(0), 0
	for {
		select {
		case <-stop:
			if r != nil {
				r.Close()
			}
			if n == 0 {
				result <- errors.New("the reader saw nothing")
				return
			}
			result <- nil
			return
		default:
		}
		var err error
		if r == nil {
			if r, err = OpenReadOnly(dir, Options{}); err != nil {
				result <- err
				return
			}
		} else if err = r.Refresh(); err != nil {
			result <- err
			return
		}
		st, ok := r.View().Stat(sid(1))
		if !ok {
			continue // not a record yet
		}
		if st.EOF < last || st.Count != st.EOF-st.First {
			result <- fmt.Errorf("the reader sees %+v after EOF %d", st, last)
			return
		}
		last = st.EOF
		if st.Count > 0 {
			got, err := r.View().Get(sid(1), st.EOF-1, nil)
			if err != nil && !errors.Is(err, ErrTrimmed) || err == nil && !bytes.Equal(got, payload(1, int(st.EOF-1), 200)) {
				result <- fmt.Errorf("the reader: record %d: %d bytes, %v", st.EOF-1, len(got), err)
				return
			}
			n++
		}
	}
}

// Acknowledged commits survive a real kill -9 of the writer, with a reader attached
// all the time.
func TestKill9(t *testing.T) {
	dir := t.TempDir()
	// The store exists before the reader looks.
	if err := mustOpen(t, dir, Options{SegmentBytes: 256 << 10}).Close(); err != nil {
		t.Fatal(err)
	}
	stop, reader := make(chan struct{}), make(chan error, 1)
	go attached(dir, stop, reader)
	defer func() {
		close(stop)
		if err := <-reader; err != nil {
			t.Error(err)
		}
	}()
	for round := 0; round < *killRounds; round++ {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestKillChild$")
		cmd.Env = append(os.Environ(), killEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		acked, seen := uint64(0), 0
		stuck := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		for seen < 300+97*(round%10) {
			var seq uint64
			if _, err := fmt.Fscanln(out, &seq); err != nil {
				t.Fatalf("round %d: the writer stopped after %d: %v", round, acked, err)
			}
			acked = seq
			seen++
		}
		stuck.Stop()
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed, as it should be
		s, rep, err := Open(dir, Options{SegmentBytes: 256 << 10})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		st, _ := s.View().Stat(sid(1))
		if st.EOF <= acked || st.Count != st.EOF-st.First {
			t.Fatalf("round %d: %+v, acknowledged %d; %+v", round, st, acked, rep)
		}
		for seq := st.First; seq < st.EOF; seq++ {
			if got, err := s.View().Get(sid(1), seq, nil); err != nil || !bytes.Equal(got, payload(1, int(seq), 200)) {
				t.Fatalf("round %d: record %d: %v", round, seq, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Where there is no direct I/O the store falls back, says so, and still forces.
func TestDirectFallsBack(t *testing.T) {
	d := vfs.NewMem(vfs.MemOptions{Seed: 1, NoDirect: true})
	opt := Options{FS: d, Mode: Direct, SegmentBytes: 32 << 10, Inline: true}
	s, rep, err := Open("/db", opt)
	if err != nil || rep.Direct || rep.DirectReason == "" || s.Stats().DirectReason == "" {
		t.Fatalf("%v %+v", err, rep)
	}
	appendOne(t, s, sid(1), 0, []byte("x"), Forced)
	opt.FS = d.Crash()
	s = mustOpen(t, "/db", opt)
	if !s.View().Has(sid(1), 0) {
		t.Fatal("forced record is lost")
	}
}

// A budget refuses, and reclaiming ends the refusal, in the background too.
func TestDiskBudget(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{SegmentBytes: 64 << 10, DiskBudgetBytes: 5 * 64 << 10})
	defer s.Close()
	var b Batch
	var err error
	seq := uint64(0)
	for ; err == nil; seq++ {
		b.Reset()
		b.Append(sid(1), seq, payload(1, int(seq), 500))
		_, err = s.Commit(&b, Acknowledged)
	}
	if !errors.Is(err, ErrNoSpace) || seq < 300 {
		t.Fatalf("record %d: %v", seq, err)
	}
	b.Reset()
	b.Trim(sid(1), seq-20)
	if _, err := s.Commit(&b, Acknowledged); err != nil {
		t.Fatalf("trim over budget: %v", err)
	}
	if n, err := s.Reclaim(); err != nil || n < 2 {
		t.Fatalf("reclaim: %d %v", n, err)
	}
	for end := seq + 300; seq < end; seq++ {
		b.Reset()
		b.Append(sid(1), seq, payload(1, int(seq), 500))
		if seq%50 == 49 {
			b.Trim(sid(1), seq-20)
		}
		if _, err := s.Commit(&b, Acknowledged); err != nil {
			if !errors.Is(err, ErrNoSpace) {
				t.Fatal(err)
			}
			if _, err := s.Reclaim(); err != nil {
				t.Fatal(err)
			}
			seq--
		}
	}
}

// L13: ten thousand streams are one write descriptor.
func TestTenThousandStreamsFewDescriptors(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{SegmentBytes: 1 << 20, MaxOpenFiles: 3, TailCacheBytes: -1})
	var b Batch
	for round := uint64(0); round < 3; round++ {
		for i := 0; i < 10_000; i += 500 {
			b.Reset()
			for k := i; k < i+500; k++ {
				b.Append(StreamID{1: byte(k >> 8), 2: byte(k)}, round, payload(k, int(round), 100))
			}
			if _, err := s.Commit(&b, Acknowledged); err != nil {
				t.Fatal(err)
			}
		}
	}
	for k := 0; k < 10_000; k += 7 {
		if got, err := s.View().Get(StreamID{1: byte(k >> 8), 2: byte(k)}, 0, nil); err != nil || !bytes.Equal(got, payload(k, 0, 100)) {
			t.Fatalf("stream %d: %v", k, err)
		}
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	// Readers, the lock, the active segment, the spare, and those about to close.
	if n := openDescriptors(t, dir); n > 3+1+1+1+6 {
		t.Fatalf("%d descriptors for 10,000 streams", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
