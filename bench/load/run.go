package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Plan is one run of the open loop.
type Plan struct {
	// Rate is the appends per second of all logs together at the end of the run.
	Rate float64 `json:"rate_per_s"`
	// Logs is how many logs there are at the end, FirstLogs how many at the beginning; 0 is Logs. Each log's rate is Rate/Logs, and logs
	// are added at equal distances.
	Logs        int `json:"logs"`
	FirstLogs   int `json:"first_logs"`
	RecordBytes int `json:"record_bytes"`
	// Warmup comes before what is measured, with the rate and the logs of the beginning.
	Warmup time.Duration `json:"warmup_ns"`
	Length time.Duration `json:"length_ns"`
	// Interval is the length of the parts of which each has its own figures; 0 is 500 ms.
	Interval time.Duration `json:"interval_ns"`
	Seed     uint64        `json:"seed"`
}

// Quantiles are of latencies in microseconds.
type Quantiles struct {
	P50  float64 `json:"p50_us"`
	P95  float64 `json:"p95_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`
	Max  float64 `json:"max_us"`
}

// Counts says what became of the appends that were due in some time. Offered is Sent + Refused; Sent is Completed + Failed + Unanswered.
type Counts struct {
	Offered    int `json:"offered"`
	Sent       int `json:"sent"`
	Refused    int `json:"refused"`
	Completed  int `json:"completed"`
	Failed     int `json:"failed"`
	Unanswered int `json:"unanswered"`
	// InTime are those of Completed that were answered no later than inTime after the end of the run.
	InTime int `json:"completed_in_time"`
}

// inTime is what the last appends of a run may take and still count as achieved.
const inTime = 100 * time.Millisecond

// Interval is a part of a run.
type Interval struct {
	At   float64 `json:"at_s"` // its begin
	Logs int     `json:"logs"` // at its begin
	Rate float64 `json:"completed_per_s"`
	Counts
	Quantiles
}

// Point is the result of one run.
type Point struct {
	Plan    Plan    `json:"plan"`
	Seconds float64 `json:"seconds"`
	Counts
	Quantiles
	// Achieved is InTime over Offered.
	Achieved float64 `json:"achieved"`
	// Verdict is judged among the other points: ok; saturated; void, when this rate was not achieved but a higher one was.
	Verdict string `json:"verdict,omitempty"`
	// LateP99 is how late the generator sent, in microseconds; the latencies contain it.
	LateP99 float64 `json:"generator_late_p99_us"`
	// Processor times of the client's process, and of the nodes if the caller adds them, in microseconds per completed append.
	ClientCPU float64    `json:"client_cpu_us"`
	NodeCPU   float64    `json:"node_cpu_us,omitempty"`
	FirstErr  string     `json:"first_error,omitempty"`
	Intervals []Interval `json:"intervals"`
}

// drainTime bounds the wait for the answers after the end of a run.
const drainTime = 15 * time.Second

type run struct {
	plan  Plan
	began time.Time // of what is measured; the warm-up is before it

	mu          sync.Mutex
	outstanding int
	idle        chan struct{} // closed when the loop has ended and nothing is under way
	ended       bool
	all         *hdrhistogram.Histogram
	parts       []*hdrhistogram.Histogram
	counts      []Counts // by interval
	firstErr    error

	ops sync.Pool
}

// op is one append.
type op struct {
	r   *run
	due time.Duration // since r.began; negative in the warm-up
}

// Done implements Completion.
func (o *op) Done(err error) {
	r, due := o.r, o.due
	at := time.Since(r.began)
	r.ops.Put(o)
	r.mu.Lock()
	r.finish(due, at, err)
	r.mu.Unlock()
}

// finish accounts for an answer. r.mu is held.
func (r *run) finish(due, at time.Duration, err error) {
	if r.outstanding--; r.ended && r.outstanding == 0 {
		close(r.idle)
	}
	if err != nil && r.firstErr == nil {
		r.firstErr = err
	}
	k := r.interval(due)
	if k < 0 {
		return
	}
	if err != nil {
		r.counts[k].Failed++
		return
	}
	r.counts[k].Completed++
	if at <= r.plan.Length+inTime {
		r.counts[k].InTime++
	}
	took := min(max(int64(at-due), lowest), highest)
	_ = r.all.RecordValue(took)
	_ = r.parts[k].RecordValue(took)
}

// interval is the part in which something was due; -1 in the warm-up.
func (r *run) interval(due time.Duration) int {
	if due < 0 {
		return -1
	}
	return min(int(due/r.plan.Interval), len(r.counts)-1)
}

// The bounds of the histograms in nanoseconds: what is outside counts as the bound.
const lowest, highest = int64(time.Microsecond), int64(time.Minute)

// Run offers what the plan says, and waits for the answers. Arrivals are Poisson for each log: as those of many logs with one rate together
// are Poisson with the sum of the rates, and each of them belongs to any of the logs with the same chance, they are drawn so.
func Run(ctx context.Context, t Target, p Plan) (*Point, error) {
	if p.Interval <= 0 {
		p.Interval = 500 * time.Millisecond
	}
	if p.FirstLogs <= 0 || p.FirstLogs > p.Logs {
		p.FirstLogs = p.Logs
	}
	if p.Rate <= 0 || p.Logs <= 0 || p.Length < p.Interval {
		return nil, fmt.Errorf("a plan of %g appends/s, %d logs and %v: all must be positive, and the length one interval of %v at least", p.Rate, p.Logs, p.Length, p.Interval)
	}
	if err := t.Open(ctx, p.Logs); err != nil {
		return nil, err
	}
	r := &run{plan: p, idle: make(chan struct{}), all: hdrhistogram.New(lowest, highest, 3)}
	r.ops.New = func() any { return &op{r: r} }
	for range int((p.Length + p.Interval - 1) / p.Interval) {
		r.parts = append(r.parts, hdrhistogram.New(lowest, highest, 3))
	}
	r.counts = make([]Counts, len(r.parts))
	runtime.GC()
	cpu := ownProcessor()
	late, err := r.offer(ctx, t)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.ended = true
	wait := r.outstanding > 0
	r.mu.Unlock()
	if wait {
		limit := time.NewTimer(drainTime)
		defer limit.Stop()
		select {
		case <-r.idle:
		case <-limit.C: // what is still under way counts as unanswered
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return r.point(late, ownProcessor()-cpu), nil
}

// A wake-up for each of many appends costs the client's process more than they do, and takes the processor from those that hear the answers. From
// manyRate per second on, which is that of all logs, those that are due within manyWake share one. They are late by that, which the latencies contain.
const (
	manyRate = 10_000
	manyWake = 200 * time.Microsecond
)

// offer sends what is due, whatever becomes of it.
func (r *run) offer(ctx context.Context, t Target) (*hdrhistogram.Histogram, error) {
	p := &r.plan
	rng := rand.New(rand.NewPCG(p.Seed, 1))
	record := make([]byte, p.RecordBytes)
	late := hdrhistogram.New(lowest, highest, 3)
	defer pace()()
	r.began = time.Now().Add(p.Warmup)
	due, logs := -p.Warmup, p.FirstLogs
	for n := 0; ; n++ {
		rate := p.Rate * float64(logs) / float64(p.Logs)
		gap := time.Duration(rng.ExpFloat64() / rate * 1e9)
		if change := r.change(logs); due+gap > change && logs < p.Logs { // nothing arrived before the next log: draw again from there
			due = change
			logs++
			continue
		}
		if due += gap; due > p.Length {
			return late, nil
		}
		if now := time.Since(r.began); now < due {
			wake := due
			if rate >= manyRate {
				wake = max(wake, now+manyWake)
			}
			until(r.began, wake)
		}
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		o := r.ops.Get().(*op)
		o.due = due
		k := r.interval(due)
		r.mu.Lock()
		r.outstanding++
		r.mu.Unlock()
		err := t.Append(rng.IntN(logs), record, o)
		at := time.Since(r.began)
		r.mu.Lock()
		if k >= 0 {
			r.counts[k].Offered++
			_ = late.RecordValue(min(max(int64(at-due), lowest), highest))
		}
		switch {
		case err == nil:
			if k >= 0 {
				r.counts[k].Sent++
			}
		case errors.Is(err, ErrRefused):
			r.outstanding--
			if k >= 0 {
				r.counts[k].Refused++
			}
		default:
			r.mu.Unlock()
			return nil, err
		}
		r.mu.Unlock()
		if err != nil {
			r.ops.Put(o)
		}
	}
}

// change is when the log after so many is added.
func (r *run) change(logs int) time.Duration {
	p := &r.plan
	return p.Length * time.Duration(logs-p.FirstLogs+1) / time.Duration(p.Logs-p.FirstLogs+1)
}

func (r *run) point(late *hdrhistogram.Histogram, cpu time.Duration) *Point {
	r.mu.Lock()
	defer r.mu.Unlock()
	pt := &Point{Plan: r.plan, Seconds: r.plan.Length.Seconds(), Quantiles: quantiles(r.all), LateP99: micro(late.ValueAtQuantile(99))}
	logs := r.plan.FirstLogs
	for k, c := range r.counts {
		c.Unanswered = c.Sent - c.Completed - c.Failed
		at := time.Duration(k) * r.plan.Interval
		for logs < r.plan.Logs && r.change(logs) <= at {
			logs++
		}
		length := min(r.plan.Interval, r.plan.Length-at).Seconds()
		pt.Intervals = append(pt.Intervals, Interval{At: at.Seconds(), Logs: logs, Rate: float64(c.Completed) / length, Counts: c, Quantiles: quantiles(r.parts[k])})
		pt.Offered += c.Offered
		pt.Sent += c.Sent
		pt.Refused += c.Refused
		pt.Completed += c.Completed
		pt.Failed += c.Failed
		pt.Unanswered += c.Unanswered
		pt.InTime += c.InTime
	}
	if pt.Offered > 0 {
		pt.Achieved = float64(pt.InTime) / float64(pt.Offered)
	}
	if pt.Completed > 0 {
		pt.ClientCPU = micro(int64(cpu)) / float64(pt.Completed)
	}
	if r.firstErr != nil {
		pt.FirstErr = r.firstErr.Error()
	}
	return pt
}

func quantiles(h *hdrhistogram.Histogram) Quantiles {
	return Quantiles{micro(h.ValueAtQuantile(50)), micro(h.ValueAtQuantile(95)), micro(h.ValueAtQuantile(99)), micro(h.ValueAtQuantile(99.9)), micro(h.Max())}
}

func micro(ns int64) float64 { return float64(ns) / 1e3 }

// achievedLeast is the part of what is offered that must be achieved.
const achievedLeast = 0.99

// Judge sets the verdicts of points of one target in the order of their rates.
func Judge(points []*Point) {
	higher := false // a point with a higher rate was achieved
	for i := len(points) - 1; i >= 0; i-- {
		p := points[i]
		switch {
		case p.Achieved >= achievedLeast:
			p.Verdict, higher = "ok", true
		case higher:
			p.Verdict = "void"
		default:
			p.Verdict = "saturated"
		}
	}
}
