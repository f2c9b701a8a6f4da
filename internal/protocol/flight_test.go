package protocol

import "testing"

// flightSends takes what a writer wants sent and compares the appends of the first member.
func flightSends(t *testing.T, w *Writer, want ...Range) {
	t.Helper()
	var got []Range
	for _, s := range w.TakeSends(nil) {
		if s.Kind == SendAppend && s.Node == 0 {
			got = append(got, Range{s.From, s.To})
		}
	}
	if len(got) != len(want) {
		t.Fatalf("sent %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("sent %v, want %v", got, want)
		}
	}
}

func appendN(t *testing.T, w *Writer, now Time, n, size int) {
	t.Helper()
	for range n {
		if _, err := w.Append(now, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
}

// G1 to G3, and that an acknowledgement of what is held counts for nobody.
func TestFlights(t *testing.T) {
	w := testWriter(t, 3, 2, func(c *WriterConfig) {
		c.Flights, c.BlockBytes, c.Settings.Window = 2, 10*EncodedSize(100), 1000
	})
	ack := func(now Time, from, to LSN) {
		w.HandleAck(now, okAck(1, from, to))
		w.HandleAck(now, okAck(2, from, to))
	}
	now := Millisecond
	appendN(t, w, now, 1, 100)
	flightSends(t, w, Range{1, 1})
	appendN(t, w, now, 1, 100)
	flightSends(t, w, Range{2, 2})
	appendN(t, w, now, 3, 100)
	flightSends(t, w) // held
	now += Millisecond
	if s := w.slot(3); s.sentAt != 0 {
		t.Fatalf("a held record was sent at %d", s.sentAt)
	}
	// Out of order: 2 is not committed before 1 is, so no flight is over.
	ack(now, 2, 2)
	flightSends(t, w)
	// An acknowledgement of what was not sent is nobody's.
	ack(now, 3, 5)
	if w.Committed() != 0 || w.slot(3).acks != 0 {
		t.Fatalf("committed %d, acknowledgements of a held record: %b", w.Committed(), w.slot(3).acks)
	}
	now += Millisecond
	ack(now, 1, 1) // both flights are over at once
	flightSends(t, w, Range{3, 5})
	if s := w.slot(3); s.sentAt != now {
		t.Fatalf("sent at %d, says the slot, not at %d", s.sentAt, now)
	}
	appendN(t, w, now, 1, 100)
	flightSends(t, w, Range{6, 6})
	appendN(t, w, now, 9, 100)
	flightSends(t, w)
	appendN(t, w, now, 1, 100) // the tenth: another would not fit
	flightSends(t, w, Range{7, 16})
	appendN(t, w, now, 2, 100)
	if _, err := w.Append(now, make([]byte, 2000)); err != nil { // larger than a datagram
		t.Fatal(err)
	}
	flightSends(t, w, Range{17, 18}, Range{19, 19})
	appendN(t, w, now, 1, 100)
	flightSends(t, w)
	now += Millisecond
	ack(now, 3, 5) // what filled a datagram is no flight, so one is free
	flightSends(t, w, Range{20, 20})
	ack(now, 6, 20)
	if w.Committed() != 20 || w.out.n != 0 || w.out.ends != ([maxFlights]LSN{}) {
		t.Fatalf("committed %d, flights %+v", w.Committed(), w.out)
	}
	appendN(t, w, now, 1, 100)
	flightSends(t, w, Range{21, 21})
}

// G4: what is held leaves with the first time-out, once, to the members that are there.
func TestHeldLeavesWithTheTimeOut(t *testing.T) {
	w := testWriter(t, 3, 2, func(c *WriterConfig) { c.Flights = 1 })
	appendN(t, w, Millisecond, 4, 100)
	flightSends(t, w, Range{1, 1})
	if w.Held() != 3 {
		t.Fatalf("%d records are held", w.Held())
	}
	at := w.NextTick()
	for at < 10*Millisecond { // the watermark is pushed
		w.Tick(at)
		w.TakeSends(nil)
		at = w.NextTick()
	}
	w.Tick(at)
	flightSends(t, w, Range{2, 4}, Range{1, 1})
	if w.Held() != 0 {
		t.Fatalf("%d records are held after a time-out", w.Held())
	}
	w.Tick(w.NextTick())
	flightSends(t, w, Range{1, 4})
	appendN(t, w, at, 1, 100)
	flightSends(t, w) // the flight is still under way
}

// What is held across the cut of a segment leaves as two messages, and what a re-open sends again is one flight.
func TestFlightsAcrossACutAndAReopen(t *testing.T) {
	w := testWriter(t, 3, 2, func(c *WriterConfig) { c.Flights, c.BlockBytes, c.Settings.Window = 1, 1<<20, 1000 })
	per := MinSegmentBytes / EncodedSize(1000)
	appendN(t, w, 1, per+5, 1000)
	flightSends(t, w, Range{1, 1})
	w.HandleAck(2, okAck(1, 1, 1))
	w.HandleAck(2, okAck(2, 1, 1))
	cut := LSN(per)
	flightSends(t, w, Range{2, cut}, Range{cut + 1, cut + 5})
	appendN(t, w, 3, 2, 1000)
	flightSends(t, w)

	cfg := w.cfg
	cfg.Epoch, cfg.Start, cfg.Tail, cfg.History = 4, 2, 1, History{{3, 1}, {4, 2}}
	cfg.SegStart, cfg.SegOff = 0, 0
	if err := w.Reopened(4, cfg); err != nil {
		t.Fatal(err)
	}
	last := cut + 7
	if w.out.flown != last || w.out.bytes != 0 || w.out.n != 1 {
		t.Fatalf("after the re-open: %+v", w.out)
	}
	w.TakeSends(nil)
	appendN(t, w, 5, 1, 1000)
	flightSends(t, w)
	for _, inc := range []Incarnation{1, 2} {
		a := okAck(inc, 2, last)
		a.Epoch, a.Label = 4, 4
		w.HandleAck(6, a)
	}
	flightSends(t, w, Range{last + 1, last + 1})
}
