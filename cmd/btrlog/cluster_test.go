package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// clusterStatus is what 'cluster status --json' prints.
type clusterStatus struct {
	Cluster string `json:"cluster_id"`
	Nodes   []struct {
		Name, Zone, Address, State, Problem string
		Answers                             bool
		Shards, Logs                        int
		Disk                                int64 `json:"disk_bytes"`
		Budget                              int64 `json:"disk_budget_bytes"`
		Unarchived                          int64 `json:"unarchived_bytes"`
	}
	Logs  int
	Under []struct {
		Log       string
		Copies, N int
		Qw        int
		Answering int
		AtRisk    *int64 `json:"at_risk_bytes"`
		Nodes     []struct{ Node, Why string }
	} `json:"under_protected"`
	AtRisk int64 `json:"at_risk_bytes"`
}

func statusOf(t *testing.T, store string) (s clusterStatus) {
	t.Helper()
	out := good(t, "", "cluster", "status", "--store", store, "--json")
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return s
}

// under is the list of under-protected logs in words: name, copies, bytes at risk, and why.
func (s *clusterStatus) under() string {
	var b strings.Builder
	for _, l := range s.Under {
		risk := "?"
		if l.AtRisk != nil {
			risk = fmt.Sprint(*l.AtRisk)
		}
		fmt.Fprintf(&b, "%s %d/%d %s:", l.Log, l.Copies, l.N, risk)
		for _, n := range l.Nodes {
			fmt.Fprintf(&b, " %s %s;", n.Node, n.Why)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// The operator is told which logs are under-protected, and how many bytes are at risk (O5): with a node down, with one that hangs, with one that
// came back without what it missed, with another disk, and without a quorum. The list names no log that is well.
func TestClusterStatus(t *testing.T) {
	t.Parallel()
	dir, store := t.TempDir(), storeURL(t)
	procs := make([]*process, 3)
	launch := func(i int) {
		name := fmt.Sprintf("n%d", i+1)
		procs[i], _ = nodeProcess(t, name, filepath.Join(dir, name), store, "--disk-budget", "1GiB", "--zone", fmt.Sprintf("z%d", i))
	}
	launch(0)
	blockArchive(t, store)
	launch(1)
	launch(2)
	log := func(args ...string) []string { return append([]string{"log", "--store", store}, args...) }
	check := func(args ...string) result {
		return run(t, "", append([]string{"cluster", "status", "--store", store, "--check"}, args...)...)
	}
	good(t, "", log("create", "--flush-age", "-1s", "all")...)
	good(t, "", log("create", "--flush-age", "-1s", "--n", "1", "--on", "n1", "one")...)
	good(t, "", log("create", "fresh")...)
	// Writers that stay: at a close the records go to the archive.
	live := func(name, lines string) (*process, io.Writer) {
		t.Helper()
		cmd := command(context.Background(), log("append", name)...)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		p := mustStart(t, cmd)
		if _, err := io.WriteString(in, lines); err != nil {
			t.Fatal(err)
		}
		return p, in
	}
	committed := func(name string, lsn int) {
		t.Helper()
		eventually(t, fmt.Sprintf("LSN %d of %s is committed", lsn, name), func() bool {
			return strings.Contains(good(t, "", log("info", name)...), fmt.Sprintf("tail        %d\n", lsn))
		})
	}
	writer, in := live("all", "1234\n5678\n")
	live("one", strings.Repeat("x", 96)+"\n")
	committed("all", 2)
	committed("one", 1)
	const perRecord = 4 // what a segment has beside the bytes of a record
	risk := int64(2 * (4 + perRecord))

	var s clusterStatus
	eventually(t, "no node lacks a record", func() bool { s = statusOf(t, store); return len(s.Under) == 0 })
	if s.Cluster == "" || len(s.Nodes) != 3 || s.Logs != 3 || len(s.Under) != 0 || s.AtRisk != 0 {
		t.Errorf("a healthy cluster: %+v", s)
	}
	for i, n := range s.Nodes {
		logs, unarchived := 1, risk
		if i == 0 {
			logs, unarchived = 2, risk+96+perRecord
		}
		if n.Name != fmt.Sprintf("n%d", i+1) || n.Zone != fmt.Sprintf("z%d", i) || !n.Answers || n.Problem != "" || n.State != "active" || n.Shards != 1 || n.Logs != logs ||
			n.Disk < 32<<20 || n.Budget != 1<<30 || n.Unarchived != unarchived {
			t.Errorf("node %d: %+v, want %d logs with %d bytes", i, n, logs, unarchived)
		}
	}
	if res := check(); res.code != 0 || res.err != "" || !strings.HasSuffix(res.out, "\n3 logs, none under-protected\n") || !strings.HasPrefix(res.out, "NODE ") {
		t.Errorf("--check of a healthy cluster: code %d, stderr %q\n%s", res.code, res.err, res.out)
	}

	// A node that hangs is named, and does not hang the command.
	if err := procs[2].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	res := check("--timeout", "1s")
	bad(t, res, 1, "1 of 3 nodes not well; 1 log under-protected, 16 B at risk")
	if !strings.Contains(res.out, "\nn3: no answer from ") || !strings.Contains(res.out, "all  2/3     2       16 B     n3 does not answer\n") {
		t.Errorf("with a node that hangs:\n%s", res.out)
	}
	if err := procs[2].cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node answers again", func() bool { return check().code == 0 })

	// One that is down; without --check that is no failure of the command.
	procs[2].end(syscall.SIGKILL)
	if got, want := ptr(statusOf(t, store)).under(), fmt.Sprintf("all 2/3 %d: n3 does not answer;\n", risk); got != want {
		t.Errorf("with a node down: %q, want %q", got, want)
	}
	if _, err := io.WriteString(in, "9\n"); err != nil {
		t.Fatal(err)
	}
	committed("all", 3)
	risk += 1 + perRecord
	// One that is back lacks what it missed, when the writer is gone that would send it again.
	writer.end(syscall.SIGKILL)
	launch(2)
	if got, want := ptr(statusOf(t, store)).under(), fmt.Sprintf("all 2/3 %d: n3 lacks LSN 3;\n", risk); got != want {
		t.Errorf("with a node that came back: %q, want %q", got, want)
	}
	// A takeover leaves it so: the record has its quorum, and its object will close the hole.
	good(t, "", log("fence", "all")...)
	if got, want := ptr(statusOf(t, store)).under(), fmt.Sprintf("all 2/3 %d: n3 lacks LSN 3;\n", risk); got != want {
		t.Errorf("after a takeover: %q, want %q", got, want)
	}
	live("all", "abcd\n")
	committed("all", 4)
	risk += 4 + perRecord

	// Another disk under the old name.
	procs[2].end(syscall.SIGKILL)
	if err := os.RemoveAll(filepath.Join(dir, "n3")); err != nil {
		t.Fatal(err)
	}
	launch(2)
	if got, want := ptr(statusOf(t, store)).under(), fmt.Sprintf("all 2/3 %d: n3 has another disk than the log knows;\n", risk); got != want {
		t.Errorf("with a replaced disk: %q, want %q", got, want)
	}
	// And no quorum: the worst comes first.
	procs[0].end(syscall.SIGKILL)
	got := ptr(statusOf(t, store)).under()
	if want := fmt.Sprintf("one 0/1 ?: n1 does not answer;\nall 1/3 %d: n1 does not answer; n3 has another disk than the log knows;\n", risk); got != want {
		t.Errorf("without a quorum: %q, want %q", got, want)
	}
	eventually(t, "a failure of the archive is told", func() bool { return strings.Contains(check().out, "n2: archiving failed ") })
	res = check()
	bad(t, res, 1, "1 of 3 nodes not well; 2 logs under-protected, 29 B at risk")
	if !strings.Contains(res.out, "one  0/1     1       unknown  cannot be opened, 1 node must answer; n1 does not answer\n") ||
		!strings.Contains(res.out, "all  1/3     2       29 B     cannot be opened, 2 nodes must answer; n1 ") {
		t.Errorf("without a quorum:\n%s", res.out)
	}
	bad(t, run(t, "", "cluster", "status", "--nodes", closedPort(t), "--timeout", "2s"), 1, "connect: unavailable", "connection refused")
}

// blockArchive puts a file in the place of the archive's directory: metadata works and nothing can be archived, so that what is at risk stays the
// same however slow the test is.
func blockArchive(t *testing.T, store string) {
	t.Helper()
	writeFile(t, filepath.Join(strings.TrimPrefix(store, "file://"), "arch.d"), "")
}

func ptr[T any](v T) *T { return &v }
