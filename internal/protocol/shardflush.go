package protocol

import (
	"cmp"
	"slices"
)

// Segment is a stretch of committed records that this node could write to the archive now; of a failure snapshot also one of
// records that may be committed (P12).
type Segment struct {
	Log      LogID
	Label    Epoch
	SegStart LSN // first LSN of the segment it lies in
	First    LSN
	Last     LSN
	CLSN     LSN // this node's watermark when the plan was made; at or above Last, except in a failure snapshot
	// Complete: [First, Last] is all of the segment that is not archived yet, or all that this node has in one piece, and
	// the segment takes no more records.
	Complete bool
	// Rank orders the nodes of the log for this segment: rank 0 flushes at once, the others look first whether it did
	// (paper 4.3, flush leader by hash with fallback).
	Rank int
	// Age is the time since the oldest record that is not archived arrived.
	Age Time
	// FlushAge is the log's age limit; an incomplete stretch is due when Age exceeds it. Zero is never.
	FlushAge Time
	// Limit is the size of a full segment of the log, in bytes.
	Limit uint64
	// Holed: it is complete here only because the segment has holes here.
	Holed bool
	// Late is for the driver to set: the segment has been complete for so long that a node of the next rank may be writing it.
	Late bool
}

// Flushable lists what may be flushed of every log: complete segments at or below the watermark (A2: the normal flush
// waits until cLSN covers the segment), and incomplete stretches, which the driver writes only when their age is due.
// Everything in one list entry is one snapshot taken on the shard's thread (A3).
func (s *Shard) Flushable(now Time, visit func(Segment)) {
	for _, l := range s.logs {
		s.flushableOf(l, now, visit)
	}
}

// FlushableOf is Flushable for one log.
func (s *Shard) FlushableOf(log LogID, now Time, visit func(Segment)) {
	if l := s.logs[log]; l != nil {
		s.flushableOf(l, now, visit)
	}
}

func (s *Shard) flushableOf(l *nodeLog, now Time, visit func(Segment)) {
	limit := l.clsn
	if s.rules.FlushUncommitted {
		limit, _ = l.held.highest()
	}
	if !l.deleted && limit > l.archived {
		l.flushable(s.inc, now, l.archived+1, limit, s.rules, visit)
	}
}

// Touched visits, and forgets, the logs of which Flushable or Behind may tell something else than when Touched visited them last;
// the passing of time alone is for the caller to reckon with. So a driver need not look at logs in which nothing happens. The
// log may be gone.
func (s *Shard) Touched(visit func(LogID)) {
	for _, log := range s.touched {
		if l := s.logs[log]; l != nil {
			l.touched = false
		}
		visit(log)
	}
	s.touched = s.touched[:0]
}

func (s *Shard) touch(l *nodeLog) {
	if !l.touched {
		l.touched = true
		s.touched = append(s.touched, l.id)
	}
}

// flushable visits the stretches of [from, limit]. A limit above the watermark is for failure snapshots alone.
func (l *nodeLog) flushable(inc Incarnation, now Time, from, limit LSN, rules Rules, visit func(Segment)) {
	for x := from; x <= limit; {
		label, ok := l.held.best(x)
		if !ok {
			x = l.skip(x, 0) // a hole: another node's object closes it
			continue
		}
		runs := l.held.label(label)
		r := runs.runs[runs.find(x)]
		last := min(r.To, limit)
		// A younger label that begins inside this run outranks it from there.
		for y := x + 1; y <= last; {
			top, _ := l.held.best(y)
			if top != label {
				last = y - 1
				break
			}
			y = l.nextLabelChange(y, label, last)
		}
		seg := Segment{Log: l.id, Label: label, SegStart: r.SegStart, First: x, Last: last, CLSN: l.clsn, Rank: l.rank(inc, r.SegStart),
			FlushAge: Time(l.settings.FlushAgeMS) * Millisecond, Limit: l.settings.SegmentBytes}
		// A younger label that takes over inside the run ends the stretch for good, as an end of the segment does.
		ended := last < min(r.To, limit) || (last == r.To && l.ends(label, r))
		if rules.NeverSealCut && label < l.activated {
			ended, seg.FlushAge = false, 0
		}
		switch {
		case ended && x == max(r.SegStart, l.archived+1):
			seg.Complete = true
		case (ended || last == r.To) && l.closed(label, r) && !rules.NeverSealCut:
			// A stretch of a segment that has holes here and takes no more records. A node without holes writes the whole;
			// if none is left, only the union of such stretches closes the holes (A2), so each is written in the end, by
			// nodes that look first.
			seg.Complete, seg.Holed = true, true
			seg.Rank += len(l.settings.Peers)
		}
		if l.oldest != 0 {
			seg.Age = now - l.oldest
		}
		visit(seg)
		x = last + 1
	}
}

// Behind lists the logs whose next record to be archived is committed and not held here: another node's object has it, or the
// log's trim point has passed it, and only a look at the store can raise archived-through. blank says that nothing at all is
// held up to the watermark, as at a node that has just taken another's place: it has nothing to wait for, and until it knows
// archived-through it can tell nobody.
//
// A node that promised an epoch and did not activate it has missed something, and may be the only one left who can say what is
// archived: its opener waits for that, and cannot activate anybody before.
func (s *Shard) Behind(visit func(log LogID, archived LSN, blank bool)) {
	for _, l := range s.logs {
		l.behind(visit)
	}
}

// BehindOf is Behind for one log.
func (s *Shard) BehindOf(log LogID, visit func(log LogID, archived LSN, blank bool)) {
	if l := s.logs[log]; l != nil {
		l.behind(visit)
	}
}

func (l *nodeLog) behind(visit func(log LogID, archived LSN, blank bool)) {
	missed := l.promised > l.activated
	if l.deleted || l.clsn <= l.archived && !missed {
		return
	}
	if _, held := l.held.best(l.archived + 1); !held || missed {
		visit(l.id, l.archived, l.skip(l.archived, 0) > l.clsn)
	}
}

// nextLabelChange returns the next LSN above y at which a label above the given one begins, or last+1.
func (l *nodeLog) nextLabelChange(y LSN, label Epoch, last LSN) LSN {
	next := last + 1
	for i := range l.held {
		if l.held[i].label <= label {
			continue
		}
		lr := &l.held[i]
		if j := lr.find(y); j < len(lr.runs) {
			next = min(next, max(lr.runs[j].From, y+1))
		}
	}
	return next
}

// ends reports whether the segment of run r takes no record behind r.To: the next segment begins there, a later epoch
// does (H14: a segment cut short by a takeover is sealed), or the writer sealed it.
func (l *nodeLog) ends(label Epoch, r run) bool {
	if l.history.VoidFrom(label) == r.To+1 || (label == l.activated && l.sealed == r.To) {
		return true
	}
	runs := l.held.label(label)
	i := runs.find(r.To + 1)
	return i < len(runs.runs) && runs.runs[i].SegStart == r.To+1
}

// closed reports whether the segment of run r takes no more records, wherever it ends: a later epoch was activated, a
// later segment of the label has begun, or the writer sealed it.
func (l *nodeLog) closed(label Epoch, r run) bool {
	if label < l.activated || (label == l.activated && r.To <= l.sealed) {
		return true
	}
	runs := l.held.label(label).runs
	return runs[len(runs)-1].SegStart > r.SegStart
}

// rank is this node's place in the order of the log's nodes for one segment, by highest random weight.
func (l *nodeLog) rank(inc Incarnation, segStart LSN) int {
	mine, rank := weight(inc, l.id, segStart), 0
	for _, p := range l.settings.Peers {
		if p == inc {
			continue
		}
		if w := weight(p, l.id, segStart); w > mine || (w == mine && p > inc) {
			rank++
		}
	}
	return rank
}

func weight(inc Incarnation, log LogID, lsn LSN) uint64 {
	x := uint64(inc) ^ uint64(log)*0x9e3779b97f4a7c15 ^ uint64(lsn)*0xbf58476d1ce4e5b9
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// ArchivedObject is what looking at the store has shown of one object of a log: it proves its records up to its own cLSN
// and no further (A3).
type ArchivedObject struct {
	Label       Epoch
	First, Last LSN
	CLSN        LSN
}

// Archived tells the shard which objects the store holds, in any order. It raises archived-through over what they prove
// without a hole (P3, H4), and releases local data that is archived and outside the window (P13). Both join the batch:
// archived-through is durable in the same commit that drops the data it covers, or a restart would answer "absent" for
// what is archived (H5).
func (s *Shard) Archived(now Time, log LogID, objects []ArchivedObject, out *Out) {
	l := s.logs[log]
	if l == nil || l.deleted {
		return
	}
	a, label := l.archived, Epoch(0)
	for raised := true; raised; {
		raised = false
		if r, ok := rangeAt(l.lost, a+1); ok {
			a, raised = r.To, true
		}
		for _, o := range objects {
			end := min(o.Last, o.CLSN)
			if s.rules.TrustForeignArchive {
				end = o.Last
			}
			if o.First <= a+1 && end > a {
				a, label, raised = end, max(label, o.Label), true
			}
		}
	}
	if a > l.archived {
		l.archived = a
		if label <= l.activated || s.rules.ArchivedIsWatermark {
			l.raiseCLSN(a) // not if we missed an epoch that wrote there: see committed
		}
		kept := l.damaged[:0]
		for _, d := range l.damaged {
			if d.To > a {
				kept = append(kept, d)
			}
		}
		l.damaged = kept
		l.oldest = 0
		if top, _ := l.held.highest(); top > a {
			l.oldest = now
		}
		s.mark(l, out)
	}
	s.release(l, false, out)
}

// Release drops what is archived of every log that took no append for at least idle, the window included: an idle tail
// must not pin a file of the store for ever.
func (s *Shard) Release(now Time, idle Time, out *Out) {
	var due []*nodeLog
	for _, l := range s.logs {
		if !l.deleted && now-l.lastAppend >= idle && (l.archived > l.dropped || l.held.lowest() <= l.dropped || s.rules.DropBeforeArchived) {
			due = append(due, l)
		}
	}
	// What goes into a batch has a fixed order, or the same inputs would not give the same bytes on the disk.
	slices.SortFunc(due, func(a, b *nodeLog) int { return cmp.Compare(a.id, b.id) })
	for _, l := range due {
		s.release(l, true, out)
	}
}

func (s *Shard) release(l *nodeLog, window bool, out *Out) {
	through := l.archived
	top, _ := l.held.highest()
	if s.rules.DropBeforeArchived {
		through = l.clsn
	}
	if w := LSN(l.settings.Window); !window {
		if edge := max(top, l.committed()); edge <= w {
			return
		} else {
			through = min(through, edge-w)
		}
	}
	// A repair may have brought back what was dropped: its opener saw that another node still has it. It goes again although the
	// log is dropped no further, or it would pin its file of the store for ever.
	through = max(through, l.dropped)
	if through == l.dropped && l.held.lowest() > through {
		return
	}
	for i := range l.held {
		lr := &l.held[i]
		if len(lr.runs) == 0 || lr.runs[0].From > through {
			continue
		}
		// A label that the writer no longer extends and of which nothing is left goes whole, its void records included.
		whole := lr.label < l.activated && lr.runs[len(lr.runs)-1].To <= through
		out.Trims = append(out.Trims, Trim{Log: l.id, Label: lr.label, Through: through, Whole: whole})
	}
	l.held.dropThrough(through)
	if through > l.dropped {
		l.dropped = through
		s.mark(l, out)
	}
}
