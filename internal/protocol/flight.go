package protocol

// Flights: when a record leaves. A send costs the writer's process a system call and each node a message, whatever is in it, so
// records share one when they come faster than the answers; and yet none waits for others that may never come:
//
//	G1  While fewer than Flights sends are under way (not committed), a record leaves at once. One record at a time is never held.
//	G2  Else it is held, and leaves with all that are held then when the oldest send is committed: the quorum's answer is the
//	    clock, there is no timer. It waits for what it would have waited for at the nodes, where a commit is under way.
//	G3  What fills a datagram leaves at once, and is no flight: it shares its costs among as many records as it can.
//	G4  When a send is not answered in time, what is held leaves too. It does not wait for what the network has lost, and a node that
//	    is left alone holds all that was given out.
//
// This is Nagle's rule (RFC 896) as Minshall changed it, with K small sends under way instead of one. A record waits for the K-th part of
// a round trip at most, about, and a round trip costs K sends at most that do not fill a datagram. With one, a record waits for a whole
// round trip, in which the nodes may be idle; what 1, 2 and 4 cost was measured (docs/BENCHMARKS.md, "The append path").
//
// A held record has its LSN and its place in its segment, so nothing else depends on when it leaves: it is committed in order (P9),
// spent (P10), in the window, and a member is asked for nothing above flown.
type flights struct {
	flown LSN // highest LSN that was sent; what is above is held
	bytes int // encoded, of what is held
	n     int // sends under way that did not fill a datagram
	ends  [maxFlights]LSN
}

const (
	defaultFlights = 4
	maxFlights     = 8
)

// begin notes a send up to LSN end; what is committed already is none.
func (f *flights) begin(end, committed LSN) {
	if end > committed {
		f.ends[f.n] = end
		f.n++
	}
}

// land forgets the sends that are committed.
func (f *flights) land(committed LSN) {
	done := 0
	for done < f.n && f.ends[done] <= committed {
		done++
	}
	if done > 0 {
		f.n = copy(f.ends[:], f.ends[done:f.n])
		clear(f.ends[f.n:]) // states that behave alike are equal: the explorer compares them
	}
}

// Held returns how many records were given out and not sent yet.
func (w *Writer) Held() int { return int(w.next - 1 - w.out.flown) }

// fits reports whether count more records of size bytes would share a datagram with what is held.
func (w *Writer) fits(count, size int) bool {
	return w.out.bytes+size <= w.cfg.BlockBytes && w.Held()+count <= MaxBatchRecords
}

// makeWay sends what is held if the record, or the batch of count, that is about to be given out does not fit in with it.
func (w *Writer) makeWay(now Time, count, size int) {
	if w.out.bytes > 0 && !w.fits(count, size) {
		w.release(now)
	}
}

// launch sends the record or batch of size bytes that was given out last, or holds it.
func (w *Writer) launch(now Time, count, size int) {
	w.out.bytes += size
	switch {
	case w.out.n < w.cfg.Flights:
		w.release(now)
		w.out.begin(w.out.flown, w.clsn)
	case !w.fits(count, size): // another like it
		w.release(now)
	}
}

// land sends what is held if a flight is over.
func (w *Writer) land(now Time) {
	w.out.land(w.clsn)
	if w.out.bytes > 0 && w.out.n < w.cfg.Flights {
		w.release(now)
		w.out.begin(w.out.flown, w.clsn)
	}
}

// release sends what is held, in as few messages as the cuts of segments allow.
func (w *Writer) release(now Time) {
	for x := w.out.flown + 1; x < w.next; {
		first := w.slot(x)
		last := x
		for last+1 < w.next && w.slot(last+1).segStart == first.segStart {
			last++
		}
		w.sendNew(now, x, last)
		x = last + 1
	}
	w.out.flown, w.out.bytes = w.next-1, 0
}

// sendNew queues [from, to] to every member that takes appends.
func (w *Writer) sendNew(now Time, from, to LSN) {
	for x := from; x <= to; x++ {
		w.slot(x).sentAt = now
	}
	for i := range w.nodes {
		n := &w.nodes[i]
		if n.refuses != StatusOK || !n.activated || now-n.heard > downAfter && n.lo < from {
			continue // it catches up by resend once it answers
		}
		w.outbox = append(w.outbox, Send{i, SendAppend, from, to})
		n.sent = max(n.sent, to)
		n.wmSent = w.clsn
		if n.lo == from {
			n.resendAt = now + n.rto
			n.heard = now // silence counts from the first append that goes unanswered
		}
	}
}

// TakeSends moves what is to be sent into dst and returns it. Adjacent appends to one node are joined up to BlockBytes.
func (w *Writer) TakeSends(dst []Send) []Send {
	var last [MaxEnsemble]int // per member: 1 + the index of its last send in dst
	for _, s := range w.outbox {
		if s.Kind == SendAppend {
			if s.From < w.low {
				continue // committed and forgotten since; the resend timer looks at what is left
			}
			if i := last[s.Node]; i > 0 && w.joins(dst[i-1], s) {
				dst[i-1].To = s.To
				continue
			}
		}
		dst = append(dst, s)
		last[s.Node] = len(dst)
	}
	w.outbox = w.outbox[:0]
	return dst
}

func (w *Writer) joins(p, s Send) bool {
	return p.Kind == SendAppend && p.To+1 == s.From && w.slot(p.From).segStart == w.slot(s.To).segStart &&
		s.To-p.From < MaxBatchRecords && int(w.slot(s.To).segOff-w.slot(p.From).segOff)+EncodedSize(len(w.slot(s.To).data)) <= w.cfg.BlockBytes
}
