package lst

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/btrlog/btrlog/lst/vfs"
)

// The keeper opens the next segment when the active one is nearly full: the commit that
// rolls opens nothing, and what was committed before and behind it is there.
func TestRollOpensAhead(t *testing.T) {
	m := vfs.NewMem(vfs.MemOptions{Seed: 1})
	s, _, err := Open("d", Options{FS: m, SegmentBytes: minSegmentBytes})
	if err != nil {
		t.Fatal(err)
	}
	var b Batch
	seq := uint64(0)
	payload := make([]byte, 512)
	locked := func(ok func() bool) func() bool {
		return func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return ok()
		}
	}
	commit := func() {
		t.Helper()
		b.Reset()
		b.Append(sid(1), seq, payload)
		if _, err := s.Commit(&b, Acknowledged); err != nil {
			t.Fatal(err)
		}
		seq++
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !ok(); runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("waited 20 s: %s", what)
			}
		}
	}
	for range 20 {
		wait("the next segment is made", locked(func() bool { return s.spare != nil }))
		near := locked(func() bool { return s.room() <= s.active.size/8 })
		first := s.Stats().Active
		for !near() {
			if locked(func() bool { return s.spare.file != nil })() {
				t.Fatal("the next segment was opened while there was room for long")
			}
			commit()
			if s.Stats().Active != first {
				t.Fatalf("segment %d rolled before it was nearly full", first)
			}
		}
		wait("the next segment is opened", locked(func() bool { return s.spare.file != nil }))
		m.Inject(vfs.Fault{Ops: vfs.OpOpen, Path: segmentName(first + 1), Times: 1, Err: syscall.EIO})
		for s.Stats().Active == first {
			commit()
		}
		m.ClearFaults()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _, err = Open("d", Options{FS: m, SegmentBytes: minSegmentBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if st, _ := s.View().Stat(sid(1)); st.Count != seq || st.EOF != seq {
		t.Fatalf("%d records up to %d, want %d", st.Count, st.EOF, seq)
	}
}

// gatedFS lets a file be created only when something was sent to gate.
type gatedFS struct {
	vfs.FS
	gate chan struct{}
}

func (g gatedFS) Create(name string, flag vfs.Flag) (vfs.File, error) {
	<-g.gate
	return g.FS.Create(name, flag)
}

// Where the active segment fills by more than an eighth while the next one is made, the
// keeper opens that one at once, and no commit has to wake it for that. Where nobody
// commits meanwhile it stays closed.
func TestFastFillOpensAtOnce(t *testing.T) {
	fs := gatedFS{vfs.NewMem(vfs.MemOptions{Seed: 2}), make(chan struct{}, 2)}
	fs.gate <- struct{}{} // the first segment
	fs.gate <- struct{}{} // and the next
	s, _, err := Open("d", Options{FS: fs, SegmentBytes: minSegmentBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer close(fs.gate) // the keeper may wait there
	wait := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
			s.mu.Lock()
			done := ok()
			s.mu.Unlock()
			if done {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("waited 20 s: %s", what)
			}
		}
	}
	var b Batch
	seq := uint64(0)
	payload := make([]byte, 512)
	commit := func() {
		t.Helper()
		b.Reset()
		b.Append(sid(1), seq, payload)
		if _, err := s.Commit(&b, Acknowledged); err != nil {
			t.Fatal(err)
		}
		seq++
	}
	soon := false
	wait("the next segment is made", func() bool { soon = s.spare != nil && s.spare.soon; return s.spare != nil })
	if soon {
		t.Fatal("the next segment is to be opened although nobody commits")
	}
	for first := s.Stats().Active; s.Stats().Active == first; {
		commit()
	}
	wait("the keeper makes the next segment", func() bool { return s.making })
	for from := s.Stats().ActiveOffset; s.Stats().ActiveOffset-from <= minSegmentBytes/8; {
		commit()
	}
	fs.gate <- struct{}{}
	wait("the next segment is made and opened", func() bool { return s.spare != nil && s.spare.file != nil })
	if room := minSegmentBytes - s.Stats().ActiveOffset; room <= minSegmentBytes/8 {
		t.Fatalf("%d bytes of room left: a commit has woken the keeper for it", room)
	}
}
