package lst

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/btrlog/btrlog/lst/vfs"
)

func sid(n int) StreamID {
	var id StreamID
	id[7], id[14], id[15] = byte(n), byte(n>>8), byte(n)
	return id
}

func payload(stream, seq, n int) []byte {
	b := bytes.Repeat([]byte{byte(stream*31 + seq)}, n)
	return append(b, fmt.Sprintf("s%d-%d", stream, seq)...)
}

func mustOpen(t testing.TB, dir string, opt Options) *Store {
	t.Helper()
	s, _, err := Open(dir, opt)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

func TestCommitReopenRead(t *testing.T) {
	for _, c := range []struct {
		name string
		os   bool
		mode Mode
		in   bool
	}{{"os-buffered", true, Buffered, false}, {"os-direct", true, Direct, false}, {"mem-buffered", false, Buffered, true}, {"mem-direct", false, Direct, true}, {"mem-direct-background", false, Direct, false}} {
		t.Run(c.name, func(t *testing.T) {
			dir := "/store"
			opt := Options{Mode: c.mode, SegmentBytes: 64 << 10, SnapshotRecords: 200, Inline: c.in}
			if c.os {
				dir = t.TempDir()
			} else {
				opt.FS = vfs.NewMem(vfs.MemOptions{Seed: 1})
			}
			s := mustOpen(t, dir, opt)
			if _, _, err := Open(dir, opt); !errors.Is(err, ErrLocked) {
				t.Fatalf("second open: %v, want ErrLocked", err)
			}
			var b Batch
			const streams, n = 3, 700
			for seq := 1; seq <= n; seq++ {
				b.Reset()
				for k := 0; k < streams; k++ {
					b.Append(sid(k), uint64(seq), payload(k, seq, 40))
				}
				b.Put([]byte("state"), []byte(fmt.Sprint(seq)))
				if _, err := s.Commit(&b, Forced); err != nil {
					t.Fatal(err)
				}
			}
			check := func(v View) {
				t.Helper()
				for k := 0; k < streams; k++ {
					st, ok := v.Stat(sid(k))
					if !ok || st.Count != n || st.EOF != n+1 || st.First != 1 || st.Contiguous != n+1 {
						t.Fatalf("stat %+v %v", st, ok)
					}
					it := v.Range(sid(k), 0, 1<<62)
					want := 1
					for it.Next() {
						if it.Seq() != uint64(want) || !bytes.Equal(it.Value(), payload(k, want, 40)) {
							t.Fatalf("range: seq %d want %d: %q", it.Seq(), want, it.Value())
						}
						want++
					}
					if it.Err() != nil || want != n+1 {
						t.Fatalf("range ended at %d: %v", want, it.Err())
					}
					for seq := 1; seq <= n; seq++ {
						got, err := v.Get(sid(k), uint64(seq), nil)
						if err != nil || !bytes.Equal(got, payload(k, seq, 40)) {
							t.Fatalf("get %d: %v", seq, err)
						}
					}
				}
				got, err := v.GetKV([]byte("state"), nil)
				if err != nil || string(got) != fmt.Sprint(n) {
					t.Fatalf("kv %q %v", got, err)
				}
			}
			check(s.View())
			r, err := OpenReadOnly(dir, opt)
			if err != nil {
				t.Fatal(err)
			}
			check(r.View())
			r.Close()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			for i := 0; i < 3; i++ {
				s, rep, err := Open(dir, opt)
				if err != nil {
					t.Fatal(err)
				}
				if rep.Snapshot == 0 || rep.CutFile != "" {
					t.Fatalf("report %+v", rep)
				}
				check(s.View())
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Writes may be completed in any order, and a batch is its owner's again when Complete has returned, also if what was written
// becomes visible later, behind an earlier write.
func TestBatchIsFreeAfterItsComplete(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		opt := Options{FS: vfs.NewMem(vfs.MemOptions{Seed: 1}), Mode: mode, Inline: true}
		s := mustOpen(t, "/db", opt)
		var first, second Batch
		first.Append(sid(1), 1, []byte("one"))
		second.Append(sid(1), 2, []byte("two"))
		second.Put([]byte("key"), []byte("value"))
		w1, err1 := s.Prepare(&first)
		w2, err2 := s.Prepare(&second)
		if err := errors.Join(err1, err2, w1.Execute(), w2.Execute(), s.Complete(w2, nil)); err != nil {
			t.Fatal(err)
		}
		second.Reset()
		second.Append(sid(9), 7, []byte("something else, and longer"))
		second.Delete([]byte("other"))
		if err := s.Complete(w1, nil); err != nil {
			t.Fatal(err)
		}
		for seq, want := range map[uint64]string{1: "one", 2: "two"} {
			if got, err := s.View().Get(sid(1), seq, nil); err != nil || string(got) != want {
				t.Fatalf("mode %d: record %d: %q, %v", mode, seq, got, err)
			}
		}
		if got, err := s.View().GetKV([]byte("key"), nil); err != nil || string(got) != "value" {
			t.Fatalf("mode %d: key: %q, %v", mode, got, err)
		}
		if s.View().Has(sid(9), 7) {
			t.Fatalf("mode %d: a record is there that was never prepared", mode)
		}
	}
}
