package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pinned counts the threads of this process that may run on one processor only, by the kernel's own words. Without leader the first thread
// of the process is left out: the runtime cannot end it, and puts it aside instead.
func pinned(t *testing.T, leader bool) map[string]int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("%d threads, %v", len(tasks), err)
	}
	out := map[string]int{}
	for _, task := range tasks {
		if !leader && strings.HasPrefix(task, fmt.Sprintf("/proc/self/task/%d/", os.Getpid())) {
			continue
		}
		text, _ := os.ReadFile(task) // a thread may have ended
		for line := range strings.Lines(string(text)) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				if list = strings.TrimSpace(list); !strings.ContainsAny(list, ",-") {
					out[list]++
				}
			}
		}
	}
	return out
}

// The threads of shards are where PinCPUs says, and nothing else of the process is; they end with the node.
func TestPinnedThreads(t *testing.T) {
	before, others := pinned(t, true), pinned(t, false)
	cfg := testConfig(t, "a", newStore())
	cfg.Shards, cfg.PinCPUs = 3, []int{0, 0}
	n := startNode(t, cfg)
	c, w := dial(t, n), newWriter(3)
	c.begin(w) // a shard serves; the others have begun before the node did
	if now := pinned(t, true); now["0"] != before["0"]+cfg.Shards {
		t.Errorf("threads on one processor: %v, before %v; want %d more on processor 0", now, before, cfg.Shards)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(waitFor); fmt.Sprint(pinned(t, false)) != fmt.Sprint(others); {
		if time.Now().After(end) {
			t.Fatalf("threads on one processor after the node's end: %v, before it %v", pinned(t, false), others)
		}
	}
	cfg = testConfig(t, "b", newStore())
	cfg.PinCPUs = []int{maxCPUs - 1}
	if n, err := Start(t.Context(), cfg); err == nil {
		err = n.Wait(t.Context())
		t.Logf("%v", err)
		if err == nil {
			t.Error("a node serves on a processor that is not there")
		}
	}
}

// A shard that spins takes what comes without a wait in the kernel, as the node's own counters say.
func TestShardSpins(t *testing.T) {
	const n = 300
	sleeps := func(spin time.Duration) uint64 {
		cfg := testConfig(t, "a", newStore())
		cfg.Spin = spin
		nd := startNode(t, cfg)
		c, w := dial(t, nd), newWriter(3)
		c.begin(w)
		before := nd.threads[0].loop.Stats().Sleeps
		for range n {
			c.call(w.append(1, 100))
		}
		return nd.threads[0].loop.Stats().Sleeps - before
	}
	with, without := sleeps(maxSpin), sleeps(0)
	t.Logf("%d and %d waits in the kernel for %d appends", with, without, n)
	if without < n/4 || with > n/4 {
		t.Errorf("%d waits in the kernel for %d appends with spinning, %d without", with, n, without)
	}
}
