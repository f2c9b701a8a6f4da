package stagetrace

import (
	"math/rand/v2"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
)

// Whatever runs of LSNs an append is cut into on its way, the same LSNs are picked, one in every.
func TestPick(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range 10_000 {
		log, every := protocol.LogID(rng.Uint64()), uint64(1)<<rng.IntN(12)
		first := protocol.LSN(1 + rng.Uint64N(1<<40))
		last := first + protocol.LSN(rng.IntN(3000))
		want := protocol.LSN(0)
		for x := first; x <= last; x++ {
			if uint64(x)%every == uint64(log)%every {
				want = x
				break
			}
		}
		if got := Pick(log, first, last, every); got != want {
			t.Fatalf("log %v, [%d, %d], every %d: %d, want %d", log, first, last, every, got, want)
		}
	}
	if Pick(1, 1, protocol.MaxLSN, 0) != 0 {
		t.Error("none is to be picked")
	}
}

func TestInterval(t *testing.T) {
	for n, want := range map[int]uint64{0: Every, -1: 0, 1: 1, 2: 2, 3: 4, 1000: 1024, 1024: 1024, 1025: 2048} {
		if got := Interval(n); got != want {
			t.Errorf("%d: %d, want %d", n, got, want)
		}
	}
}

func TestRingKeepsTheLatest(t *testing.T) {
	var r Ring[int]
	for i := range 3*Size + 7 {
		if all := r.All(); len(all) != min(i, Size) || len(all) > 0 && (all[len(all)-1] != i-1 || all[0] != max(0, i-Size)) {
			t.Fatalf("after %d values: %d of them, from %v", i, len(all), all)
		}
		r.Add(&i)
	}
}
