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
