package sim

import (
	"errors"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

// writerActor is a process that opens a log, appends for a while, and ends in one of the ways in which processes end.
type writerActor struct {
	*client
	l     *simLog
	w     *protocol.Writer
	owner meta.Owner
	sent  map[protocol.LSN][]byte // what was given out and is not known to be committed
	told  protocol.LSN            // acknowledged to the checker up to here
	cfg   protocol.WriterConfig
	sends []protocol.Send
	buf   []byte
}

// writerLife runs writers on a log, one after another, until the world heals.
func (w *world) writerLife(l *simLog) {
	c := w.newClient("writer", func(c *client) {
		a := &writerActor{client: c, l: l}
		c.p.sleep(between(c.rng, 0, 500*millisecond))
		for !w.healed && !l.deleted {
			if err := a.openLog(openOptions{change: c.rng.IntN(6) == 0, survey: c.rng.IntN(2) == 0, timeout: 4 * second}); err != nil {
				if lostTheRace(err) {
					w.c.add(&w.c.Fenced)
				}
				a.rest(between(c.rng, 10*millisecond, second))
				continue
			}
			a.reign(w.now + between(c.rng, w.p.life/4, 2*w.p.life))
		}
	})
	c.again = func() { w.writerLife(l) }
}

// rest lets time pass without working; messages that arrive meanwhile wait.
func (a *writerActor) rest(d protocol.Time) {
	a.p.sleep(d)
}

func (a *writerActor) openLog(o openOptions) error {
	op, err := a.open(a.l, o)
	if err != nil {
		return err
	}
	cfg := op.res.Config
	p := a.client.w.p
	cfg.SegmentAge, cfg.Retain, cfg.RetainBytes, cfg.Flights = p.segmentAge, p.retain, p.retainBytes, p.flights
	w, err := protocol.NewWriter(cfg, a.client.w.now)
	if err != nil {
		a.client.w.fail("open", "%s: %v", a.name, err)
		return err
	}
	a.cfg = cfg
	a.w, a.owner, a.told, a.sent = w, op.owner, cfg.Tail, map[protocol.LSN][]byte{}
	return nil
}

// reign appends until its time is up or the log is lost, and then ends in one way or another.
func (a *writerActor) reign(until protocol.Time) {
	w := a.client.w
	for a.w.Err() == nil && w.now < until && !w.healed {
		switch r := a.rng.IntN(100); {
		case r < 55:
			a.appendOne()
		case r < 70:
			a.appendBatch()
		case r < 88:
			a.sync(2 * second)
		case r < 91:
			a.pump(w.now)
			a.w.Seal()
		case r < 93:
			// Stopped for long: a zombie when it comes back, if another writer has opened the log meanwhile.
			w.c.add(&w.c.Zombies)
			a.rest(between(a.rng, 100*millisecond, 3*second))
		case r < 95:
			a.reopen()
		}
		a.pump(w.now + protocol.Time(a.rng.ExpFloat64()*float64(w.p.think)))
	}
	if a.w.Err() != nil {
		w.tracef("%s: lost the log: %v", a.name, a.w.Err())
		if errors.Is(a.w.Err(), protocol.ErrFenced) {
			w.c.add(&w.c.Fenced)
			a.fenced(a.l, a.owner)
		}
		return
	}
	if a.rng.IntN(2) == 0 {
		a.close()
	} // else it just goes away, and its successor finds what it left
}

func (a *writerActor) size() int {
	if a.rng.IntN(8) == 0 {
		return a.client.w.p.maxRecord
	}
	return payloadHead + a.rng.IntN(1+a.client.w.p.maxRecord/4)
}

func (a *writerActor) appendOne() {
	w := a.client.w
	data := makePayload(a.rng.Uint64(), 0, 1, a.size())
	lsn, err := a.w.Append(w.now, data)
	if err != nil {
		a.refused(err)
		return
	}
	w.c.add(&w.c.Appends)
	a.gave(lsn, data)
}

func (a *writerActor) appendBatch() {
	w := a.client.w
	id, n := a.rng.Uint64(), 2+a.rng.IntN(3)
	var recs [][]byte
	for i := range n {
		recs = append(recs, makePayload(id, uint32(i), uint32(n), a.size()))
	}
	first, _, err := a.w.AppendBatch(w.now, recs)
	if err != nil {
		a.refused(err)
		return
	}
	w.c.add(&w.c.AppendBatches)
	for i, r := range recs {
		a.gave(first+protocol.LSN(i), r)
	}
}

func (a *writerActor) refused(err error) {
	if errors.Is(err, protocol.ErrWindowFull) {
		a.client.w.c.add(&a.client.w.c.WindowFull)
	}
}

func (a *writerActor) gave(lsn protocol.LSN, data []byte) {
	a.sent[lsn] = data
	a.client.w.check.gave(a.l.id, a.w.Epoch(), lsn, data)
}

// pump moves messages until the given instant: what the client library's threads do.
func (a *writerActor) pump(until protocol.Time) {
	w := a.client.w
	for {
		for m := a.take(); m != nil; m = a.take() {
			if ack, ok := m.(*protocol.Ack); ok {
				a.w.HandleAck(w.now, ack)
			}
		}
		a.acknowledge()
		a.w.Tick(w.now)
		a.flush()
		if a.w.NeedsRecordCheck() {
			if rec, err := a.cat.Load(a.context(2*second), a.l.name); err == nil && rec.Record.ID == a.l.id {
				a.w.RecordSeen(rec.Record.Epoch, false)
			} else if err == nil || errors.Is(err, meta.ErrNotFound) {
				a.w.RecordSeen(0, true)
			}
			continue
		}
		if w.now >= until || a.w.Err() != nil {
			return
		}
		a.idle(max(min(until, a.w.NextTick()), w.now+1))
	}
}

// flush sends what the writer wants sent.
func (a *writerActor) flush() {
	a.sends = a.w.TakeSends(a.sends[:0])
	for _, s := range a.sends {
		to := a.w.Ensemble()[s.Node].Node
		switch s.Kind {
		case protocol.SendAppend:
			var m protocol.Append
			a.buf = a.w.Fill(s, &m, a.buf[:0])
			a.send(to, &m)
		case protocol.SendActivate:
			a.send(to, a.w.Activation(s.Node))
		case protocol.SendWatermark:
			a.send(to, a.w.PushMessage(s.Node))
		}
	}
}

// acknowledge tells the checker what the writer was told: from here on it may have told its own clients.
func (a *writerActor) acknowledge() {
	for a.told < a.w.Committed() {
		a.told++
		if data, ok := a.sent[a.told]; ok {
			a.client.w.check.acked(a.l.id, a.w.Epoch(), a.told, data, a.name)
			delete(a.sent, a.told)
		}
	}
}

// sync waits until all that was given out is committed; a time-out leaves the outcome unknown.
func (a *writerActor) sync(patience protocol.Time) bool {
	w := a.client.w
	if w.mutant.ReuseAfterCancel {
		patience = min(patience, 100*millisecond) // who gives up soon meets what is still under way
	}
	want, end := a.w.Next()-1, w.now+patience
	for a.w.Committed() < want && a.w.Err() == nil && w.now < end {
		a.pump(min(end, w.now+10*millisecond))
	}
	if w.mutant.ReuseAfterCancel && a.w.Committed() < want && a.w.Err() == nil {
		a.cancel()
	}
	return a.w.Committed() >= want
}

// cancel is a mutant: what was given out and is not committed is forgotten, and its LSNs are given out again.
func (a *writerActor) cancel() {
	cfg := a.cfg
	cfg.Tail, cfg.SegStart, cfg.SegOff = a.w.Committed(), 0, 0
	if w, err := protocol.NewWriter(cfg, a.client.w.now); err == nil {
		a.w = w
	}
}

// close leaves a log in order: everything committed, the segment sealed, the watermark known to a quorum.
func (a *writerActor) close() bool {
	w := a.client.w
	if !a.sync(3 * second) {
		return false
	}
	a.w.Seal()
	for end := w.now + 3*second; !a.w.Settled() && a.w.Err() == nil && w.now < end; {
		a.pump(min(end, w.now+5*millisecond))
	}
	return a.w.Settled()
}

// reopen moves a live writer to a new epoch of its own, mostly with another ensemble (P11).
func (a *writerActor) reopen() {
	w := a.client.w
	// The old epoch lives on until Qr nodes have promised the new one: what it still commits counts (X5).
	a.aside = func(m protocol.Message) {
		if ack, ok := m.(*protocol.Ack); ok {
			a.w.HandleAck(w.now, ack)
			a.acknowledge()
		}
	}
	defer func() { a.aside = nil }()
	op, err := a.open(a.l, openOptions{from: a.owner, change: a.rng.IntN(3) > 0, survey: true, timeout: 4 * second})
	if err != nil {
		if lostTheRace(err) {
			w.c.add(&w.c.Fenced)
		}
		return // the old epoch may still be alive: the acknowledgements and refusals that come will tell
	}
	if err := a.w.Reopened(w.now, op.res.Config); err != nil {
		return
	}
	a.owner, a.cfg = op.owner, op.res.Config
	w.c.add(&w.c.LiveReopens)
	a.acknowledge()
	for x := a.w.Committed() + 1; x < a.w.Next(); x++ {
		w.check.gave(a.l.id, a.w.Epoch(), x, a.sent[x])
	}
}
