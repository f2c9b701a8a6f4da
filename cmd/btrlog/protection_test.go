package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/protocol"
)

// Which copies count, by what the nodes say.
func TestJudge(t *testing.T) {
	const id = btrlog.LogID(0xa1)
	info := btrlog.LogInfo{Name: "orders", ID: id, TrimBefore: 1, Options: btrlog.LogOptions{Qw: 2},
		History: []btrlog.Reign{{Epoch: 1, Start: 1}, {Epoch: 4, Start: 50}}}
	for _, n := range []string{"a", "b", "c"} {
		info.Nodes = append(info.Nodes, btrlog.NodeInfo{Name: n, Incarnation: uint64(n[0])})
	}
	full := node.LogStatus{Activated: 4, Committed: 100, ArchivedThrough: 10, Highest: 100, Unarchived: 900}
	with := func(change func(s *node.LogStatus)) *node.LogStatus {
		s := full
		change(&s)
		return &s
	}
	for _, c := range []struct {
		what string
		c    *node.LogStatus // of the third node; nil: it does not know the log
		want string
	}{
		{"a full copy", &full, "3 of 3, 900"},
		{"a node whose watermark lags", with(func(s *node.LogStatus) { s.Committed = 90 }), "3 of 3, 900"},
		{"a node that has more than is committed", with(func(s *node.LogStatus) { s.Highest = 120 }), "3 of 3, 900"},
		{"a hole", with(func(s *node.LogStatus) { s.Missing = []protocol.Range{{From: 60, To: 61}} }), "2 of 3, 900, c lacks LSN 60..61"},
		{"two holes", with(func(s *node.LogStatus) { s.Missing = []protocol.Range{{From: 60, To: 61}, {From: 80, To: 80}} }), "2 of 3, 900, c lacks LSN 60..61 and others"},
		{"a hole that is archived", with(func(s *node.LogStatus) { s.Missing = []protocol.Range{{From: 4, To: 10}} }), "3 of 3, 900"},
		{"a node that has not heard of the archive", with(func(s *node.LogStatus) { s.ArchivedThrough, s.Unarchived = 5, 5000 }), "3 of 3, 900"},
		{"a hole above what is committed", with(func(s *node.LogStatus) {
			s.Highest, s.Missing = 120, []protocol.Range{{From: 101, To: 110}}
		}), "3 of 3, 900"},
		{"a node that stopped early", with(func(s *node.LogStatus) { s.Highest, s.Committed = 99, 99 }), "2 of 3, 900, c lacks LSN 100"},
		{"a node that missed the last reign", with(func(s *node.LogStatus) { s.Activated = 3 }), "2 of 3, 900, c lacks LSN 50..100"},
		{"a node that knows nothing", nil, "2 of 3, 900, c has none of LSN 11..100"},
		{"a node that knows of the archive", with(func(s *node.LogStatus) { s.ArchivedThrough, s.Highest = 100, 0 }), "3 of 3, 0"},
	} {
		rep := clusterReport{}
		for i, s := range []*node.LogStatus{&full, &full, c.c} {
			n := &nodeReport{Name: info.Nodes[i].Name, Incarnation: incarnation(info.Nodes[i].Incarnation), State: "active", Answers: true, logs: map[string]*node.LogStatus{}}
			if s != nil {
				n.logs[protocol.LogID(id).String()] = s
			}
			rep.Nodes = append(rep.Nodes, n)
		}
		got := rep.judgeAll([]btrlog.LogInfo{info}, nil)
		if words := judged(got[0]); words != c.want {
			t.Errorf("%s: %q, want %q", c.what, words, c.want)
		}
		if lagging(got) != strings.Contains(c.want, ", c ") {
			t.Errorf("%s: a second look: %v", c.what, lagging(got))
		}
	}
}

// No node lacks what the log has lost.
func TestLostIsNotLacking(t *testing.T) {
	info := btrlog.LogInfo{Name: "lost", ID: 7, TrimBefore: 1, Options: btrlog.LogOptions{Qw: 1}, History: []btrlog.Reign{{Epoch: 1, Start: 1}, {Epoch: 2, Start: 101}},
		Nodes: []btrlog.NodeInfo{{Name: "a", Incarnation: 1}, {Name: "b", Incarnation: 2}},
		Lost:  []btrlog.LostRange{{From: 5, To: 6, Epoch: 2}, {From: 11, To: 100, Epoch: 2, Skipped: true}}}
	look := func(b *node.LogStatus) string {
		rep := &clusterReport{}
		id := protocol.LogID(7).String()
		for i, s := range []*node.LogStatus{{Activated: 2, Committed: 110, Highest: 110, Unarchived: 50}, b} {
			rep.Nodes = append(rep.Nodes, &nodeReport{Name: info.Nodes[i].Name, Incarnation: incarnation(info.Nodes[i].Incarnation), Answers: true, logs: map[string]*node.LogStatus{id: s}})
		}
		return judged(rep.judgeAll([]btrlog.LogInfo{info}, nil)[0])
	}
	for want, b := range map[string]*node.LogStatus{
		"2 of 2, 50":                {Activated: 2, Committed: 110, Highest: 110, Unarchived: 50, Missing: []protocol.Range{{From: 5, To: 6}, {From: 11, To: 100}}},
		"1 of 2, 50, b lacks LSN 7": {Activated: 2, Committed: 110, Highest: 110, Unarchived: 50, Missing: []protocol.Range{{From: 5, To: 7}, {From: 30, To: 31}}},
		"1 of 2, 50, b lacks LSN 101..110 and others": {Activated: 1, Committed: 10, Highest: 10, Unarchived: 50},
		"1 of 2, 50, b has none of LSN 1..110":        nil,
		"1 of 2, 50, b lacks LSN 8..10 and others":    {Activated: 1, Committed: 7, Highest: 7, Unarchived: 50},
	} {
		if got := look(b); got != want {
			t.Errorf("%+v: %q, want %q", b, got, want)
		}
	}
}

func judged(l *logReport) string {
	words := fmt.Sprintf("%d of %d", l.Copies, l.N)
	if l.AtRisk != nil {
		words += fmt.Sprintf(", %d", *l.AtRisk)
	}
	for _, n := range l.Nodes {
		words += ", " + n.Node + " " + n.Why
	}
	return words
}

// What was under way at the first look is not called missing at the second.
func TestSecondLook(t *testing.T) {
	info := btrlog.LogInfo{Name: "busy", ID: 7, TrimBefore: 1, Options: btrlog.LogOptions{Qw: 1}, History: []btrlog.Reign{{Epoch: 1, Start: 1}},
		Nodes: []btrlog.NodeInfo{{Name: "a", Incarnation: 1}, {Name: "b", Incarnation: 2}}}
	look := func(a, b protocol.LSN) *clusterReport {
		rep := &clusterReport{}
		for i, top := range []protocol.LSN{a, b} {
			rep.Nodes = append(rep.Nodes, &nodeReport{Name: info.Nodes[i].Name, Incarnation: incarnation(info.Nodes[i].Incarnation), Answers: true,
				logs: map[string]*node.LogStatus{protocol.LogID(7).String(): {Activated: 1, Committed: top, Highest: top, Unarchived: uint64(top)}}})
		}
		return rep
	}
	logs := []btrlog.LogInfo{info}
	first := look(10, 8).judgeAll(logs, nil)
	if !lagging(first) {
		t.Fatalf("first look: %s", judged(first[0]))
	}
	if again := look(20, 18).judgeAll(logs, first); lagging(again) || again[0].Copies != 2 {
		t.Errorf("a node that follows at a distance: %s", judged(again[0]))
	}
	if again := look(20, 9).judgeAll(logs, first); !lagging(again) || again[0].Copies != 1 {
		t.Errorf("a node that does not follow: %s", judged(again[0]))
	}
}
