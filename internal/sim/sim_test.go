package sim

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

//go:embed seeds.txt
var seedsTxt string

// regressionSeeds are seeds that once found a bug.
func regressionSeeds(t *testing.T) []uint64 {
	t.Helper()
	var out []uint64
	for s := bufio.NewScanner(strings.NewReader(seedsTxt)); s.Scan(); {
		line, _, _ := strings.Cut(s.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		n, err := strconv.ParseUint(line, 10, 64)
		if err != nil {
			t.Fatalf("seeds.txt: %v", err)
		}
		out = append(out, n)
	}
	return out
}

func check(t *testing.T, seed uint64, sum *counters) {
	t.Helper()
	o := runSeed(seed, Mutant{}, false)
	if o.failure != nil {
		t.Errorf("seed %d: %v\n%s\nreplay: btrlog sim run --seeds 1 --from %d -v", seed, o.failure, o.failure.Params, seed)
	}
	sum.merge(&o.counters)
}

// TestSeeds runs the first seeds. Not every fault happens in so few; the command judges that over more.
func TestSeeds(t *testing.T) {
	var sum counters
	seeds := uint64(30)
	if raced {
		seeds = 5
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		check(t, seed, &sum)
	}
	t.Log(sum.text())
	if raced {
		return
	}
	c := sum.table()
	for _, name := range required {
		if slices.Contains([]string{"DamagedSeen", "PartialActivations", "AppliedButUnknown", "TornWrites", "ManyLogs", "LogsDeleted"}, name) {
			continue // rare
		}
		if c[name] == 0 {
			t.Errorf("%s did not happen in 30 seeds", name)
		}
	}
}

func TestRegressionSeeds(t *testing.T) {
	var sum counters
	seeds := regressionSeeds(t)
	if raced {
		seeds = seeds[:1]
	}
	for _, seed := range seeds {
		check(t, seed, &sum)
	}
	if sum.Commits == 0 {
		t.Error("no seed committed anything")
	}
}

// TestSameSeedSameBytes runs seeds twice: every packet, every line of the trace, and every byte on every disk.
func TestSameSeedSameBytes(t *testing.T) {
	seeds := uint64(6)
	if raced {
		seeds = 1
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		a, b := runSeed(seed, Mutant{}, true), runSeed(seed, Mutant{}, true)
		if a.sum != b.sum || !bytes.Equal(a.trace, b.trace) {
			i := 0
			for i < min(len(a.trace), len(b.trace)) && a.trace[i] == b.trace[i] {
				i++
			}
			t.Fatalf("seed %d went two ways, first at byte %d of the trace:\n%s", seed, i, a.trace[max(0, i-300):min(len(a.trace), i+200)])
		}
		quiet := runSeed(seed, Mutant{}, false)
		if quiet.sum != a.sum || quiet.counters != a.counters {
			t.Fatalf("seed %d goes another way when it is traced", seed)
		}
		if !strings.Contains(string(a.trace), "disk of n0: 0") {
			t.Fatalf("seed %d: the trace does not end with the disks", seed)
		}
	}
	// And beside each other, as the command runs them.
	n := 2 * int(seeds)
	one, two := Run(Options{From: 1, Seeds: n, Workers: 1}), Run(Options{From: 1, Seeds: n, Workers: 4})
	if one.Sum != two.Sum || one.text != two.text {
		t.Fatal("seeds that run beside each other go another way")
	}
	if a, b := Run(Options{From: 1, Seeds: 1}), Run(Options{From: 2, Seeds: 1}); a.Sum == b.Sum {
		t.Fatal("two seeds went the same way")
	}
}

// TestMutantsAreKilled proves that the general workload and the content checkers notice a broken rule.
func TestMutantsAreKilled(t *testing.T) {
	seeds := map[string]int{
		"lost-race-412": 10, "read-without-fence": 10, "take-appends-below-promise": 10, "decide-early": 10, "trust-foreign-archive": 10, "blank-nodes-vote": 20,
		"no-repair": 10, "repair-keeps-label": 10, "no-copy-to-newcomers": 30, "activate-before-record": 10, "install-unchecked": 20, "label-is-owner": 60,
		"commit-out-of-order": 60, "commit-below-quorum": 20, "watermark-falls": 10, "drop-before-archived": 10, "sync-left-out": 10,
		"forget-loss": 60, "delete-first": 60,
	}
	if raced {
		seeds = map[string]int{"no-repair": 10}
	}
	for _, m := range mutants() {
		n, ok := seeds[m.Name]
		if !ok {
			continue
		}
		delete(seeds, m.Name)
		v := hunt(m, 1, n)
		if !v.Killed {
			t.Errorf("%s survived %d seeds: %s", m.Name, n, m.Breaks)
			continue
		}
		t.Logf("%s: killed by %s, seed %d: %s", m.Name, v.By, v.Seed, v.How)
		if v.By == "panic" {
			t.Errorf("%s ends in a panic, not in a broken promise", m.Name)
		}
	}
	for name := range seeds {
		t.Errorf("no mutant is called %s", name)
	}
}

func TestMain_usage(t *testing.T) {
	for _, args := range [][]string{nil, {"fly"}, {"run", "--seeds", "0"}, {"run", "x"}, {"run", "--no-such-flag"}} {
		var out, errs bytes.Buffer
		if code := Main(args, &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("sim %q: exit %d, %q", args, code, errs.String())
		}
	}
}

func TestMain_run(t *testing.T) {
	var out, errs bytes.Buffer
	if code := Main([]string{"run", "--seeds", "2", "--from", "5"}, &out, &errs); code != 0 {
		t.Fatalf("exit %d\n%s%s", code, out.String(), errs.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "seeds=2 failed=0 ") {
		t.Fatalf("last line: %s", last)
	}
	out.Reset()
	if code := Main([]string{"run", "--seeds", "1", "--json"}, &out, &errs); code != 0 {
		t.Fatalf("exit %d\n%s", code, errs.String())
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Seeds != 1 || r.Counters["Commits"] == 0 {
		t.Fatalf("%v: %s", err, out.String())
	}
}

// TestFailureIsReported runs a mutant through the command's path: seed and parameters first, the trace behind.
func TestFailureIsReported(t *testing.T) {
	var m Mutant
	for _, m = range mutants() {
		if m.Name == "no-repair" {
			break
		}
	}
	r := Run(Options{From: 1, Seeds: 5, Mutant: m, Trace: true})
	if r.OK() {
		t.Fatal("a mutant that five seeds kill passes")
	}
	f := r.Failures[0]
	text := r.Text()
	if !strings.HasPrefix(text, fmt.Sprintf("seed %d: %s violated", f.Seed, f.Rule)) || !strings.Contains(text, f.Params) || !strings.Contains(text, "VIOLATION "+f.Rule) {
		t.Fatalf("report does not begin with the seed, or lacks parameters or trace:\n%.2000s", text)
	}
	if strings.Contains(f.Message, "not deterministic") {
		t.Fatal(f.Message)
	}
}
