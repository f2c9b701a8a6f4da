package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// epoch is that of a log, which an open raises.
func epoch(t *testing.T, name string) int {
	t.Helper()
	var d struct{ Epoch int }
	if err := json.Unmarshal([]byte(good(t, "", onShared(t, "info", "--json", name)...)), &d); err != nil {
		t.Fatal(err)
	}
	return d.Epoch
}

// An input that has no record, or is broken before its first, takes the log from nobody: the writer that has it goes on.
func TestAppendOfNothingFencesNobody(t *testing.T) {
	name := newLog(t)
	cmd := command(context.Background(), onShared(t, "append", name)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	live := mustStart(t, cmd)
	if _, err := in.Write([]byte("first\n")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first record is committed", func() bool { return tail(t, name) == 1 })

	if got := good(t, "", onShared(t, "append", name)...); got != "appended 0 records\n" {
		t.Errorf("append of nothing says %q", got)
	}
	if got := good(t, "", onShared(t, "append", "--json", name)...); strings.Contains(got, "epoch") || !strings.Contains(got, `"records":0`) {
		t.Errorf("append --json of nothing says %q", got)
	}
	for _, broken := range []string{"\x00\x00", "\x00\x00\x00\x09abc", "\xff\xff\xff\xff"} {
		bad(t, run(t, broken, onShared(t, "append", "--length-prefixed", name)...), 1, "record 1 of the input: ", "; nothing was appended")
	}
	if e := epoch(t, name); e != 1 {
		t.Errorf("the log's epoch is %d after appends of nothing, want the live writer's 1", e)
	}
	if _, err := in.Write([]byte("second\n")); err != nil {
		t.Fatal(err)
	}
	in.Close()
	if res := live.wait(); res.code != 0 || res.out != "appended 2 records, LSN 1..2, committed\n" {
		t.Errorf("the live writer: code %d, stdout %q, stderr %q", res.code, res.out, res.err)
	}
}

// A node that is not there is no log that is not there.
func TestCreateOnUnknownNode(t *testing.T) {
	sharedNodes(t)
	res := run(t, "", onShared(t, "create", "--on", "n1,n2,n9", "on-n9")...)
	bad(t, res, 2, `node "n9" is not registered`, "n1 n2 n3")
	if strings.Contains(res.err, "btrlog log ") && strings.Contains(res.err, "makes it") {
		t.Errorf("the message proposes to create a log: %q", res.err)
	}
	bad(t, run(t, "", onShared(t, "info", "on-n9")...), 1, "not found")
}

// What a log survives is said when it is made, not learned when it is lost.
func TestCreateSaysWhatItSurvives(t *testing.T) {
	for args, want := range map[string]string{
		"":              "2 of 3: keeps all acknowledged records when 1 disk is lost; takes more while 1 node is down\n",
		"--qw 1":        "1 of 3: one lost disk may lose acknowledged records; takes more while 2 nodes are down\n",
		"--qw 3":        "3 of 3: keeps all acknowledged records when 2 disks are lost at once; takes none while a node is down\n",
		"--n 2":         "2 of 2: keeps all acknowledged records when 1 disk is lost; takes none while a node is down\n",
		"--n 1":         "1 of 1: one lost disk may lose acknowledged records; takes none while a node is down\n",
		"--on n1,n2,n3": "2 of 3: keeps all acknowledged records when 1 disk is lost; takes more while 1 node is down\n",
	} {
		name := "survives-" + strings.NewReplacer(" ", "", "--", "", ",", "").Replace(args) + "-x"
		out := good(t, "", onShared(t, append(append([]string{"create"}, strings.Fields(args)...), name)...)...)
		deleteAfter(t, name)
		if _, second, _ := strings.Cut(out, "\n"); second != want {
			t.Errorf("create %s says %q, want %q in its second line", args, out, want)
		}
	}
}

func TestDelete(t *testing.T) {
	name := newLog(t)
	good(t, "1\n2\n", onShared(t, "append", name)...)
	bad(t, run(t, "y\n", onShared(t, "delete", name)...), 2, "was not deleted", "--yes")
	if got := good(t, "", onShared(t, "cat", "--lines", name)...); got != "1\n2\n" {
		t.Errorf("after a delete without --yes the log holds %q", got)
	}
	if got := good(t, "", onShared(t, "delete", "--yes", name)...); got != "deleted log "+name+"\n" {
		t.Errorf("delete says %q", got)
	}
	bad(t, run(t, "", onShared(t, "info", name)...), 1, "not found")
	good(t, "", onShared(t, "create", name)...) // another log of the same name
	if got := good(t, "", onShared(t, "cat", name)...); got != "" {
		t.Errorf("the new log of a deleted one's name holds %q", got)
	}
}

func TestTrim(t *testing.T) {
	name := newLog(t)
	good(t, "1\n2\n3\n4\n5\n", onShared(t, "append", name)...)
	for _, c := range []struct{ before, want string }{{"1", "nothing"}, {"2", "LSN 1"}, {"3", "LSN 1..2"}, {"2", "LSN 1..2"}, {"6", "LSN 1..5"}} {
		if got := good(t, "", onShared(t, "trim", "--before", c.before, name)...); got != "log "+name+" is trimmed: "+c.want+"\n" {
			t.Errorf("trim --before %s says %q", c.before, got)
		}
		if c.before == "3" {
			if got := good(t, "", onShared(t, "cat", "--lines", name)...); got != "3\n4\n5\n" {
				t.Errorf("the trimmed log holds %q", got)
			}
		}
	}
	if got := good(t, "6\n", onShared(t, "append", name)...); got != "appended 1 record, LSN 6, committed\n" {
		t.Errorf("append to a log that was trimmed whole says %q", got)
	}
}

// A log moves to another node; a disk is replaced under its node's name, is seen to be another, and is adopted.
func TestReplace(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dev")
	c := mustCluster(t, dir, "--nodes", "4")
	log := func(args ...string) []string { return append([]string{"log", "--nodes", c.nodes()}, args...) }
	type listed struct{ Name, Zone, UDP, HTTP, State, Incarnation string }
	nodes := func() (all []listed) {
		for line := range strings.Lines(good(t, "", "nodes", "--nodes", c.nodes(), "--json")) {
			var n listed
			if err := json.Unmarshal([]byte(line), &n); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			all = append(all, n)
		}
		return all
	}
	before := nodes()
	if len(before) != 4 {
		t.Fatalf("nodes --json lists %+v", before)
	}
	text := good(t, "", "nodes", "--nodes", c.nodes())
	for i, n := range before {
		if want := c.Nodes[i]; n.Name != want.Node || n.UDP != want.Address || n.State != "active" || n.Incarnation != want.Incarnation {
			t.Errorf("nodes --json says %+v of %+v", n, want)
		}
		if !strings.Contains(text, n.UDP) || !strings.Contains(text, n.Incarnation) {
			t.Errorf("nodes lacks %s:\n%s", n.Name, text)
		}
	}
	if !strings.HasPrefix(text, "NAME ") || strings.Count(text, "\n") != 5 {
		t.Errorf("nodes:\n%s", text)
	}

	good(t, "", log("create", "--on", "n1,n2,n3", "orders")...)
	good(t, "", log("create", "fresh")...)
	bad(t, run(t, "", log("replace", "--node", "n1=n4", "fresh")...), 1, "never opened")
	good(t, "1\n2\n", log("append", "orders")...)
	if got := good(t, "", log("info", "orders")...); !strings.Contains(got, "nodes       n1, n2, n3\n") || !strings.Contains(got, "disks       those that the log knows\n") {
		t.Errorf("info:\n%s", got)
	}
	if got := good(t, "", log("replace", "--node", "n3=n4", "orders")...); !strings.HasPrefix(got, "log orders is on n1, n2, n4 since epoch ") {
		t.Errorf("replace says %q", got)
	}
	bad(t, run(t, "", log("replace", "--node", "n3=n1", "orders")...), 2, `"n3" is not one of the log's`)

	if res := c.end(syscall.SIGTERM); res.code != 0 {
		t.Fatalf("dev ended with code %d, stderr %q", res.code, res.err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "n4")); err != nil {
		t.Fatal(err)
	}
	c = mustCluster(t, dir, "--nodes", "4")
	after := nodes()
	if len(after) != 4 || after[3].Incarnation == before[3].Incarnation || after[0].Incarnation != before[0].Incarnation {
		t.Fatalf("after the loss of a disk: %+v, before %+v", after, before)
	}
	want := fmt.Sprintf("disks       n4 is incarnation %s, the log knows %s; 'btrlog log replace orders --node n4=n4' adopts it\n", after[3].Incarnation, before[3].Incarnation)
	if got := good(t, "", log("info", "orders")...); !strings.Contains(got, want) {
		t.Errorf("info of a log with a replaced disk lacks %q:\n%s", want, got)
	}
	var d struct {
		Nodes []struct {
			Name       string
			Registered string `json:"registered_incarnation"`
			Current    *bool
		}
	}
	if err := json.Unmarshal([]byte(good(t, "", log("info", "--json", "orders")...)), &d); err != nil {
		t.Fatal(err)
	}
	for i, n := range d.Nodes {
		if n.Current == nil || *n.Current != (n.Name != "n4") || n.Registered == "" {
			t.Errorf("info --json says of node %d: %+v", i, n)
		}
	}
	good(t, "", log("replace", "orders", "--node", "n4=n4")...)
	if got := good(t, "", log("info", "orders")...); !strings.Contains(got, "disks       those that the log knows\n") {
		t.Errorf("info after the disk was adopted:\n%s", got)
	}
	good(t, "3\n", log("append", "orders")...)
	if got := good(t, "", log("cat", "--lines", "orders")...); got != "1\n2\n3\n" {
		t.Errorf("after two replacements the log holds %q", got)
	}
}

func TestHelpCommand(t *testing.T) {
	for _, args := range []string{"log append", "log", "", "nodes", "lst verify"} {
		fields := strings.Fields(args)
		asked := good(t, "", append([]string{"help"}, fields...)...)
		flag := good(t, "", append(fields, "--help")...)
		if asked != flag || !strings.Contains(asked, "Usage:") {
			t.Errorf("help %s prints\n%s\nand --help\n%s", args, clip(asked), clip(flag))
		}
	}
	line := good(t, "", "--version")
	if !strings.HasPrefix(line, "btrlog ") || strings.Count(line, "\n") != 1 {
		t.Errorf("--version prints %q", line)
	}
	if text := good(t, "", "version"); !strings.Contains(strings.Join(strings.Fields(text), " "), strings.TrimSpace(line)) {
		t.Errorf("--version prints %q, version\n%s", line, text)
	}
}
