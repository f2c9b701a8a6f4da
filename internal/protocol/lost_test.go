package protocol

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestLostRanges(t *testing.T) {
	l := LostRanges{{From: 5, To: 9, Epoch: 2}, {From: 10, To: 10, Epoch: 3}, {From: 20, To: 30, Epoch: 2, Skipped: true}}
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	for x, want := range map[LSN]LSN{1: 5, 5: 5, 9: 9, 10: 10, 11: 20, 30: 30, 31: MaxLSN + 1} {
		if got := l.Next(x); got != want {
			t.Errorf("next lost at or above %d: %d, want %d", x, got, want)
		}
		if _, in := l.At(x); in != (want == x) {
			t.Errorf("%d is lost: %v", x, in)
		}
	}
	if got, want := l.Ranges(), []Range{{5, 10}, {20, 30}}; !slices.Equal(got, want) {
		t.Errorf("ranges %v, want %v", got, want)
	}
	more, err := l.With(LostRanges{{From: 12, To: 13, Epoch: 4}, {From: 1, To: 1, Epoch: 4}})
	if err != nil || len(more) != 5 || more[0].From != 1 || more[3].From != 12 || len(l) != 3 {
		t.Errorf("with two more: %v, %v", more, err)
	}
	for _, bad := range []LostRanges{
		{{From: 0, To: 4, Epoch: 1}}, {{From: 5, To: 4, Epoch: 1}}, {{From: 5, To: MaxLSN, Epoch: 1}}, {{From: 5, To: 6}},
		{{From: 5, To: 6, Epoch: 1}, {From: 6, To: 7, Epoch: 1}}, make(LostRanges, MaxLost+1),
	} {
		if bad.Validate() == nil {
			t.Errorf("%.80v is valid", bad)
		}
	}
	if _, err := l.With(LostRanges{{From: 9, To: 12, Epoch: 4}}); err == nil {
		t.Error("overlapping ranges were joined")
	}
}

// set is a set of small LSNs, to compare ranges with.
func set(rs []Range) (out [64]bool) {
	for _, r := range rs {
		for x := r.From; x <= r.To; x++ {
			out[x] = true
		}
	}
	return out
}

func randomRanges(rng *rand.Rand, n int) (out []Range) {
	for range n {
		from := LSN(1 + rng.IntN(50))
		out = append(out, Range{from, from + LSN(rng.IntN(12))})
	}
	return out
}

func TestRangesAgainstSets(t *testing.T) {
	for seed := uint64(1); seed <= 2000; seed++ {
		rng := rand.New(rand.NewPCG(seed, 3))
		a, b := randomRanges(rng, rng.IntN(5)), randomRanges(rng, rng.IntN(5))
		in := set(a)
		ja, jb := joined(slices.Clone(a)), joined(slices.Clone(b))
		if set(ja) != in || !validRanges(ja, 64) {
			t.Fatalf("seed %d: %v joined is %v", seed, a, ja)
		}
		others := set(jb)
		diff, gaps := set(without(ja, jb)), set(uncovered(3, 60, slices.Clone(a)))
		for x := range in {
			if diff[x] != (in[x] && !others[x]) {
				t.Fatalf("seed %d: %v without %v has %d: %v", seed, ja, jb, x, diff[x])
			}
			if gaps[x] != (x >= 3 && x <= 60 && !in[x]) {
				t.Fatalf("seed %d: 3 to 60 without %v has %d: %v", seed, a, x, gaps[x])
			}
			if _, ok := rangeAt(ja, LSN(x)); ok != in[x] {
				t.Fatalf("seed %d: %d in %v: %v", seed, x, ja, ok)
			}
		}
		// What is cut out of runs is gone, and the rest keeps its place in its segment.
		var l labelRuns
		for x := LSN(1); x < 64; x++ {
			if rng.IntN(5) > 0 {
				l.add(x, 1+(x-1)/20*20, uint64(x)*10, 10)
			}
		}
		before := slices.Clone(l.runs)
		for _, r := range jb {
			l.cutRange(r)
		}
		for x := LSN(1); x < 64; x++ {
			i, had := find(before, x)
			j, has := find(l.runs, x)
			if has != (had && !others[x]) {
				t.Fatalf("seed %d: %d is held after %v were cut: %v", seed, x, jb, has)
			}
			if has && (l.runs[j].SegStart != before[i].SegStart || l.runs[j].Off != unknownOff && l.runs[j].Off != uint64(l.runs[j].From)*10 ||
				l.runs[j].Next != unknownOff && l.runs[j].Next != uint64(l.runs[j].To)*10+10) {
				t.Fatalf("seed %d: run %+v, was %+v", seed, l.runs[j], before[i])
			}
		}
	}
}

func find(runs []run, x LSN) (int, bool) {
	for i, r := range runs {
		if r.From <= x && x <= r.To {
			return i, true
		}
	}
	return 0, false
}

func TestFewer(t *testing.T) {
	rs := []Range{{1, 2}, {4, 4}, {10, 11}, {14, 15}, {40, 41}}
	for n, want := range map[int][]Range{
		5: rs,
		4: {{1, 4}, {10, 11}, {14, 15}, {40, 41}},
		3: {{1, 4}, {10, 15}, {40, 41}},
		2: {{1, 15}, {40, 41}},
		1: {{1, 41}},
	} {
		if got, ok := fewer(rs, nil, n); !ok || !slices.Equal(got, want) {
			t.Errorf("at most %d: %v %v, want %v", n, got, ok, want)
		}
	}
	// What was lost before stays apart.
	between := LostRanges{{From: 3, To: 3, Epoch: 1}}
	if got, ok := fewer(rs, between, 3); !ok || !slices.Equal(got, []Range{{1, 2}, {4, 15}, {40, 41}}) {
		t.Errorf("with 3 between: %v %v", got, ok)
	}
	if _, ok := fewer(rs, between, 1); ok {
		t.Error("ranges were joined over one that was lost before")
	}
}

// A record that comes back from the disk is void if it is lost; damage of one is no damage.
func TestLostIsVoidAfterRestart(t *testing.T) {
	s := NewShard(5, Rules{})
	var out Out
	step := func(m Message) Status {
		t.Helper()
		out.Reset()
		s.Step(0, 0, m, &out)
		s.Finish(&out)
		return out.Acks[0].Ack.Status
	}
	records := map[LSN][]byte{}
	step(&Activate{Log: testLog, Epoch: 3, Incarnation: 5, Start: 1, History: History{{3, 1}}})
	for x := LSN(1); x <= 9; x++ {
		step(&Append{Log: testLog, Epoch: 3, Label: 3, Incarnation: 5, First: x, Count: 1, SegStart: 1, SegOff: uint64(x-1) * 5, Block: AppendRecord(nil, []byte{byte(x)}, false)})
		records[x] = append(slices.Clone(out.Records[0].Head), out.Records[0].Data...)
	}
	for _, bad := range [][]Range{{{3, 9}, {8, 12}}, {{12, 20}}, {{0, 1}}, make([]Range, MaxLost+1)} {
		if st := step(&Activate{Log: testLog, Epoch: 4, Incarnation: 5, Start: 20, B: 19, History: History{{3, 1}, {4, 20}}, Lost: bad}); st != StatusBad {
			t.Fatalf("activation with lost ranges %.60v: %v", bad, st)
		}
	}
	lost := []Range{{1, 2}, {5, 6}, {10, 19}}
	if st := step(&Activate{Log: testLog, Epoch: 4, Incarnation: 5, Start: 20, B: 19, History: History{{3, 1}, {4, 20}}, Lost: lost}); st != StatusOK {
		t.Fatalf("activation: %v", st)
	}
	state := slices.Clone(out.State[0].Value)
	check := func(when string) {
		t.Helper()
		l := s.logs[testLog]
		got, _ := l.held.extents(0, MaxExtents)
		if want := []Extent{{3, 4, 3}, {7, 9, 3}}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: holds %v, want %v", when, got, want)
		}
		if l.archived != 2 || len(l.damaged) != 0 {
			t.Errorf("%s: archived %d, damaged %v", when, l.archived, l.damaged)
		}
		if st := l.status(); len(st.Missing) != 0 {
			t.Errorf("%s: missing %v", when, st.Missing)
		}
	}
	check("after the activation")
	s = NewShard(5, Rules{})
	if err := s.Restore(testLog, state); err != nil {
		t.Fatal(err)
	}
	for x, v := range records {
		if x == 6 {
			v = v[:1]
		}
		if _, err := s.RestoreRecord(testLog, 3, x, v, 0); err != nil {
			t.Fatal(err)
		}
	}
	s.RestoreDamage(testLog, Range{5, 6})
	s.RestoreDone(testLog)
	check("after the restart")
	// Objects of the rest make all of it archived.
	out.Reset()
	s.Archived(0, testLog, []ArchivedObject{{3, 7, 9, 19}, {3, 3, 4, 19}}, &out)
	if got := s.logs[testLog].archived; got != 19 {
		t.Errorf("archived through %d, want 19", got)
	}
}

// The record bounds the ranges: beyond that an open gives up what is between the nearest of them too, rather than nothing.
func TestManyHoles(t *testing.T) {
	recorded := Ensemble{{Node: "a", Incarnation: 1}, {Node: "b", Incarnation: 2}, {Node: "c", Incarnation: 3}}
	target := Ensemble{{Node: "a", Incarnation: 1}, {Node: "d", Incarnation: 4}}
	for _, before := range []int{0, 1000, MaxLost} {
		var lost LostRanges
		for i := range LSN(before) {
			lost = append(lost, Lost{From: 1 + i*4, To: 2 + i*4, Epoch: 2})
		}
		top := LSN(before)*4 + 10
		o, err := NewOpener(OpenerConfig{Log: 1, Epoch: 5, Recorded: recorded, Qw: 2, History: History{{4, top}}, Target: target, TargetQw: 1,
			Settings: Settings{Window: 8, SegmentBytes: MinSegmentBytes}, Deadline: 60_000 * Millisecond, Lost: lost,
			Loss: &AcceptLoss{Gone: []Incarnation{2, 3}, Wait: 100 * Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		var held []Extent
		for i := range LSN(2 * MaxLost) { // every second LSN is gone, but for a long stretch
			held = append(held, Extent{top + i*2, top + i*2, 4})
		}
		held[40].To += 90
		held = append(held[:41], held[90:]...)
		o.Start(0)
		o.Handle(0, &OpenReply{Log: 1, Epoch: 5, Req: 5, Incarnation: 1, Promised: 5, Activated: 4, Start: top, CLSN: top - 1,
			ArchivedThrough: top - 1, Through: MaxLSN, Held: held})
		o.Tick(200 * Millisecond)
		if _, ok := o.PendingLook(); !ok {
			t.Fatalf("with %d before: the archive is not looked at: %s", before, o.lacks())
		}
		o.Looked(200*Millisecond, nil, nil)
		got := o.newLost()
		if before == MaxLost {
			if o.Err() == nil || !strings.Contains(o.Err().Error(), "trim") {
				t.Errorf("with %d ranges before: %v", before, o.Err())
			}
			continue
		}
		if o.Err() != nil {
			t.Fatalf("with %d before: %v", before, o.Err())
		}
		if all := append(slices.Clone(lost), got...); len(all) != MaxLost || all.Validate() != nil {
			t.Errorf("with %d ranges before there are %d now, %v", before, len(all), all.Validate())
		}
		if _, in := o.loss.lost.At(top + 100); in {
			t.Errorf("with %d before: the long stretch was given up", before)
		}
		for i := range LSN(2*MaxLost - 1) {
			if x := top + i*2 + 1; x < top+80 || x > top+180 {
				if _, in := o.loss.lost.At(x); !in {
					t.Fatalf("with %d before: LSN %d is nowhere and not lost", before, x)
				}
			}
		}
		if last := got[len(got)-1]; !last.Skipped || last.To-last.From+1 != LossSkip || o.r != last.To+1 {
			t.Errorf("with %d before: %+v, R=%d", before, last, o.r)
		}
	}
}

// A list of what a node lacks that is shorter than its bound is whole: what is lost is left out before it is cut.
func TestMissingIsBoundedLast(t *testing.T) {
	l := &nodeLog{id: testLog}
	held := l.held.ensure(1)
	for x := LSN(2); x <= 4*MaxMissing; x += 2 {
		held.add(x, 1, unknownOff, 1) // every odd LSN is missing
		if x <= MaxMissing {
			l.lost = append(l.lost, Range{x - 1, x - 1})
		}
	}
	got := l.status().Missing
	if len(got) != MaxMissing || got[0] != (Range{MaxMissing + 1, MaxMissing + 1}) {
		t.Errorf("%d stretches, the first %v", len(got), got[:min(len(got), 1)])
	}
}

// Lost records in the middle of damaged ones split the list of damage, which must still fit the state value that a restart reads. What was
// damaged and is not lost stays so, and nothing lost is called damaged.
func TestDamageSplitByLossFitsTheStateValue(t *testing.T) {
	l := nodeLog{start: 1 << 20}
	for i := LSN(1); i <= MaxExtents; i++ {
		l.damaged = append(l.damaged, Range{10 * i, 10*i + 2})
	}
	for i := LSN(1); i <= MaxLost; i++ {
		l.lost = append(l.lost, Range{10*i + 1, 10*i + 1})
	}
	l.clearLost()
	again, err := decodeState(1, l.encodeState(nil))
	if err != nil {
		t.Fatalf("a restart cannot read the state: %v", err)
	}
	for i := LSN(1); i <= MaxExtents; i++ {
		for x := 10 * i; x <= 10*i+2; x++ {
			_, lost := rangeAt(l.lost, x)
			if _, damaged := rangeAt(again.damaged, x); damaged == lost {
				t.Fatalf("LSN %d: lost %t, damaged %t", x, lost, damaged)
			}
		}
	}
}
