package protocol

// Totals sums over the logs of a shard, for its operator.
type Totals struct {
	// Active logs have a writer that may append; Promised ones have given their promise to an open that has not activated here,
	// or never did; Deleted ones are only remembered. NeverActivated are the promised logs that never had a writer here.
	Active, Promised, Deleted, NeverActivated int
	// Held are record copies on this node, and Unarchived those above archived-through, with about their bytes.
	Held, Unarchived, UnarchivedBytes uint64
	// Uncommitted are LSNs above the watermark up to the highest that is held: of all logs, and of the log with most.
	Uncommitted, MaxUncommitted uint64
	// OldestAge is the age of the oldest record that is not archived.
	OldestAge Time
}

// Totals looks at every log.
func (s *Shard) Totals(now Time) (t Totals) {
	for _, l := range s.logs {
		switch {
		case l.deleted:
			t.Deleted++
			continue
		case l.promised == l.activated:
			t.Active++
		default:
			t.Promised++
			if l.activated == 0 {
				t.NeverActivated++
			}
		}
		if top, _ := l.held.highest(); top > l.clsn {
			lag := uint64(top - l.clsn)
			t.Uncommitted += lag
			t.MaxUncommitted = max(t.MaxUncommitted, lag)
		}
		for i := range l.held {
			for _, r := range l.held[i].runs {
				t.Held += uint64(r.To-r.From) + 1
				if r.To > l.archived {
					t.Unarchived += uint64(r.To - max(r.From-1, l.archived))
					t.UnarchivedBytes += r.bytesAbove(l.archived)
				}
			}
		}
		if l.oldest != 0 {
			t.OldestAge = max(t.OldestAge, now-l.oldest)
		}
	}
	return t
}

// bytesAbove is about how many bytes the records of a run above floor take in their segment. The index has no sizes but the
// offsets of its two ends: exact for a run that is whole, and by the mean size for a part of one.
func (r *run) bytesAbove(floor LSN) uint64 {
	n := uint64(r.To - max(r.From-1, floor))
	switch {
	case r.Off != unknownOff && r.Next != unknownOff:
		return (r.Next - r.Off) * n / (uint64(r.To-r.From) + 1)
	case r.Next != unknownOff:
		return r.Next * n / (uint64(r.To-r.SegStart) + 1)
	case r.Off != unknownOff && r.From > r.SegStart:
		return r.Off * n / uint64(r.From-r.SegStart)
	}
	return 0
}
