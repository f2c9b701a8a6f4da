package sim

import (
	"context"
	"encoding/binary"
	"iter"
	"slices"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
)

// Disasters: more disks of a log are lost than it survives. No open may guess then; its owner gives up what is missing (P5).

// disaster takes at least Qw disks from the ensemble of a log. All logs on them are hit.
func (w *world) disaster() {
	if w.c.Disasters >= w.p.disasters {
		return
	}
	l := w.logs[w.chance.IntN(len(w.logs))]
	if l.deleted {
		return
	}
	e, _, err := w.recorded(l)
	if err != nil || len(e) == 0 {
		return
	}
	w.c.add(&w.c.Disasters)
	lost := w.p.qw + w.chance.IntN(len(e)-w.p.qw+1)
	for _, i := range w.chance.Perm(len(e))[:lost] {
		n := w.byID[e[i].Node]
		switch {
		case n.inc != e[i].Incarnation:
		case n.state == nodeUp && w.chance.IntN(3) == 0:
			w.damage(n) // what it still has may be read
		default:
			w.wipe(n)
		}
	}
	for _, l := range w.logs {
		if !l.deleted {
			w.owner(l)
		}
	}
}

// beyond reports whether more disks of a log's recorded ensemble are gone than it survives.
func (w *world) beyond(l *simLog) bool {
	e, _, err := w.recorded(l)
	gone := 0
	for _, m := range e {
		if n := w.byID[m.Node]; n.inc != m.Incarnation || n.damaged {
			gone++
		}
	}
	return err == nil && gone >= w.p.qw
}

// owner opens a log after a disaster with its consent to lose what is missing, and goes on as a writer.
func (w *world) owner(l *simLog) {
	w.newClient("owner", func(c *client) {
		a := &writerActor{client: c, l: l}
		for !w.healed && !l.deleted {
			c.p.sleep(between(c.rng, 50*millisecond, second))
			if !w.beyond(l) {
				return // somebody else's open was enough
			}
			if a.openLog(openOptions{consent: true, survey: true, timeout: 4 * second}) == nil {
				a.reign(w.now + between(c.rng, w.p.life/4, 2*w.p.life))
				return
			}
		}
	})
}

// consent makes the owner's consent: to the log and the epoch at which he looked, which must stand when the token is taken.
func (c *client) consent(l *simLog) (*protocol.AcceptLoss, meta.Owner, error) {
	w := c.w
	rec, e, err := c.load(l)
	if err != nil {
		return nil, meta.Owner{}, err
	}
	c.lookedAt = w.wall() // at the latest: what the archive has by now must be found
	loss := &protocol.AcceptLoss{Wait: between(c.rng, 50*millisecond, 400*millisecond)}
	spare := len(w.nodes) - w.p.n
	for _, m := range e {
		n := w.byID[m.Node]
		switch {
		case n.inc != m.Incarnation:
			loss.Gone = append(loss.Gone, m.Incarnation)
		case n.state == nodeRefused:
			loss.Gone = append(loss.Gone, m.Incarnation)
			spare--
		case spare > 0 && !w.healed && c.rng.IntN(2) == 0:
			// It is called gone, and is only out of this client's reach: its writer may go on.
			w.c.add(&w.c.CalledGone)
			spare--
			loss.Gone = append(loss.Gone, m.Incarnation)
			w.net.block(c.ep, n.ep, w.now+5*second)
			w.net.block(n.ep, c.ep, w.now+5*second)
		}
	}
	return loss, rec.Owner(), nil
}

// lookForLoss does what an open that may lose records asks of the archive.
func (c *client) lookForLoss(op *protocol.Opener, l *simLog, epoch protocol.Epoch, deadline protocol.Time) {
	a := c.w.newArchive(false, c.rng)
	if after, ok := op.PendingLook(); ok {
		c.lookedAt = c.w.wall()
		objects, err := a.Look(c.p.context(deadline), l.id, after)
		op.Looked(c.w.now, objects, err)
	}
	if read := op.PendingRead(); read != nil {
		reply := &protocol.FetchReply{Log: l.id, Epoch: epoch, Req: read.Fetch.Req, Incarnation: read.Fetch.Incarnation, Status: protocol.StatusUnavailable}
		archive.Answer(c.p.context(deadline), scanner(a.Reader(l.id)), read, reply)
		op.Handle(c.w.now, reply)
	}
}

// scanner reads records one after another: archive.Reader.Scan reads ahead, with goroutines.
func scanner(r *archive.Reader) archive.Scan {
	return func(ctx context.Context, from, to protocol.LSN, wm archive.Watermark) iter.Seq2[archive.Record, error] {
		return func(yield func(archive.Record, error) bool) {
			for x := from; x <= to; x++ {
				rec, err := r.Read(ctx, x, wm, nil)
				if !yield(rec, err) || err != nil {
					return
				}
			}
		}
	}
}

// gaveUp judges what an open with consent has just put on record as lost: it is on record, and was nowhere to be had.
func (c *client) gaveUp(l *simLog, epoch protocol.Epoch, loss *protocol.AcceptLoss, members protocol.Ensemble, history protocol.History, lost protocol.LostRanges) {
	w := c.w
	trimBefore, recorded := w.onRecord(l.id)
	for _, r := range lost {
		if x, ok := recorded.At(r.From); r.To >= trimBefore && (!ok || x.To < r.To) {
			w.fail("P5", "log %s: LSNs [%d,%d] are given up at epoch %d, and the record does not say so", l.name, r.From, r.To, epoch)
		}
		if r.Skipped {
			w.c.add(&w.c.Skips) // behind everything that is found
		} else {
			w.c.add(&w.c.LostRanges)
		}
		for o, err := range w.objects(l.id) {
			// What came after the look, or was not listed yet, nobody could know of.
			known := o.modified.Add(time.Duration(staleFor)).Before(c.lookedAt)
			if err == nil && known && o.key.Kind == archive.Committed && o.key.First <= r.To && o.key.Last >= r.From {
				w.fail("P5", "log %s: LSNs [%d,%d] are given up at epoch %d, and object [%d,%d] has some of them", l.name, r.From, r.To, epoch, o.key.First, o.key.Last)
			}
		}
		for _, m := range members {
			n := w.byID[m.Node]
			if n.inc != m.Incarnation || n.state != nodeUp || n.damaged || slices.Contains(loss.Gone, m.Incarnation) {
				continue
			}
			if x, label := n.holds(l.id, r, history); x != 0 {
				w.fail("P5", "log %s: LSNs [%d,%d] are given up at epoch %d, and %s has %d under label %d", l.name, r.From, r.To, epoch, n.id, x, label)
			}
		}
	}
}

// holds returns an LSN of a range of which the disk has a copy that is not void, with its label; zero for none.
func (n *node) holds(log protocol.LogID, r protocol.Lost, history protocol.History) (x protocol.LSN, label protocol.Epoch) {
	var prefix [8]byte
	binary.BigEndian.PutUint64(prefix[:], uint64(log))
	v := n.core.View()
	v.Streams(prefix[:], func(id lst.StreamID) bool {
		e := protocol.Epoch(binary.BigEndian.Uint64(id[8:]))
		for _, have := range v.Extents(id, nil) {
			for y := max(protocol.LSN(have.From), r.From); y < protocol.LSN(have.To) && y <= r.To && x == 0; y++ {
				if e < r.Epoch && !history.Void(e, y) {
					x, label = y, e
				}
			}
		}
		return x == 0
	})
	return x, label
}
