package protocol

import (
	"errors"
	"fmt"
)

// never is a time that no clock reaches.
const never Time = 1<<63 - 1

// Tick does what is due: appends again what a member has not acknowledged, Activate again, the watermark when no append
// has carried it, and the cut of an old segment.
func (w *Writer) Tick(now Time) {
	if w.err != nil {
		return
	}
	w.cutAged(now)
	for i := range w.nodes {
		w.tickNode(now, i)
	}
	w.rest(now)
}

// NextTick returns when Tick must be called next at the latest; never if nothing is due.
func (w *Writer) NextTick() Time {
	if w.err != nil {
		return never
	}
	at := never
	for i := range w.nodes {
		n := &w.nodes[i]
		if n.refuses != StatusOK {
			continue
		}
		if n.lo <= w.out.flown || !n.activated {
			at = min(at, n.resendAt, w.probeAt(i))
		}
		if w.pushDue(n) {
			at = min(at, max(n.wmAt, w.lastAt+pushDelay))
		}
	}
	if w.cfg.SegmentAge > 0 && w.segOff > 0 && w.clsn == w.next-1 {
		// Not before all is committed: a driver that was told a time at which Tick does nothing would spin.
		at = min(at, w.segSince+w.cfg.SegmentAge)
	}
	at = min(at, w.restAt())
	return at
}

func (w *Writer) pushDue(n *follower) bool {
	return n.activated && n.refuses == StatusOK && (n.wm < w.clsn || n.sealed < w.sealed)
}

// cutAged seals a segment that has waited too long and is committed, so that an idle tail gets archived and pins no
// file of a node's store.
func (w *Writer) cutAged(now Time) {
	if w.cfg.SegmentAge > 0 && w.segOff > 0 && w.clsn == w.next-1 && now-w.segSince >= w.cfg.SegmentAge {
		w.Seal()
	}
}

// Seal cuts the segment behind the last record, if that is committed; the nodes learn it with the next watermark. It
// reports whether there was something to cut.
func (w *Writer) Seal() bool {
	if w.segOff == 0 || w.clsn != w.next-1 {
		return false
	}
	w.sealed = w.next - 1
	w.segStart, w.segOff, w.segSince = w.next, 0, 0
	for i := range w.nodes {
		w.nodes[i].wmAt = 0
	}
	return true
}

// Settled reports whether every LSN is committed and at least Qw members hold the watermark (and the seal) durably, so
// that a successor finds nothing unknown.
func (w *Writer) Settled() bool {
	if w.clsn != w.next-1 {
		return false
	}
	told := 0
	for i := range w.nodes {
		if n := &w.nodes[i]; n.wm >= w.clsn && n.sealed >= w.sealed {
			told++
		}
	}
	return told >= w.cfg.Qw
}

func (w *Writer) tickNode(now Time, i int) {
	n := &w.nodes[i]
	switch {
	case n.refuses != StatusOK:
		return // for good at this epoch: a promise never falls and an incarnation never comes back
	case !n.activated:
		if now >= n.resendAt {
			w.outbox = append(w.outbox, Send{Node: i, Kind: SendActivate})
			w.backoff(n, now)
		}
		return
	case n.lo <= w.out.flown && now >= n.resendAt:
		w.resend(now, i)
	case now >= w.probeAt(i):
		w.probe(i)
	}
	if w.pushDue(n) && now >= n.wmAt && now-w.lastAt >= pushDelay {
		w.outbox = append(w.outbox, Send{Node: i, Kind: SendWatermark})
		n.wmSent = w.clsn
		n.wmAt = now + max(n.rto, minRTO)
		if now-n.heard > downAfter {
			n.wmAt = now + maxRTO
		}
	}
}

func (w *Writer) backoff(n *follower, now Time) {
	n.rto = min(maxRTO, n.rto+n.rto/2)
	n.resendAt = now + n.rto
}

// resend sends again what node i has not acknowledged and should have by now. A node that has been silent for long gets
// one append as a probe.
func (w *Writer) resend(now Time, i int) {
	n := &w.nodes[i]
	w.release(now) // G4
	burst := resendBurst
	if now-n.heard > downAfter {
		burst = 1
	}
	n.resent = 0
	w.sendAgain(now, i, n.lo, burst)
	w.backoff(n, now)
}

// probeAt returns when the oldest record that is not committed is sent again to node i, as one message, because a quorum has not
// acknowledged it for longer than the path takes as a rule: its mean and four mean deviations (RFC 6298), and not less than minProbe. With
// one record in flight nothing later tells of a loss, and the time-out of minRTO is a hundred round trips of a fast network. never: it
// has the record, or has been probed with it, or has been probed so often without an answer that the time-out comes first.
func (w *Writer) probeAt(i int) Time {
	n, x := &w.nodes[i], w.clsn+1
	if x > w.out.flown || x > n.sent || x < n.lo || n.refuses != StatusOK || !n.activated {
		return never
	}
	s, wait := w.slot(x), max(minProbe, w.srtt+4*w.rttvar)<<n.probes
	if (s.acks|s.again)>>i&1 != 0 || w.srtt == 0 || wait >= n.rto {
		return never
	}
	return s.sentAt + wait
}

// probe sends node i what probeAt says. If the node is slow and nothing was lost, the record goes twice; so the next probe waits
// twice as long, until it has answered something that was sent once (Karn's rule: only that tells how long it takes).
func (w *Writer) probe(i int) {
	w.sendUnit(i, w.clsn+1)
	w.nodes[i].probes++
}

// sendAgain sends node i at most burst appends, from LSN x on, that it has not acknowledged and should have by now. It is
// bounded: between two time-outs x only rises, so that nothing goes out twice.
func (w *Writer) sendAgain(now Time, i int, x LSN, burst int) {
	n, bit := &w.nodes[i], uint16(1)<<i
	for ; x <= w.out.flown && burst > 0; x++ {
		s := w.slot(x)
		if s.acks&bit != 0 {
			continue
		}
		if x <= n.sent && now-s.sentAt < n.rto/2 {
			break // in flight for the first time
		}
		last, sent := w.sendUnit(i, x)
		if sent {
			n.resent = last
			burst--
		}
		x = last
	}
}

// sendUnit sends node i the record or the batch that x is of, and returns its last LSN. A batch goes whole or not at all.
func (w *Writer) sendUnit(i int, x LSN) (last LSN, sent bool) {
	n, bit := &w.nodes[i], uint16(1)<<i
	first := x
	for w.slot(first).inBatch && first > w.low {
		first--
	}
	for last = x; w.slot(last).more && last < w.out.flown; {
		last++
	}
	if w.slot(first).inBatch {
		n.lo = last + 1 // its head is forgotten: the rest must not travel alone
		return last, false
	}
	for y := first; y <= last; y++ {
		w.slot(y).again |= bit
	}
	w.outbox = append(w.outbox, Send{i, SendAppend, first, last})
	n.sent = max(n.sent, last)
	n.wmSent = w.clsn
	return last, true
}

// sendPassed sends node i again what it has not acknowledged below an acknowledged record from, although it was sent half a
// round trip before that: then the network has lost it, or its answer, and there is no need to wait for the time-out. Each record is
// looked at once; if it is lost again the time-out remains. A path that overtakes itself by less than that is taken for no loss.
func (w *Writer) sendPassed(now Time, i int, from LSN, sentAt Time) {
	n, bit := &w.nodes[i], uint16(1)<<i
	if n.refuses != StatusOK || !n.activated {
		return
	}
	burst := resendBurst
	for x := max(n.lo, n.passed+1); x < from && burst > 0; x++ {
		s := w.slot(x)
		if x > n.sent || s.sentAt+w.srtt/2 >= sentAt {
			break
		}
		n.passed = x
		if (s.acks|s.again)&bit != 0 {
			continue
		}
		last, sent := w.sendUnit(i, x)
		if sent {
			n.resendAt = now + n.rto
			burst--
		}
		n.passed, x = last, last
	}
}

// TokenTaken tells a live writer that its own client raised the log's token to e, for a re-open. The token must follow the
// last one that this client held: a number in between was another client's, who may have written under LSNs that this
// writer gave out. Re-opening over that would report the other's records as committed under our LSNs (P10), and neither
// the tail nor the history can tell: entries of equal start are one. So the writer is lost, and says so.
func (w *Writer) TokenTaken(e Epoch) error {
	if w.err == nil && e != w.token+1 {
		w.err = fmt.Errorf("%w: the log's record went from epoch %d, which this writer held, to %d", ErrFenced, w.token, e)
	}
	if w.err == nil {
		w.token = e
	}
	return w.err
}

// Reopened moves a live writer to a new epoch of its own (P11): what was given out above the recovered tail is sent
// again, same LSN and bytes, before anything new (P10, X7). TokenTaken comes first, once for every token, also of a
// re-open that failed; a single one may be left out.
func (w *Writer) Reopened(now Time, cfg WriterConfig) error {
	if err := checkWriterConfig(&cfg); err != nil {
		return err
	}
	if w.err != nil && !errors.Is(w.err, ErrQuorumLost) {
		return w.err // a writer that has lost stops
	}
	if cfg.Epoch != w.token || cfg.Epoch == w.cfg.Epoch {
		if err := w.TokenTaken(cfg.Epoch); err != nil {
			return err
		}
	}
	if cfg.Log != w.cfg.Log || cfg.Tail >= w.next || cfg.Tail < w.clsn {
		w.err = fmt.Errorf("%w: the open at epoch %d found tail %d, this writer has given out %d to %d", ErrFenced, cfg.Epoch, cfg.Tail, w.clsn+1, w.next-1)
		return w.err
	}
	if cfg.Tail+1 < w.low {
		w.err = ErrQuorumLost
		return w.err
	}
	cfg.WindowBytes, cfg.Retain, cfg.RetainBytes, cfg.BlockBytes = w.cfg.WindowBytes, w.cfg.Retain, w.cfg.RetainBytes, w.cfg.BlockBytes
	cfg.Flights, cfg.SegmentAge = w.cfg.Flights, w.cfg.SegmentAge
	w.cfg = cfg
	w.err, w.check, w.sealed, w.srtt, w.rttvar = nil, false, 0, 0, 0
	w.outbox = w.outbox[:0]
	for w.clsn < cfg.Tail {
		w.clsn++
		w.unack -= len(w.slot(w.clsn).data)
		w.kept += len(w.slot(w.clsn).data)
	}
	// Copies at or below the tail carry labels of the open; a slow node gets them from its peers or the archive.
	for w.low <= w.clsn {
		w.forget()
	}
	w.segStart, w.segOff, w.segSince = cfg.SegStart, cfg.SegOff, now
	w.resetNodes(now)
	end := w.next
	for x := cfg.Tail + 1; x < end; {
		last := x
		size := EncodedSize(len(w.slot(x).data))
		for w.slot(last).more && last+1 < end {
			last++
			size += EncodedSize(len(w.slot(last).data))
		}
		w.next = x
		w.cutFor(size)
		for y := x; y <= last; y++ {
			s := w.slot(y)
			s.segStart, s.segOff, s.acks, s.again = w.segStart, w.segOff, 0, 0
			w.segOff += uint64(EncodedSize(len(s.data)))
		}
		w.next = last + 1
		w.sendNew(now, x, last)
		x = last + 1
	}
	w.next = end
	w.out = flights{flown: end - 1}
	w.out.begin(end-1, w.clsn) // what is sent again is a flight of its own
	return nil
}
