package protocol

import "testing"

// flushables steps a shard with one log whose epoch 1 wrote records 1..n, of which the node holds the given LSNs, and lists
// what it would flush after epoch 2 (start n+1) was activated.
func flushables(t *testing.T, n LSN, has []LSN, repaired []LSN) []Segment {
	t.Helper()
	s := NewShard(7, Rules{})
	var out Out
	set := Settings{Name: "x", Window: 8, SegmentBytes: MinSegmentBytes, Qw: 2, Peers: []Incarnation{7, 8, 9}}
	step := func(m Message) {
		t.Helper()
		out.Reset()
		s.Step(1, 1, m, &out)
		s.Finish(&out)
		for _, a := range out.Acks {
			if a.Ack.Status != StatusOK {
				t.Fatalf("%+v: %s", m, a.Ack.Status)
			}
		}
	}
	record := func(kind AppendKind, e Epoch, x, seg LSN) {
		b := AppendRecord(nil, []byte("r"), false)
		step(&Append{Log: 1, Epoch: e, Label: e, Kind: kind, Incarnation: 7, First: x, Count: 1, SegStart: seg, SegOff: uint64(x-seg) * uint64(len(b)), Block: b})
	}
	step(&Open{Log: 1, Epoch: 1, Name: "x"})
	step(&Activate{Log: 1, Epoch: 1, Incarnation: 7, Start: 1, History: History{{1, 1}}, Settings: set})
	for _, x := range has {
		record(AppendNormal, 1, x, 1)
	}
	step(&Open{Log: 1, Epoch: 2, Name: "x"})
	for _, x := range repaired {
		record(AppendRepair, 2, x, repaired[0])
	}
	step(&Open{Log: 1, Epoch: 3, Name: "x"})
	step(&Activate{Log: 1, Epoch: 3, Incarnation: 7, Start: n + 1, B: n, History: History{{1, 1}, {3, n + 1}}, Settings: set})
	var segs []Segment
	s.Flushable(2, func(g Segment) { segs = append(segs, g) })
	return segs
}

// A segment that a repair of a dead opener outranks in its middle never fills: it must count as complete up to there, or
// it is never archived. Found by the simulator (seed 76: L3).
func TestFlushableSegmentCutByRepairLabel(t *testing.T) {
	segs := flushables(t, 2, []LSN{1, 2}, []LSN{2})
	if len(segs) != 2 || segs[0].Last != 1 || !segs[0].Complete || segs[1].First != 2 || segs[1].Label != 2 || !segs[1].Complete {
		t.Fatalf("flushable: %+v", segs)
	}
}

// When no node holds a segment whole, the union of the stretches must get into the archive (A2): each is offered, behind
// every node that has the whole.
func TestFlushableStretchesOfHoledSegment(t *testing.T) {
	segs := flushables(t, 5, []LSN{1, 2, 4, 5}, nil)
	if len(segs) != 2 || segs[0].Last != 2 || segs[1].First != 4 || segs[1].Last != 5 {
		t.Fatalf("flushable: %+v", segs)
	}
	for _, g := range segs {
		if !g.Complete || g.Rank < 3 {
			t.Fatalf("stretch [%d, %d]: complete %v, rank %d; want complete, behind the 3 nodes of the log", g.First, g.Last, g.Complete, g.Rank)
		}
	}
	if whole := flushables(t, 5, []LSN{1, 2, 3, 4, 5}, nil); len(whole) != 1 || !whole[0].Complete || whole[0].Rank > 2 {
		t.Fatalf("flushable of the whole: %+v", whole)
	}
}

// A newcomer that promised and was never activated may be the only one left who can say what is archived: it has to look, or its log
// can never be opened again. Found by the simulator (L1: write quorum 2 of 2, all records archived, one disk after the other
// replaced).
func TestBehindNamesALogThatWasPromisedOnly(t *testing.T) {
	s := NewShard(7, Rules{})
	var out Out
	s.Step(1, 1, &Open{Log: 1, Epoch: 5, Name: "x"}, &out)
	behind := 0
	s.Behind(func(log LogID, archived LSN, blank bool) {
		if log != 1 || archived != 0 || !blank {
			t.Errorf("log %v, archived %d, blank %v", log, archived, blank)
		}
		behind++
	})
	if behind != 1 {
		t.Fatalf("%d logs are behind", behind)
	}
	s.Archived(2, 1, []ArchivedObject{{Label: 3, First: 1, Last: 62, CLSN: 62}}, &out)
	out.Reset()
	s.Step(3, 1, &Open{Log: 1, Epoch: 6, Name: "x"}, &out)
	if r := out.Replies[0].Msg.(*OpenReply); r.ArchivedThrough != 62 || r.CLSN != 0 || len(r.Held) != 0 {
		t.Fatalf("the next opener is told %+v", r)
	}
	// The epoch is activated, and nothing is missing: there is nothing to look for.
	s.Step(4, 1, &Activate{Log: 1, Epoch: 6, Incarnation: 7, Start: 63, B: 62, History: History{{6, 63}}, Settings: Settings{Window: 8}}, &out)
	s.Behind(func(LogID, LSN, bool) { t.Error("still behind") })
}

// A takeover's repair may bring a record back to a node that has archived and dropped it: another node still had it, and the opener asked both.
// It has to go again, or it pins its file of the store for ever. Found by the simulator (seed 2726: L3).
func TestRepairOfWhatIsDroppedGoesAgain(t *testing.T) {
	for _, idle := range []bool{false, true} {
		s := NewShard(7, Rules{})
		var out Out
		step := func(m Message) {
			t.Helper()
			out.Reset()
			s.Step(1, 1, m, &out)
			s.Finish(&out)
			for _, a := range out.Acks {
				if a.Ack.Status != StatusOK {
					t.Fatalf("%+v: %s", m, a.Ack.Status)
				}
			}
		}
		set := Settings{Name: "x", Window: 1, SegmentBytes: MinSegmentBytes, Qw: 2, Peers: []Incarnation{7, 8, 9}}
		block := AppendRecord(nil, []byte("r"), false)
		add := func(kind AppendKind, e, label Epoch, x LSN) {
			step(&Append{Log: 1, Epoch: e, Label: label, Kind: kind, Incarnation: 7, First: x, Count: 1, SegStart: 1, SegOff: uint64(x-1) * uint64(len(block)), Block: block})
		}
		step(&Open{Log: 1, Epoch: 1, Name: "x"})
		step(&Activate{Log: 1, Epoch: 1, Incarnation: 7, Start: 1, History: History{{1, 1}}, Settings: set})
		for x := LSN(1); x <= 4; x++ {
			add(AppendNormal, 1, 1, x)
		}
		archived := []ArchivedObject{{Label: 1, First: 1, Last: 3, CLSN: 3}}
		out.Reset()
		s.Archived(2, 1, archived, &out)
		if st, _ := s.Log(1); st.DroppedThrough != 3 || len(out.Trims) != 1 {
			t.Fatalf("dropped through %d with %d trims, want 3 with 1", st.DroppedThrough, len(out.Trims))
		}
		step(&Open{Log: 1, Epoch: 2, Name: "x"})
		add(AppendCopy, 2, 1, 2)
		if len(out.Records) != 1 {
			t.Fatalf("the copy wrote %d records, want 1: its label may outrank what is archived", len(out.Records))
		}
		out.Reset()
		if idle {
			s.Release(3, 0, &out)
		} else {
			s.Archived(3, 1, archived, &out)
		}
		if len(out.Trims) != 1 || out.Trims[0].Through != 3 || out.Trims[0].Label != 1 {
			t.Fatalf("idle %v: trims %+v; want label 1 through 3", idle, out.Trims)
		}
		if r := s.logs[1].held.lowest(); r != 4 {
			t.Fatalf("idle %v: lowest record held is %d, want 4", idle, r)
		}
		out.Reset()
		s.Archived(4, 1, archived, &out)
		s.Release(4, 1, &out)
		if len(out.Trims) != 0 {
			t.Fatalf("idle %v: trimmed again: %+v", idle, out.Trims)
		}
	}
}
