package main

import (
	"cmp"
	"slices"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/protocol"
)

// holes are the LSNs of a log that the archive should have, or leads one to expect, and has not.
type holes struct {
	missing []protocol.Range // a node takes them for archived, or all nodes of the log answer and none has them
	pending []protocol.Range // a node of the log has them, and none takes them for archived
	unknown []protocol.Range // none that answers has them; those that do not may
	silent  []string         // nodes of the log that do not tell, and why
	young   bool             // some of missing or unknown are above all that the nodes had heard of
}

// archivedThrough is up to where a node takes a log for archived.
func (rep *clusterReport) archivedThrough(info *btrlog.LogInfo) (through protocol.LSN) {
	id := logID(info)
	for _, n := range rep.Nodes {
		if l := n.logs[id]; l != nil {
			through = max(through, l.ArchivedThrough)
		}
	}
	return through
}

// explain sorts gaps of the archive by what the nodes said before it was listed; info was read after that. A node may drop
// what any node took for archived, so what is not in the archive up to there is missing though another may still have it. Above, only the
// nodes of the log count, as for a reader, with copies that are not void.
func (rep *clusterReport) explain(info *btrlog.LogInfo, gaps []protocol.Range) (h holes) {
	through := rep.archivedThrough(info)
	var open []protocol.Range // not explained so far
	h.missing, open = parted(gaps, protocol.Range{From: 1, To: through})
	nodes := map[string]*nodeReport{}
	for _, n := range rep.Nodes {
		nodes[n.Name] = n
	}
	id := logID(info)
	known, answered := through, false
	var untold []protocol.Range
	for _, m := range info.Nodes {
		n, why := memberOf(m, nodes)
		var s *node.LogStatus
		if n != nil {
			s = n.logs[id]
		}
		switch {
		case n != nil && s == nil && n.Problem != "": // one of its shards may have it, and not have answered
			why = "has not told all: " + n.Problem
			fallthrough
		case n == nil:
			h.silent = append(h.silent, m.Name+" "+why)
			untold = append(untold, protocol.Range{From: 1, To: protocol.MaxLSN})
			continue
		}
		answered = true
		if s == nil {
			continue // it has nothing of the log
		}
		known = max(known, s.Committed, s.Highest)
		held, more := heldBy(info, s)
		if more.From <= more.To {
			h.silent = append(h.silent, m.Name+" has more holes than it lists")
			untold = append(untold, more)
		}
		for _, r := range held {
			var in []protocol.Range
			in, open = parted(open, r)
			h.pending = append(h.pending, in...)
		}
	}
	for _, r := range untold {
		var in []protocol.Range
		in, open = parted(open, r)
		h.unknown = append(h.unknown, in...)
	}
	h.missing = joinedRanges(append(h.missing, open...))
	h.pending, h.unknown = joinedRanges(h.pending), joinedRanges(h.unknown)
	if answered {
		for _, r := range slices.Concat(h.missing, h.unknown) {
			h.young = h.young || r.To > known
		}
	}
	return h
}

// heldBy is what a node has of a log above what it takes for archived, and where it may have more: its list of what it lacks is bounded.
func heldBy(info *btrlog.LogInfo, s *node.LogStatus) (held []protocol.Range, more protocol.Range) {
	top := min(s.Highest, voidFrom(info.History, s.Activated)-1) // above are copies of a reign that was over
	more.From = 1                                                // none
	if n := len(s.Missing); n >= protocol.MaxMissing && s.Missing[n-1].To < top {
		more = protocol.Range{From: s.Missing[n-1].To + 1, To: top}
		top = s.Missing[n-1].To
	}
	if s.ArchivedThrough >= top {
		return nil, more
	}
	held = []protocol.Range{{From: s.ArchivedThrough + 1, To: top}}
	for _, r := range slices.Concat(s.Missing, s.Damaged) { // of damage nobody can say that it is still to be archived
		_, held = parted(held, r)
	}
	return held, more
}

// parted cuts ranges at the ends of r into what is in r and what is not, both in their order.
func parted(ranges []protocol.Range, r protocol.Range) (in, out []protocol.Range) {
	for _, x := range ranges {
		if before := (protocol.Range{From: x.From, To: min(x.To, r.From-1)}); before.From <= before.To {
			out = append(out, before)
		}
		if both := (protocol.Range{From: max(x.From, r.From), To: min(x.To, r.To)}); both.From <= both.To {
			in = append(in, both)
		}
		if behind := (protocol.Range{From: max(x.From, r.To+1), To: x.To}); behind.From <= behind.To {
			out = append(out, behind)
		}
	}
	return in, out
}

// joinedRanges sorts disjoint ranges and joins those that touch.
func joinedRanges(rs []protocol.Range) []protocol.Range {
	slices.SortFunc(rs, func(a, b protocol.Range) int { return cmp.Compare(a.From, b.From) })
	out := rs[:0]
	for _, r := range rs {
		if n := len(out); n > 0 && r.From == out[n-1].To+1 {
			out[n-1].To = r.To
		} else {
			out = append(out, r)
		}
	}
	return out
}
