package protocol

import (
	"testing"
)

func mergeOf(h History, trim LSN) *Merge {
	m := &Merge{}
	m.SetView(ReadView{Ensemble: Ensemble{{Node: "a", Incarnation: 1}, {Node: "b", Incarnation: 2}, {Node: "c", Incarnation: 3}}, Qw: 2,
		History: h, TrimBefore: trim})
	return m
}

func rec(x LSN, e Epoch) Record { return Record{LSN: x, Label: e} }

func TestMergeServesPrefixOfOneNode(t *testing.T) {
	m := mergeOf(History{{1, 1}}, 1)
	r := &ReadReply{Incarnation: 1, CLSN: 5, Activated: 1, Records: []Record{rec(2, 1), rec(3, 1), rec(5, 1), rec(6, 1)}}
	if i := m.Observe(r); i != 0 || m.Known() != 5 {
		t.Fatalf("member %d, known %d", i, m.Known())
	}
	for _, c := range []struct {
		from     LSN
		first, n int
	}{{1, 0, 0}, {2, 0, 2}, {3, 1, 1}, {4, 2, 0}, {5, 2, 1}, {6, 3, 0}} {
		first, n := m.Prefix(r, c.from)
		if n != c.n || (n > 0 && first != c.first) {
			t.Errorf("from %d: %d records from index %d, want %d from %d", c.from, n, first, c.n, c.first)
		}
	}
}

func TestMergeWatermarkNeverFalls(t *testing.T) {
	m := mergeOf(History{{1, 1}, {2, 8}}, 1)
	if m.Known() != 7 {
		t.Fatalf("a reign that starts at 8 makes %d known, want 7", m.Known())
	}
	m.Observe(&ReadReply{Incarnation: 1, CLSN: 20, Activated: 2})
	m.Observe(&ReadReply{Incarnation: 2, CLSN: 3, Activated: 1})
	if c, e := m.Watermark(); c != 20 || e != 2 {
		t.Fatalf("watermark %d of epoch %d", c, e)
	}
	// An incarnation that is not on record knows nothing (P4).
	if m.Observe(&ReadReply{Incarnation: 9, CLSN: 99, Activated: 2}) != -1 || m.Known() != 20 {
		t.Fatalf("a stranger raised the watermark to %d", m.Known())
	}
	// What is archived is known, and judges no copy.
	m.Observe(&ReadReply{Incarnation: 3, ArchivedThrough: 30})
	if c, _ := m.Watermark(); c != 20 || m.Known() != 30 {
		t.Fatalf("watermark %d, known %d", c, m.Known())
	}
}

// A reign is named only where no other can begin between the history that is known and the LSN.
func TestMergeReign(t *testing.T) {
	m := mergeOf(History{{2, 1}, {3, 8}}, 1)
	m.Observe(&ReadReply{Incarnation: 1, CLSN: 10, Activated: 3})
	check := func(when string, want map[LSN]Epoch) {
		t.Helper()
		for x, e := range want {
			if got := m.Reign(x); got != e {
				t.Errorf("%s: LSN %d is of epoch %d, want %d", when, x, got, e)
			}
		}
	}
	check("at the watermark", map[LSN]Epoch{1: 2, 7: 2, 8: 3, 10: 3, 11: 0})
	m.Observe(&ReadReply{Incarnation: 2, CLSN: 20, Activated: 4})
	check("under a watermark of an epoch that is not known", map[LSN]Epoch{1: 2, 7: 2, 8: 0, 20: 0})
	m.SetView(ReadView{Ensemble: m.View().Ensemble, Qw: 2, History: History{{2, 1}, {3, 8}, {4, 12}}})
	check("with the record", map[LSN]Epoch{7: 2, 8: 3, 11: 3, 12: 4, 20: 4, 21: 0})
	if e := (&Merge{}).Reign(1); e != 0 {
		t.Errorf("a log that was never opened has a reign of epoch %d", e)
	}
}

// TestMergeNeverServesVoidCopies is H8, H9 and H10 at the reader.
func TestMergeNeverServesVoidCopies(t *testing.T) {
	old := []*ReadReply{nil, nil, {Incarnation: 3, Activated: 1, Records: []Record{rec(1, 1)}}}
	m := mergeOf(History{{1, 1}}, 1)
	m.Observe(&ReadReply{Incarnation: 1, CLSN: 1, Activated: 2})
	if !m.NeedsRecord() {
		t.Fatal("a watermark of epoch 2 is judged by a history that ends at 1")
	}
	if got := m.Raw(1, old); got != nil {
		t.Fatalf("served %v without the history of the watermark's epoch", got)
	}
	if lost, _ := m.Lost(1, old); lost {
		t.Fatal("called lost what cannot be judged")
	}
	v := *m.View()
	v.History = History{{2, 1}}
	m.SetView(v)
	if got := m.Raw(1, old); got != nil {
		t.Fatalf("served a void copy: %v", got)
	}
	old[0] = &ReadReply{Incarnation: 1, Records: []Record{rec(1, 2)}}
	if got := m.Raw(1, old); got == nil || got.Label != 2 {
		t.Fatalf("raw copy: %v", got)
	}
	if got := m.Raw(2, []*ReadReply{nil, nil, {Records: []Record{rec(2, 2)}}}); got != nil {
		t.Fatalf("served above the watermark: %v", got)
	}
}

func TestMergeLost(t *testing.T) {
	m := mergeOf(History{{1, 1}}, 1)
	m.Observe(&ReadReply{Incarnation: 1, CLSN: 9, Activated: 1})
	empty := func(damaged ...Range) *ReadReply { return &ReadReply{From: 4, Through: 9, Damaged: damaged} }
	for _, c := range []struct {
		what    string
		replies []*ReadReply
		lost    bool
		silent  int
	}{
		{"nobody answered", []*ReadReply{nil, nil, nil}, false, 3},
		{"one answered", []*ReadReply{empty(), nil, nil}, false, 2},
		{"a read quorum has none", []*ReadReply{empty(), empty(), nil}, true, 1},
		{"damage is no absence", []*ReadReply{empty(), empty(Range{4, 4}), nil}, false, 1},
		{"all answered and none can read it", []*ReadReply{empty(Range{4, 4}), empty(Range{4, 4}), empty(Range{1, 5})}, true, 0},
		{"an answer that ends before it is none", []*ReadReply{empty(), {From: 1, Through: 3}, nil}, false, 2},
	} {
		lost, silent := m.Lost(4, c.replies)
		if lost != c.lost || len(silent) != c.silent {
			t.Errorf("%s: lost %v, silent %v", c.what, lost, silent)
		}
	}
	if next := NextHeld(4, []*ReadReply{{Records: []Record{rec(3, 1), rec(9, 1)}}, nil, {Records: []Record{rec(7, 1)}}}); next != 7 {
		t.Errorf("the next held LSN is %d, want 7", next)
	}
}

// TestMergeTail is X11 and the rules of a linearizable tail.
func TestMergeTail(t *testing.T) {
	holds := func(c LSN, es ...Extent) *ReadReply {
		r := &ReadReply{CLSN: c, Activated: 2, Uncommitted: es, Highest: c}
		for _, e := range es {
			r.Highest = max(r.Highest, e.To)
		}
		return r
	}
	e := func(from, to LSN, label Epoch) Extent { return Extent{from, to, label} }
	for _, c := range []struct {
		what    string
		replies []*ReadReply
		tail    LSN
		decided bool
	}{
		{"the watermark says all", []*ReadReply{holds(9), holds(9), nil}, 9, true},
		{"two equal copies are in", []*ReadReply{holds(9, e(10, 12, 2)), holds(9, e(10, 11, 2)), holds(9)}, 11, true},
		{"one copy and nobody silent is out", []*ReadReply{holds(9, e(10, 10, 2)), holds(9), holds(9)}, 9, true},
		{"one copy and one silent is open", []*ReadReply{holds(9, e(10, 10, 2)), holds(9), nil}, 9, false},
		{"copies of two labels are not equal", []*ReadReply{holds(9, e(10, 10, 1)), holds(9, e(10, 10, 2)), holds(9)}, 9, true},
		{"a void copy counts for nothing", []*ReadReply{holds(4, e(5, 5, 1)), holds(4), nil}, 4, true},
		{"a hole ends it", []*ReadReply{holds(9, e(11, 11, 2)), holds(9, e(11, 11, 2)), holds(9)}, 9, true},
		{"a label that is not on record decides nothing", []*ReadReply{holds(9, e(10, 10, 3)), holds(9, e(10, 10, 3)), holds(9)}, 9, false},
	} {
		m := mergeOf(History{{1, 1}, {2, 5}}, 1)
		for i, r := range c.replies {
			if r != nil {
				r.Incarnation = Incarnation(i + 1)
				m.Observe(r)
			}
		}
		tail, decided, why := m.Tail(m.Highest(c.replies), c.replies)
		if tail != c.tail || decided != c.decided || decided == (why != "") {
			t.Errorf("%s: %d, %v, %q; want %d, %v", c.what, tail, decided, why, c.tail, c.decided)
		}
		if decided {
			m.Counted(tail)
			if m.Known() != tail || m.NeedsRecord() {
				t.Errorf("%s: known %d after the tail %d", c.what, m.Known(), tail)
			}
		}
	}
}
