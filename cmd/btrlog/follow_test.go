package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// follower starts 'btrlog log follow' on the shared cluster.
func follower(t *testing.T, args ...string) *process {
	t.Helper()
	return mustStart(t, command(context.Background(), onShared(t, append([]string{"follow"}, args...)...)...))
}

func (p *process) prints(t *testing.T, want string) {
	t.Helper()
	eventually(t, p.name+" prints "+clip(want), func() bool { return p.out.String() == want || ended(p) })
	if got := p.out.String(); got != want {
		t.Fatalf("%s prints %q, want %q; stderr %q", p.name, clip(got), clip(want), p.errs.String())
	}
}

// A follower prints what is there and what comes, each record at once, across takeovers; Ctrl-C is its end, and no failure.
func TestFollow(t *testing.T) {
	name := newLog(t)
	good(t, "1\n2\n3\n", onShared(t, "append", name)...)
	all := follower(t, "--lines", "--from", "1", name)
	some := follower(t, "--length-prefixed", "--from", "3", name)
	all.prints(t, "1\n2\n3\n")
	some.prints(t, "\x00\x00\x00\x013")
	next := follower(t, "--lines", "--from", "4", name) // the one behind the tail
	for _, line := range []string{"4\n", "5\n"} {       // each by a writer of its own
		good(t, line, onShared(t, "append", name)...)
	}
	good(t, "", onShared(t, "fence", name)...)
	good(t, "6\n", onShared(t, "append", name)...)
	all.prints(t, "1\n2\n3\n4\n5\n6\n")
	some.prints(t, "\x00\x00\x00\x013\x00\x00\x00\x014\x00\x00\x00\x015\x00\x00\x00\x016")
	next.prints(t, "4\n5\n6\n")
	for sig, p := range map[syscall.Signal]*process{syscall.SIGINT: all, syscall.SIGTERM: some, syscall.SIGHUP: next} {
		res := p.end(sig)
		if sig == syscall.SIGHUP { // not asked for: the system's default
			if res.signal != sig {
				t.Errorf("%s after %v: %+v", p.name, sig, res)
			}
			continue
		}
		if res.code != 0 || res.err != "" {
			t.Errorf("%s after %v: code %d, stderr %q", p.name, sig, res.code, res.err)
		}
	}
}

// Without --from a follower begins behind the tail; --count ends it; --json tells the LSN and, once it is known, the epoch.
func TestFollowFromTail(t *testing.T) {
	name := newLog(t)
	good(t, "old\n", onShared(t, "append", name)...)
	w := follower(t, "--json", "--count", "2", name)
	type record struct {
		LSN, Epoch int
		Size       int `json:"size_bytes"`
		Data       []byte
	}
	// It is not told when the follower has begun, so records come until it prints one.
	appended := 1
	eventually(t, "the follower prints", func() bool {
		if !ended(w) && w.out.String() == "" {
			good(t, "new\n", onShared(t, "append", name)...)
			appended++
		}
		return w.out.String() != "" || ended(w)
	})
	good(t, "new\n", onShared(t, "append", name)...)
	res := w.wait()
	if res.code != 0 || res.err != "" {
		t.Fatalf("follow --count ended with code %d, stderr %q", res.code, res.err)
	}
	last := 1
	dec := json.NewDecoder(strings.NewReader(res.out))
	for i := range 2 {
		var got record
		if err := dec.Decode(&got); err != nil {
			t.Fatalf("%v in %q", err, res.out)
		}
		if got.LSN <= last || (i > 0 && got.LSN != last+1) || string(got.Data) != "new" || got.Size != 3 || (got.Epoch != 0 && got.Epoch != got.LSN) {
			t.Errorf("follow --json says %+v after LSN %d; each record has a writer of its own", got, last)
		}
		last = got.LSN
	}
	if dec.More() {
		t.Errorf("--count 2 prints %q", res.out)
	}
	var got record
	if err := json.Unmarshal([]byte(good(t, "", onShared(t, "cat", "--json", "--from", "2", "--to", "2", name)...)), &got); err != nil || got.Epoch != 2 {
		t.Errorf("cat --json of LSN 2 says %+v, %v; its writer had epoch 2", got, err)
	}
}

// What a follower is asked for is checked, and nothing is printed.
func TestFollowRefusals(t *testing.T) {
	name := newLog(t)
	good(t, "1\n2\n3\n", onShared(t, "append", name)...)
	good(t, "", onShared(t, "trim", "--before", "2", name)...)
	for _, c := range []struct {
		args  []string
		parts []string
	}{
		{[]string{"nope"}, []string{`log "nope": not found; `, "'btrlog log create nope' makes it"}},
		{[]string{"--from", "5", name}, []string{`ends at LSN 3; --from 5 is beyond the next one, LSN 4`}},
		{[]string{"--from", "1", name}, []string{`is trimmed up to LSN 1; --from 1 was removed; the first one left is LSN 2`}},
	} {
		res := run(t, "", onShared(t, append([]string{"follow"}, c.args...)...)...)
		bad(t, res, 1, c.parts...)
		if res.out != "" {
			t.Errorf("follow %v prints %q", c.args, res.out)
		}
	}
}

// A log that is deleted under its follower ends it, with what was printed.
func TestFollowDeleted(t *testing.T) {
	sharedNodes(t)
	name := "deleted-" + t.Name()
	good(t, "", onShared(t, "create", name)...)
	good(t, "1\n2\n", onShared(t, "append", name)...)
	p := follower(t, "--lines", "--from", "1", name)
	p.prints(t, "1\n2\n")
	good(t, "", onShared(t, "delete", "--yes", name)...)
	bad(t, p.wait(), 1, `log "`+name+`": not found`, "printed: LSN 1..2")
}

// A reader that goes away ends a follower that has nothing to print: nobody would ever tell it.
func TestFollowReaderGone(t *testing.T) {
	name := newLog(t)
	good(t, "1\n", onShared(t, "append", name)...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(context.Background(), onShared(t, "follow", "--lines", "--from", "1", name)...)
	cmd.Stdout = w
	p := mustStart(t, cmd)
	w.Close()
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil || line != "1\n" {
		t.Fatalf("the first line is %q, %v", line, err)
	}
	r.Close()
	if res := p.wait(); res.code != 0 || res.err != "" {
		t.Errorf("follow into a pipe whose reader is gone: %+v", res)
	}
}

// Ctrl-C at a follower whose output nobody takes: it does not hang, and says what is certain.
func TestFollowNobodyReads(t *testing.T) {
	name := newLog(t)
	good(t, strings.Repeat(strings.Repeat("y", 1023)+"\n", 4096), onShared(t, "append", name)...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := command(context.Background(), onShared(t, "follow", "--from", "1", name)...)
	cmd.Stdout = w
	p := mustStart(t, cmd)
	w.Close()
	if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	bad(t, p.end(syscall.SIGINT), 1, "interrupted while nobody reads the output; ", " for certain")
}

// An outage is waited out, and nothing is printed twice.
func TestFollowOutage(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dev")
	c := mustCluster(t, dir, "--nodes", "1")
	listen := c.Addresses[0]
	log := func(args ...string) []string { return append([]string{"log", "--store", c.Store}, args...) }
	good(t, "", log("create", "--n", "1", "l")...)
	good(t, "1\n", log("append", "l")...)
	p := mustStart(t, command(context.Background(), log("follow", "--lines", "--from", "1", "l")...))
	p.prints(t, "1\n")
	if res := c.end(syscall.SIGKILL); res.signal != syscall.SIGKILL {
		t.Fatalf("dev ended with %+v", res)
	}
	// From the tail nobody can begin now; from an LSN one can, and waits.
	bad(t, run(t, "", log("--timeout", "1s", "follow", "l")...), 1, "unavailable", "n1", "start the missing nodes")
	late := mustStart(t, command(context.Background(), log("--timeout", "1s", "follow", "--lines", "--from", "1", "--count", "2", "l")...))
	eventually(t, "the cluster is back", func() bool { // until the port is free again
		again, err := startCluster(t, dir, "--listen", listen)
		return err == nil && len(again.Nodes) == 1
	})
	good(t, "2\n", log("append", "l")...)
	p.prints(t, "1\n2\n")
	if res := late.wait(); res.code != 0 || res.err != "" || res.out != "1\n2\n" {
		t.Errorf("the follower that began in the outage: %+v", res)
	}
	if res := p.end(syscall.SIGINT); res.code != 0 || res.err != "" {
		t.Errorf("follow after Ctrl-C: %+v", res)
	}
}

// Fencing takes the log from its writer, tells where it ends, and leaves it to the next one.
func TestFence(t *testing.T) {
	name := newLog(t)
	if got := good(t, "", onShared(t, "fence", name)...); got != "log "+name+" is fenced since epoch 1, its tail is LSN 0; nobody had opened it before\n" {
		t.Errorf("fence of a new log says %q", got)
	}
	cmd := command(context.Background(), onShared(t, "append", name)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := mustStart(t, cmd)
	if _, err := in.Write([]byte("1\n2\n")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two records are committed", func() bool { return tail(t, name) == 2 })
	var got struct {
		Log         string
		Epoch, Tail int
		Old         int    `json:"epoch_before"`
		Before      string `json:"opener_before"`
		Repaired    *int   `json:"repaired_lsns"`
	}
	if err := json.Unmarshal([]byte(good(t, "", onShared(t, "fence", "--json", name)...)), &got); err != nil {
		t.Fatal(err)
	}
	if got.Log != name || got.Epoch != 3 || got.Tail != 2 || got.Old != 2 || got.Before == "" || got.Repaired == nil {
		t.Errorf("fence --json says %+v", got)
	}
	go func() { // until the command refuses more
		for {
			if _, err := in.Write([]byte("late\n")); err != nil {
				return
			}
		}
	}()
	bad(t, p.wait(), 1, `log "`+name+`": fenced by a newer writer`, "committed: LSN 1..2")
	if got := good(t, "3\n", onShared(t, "append", name)...); got != "appended 1 record, LSN 3, committed\n" {
		t.Errorf("the next append says %q", got)
	}
	if got := good(t, "", onShared(t, "cat", "--lines", name)...); got != "1\n2\n3\n" {
		t.Errorf("the log holds %q", got)
	}
	bad(t, run(t, "", onShared(t, "fence", "nope")...), 1, `log "nope": not found; 'btrlog log list' shows the logs`+"\n")
}
