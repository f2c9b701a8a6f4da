package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/protocol"
)

// logReport is one log with fewer copies than it should have.
type logReport struct {
	Log    string `json:"log"`
	ID     string `json:"id"`
	N      int    `json:"n"`
	Qw     int    `json:"qw"`
	Copies int    `json:"copies"` // nodes of the log that have all that is committed and not archived
	// Answering counts the nodes of the log that count at all, though they may lack records.
	Answering int `json:"answering"`
	// AtRisk is how many bytes of records have fewer than n copies and are not archived; absent where no node knows.
	AtRisk *uint64       `json:"at_risk_bytes,omitempty"`
	Nodes  []nodeProblem `json:"nodes"`

	// What was committed, and of that archived, when the nodes were asked first.
	committed, archived protocol.LSN
}

// nodeProblem says why a node of a log is no full copy.
type nodeProblem struct {
	Node string `json:"node"`
	Why  string `json:"why"`
	// Lags: the node answers and lacks records, which may have been under way.
	Lags bool `json:"lags,omitempty"`
}

func (l *logReport) why() string {
	parts := make([]string, 0, len(l.Nodes)+1)
	switch qr := l.N - l.Qw + 1; {
	case l.Answering < qr:
		parts = append(parts, "cannot be opened, "+plural(int64(qr), "node")+" must answer")
	case l.Answering < l.Qw:
		parts = append(parts, "takes no appends")
	}
	for _, n := range l.Nodes {
		parts = append(parts, n.Node+" "+n.Why)
	}
	return strings.Join(parts, "; ")
}

// judgeAll judges every log. before is the judgement of a first look, which says what was committed then.
func (rep *clusterReport) judgeAll(logs []btrlog.LogInfo, before []*logReport) []*logReport {
	nodes := map[string]*nodeReport{}
	for _, n := range rep.Nodes {
		nodes[n.Name] = n
	}
	out := make([]*logReport, len(logs))
	for i := range logs {
		l := &logReport{Log: logs[i].Name, ID: logID(&logs[i]), N: len(logs[i].Nodes), Qw: logs[i].Options.Qw, Nodes: []nodeProblem{}}
		if before != nil {
			l.committed, l.archived = before[i].committed, before[i].archived
		} else {
			l.extent(&logs[i], nodes)
		}
		l.judge(&logs[i], nodes)
		out[i] = l
	}
	return out
}

// memberOf is what the node of a log said, or nil with the reason why it does not count for the log.
func memberOf(m btrlog.NodeInfo, nodes map[string]*nodeReport) (*nodeReport, string) {
	n := nodes[m.Name]
	switch {
	case n == nil:
		return nil, "is not registered"
	case n.Incarnation != incarnation(m.Incarnation):
		return nil, "has another disk than the log knows"
	case n.State == "retired":
		return nil, "is retired"
	case !n.Answers:
		return nil, "does not answer"
	}
	return n, ""
}

// extent finds out how far the log is committed and archived, as far as its nodes know.
func (l *logReport) extent(info *btrlog.LogInfo, nodes map[string]*nodeReport) {
	l.archived = protocol.LSN(max(info.TrimBefore, 1)) - 1
	for _, m := range info.Nodes {
		if n, _ := memberOf(m, nodes); n != nil && n.logs[l.ID] != nil {
			s := n.logs[l.ID]
			l.committed, l.archived = max(l.committed, s.Committed), max(l.archived, s.ArchivedThrough)
		}
	}
	if k := len(info.History); k > 0 { // what a reign starts at is committed up to there
		l.committed = max(l.committed, protocol.LSN(info.History[k-1].Start)-1)
	}
}

// judge counts the copies.
func (l *logReport) judge(info *btrlog.LogInfo, nodes map[string]*nodeReport) {
	var risk uint64
	known, newest := false, protocol.LSN(0)
	for _, m := range info.Nodes {
		n, why := memberOf(m, nodes)
		if n == nil {
			l.Nodes = append(l.Nodes, nodeProblem{Node: m.Name, Why: why})
			continue
		}
		l.Answering++
		s := n.logs[l.ID]
		if s == nil {
			if r, ok := lowest(keeps(info, protocol.Range{From: l.archived + 1, To: l.committed}), l.archived, l.committed); ok {
				l.Nodes = append(l.Nodes, nodeProblem{m.Name, "has none of " + lsnRange(btrlog.LSN(r.From), btrlog.LSN(l.committed)), true})
				continue
			}
			l.Copies++
			known = true
			continue
		}
		known = true
		if s.ArchivedThrough > newest { // what an older word calls not archived may be by now
			risk, newest = 0, s.ArchivedThrough
		}
		if s.ArchivedThrough == newest {
			risk = max(risk, s.Unarchived)
		}
		lacks := slices.Clone(s.Missing)
		if top := max(s.Highest, s.Committed, s.ArchivedThrough); top < l.committed {
			lacks = append(lacks, protocol.Range{From: top + 1, To: l.committed})
		}
		if from := voidFrom(info.History, s.Activated); from <= l.committed {
			lacks = append(lacks, protocol.Range{From: from, To: l.committed}) // copies of a reign that was over
		}
		lacks = keeps(info, lacks...)
		if r, ok := lowest(lacks, l.archived, l.committed); ok {
			l.Nodes = append(l.Nodes, nodeProblem{m.Name, "lacks " + lsnRange(btrlog.LSN(r.From), btrlog.LSN(r.To)) + orElse(len(lacks) > 1, " and others", ""), true})
			continue
		}
		l.Copies++
	}
	if l.committed <= l.archived {
		risk = 0
	}
	if known || l.committed <= l.archived && l.committed > 0 {
		l.AtRisk = &risk
	}
}

// keeps leaves out of ranges what the log has lost: no node lacks that.
func keeps(info *btrlog.LogInfo, ranges ...protocol.Range) []protocol.Range {
	for _, l := range info.Lost {
		_, ranges = parted(ranges, protocol.Range{From: protocol.LSN(l.From), To: protocol.LSN(l.To)})
	}
	return ranges
}

// voidFrom is the first LSN at which the copies of a node that last heard of the epoch activated are void: a later reign began there.
func voidFrom(history []btrlog.Reign, activated protocol.Epoch) protocol.LSN {
	for _, h := range history {
		if protocol.Epoch(h.Epoch) > activated {
			return protocol.LSN(h.Start)
		}
	}
	return protocol.MaxLSN + 1
}

// lowest is the lowest part of the ranges that is above floor and not above top.
func lowest(ranges []protocol.Range, floor, top protocol.LSN) (low protocol.Range, ok bool) {
	for _, r := range ranges {
		r.From, r.To = max(r.From, floor+1), min(r.To, top)
		if r.From <= r.To && (!ok || r.From < low.From) {
			low, ok = r, true
		}
	}
	return low, ok
}

// lagging reports that a node which answers lacks records.
func lagging(logs []*logReport) bool {
	return slices.ContainsFunc(logs, func(l *logReport) bool {
		return slices.ContainsFunc(l.Nodes, func(n nodeProblem) bool { return n.Lags })
	})
}

// add notes the logs that are under-protected, the worst first: fewest copies, then most bytes at risk.
func (rep *clusterReport) add(logs []*logReport) {
	for _, l := range logs {
		if l.Copies < l.N {
			rep.Under = append(rep.Under, l)
			if l.AtRisk != nil {
				rep.AtRisk += *l.AtRisk
			}
		}
	}
	slices.SortStableFunc(rep.Under, func(a, b *logReport) int {
		// Few copies beyond the quorum come before few copies of a smaller log.
		if c := cmp.Compare(a.Copies-a.Qw, b.Copies-b.Qw); c != 0 {
			return c
		}
		return cmp.Compare(riskOf(b), riskOf(a))
	})
}

// riskOf orders what is unknown before everything that is known.
func riskOf(l *logReport) uint64 {
	if l.AtRisk == nil {
		return ^uint64(0)
	}
	return *l.AtRisk
}
