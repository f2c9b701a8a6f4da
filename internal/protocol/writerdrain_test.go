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
