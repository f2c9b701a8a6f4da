package sim

import (
	"strings"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
)

// TestExploreSmallWorlds walks through whole worlds: nothing is left, and nothing is broken. What must have happened in them has.
func TestExploreSmallWorlds(t *testing.T) {
	worlds := []Exploration{
		{Nodes: 3, Qw: 2, Writers: 2, Records: 1},
		{Nodes: 2, Qw: 2, Writers: 2, Records: 1, Crashes: 1, Wipes: 1},
		{Nodes: 3, Qw: 2, Writers: 2, Records: 1, Opened: true, Reopens: 1},
		{Nodes: 2, Qw: 2, Writers: 2, Records: 2, Flights: 1}, // the second record is held
	}
	if raced {
		worlds = worlds[1:2] // one goroutine: the race detector finds nothing in more of them
	} else {
		worlds = append(worlds, Exploration{Nodes: 3, Qw: 2, Writers: 2, Records: 1, Crashes: 1, Wipes: 1},
			Exploration{Nodes: 3, Qw: 2, Writers: 2, Records: 1, Tails: true})
	}
	for _, o := range worlds {
		f := Explore(o)
		t.Log(f.Text(o))
		if !f.Exhausted || f.Rule != "" {
			t.Errorf("exhausted %v, %s: %s", f.Exhausted, f.Rule, f.Message)
		}
		if f.Takeovers == 0 || f.Commits == 0 {
			t.Errorf("%d takeovers, %d commits", f.Takeovers, f.Commits)
		}
	}
}

// TestExploreSymmetry: worlds that differ in the names of nodes alone are one. Without the reduction the search finds every one of them,
// and as many as there are up to names; with it, it finds the same number.
func TestExploreSymmetry(t *testing.T) {
	o := Exploration{Nodes: 3, Qw: 2, Writers: 1, Records: 2}
	if !raced {
		o = Exploration{Nodes: 3, Qw: 2, Writers: 2, Records: 0, Wipes: 1}
	}
	with := Explore(o)
	o.NoSymmetry = true
	o.classes = &printSet{}
	without := Explore(o)
	t.Logf("%d states, %d up to names; %d found with the reduction", without.States, o.classes.n, with.States)
	if !with.Exhausted || !without.Exhausted {
		t.Fatal("not exhausted")
	}
	if o.classes.n != with.States {
		t.Errorf("%d states up to the names of nodes, the reduction finds %d", o.classes.n, with.States)
	}
	if with.States >= without.States {
		t.Errorf("%d states with the reduction, %d without", with.States, without.States)
	}
}

// TestExploreFindsMutants: a broken rule is found, with a way that is a shortest one, and the same each time.
func TestExploreFindsMutants(t *testing.T) {
	if raced {
		t.Log("the worlds are walked through without the race detector: they have one goroutine")
		return
	}
	for _, c := range []struct {
		rules  protocol.Rules
		o      Exploration
		broken string
	}{
		{protocol.Rules{WatermarkBeforeActivate: true}, Exploration{Nodes: 3, Qw: 2, Writers: 2, Records: 2, Opened: true}, "S4"},
		{protocol.Rules{ReadWithoutFence: true}, Exploration{Nodes: 3, Qw: 2, Writers: 2, Records: 1}, "S"},
		{protocol.Rules{NoRepair: true}, Exploration{Nodes: 3, Qw: 2, Writers: 2, Records: 1}, "S"},
		{protocol.Rules{CommitBelowQuorum: true}, Exploration{Nodes: 3, Qw: 2, Writers: 2, Records: 1}, "S"},
	} {
		c.o.Rules = c.rules
		f := Explore(c.o)
		t.Log(f.Text(c.o))
		if !strings.HasPrefix(f.Rule, c.broken) || len(f.Trace) == 0 || f.Exhausted {
			t.Errorf("%+v: %q after %d steps", c.rules, f.Rule, len(f.Trace))
		}
		if again := Explore(c.o); strings.Join(again.Trace, "\n") != strings.Join(f.Trace, "\n") || again.States != f.States {
			t.Errorf("%+v: another way the second time", c.rules)
		}
	}
}

// TestRenamings: a renaming keeps generations and mixes nothing up.
func TestRenamings(t *testing.T) {
	if n := len(renamings(3, true)); n != 6 {
		t.Fatalf("%d renamings of 3 nodes", n)
	}
	r := renamings(3, true)[1]
	seen := map[protocol.Incarnation]bool{}
	for slot := range 3 {
		for generation := range 2 {
			inc := r.inc(incOf(slot, generation))
			if _, g := slotOf(inc); g != generation || seen[inc] {
				t.Fatalf("%v is renamed to %v", incOf(slot, generation), inc)
			}
			seen[inc] = true
		}
	}
}
