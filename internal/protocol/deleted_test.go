package protocol

import "testing"

// TestDeletedIsSaidBeforeFenced: whoever deletes a log raises the promise first, so a late append meets both; deletion is the
// news (R11).
func TestDeletedIsSaidBeforeFenced(t *testing.T) {
	const inc, log = Incarnation(7), LogID(1)
	s, out := NewShard(inc, Rules{}), &Out{}
	step := func(m Message) {
		out.Reset()
		s.Step(0, 1, m, out)
		s.Finish(out)
	}
	step(&Activate{Log: log, Epoch: 1, Incarnation: inc, Start: 1, History: History{{1, 1}}, Settings: Settings{Window: 8, SegmentBytes: MinSegmentBytes}})
	step(&Drop{Log: log, Epoch: 2, Incarnation: inc})
	step(&Append{Log: log, Epoch: 1, Label: 1, Incarnation: inc, First: 1, Count: 1, SegStart: 1, Block: AppendRecord(nil, []byte("late"), false)})
	if len(out.Acks) != 1 || out.Acks[0].Ack.Status != StatusDeleted || len(out.Records) != 0 {
		t.Fatalf("a late append to a deleted log: %+v, %d records stored", out.Acks, len(out.Records))
	}
	step(&Open{Log: log, Epoch: 1, Req: 1})
	if len(out.Replies) != 1 || out.Replies[0].Msg.(*OpenReply).Status != StatusDeleted {
		t.Fatalf("a late open of a deleted log: %+v", out.Replies)
	}
}

// TestDeletedOverAHigherPromise: a node that learns from the metadata that a log is deleted drops it whatever it has promised, and refuses
// what comes late, after a restart too.
func TestDeletedOverAHigherPromise(t *testing.T) {
	const inc, log = Incarnation(7), LogID(1)
	s, out := NewShard(inc, Rules{}), &Out{}
	step := func(m Message) {
		out.Reset()
		s.Step(0, 1, m, out)
		s.Finish(out)
	}
	step(&Activate{Log: log, Epoch: 3, Incarnation: inc, Start: 1, History: History{{3, 1}}, Settings: Settings{Window: 8, SegmentBytes: MinSegmentBytes}})
	late := &Append{Log: log, Epoch: 3, Label: 3, Incarnation: inc, First: 1, Count: 1, SegStart: 1, Block: AppendRecord(nil, []byte("late"), false)}
	step(late)
	step(&Drop{Log: log, Epoch: 2, Incarnation: inc})
	if out.Acks[0].Ack.Status != StatusFenced {
		t.Fatalf("Drop below the promise: %v", out.Acks[0].Ack.Status)
	}
	out.Reset()
	s.Deleted(log, out)
	s.Finish(out)
	if len(out.Trims) != 1 || !out.Trims[0].Whole || len(out.State) != 1 {
		t.Fatalf("%d trims, %d states written", len(out.Trims), len(out.State))
	}
	step(late)
	if out.Acks[0].Ack.Status != StatusDeleted || len(out.Records) != 0 {
		t.Fatalf("a late append to a deleted log: %v, %d records stored", out.Acks[0].Ack.Status, len(out.Records))
	}
}
