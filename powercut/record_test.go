package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/powercut/judge"
)

// A run is good only if no cut failed and every control lost something.
func TestRecords(t *testing.T) {
	sound := record{Kind: "a", Verdicts: []judge.Verdict{{Acknowledged: 5, Compared: 5}}}
	losing := record{Kind: "a", Verdicts: []judge.Verdict{{Acknowledged: 5, Lost: 1}}}
	wrong := record{Kind: "a", Verdicts: []judge.Verdict{{Problems: []string{"a hole"}}}}
	broken := record{Kind: "a", Error: "does not start"}
	control := func(r record) record { r.Control = true; return r }
	refused := control(broken)
	refused.Refused = true
	memory := func(lost uint64) record {
		return record{Kind: "m", Memory: &judge.Verdict{Lost: lost}, Verdicts: []judge.Verdict{{Acknowledged: 1}}}
	}
	for _, c := range []struct {
		what string
		cuts []record
		ok   bool
	}{
		{"sound, and a control that lost", []record{sound, control(losing)}, true},
		{"sound, and a control that does not start any more", []record{sound, refused}, true},
		{"a control that failed otherwise", []record{sound, control(broken)}, false},
		{"sound, and a memory log that lost", []record{sound, memory(3)}, true},
		{"no control", []record{sound}, false},
		{"no cut", []record{control(losing)}, false},
		{"a control that lost nothing", []record{sound, control(losing), control(sound)}, false},
		{"a memory log that lost nothing", []record{sound, memory(0)}, false},
		{"lost", []record{losing, sound, control(losing)}, false},
		{"a problem without a loss", []record{wrong, control(losing)}, false},
		{"an error", []record{broken, control(losing)}, false},
	} {
		path := filepath.Join(t.TempDir(), "out")
		rs, err := newRecords(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.cuts {
			if err := rs.add(&c.cuts[i]); err != nil {
				t.Fatal(err)
			}
		}
		if rs.ok() != c.ok {
			t.Errorf("%s: %s", c.what, rs.summary(rs.ok()))
		}
		var table strings.Builder
		rs.table(&table)
		if !strings.Contains(table.String(), "a") || strings.Count(table.String(), "\n") != len(rs.kinds)+1 {
			t.Errorf("%s: table\n%s", c.what, table.String())
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		for _, line := range lines {
			var r record
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Errorf("%s: %v in %s", c.what, err, line)
			}
		}
		if len(lines) != len(c.cuts) {
			t.Errorf("%s: %d lines for %d cuts", c.what, len(lines), len(c.cuts))
		}
	}
}

// The plan of a default run has every kind of cut, and the controls that break nothing behind them.
func TestPlan(t *testing.T) {
	seen := make(map[kind]int)
	plan := nodeCutPlan(40)
	for _, k := range plan {
		seen[k]++
	}
	for _, k := range []kind{allCache, allFlakey, allStore, oneCache, oneFlakey, plug, plugTwice, memoryCache, memoryFlakey} {
		if seen[k] == 0 {
			t.Errorf("no cut of kind %s", k)
		}
	}
	if len(plan) != 42 || !plan[40].memory() || !plan[41].memory() || seen[lyingNodes] != 0 {
		t.Errorf("plan %v", plan)
	}
}
