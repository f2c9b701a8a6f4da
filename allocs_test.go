package btrlog_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/btrlog/btrlog"
)

// TestSteadyStateAllocates counts the allocations of append and sync in steady state, in two ways.
//
// Those of the client's code, by the profile of all allocations: it leaves out the nodes of this process, whose timers and
// pools allocate by the time that passes, so that it holds on a loaded machine and under the race detector.
//
// And all of them, the three nodes included. With the race detector this sum says nothing: it makes an append take so long
// that it counts what the nodes do by the clock, and empties pools at random.
func TestSteadyStateAllocates(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{Window: 64})
	w := c.writer(client, "orders")
	rec := make([]byte, 128)
	one := func() {
		lsn, err := w.Append(t.Context(), rec)
		if err == nil {
			err = w.Sync(t.Context(), lsn)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 1200 { // fills the window's ring, whose buffers are then used again
		one()
	}
	n := 2000
	limit := int64(n / 100)
	if raceDetector { // slow, so that the clock's share is larger
		n, limit = 500, 50
	}
	if !raceDetector {
		best := uint64(1 << 62)
		for range 3 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range n {
				one()
			}
			runtime.ReadMemStats(&after)
			best = min(best, after.Mallocs-before.Mallocs)
		}
		t.Logf("%.3f allocations per append and sync, three nodes included", float64(best)/float64(n))
		if best > uint64(n) {
			t.Errorf("%d allocations for %d appends and syncs", best, n)
		}
	}

	rate := runtime.MemProfileRate
	runtime.MemProfileRate = 1
	defer func() { runtime.MemProfileRate = rate }()
	total, stacks := int64(n), []string{}
	for tries := 0; tries < 4 && total > limit; tries++ { // on a slow machine buffers grow yet, for what is sent again
		before := clientAllocations(t)
		for range n {
			one()
		}
		total, stacks = 0, nil
		for stack, count := range clientAllocations(t) {
			if count -= before[stack]; count > 0 {
				total += count
				stacks = append(stacks, stack)
			}
		}
	}
	t.Logf("%.3f allocations per append and sync in the client", float64(total)/float64(n))
	if total > limit {
		t.Errorf("the client allocates %d times for %d appends and syncs, in\n%s", total, n, strings.Join(stacks, "\n"))
	}
}

// clientAllocations counts the objects that the code of package btrlog has had allocated, by stack.
func clientAllocations(t *testing.T) map[string]int64 {
	t.Helper()
	for range 2 {
		runtime.GC() // the profile is of the last cycle that is complete
	}
	records := make([]runtime.MemProfileRecord, 1<<16)
	n, ok := runtime.MemProfile(records, true)
	if !ok {
		t.Fatalf("the profile has %d stacks", n)
	}
	out := map[string]int64{}
	for i := range records[:n] {
		var stack strings.Builder
		ours := false
		frames := runtime.CallersFrames(records[i].Stack())
		for more := true; more; {
			var f runtime.Frame
			f, more = frames.Next()
			ours = ours || strings.HasPrefix(f.Function, "github.com/btrlog/btrlog.")
			stack.WriteString(" < " + f.Function)
		}
		if ours {
			out[stack.String()] += records[i].AllocObjects
		}
	}
	return out
}
