package lst

import (
	"errors"
	"fmt"
	"testing"
)

// T6: a store at its disk budget can always write what frees its space. Key-values that are rewritten, as a log node's
// states are, must not eat the last room of trims and snapshots: they get one segment above the budget, records do not.
func TestFullBudgetIsNotForEver(t *testing.T) {
	const segment, files = 128 << 10, 3
	_, opt := memStore(9, Direct)
	opt.SegmentBytes, opt.DiskBudgetBytes = segment, files*segment
	s := mustOpen(t, "/db", opt)
	seq := uint64(0)
	put := func(round int) error {
		var b Batch
		for k := range 20 {
			b.Reset()
			b.Put(fmt.Appendf(nil, "state %d", k), payload(k, round, 300))
			if _, err := s.Commit(&b, Forced); err != nil {
				return err
			}
		}
		return nil
	}
	fill := func() {
		t.Helper()
		var b Batch
		for {
			b.Reset()
			b.Append(sid(1), seq, payload(1, int(seq), 900))
			if _, err := s.Commit(&b, Forced); err != nil {
				if !errors.Is(err, ErrNoSpace) {
					t.Fatal(err)
				}
				return
			}
			seq++
		}
	}
	for round := range 6 {
		fill()
		for i := range 400 { // states go on changing while the store is full
			if err := put(100*round + i); err != nil {
				if !errors.Is(err, ErrNoSpace) {
					t.Fatal(err)
				}
				break
			}
		}
		if s.HasRoom(2000) {
			t.Fatalf("round %d: a full store has room for records", round)
		}
		var b Batch
		b.Trim(sid(1), seq)
		if _, err := s.Commit(&b, Forced); err != nil {
			t.Fatalf("round %d: a full store cannot trim: %v", round, err)
		}
		if _, err := s.Reclaim(); err != nil {
			t.Fatalf("round %d: a full store cannot free itself: %v", round, err)
		}
		before := seq
		fill()
		if seq < before+20 {
			t.Fatalf("round %d: %d records fit after everything was trimmed", round, seq-before)
		}
	}
}
