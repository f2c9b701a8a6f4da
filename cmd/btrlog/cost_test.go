package main_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

func TestCost(t *testing.T) {
	out := good(t, "", "cost")
	for _, part := range []string{"USD A MONTH", "BtrLog", "log nodes", "io2", "gp3", "prices: AWS"} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	month := func(args ...string) float64 {
		t.Helper()
		var r struct {
			Bills []struct {
				Name  string
				Month float64
			}
		}
		if err := json.Unmarshal([]byte(good(t, "", append([]string{"cost", "--json"}, args...)...)), &r); err != nil {
			t.Fatal(err)
		}
		return r.Bills[0].Month
	}
	// The table that is printed is the one that is used, and a change of it changes the result.
	table := good(t, "", "cost", "prices")
	same := writeFile(t, filepath.Join(t.TempDir(), "p.json"), table)
	dear := writeFile(t, filepath.Join(t.TempDir(), "p.json"), strings.Replace(table, `"gb_month": 0.023`, `"gb_month": 23`, 1))
	if a, b, c := month(), month("--prices", same), month("--prices", dear); a != b || c <= a {
		t.Errorf("%v built in, %v from the same table, %v from a dear one", a, b, c)
	}
	if one, three := month(), month("--zones", "3", "--n", "6"); three <= one {
		t.Errorf("%v in one zone, %v in three", one, three)
	}
	bad(t, run(t, "", "cost", "--rate", "0"), 2, "rate")
	bad(t, run(t, "", "cost", "--zones", "9"), 2, "9 zones")
	bad(t, run(t, "", "cost", "--instance", "x"), 2, `"x"`, "c6id.large")
	bad(t, run(t, "", "cost", "--prices", writeFile(t, filepath.Join(t.TempDir(), "p.json"), "{}")), 2, "hours_per_month")
	bad(t, run(t, "", "cost", "--prices", filepath.Join(t.TempDir(), "none")), 1, "none")
}

// What the nodes ask of the store is counted between two looks, and stands beside the prediction.
func TestCostMeasured(t *testing.T) {
	name := newLog(t)
	p := mustStart(t, command(t.Context(), "cost", "--measure", shared.server.nodes(), "--for", "3s", "--json"))
	stop, appended := make(chan struct{}), 0
	var done result
	go func() { done = p.wait(); close(stop) }()
	for running := true; running; appended++ { // at least once, and until the other command has looked again
		good(t, "x\n", onShared(t, "append", name)...)
		select {
		case <-stop:
			running = false
		default:
		}
	}
	if done.code != 0 {
		t.Fatal(done.err)
	}
	var r struct {
		Measured struct{ Records, Puts, Gets float64 }
		Workload struct {
			Rate float64 `json:"appends_per_second"`
		}
		Month []struct {
			What                string
			Measured, Predicted float64
		}
	}
	if err := json.Unmarshal([]byte(done.out), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Month) != 4 || r.Measured.Puts < 1 || r.Month[0].Measured <= 0 || r.Measured.Records < 1 || r.Workload.Rate <= 0 {
		t.Errorf("after %d commands that append: %s", appended, done.out)
	}
	bad(t, run(t, "", "cost", "--measure", closedPort(t), "--for", "1s"), 1, "connection refused")
	bad(t, run(t, "", "cost", "--measure", "here"), 2, "--measure")
	bad(t, run(t, "", "cost", "--measure", "127.0.0.1:1", "--for", "-1s"), 2, "--for")
}
