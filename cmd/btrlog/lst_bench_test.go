package main_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"
)

// A row comes as text and as JSON, with what it must reach and how it was counted; nothing is left behind.
func TestLstBench(t *testing.T) {
	dir := t.TempDir()
	text := good(t, "", "lst", "bench", "--quick", "--rows", "range-nodes", "--dir", dir, "--seed", "7")
	for _, want := range []string{"seed 7", "index nodes touched", "2 nodes, must be ≤ 2", "exact"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}
	var doc struct {
		Seed    uint64
		Results []struct {
			Row, Must, Counted, Device, Verdict string
			Value                               float64
		}
	}
	out := good(t, "", "lst", "bench", "--quick", "--rows", "range-nodes,drop-reads", "--dir", dir, "--json")
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(doc.Results) != 2 || doc.Seed != 1 {
		t.Fatalf("%+v", doc)
	}
	for _, r := range doc.Results {
		if r.Must == "" || r.Counted == "" || r.Device == "" || r.Verdict != "aim" {
			t.Errorf("%+v", r)
		}
	}
	bad(t, run(t, "", "lst", "bench", "--rows", "nothing"), 2, "nothing", "range-nodes")
	bad(t, run(t, "", "lst", "bench", "--quick", "--large"), 2, "quick", "large")
}

// The program is the writing process of the rows that kill one, when it is started with their order.
func TestLstBenchChild(t *testing.T) {
	cmd := command(context.Background(), "lst", "bench")
	cmd.Env = append(cmd.Env, `BTRLOG_LSTBENCH_CHILD={"Dir":"`+t.TempDir()+`/store","Streams":3,"Payload":8,"Batch":10,"SnapshotRecords":1000,"SegmentBytes":1048576,"Stop":2000}`)
	out, err := cmd.Output() // its standard input ends at once: it ends as well, with an error
	if err == nil || len(out) != 16 || binary.LittleEndian.Uint64(out[8:]) != 2000 {
		t.Errorf("%v, %v", out, err)
	}
}
