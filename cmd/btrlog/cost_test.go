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
