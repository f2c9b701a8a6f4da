package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/protocol"
)

// What a gap in the archive is, by what the nodes say. LSN 1..10 are taken for archived, 100 is committed.
func TestExplainGaps(t *testing.T) {
	const id = btrlog.LogID(0xa1)
	info := btrlog.LogInfo{Name: "orders", ID: id, TrimBefore: 1, Options: btrlog.LogOptions{Qw: 2}, History: []btrlog.Reign{{Epoch: 1, Start: 1}, {Epoch: 4, Start: 50}}}
	for _, n := range []string{"a", "b", "c"} {
		info.Nodes = append(info.Nodes, btrlog.NodeInfo{Name: n, Incarnation: uint64(n[0])})
	}
	full := node.LogStatus{Activated: 4, Committed: 100, ArchivedThrough: 10, Highest: 100}
	with := func(change func(s *node.LogStatus)) *node.LogStatus {
		s := full
		change(&s)
		return &s
	}
	lacks := func(rs ...protocol.Range) *node.LogStatus {
		return with(func(s *node.LogStatus) { s.Missing = rs })
	}
	var many []protocol.Range
	for x := protocol.LSN(11); len(many) < protocol.MaxMissing; x++ {
		many = append(many, protocol.Range{From: x, To: x})
	}
	type nodes [3]*node.LogStatus
	silent := &node.LogStatus{Log: "does not answer"}
	partly := &node.LogStatus{Log: "answers for some shards"}
	replaced := &node.LogStatus{Log: "has another disk"}
	none := (*node.LogStatus)(nil) // it answers and does not know the log
	for _, c := range []struct {
		what  string
		nodes nodes
		gaps  []protocol.Range
		want  string // missing, not archived yet, unknown
		young bool
	}{
		{"all have it", nodes{&full, &full, &full}, []protocol.Range{{From: 20, To: 30}}, "[] [{20 30}] []", false},
		{"one has it, and the others have nothing", nodes{&full, none, none}, []protocol.Range{{From: 20, To: 30}}, "[] [{20 30}] []", false},
		{"one has it, and the others do not answer", nodes{&full, silent, silent}, []protocol.Range{{From: 20, To: 30}}, "[] [{20 30}] []", false},
		{"a node takes it for archived", nodes{&full, &full, &full}, []protocol.Range{{From: 5, To: 12}}, "[{5 10}] [{11 12}] []", false},
		{"another node takes it for archived", nodes{&full, with(func(s *node.LogStatus) { s.ArchivedThrough = 25 }), silent}, []protocol.Range{{From: 20, To: 30}}, "[{20 25}] [{26 30}] []", false},
		{"none has it", nodes{lacks(protocol.Range{From: 20, To: 30}), lacks(protocol.Range{From: 15, To: 40}), none}, []protocol.Range{{From: 18, To: 32}}, "[{20 30}] [{18 19} {31 32}] []", false},
		{"two that answer have part of it each", nodes{lacks(protocol.Range{From: 20, To: 25}), lacks(protocol.Range{From: 26, To: 30}), silent}, []protocol.Range{{From: 20, To: 30}}, "[] [{20 30}] []", false},
		{"those that answer lack it", nodes{lacks(protocol.Range{From: 20, To: 30}), lacks(protocol.Range{From: 20, To: 30}), silent}, []protocol.Range{{From: 5, To: 25}}, "[{5 10}] [{11 19}] [{20 25}]", false},
		{"no shard that may have it answers", nodes{none, partly, none}, []protocol.Range{{From: 20, To: 30}}, "[] [] [{20 30}]", true},
		{"its disk was replaced", nodes{none, none, replaced}, []protocol.Range{{From: 20, To: 30}}, "[] [] [{20 30}]", true},
		{"nobody answers", nodes{silent, silent, silent}, []protocol.Range{{From: 20, To: 30}}, "[] [] [{20 30}]", false},
		{"nobody knows the log", nodes{none, none, none}, []protocol.Range{{From: 1, To: 30}}, "[{1 30}] [] []", true},
		{"above what they had heard of", nodes{&full, &full, &full}, []protocol.Range{{From: 90, To: 130}}, "[{101 130}] [{90 100}] []", true},
		{"damaged on the one that has it", nodes{with(func(s *node.LogStatus) { s.Damaged = []protocol.Range{{From: 22, To: 23}} }), none, none}, []protocol.Range{{From: 20, To: 30}}, "[{22 23}] [{20 21} {24 30}] []", false},
		{"void copies", nodes{with(func(s *node.LogStatus) { s.Activated = 3 }), none, none}, []protocol.Range{{From: 45, To: 55}}, "[{50 55}] [{45 49}] []", false},
		{"a node with more holes than it lists", nodes{lacks(many...), none, none}, []protocol.Range{{From: 60, To: 90}}, fmt.Sprintf("[{60 %d}] [] [{%d 90}]", 10+protocol.MaxMissing, 11+protocol.MaxMissing), false},
	} {
		rep := clusterReport{}
		for i, s := range c.nodes {
			n := &nodeReport{Name: info.Nodes[i].Name, Incarnation: incarnation(info.Nodes[i].Incarnation), State: "active", Answers: true, logs: map[string]*node.LogStatus{}}
			switch s {
			case silent:
				n.Answers, n.logs, n.Problem = false, nil, "no answer"
			case partly:
				n.Problem = "shard 1: no answer within 2s"
			case replaced:
				n.Incarnation = "0000000000000001"
			case none:
			default:
				n.logs[logID(&info)] = s
			}
			rep.Nodes = append(rep.Nodes, n)
		}
		h := rep.explain(&info, c.gaps)
		if got := fmt.Sprint(h.missing, h.pending, h.unknown); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
		if h.young != c.young {
			t.Errorf("%s: young is %v", c.what, h.young)
		}
		if len(h.unknown) > 0 && len(h.silent) == 0 {
			t.Errorf("%s: it is not said who does not tell", c.what)
		}
	}
}

// What cannot be told is a fault, and reads so; what is not archived yet is none.
func TestVerdictWords(t *testing.T) {
	for want, v := range map[string]verdict{
		"sound": {Sound: true},
		"sound; not archived yet: LSN 3..9 and 1 range more": {Sound: true, Pending: []lsns{{3, 9}, {12, 12}}},
		"missing: LSN 2; not archived yet: LSN 3":            {Missing: []lsns{{2, 2}}, Pending: []lsns{{3, 3}}},
		"missing or not archived yet, cannot be told apart: LSN 3..9 (n1 does not answer, n2 does not answer)": {Unknown: []lsns{{3, 9}},
			Silent: []string{"n1 does not answer", "n2 does not answer"}},
	} {
		if got := v.found(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	var s verified
	s.add(&verdict{Sound: true, Pending: []lsns{{3, 9}}}, nil)
	if err := s.err(); err != nil {
		t.Error(err)
	}
	s.add(&verdict{Unknown: []lsns{{3, 9}}}, nil)
	s.add(&verdict{}, fmt.Errorf("log x: the store is on fire"))
	if err := s.err(); err == nil || !strings.Contains(err.Error(), "1 log of 3 with records that are missing or not archived yet") || !strings.Contains(err.Error(), "1 log of 3 could not be checked; log x: the store is on fire") {
		t.Error(err)
	}
}
