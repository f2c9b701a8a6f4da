package protocol

import "testing"

// probeWorld is a writer with one record in flight at a time on a path of a tenth of a millisecond that it knows.
func probeWorld(t *testing.T) (l *linkWorld, step func() (took Time)) {
	w := testWriter(t, 3, 2, nil)
	l = &linkWorld{t: t, w: w, rtt: Millisecond / 10, deaf: func(int, LSN, Time) bool { return false }}
	step = func() Time {
		l.append(1)
		begin := l.now
		for w.Committed() < w.Next()-1 && l.turn(begin+10*maxRTO) {
		}
		took := l.now - begin
		for end := l.now + Millisecond; l.turn(end); {
		}
		return took
	}
	for range 20 {
		step()
	}
	return l, step
}

// With one record in flight nothing later is acknowledged that would tell of a loss: the record goes again after some round trips, not
// after the time-out, and only to who has not acknowledged it.
func TestLostAppendIsProbed(t *testing.T) {
	l, step := probeWorld(t)
	lost, begin := l.w.Next(), l.now
	l.deaf = func(node int, from LSN, now Time) bool { return node < 2 && from == lost && now == begin }
	l.sent = 0
	if took := step(); took > minProbe+2*l.rtt {
		t.Errorf("a lost append took %d µs on a path of %d", took/1000, l.rtt/1000)
	}
	if l.sent != 5 {
		t.Errorf("the lost append was sent %d times: three nodes, and two again", l.sent)
	}
	// A minority that loses it delays nobody: there is no hurry, the time-out of the node or what follows is enough.
	lost, begin = l.w.Next(), l.now
	l.deaf = func(node int, from LSN, now Time) bool { return node == 0 && from == lost && now == begin }
	l.sent = 0
	if took := step(); took > l.rtt || l.sent != 3 {
		t.Errorf("an append that one of three nodes lost took %d µs and was sent %d times", took/1000, l.sent)
	}
	// Lost with its probe: the time-out is what remains.
	lost, begin = l.w.Next(), l.now
	l.deaf = func(node int, from LSN, now Time) bool { return node < 2 && from == lost && now < begin+minRTO/2 }
	if took := step(); took < minRTO/2 || took > 2*minRTO {
		t.Errorf("an append that was lost with its probe took %d µs", took/1000)
	}
}

// Nodes that become slow are not probed for ever: each probe that was for nothing doubles the time to the next, until the path is known.
func TestProbesBackOff(t *testing.T) {
	for _, slow := range []Time{3 * Millisecond, 5 * Millisecond, 9 * Millisecond} {
		l, step := probeWorld(t)
		l.rtt, l.sent = slow, 0
		for range 40 {
			step()
		}
		if more := l.sent - 3*40; more > 3*8 {
			t.Errorf("%d records sent for nothing in the first 40 on a path of %d ms", more, slow/Millisecond)
		}
		l.sent = 0
		for range 40 {
			step()
		}
		if l.sent != 3*40 {
			t.Errorf("%d records sent for 40 to three nodes on a path of %d ms that is known", l.sent, slow/Millisecond)
		}
	}
}

// A driver that ticks at NextTick makes progress: a probe that is due is not due again.
func TestProbeDoesNotSpin(t *testing.T) {
	l, _ := probeWorld(t)
	l.deaf = func(int, LSN, Time) bool { return true }
	l.append(1)
	turns := 0
	for end := l.now + 1000*Millisecond; l.turn(end); {
		turns++
	}
	if turns > 100 {
		t.Errorf("%d turns in a second without answers", turns)
	}
}
