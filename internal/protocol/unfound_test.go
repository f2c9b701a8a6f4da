package protocol

import "testing"

// TestOpenLearnsTheArchiveLate: an open whose committed LSNs no node holds goes on when a node that has looked at the store
// meanwhile says that they are archived (P6).
func TestOpenLearnsTheArchiveLate(t *testing.T) {
	recorded := Ensemble{{Node: "a", Incarnation: 1}, {Node: "b", Incarnation: 2}}
	target := Ensemble{{Node: "a", Incarnation: 1}, {Node: "c", Incarnation: 3}}
	o, err := NewOpener(OpenerConfig{Log: 1, Epoch: 5, Recorded: recorded, Qw: 2, History: History{{4, 11}}, Target: target, TargetQw: 2,
		Settings: Settings{Window: 8, SegmentBytes: MinSegmentBytes}, Deadline: 60_000 * Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	o.Start(0)
	answer := func(inc Incarnation, archived LSN) {
		o.Handle(0, &OpenReply{Log: 1, Epoch: 5, Req: 5, Incarnation: inc, Promised: 5, Activated: 4, Start: 11, CLSN: 10, ArchivedThrough: archived, Through: MaxLSN})
	}
	for inc := range Incarnation(3) {
		answer(inc+1, 0)
	}
	if o.PendingInstall() != nil || o.Err() != nil {
		t.Fatalf("the open did not wait: stage %v, %v", o.Stage(), o.Err())
	}
	o.Sends(nil)
	o.Tick(1000 * Millisecond)
	asked := 0
	for _, s := range o.Sends(nil) {
		if _, ok := s.Msg.(*Open); ok {
			asked++
		}
	}
	if asked != 3 {
		t.Fatalf("%d nodes were asked again, want 3", asked)
	}
	answer(1, 10)
	if o.PendingInstall() == nil {
		t.Fatalf("the open goes on waiting in stage %v: %v", o.Stage(), o.lacks())
	}
}
