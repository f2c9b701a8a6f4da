package lst

import (
	"bytes"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/btrlog/btrlog/lst/vfs"
)

const testUnit = 4096

func readyStore(seed uint64) (*vfs.Mem, Options) {
	d := vfs.NewMem(vfs.MemOptions{Seed: seed, ReadyBytes: testUnit})
	return d, Options{FS: d, SegmentBytes: 64 << 10, SnapshotRecords: 100, Inline: true, Random: counter(byte(seed))}
}

// readyFS calls hook before and after each Ready of a segment file.
type readyFS struct {
	vfs.FS
	hook func(off int64, n int, write func() error) error
}

type readyFile struct {
	vfs.File
	fs *readyFS
}

func (h *readyFS) Open(name string, flag vfs.Flag) (vfs.File, error) {
	f, err := h.FS.Open(name, flag)
	if err != nil {
		return nil, err
	}
	return readyFile{f, h}, nil
}

func (f readyFile) ReadyBytes() int { return f.File.(vfs.Readier).ReadyBytes() }

func (f readyFile) Ready(off int64, n int) error {
	return f.fs.hook(off, n, func() error { return f.File.(vfs.Readier).Ready(off, n) })
}

// What is made ready are zeros behind the end, at most one unit of them, and nothing but
// the end of the file for whoever opens a copy.
func TestReadyIsBehindTheEnd(t *testing.T) {
	d, opt := readyStore(41)
	s := mustOpen(t, "/db", opt)
	ahead := 0
	for seq := uint64(0); seq < 400; seq++ {
		appendOne(t, s, sid(1), seq, payload(1, int(seq), 100), Acknowledged)
		st := s.Stats()
		file, err := d.ReadFile("/db/" + segmentName(st.Active))
		if err != nil {
			t.Fatal(err)
		}
		rest := file[st.ActiveOffset:]
		if len(rest) > 0 {
			ahead++
		}
		if len(rest) > testUnit || len(file) > 64<<10 || len(bytes.Trim(rest, "\x00")) > 0 {
			t.Fatalf("record %d: %d bytes behind the end at %d, or not zeros", seq, len(rest), st.ActiveOffset)
		}
		if seq%37 != 0 {
			continue
		}
		c := opt
		c.FS = d.Clone() // a kill, or a copy
		o, rep, err := Open("/db", c)
		if err != nil || rep.CutFile != "" {
			t.Fatalf("record %d: %v, %+v", seq, err, rep)
		}
		if got := o.Stats(); got.Active != st.Active || got.ActiveOffset != st.ActiveOffset {
			t.Fatalf("record %d: the copy goes on at %d of %d, the store at %d of %d", seq, got.ActiveOffset, got.Active, st.ActiveOffset, st.Active)
		}
		appendOne(t, o, sid(1), seq+1, payload(1, int(seq+1), 100), Acknowledged)
		for k := uint64(0); k <= seq+1; k++ {
			if got, err := o.View().Get(sid(1), k, nil); err != nil || !bytes.Equal(got, payload(1, int(k), 100)) {
				t.Fatalf("copy after %d: record %d: %v", seq, k, err)
			}
		}
	}
	if ahead < 300 {
		t.Fatalf("bytes were ready after %d commits of 400: this test shows nothing", ahead)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A kill in any operation loses nothing acknowledged, a power loss nothing forced.
func TestCrashWhileMakingReady(t *testing.T) {
	zeros := 0
	for at := int64(0); ; at++ {
		d, opt := readyStore(uint64(at) + 1)
		opt.FS = &readyFS{d, func(_ int64, _ int, write func() error) error { zeros++; return write() }}
		d.CrashAfter(at)
		acked, forced := readyLife(opt)
		if !d.Crashed() {
			if at < 300 || zeros < 1000 {
				t.Fatalf("life has only %d operations, %d zeros were written in all", at, zeros)
			}
			return
		}
		for _, c := range []struct {
			disk  *vfs.Mem
			least uint64
		}{{d.Clone(), acked}, {d.Crash(), forced}} {
			opt.FS = c.disk
			s, rep, err := Open("/db", opt)
			if err != nil {
				t.Fatalf("crash in operation %d: %v", at, err)
			}
			st, _ := s.View().Stat(sid(1))
			if st.EOF < c.least || st.Count != st.EOF {
				t.Fatalf("crash in operation %d: %+v, %d was answered; %+v", at, st, c.least, rep)
			}
			for seq := uint64(0); seq < st.EOF; seq++ {
				if got, err := s.View().Get(sid(1), seq, nil); err != nil || !bytes.Equal(got, payload(1, int(seq), 300)) {
					t.Fatalf("crash in operation %d: record %d: %v", at, seq, err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// readyLife works until the disk crashes; it returns the EOF that was acknowledged and
// the one that was forced.
func readyLife(opt Options) (acked, forced uint64) {
	s, _, err := Open("/db", opt)
	if err != nil {
		return 0, 0
	}
	var b Batch
	for seq := uint64(0); seq < 260; seq++ {
		b.Reset()
		b.Append(sid(1), seq, payload(1, int(seq), 300))
		d := Acknowledged
		if seq%50 == 49 {
			d = Forced
		}
		if _, err := s.Commit(&b, d); err != nil {
			return acked, forced
		}
		acked = seq + 1
		if d == Forced {
			forced = acked
		}
	}
	_ = s.Close()
	return acked, forced
}

// No write gets a place while zeros are being written: they would come over it. A second
// caller comes just then, in each of the ways there are.
func TestNoWriteUnderZeros(t *testing.T) {
	for name, write := range map[string]func(s *Store) error{
		"prepare": func(s *Store) error {
			var b Batch
			b.Append(sid(2), 0, payload(2, 0, 200))
			w, err := s.Prepare(&b)
			if err != nil {
				return err
			}
			return s.Complete(w, w.Execute())
		},
		"snapshot": func(s *Store) error { return s.Snapshot() },
		"trim": func(s *Store) error {
			var b Batch
			b.Append(sid(2), 0, payload(2, 0, 200))
			return s.commitOwn(&b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, opt := readyStore(43)
			opt.Inline = false
			var s *Store
			early, done := false, make(chan error, 1)
			hooked := 0
			opt.FS = &readyFS{d, func(_ int64, _ int, zeros func() error) error {
				if hooked++; hooked != 2 {
					return zeros()
				}
				go func() { done <- write(s) }()
				for end := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
					s.mu.Lock()
					waits := s.waiting > 0
					s.mu.Unlock()
					if waits || time.Now().After(end) {
						break
					}
					if len(done) > 0 {
						early = true
						break
					}
				}
				return zeros()
			}}
			s = mustOpen(t, "/db", opt)
			n := uint64(0)
			for ; hooked < 3; n++ {
				appendOne(t, s, sid(1), n, payload(1, int(n), 100), Acknowledged)
			}
			if err := <-done; err != nil || early {
				t.Fatalf("the other write: %v; it was over before the zeros were written: %v", err, early)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			opt.FS = d.Clone()
			s, rep, err := Open("/db", opt)
			if err != nil || rep.CutFile != "" {
				t.Fatalf("%v, %+v", err, rep)
			}
			defer s.Close()
			for k := range n {
				if got, err := s.View().Get(sid(1), k, nil); err != nil || !bytes.Equal(got, payload(1, int(k), 100)) {
					t.Fatalf("record %d: %v", k, err)
				}
			}
			if name != "snapshot" {
				if got, err := s.View().Get(sid(2), 0, nil); err != nil || !bytes.Equal(got, payload(2, 0, 200)) {
					t.Fatalf("the other write: %v", err)
				}
			}
		})
	}
}

// A store that forces each commit, or writes directly, makes nothing ready; one whose
// zeros cannot be written works all the same.
func TestWhenNothingIsMadeReady(t *testing.T) {
	for _, c := range []struct {
		name string
		mode Mode
		d    Durability
		want bool
	}{{"acknowledged", Buffered, Acknowledged, true}, {"forced", Buffered, Forced, false}, {"direct", Direct, Acknowledged, false}} {
		d, opt := readyStore(44)
		opt.Mode = c.mode
		calls := 0
		opt.FS = &readyFS{d, func(int64, int, func() error) error { calls++; return errors.New("no zeros today") }}
		s := mustOpen(t, "/db", opt)
		for seq := uint64(0); seq < 200; seq++ {
			appendOne(t, s, sid(1), seq, payload(1, int(seq), 100), c.d)
		}
		if calls > 0 != c.want {
			t.Errorf("%s: made ready %d times", c.name, calls)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
