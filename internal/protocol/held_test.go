package protocol

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
)

// heldModel is the dumb second implementation of held: a set of (label, LSN) with the place of each.
type heldModel map[recKey]place

type place struct {
	segStart LSN
	off      uint64
	size     int
}

func (m heldModel) best(x LSN) (Epoch, bool) {
	best, ok := Epoch(0), false
	for k := range m {
		if k.lsn == x && (!ok || k.label > best) {
			best, ok = k.label, true
		}
	}
	return best, ok
}

func (m heldModel) extents(floor LSN) []Extent {
	var keys []recKey
	for k := range m {
		if k.lsn > floor {
			keys = append(keys, k)
		}
	}
	sort.Slice(keys, func(i, j int) bool {
		return keys[i].label < keys[j].label || keys[i].label == keys[j].label && keys[i].lsn < keys[j].lsn
	})
	var out []Extent
	for _, k := range keys {
		if n := len(out); n > 0 && out[n-1].Label == k.label && out[n-1].To+1 == k.lsn {
			out[n-1].To = k.lsn
		} else {
			out = append(out, Extent{k.lsn, k.lsn, k.label})
		}
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].From < out[j].From || out[i].From == out[j].From && out[i].Label < out[j].Label
	})
	return out
}

// check compares everything that held answers with the model.
func (m heldModel) check(h held) error {
	const maxLSN = 40
	if got, _ := h.extents(0, MaxExtents); !slices.Equal(got, m.extents(0)) {
		return fmt.Errorf("extents %v, want %v", got, m.extents(0))
	}
	if got, _ := h.extents(11, MaxExtents); !slices.Equal(got, m.extents(11)) {
		return fmt.Errorf("extents above 11 %v, want %v", got, m.extents(11))
	}
	var top LSN
	var topLabel Epoch
	for x := LSN(1); x <= maxLSN; x++ {
		we, wok := m.best(x)
		if ge, gok := h.best(x); ge != we || gok != wok {
			return fmt.Errorf("best(%d) = %d %v, want %d %v", x, ge, gok, we, wok)
		}
		if wok {
			top, topLabel = x, we
		}
		for e := Epoch(1); e <= 5; e++ {
			_, want := m[recKey{e, x}]
			if l := h.label(e); (l != nil && l.has(x)) != want {
				return fmt.Errorf("has %d@%d = %v", x, e, !want)
			}
		}
	}
	if err := m.checkStatus(h, 11, maxLSN); err != nil {
		return err
	}
	if x, e := h.highest(); x != top || e != topLabel {
		return fmt.Errorf("highest %d@%d, want %d@%d", x, e, top, topLabel)
	}
	for i := range h {
		if len(h[i].runs) == 0 || i > 0 && h[i-1].label >= h[i].label {
			return fmt.Errorf("labels out of order or empty: %v", h)
		}
		for j, r := range h[i].runs {
			if r.From > r.To || j > 0 && h[i].runs[j-1].To >= r.From {
				return fmt.Errorf("runs out of order: %v", h[i].runs)
			}
			// A known offset is the true one.
			if p := m[recKey{h[i].label, r.From}]; r.SegStart != p.segStart || r.Off != unknownOff && r.Off != p.off {
				return fmt.Errorf("run %+v begins at %+v", r, p)
			}
			if p := m[recKey{h[i].label, r.To}]; r.SegStart != p.segStart || r.Next != unknownOff && r.Next != p.off+uint64(p.size) {
				return fmt.Errorf("run %+v ends at %+v", r, p)
			}
		}
	}
	return nil
}

// checkStatus compares what held tells operators: what is missing, exactly, and the bytes, exactly where no run is cut by the floor or was cut
// before.
func (m heldModel) checkStatus(h held, floor, top LSN) error {
	var missing []Range
	for x := floor + 1; x <= top; x++ {
		if _, ok := m.best(x); ok {
			continue
		}
		if n := len(missing); n > 0 && missing[n-1].To+1 == x {
			missing[n-1].To = x
		} else {
			missing = append(missing, Range{x, x})
		}
	}
	if got := h.missing(floor, top); !slices.Equal(got, missing) {
		return fmt.Errorf("missing above %d: %v, want %v", floor, got, missing)
	}
	exact, want := true, uint64(0)
	for _, l := range h {
		for _, r := range l.runs {
			exact = exact && (r.To <= floor || r.From > floor && r.Off != unknownOff && r.Next != unknownOff)
		}
	}
	for k, p := range m {
		if k.lsn > floor {
			want += uint64(p.size)
		}
	}
	if got := h.bytesAbove(floor); exact && got != want {
		return fmt.Errorf("%d bytes above %d, want %d", got, floor, want)
	}
	return nil
}

// Where a run was cut in its middle the bytes are estimated: equal records are counted exactly, and nothing is counted that is not there.
func TestHeldBytesOfCutRuns(t *testing.T) {
	var h held
	l := h.ensure(1)
	for x := LSN(1); x <= 10; x++ {
		l.add(x, 1, uint64(x-1)*100, 100)
	}
	for x := LSN(11); x <= 20; x++ {
		l.add(x, 11, uint64(x-11)*300, 300)
	}
	for _, c := range []struct {
		floor LSN
		want  uint64
	}{{0, 4000}, {4, 3600}, {10, 3000}, {15, 1500}, {20, 0}, {30, 0}} {
		if got := h.bytesAbove(c.floor); got != c.want {
			t.Errorf("above %d: %d bytes, want %d", c.floor, got, c.want)
		}
	}
	l.cutThrough(4)
	l.cutFrom(18)
	for _, c := range []struct {
		floor LSN
		want  uint64
	}{{0, 600}, {4, 600}, {7, 300}, {15, 0}} { // of the second segment nothing but its beginning is known
		if got := h.bytesAbove(c.floor); got != c.want {
			t.Errorf("after the cuts above %d: %d bytes, want %d", c.floor, got, c.want)
		}
	}
}

func TestHeldAgainstModel(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		rng := rand.New(rand.NewPCG(seed, 1))
		// Each label has its own layout: segments of some LSNs, sizes by LSN.
		layout := func(e Epoch, x LSN) place {
			seg := LSN(7 + e)
			start := (x-1)/seg*seg + 1
			p := place{segStart: start, size: EncodedSize(int(x*7+LSN(e)) % 30)}
			for y := start; y < x; y++ {
				p.off += uint64(EncodedSize(int(y*7+LSN(e)) % 30))
			}
			return p
		}
		var h held
		m := heldModel{}
		for step := range 400 {
			x, e := LSN(1+rng.IntN(40)), Epoch(1+rng.IntN(5))
			var what string
			switch r := rng.IntN(20); {
			case r < 16:
				what = fmt.Sprintf("add %d@%d", x, e)
				l := h.ensure(e)
				if p := layout(e, x); !l.has(x) {
					if !l.fits(x, p.segStart, p.off, p.size) {
						t.Fatalf("seed %d step %d: %d@%d does not fit where it belongs: %v", seed, step, x, e, l.runs)
					}
					l.add(x, p.segStart, p.off, p.size)
					m[recKey{e, x}] = p
				}
			case r == 16:
				what = fmt.Sprintf("drop through %d", x/2)
				h.dropThrough(x / 2)
				for k := range m {
					if k.lsn <= x/2 {
						delete(m, k)
					}
				}
			default:
				hist := randomHistory(rng, 5, 40)
				what = fmt.Sprintf("void by %v", hist)
				var emptied, want []Epoch
				before := map[Epoch]bool{}
				for k := range m {
					before[k.label] = true
				}
				h.void(hist, func(e Epoch) { emptied = append(emptied, e) })
				for k := range m {
					if voidByDefinition(hist, k.label, k.lsn) {
						delete(m, k)
					}
				}
				for k := range m {
					delete(before, k.label)
				}
				for e := range before {
					want = append(want, e)
				}
				slices.Sort(emptied)
				slices.Sort(want)
				if !slices.Equal(emptied, want) {
					t.Fatalf("seed %d step %d: %s emptied %v, want %v", seed, step, what, emptied, want)
				}
			}
			if err := m.check(h); err != nil {
				t.Fatalf("seed %d step %d: after %s: %v", seed, step, what, err)
			}
		}
	}
}

// A record at another place than the prefix sum of its predecessors says would make the body differ from node to node (A1).
func TestHeldRefusesWhatDoesNotFit(t *testing.T) {
	var h held
	l := h.ensure(1)
	l.add(1, 1, 0, 10)
	l.add(2, 1, 10, 10)
	l.add(5, 1, 50, 10)
	for _, c := range []struct {
		lsn  LSN
		off  uint64
		size int
		want bool
	}{
		{3, 20, 10, true}, {3, 21, 10, false}, {3, 20, 30, false}, {4, 40, 10, true}, {4, 40, 9, false}, {4, 20, 30, false}, {6, 60, 5, true}, {6, 61, 5, false},
		{7, 60, 5, false}, {7, 70, 5, true},
	} {
		if got := l.fits(c.lsn, 1, c.off, c.size); got != c.want {
			t.Errorf("LSN %d of %d bytes at %d: fits %v", c.lsn, c.size, c.off, got)
		}
	}
}

// A list that hits its limit says how far it speaks, and tells no lie below.
func TestExtentsLimit(t *testing.T) {
	for seed := uint64(1); seed <= 200; seed++ {
		rng := rand.New(rand.NewPCG(seed, 2))
		var h held
		m := heldModel{}
		for range 60 {
			k := recKey{Epoch(1 + rng.IntN(3)), LSN(1 + rng.IntN(40))}
			if l := h.ensure(k.label); !l.has(k.lsn) {
				l.add(k.lsn, k.lsn, 0, 4)
				m[k] = place{}
			}
		}
		for limit := 1; limit < 20; limit++ {
			list, through := h.extents(3, limit)
			if len(list) > limit {
				t.Fatalf("seed %d: %d extents, limit %d", seed, len(list), limit)
			}
			told := map[recKey]bool{}
			for _, e := range list {
				for x := e.From; x <= e.To; x++ {
					told[recKey{e.Label, x}] = true
				}
			}
			for k := range m {
				if k.lsn > 3 && k.lsn <= through && !told[k] {
					t.Fatalf("seed %d limit %d: %d@%d is held, the list speaks through %d and does not name it: %v", seed, limit, k.lsn, k.label, through, list)
				}
			}
			for k := range told {
				if _, ok := m[k]; !ok || k.lsn > through {
					t.Fatalf("seed %d limit %d: %d@%d is named", seed, limit, k.lsn, k.label)
				}
			}
		}
	}
}
