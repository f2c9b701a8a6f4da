package protocol

import "testing"

// TestFullNodeAcknowledgesWhatItHolds: a full node refuses new records and still answers truly about those that it holds, so
// that a writer whose acknowledgement was lost does not wait for space.
func TestFullNodeAcknowledgesWhatItHolds(t *testing.T) {
	const inc, log = Incarnation(7), LogID(1)
	s, out := NewShard(inc, Rules{}), &Out{}
	step := func(m Message) Status {
		out.Reset()
		s.Step(0, 1, m, out)
		s.Finish(out)
		if len(out.Acks) != 1 {
			t.Fatalf("%T: %d acknowledgements", m, len(out.Acks))
		}
		return out.Acks[0].Ack.Status
	}
	run := func(first LSN, n int, off uint64) *Append {
		var block []byte
		for range n {
			block = AppendRecord(block, []byte("abcd"), false)
		}
		return &Append{Log: log, Epoch: 1, Label: 1, Incarnation: inc, First: first, Count: uint32(n), SegStart: 1, SegOff: off, Block: block}
	}
	if st := step(&Activate{Log: log, Epoch: 1, Incarnation: inc, Start: 1, History: History{{1, 1}}, Settings: Settings{Window: 8, SegmentBytes: MinSegmentBytes}}); st != StatusOK {
		t.Fatalf("activate: %v", st)
	}
	if st := step(run(1, 4, 0)); st != StatusOK {
		t.Fatalf("append with room: %v", st)
	}
	s.SetSpace(SpaceNone)
	for _, c := range []struct {
		m    *Append
		want Status
	}{
		{run(1, 4, 0), StatusOK}, {run(2, 2, 8), StatusOK}, {run(4, 2, 24), StatusNoSpace}, {run(5, 1, 32), StatusNoSpace}, {run(7, 1, 48), StatusNoSpace},
	} {
		if got := step(c.m); got != c.want {
			t.Errorf("append of %d to %d on a full node: %v, want %v", c.m.First, c.m.Last(), got, c.want)
		}
		if c.want == StatusOK && len(out.Records) != 0 {
			t.Errorf("append of %d to %d was stored twice", c.m.First, c.m.Last())
		}
	}
	s.SetSpace(SpaceFree)
	if st := step(run(5, 1, 32)); st != StatusOK {
		t.Fatalf("append after space returned: %v", st)
	}
}
