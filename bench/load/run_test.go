package load

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// prompt answers at once; every nth append it refuses, or fails.
type prompt struct {
	refuse, fail, n int
	perLog          map[int]int
}

var errFail = errors.New("failed")

func (p *prompt) Open(context.Context, int) error { return nil }
func (p *prompt) Append(log int, _ []byte, c Completion) error {
	p.n++
	p.perLog[log]++
	switch {
	case p.refuse > 0 && p.n%p.refuse == 0:
		return ErrRefused
	case p.fail > 0 && p.n%p.fail == 0:
		c.Done(errFail)
	default:
		c.Done(nil)
	}
	return nil
}
func (p *prompt) Closed(context.Context, int, []byte) ([]time.Duration, error) { return nil, nil }
func (p *prompt) Close() error                                                 { return nil }

func TestRunAccountsForEveryAppend(t *testing.T) {
	plan := Plan{Rate: 50000, Logs: 4, Warmup: 20 * time.Millisecond, Length: 200 * time.Millisecond, Interval: 50 * time.Millisecond, Seed: 7}
	var offered []int
	for range 2 {
		p := &prompt{refuse: 10, fail: 7, perLog: map[int]int{}}
		pt, err := Run(t.Context(), p, plan)
		if err != nil {
			t.Fatal(err)
		}
		if pt.Offered != pt.Sent+pt.Refused || pt.Sent != pt.Completed+pt.Failed || pt.Unanswered != 0 {
			t.Errorf("the counts do not add up: %+v", pt.Counts)
		}
		if pt.Refused == 0 || pt.Failed == 0 || pt.FirstErr != errFail.Error() {
			t.Errorf("refused %d, failed %d, first error %q", pt.Refused, pt.Failed, pt.FirstErr)
		}
		var sum Counts
		for _, i := range pt.Intervals {
			sum.Offered += i.Offered
			sum.Completed += i.Completed
		}
		if len(pt.Intervals) != 4 || sum.Offered != pt.Offered || sum.Completed != pt.Completed {
			t.Errorf("%d intervals with %+v of %+v", len(pt.Intervals), sum, pt.Counts)
		}
		if want := 10000.0; float64(pt.Offered) < want*0.93 || float64(pt.Offered) > want*1.07 { // seven standard deviations
			t.Errorf("offered %d, expected about %g", pt.Offered, want)
		}
		for log := range 4 {
			if n := p.perLog[log]; n < 2400 || n > 3200 { // of 11,000
				t.Errorf("log %d got %d", log, n)
			}
		}
		offered = append(offered, pt.Offered)
	}
	if offered[0] != offered[1] {
		t.Errorf("one seed offered %d and %d", offered[0], offered[1])
	}
}

func TestRunAddsLogs(t *testing.T) {
	p := &prompt{perLog: map[int]int{}}
	pt, err := Run(t.Context(), p, Plan{Rate: 40000, FirstLogs: 1, Logs: 4, Length: 400 * time.Millisecond, Interval: 100 * time.Millisecond, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	for k, i := range pt.Intervals { // each log brings 10,000 a second
		if want := 1000 * (k + 1); i.Logs != k+1 || i.Offered < want*8/10 || i.Offered > want*12/10 {
			t.Errorf("interval %d: %d logs, %d offered; expected %d and about %d", k, i.Logs, i.Offered, k+1, want)
		}
	}
}

func TestRunEndsByAnyOtherError(t *testing.T) {
	if _, err := Run(t.Context(), broken{&prompt{}}, Plan{Rate: 1000, Logs: 1, Length: time.Second, Interval: time.Second}); !errors.Is(err, errFail) {
		t.Errorf("got %v", err)
	}
}

type broken struct{ *prompt }

func (broken) Append(int, []byte, Completion) error { return errFail }

func TestJudge(t *testing.T) {
	var points []*Point
	for _, a := range []float64{1, 0.98, 0.995, 0.5, 0.3} {
		points = append(points, &Point{Achieved: a})
	}
	Judge(points)
	for i, want := range []string{"ok", "void", "ok", "saturated", "saturated"} {
		if points[i].Verdict != want {
			t.Errorf("point %d is %s, must be %s", i, points[i].Verdict, want)
		}
	}
}

func TestCompare(t *testing.T) {
	r := Compare([]float64{2, 4, 6, 8}, []float64{1, 2, 2, 4})
	if r.Ratio != 3 || r.Low != 2 || r.High != 3 || r.Blocks != 4 {
		t.Errorf("%+v", r)
	}
}

func TestDocument(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.md")
	if err := os.WriteFile(path, []byte("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Document(path, "x", "new"); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "a\n<!-- x: begin -->\n\nnew\n\n<!-- x: end -->\nb\n" {
		t.Errorf("%q", got)
	}
	if Document(path, "y", "new") == nil {
		t.Error("a file without the marks was written")
	}
}

func TestFileWAL(t *testing.T) {
	w, err := ConnectFile(t.Context(), []string{t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 3)
	for range 3 {
		if err := w.Append(0, []byte("record"), tell(done)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	took, err := w.Closed(t.Context(), 2, []byte("record"))
	if err != nil || len(took) != 2 {
		t.Errorf("%v, %v", took, err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

type tell chan error

func (c tell) Done(err error) { c <- err }
