package protocol

import (
	"fmt"
	"sort"
)

// ReadView is what a reader knows of a log from its record.
type ReadView struct {
	Ensemble   Ensemble
	Qw         int
	History    History
	TrimBefore LSN
	Lost       LostRanges
}

// Qr is the read quorum.
func (v *ReadView) Qr() int { return len(v.Ensemble) - v.Qw + 1 }

// Merge joins what the nodes of a log say to its readers: how far the log is committed, which copies may be served, and
// what it means that nobody has one. It never fences and decides nothing that is not decided already.
//
// A record that a node sends as committed is served as it is: the node has voided by its own history and takes watermarks
// only at the epoch that it activated (H8, H9). A copy of a node that lags is served only under a watermark from elsewhere
// and the history up to that watermark's epoch (P8); a reader who lacks that history reads the record again first.
type Merge struct {
	view     ReadView
	clsn     LSN   // never falls (P9)
	epoch    Epoch // of the reign that told clsn
	archived LSN   // committed and in the archive; says nothing about what copies nodes hold
	Rules    Rules
}

// SetView takes a record that was read. What it starts at is committed up to there.
func (m *Merge) SetView(v ReadView) {
	m.view = v
	if last := v.History.Last(); last.Start > 0 && last.Start-1 > m.clsn {
		m.clsn, m.epoch = last.Start-1, last.Epoch
	}
}

// View returns the record's view; its slices are not to be changed.
func (m *Merge) View() *ReadView { return &m.view }

// Observe takes the watermark of an answer. It returns the member that gave it, or −1: an incarnation that is not on record
// knows nothing (P4), and its answer must not be used.
func (m *Merge) Observe(r *ReadReply) int {
	i := m.view.Ensemble.Index(r.Incarnation)
	if i < 0 || r.Status != StatusOK {
		return -1
	}
	if r.CLSN > m.clsn || m.Rules.WatermarkFalls {
		m.clsn, m.epoch = r.CLSN, r.Activated
	}
	m.archived = max(m.archived, r.ArchivedThrough)
	return i
}

// Counted takes a tail that Tail decided. Copies counted above the archive are of labels that the view knows, so that the
// view judges what is below them as well.
func (m *Merge) Counted(tail LSN) {
	if tail > m.Known() {
		m.clsn, m.epoch = tail, max(m.epoch, m.view.History.Last().Epoch)
	}
}

// Known returns the highest LSN known committed, be it that only the archive has it. It never falls.
func (m *Merge) Known() LSN { return max(m.clsn, m.archived) }

// Watermark returns the highest LSN under which copies of nodes may be judged, and the epoch of the reign that told it.
func (m *Merge) Watermark() (LSN, Epoch) { return m.clsn, m.epoch }

// Archived returns the highest archived-through that a node told.
func (m *Merge) Archived() LSN { return m.archived }

// NeedsRecord reports that the watermark is of a reign that the view does not know: the record must be read again before a
// copy is served under that watermark (P8).
func (m *Merge) NeedsRecord() bool { return m.epoch > m.view.History.Last().Epoch }

// Reign returns the epoch of the reign to which the committed LSN x belongs, or 0 where the view cannot know: a reign that it lacks
// begins at or above the last start that it has, and below it the history is whole. At or below a watermark whose reign the view
// has, no younger one can begin.
func (m *Merge) Reign(x LSN) Epoch {
	if x >= m.view.History.Last().Start && (x > m.clsn || m.NeedsRecord()) {
		return 0
	}
	return m.view.History.At(x).Epoch
}

// Prefix returns how many of an answer's records, from the LSN from on and without a hole, may be served as they are, and
// the index of the first.
func (m *Merge) Prefix(r *ReadReply, from LSN) (first, n int) {
	for first < len(r.Records) && r.Records[first].LSN < from {
		first++
	}
	limit := min(r.CLSN, m.view.Lost.Next(from)-1)
	for i := first; i < len(r.Records); i++ {
		if x := r.Records[i].LSN; x != from+LSN(n) || x > limit {
			break
		}
		n++
	}
	return first, n
}

// Raw picks the copy of x to serve from answers to raw reads, one per member, nil for none: highest label that is not void
// by the view's history, and only at or below a watermark whose reign the view knows.
func (m *Merge) Raw(x LSN, replies []*ReadReply) *Record {
	if _, lost := m.view.Lost.At(x); lost || x > m.clsn || m.NeedsRecord() {
		return nil
	}
	var best *Record
	for _, r := range replies {
		if r == nil {
			continue
		}
		// A node's records ascend, with one label each: its highest that is not void there.
		i := sort.Search(len(r.Records), func(i int) bool { return r.Records[i].LSN >= x })
		if i < len(r.Records) {
			c := &r.Records[i]
			if c.LSN == x && !m.view.History.Void(c.Label, x) && (best == nil || c.Label > best.Label) {
				best = c
			}
		}
	}
	return best
}

// RawRun appends to dst the copies to serve from LSN from on, without a hole, up to to.
func (m *Merge) RawRun(from, to LSN, replies []*ReadReply, dst []Record) []Record {
	for x := from; x <= to; x++ {
		c := m.Raw(x, replies)
		if c == nil {
			break
		}
		dst = append(dst, *c)
	}
	return dst
}

// Lost says whether LSN x, at or below the watermark, of which no answer has a copy to serve, is lost: Qr members have no copy and would know,
// or all have answered and none can read one (R18). Else it says for whom to wait. It does not know of the archive: the
// reader has looked there.
func (m *Merge) Lost(x LSN, replies []*ReadReply) (lost bool, silent []NodeID) {
	if x > m.clsn || m.NeedsRecord() {
		return false, silent // it cannot be judged
	}
	absent, answered := 0, 0
	for i, member := range m.view.Ensemble {
		r := replies[i]
		if r == nil || r.From > x || r.Through < x {
			silent = append(silent, member.Node)
			continue
		}
		answered++
		if !r.damagedAt(x) {
			absent++
		}
	}
	return absent >= m.view.Qr() || answered == len(m.view.Ensemble), silent
}

func (r *ReadReply) damagedAt(x LSN) bool {
	for _, d := range r.Damaged {
		if d.From <= x && x <= d.To {
			return true
		}
	}
	return false
}

// NextHeld returns the lowest LSN above x of which an answer has a record, or 0.
func NextHeld(x LSN, replies []*ReadReply) LSN {
	next := LSN(0)
	for _, r := range replies {
		if r == nil {
			continue
		}
		for i := range r.Records {
			if l := r.Records[i].LSN; l > x && (next == 0 || l < next) {
				next = l
			}
		}
	}
	return next
}

// Highest returns the highest LSN that any answer names: a committed LSN is on Qw members, so Qr answers name it or have it
// below their watermark, or call it damaged: that names it too.
func (m *Merge) Highest(replies []*ReadReply) LSN {
	top := m.Known()
	for _, r := range replies {
		if r != nil {
			top = max(top, r.Highest, r.CLSN, r.ArchivedThrough)
			for _, d := range r.Damaged {
				top = max(top, d.To)
			}
		}
	}
	return top
}

// Tail decides a linearizable tail (X11): of the LSNs above the watermark up to highest, an LSN is in when Qw members at
// their recorded incarnations hold it under one label that is not void, and out when with all silent members they would
// be fewer. replies has one entry per member, nil for one that is silent. decided is false, with the reason, when neither
// holds yet for some LSN: then the reader waits for the watermark or for more answers. The view must have been read after
// the question was asked, and the answers after the view.
func (m *Merge) Tail(highest LSN, replies []*ReadReply) (tail LSN, decided bool, why string) {
	known := m.Known()
	for i, r := range replies {
		if r != nil && r.Activated > m.view.History.Last().Epoch {
			// It has voided by a history that we do not have: what it lacks was perhaps committed under this view.
			return known, false, fmt.Sprintf("node %s is at epoch %d, the record that was read at %d", m.view.Ensemble[i].Node, r.Activated,
				m.view.History.Last().Epoch)
		}
	}
	for x := known + 1; x <= highest; x++ {
		most, silent := m.copies(x, replies)
		switch {
		case most >= m.view.Qw:
		case most+silent < m.view.Qw:
			return x - 1, true, ""
		default:
			return x - 1, false, fmt.Sprintf("LSN %d: %d equal copies, %d nodes silent, %d copies decide", x, most, silent, m.view.Qw)
		}
	}
	return max(highest, known), true, ""
}

// copies counts the largest set of equal copies of x, and the members that may hold one more.
func (m *Merge) copies(x LSN, replies []*ReadReply) (most, silent int) {
	var labels [MaxEnsemble]Epoch
	var counts [MaxEnsemble]int
	kinds := 0
	for i := range m.view.Ensemble {
		r := replies[i]
		if r == nil {
			silent++
			continue
		}
		if n := len(r.Uncommitted); n == MaxExtents && x > r.Uncommitted[n-1].To {
			silent++ // its list was cut: it may hold more
			continue
		}
		var best Epoch
		for _, e := range r.Uncommitted {
			if e.From <= x && x <= e.To && e.Label > best && !m.view.History.Void(e.Label, x) {
				best = e.Label
			}
		}
		switch {
		case best == 0 && r.damagedAt(x):
			silent++ // unknown is not absent (P3)
			continue
		case best == 0:
			continue
		case best > m.view.History.Last().Epoch:
			silent++ // a repair of an epoch that is not on record, or a record that is newer than ours: it may be either
			continue
		}
		k := 0
		for k < kinds && labels[k] != best {
			k++
		}
		if k == kinds {
			labels[k], counts[k] = best, 0
			kinds++
		}
		counts[k]++
		most = max(most, counts[k])
	}
	return most, silent
}
