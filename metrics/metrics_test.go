package metrics

import (
	"strings"
	"testing"
	"time"
)

// Every time lies in the bucket whose bounds say so.
func TestBucketsAndBounds(t *testing.T) {
	for i := range Buckets - 1 {
		if i > 0 && Bound(i) <= Bound(i-1) {
			t.Fatalf("bound %d is %v, after %v", i, Bound(i), Bound(i-1))
		}
		if i > 0 && 2*Bound(i) > 3*Bound(i-1) {
			t.Errorf("bucket %d from %v to %v is wider than half of its lower bound", i, Bound(i-1), Bound(i))
		}
		if got := bucket(Bound(i)); got != i {
			t.Errorf("%v is in bucket %d, want %d", Bound(i), got, i)
		}
		if got := bucket(Bound(i) + 1); got != i+1 {
			t.Errorf("%v is in bucket %d, want %d", Bound(i)+1, got, i+1)
		}
	}
	for _, d := range []time.Duration{-5, 0, 1} {
		if bucket(d) != 0 {
			t.Errorf("%v is in bucket %d", d, bucket(d))
		}
	}
	if bucket(time.Hour) != Buckets-1 {
		t.Error("an hour is not in the last bucket")
	}
}

func TestQuantiles(t *testing.T) {
	var h Histogram
	if h.Snapshot().Quantile(0.5) != 0 {
		t.Error("a median of nothing")
	}
	h.Observe(100*time.Microsecond, 98)
	h.Observe(time.Millisecond, 1)
	early := h.Snapshot()
	h.Observe(time.Hour, 1)
	s := h.Snapshot()
	for _, c := range []struct {
		q        float64
		from, to time.Duration
	}{{0, 100e3, 150e3}, {0.5, 100e3, 150e3}, {0.98, 1e6, 1.5e6}, {1, Bound(Buckets - 2), Bound(Buckets - 2)}} {
		if got := s.Quantile(c.q); got < c.from || got > c.to {
			t.Errorf("quantile %v is %v, want %v to %v", c.q, got, c.from, c.to)
		}
	}
	if s.Count() != 100 || s.Sum != 98*100*time.Microsecond+time.Millisecond+time.Hour {
		t.Errorf("%d events, sum %v", s.Count(), s.Sum)
	}
	if d := s.Since(early); d.Count() != 1 || d.Sum != time.Hour {
		t.Errorf("since: %d events, sum %v", d.Count(), d.Sum)
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	var h Histogram
	if n := testing.AllocsPerRun(100, func() { h.Observe(123*time.Microsecond, 3) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestWrite(t *testing.T) {
	plain := &Desc{Name: "x_total", Kind: Counter, Help: "back\\slash\nand line"}
	labelled := &Desc{Name: "y_bytes", Kind: Gauge, Help: "y", Labels: []string{"a", "b"}}
	timed := &Desc{Name: "z_seconds", Kind: Distribution, Help: "z", Labels: []string{"stage"}}
	var h Histogram
	h.Observe(10*time.Microsecond, 2)
	h.Observe(time.Minute, 1)
	var l List
	l.Add(plain, 12345678901234)
	l.Add(labelled, 0.25, "1", "quote \" and \\ and \n and \xff")
	l.AddHistogram(timed, h.Snapshot(), "write")
	l.Add(labelled, -3, "2", "")
	var b strings.Builder
	if err := Write(&b, l.Families()); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	want := `# HELP x_total back\\slash\nand line
# TYPE x_total counter
x_total 12345678901234
# HELP y_bytes y
# TYPE y_bytes gauge
y_bytes{a="1",b="quote \" and \\ and \n and ?"} 0.25
y_bytes{a="2",b=""} -3
# HELP z_seconds z
# TYPE z_seconds histogram
z_seconds_bucket{stage="write",le="8.192e-06"} 0
z_seconds_bucket{stage="write",le="1.2288e-05"} 2
`
	if !strings.HasPrefix(got, want) {
		t.Errorf("got\n%s\nwant it to begin with\n%s", got, want)
	}
	end := `z_seconds_bucket{stage="write",le="17.179869184"} 2
z_seconds_bucket{stage="write",le="+Inf"} 3
z_seconds_sum{stage="write"} 60.00002
z_seconds_count{stage="write"} 3
`
	if !strings.HasSuffix(got, end) {
		t.Errorf("got\n%s\nwant it to end with\n%s", got, end)
	}
}

func TestLabelsMustFit(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a value without its label was taken")
		}
	}()
	new(List).Add(&Desc{Name: "a", Labels: []string{"l"}}, 1)
}
