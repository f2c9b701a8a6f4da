package protocol

// maxRefs bounds the records of one reply.
const maxRefs = 4096

// fetch is the recovery read of P2. From zero it begins above what this node knows to be committed.
func (s *Shard) fetch(from Peer, m *Fetch, out *Out) {
	l := s.logs[m.Log]
	r := &FetchReply{Log: m.Log, Epoch: m.Epoch, Req: m.Req, Incarnation: s.inc, From: m.From, Through: m.To}
	ro := ReplyOut{To: from, Msg: r, Log: m.Log, MaxBytes: int(m.MaxBytes)}
	switch {
	case m.Incarnation != s.inc && !s.rules.WrongIncarnationAnswers:
		r.Status = StatusWrongIncarnation
	case l == nil:
		r.Status = StatusNotPromised
	case l.promised > m.Epoch:
		r.Status = StatusFenced
	case l.deleted:
		r.Status = StatusDeleted
	case l.promised < m.Epoch && !s.rules.FetchWithoutPromise && !s.rules.ReadWithoutFence:
		r.Status = StatusNotPromised
	case m.From > m.To || m.To == 0 || m.To > MaxLSN:
		r.Status = StatusBad
	default:
		r.ArchivedThrough = l.archived
		if r.From == 0 {
			r.From = l.committed() + 1
		}
		if r.From <= r.Through {
			ro.Refs, r.Through = l.refs(r.From, m.To, m.Label)
			r.Damaged = l.damagedAbove(r.From - 1)
		}
	}
	if l != nil {
		r.Promised = l.promised
	}
	if s.rules.WrongIncarnationAnswers {
		r.Incarnation = m.Incarnation
	}
	out.Replies = append(out.Replies, ro)
}

// read is a hot read: committed and not void by this node's own history, so one node's records may be served as they are
// (H8 and H9 are closed by voiding at activation and by taking watermarks only at the activated epoch).
func (s *Shard) read(from Peer, m *Read, out *Out) {
	l := s.logs[m.Log]
	r := &ReadReply{Log: m.Log, Req: m.Req, Incarnation: s.inc, From: m.From}
	ro := ReplyOut{To: from, Msg: r, Log: m.Log, MaxBytes: int(m.MaxBytes)}
	if l != nil && l.deleted {
		r.Status = StatusDeleted
	} else if l != nil {
		r.Activated, r.Start, r.CLSN, r.ArchivedThrough = l.activated, l.start, l.clsn, l.archived
		r.Highest, r.HighestLabel = l.held.highest()
		r.Uncommitted, _ = l.held.extents(l.clsn, MaxExtents)
		r.Damaged = l.damagedAbove(l.clsn) // also for a reader that only counts copies: unknown is not absent
		if m.From > 0 {
			r.Through = min(m.To, l.clsn)
			if m.Raw {
				r.Through = min(m.To, MaxLSN)
			}
			if m.From <= r.Through {
				ro.Refs, r.Through = l.refs(m.From, r.Through, 0)
				r.Damaged = l.damagedAbove(min(m.From-1, l.clsn))
			}
		}
	}
	out.Replies = append(out.Replies, ro)
}

// refs lists the copies in [from, to], of one label or of the highest that is held, and the LSN up to which the list
// speaks.
func (l *nodeLog) refs(from, to LSN, label Epoch) ([]Ref, LSN) {
	top, _ := l.held.highest()
	through := to
	to = min(to, top)
	var out []Ref
	for x := from; x <= to; x++ {
		e, ok := label, false
		if label == 0 {
			e, ok = l.held.best(x)
		} else if lr := l.held.label(label); lr != nil {
			ok = lr.has(x)
		}
		if !ok {
			if x = l.skip(x, label); x > to {
				break
			}
			x-- // the loop's increment lands on the next LSN that is held
			continue
		}
		if len(out) == maxRefs {
			return out, x - 1
		}
		out = append(out, Ref{e, x})
	}
	return out, through
}

// skip returns the next LSN above x that is held, so that a read over a wide range costs what it finds.
func (l *nodeLog) skip(x LSN, label Epoch) LSN {
	next := MaxLSN + 1
	for i := range l.held {
		lr := &l.held[i]
		if label != 0 && lr.label != label {
			continue
		}
		if j := lr.find(x + 1); j < len(lr.runs) {
			next = min(next, max(lr.runs[j].From, x+1))
		}
	}
	return next
}
