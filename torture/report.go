//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/btrlog/btrlog/torture/fabric"
	"github.com/btrlog/btrlog/torture/history"
)

// What a run demands.
const (
	maxUnknownShare = 0.05                  // of the appends outside of fault windows
	minAppends      = 100                   // acknowledged ones of each log
	minReads        = 100                   // answered ones of each log
	killGapFloor    = 50 * time.Millisecond // of a node kill, or twice the control's longest gap if that is more
	checkLimit      = 2 * time.Minute       // of porcupine, for one log
	plantLimit      = 5 * time.Second       // of porcupine, for one log with a lie: to refute takes longer than to confirm
)

// row is one kind of fault in the table.
type row struct {
	Kind    kind    `json:"kind"`
	Windows int     `json:"windows"`
	Appends int     `json:"appends"`
	Unknown int     `json:"unknown"`
	Failed  int     `json:"failed"`
	Reads   int     `json:"reads"` // answered point reads and tails
	NoReply int     `json:"reads_without_answer"`
	GapMs   float64 `json:"longest_gap_ms"`
	// WakeMs and DiskMs are the machine's own longest delays in these windows: of a thread that wakes up, and of a forced write.
	WakeMs float64 `json:"longest_wake_up_ms"`
	DiskMs float64 `json:"longest_forced_write_ms"`
	P50Us  int64   `json:"append_p50_us"`
	P99Us  int64   `json:"append_p99_us"`

	latency []int64
}

// result is what a run prints.
type result struct {
	Seed       uint64        `json:"seed"`
	Duration   time.Duration `json:"duration_ns"`
	Logs       int           `json:"logs"`
	Operations int           `json:"operations"`
	Checked    int           `json:"operations_checked_by_porcupine"`
	Planted    int           `json:"planted_lies_rejected"`
	Appends    int           `json:"appends"`
	Acked      int           `json:"acknowledged"`
	Unknown    int           `json:"unknown"`
	Failed     int           `json:"failed"`
	Followed   int           `json:"records_followed"`
	Scanned    int           `json:"records_in_the_end"`
	// UnknownOutside is the share of appends with an unknown outcome that began in no fault window.
	UnknownOutside float64       `json:"unknown_outside_windows"`
	Frames         fabric.Counts `json:"frames"`
	Rows           []*row        `json:"kinds"`
	Violations     []string      `json:"violations"`
	Faults         []fault       `json:"faults"`
}

// judge checks the histories and makes the figures of the windows.
func judge(p plan, windows []window, logs []*activeLog, clients [][]history.Event, stalls []stall) *result {
	r := &result{Seed: p.Seed, Duration: p.Duration, Logs: len(logs), Faults: p.Faults}
	merged := history.Merge(clients)
	byName := make(map[string]*history.Log)
	for _, l := range merged {
		byName[l.Name] = l
		for _, problem := range l.Check() {
			r.violate("%s: %s", l.Name, problem)
		}
		verdict, n := l.Linearizable(checkLimit)
		r.Checked += n
		switch verdict {
		case porcupine.Illegal:
			r.violate("%s: not linearizable", l.Name)
		case porcupine.Unknown:
			r.violate("%s: porcupine has not decided about %d operations within %v", l.Name, n, checkLimit)
		}
	}
	r.plant(merged)
	for _, l := range logs {
		if byName[l.Name] == nil {
			r.violate("%s has no history", l.Name)
			continue
		}
		r.count(byName[l.Name])
	}
	r.rows(windows, byName, stalls)
	r.outside(windows, merged)
	r.demands()
	return r
}

// plant makes sure that the checker rejects this run's own histories with a lie in each.
func (r *result) plant(logs []*history.Log) {
	for _, l := range logs {
		lie, ok := l.Plant()
		if !ok {
			continue
		}
		switch verdict, _ := lie.Linearizable(plantLimit); verdict {
		case porcupine.Illegal:
			r.Planted++
		case porcupine.Ok:
			r.violate("%s: a planted lie passes the check", l.Name)
		}
	}
	if r.Planted == 0 {
		r.violate("no history in which a lie could be planted: the checker has not shown that it can fail")
	}
}

func (r *result) violate(format string, args ...any) {
	r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
}

func (r *result) count(l *history.Log) {
	acked, reads := 0, 0
	for _, o := range l.Ops {
		r.Operations++
		switch {
		case o.Op == history.Append:
			r.Appends++
			switch o.Out {
			case history.OK:
				acked++
			case history.Failed:
				r.Failed++
			default:
				r.Unknown++
			}
		case o.Op == history.Read && (o.Out == history.OK || o.Out == history.Absent):
			reads++
		}
	}
	r.Acked += acked
	for _, f := range l.Follows {
		r.Followed += len(f)
	}
	for _, f := range l.Finals {
		r.Scanned += max(0, len(f)-1)
	}
	if acked < minAppends || reads < minReads {
		r.violate("%s: only %d acknowledged appends and %d answered reads; %d and %d are demanded", l.Name, acked, reads, minAppends, minReads)
	}
}

// rows sums the windows of each kind.
func (r *result) rows(windows []window, logs map[string]*history.Log, stalls []stall) {
	byKind := make(map[kind]*row)
	order := []kind{control}
	for _, k := range kinds {
		order = append(order, k.kind)
	}
	acks := make(map[string][]int64)
	for name, l := range logs {
		for _, o := range l.Ops {
			if o.Op == history.Append && o.Out == history.OK {
				acks[name] = append(acks[name], o.Ret)
			}
		}
		slices.Sort(acks[name])
	}
	for i := range windows {
		w := &windows[i]
		k := byKind[w.Kind]
		if k == nil {
			k = &row{Kind: w.Kind}
			byKind[w.Kind] = k
		}
		k.Windows++
		wake, disk := worst(stalls, w)
		k.WakeMs, k.DiskMs = max(k.WakeMs, ms(wake)), max(k.DiskMs, ms(disk))
		for _, a := range w.Logs {
			l := logs[a.Name]
			if l == nil {
				continue
			}
			k.add(w, l)
			gap, n := longestGap(w, acks[a.Name], a.Stopped)
			k.GapMs = max(k.GapMs, ms(gap))
			if w.Kind == control && n == 0 {
				r.violate("%s: no append was acknowledged in the control window before fault %d: what is healed must serve", a.Name, i/2+1)
			}
		}
	}
	for _, kind := range order {
		if k := byKind[kind]; k != nil {
			slices.Sort(k.latency)
			k.P50Us, k.P99Us = percentile(k.latency, 0.5), percentile(k.latency, 0.99)
			r.Rows = append(r.Rows, k)
		}
	}
}

func (k *row) add(w *window, l *history.Log) {
	first, _ := slices.BinarySearchFunc(l.Ops, w.Start, func(o history.Operation, t int64) int { return cmp.Compare(o.Call, t) })
	for _, o := range l.Ops[first:] {
		if o.Call >= w.End {
			return
		}
		answered := o.Out == history.OK || o.Out == history.Absent
		switch {
		case o.Op == history.Append:
			k.Appends++
			switch o.Out {
			case history.OK:
				k.latency = append(k.latency, o.Ret-o.Call)
			case history.Failed:
				k.Failed++
			default:
				k.Unknown++
			}
		case o.Op != history.Read && o.Op != history.Tail:
		case answered:
			k.Reads++
		default:
			k.NoReply++
		}
	}
}

// longestGap between acknowledgements of one log that touches a window: the whole gap, wherever it begins and ends. A control window's
// are those that begin in it, and end with it: what comes before and behind is the faults'. n is how many acknowledgements fell into
// the window. stopped ends the last gap.
func longestGap(w *window, acks []int64, stopped int64) (gap time.Duration, n int) {
	from := w.Start
	if w.Kind == control {
		from = 0
	}
	for i, t := range acks {
		if t < w.Start {
			if w.Kind != control {
				from = t
			}
			continue
		}
		if w.Kind == control && t > w.End {
			break
		}
		if i == 0 || from == 0 {
			from = t // nothing was written before the first; nothing counts before a control's
		}
		gap = max(gap, time.Duration(t-from))
		from = t
		if t > w.End {
			return gap, n
		}
		n++
	}
	end := w.End
	if stopped != 0 {
		end = min(end, stopped)
	}
	if from == 0 {
		return 0, n
	}
	return max(gap, time.Duration(end-from)), n
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func percentile(sorted []int64, q float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))] / 1000
}

// outside computes the share of unknown outcomes that no fault explains.
func (r *result) outside(windows []window, logs []*history.Log) {
	total, unknown := 0, 0
	for _, l := range logs {
		for _, o := range l.Ops {
			if o.Op != history.Append || slices.ContainsFunc(windows, func(w window) bool { return w.Kind != control && o.Call >= w.Start && o.Call < w.End }) {
				continue
			}
			total++
			if o.Out == history.Unknown {
				unknown++
			}
		}
	}
	if total > 0 {
		r.UnknownOutside = float64(unknown) / float64(total)
	}
}

func (r *result) demands() {
	if r.UnknownOutside > maxUnknownShare {
		r.violate("%.1f %% of the appends outside of fault windows have an unknown outcome; at most %.0f %% may", 100*r.UnknownOutside, 100*maxUnknownShare)
	}
	var base, kill *row
	for _, k := range r.Rows {
		switch k.Kind {
		case control:
			base = k
		case nodeKill:
			kill = k
		}
	}
	if base == nil || kill == nil {
		return // too short a run: its plan says so
	}
	if kill.Failed+kill.Unknown > 0 {
		r.violate("node-kill: %d appends failed and %d have an unknown outcome, with two of three nodes left", kill.Failed, kill.Unknown)
	}
	if limit := max(float64(killGapFloor.Milliseconds()), 2*base.GapMs); kill.GapMs > limit {
		r.violate("node-kill: a gap of %.1f ms between acknowledgements; at most %.1f ms are allowed, the control's longest is %.1f ms", kill.GapMs, limit, base.GapMs)
	}
}

func (r *result) print(w io.Writer) {
	fmt.Fprintf(w, "\n%-19s %7s %8s %7s %6s %8s %8s %11s %9s %9s   %s\n", "kind", "windows", "appends", "unknown", "failed", "reads", "no reply",
		"longest gap", "p50", "p99", "machine: wake-up, forced write")
	for _, k := range r.Rows {
		fmt.Fprintf(w, "%-19s %7d %8d %7d %6d %8d %8d %8.1f ms %6.2f ms %6.2f ms   %.1f ms, %.1f ms\n", k.Kind, k.Windows, k.Appends, k.Unknown, k.Failed, k.Reads,
			k.NoReply, k.GapMs, float64(k.P50Us)/1000, float64(k.P99Us)/1000, k.WakeMs, k.DiskMs)
	}
	fmt.Fprintf(w, "\n%d logs, %d operations, %d of them checked by porcupine, %d histories with a planted lie rejected\n", r.Logs, r.Operations, r.Checked, r.Planted)
	fmt.Fprintf(w, "%d appends: %d acknowledged, %d unknown, %d failed\n", r.Appends, r.Acked, r.Unknown, r.Failed)
	fmt.Fprintf(w, "%d records followed, %d read in the end; unknown outside of fault windows: %.2f %%\n", r.Followed, r.Scanned, 100*r.UnknownOutside)
	fmt.Fprintf(w, "frames: %d, lost %d, cut %d, duplicated %d, reordered %d, overflow %d\n", r.Frames.Sent, r.Frames.Lost, r.Frames.Cut, r.Frames.Duplicated,
		r.Frames.Reordered, r.Frames.Overflow)
	for _, v := range r.Violations {
		fmt.Fprintln(w, "VIOLATION:", v)
	}
	fmt.Fprintf(w, "torture: seed %d, %d faults, %d violations\n", r.Seed, len(r.Faults), len(r.Violations))
}

func (r *result) printJSON(w io.Writer) error {
	if r.Violations == nil {
		r.Violations = []string{}
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(r)
}
