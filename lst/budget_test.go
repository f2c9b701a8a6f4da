package lst

import (
	"errors"
	"fmt"
	"testing"
	"time"
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

// The reserve is for the records of an owner who must write although the store is full: it takes them when others are refused,
// no more than it is large, and what frees the space still fits behind it. With the keeper and without.
func TestReserve(t *testing.T) {
	const segment, files, reserve = 128 << 10, 3, 2
	for _, inline := range []bool{true, false} {
		d, opt := memStore(10, Direct)
		opt.SegmentBytes, opt.DiskBudgetBytes, opt.ReserveBytes, opt.Inline = segment, files*segment, reserve*segment+100, inline
		s := mustOpen(t, "/db", opt)
		// fill appends to a stream until the store has no room for it, and returns how much went in.
		fill := func(id StreamID, seq *uint64, urgent bool) int {
			t.Helper()
			n := 0
			for deadline := time.Now().Add(20 * time.Second); ; {
				var b Batch
				has := s.HasRoom
				if urgent {
					b.UseReserve()
					has = s.HasReserve
				}
				b.Append(id, *seq, payload(1, int(*seq), 900))
				room := has(int64(b.Bytes()))
				_, err := s.Commit(&b, Forced)
				switch {
				case err == nil:
					*seq++
					n += b.Bytes()
				case !errors.Is(err, ErrNoSpace):
					t.Fatal(err)
				case room:
					t.Fatalf("inline %v, urgent %v: refused after it was told that there is room: %v", inline, urgent, err)
				default:
					return n
				}
				if time.Now().After(deadline) {
					t.Fatal("the store never fills")
				}
			}
		}
		var a, b, c uint64
		for round := range 5 {
			fill(sid(1), &a, false)
			if n := fill(sid(2), &b, true); n < segment || n > (reserve+1)*segment {
				t.Fatalf("inline %v, round %d: %d bytes went into a reserve of %d", inline, round, n, reserve*segment)
			}
			if n := fill(sid(3), &c, false); n != 0 {
				t.Fatalf("inline %v, round %d: %d bytes went into a full store", inline, round, n)
			}
			if used := d.UsedBytes(); used > (files+reserve+1)*segment {
				t.Fatalf("inline %v, round %d: %d bytes in use", inline, round, used)
			}
			puts := 0
			for err := error(nil); err == nil; puts++ { // what the owner notes about it eats no more than it may
				var p Batch
				p.Put([]byte("state"), payload(2, puts, 300))
				if _, err = s.Commit(&p, Forced); err != nil && !errors.Is(err, ErrNoSpace) {
					t.Fatal(err)
				}
			}
			if puts < 8 {
				t.Fatalf("inline %v, round %d: %d key-values fit behind the reserve", inline, round, puts)
			}
			var tr Batch
			tr.Trim(sid(1), a)
			tr.Trim(sid(2), b)
			if _, err := s.Commit(&tr, Forced); err != nil {
				t.Fatalf("inline %v, round %d: a full store cannot trim: %v", inline, round, err)
			}
			if _, err := s.Reclaim(); err != nil {
				t.Fatalf("inline %v, round %d: a full store cannot free itself: %v", inline, round, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReserveOptions(t *testing.T) {
	for _, opt := range []Options{
		{SegmentBytes: 64 << 10, ReserveBytes: -(64 << 10)},
		{SegmentBytes: 64 << 10, DiskBudgetBytes: 4 * 64 << 10, ReserveBytes: 64 << 10, DropOldest: true},
	} {
		if _, err := opt.withDefaults(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", opt, err)
		}
	}
}
