package lst

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// randomSlots are slots as stores make them, and as they do not: runs of one length
// and distance, runs of other lengths, holes, steps back, segments near and far.
func randomSlots(rnd *rand.Rand) (all [leafSlots]slot, filled int) {
	seg, off, n, step := uint32(1+rnd.IntN(1000)), int64(headerBytes+rnd.IntN(1<<20)), uint32(rnd.IntN(300)), int64(400)
	spread := []uint32{0, 2, 255, 256, 5000}[rnd.IntN(5)]
	wild := rnd.IntN(30)
	for i := range all {
		switch k := rnd.IntN(100); {
		case k < wild/3:
			continue // a hole
		case k < wild/2:
			n = []uint32{0, 1, uint32(rnd.IntN(1000)), maxRecordLimit}[rnd.IntN(4)]
		case k < wild*2/3:
			off = []int64{headerBytes, 1<<32 - 1, int64(headerBytes + rnd.IntN(1<<30))}[rnd.IntN(3)]
		case k < wild && spread > 0:
			seg += uint32(rnd.IntN(int(spread)+1)) / 4
			off = headerBytes
		}
		off = min(off+step, 1<<32-1)
		all[i], filled = slot{mkpos(seg, off), n}, filled+1
	}
	return all, filled
}

func sameSlots(o *openSlots, want *[leafSlots]slot) error {
	var m bitmap
	for i, s := range want {
		if got := o.get(i); got != s {
			return fmt.Errorf("slot %d is %+v, want %+v", i, got, s)
		}
		if o.has(i) != (s.at != 0) {
			return fmt.Errorf("slot %d: has is %v", i, o.has(i))
		}
		if s.at != 0 {
			m.set(i)
		}
	}
	for i := range leafSlots + 1 {
		if got, all := o.present(i), m.below(i); got != all {
			return fmt.Errorf("present below %d: %x, want %x", i, got, all)
		}
		if o.next(i) != m.next(i) || o.nextClear(i) != m.nextClear(i) {
			return fmt.Errorf("next of %d: %d and %d, want %d and %d", i, o.next(i), o.nextClear(i), m.next(i), m.nextClear(i))
		}
	}
	seen := 0
	o.all(func(i int, s slot) {
		if s == want[i] {
			seen++
		}
	})
	if seen != m.count() {
		return fmt.Errorf("all shows %d of %d slots as they are", seen, m.count())
	}
	for _, from := range []int{0, 1, 77, 255, 256} {
		var segs []segCount
		for i := from; i < leafSlots; i++ {
			if want[i].at != 0 {
				segs = countSeg(segs, want[i], 1)
			}
		}
		got := o.segs(from, nil)
		bySeg := func(a, b segCount) int { return int(a.seg) - int(b.seg) }
		slices.SortFunc(segs, bySeg)
		slices.SortFunc(got, bySeg)
		if !slices.Equal(got, segs) {
			return fmt.Errorf("segments from %d on: %v, want %v", from, got, segs)
		}
	}
	return nil
}

// Slots in cells, far ones, in runs, grown and read back, against a plain array.
func TestSlotsModel(t *testing.T) {
	type made struct {
		o    *openSlots
		want [leafSlots]slot
		what string
	}
	var arena slotArena
	var kept []made
	var far, runs, cells int
	for seed := range uint64(80) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		all, n := randomSlots(rnd)
		if n == 0 {
			continue
		}
		see := func(o *openSlots, what string) {
			if err := sameSlots(o, &all); err != nil {
				t.Fatalf("seed %d, %s: %v", seed, what, err)
			}
			kept = append(kept, made{o, all, fmt.Sprintf("seed %d, %s", seed, what)})
		}
		// In order of the sequences, or not: a segment may be in front of the first one.
		id := sid(1)
		order := make([]int, leafSlots)
		for i := range order {
			order[i] = i
		}
		if rnd.IntN(4) == 0 {
			rnd.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
		}
		o := arena.make([]int{0, leafSlots}[rnd.IntN(2)], all[order[0]].at.seg())
		for _, i := range order {
			if all[i].at != 0 {
				o = arena.put(o, i, all[i])
			}
		}
		see(o, "put one by one")
		var copied [leafSlots]slot
		if m := o.copyTo(&copied); m != o.present(leafSlots) || copied != all {
			t.Fatalf("copied %v, present %v", m, o.present(leafSlots))
		}
		m := o.present(leafSlots)
		body := appendLeaf(nil, id, &leaf{base: leafSlots}, m, &copied)
		if long := appendSlots(appendPresence(binary.AppendUvarint(append([]byte(nil), id[:]...), 1), m), m, o); !bytes.Equal(body, long) {
			t.Fatalf("seed %d: leaf %x, slot by slot %x", seed, body, long)
		}
		if back, err := parseLeaf(body, id, leafSlots); err != nil {
			t.Fatal(err)
		} else {
			see(back, "read back from a leaf frame")
		}
		c := arena.compact(o, &copied)
		see(c, "compact")
		d := slotsOf(&all)
		see(d, "read back")
		g := arena.grown(d, leafSlots, d.base)
		see(g, "opened again")
		if i := rnd.IntN(leafSlots); all[i].at != 0 {
			// A record replaced by one far behind: the others stay.
			s := slot{mkpos(all[i].at.seg()+1000, headerBytes), 5}
			r := arena.grown(g, leafSlots, s.at.seg())
			r.set(i, s)
			was := all[i]
			all[i] = s
			see(r, "replaced")
			all[i] = was
		}
		switch {
		case d.far != nil:
			far++
		case d.runs != nil:
			runs++
		default:
			cells++
		}
	}
	for i := range kept { // no memory was given out twice
		if err := sameSlots(kept[i].o, &kept[i].want); err != nil {
			t.Fatalf("%s, at the end: %v", kept[i].what, err)
		}
	}
	if far < 5 || runs < 5 || cells < 5 {
		t.Errorf("%d far, %d in runs, %d in cells: too few of a kind", far, runs, cells)
	}
}

// A reader that sees a slot sees the right one, while the leaf grows, goes far, is
// sealed and opened again.
func TestSlotsReaders(t *testing.T) {
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		var all [leafSlots]slot
		for i := range all {
			seg := uint32(1)
			if seed%2 == 1 {
				seg += uint32(2 * i)
			}
			all[i] = slot{mkpos(seg, int64(headerBytes+100*i)), 60 + uint32(rnd.IntN(2))*uint32(seed/4)}
		}
		var arena slotArena
		l := &leaf{}
		l.open.Store(arena.make(0, 1))
		var published atomic.Int64
		var stop atomic.Bool
		var wg sync.WaitGroup
		for k := range uint64(2) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				rnd := rand.New(rand.NewPCG(seed, k))
				for !stop.Load() {
					to := int(published.Load())
					i := rnd.IntN(leafSlots)
					var s slot
					if o := l.open.Load(); o != nil {
						s = o.get(i)
					} else {
						s = l.sealed.Load().data.Load().get(i)
					}
					if s != all[i] && (s.at != 0 || i < to) || i < to && !l.has(i) {
						t.Errorf("seed %d: slot %d of %d is %+v, want %+v", seed, i, to, s, all[i])
						return
					}
				}
			}()
		}
		for i := range all {
			l.open.Store(arena.put(l.open.Load(), i, all[i]))
			published.Store(int64(i + 1))
		}
		for range 50 {
			o := l.open.Load()
			s := &sealedLeaf{}
			var all [leafSlots]slot
			o.copyTo(&all)
			s.data.Store(arena.compact(o, &all))
			l.setSealedMap(o.present(leafSlots))
			l.sealed.Store(s)
			l.open.Store(nil)
			l.open.Store(arena.grown(s.data.Load(), leafSlots, 1))
		}
		stop.Store(true)
		wg.Wait()
	}
}

// A leaf whose records lie in more than 256 segments: written, sealed, read back,
// replaced, trimmed, and found again by a restart.
func TestLeafOverManySegments(t *testing.T) {
	_, opt := memStore(31, Buffered)
	s := mustOpen(t, "/db", opt)
	filler := make([]byte, 15<<10)
	const n = 300
	val := func(seq int) []byte { return fmt.Appendf(nil, "record %d", seq) }
	for i := range n {
		appendOne(t, s, sid(1), uint64(i), val(i), Acknowledged)
		for k := range 2 {
			appendOne(t, s, sid(2), uint64(2*i+k), filler, Acknowledged)
		}
	}
	replaced := map[int]bool{}
	check := func(what string, from int) {
		t.Helper()
		v := s.View()
		for i := from; i < n; i++ {
			want := val(i)
			if replaced[i] {
				want = []byte("again")
			}
			if got, err := v.Get(sid(1), uint64(i), nil); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s: record %d is %q, %v", what, i, got, err)
			}
		}
		it := v.Range(sid(1), 0, n)
		k := from
		for ; it.Next(); k++ {
			if it.Seq() != uint64(k) {
				t.Fatalf("%s: iterator at %d, want %d", what, it.Seq(), k)
			}
		}
		if st, _ := v.Stat(sid(1)); it.Err() != nil || k != n || st.Count != uint64(n-from) {
			t.Fatalf("%s: iterator ends at %d, %v; %+v", what, k, it.Err(), st)
		}
	}
	st := s.ix.byID.get(ptr(sid(1)))
	lo, _ := s.View().Locate(sid(1), 0)
	hi, _ := s.View().Locate(sid(1), 255)
	if hi.Segment-lo.Segment <= cellReach {
		t.Fatalf("the leaf goes from segment %d to %d: not far", lo.Segment, hi.Segment)
	}
	if l := st.list()[0]; l.sealed.Load() == nil {
		t.Fatal("the leaf was meant to be sealed")
	}
	check("written", 0)
	reopen := func() {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, "/db", opt)
	}
	reopen()
	check("after a restart", 0)
	var b Batch
	b.Replace(sid(1), 3, []byte("again"))
	b.Replace(sid(1), 299, []byte("again"))
	if _, err := s.Commit(&b, Acknowledged); err != nil {
		t.Fatal(err)
	}
	replaced[3], replaced[299] = true, true
	check("replaced", 0)
	if err := s.Snapshot(); err != nil {
		t.Fatal(err)
	}
	reopen()
	check("replaced, after a restart", 0)
	b.Reset()
	b.Trim(sid(1), 2)
	b.Trim(sid(2), 2*n)
	if _, err := s.Commit(&b, Acknowledged); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reclaim(); err != nil {
		t.Fatal(err)
	}
	check("trimmed", 2)
	reopen()
	check("trimmed, after a restart", 2)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func ptr[T any](v T) *T { return &v }
