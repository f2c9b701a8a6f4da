package main_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A node whose directory is damaged, cut off or not whole names the file and ends, however often it is started; it changes nothing, and the log
// lives on the other nodes.
func TestDamagedNode(t *testing.T) {
	t.Parallel()
	dir, store := t.TempDir(), storeURL(t)
	procs := make([]*process, 3)
	for i := range procs {
		name := fmt.Sprintf("n%d", i+1)
		procs[i], _ = nodeProcess(t, name, filepath.Join(dir, name), store)
		if i == 0 {
			blockArchive(t, store)
		}
	}
	log := func(args ...string) []string { return append([]string{"log", "--store", store}, args...) }
	good(t, "", log("create", "--flush-age", "-1s", "l")...)
	var in strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&in, "record %d %s\n", i, strings.Repeat("x", 100))
	}
	cmd := command(context.Background(), log("append", "l")...)
	pipe, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	w := mustStart(t, cmd)
	if _, err := io.WriteString(pipe, in.String()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is committed", func() bool { return strings.Contains(good(t, "", log("info", "l")...), "tail        1000\n") })
	// Something must stand behind what is damaged below: damage at the very end is a write that a power cut tore, and is cut off. The first
	// node may have taken all the others at once, late.
	mine := filepath.Join(dir, "n1")
	segment := filepath.Join(mine, "shard-0", "00000001.lst")
	has := func(text string) bool { return bytes.Contains(readFile(t, segment), []byte(text)) }
	eventually(t, "the first node has the 1000 records", func() bool { return has("record 999") })
	in.WriteString("the last record\n")
	if _, err := io.WriteString(pipe, "the last record\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first node has the last record", func() bool { return has("the last record") })
	w.end(syscall.SIGKILL)
	procs[0].end(syscall.SIGKILL)

	shard, identity := filepath.Join(mine, "shard-0"), filepath.Join(mine, "node.json")
	whole := readFile(t, segment)
	at := bytes.Index(whole, []byte("record 500"))
	if at < 0 {
		t.Fatalf("%s does not hold the records", segment)
	}
	who := readFile(t, identity)
	verify := "'btrlog lst verify " + shard + "' finds all damage"
	for _, c := range []struct {
		what   string
		damage func() error
		parts  []string
	}{
		{"a bit is flipped", func() error {
			flipped := bytes.Clone(whole)
			flipped[at] ^= 1
			return os.WriteFile(segment, flipped, 0o600)
		}, []string{"damaged data in " + segment + " at offset ", verify}},
		{"the file is cut off", func() error { return os.Truncate(segment, int64(at)) }, []string{segment + " at offset ", "file is cut off", verify}},
		{"the file is empty", func() error { return os.Truncate(segment, 0) }, []string{shard + " is missing or empty", "wipe " + mine}},
		{"the file is gone", func() error { return os.Remove(segment) }, []string{shard + " is missing or empty", "wipe " + mine}},
		{"the identity is damaged", func() error { return os.WriteFile(identity, []byte("{"), 0o600) }, []string{identity, "damaged"}},
		{"the identity is gone", func() error { return os.Remove(identity) }, []string{mine + " holds shard-0 but no node.json", "wipe it"}},
	} {
		if err := c.damage(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			res := run(t, "", "node", "--id", "n1", "--dir", mine, "--store", store, "--listen", "127.0.0.1:0", "--segment-file", "32MiB")
			t.Log(c.what)
			bad(t, res, 1, c.parts...)
			if res.out != "" {
				t.Errorf("%s: standard output has %q", c.what, res.out)
			}
		}
		if got := good(t, "", log("cat", "--lines", "l")...); got != in.String() {
			t.Errorf("%s: the log holds %d bytes, want %d", c.what, len(got), in.Len())
		}
		for path, text := range map[string][]byte{segment: whole, identity: who} {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	// As it was, it serves: the refusals have changed nothing. Without one of the others it is needed.
	procs[0], _ = nodeProcess(t, "n1", mine, store)
	procs[1].end(syscall.SIGKILL)
	good(t, "next\n", log("append", "l")...)
	if got := good(t, "", log("cat", "--lines", "l")...); got != in.String()+"next\n" {
		t.Errorf("with the node back the log holds %d bytes, want %d", len(got), in.Len()+5)
	}
}

// A record of a log that is damaged in the object store costs that log until it is restored, and no other.
func TestDamagedMetadata(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, filepath.Join(t.TempDir(), "dev"), "--nodes", "1")
	log := func(args ...string) []string { return append([]string{"log", "--store", c.Store}, args...) }
	for _, name := range []string{"hurt", "well"} {
		good(t, "", log("create", "--n", "1", name)...)
		good(t, name+"\n", log("append", name)...)
	}
	file := filepath.Join(c.Dir, "store", "logs.d", "hurt.json")
	whole := readFile(t, file)
	for what, text := range map[string][]byte{
		"flipped": append(bytes.Clone(whole[:len(whole)-9]), append([]byte{whole[len(whole)-9] ^ 1}, whole[len(whole)-8:]...)...),
		"cut":     whole[:len(whole)/2],
		"empty":   {},
	} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"info", "hurt"}, {"cat", "hurt"}, {"append", "hurt"}, {"fence", "hurt"}, {"create", "--n", "1", "hurt"}, {"delete", "--yes", "hurt"}} {
			t.Log(what, args)
			bad(t, run(t, "lost\n", log(args...)...), 1, file, "restore the file from a copy")
		}
		res := run(t, "", log("list")...)
		bad(t, res, 1, `log "hurt"`, file)
		if !strings.Contains(res.out, "\nwell ") {
			t.Errorf("%s: the other log is not listed:\n%s", what, res.out)
		}
		res = run(t, "", "cluster", "status", "--store", c.Store, "--check")
		bad(t, res, 1, "1 log cannot be read")
		if !strings.Contains(res.out, file) || !strings.Contains(res.out, "2 logs, none under-protected") {
			t.Errorf("%s: cluster status:\n%s", what, res.out)
		}
		if got := good(t, "", log("cat", "well")...); got != "well" {
			t.Errorf("%s: the other log holds %q", what, got)
		}
	}
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	good(t, "again\n", log("append", "hurt")...)
	if got := good(t, "", log("cat", "--lines", "hurt")...); got != "hurt\nagain\n" {
		t.Errorf("the log whose record was restored holds %q", got)
	}
}

// A full disk, be it the budget or the file system: what is not taken is not lost without a word, everything else works, and when there is room
// the node goes on by itself.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	t.Run("budget", func(t *testing.T) {
		fullDisk(t, t.TempDir(), "--disk-budget", "60MiB")
	})
	if os.Geteuid() == 0 { // who may mount has a real one; the budget is the same path through the engine
		t.Run("file system", func(t *testing.T) {
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
				t.Logf("no file system can be mounted (%v); the budget stands for it", err)
				fullDisk(t, dir, "--disk-budget", "60MiB")
				return
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(dir, 0); err != nil { // runs behind the end of the node
					t.Error(err)
				}
			})
			fullDisk(t, dir)
			// A second node finds no room to begin.
			bad(t, run(t, "", "node", "--id", "late", "--dir", filepath.Join(dir, "late"), "--store", storeURL(t), "--listen", "127.0.0.1:0"), 1,
				filepath.Join(dir, "late"), "no space left on device", "make room in the file system of --dir")
		})
	}
}

func fullDisk(t *testing.T, dir string, args ...string) {
	store := storeURL(t)
	p, _ := nodeProcess(t, "n", filepath.Join(dir, "n"), store, append(args, "--segment-file", "20MiB", "--buffered")...)
	blockArchive(t, store)
	log := func(args ...string) []string { return append([]string{"log", "--store", store}, args...) }
	good(t, "", log("create", "--n", "1", "l")...)
	const chunk = 1 << 20
	var in bytes.Buffer
	for i := range 70 {
		in.Write(bytes.Repeat([]byte{byte('0' + i)}, chunk))
	}
	committed, tries := 0, 0
	refused := false
	eventually(t, "the disk is full", func() bool {
		res := run(t, in.String(), log("--timeout", "2s", "append", "--chunk", "1MiB", "l")...)
		bad(t, res, 1, `log "l": unavailable`, "; outcome unknown: LSN ", "nothing else was appended")
		if said := regexp.MustCompile(`; committed: LSN 1\.\.(\d+);`).FindStringSubmatch(res.err); len(said) == 2 && tries == 0 {
			fmt.Sscan(said[1], &committed)
		}
		tries++
		refused = refused || strings.Contains(res.err, "n: no-space: its disk budget is used up, or its disk is full")
		if strings.Contains(res.err, ": no-space: ") && (strings.Contains(res.err, "start the missing nodes") || !strings.Contains(res.err, "whose disk is full")) {
			t.Errorf("the advice does not fit a full disk: %q", res.err)
		}
		return refused || t.Failed()
	})
	status := run(t, "", "cluster", "status", "--store", store, "--check")
	if bad(t, status, 1, "1 of 1 node not well"); !strings.Contains(status.out, "appends are refused") {
		t.Errorf("the status of a node that has refused an append: %s", status.out)
	}
	if committed < 20 {
		t.Fatalf("the first append says %d records are committed", committed)
	}
	// A full node takes part in a takeover, and serves.
	good(t, "", log("fence", "l")...)
	got := good(t, "", log("cat", "l")...)
	if want := in.String()[:committed*chunk]; !strings.HasPrefix(got, want) {
		t.Errorf("of %d committed chunks %d bytes are there, or others", committed, len(got))
	}
	// The archive takes what is there, and there is room.
	if err := os.Remove(filepath.Join(strings.TrimPrefix(store, "file://"), "arch.d")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node takes records again", func() bool {
		return run(t, "done\n", log("--timeout", "1s", "append", "l")...).code == 0
	})
	after := good(t, "", log("cat", "l")...)
	if len(after) < len(got) || after[:len(got)] != got || strings.Trim(after[len(got):], "done") != "" || !strings.HasSuffix(after, "done") {
		t.Errorf("with room the log has %d bytes, %d of them from before", len(after), len(got))
	}
	if res := p.end(syscall.SIGTERM); res.code != 0 {
		t.Errorf("the node ended with code %d, stderr %q", res.code, res.err)
	}
}
