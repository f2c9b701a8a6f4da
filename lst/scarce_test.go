package lst

import (
	"errors"
	"syscall"
	"testing"

	"github.com/btrlog/btrlog/lst/vfs"
)

// L13, P14: a process without descriptors cannot make or open its next segment. Nothing was written, so the commit is
// refused like one on a full disk, and the store goes on when descriptors are there again.
func TestNoDescriptorsIsARefusal(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpCreate, vfs.OpOpen} {
		for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
			d, opt := memStore(6, Direct)
			s := mustOpen(t, "/db", opt)
			d.Inject(vfs.Fault{Ops: op, Path: ".lst", Err: errno})
			seq := uint64(0)
			var b Batch
			put := func() error {
				b.Reset()
				b.Append(sid(1), seq, payload(1, int(seq), 900))
				_, err := s.Commit(&b, Forced)
				if err == nil {
					seq++
				}
				return err
			}
			var err error
			for err == nil && seq < 10_000 {
				err = put()
			}
			if !errors.Is(err, ErrNoSpace) || !errors.Is(err, errno) {
				t.Fatalf("op %v, %v: commit %d ended with %v, want ErrNoSpace and the cause", op, errno, seq, err)
			}
			if s.Err() != nil {
				t.Fatalf("op %v, %v: the store is latched: %v", op, errno, s.Err())
			}
			d.ClearFaults()
			before := seq
			if err := put(); err != nil {
				t.Fatalf("op %v, %v: with descriptors again: %v", op, errno, err)
			}
			if st, _ := s.View().Stat(sid(1)); st.Count != before+1 {
				t.Fatalf("op %v, %v: %d records, want %d", op, errno, st.Count, before+1)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
