//go:build linux

package main

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/torture/history"
)

func all(t *testing.T) []kind {
	t.Helper()
	out, err := kindsOf(nil, true)
	if err != nil || len(out) != len(kinds) {
		t.Fatal(out, err)
	}
	return out
}

func TestKindsOf(t *testing.T) {
	for _, c := range []struct {
		only  []string
		moves bool
		want  string
	}{
		{[]string{"storm", "duel"}, true, "[duel storm]"},
		{[]string{"storm", "clock-jump"}, false, "[storm]"},
		{[]string{"clock-jump"}, false, "[]"},
		{[]string{"storm", "drizzle"}, true, "[]"},
	} {
		got, err := kindsOf(c.only, c.moves)
		if fmt.Sprint(got) != c.want || (err != nil) != (c.want == "[]") {
			t.Errorf("%v, %v: %v, %v", c.only, c.moves, got, err)
		}
	}
}

func TestSameSeedSamePlan(t *testing.T) {
	a, b := makePlan(7, 10*time.Minute, all(t)), makePlan(7, 10*time.Minute, all(t))
	if !reflect.DeepEqual(a, b) {
		t.Fatal("two plans of one seed differ")
	}
	if reflect.DeepEqual(a.Faults, makePlan(8, 10*time.Minute, all(t)).Faults) {
		t.Fatal("two seeds give the same plan")
	}
	// A longer run begins as a shorter one.
	long := makePlan(7, time.Hour, all(t))
	if !reflect.DeepEqual(a.Faults, long.Faults[:len(a.Faults)]) {
		t.Fatal("the longer plan begins otherwise")
	}
	count := map[kind]int{}
	for _, f := range a.Faults {
		count[f.Kind]++
	}
	for _, k := range kinds {
		if count[k.kind] < 2 {
			t.Errorf("%s comes %d times in ten minutes", k.kind, count[k.kind])
		}
	}
}

// The plan stays within the failure model, and hits nodes that hold the logs.
func TestPlanIsWithinTheFailureModel(t *testing.T) {
	for seed := range uint64(50) {
		p := makePlan(seed, time.Hour, all(t))
		if p.Faults[0].Kind != nodeKill {
			t.Errorf("seed %d begins with %s", seed, p.Faults[0].Kind)
		}
		members := map[string]bool{"n1": true, "n2": true, "n3": true}
		last := time.Duration(0)
		for i, f := range p.Faults {
			where := fmt.Sprintf("seed %d, fault %d, %v", seed, i+1, f)
			if f.At < last+controlTime || f.For < leastWindow || f.For > mostWindow || f.At+f.For+settleTime > p.Duration {
				t.Fatalf("%s: at %v for %v, the one before ended at %v", where, f.At, f.For, last)
			}
			last = f.At + f.For + settleTime
			for _, n := range f.Nodes {
				if !members[n] {
					t.Fatalf("%s hits %s, which holds nothing", where, n)
				}
			}
			switch f.Kind {
			case wipeAdopt, wipeReplace:
				if len(f.Nodes) != 1 {
					t.Fatalf("%s wipes %d disks at once", where, len(f.Nodes))
				}
			case wipePause: // the first is wiped, the second paused
				if len(f.Nodes) != 2 || f.Nodes[0] == f.Nodes[1] {
					t.Fatalf("%s hits %v", where, f.Nodes)
				}
			case diskFull:
				if !slices.Contains(smallFS, f.Nodes[0]) {
					t.Fatalf("%s would fill a large disk", where)
				}
			case clockJump:
				if f.Jump == 0 || f.Jump%time.Second != 0 {
					t.Fatalf("%s jumps by %v", where, f.Jump)
				}
			}
			if f.Kind == wipeReplace {
				if members[f.To] {
					t.Fatalf("%s: %s is no spare", where, f.To)
				}
				delete(members, f.Nodes[0])
				members[f.To] = true
			}
		}
	}
}

func TestRecordsTellTheirBytes(t *testing.T) {
	for _, size := range []int{0, recordHeader, recordHeader + 1, 100, 4097} {
		b := makeRecord(77, size)
		if n, bad := checkRecord(b); n != 77 || bad != "" {
			t.Errorf("%d bytes: %d, %q", size, n, bad)
		}
		for i := range b {
			b[i] ^= 1
			if n, bad := checkRecord(b); bad == "" && n == 77 {
				t.Errorf("%d bytes, byte %d changed: not seen", size, i)
			}
			b[i] ^= 1
		}
		if _, bad := checkRecord(b[:len(b)-1]); bad == "" {
			t.Errorf("%d bytes, cut: not seen", size)
		}
	}
}

func TestLongestGap(t *testing.T) {
	acks := []int64{100, 110, 150, 400, 410, 420}
	for _, c := range []struct {
		name    string
		w       window
		stopped int64
		gap     time.Duration
		n       int
	}{
		{"within", window{Kind: control, Start: 105, End: 200}, 0, 50, 2},
		{"a control ends with its window", window{Kind: control, Start: 105, End: 399}, 0, 249, 2},
		{"a control does not answer for what was before", window{Kind: control, Start: 160, End: 405}, 0, 5, 1},
		{"nothing in a control", window{Kind: control, Start: 160, End: 390}, 0, 0, 0},
		{"a fault's gap goes on", window{Kind: nodeKill, Start: 105, End: 200}, 0, 250, 2},
		{"it began before", window{Kind: nodeKill, Start: 200, End: 405}, 0, 250, 1},
		{"nothing any more", window{Kind: nodeKill, Start: 405, End: 1000}, 0, 580, 2},
		{"the log ended", window{Kind: nodeKill, Start: 405, End: 1000}, 430, 10, 2},
		{"nothing was before the first", window{Kind: nodeKill, Start: 10, End: 120}, 0, 40, 2},
	} {
		if gap, n := longestGap(&c.w, acks, c.stopped); gap != c.gap || n != c.n {
			t.Errorf("%s: %d ns, %d; want %d, %d", c.name, gap, n, c.gap, c.n)
		}
	}
}

// story is a run of one log: appends every 10 ms for two controls and a node kill between them.
func story() (plan, []window, []*activeLog, []history.Event) {
	const ms = int64(time.Millisecond)
	l := &activeLog{Name: "l", Stopped: 6000 * ms}
	var windows []window
	for i, k := range []kind{control, nodeKill, control} {
		windows = append(windows, window{Kind: k, Start: int64(i) * 2000 * ms, End: int64(i+1) * 2000 * ms, Logs: []*activeLog{l}})
	}
	var events []history.Event
	id := uint64(0)
	for at := int64(10); at < 6000; at += 10 {
		id++
		events = append(events,
			history.Event{T: at * ms, ID: id, Op: history.Append, Log: "l", Val: id},
			history.Event{T: (at + 1) * ms, ID: id, Op: history.Append, Log: "l", LSN: id, Out: history.OK},
			history.Event{T: (at + 2) * ms, ID: 1e6 + id, Op: history.Read, Log: "l", LSN: id},
			history.Event{T: (at + 3) * ms, ID: 1e6 + id, Op: history.Read, Log: "l", LSN: id, Val: id, Out: history.OK})
	}
	for v := uint64(1); v <= id; v++ {
		events = append(events, history.Event{T: 7000 * ms, Op: history.Final, Log: "l", LSN: v, Val: v, Reader: "c1"})
	}
	events = append(events, history.Event{T: 6990 * ms, ID: 2e6, Op: history.Tail, Log: "l"}, history.Event{T: 6991 * ms, ID: 2e6, Op: history.Tail, Log: "l", LSN: id, Out: history.OK})
	events = append(events, history.Event{T: 7000 * ms, Op: history.Final, Log: "l", LSN: id, Out: history.OK, Reader: "c1"})
	return plan{Seed: 1, Faults: []fault{{Kind: nodeKill}}}, windows, []*activeLog{l}, events
}

func TestDemandsCanFail(t *testing.T) {
	const ms = int64(time.Millisecond)
	for name, c := range map[string]struct {
		change func(events []history.Event) []history.Event
		want   string // empty: no violation
	}{
		"a good run": {func(e []history.Event) []history.Event { return e }, ""},
		"a gap after a node kill": {func(e []history.Event) []history.Event {
			return slices.DeleteFunc(e, func(e history.Event) bool {
				return e.Op == history.Read && e.T > 3000*ms && e.T < 3200*ms || late(e, 3000, 3100)
			})
		}, "a gap of"},
		"an append fails after a node kill": {func(e []history.Event) []history.Event {
			return append(e, history.Event{T: 3000 * ms, ID: 9e6, Op: history.Append, Log: "l", Val: 9e6}, history.Event{T: 3001 * ms, ID: 9e6, Op: history.Append, Log: "l", Out: history.Failed})
		}, "1 appends failed"},
		"unknown outcomes without a fault": {func(e []history.Event) []history.Event {
			for i := range uint64(40) {
				e = append(e, history.Event{T: 5000 * ms, ID: 9e6 + i, Op: history.Append, Log: "l", Val: 9e6 + i})
			}
			return e
		}, "unknown outcome; at most"},
		"a read that is lost": {func(e []history.Event) []history.Event {
			return append(e, history.Event{T: 5900 * ms, ID: 9e6, Op: history.Tail, Log: "l"}, history.Event{T: 5901 * ms, ID: 9e6, Op: history.Tail, Log: "l", LSN: 3, Out: history.OK})
		}, "not linearizable"},
		"what is healed does not serve": {func(e []history.Event) []history.Event {
			return slices.DeleteFunc(e, func(e history.Event) bool { return e.Op == history.Append && e.Out == history.OK && e.T > 3900*ms })
		}, "what is healed must serve"},
		"a history in which nothing can be planted": {func(e []history.Event) []history.Event {
			return slices.DeleteFunc(e, func(e history.Event) bool { return e.Op == history.Tail })
		}, "has not shown that it can fail"},
		"too few operations": {func(e []history.Event) []history.Event {
			return slices.DeleteFunc(e, func(e history.Event) bool { return e.Op == history.Read && e.T > 500*ms })
		}, "are demanded"},
	} {
		t.Run(name, func(t *testing.T) {
			p, windows, logs, events := story()
			r := judge(p, windows, logs, [][]history.Event{c.change(events)}, nil)
			got := strings.Join(r.Violations, "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("violations: %q", got)
			}
			var out strings.Builder
			r.print(&out)
			if !strings.Contains(out.String(), "node-kill") {
				t.Errorf("no row of the fault in\n%s", &out)
			}
		})
	}
}

// late marks the returns of appends within a time, in ms: without them nothing was acknowledged then.
func late(e history.Event, from, to int64) bool {
	return e.Op == history.Append && e.Out == history.OK && e.T > from*int64(time.Millisecond) && e.T < to*int64(time.Millisecond)
}
