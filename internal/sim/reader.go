package sim

import (
	"errors"

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
		for {
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
			r.serve(reply)
			if r.pos <= reply.ArchivedThrough {
				r.fromArchive(min(reply.ArchivedThrough, r.pos+10))
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
	for _, rec := range reply.Records {
		if rec.LSN != r.pos || rec.LSN > reply.CLSN {
			continue
		}
		r.w.check.read(r.l.id, rec.LSN, rec.Data, r.name)
		r.w.c.add(&r.w.c.HotRecords)
		r.pos++
	}
}

// fromArchive reads up to an LSN that a node called archived.
func (r *readerActor) fromArchive(to protocol.LSN) {
	r.w.c.add(&r.w.c.ColdReads)
	for r.pos <= to {
		rec, err := r.cold.Read(r.context(3*second), r.pos, archive.Watermark{}, nil)
		if err != nil {
			var absent *archive.NotFoundError
			if errors.As(err, &absent) {
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

// coldReader reads a log from the archive alone, in order, and starts over at its end.
func (w *world) coldReader(l *simLog) {
	w.newClient("cold", func(c *client) {
		r := &readerActor{client: c, l: l, pos: 1, cold: w.newArchive(false, c.rng).Reader(l.id)}
		for {
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
