package main_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// In a log node's store the tools speak of logs and labels, beside the running node and after it.
func TestLSTOfANode(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dev")
	c := mustCluster(t, dir)
	logArgs := func(args ...string) []string { return append([]string{"log", "--nodes", c.nodes()}, args...) }
	good(t, "", logArgs("create", "orders")...)
	good(t, "one\ntwo\nthree\n", logArgs("append", "orders")...)
	id := decode[struct{ ID string }](t, good(t, "", logArgs("info", "--json", "orders")...)).ID
	shards, _ := filepath.Glob(filepath.Join(dir, "*", "shard-0"))
	if len(shards) != 3 {
		t.Fatalf("shards %v", shards)
	}
	held := 0
	look := func() {
		for _, shard := range shards {
			text := good(t, "", "lst", "stat", shard)
			if !strings.Contains(text, id+"/1 ") {
				continue
			}
			held++
			out := good(t, "", "lst", "dump", "--stream", id+"/1", "--json", shard)
			first := decode[struct {
				Log      string
				Label    uint64
				Sequence uint64
				Payload  []byte
			}](t, out)
			if first.Log != id || first.Label != 1 || first.Sequence != 1 || !bytes.HasPrefix(first.Payload, []byte("one")) {
				t.Errorf("dump: %+v of %s", first, clip(out))
			}
			if text := good(t, "", "lst", "info", shard); !strings.Contains(text, "a shard of a log node") {
				t.Errorf("info:\n%s", text)
			}
			good(t, "", "lst", "verify", shard)
		}
	}
	look()
	if held < 2 {
		t.Errorf("%d nodes hold the log", held)
	}
	bad(t, run(t, "", "lst", "info", filepath.Dir(shards[0])), 1, "directory of a log node; its stores are ", shards[0])
	if res := c.end(syscall.SIGTERM); res.code != 0 {
		t.Fatalf("the cluster ended with code %d: %s", res.code, res.err)
	}
	unchanged(t, dir, look)
}
