package main_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is lost is named whole, is not said to be nowhere where an object is damaged, and can be left out; a repetition that would meet the same
// is not proposed.
func TestExportOfALoss(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, filepath.Join(t.TempDir(), "cluster"))
	nodes := []string{"--nodes", c.nodes()}
	cmd := func(args ...string) result { t.Helper(); return run(t, "", append(args, nodes...)...) }
	good(t, "", append([]string{"log", "create", "--segment", "64KiB", "--window", "64", "orders"}, nodes...)...)
	const records = 20000
	var lines strings.Builder
	for i := range records {
		fmt.Fprintf(&lines, "%06d\n", i+1)
	}
	good(t, lines.String(), append([]string{"log", "append", "orders"}, nodes...)...)
	eventually(t, "the nodes take all for archived", func() bool {
		for _, n := range statusOf(t, c.Store).Nodes {
			if n.Unarchived != 0 {
				return false
			}
		}
		return true
	})
	ls := archivedOf(t, cmd("archive", "ls", "--json", "orders"), 0)
	last := ls.Stretches[0].Last
	if last <= 4096 || ls.Stretches[0].First != 1 || last > records-4096 {
		t.Fatalf("%+v", ls.Stretches)
	}
	key := ls.Stretches[0].Object
	i := strings.LastIndexByte(key, '/')
	object := filepath.Join(strings.TrimPrefix(c.Store, "file://"), strings.ReplaceAll(key[:i], "/", ".d/")+".d", key[i+1:])
	whole := readFile(t, object)
	flipped := bytes.Clone(whole)
	flipped[len(whole)/2] ^= 1
	file := filepath.Join(t.TempDir(), "export")
	for what, body := range map[string][]byte{"cut short": whole[:len(whole)/2], "flipped": flipped} {
		if err := os.WriteFile(object, body, 0o600); err != nil {
			t.Fatal(err)
		}
		res := cmd("log", "export", "--output", file, "orders")
		t.Log(what)
		bad(t, res, 1, fmt.Sprintf("committed records are lost (LSNs 1 to %d)", last), "exported 0 records", "'btrlog archive verify --deep orders' shows what is missing or damaged",
			fmt.Sprintf("repeated with --resume --from %d the command goes on behind them", last+1))
		for _, wrong := range []string{"repeat the command with --resume", "no archived object does"} {
			if strings.Contains(res.err, wrong) {
				t.Errorf("%s: it says %q: %s", what, wrong, res.err)
			}
		}
		bad(t, cmd("log", "export", "--to", fmt.Sprint(last), "orders"), 1, fmt.Sprintf("(LSNs 1 to %d)", last))
		bad(t, cmd("log", "cat", "orders"), 1, "archive verify --deep orders")
		// The advice is good.
		if got := good(t, "", append([]string{"log", "export", "--output", file, "--resume", "--from", fmt.Sprint(last + 1), "orders"}, nodes...)...); !strings.Contains(got, fmt.Sprintf("holds %d records", records-last)) {
			t.Errorf("%s: %q", what, got)
		}
		if got := good(t, "", "log", "export", "--read", file); !strings.HasPrefix(got, fmt.Sprintf("%06d", last+1)) || len(got) != int(6*(records-last)) {
			t.Errorf("%s: the export has %d bytes of records: %.12q", what, len(got), got)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(object, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	// A file that is there is named, and what can be done.
	export := []string{"log", "export", "--output", file, "orders"}
	good(t, "", append(export, nodes...)...)
	bad(t, cmd(export...), 1, file+" exists, and is not replaced", "by --resume", "another file name")
	// An export that was cut, of a log that was trimmed behind that.
	full := readFile(t, file)
	if err := os.WriteFile(file, full[:1000], 0o600); err != nil {
		t.Fatal(err)
	}
	good(t, "", append([]string{"log", "trim", "--before", "1000", "orders"}, nodes...)...)
	res := cmd(append(export, "--resume")...)
	bad(t, res, 1, "the export in "+file+" ends with LSN 32", `log "orders" is trimmed up to LSN 999`, "with --from 1000 it goes on behind what was trimmed")
	if got := good(t, "", append(append(export, "--resume", "--from", "1000"), nodes...)...); !strings.Contains(got, fmt.Sprintf("holds %d records", 32+records-999)) {
		t.Errorf("%q", got)
	}
}
