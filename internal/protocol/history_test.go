package protocol

import (
	"math/rand/v2"
	"testing"
)

// voidByDefinition is P8 word for word: a copy of LSN x labelled e is void if and only if an epoch e' > e in the record's
// history has start ≤ x.
func voidByDefinition(h History, e Epoch, x LSN) bool {
	for _, entry := range h {
		if entry.Epoch > e && entry.Start <= x {
			return true
		}
	}
	return false
}

func randomHistory(rng *rand.Rand, epochs int, maxLSN LSN) History {
	var h History
	start := LSN(1)
	for e := 1; e <= epochs; e++ {
		start += LSN(rng.IntN(int(maxLSN) / 3))
		if rng.IntN(2) == 0 {
			h = append(h, HistoryEntry{Epoch(e), start})
		}
	}
	return h
}

func TestVoidIsItsDefinition(t *testing.T) {
	for seed := uint64(1); seed <= 2000; seed++ {
		h := randomHistory(rand.New(rand.NewPCG(seed, 3)), 6, 20)
		for e := Epoch(0); e <= 7; e++ {
			for x := LSN(1); x <= 45; x++ {
				if got, want := h.Void(e, x), voidByDefinition(h, e, x); got != want {
					t.Fatalf("seed %d: %v: Void(%d, %d) = %v, want %v", seed, h, e, x, got, want)
				}
				if got := x >= h.VoidFrom(e); got != h.Void(e, x) {
					t.Fatalf("seed %d: %v: VoidFrom(%d) = %d contradicts Void(%d)", seed, h, e, h.VoidFrom(e), x)
				}
			}
		}
	}
}

// Add leaves out an entry of the same start; what is void does not change by that for any label that a node could hold.
func TestAddKeepsWhatIsVoid(t *testing.T) {
	for seed := uint64(1); seed <= 2000; seed++ {
		rng := rand.New(rand.NewPCG(seed, 4))
		var short, full History
		e, start := Epoch(0), LSN(1)
		for range 10 {
			e += Epoch(1 + rng.IntN(3))
			if rng.IntN(2) == 0 {
				start += LSN(rng.IntN(5))
			}
			next, err := short.Add(e, start)
			if err != nil {
				t.Fatal(err)
			}
			if len(short) > 0 && &short[0] == &next[0] {
				t.Fatal("Add changed its receiver's memory")
			}
			short, full = next, append(full, HistoryEntry{e, start})
			if err := short.Validate(); err != nil {
				t.Fatal(err)
			}
			if short.Last() != (HistoryEntry{e, start}) {
				t.Fatalf("last %v", short.Last())
			}
			for l := Epoch(0); l <= e+1; l++ {
				for x := LSN(1); x <= start+5; x++ {
					if short.Void(l, x) != voidByDefinition(full, l, x) {
						t.Fatalf("seed %d: %d@%d under %v and %v", seed, x, l, short, full)
					}
				}
			}
		}
	}
}

func TestHistoryRefusesDisorder(t *testing.T) {
	h := History{{2, 5}, {4, 9}}
	for _, bad := range []HistoryEntry{{4, 9}, {3, 9}, {5, 8}, {5, 0}} {
		if _, err := h.Add(bad.Epoch, bad.Start); err == nil {
			t.Errorf("Add(%v) to %v", bad, h)
		}
	}
	for _, bad := range []History{{{0, 1}}, {{1, 0}}, {{1, MaxLSN + 1}}, {{2, 1}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 5}, {2, 4}}} {
		if bad.Validate() == nil {
			t.Errorf("%v is valid", bad)
		}
	}
	if err := h.Validate(); err != nil {
		t.Error(err)
	}
}
