package main_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What is not given to 'log set' stays as it is, and everything can be taken back.
func TestLogSet(t *testing.T) {
	name := newLog(t)
	shown := func(want ...string) {
		t.Helper()
		info := good(t, "", onShared(t, "info", name)...)
		for _, w := range want {
			if !strings.Contains(info, w+"\n") {
				t.Errorf("info lacks %q:\n%s", w, info)
			}
		}
	}
	good(t, "", onShared(t, "set", "--flush-age", "-1s", name)...)
	shown("flush age   never", "retain      any age, any size")
	if got, want := good(t, "", onShared(t, "set", "--retain", "1GiB", name)...), "log "+name+" retains any age, 1 GiB; flush age never\n"; got != want {
		t.Errorf("set says %q, want %q", got, want)
	}
	good(t, "", onShared(t, "set", "--retain-age", "48h", "--flush-age", "2m", name)...)
	shown("flush age   2m0s", "retain      48h0m0s, 1 GiB")
	good(t, "", onShared(t, "set", "--retain", "0", name)...)
	shown("flush age   2m0s", "retain      48h0m0s, any size")
	bad(t, run(t, "", onShared(t, "set", "--retain", "1GiB", "nothing-here")...), 1, "not found")
}

// A dead node that was replaced stays an alarm until it is retired, which is refused while it runs or holds a log.
func TestClusterRetire(t *testing.T) {
	t.Parallel()
	dir, store := t.TempDir(), storeURL(t)
	args := func(args ...string) []string { return append(args, "--store", store) }
	first, _ := nodeProcess(t, "n1", filepath.Join(dir, "n1"), store)
	nodeProcess(t, "n2", filepath.Join(dir, "n2"), store)
	good(t, "", args("log", "create", "--n", "2", "--qw", "2", "--on", "n1,n2", "orders")...)
	good(t, "1\n", args("log", "append", "orders")...)

	bad(t, run(t, "", args("cluster", "retire", "n1")...), 1, "node n1 answers at ", "nothing was changed")
	first.end(syscall.SIGKILL)
	bad(t, run(t, "", args("cluster", "retire", "n1")...), 2, `node "n1" holds logs: orders`, "log replace")
	bad(t, run(t, "", args("cluster", "retire", "n7")...), 2, `node "n7" is not registered`)
	if got := good(t, "", args("nodes")...); strings.Contains(got, "retired") || strings.Contains(got, "draining") {
		t.Errorf("refused, and changed all the same:\n%s", got)
	}
	nodeProcess(t, "n3", filepath.Join(dir, "n3"), store)
	good(t, "", args("log", "replace", "--node", "n1=n3", "orders")...)
	bad(t, run(t, "", args("cluster", "status", "--check")...), 1, "1 of 3 nodes not well")
	for range 2 { // a repetition is harmless
		if got := good(t, "", args("cluster", "retire", "n1")...); got != "node n1 is retired\n" {
			t.Errorf("retire says %q", got)
		}
	}
	if got := good(t, "", args("cluster", "status", "--check")...); !strings.Contains(got, "retired") {
		t.Errorf("status does not show the retired node:\n%s", got)
	}
	bad(t, run(t, "", args("node", "--id", "n1", "--dir", filepath.Join(dir, "n1"), "--listen", "127.0.0.1:0")...), 1, "retired", "new node id")
	bad(t, run(t, "", args("log", "create", "--on", "n1", "--n", "1", "other")...), 2, `node "n1" is retired`)
}
