package protocol

import "fmt"

// oracle knows what was committed, from the outside: what a writer told its user, and what a completed open reported. It
// judges record contents (S1–S6).
type oracle struct {
	committed map[LSN]string
	high      LSN
	opens     []openFact
	forked    int // commits of writers that were not fenced
	bad       []string
}

type openFact struct {
	epoch    Epoch
	t        LSN
	unfenced bool // fewer than a read quorum had promised, as the owner accepts: S5 is not promised to those before
}

func (o *oracle) violate(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	for _, b := range o.bad {
		if b == s {
			return
		}
	}
	o.bad = append(o.bad, s)
}

func (o *oracle) commit(who string, x LSN, data string) {
	if old, ok := o.committed[x]; ok && old != data {
		o.violate("S2: %s: LSN %d is %q, was committed as %q", who, x, data, old)
		return
	}
	o.committed[x] = data
	o.high = max(o.high, x)
}

// writerCommitted: a writer told its user that [from, to] is durable (S1, S2, S5, P9).
func (o *oracle) writerCommitted(w *world, c *client, from, to LSN) {
	wr := c.writer
	for x := from; x <= to; x++ {
		data, ok := c.given[x]
		if !ok {
			if x > wr.cfg.Tail {
				o.violate("P9: %s committed LSN %d that it never gave out", c.name, x)
			}
			continue
		}
		for _, f := range o.opens {
			if f.unfenced && f.epoch > wr.Epoch() {
				o.forked++
			} else if f.epoch > wr.Epoch() && x > f.t {
				o.violate("S5: %s (epoch %d) committed LSN %d after epoch %d opened with tail %d", c.name, wr.Epoch(), x, f.epoch, f.t)
			}
		}
		if x > wr.cfg.Tail {
			copies := 0
			for _, m := range wr.cfg.Ensemble {
				if w.ever[m.Incarnation][recKey{wr.Epoch(), x}] || w.archivedProof(x) {
					copies++
				}
			}
			if copies < wr.cfg.Qw {
				o.violate("P9: %s committed LSN %d with %d durable copies of %d", c.name, x, copies, wr.cfg.Qw)
			}
		}
		o.commit(c.name, x, data)
	}
}

// openDone: an open completed (S1, S3, S6).
func (o *oracle) openDone(w *world, c *client, op *Opener) {
	cfg := op.Result().Config
	o.keepFound(w, cfg.B)
	if cfg.B > o.high {
		o.violate("open of %s at epoch %d: B=%d but only %d is committed", c.name, cfg.Epoch, cfg.B, o.high)
	}
	if cfg.Tail < c.highAtCAS {
		o.violate("S1: open of %s at epoch %d: T=%d cuts committed LSN %d", c.name, cfg.Epoch, cfg.Tail, c.highAtCAS)
	}
	for i, rec := range op.fetched {
		if rec.LSN != cfg.Start+LSN(i) {
			o.violate("open of %s: recovered LSN %d at place %d after R=%d", c.name, rec.LSN, i, cfg.Start)
			continue
		}
		o.commit("open of "+c.name, rec.LSN, string(rec.Data))
	}
	fact := openFact{epoch: cfg.Epoch, t: cfg.Tail}
	for _, l := range op.Result().Lost {
		fact.unfenced = fact.unfenced || l.Skipped
	}
	o.opens = append(o.opens, fact)
	w.checkDurable("open of " + c.name)
}

// keepFound: an open that gave up its tail has declared committed all that it found up to B.
func (o *oracle) keepFound(w *world, b LSN) {
	if len(w.reg.lost) == 0 {
		return
	}
	for x := w.reg.trimmed + 1; x <= min(b, w.reg.lost[len(w.reg.lost)-1].From); x++ {
		if l, lost := w.reg.lost.At(x); lost {
			x = l.To
			continue
		}
		if w.archivedProof(x) {
			continue
		}
		if _, known := o.committed[x]; !known {
			for _, m := range w.reg.ensemble {
				n := w.byInc(m.Incarnation)
				for label := w.reg.epoch; label > 0 && n != nil; label-- {
					if st, err := DecodeStored(x, label, n.recs[recKey{label, x}]); err == nil && !w.reg.history.Void(label, x) {
						o.commit("open", x, string(st.Data))
						break
					}
				}
			}
			if _, known := o.committed[x]; !known {
				o.violate("S1: LSN %d is neither lost nor anywhere on the ensemble of epoch %d", x, w.reg.history.Last().Epoch)
			}
		}
	}
}

// served: a reader was given data for x as committed (S4).
func (o *oracle) served(who string, x LSN, data string) {
	if old, ok := o.committed[x]; !ok {
		o.violate("S4: %s: LSN %d %q is served but not committed", who, x, data)
	} else if old != data {
		o.violate("S4: %s: LSN %d is served as %q, committed is %q", who, x, data, old)
	}
}

// archivedProof reports whether an object of the archive proves LSN x (A3).
func (w *world) archivedProof(x LSN) bool {
	for _, o := range w.archive {
		if x >= o.first && x <= min(o.last, o.clsn) {
			return true
		}
	}
	return false
}

// checkDurable: every committed record that is not trimmed is in the archive or, not void and with its bytes, on a disk
// of a node (S1, S6).
func (w *world) checkDurable(when string) {
	for x := w.reg.trimmed + 1; x <= w.oracle.high; x++ {
		if l, lost := w.reg.lost.At(x); lost {
			x = l.To // what is recorded as lost is not promised any more, and nothing else
			continue
		}
		want, ok := w.oracle.committed[x]
		if !ok || w.archivedProof(x) || w.copies(x, want) > 0 {
			continue
		}
		w.oracle.violate("S1: %s: committed LSN %d %q is on no disk and not archived", when, x, want)
	}
}

// copies counts the disks with a copy of x that is not void by the record's history and has the bytes.
func (w *world) copies(x LSN, want string) int {
	count := 0
	for _, n := range w.nodes {
		for label := Epoch(1); label <= w.reg.epoch; label++ {
			v, ok := n.recs[recKey{label, x}]
			if !ok || w.reg.history.Void(label, x) || n.unread[recKey{label, x}] {
				continue
			}
			if st, err := DecodeStored(x, label, v); err == nil && string(st.Data) == want {
				count++
				break
			}
		}
	}
	return count
}
