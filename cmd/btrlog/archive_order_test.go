package main_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Segments are archived out of order when the store refuses one: what the nodes still have is not missing, and reads so. Without any node
// nobody can tell, and that is a fault.
func TestArchiveVerifyOutOfOrder(t *testing.T) {
	t.Parallel()
	s := newStoreServer(t)
	first := "/0000000000000001-" // of the log's first segment
	s.forbidden.Store(&first)
	dir := t.TempDir()
	procs := make([]*process, 3)
	for i := range procs {
		name := fmt.Sprintf("n%d", i+1)
		procs[i], _ = nodeProcess(t, name, filepath.Join(dir, name), s.url)
	}
	good(t, "", "log", "create", "--store", s.url, "--segment", "64KiB", "orders")
	good(t, strings.Repeat(strings.Repeat("x", 999)+"\n", 300), "log", "append", "--store", s.url, "orders")
	var ls archived
	eventually(t, "two segments behind the first one are archived", func() bool {
		ls = archivedOf(t, run(t, "", "archive", "ls", "--store", s.url, "--json", "orders"), 0)
		return len(ls.Stretches) >= 2
	})
	hole := ls.Stretches[0].First - 1
	if hole == 0 {
		t.Fatalf("the first segment is archived: %+v", ls)
	}
	verify := func(args ...string) result {
		return run(t, "", append([]string{"archive", "verify", "--timeout", "5s", "--store", s.url}, args...)...)
	}
	for _, down := range []int{0, 1, 2} {
		if down > 0 {
			procs[down].end(syscall.SIGKILL)
		}
		res := verify("--json", "orders")
		v := archivedOf(t, res, 0)
		if !v.Sound || len(v.Missing)+len(v.Unknown) != 0 || len(v.Pending) == 0 || v.Pending[0] != (lsnPair{1, hole}) {
			t.Errorf("with %d nodes down: %+v", down, v)
		}
		if want := fmt.Sprintf(`"not_archived_yet":[{"from":1,"to":%d}`, hole); !strings.Contains(res.out, want) {
			t.Errorf("the JSON lacks %s: %s", want, res.out)
		}
		if res := verify(); res.code != 0 || !strings.Contains(res.out, fmt.Sprintf("sound; not archived yet: LSN 1..%d", hole)) {
			t.Errorf("with %d nodes down: %+v", down, res)
		}
	}
	procs[0].end(syscall.SIGKILL)
	v := archivedOf(t, verify("--json", "orders"), 1)
	if v.Sound || len(v.Missing)+len(v.Pending) != 0 || len(v.Unknown) == 0 || v.Unknown[0] != (lsnPair{1, hole}) || !slices.Equal(v.Silent, []string{"n1 does not answer", "n2 does not answer", "n3 does not answer"}) {
		t.Errorf("without nodes: %+v", v)
	}
	res := verify()
	bad(t, res, 1, "1 log of 1 with records that are missing or not archived yet, which cannot be told apart", "run the command again when the nodes answer")
	if !strings.Contains(res.out, "n1 does not answer") {
		t.Errorf("without nodes:\n%s", res.out)
	}
}

// A log whose objects cannot be listed, or whose record cannot be read, does not hide what is found of the others.
func TestArchiveGoesOnBehindAFailure(t *testing.T) {
	t.Parallel()
	s := newStoreServer(t)
	nodeProcess(t, "n", filepath.Join(t.TempDir(), "n"), s.url)
	ids := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		good(t, "", "log", "create", "--store", s.url, "--n", "1", name)
		var info struct{ ID string }
		if err := json.Unmarshal([]byte(good(t, "", "log", "info", "--store", s.url, "--json", name)), &info); err != nil {
			t.Fatal(err)
		}
		ids[name] = info.ID
	}
	part := "arch/" + ids["b"] + "/"
	s.forbidden.Store(&part)
	for _, verb := range []string{"ls", "verify"} {
		done := map[string]string{"ls": "listed", "verify": "checked"}[verb]
		cmd := func(args ...string) result {
			return run(t, "", append([]string{"archive", verb, "--store", s.url, "--timeout", "5s"}, args...)...)
		}
		res := cmd()
		bad(t, res, 1, "1 log of 3 could not be "+done, "log b: ", "the object store refuses it")
		for _, want := range []string{"\na ", "\nb ", "\nc ", "not " + done + ": log b: "} {
			if !strings.Contains(res.out, want) {
				t.Errorf("archive %s: the output lacks %q:\n%s", verb, want, res.out)
			}
		}
		res = cmd("--json")
		if lines := strings.Split(res.out, "\n"); res.code != 1 || len(lines) != 4 || !strings.Contains(lines[1], `"error":"log b: `) || !strings.Contains(lines[2], `"log":"c"`) {
			t.Errorf("archive %s --json: %+v", verb, res)
		}
		res = cmd("b")
		bad(t, res, 1, "log b: ", "the object store refuses it")
		if res.out != "" {
			t.Errorf("archive %s b: %q", verb, res.out)
		}
		bad(t, cmd("nosuch"), 1, `info of log "nosuch": not found; 'btrlog log list' shows the logs`)
		bad(t, cmd("no such"), 2)
	}
	res := run(t, "", "archive", "verify", "--store", s.url, "nosuch", "b", "c")
	bad(t, res, 1, "2 logs of 3 could not be checked; the first: ", "nosuch")
	if !strings.Contains(res.out, "\nc ") {
		t.Errorf("%s", res.out)
	}
	bad(t, run(t, "", "log", "export", "--store", s.url, "nosuch"), 1, `not found; 'btrlog log list' shows the logs, 'btrlog log create nosuch' makes it`)
}
