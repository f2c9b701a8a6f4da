package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Two of three disks are lost. A log cannot be opened, and says so with what to do; it is recovered only when the command says that a loss is
// accepted and names what is gone; and what is lost is printed, shown, and told to those who read.
func TestRecover(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dev")
	c := mustCluster(t, dir, "--nodes", "3")
	log := func(args ...string) []string { return append([]string{"log", "--nodes", c.nodes()}, args...) }
	brief := func(args ...string) []string { return append(log("--timeout", "1s"), args...) } // what cannot succeed
	good(t, "", log("create", "orders")...)
	good(t, "", log("create", "fresh")...)
	bad(t, run(t, "", log("recover", "fresh")...), 1, "never opened")
	bad(t, run(t, "", log("recover", "none")...), 1, "not found", "btrlog log list")
	good(t, "1\n2\n3\n", log("append", "orders")...)
	if got := good(t, "", log("recover", "orders")...); !strings.HasPrefix(got, "log orders is on n1, n2, n3 since epoch 2; 0 records copied, the next LSN is 4\n") ||
		!strings.HasSuffix(got, "\nnothing is lost\n") {
		t.Errorf("recover of a sound log says %q", got)
	}
	if res := c.end(syscall.SIGTERM); res.code != 0 {
		t.Fatalf("dev ended with code %d, stderr %q", res.code, res.err)
	}
	for _, n := range []string{"n2", "n3"} {
		if err := os.RemoveAll(filepath.Join(dir, n)); err != nil {
			t.Fatal(err)
		}
	}
	c = mustCluster(t, dir, "--nodes", "3")

	bad(t, run(t, "4\n", brief("append", "orders")...), 1, "unavailable", "n2", "n3", "btrlog log recover")
	bad(t, run(t, "", brief("recover", "orders")...), 1, "unavailable", "bring back the disks", "n2, n3", "log recover --accept-loss --gone n2,n3 orders")
	bad(t, run(t, "", log("recover", "--gone", "n2", "orders")...), 2, "--accept-loss")
	bad(t, run(t, "", log("recover", "--wait", "1s", "orders")...), 2, "--accept-loss")
	bad(t, run(t, "", log("recover", "--accept-loss", "--wait", "0s", "orders")...), 2, "--wait")
	bad(t, run(t, "", log("recover", "--accept-loss", "--gone", "n2,n2", "orders")...), 2, "twice")
	bad(t, run(t, "", log("recover", "--accept-loss", "--gone", "n7", "orders")...), 2, `"n7"`, "not one of the log's")
	bad(t, run(t, "", log("recover", "--accept-loss", "--gone", "n1", "orders")...), 2, "nothing takes its place", "--node n1=OTHER")
	bad(t, run(t, "", brief("recover", "--accept-loss", "--gone", "n2", "orders")...), 1, "nothing is given up while n3 may answer", "--gone")
	if res := run(t, "", brief("info", "orders")...); res.code != 1 || strings.Contains(res.out, "\nlost ") { // the tail is unknown
		t.Errorf("something is lost already: code %d\n%s", res.code, res.out)
	}

	got := good(t, "", log("recover", "--accept-loss", "--gone", "n2,n3", "--wait", "300ms", "orders")...)
	if lines := strings.Split(got, "\n"); len(lines) != 3 || !strings.HasSuffix(lines[0], " copied, the next LSN is 1000000000004") ||
		lines[1] != "skipped: LSN 4..1000000000003; records may have been acknowledged there, none was found" {
		t.Errorf("recover says %q", got)
	}
	if got := good(t, "", log("info", "orders")...); !strings.Contains(got, "\nlost        LSN 4..1000000000003: skipped, records may have been acknowledged there; accepted at epoch ") {
		t.Errorf("info:\n%s", got)
	}
	var d struct {
		Tail uint64
		Lost []struct {
			From, To, Epoch uint64
			At              string
			Skipped         bool
		}
	}
	if err := json.Unmarshal([]byte(good(t, "", log("info", "--json", "orders")...)), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Lost) != 1 || d.Lost[0].From != 4 || d.Lost[0].To != 1000000000003 || !d.Lost[0].Skipped || d.Lost[0].Epoch == 0 || d.Lost[0].At == "" || d.Tail != 1000000000003 {
		t.Errorf("info --json: %+v", d)
	}
	if got := good(t, "4\n", log("append", "orders")...); got != "appended 1 record, LSN 1000000000004, committed\n" {
		t.Errorf("append says %q", got)
	}
	res := run(t, "", log("cat", "--lines", "orders")...)
	bad(t, result{code: res.code, err: res.err}, 1, "committed records are lost", "4 to 1000000000003", "printed: LSN 1..3", "--from 1000000000004")
	if res.out != "1\n2\n3\n" {
		t.Errorf("cat prints %q in front of what is lost", res.out)
	}
	if got := good(t, "", log("cat", "--lines", "--from", "1000000000004", "orders")...); got != "4\n" {
		t.Errorf("cat prints %q behind what is lost", got)
	}
	// It is a log like others again: nothing is lost twice.
	if err := json.Unmarshal([]byte(good(t, "", log("recover", "--json", "--accept-loss", "orders")...)), &d); err != nil || len(d.Lost) != 0 || d.Tail != 1000000000004 {
		t.Errorf("recover of a recovered log: %+v, %v", d, err)
	}
	if got := good(t, "", log("trim", "--before", "1000000000004", "orders")...); !strings.Contains(got, "LSN 1..1000000000003") {
		t.Errorf("trim says %q", got)
	}
	if got := good(t, "", log("info", "orders")...); strings.Contains(got, "\nlost ") {
		t.Errorf("info after the trim:\n%s", got)
	}
	if got := good(t, "", log("cat", "--lines", "orders")...); got != "4\n" {
		t.Errorf("cat prints %q after the trim", got)
	}
}
