package cost

import (
	"math"
	"strings"
	"testing"
	"time"
)

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance*want {
		t.Errorf("%s: %.6g, want %.6g within %v", what, got, want, tolerance)
	}
}

// paper is the workload of the paper's cost figures: 1-KiB appends, four in each write, all that three metal instances can take.
func paper(p Prices) Workload {
	return Workload{Rate: p.Instances["c6id.metal"].WriteIOPS * 4, Size: 1024, Logs: 1000, N: 3, Zones: 1, PerIO: 4, Segment: 16 << 20, Instance: "c6id.metal", Use: 1, Exclusive: true}
}

func line(b Bill, what string) float64 {
	for _, l := range b.Lines {
		if l.What == what {
			return l.Month
		}
	}
	return 0
}

// The figures that the paper publishes come out: $0.00125 for a million appends on its nodes, $0.0036 on io2, 3e-10 $ of PUTs for an append,
// $2 for sending 100 GB to another zone once, $8 for four nodes there, and half of it when one of two passes on.
func TestPaperFigures(t *testing.T) {
	p, _ := Default()
	w := paper(p)
	w.Size = 1024
	for i := range p.Instances {
		x := p.Instances[i]
		x.Gbit = 1e6 // the paper's figure counts writes alone
		p.Instances[i] = x
	}
	bills := Reckon(p, w)
	appends := w.Rate * p.Hours * 3600
	near(t, "nodes per million appends", line(bills[0], "log nodes")/appends*1e6, 0.00125, 0.01)
	near(t, "PUTs per append", line(bills[0], "PUT")/appends, 3e-10, 0.05)
	w.Rate = 4 * 256000
	near(t, "io2 per million appends", Reckon(p, w)[1].PerMillion, 0.0036, 0.01)

	// 100 million records of 1 KB.
	w = Workload{Rate: 1e8 / (p.Hours * 3600), Size: 1000, Logs: 1, N: 2, Zones: 2, PerIO: 1, Segment: 16 << 20, Instance: "c6id.metal", Use: 1}
	near(t, "one copy in another zone", line(Reckon(p, w)[0], "transfer"), 2, 0.001)
	w.N, w.Zones = 6, 3
	near(t, "four", line(Reckon(p, w)[0], "transfer"), 8, 0.001)
	w.Forward = true
	near(t, "two that pass on", line(Reckon(p, w)[0], "transfer"), 4, 0.001)
}

// Packing makes the PUTs of idle logs independent of their number.
func TestIdleLogs(t *testing.T) {
	p, _ := Default()
	w := Workload{Rate: 10000.0 / 60, Size: 100, Logs: 10000, N: 3, Zones: 1, PerIO: 1, Segment: 16 << 20, FlushAge: time.Minute, Instance: "c6id.large", Use: 0.5, Exclusive: true}
	minutes := p.Hours * 60
	near(t, "an object for each", Reckon(p, w)[0].Puts/minutes, 10000, 0.001)
	w.PackEvery = 40 * time.Second
	packed := Reckon(p, w)[0]
	if perMinute := packed.Puts / minutes; perMinute > 6 {
		t.Errorf("%.1f PUTs a minute", perMinute)
	}
	w.Logs, w.Rate = 1000, 1000.0/60
	near(t, "a tenth of the logs", Reckon(p, w)[0].Puts, packed.Puts, 0.001)
}

// Every line adds up, and more of anything never costs less.
func TestBillsAddUp(t *testing.T) {
	p, text := Default()
	if again, err := Parse(text); err != nil || again.Name != p.Name {
		t.Fatal(err)
	}
	base := Workload{Rate: 20000, Size: 500, Logs: 50, N: 6, Zones: 3, PerIO: 4, Retain: 30 * 24 * time.Hour, Segment: 16 << 20, FlushAge: 5 * time.Minute, PackEvery: 40 * time.Second,
		Instance: "c6id.xlarge", Use: 0.5, ReadShare: 1, Exclusive: true}
	for name, more := range map[string]func(*Workload){
		"rate": func(w *Workload) { w.Rate *= 3 }, "size": func(w *Workload) { w.Size *= 3 }, "retain": func(w *Workload) { w.Retain *= 2 }, "nodes": func(w *Workload) { w.N += 3 },
		"reads": func(w *Workload) { w.ReadShare += 5 },
	} {
		w := base
		more(&w)
		if err := w.Check(p); err != nil {
			t.Fatal(name, err)
		}
		before, after := Reckon(p, base), Reckon(p, w)
		for i := range after {
			sum := 0.0
			for _, l := range after[i].Lines {
				if l.Month < 0 || math.IsNaN(l.Month) || math.IsInf(l.Month, 0) {
					t.Errorf("%s: %s: %+v", name, after[i].Name, l)
				}
				sum += l.Month
			}
			near(t, name+": "+after[i].Name, sum, after[i].Month, 1e-9)
			if after[i].Month < before[i].Month*0.999999 {
				t.Errorf("more %s costs less: %s: %v, before %v", name, after[i].Name, after[i].Month, before[i].Month)
			}
		}
	}
}

func TestBadInput(t *testing.T) {
	p, text := Default()
	for what, change := range map[string]func(*Workload){
		"rate": func(w *Workload) { w.Rate = 0 }, "zones": func(w *Workload) { w.Zones = 4 }, "instance": func(w *Workload) { w.Instance = "z9" }, "use": func(w *Workload) { w.Use = 2 },
		"retain": func(w *Workload) { w.Retain = -1 },
		// These used to be reckoned with: NaN is not below zero, and a bill of three hundred digits is none.
		"no rate": func(w *Workload) { w.Rate = math.NaN() }, "no size": func(w *Workload) { w.Size = math.NaN() }, "no logs": func(w *Workload) { w.Logs = math.NaN() },
		"no batch": func(w *Workload) { w.PerIO = math.NaN() }, "no use": func(w *Workload) { w.Use = math.NaN() }, "no reads": func(w *Workload) { w.ReadShare = math.NaN() },
		"rate without end": func(w *Workload) { w.Rate = math.Inf(1) }, "rate beyond sense": func(w *Workload) { w.Rate = 1e300 },
	} {
		w := paper(p)
		change(&w)
		if w.Check(p) == nil {
			t.Errorf("%s: taken", what)
		}
	}
	for _, bad := range []string{"", "{", `{"hours_per_month": 730}`, strings.Replace(string(text), "gb_month", "gb_moth", 1), strings.Replace(string(text), "730", "7300", 1)} {
		if _, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%.60q: taken", bad)
		}
	}
}

// What is measured is scaled to a month and priced as the prediction is, for the workload that was measured.
func TestCompare(t *testing.T) {
	p, _ := Default()
	w := Workload{Logs: 1, N: 3, Zones: 1, PerIO: 4, Segment: 16 << 20, FlushAge: 5 * time.Minute, Instance: "c6id.xlarge", Use: 0.5}
	// 1,008 bytes with framing, at 16,644 a second: one segment each second, in a hundred seconds.
	m := Measured{Took: 100 * time.Second, Puts: 100, Lists: 200, Gets: 7, Deletes: 3, Records: 3 * 100 * (16 << 20) / 1008.0, Bytes: 3 * 100 * (16 << 20) / 1008.0 * 1000}
	got, rows := Compare(p, w, m)
	if math.Abs(got.Size-1000) > 0.1 || math.Abs(got.Rate-(16<<20)/1008.0) > 0.1 {
		t.Fatalf("%v appends of %v bytes", got.Rate, got.Size)
	}
	month := p.Hours * 3600
	for i, want := range []Compared{{"PUT", month, month, month * p.Objects.Put / 1000, month * p.Objects.Put / 1000},
		{"LIST", 2 * month, 2 * month, 2 * month * p.Objects.List / 1000, 2 * month * p.Objects.List / 1000},
		{"GET", 0.07 * month, 0, 0.07 * month * p.Objects.Get / 1000, 0}, {"DELETE", 0.03 * month, 0, 0, 0}} {
		r := rows[i]
		close := func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*month }
		if r.What != want.What || !close(r.Measured, want.Measured) || !close(r.Predicted, want.Predicted) || !close(r.MeasuredPrice, want.MeasuredPrice) || !close(r.PredictedPrice, want.PredictedPrice) {
			t.Errorf("%+v, want %+v", r, want)
		}
	}
	w.Rate, w.Size = 5, 100
	if got, _ = Compare(p, w, m); got.Rate != 5 || got.Size != 100 {
		t.Errorf("a workload of its own became %+v", got)
	}
	if _, rows = Compare(p, Workload{N: 3}, Measured{Took: time.Second}); rows[0].Measured != 0 || rows[0].Predicted != 0 {
		t.Errorf("of nothing: %+v", rows)
	}
}
