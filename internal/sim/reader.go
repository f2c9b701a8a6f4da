package sim

import (
	"errors"
	"fmt"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
)

// readerActor reads a log from its nodes and from the archive, as a client does that knows no watermark of its own: what
// one node says is committed is served; what it lacks comes from another node or from the archive.
type readerActor struct {
	*client
	l    *simLog
	cold *archive.Reader
	pos  protocol.LSN // next LSN to return
	req  uint64
	e    protocol.Ensemble
}

// hotReader follows a log, with long polls or without, and starts over now and then.
func (w *world) hotReader(l *simLog, follow bool) {
	w.newClient("reader", func(c *client) {
		r := &readerActor{client: c, l: l, pos: 1, cold: w.newArchive(false, c.rng).Reader(l.id)}
		for !l.deleted {
			c.p.sleep(between(c.rng, millisecond, 60*millisecond))
			if r.e == nil || c.rng.IntN(20) == 0 {
				_, e, err := c.load(l)
				if err != nil || len(e) == 0 {
					continue
				}
				r.e = e
			}
			m := r.e[c.rng.IntN(len(r.e))]
			wait := protocol.LSN(0)
			if follow {
				wait = r.pos - 1
			}
			reply := r.ask(m.Node, r.pos, r.pos+protocol.LSN(c.rng.IntN(40)), wait)
			if reply == nil {
				continue
			}
			at := r.pos
			r.serve(reply)
			if r.pos <= reply.ArchivedThrough {
				r.fromArchive(min(reply.ArchivedThrough, r.pos+10))
			} else if r.pos == at && r.pos <= reply.CLSN {
				r.explained()
			}
			if r.pos > reply.CLSN && c.rng.IntN(30) == 0 {
				r.pos = 1
			}
		}
	})
}

// ask sends one Read and waits for its answer.
func (r *readerActor) ask(node protocol.NodeID, from, to, waitAbove protocol.LSN) *protocol.ReadReply {
	r.req++
	r.send(node, &protocol.Read{Log: r.l.id, Req: r.req, From: from, To: to, MaxBytes: 16 << 10, WaitAbove: waitAbove})
	for end := r.w.now + 200*millisecond; r.w.now < end; {
		r.idle(end)
		for m := r.take(); m != nil; m = r.take() {
			if reply, ok := m.(*protocol.ReadReply); ok && reply.Req == r.req && reply.Status == protocol.StatusOK {
				return reply
			}
		}
	}
	return nil
}

// serve returns to its user what a reply allows, in order, up to the first LSN that the node lacks.
func (r *readerActor) serve(reply *protocol.ReadReply) {
	r.w.c.add(&r.w.c.HotReads)
	r.served(reply)
	for _, rec := range reply.Records {
		if rec.LSN != r.pos || rec.LSN > reply.CLSN {
			continue
		}
		r.w.check.read(r.l.id, rec.LSN, rec.Data, r.name)
		r.w.c.add(&r.w.c.HotRecords)
		r.pos++
	}
}

// served judges what a node serves of what is on record as lost.
func (r *readerActor) served(reply *protocol.ReadReply) {
	for _, rec := range reply.Records {
		if rec.LSN <= reply.CLSN {
			r.w.check.resurrected(r.l.id, rec.LSN, reply.Activated, fmt.Sprint(reply.Incarnation))
		}
	}
}

// explained reads the log's record to learn why the next LSN is nowhere, and goes on behind what is trimmed or lost. It reports
// false when the record explains nothing.
func (r *readerActor) explained() bool {
	rec, _, err := r.load(r.l)
	if err != nil {
		return true // it cannot be read now, or the log is deleted
	}
	if r.pos < rec.TrimBefore {
		r.w.check.trimmedRead(r.l.id, r.pos, r.name)
		r.pos = rec.TrimBefore
		return true
	}
	if l, ok := rec.LostRanges().At(r.pos); ok {
		r.w.check.dataLoss(r.l.id, r.pos, r.name)
		r.pos = l.To + 1
		return true
	}
	return false
}

// fromArchive reads up to an LSN that a node called archived.
func (r *readerActor) fromArchive(to protocol.LSN) {
	r.w.c.add(&r.w.c.ColdReads)
	for r.pos <= to {
		rec, err := r.cold.Read(r.context(3*second), r.pos, archive.Watermark{}, nil)
		if err != nil {
			var absent *archive.NotFoundError
			if errors.As(err, &absent) && r.absent() && !r.explained() {
				// The node has this in its archived-through, which only an object can have raised (P3).
				r.w.fail("P3", "log %s: LSN %d is archived, says a node, and the archive does not have it", r.l.name, r.pos)
			}
			return
		}
		r.w.check.read(r.l.id, r.pos, rec.Data, r.name+" (archive)")
		r.w.c.add(&r.w.c.ColdRecords)
		r.pos++
	}
}

// absent reports whether the archive lacks the next LSN also to one who asks again when no list can lag behind any more.
func (r *readerActor) absent() bool {
	for r.w.p.storeStale > 0 {
		r.p.sleep(staleFor + millisecond)
		_, err := r.cold.Read(r.context(3*second), r.pos, archive.Watermark{}, nil)
		var absent *archive.NotFoundError
		switch {
		case err == nil:
			return false
		case errors.As(err, &absent):
			return true
		} // else the store is out of reach
	}
	return true
}

// coldReader reads a log from the archive alone, in order, and starts over at its end.
func (w *world) coldReader(l *simLog) {
	w.newClient("cold", func(c *client) {
		r := &readerActor{client: c, l: l, pos: 1, cold: w.newArchive(false, c.rng).Reader(l.id)}
		for !l.deleted {
			c.p.sleep(between(c.rng, 5*millisecond, 200*millisecond))
			r.w.c.add(&r.w.c.ColdReads)
			rec, err := r.cold.Read(c.context(3*second), r.pos, archive.Watermark{}, nil)
			var absent *archive.NotFoundError
			switch {
			case err == nil:
				w.check.read(l.id, r.pos, rec.Data, c.name)
				w.c.add(&w.c.ColdRecords)
				r.pos++
			case errors.As(err, &absent) && absent.Next != 0:
				r.pos = absent.Next // not there yet: something behind it is
			case errors.As(err, &absent) && c.rng.IntN(3) == 0:
				r.pos = 1
			}
		}
	})
}

// mergeReader reads from all nodes of a log at once and joins what they say with protocol.Merge, as a client does whose
// one-node reads do not suffice: copies of lagging nodes under a watermark from elsewhere, loss, and the linearizable tail.
func (w *world) mergeReader(l *simLog) {
	w.newClient("merge", func(c *client) {
		r := &readerActor{client: c, l: l, pos: 1, cold: w.newArchive(false, c.rng).Reader(l.id)}
		m := protocol.Merge{Rules: w.mutant.Rules}
		fresh := false
		for !l.deleted {
			c.p.sleep(between(c.rng, millisecond, 80*millisecond))
			before := w.check.log(l.id).acked
			tail := c.rng.IntN(4) == 0
			if !fresh || tail || m.NeedsRecord() || c.rng.IntN(10) == 0 {
				rec, e, err := c.load(l)
				if err != nil || len(e) == 0 {
					continue
				}
				m.SetView(protocol.ReadView{Ensemble: e, Qw: rec.Options.Qw, History: rec.History, TrimBefore: rec.TrimBefore, Lost: rec.LostRanges()})
				fresh = true
			}
			replies := r.askAll(&m, tail)
			w.check.watermark(l.id, m.Known(), c.name)
			if tail {
				r.tail(&m, before, replies)
				continue
			}
			if m.NeedsRecord() {
				fresh = false
				continue
			}
			r.serveMerged(&m, replies)
			if r.pos > m.Known() && c.rng.IntN(10) == 0 {
				r.pos = 1
			}
		}
	})
}

// askAll asks every member and returns what came in time, by member.
func (r *readerActor) askAll(m *protocol.Merge, stateOnly bool) []*protocol.ReadReply {
	view := m.View()
	r.req++
	from, to := r.pos, r.pos+protocol.LSN(r.rng.IntN(40))
	if stateOnly {
		from, to = 0, 0
	}
	for _, member := range view.Ensemble {
		r.send(member.Node, &protocol.Read{Log: r.l.id, Req: r.req, From: from, To: to, MaxBytes: 64 << 10, Raw: true})
	}
	replies := make([]*protocol.ReadReply, len(view.Ensemble))
	left := len(replies)
	for end := r.w.now + 60*millisecond; left > 0 && r.w.now < end; {
		r.idle(end)
		for msg := r.take(); msg != nil; msg = r.take() {
			if reply, ok := msg.(*protocol.ReadReply); ok && reply.Req == r.req {
				if i := m.Observe(reply); i >= 0 && replies[i] == nil {
					replies[i] = reply
					left--
				}
			}
		}
	}
	return replies
}

func (r *readerActor) tail(m *protocol.Merge, before protocol.LSN, replies []*protocol.ReadReply) {
	answered := 0
	for _, reply := range replies {
		if reply != nil {
			answered++
		}
	}
	if answered < m.View().Qr() || m.NeedsRecord() {
		return
	}
	tail, decided, _ := m.Tail(m.Highest(replies), replies)
	if !decided {
		return
	}
	m.Counted(tail)
	r.w.c.add(&r.w.c.Tails)
	r.w.check.tailRead(r.l.id, m.View().History.Last().Epoch, before, tail, r.name)
}

func (r *readerActor) serveMerged(m *protocol.Merge, replies []*protocol.ReadReply) {
	w := r.w
	mark, _ := m.Watermark()
	run := m.RawRun(r.pos, min(mark, r.pos+40), replies, nil)
	for _, rec := range run {
		w.check.read(r.l.id, rec.LSN, rec.Data, r.name)
		w.c.add(&w.c.MergedRecords)
		r.pos++
	}
	if len(run) > 0 || r.pos > m.Known() {
		return
	}
	if _, lost := m.View().Lost.At(r.pos); lost || r.pos < m.View().TrimBefore {
		r.explained()
		return
	}
	if r.pos <= m.Archived() {
		r.fromArchive(min(m.Archived(), r.pos+10))
		return
	}
	if lost, _ := m.Lost(r.pos, replies); lost {
		// Nothing may be lost here: what the nodes do not have any more must be in the archive, where one looks last.
		_, err := r.cold.Read(r.context(3*second), r.pos, archive.Watermark{}, nil)
		var absent *archive.NotFoundError
		if errors.As(err, &absent) && r.absent() && !r.explained() {
			w.check.lost(r.l.id, r.pos, r.name)
		}
		w.c.add(&w.c.LostThenFound)
	}
}

// nearReader reads the end of a log for a while from one node alone, the nearest to it.
func (w *world) nearReader(l *simLog, n *node, until protocol.Time) {
	w.newClient("near", func(c *client) {
		r := &readerActor{client: c, l: l}
		for w.now < until && !w.healed && !l.deleted {
			c.p.sleep(between(c.rng, 2*millisecond, 30*millisecond))
			acked := w.check.log(l.id).acked
			reply := r.ask(n.id, acked-min(acked-min(acked, 1), protocol.LSN(c.rng.Int64N(30))), acked+20, 0)
			if reply != nil && len(reply.Records) > 0 {
				r.pos = reply.Records[0].LSN
				r.serve(reply)
			}
		}
	})
}
