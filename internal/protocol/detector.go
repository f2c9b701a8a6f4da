package protocol

// Detector takes nodes for down that were not heard for a while (P12, paper 4.3: heartbeats from node to node, whether or not
// there are clients). It is fed with heartbeats and asked for the Living; it knows no clock and no network. Its judgement may
// be wrong: a node that is taken for down and is not costs a PUT, nothing else.
//
// It is not safe for concurrent use; a Living is.
type Detector struct {
	after Time // so long unheard is down
	heard map[Incarnation]Time
	last  *Living
}

// NewDetector returns a Detector of nobody, which takes for down what was not heard for longer than after.
func NewDetector(after Time) *Detector {
	return &Detector{after: after, heard: make(map[Incarnation]Time), last: &Living{}}
}

// Heard notes a heartbeat.
func (d *Detector) Heard(inc Incarnation, now Time) { d.heard[inc] = now }

// Sought notes that somebody depends on a node, and reports whether that is news. One that was never heard gets as long as one
// that was heard just now.
func (d *Detector) Sought(inc Incarnation, now Time) bool {
	if _, known := d.heard[inc]; known {
		return false
	}
	d.heard[inc] = now
	return true
}

// Deaf notes that nobody listened for so long, up to now: that is no silence of theirs.
func (d *Detector) Deaf(gap, now Time) {
	for inc, at := range d.heard {
		d.heard[inc] = max(at, min(at+gap, now))
	}
}

// Living returns who lives as of now. As long as nothing changes it is the same pointer.
func (d *Detector) Living(now Time) *Living {
	changed := len(d.heard) != len(d.last.down)
	for inc, at := range d.heard {
		if was, known := d.last.down[inc]; !known || was != (now-at > d.after) {
			changed = true
		}
	}
	if changed {
		down := make(map[Incarnation]bool, len(d.heard))
		for inc, at := range d.heard {
			down[inc] = now-at > d.after
		}
		d.last = &Living{down: down}
	}
	return d.last
}

// Living is an immutable picture of which nodes live. The zero value and nil know nobody.
type Living struct{ down map[Incarnation]bool }

// Down reports whether a node is taken for down. Of one that the Detector does not know it is not known either.
func (l *Living) Down(inc Incarnation) (down, known bool) {
	if l == nil {
		return false, false
	}
	down, known = l.down[inc]
	return down, known
}

// Endangered visits the logs of which so many other nodes are down that one more failure could stop them or lose records: N − Qw
// (paper 4.3), but at least one. rank is this node's place among the living ones; limit is the highest LSN held, committed or
// not, archived or not; absent tells one set of absent nodes from another. unknown gets the nodes that the Detector is to be told
// of (Sought). While all nodes live it looks at no log.
func (s *Shard) Endangered(living *Living, unknown func(Incarnation), visit func(log LogID, rank int, limit LSN, absent uint64)) {
	some := false
	for p := range s.peers {
		down, known := living.Down(p)
		if !known {
			unknown(p)
		}
		some = some || down
	}
	if !some {
		return
	}
	clear(s.peers)
	for _, l := range s.logs {
		if l.deleted || l.settings.Qw == 0 {
			continue
		}
		s.depend(l)
		n, absent, rank := 0, uint64(0), 0
		mine := weight(s.inc, l.id, 0)
		for _, p := range l.settings.Peers {
			if p == s.inc {
				continue
			}
			down, _ := living.Down(p)
			switch w := weight(p, l.id, 0); {
			case down:
				n++
				absent ^= w
			case w > mine || w == mine && p > s.inc:
				rank++
			}
		}
		if n < max(1, len(l.settings.Peers)-int(l.settings.Qw)) {
			continue
		}
		limit, _ := l.held.highest()
		visit(l.id, rank, limit, absent)
	}
}

// depend notes which other nodes a log depends on.
func (s *Shard) depend(l *nodeLog) {
	for _, p := range l.settings.Peers {
		if p != s.inc {
			s.peers[p] = true
		}
	}
}

// Snapshot visits what a failure snapshot of a log writes: every stretch that is held in (archived-through, limit], what is
// committed and what may be apart, so that the objects of the former prove their records (A2). It is complete when the nodes
// that live have written theirs: one may lack a record that another one knows to be committed (H7).
func (s *Shard) Snapshot(log LogID, limit LSN, now Time, visit func(Segment)) {
	l := s.logs[log]
	if l == nil || l.deleted {
		return
	}
	l.flushable(s.inc, now, l.archived+1, min(limit, l.clsn), s.rules, visit)
	l.flushable(s.inc, now, max(l.archived, l.clsn)+1, limit, s.rules, visit)
}
