package protocol

import "testing"

// linkWorld is a writer and its nodes over links of one round trip, in simulated time. A deaf node loses what is sent to it.
type linkWorld struct {
	t    *testing.T
	w    *Writer
	now  Time
	rtt  Time
	deaf func(node int, from LSN, now Time) bool
	acks []linkAck // by time: the round trip is constant
	sent int       // records sent, once for each node
	size int
}

type linkAck struct {
	at  Time
	ack *Ack
}

// turn does what is due next and reports false when nothing is before end.
func (l *linkWorld) turn(end Time) bool {
	l.send()
	next := l.w.NextTick()
	if len(l.acks) > 0 {
		next = min(next, l.acks[0].at)
	}
	if next = max(next, l.now); next >= end {
		l.now = end
		return false
	}
	l.now = next
	for len(l.acks) > 0 && l.acks[0].at <= l.now {
		l.w.HandleAck(l.now, l.acks[0].ack)
		l.acks = l.acks[1:]
		l.send()
	}
	l.w.Tick(l.now)
	return true
}

func (l *linkWorld) send() {
	for _, s := range l.w.TakeSends(nil) {
		ack := &Ack{Log: testLog, Epoch: 3, Incarnation: l.w.cfg.Ensemble[s.Node].Incarnation}
		switch s.Kind {
		case SendWatermark:
			ack.Kind, ack.CLSN = AckWatermark, l.w.clsn
		case SendAppend:
			ack.Kind, ack.First, ack.Last, ack.Label = AckAppend, s.From, s.To, 3
			l.sent += int(s.To - s.From + 1)
		default:
			l.t.Fatalf("unexpected %+v", s)
		}
		if !l.deaf(s.Node, s.From, l.now) {
			l.acks = append(l.acks, linkAck{l.now + l.rtt, ack})
		}
	}
}

func (l *linkWorld) append(n int) {
	for range n {
		if _, err := l.w.Append(l.now, make([]byte, 100)); err != nil {
			l.t.Fatal(err)
		}
	}
}

// An outage that meets the very first append must not pass for the round trip of the path, and a full window that it has
// left behind drains with the acknowledgements, not with the timer. Found by a newcomer: 128 records per second, for ever.
func TestWindowDrainsAfterAnOutage(t *testing.T) {
	const window, rtt, outage = 1024, Millisecond, 5000 * Millisecond
	for _, first := range []int{1, 50, window} { // records given out before the outage is noticed
		w := testWriter(t, 3, 2, func(c *WriterConfig) { c.Settings.Window = window })
		heard := never
		l := &linkWorld{t: t, w: w, rtt: rtt}
		l.deaf = func(_ int, _ LSN, now Time) bool {
			if now < outage {
				return true
			}
			heard = min(heard, now)
			return false
		}
		l.append(first)
		for l.turn(outage / 2) {
		}
		l.append(window - first)
		for l.turn(outage) {
		}
		l.sent = 0
		for w.Committed() < window && l.turn(2*outage) {
		}
		if took := l.now - heard; w.Committed() != window || took > 10*rtt {
			t.Errorf("%d records first: committed %d of %d, %d µs after the first message arrived", first, w.Committed(), window, took/1000)
		}
		if l.sent > 3*(window+2*maxRelease) {
			t.Errorf("%d records first: %d records sent to drain %d to three nodes", first, l.sent, window)
		}
		for l.turn(2 * outage) { // the third node has everything too
		}
		// From here the path is what it is: a loss is noticed after a short time-out.
		l.append(1)
		for l.turn(l.now + 20*rtt) {
		}
		if rto := w.nodes[0].rto; rto > 10*minRTO {
			t.Errorf("%d records first: time-out %d µs on a path of %d", first, rto/1000, rtt/1000)
		}
		lost, begin := w.Next(), l.now
		l.deaf = func(_ int, from LSN, now Time) bool { return from == lost && now == begin }
		l.append(1)
		for w.Committed() < lost && l.turn(2*begin) {
		}
		if took := l.now - begin; took > 10*minRTO {
			t.Errorf("%d records first: a lost append took %d µs", first, took/1000)
		}
	}
}

// A path that is slower than the first time-out is learned, though its first records are all sent again: their answers leave
// the longer time-out, under which a record is answered before it is sent again.
func TestSlowPathIsLearned(t *testing.T) {
	for _, rtt := range []Time{15 * Millisecond, 120 * Millisecond, 400 * Millisecond} {
		w := testWriter(t, 3, 2, func(c *WriterConfig) { c.Settings.Window = 64 })
		l := &linkWorld{t: t, w: w, rtt: Millisecond, deaf: func(int, LSN, Time) bool { return false }}
		step := func() {
			l.append(1)
			for w.Committed() < w.Next()-1 && l.turn(l.now+10*maxRTO) {
			}
			for l.turn(l.now + 20*Millisecond) {
			}
		}
		for range 20 { // a fast path at first, in all but the first case of a new writer
			if rtt == 120*Millisecond {
				break
			}
			step()
		}
		l.rtt = rtt
		for range 60 {
			step()
		}
		l.sent = 0
		for range 20 {
			step()
		}
		if l.sent > 3*20*5/4 {
			t.Errorf("round trip %d ms: %d records sent for 20 to three nodes", rtt/Millisecond, l.sent)
		}
	}
}

// A lost append is sent again when a later one is acknowledged, not when the timer fires; once, and only to the node that lacks it.
func TestLostAppendIsPassed(t *testing.T) {
	const rtt = Millisecond
	w := testWriter(t, 3, 2, func(c *WriterConfig) { c.Settings.Window, c.Flights = 64, 8 })
	l := &linkWorld{t: t, w: w, rtt: rtt, deaf: func(int, LSN, Time) bool { return false }}
	step := func() { // a record each half round trip
		l.append(1)
		for end := l.now + rtt/2; l.turn(end); {
		}
	}
	for range 20 {
		step()
	}
	lost, begin, tries := w.Next(), l.now, 0
	l.deaf = func(node int, from LSN, now Time) bool {
		if from == lost {
			tries++
		}
		return node < 2 && from == lost && now == begin // a quorum lacks it
	}
	for w.Committed() < lost {
		if step(); l.now-begin > minRTO {
			t.Fatalf("committed %d, %d µs after %d was lost", w.Committed(), (l.now-begin)/1000, lost)
		}
	}
	if took := l.now - begin; took > 4*rtt {
		t.Errorf("a lost append took %d µs on a path of %d", took/1000, rtt/1000)
	}
	for range 40 { // past the time-out
		step()
	}
	if tries != 5 {
		t.Errorf("the lost append was sent %d times: three nodes, and two again", tries)
	}
	// Lost twice: the time-out is what remains.
	lost, begin = w.Next(), l.now
	again := Time(0)
	l.deaf = func(node int, from LSN, now Time) bool {
		if from != lost || node > 1 || now >= begin+minRTO/2 {
			return false
		}
		if now > begin {
			again = now
		}
		return true
	}
	for w.Committed() < lost && l.now < begin+10*minRTO {
		step()
	}
	if w.Committed() < lost || again == 0 {
		t.Errorf("committed %d; %d was sent again %d µs after it was lost", w.Committed(), lost, (again-begin)/1000)
	}
}

// Records that come out of order by less than half a round trip are not taken for lost.
func TestSlightReorderingIsNoLoss(t *testing.T) {
	w := testWriter(t, 3, 2, func(c *WriterConfig) { c.Flights = 8 })
	now := Time(0)
	for x := LSN(1); x <= 20; x++ { // a round trip of a millisecond
		appendN(t, w, now, 1, 100)
		for inc := Incarnation(1); inc <= 3; inc++ {
			w.HandleAck(now+Millisecond, okAck(inc, x, x))
		}
		now += 2 * Millisecond
	}
	appendN(t, w, now, 1, 100)
	appendN(t, w, now+Millisecond*2/5, 1, 100)
	w.TakeSends(nil)
	w.HandleAck(now+Millisecond, okAck(1, 22, 22))
	if s := w.TakeSends(nil); len(s) != 0 {
		t.Errorf("sent again: %+v", s)
	}
	appendN(t, w, now+Millisecond, 1, 100)
	w.TakeSends(nil)
	w.HandleAck(now+2*Millisecond, okAck(1, 23, 23))
	if s := w.TakeSends(nil); len(s) != 1 || s[0] != (Send{0, SendAppend, 21, 21}) {
		t.Errorf("21 was passed by a record that was sent a round trip later; sent again: %+v", s)
	}
}
