package protocol

import "testing"

// A segment that is old enough to be cut but not committed yet must not make NextTick name a time that is past: the driver
// would spin until the acknowledgements come. Found by the simulator (seed 2).
func TestNextTickDoesNotSpinOnAgedSegment(t *testing.T) {
	const now = 100 * Millisecond
	w, err := NewWriter(WriterConfig{Log: 1, Epoch: 1, Start: 1, Qw: 1, Ensemble: Ensemble{{Node: "a", Incarnation: 7}},
		Settings: Settings{Window: 4, SegmentBytes: MinSegmentBytes}, SegmentAge: 10 * Millisecond}, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Append(now, []byte("x")); err != nil {
		t.Fatal(err)
	}
	late := now + 1000*Millisecond
	w.Tick(late)
	if at := w.NextTick(); at <= late {
		t.Fatalf("NextTick is %d after a Tick at %d: a driver would spin", at, late)
	}
	w.HandleAck(late, &Ack{Log: 1, Epoch: 1, Incarnation: 7, Kind: AckAppend, First: 1, Last: 1, Label: 1})
	if at := w.NextTick(); at > late {
		t.Fatalf("NextTick is %d: the aged segment is committed and due at %d", at, late)
	}
	w.Tick(late)
	if w.sealed != 1 {
		t.Fatalf("sealed is %d, want 1", w.sealed)
	}
}
