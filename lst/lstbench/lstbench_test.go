package lstbench

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	Child()
	os.Exit(m.Run())
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		limit    *Limit
		yes, no  float64
		expected string
	}{{most(1.5), 1.5, 1.51, "≤ 1.5"}, {below(6), 5.9, 6, "< 6"}, {least(.8), .8, .79, "≥ 0.8"}} {
		if !c.limit.Reached(c.yes) || c.limit.Reached(c.no) || c.limit.String() != c.expected {
			t.Errorf("%v: %v is %v, %v is %v", c.limit, c.yes, c.limit.Reached(c.yes), c.no, c.limit.Reached(c.no))
		}
	}
	for want, r := range map[string]Result{
		AimReached: {Value: 1, Must: most(2), Aim: most(1)},
		Reached:    {Value: 2, Must: most(2), Aim: most(1)},
		Missed:     {Value: 3, Must: most(2), Aim: most(1)},
		Printed:    {Value: 3},
		Void:       {Value: 1, Must: most(2), Verdict: Void},
	} {
		if r.Judge(); r.Verdict != want {
			t.Errorf("%+v is not %s", r, want)
		}
	}
}

func TestQuantile(t *testing.T) {
	v := []float64{4, 1, 3, 2}
	if a, b, c := Quantile(v, 0), Quantile(v, .5), Quantile(v, 1); a != 1 || b != 2.5 || c != 4 {
		t.Errorf("%v, %v, %v", a, b, c)
	}
}

// One side takes twice as long as the other; one slow block of it changes nothing.
func TestInterleave(t *testing.T) {
	order := ""
	x, err := Interleave(5, func(b int) (time.Duration, error) {
		order += "A"
		if b == 3 {
			return time.Hour, nil
		}
		return 2 * time.Second, nil
	}, func(int) (time.Duration, error) { order += "B"; return time.Second, nil }, func(int, int) error { return nil })
	if err != nil || x.Value != 2 || x.Low != 2 || x.High != 2 || x.Blocks != 5 || x.FastA != 2*time.Second || x.FastB != time.Second || order != strings.Repeat("AB", 6) {
		t.Errorf("%+v, %v, %s", x, err, order)
	}
}

// Rows that count, and do not measure time, must be what is promised on every machine.
func TestCountedRows(t *testing.T) {
	exact := map[string]bool{"index-dense": true, "range-nodes": true, "drop-reads": true, "drop-carry": true}
	var rows []string
	for _, name := range Rows() {
		if exact[name] {
			rows = append(rows, name)
		}
	}
	results, err := Run(Config{Dir: t.TempDir(), Rows: rows, Seed: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) < len(exact) {
		t.Errorf("%d results of %d rows", len(results), len(exact))
	}
	for _, r := range results {
		if r.Must == nil || r.Verdict == Missed || r.Counted == "" || r.Device == "" || r.Mode == "" {
			t.Errorf("%+v", r)
		}
	}
}

func TestUnknownRow(t *testing.T) {
	if _, err := Run(Config{Rows: []string{"nothing"}}, nil); !errors.Is(err, ErrRow) {
		t.Errorf("%v", err)
	}
}

// A run that is told to stop ends with what it was told, and leaves nothing behind.
func TestStop(t *testing.T) {
	dir, enough := t.TempDir(), errors.New("enough")
	for _, row := range []string{"index-dense", "append-raw", "recovery"} {
		calls := 0
		_, err := Run(Config{Dir: dir, Rows: []string{row}, Progress: func(string, int, int) error {
			if calls++; calls > 3 {
				return enough
			}
			return nil
		}}, nil)
		if !errors.Is(err, enough) {
			t.Errorf("row %s: %v", row, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("row %s leaves %v, %v", row, left, err)
		}
	}
}

// The counters see what a process does: otherwise a row that demands 0 proves nothing.
func TestCountersSee(t *testing.T) {
	path := t.TempDir() + "/f"
	if err := os.WriteFile(path, make([]byte, 100_000), 0o644); err != nil {
		t.Fatal(err)
	}
	io, err := ioBetween(func() error { _, err := os.ReadFile(path); return err })
	if err != nil || io.rchar < 100_000 || io.rchar > 101_000 || io.syscr < 1 {
		t.Errorf("%+v, %v", io, err)
	}
	var keep []*int
	n, err := mallocs(func() error {
		for range 1000 {
			keep = append(keep, new(int))
		}
		return nil
	})
	if err != nil || n < 1000 || n > 1200 || len(keep) != 1000 {
		t.Errorf("%d allocations, %v", n, err)
	}
}
