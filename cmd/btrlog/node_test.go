package main_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/btrlog/btrlog/internal/wire"
)

// nodeProcess starts 'btrlog node' and returns it with its address.
func nodeProcess(t *testing.T, id, dir, store string, args ...string) (*process, string) {
	t.Helper()
	args = append([]string{"node", "--id", id, "--dir", dir, "--store", store, "--listen", "127.0.0.1:0", "--segment-file", "32MiB"}, args...)
	p, address := nodeProcessOf(t, id, command(context.Background(), args...))
	line := p.out.String()
	for _, want := range []string{"durability ", "file system ", "directory " + dir, "shard", "incarnation ", "store " + strings.Split(store, "?")[0]} {
		if !strings.Contains(line, want) {
			t.Errorf("the ready line lacks %q: %s", want, line)
		}
	}
	return p, address
}

// nodeProcessOf starts a command that is to become a node, and waits until it serves.
func nodeProcessOf(t *testing.T, id string, cmd *exec.Cmd) (*process, string) {
	t.Helper()
	p := mustStart(t, cmd)
	line, err := p.firstLine()
	if err != nil {
		t.Fatal(err)
	}
	var address string
	if _, err := fmt.Sscanf(line, "node "+id+" ready at %s", &address); err != nil {
		t.Fatalf("the node says %q: %v", line, err)
	}
	return p, strings.TrimSuffix(address, ":")
}

func storeURL(t *testing.T) string { return "file://" + filepath.Join(t.TempDir(), "store") }

// Three node processes: data, the loss of one, the loss of the quorum with a statement of what is certain, and back.
func TestNodeProcesses(t *testing.T) {
	t.Parallel()
	dir, store := t.TempDir(), storeURL(t)
	procs := make([]*process, 3)
	addresses := make([]string, 3)
	name := func(i int) string { return fmt.Sprintf("node-%d", i) }
	launch := func(i int) {
		procs[i], addresses[i] = nodeProcess(t, name(i), filepath.Join(dir, name(i)), store, "--shards", "2", "--zone", fmt.Sprintf("z%d", i))
	}
	for i := range procs {
		launch(i)
	}
	log := func(args ...string) []string {
		return append([]string{"log", "--store", store}, args...)
	}
	hasty := func(args ...string) []string { return append(log("--timeout", "3s"), args...) }
	good(t, "", log("create", "--zones", "3", "orders")...)
	good(t, "1\n2\n", log("append", "orders")...)

	if res := procs[0].end(syscall.SIGKILL); res.signal != syscall.SIGKILL {
		t.Fatalf("the node ended with %+v", res)
	}
	good(t, "3\n", log("append", "orders")...)
	if got := good(t, "", log("cat", "--lines", "orders")...); got != "1\n2\n3\n" {
		t.Errorf("with one node down the log holds %q", got)
	}

	// A writer that loses its quorum in the middle.
	cmd := command(context.Background(), hasty("append", "orders")...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := mustStart(t, cmd)
	if _, err := in.Write([]byte("4\n")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "LSN 4 is committed", func() bool {
		return strings.Contains(run(t, "", log("info", "orders")...).out, "tail        4\n")
	})
	if res := procs[1].end(syscall.SIGKILL); res.signal != syscall.SIGKILL {
		t.Fatalf("the node ended with %+v", res)
	}
	if _, err := in.Write([]byte("5\n6\n")); err != nil {
		t.Fatal(err)
	}
	in.Close()
	bad(t, p.wait(), 1, `log "orders": unavailable`, "no answer from node-0, node-1", "committed: LSN 4; outcome unknown: LSN 5..6; nothing else was appended", "start the missing nodes")
	res := run(t, "", hasty("info", "orders")...)
	bad(t, res, 1, "unavailable", "node-0", "node-1")
	if !strings.Contains(res.out, "tail        unknown\n") || !strings.Contains(res.out, "nodes       node-0@z0, node-1@z1, node-2@z2\n") {
		t.Errorf("info without a quorum:\n%s", res.out)
	}
	// Where the log ends nobody can say; up to there the living node serves.
	bad(t, run(t, "", hasty("cat", "orders")...), 1, "unavailable", "node-0", "node-1")
	if got := good(t, "", hasty("cat", "--lines", "--to", "3", "orders")...); got != "1\n2\n3\n" {
		t.Errorf("without a quorum the first three records are %q", got)
	}
	bad(t, run(t, "lost\n", hasty("append", "orders")...), 1, "unavailable", "node-0", "node-1", "start the missing nodes")

	launch(0)
	launch(1)
	good(t, "next\n", log("append", "orders")...)
	if got := good(t, "", log("cat", "--lines", "orders")...); !strings.HasPrefix(got, "1\n2\n3\n4\n") || !strings.HasSuffix(got, "next\n") {
		t.Errorf("after the nodes came back the log holds %q", got)
	}
	for _, p := range procs {
		if res := p.end(syscall.SIGTERM); res.code != 0 || strings.Count(res.out, "\n") != 1 {
			t.Errorf("%s ended with code %d, stdout %q, stderr %q", p.name, res.code, res.out, res.err)
		}
	}
}

func TestNodeRefusals(t *testing.T) {
	t.Parallel()
	dir, store := t.TempDir(), storeURL(t)
	mine := filepath.Join(dir, "mine")
	p, address := nodeProcess(t, "mine", mine, store)
	node := func(args ...string) result { return run(t, "", append([]string{"node"}, args...)...) }

	bad(t, node("--id", "mine", "--dir", mine, "--store", store, "--listen", "127.0.0.1:0"), 1, "data directory "+mine+" is in use by another process")
	other := filepath.Join(dir, "other")
	bad(t, node("--id", "other", "--dir", other, "--store", store, "--listen", address), 1, address, "address already in use", "choose another with --listen")
	bad(t, node("--id", "mine", "--dir", filepath.Join(dir, "twin"), "--store", store, "--listen", "127.0.0.1:0"), 1, `node "mine"`, "a live process at "+address)
	if res := p.end(syscall.SIGINT); res.code != 0 || res.err != "" {
		t.Fatalf("the node ended with code %d, stderr %q", res.code, res.err)
	}
	bad(t, node("--id", "other", "--dir", mine, "--store", store, "--listen", "127.0.0.1:0"), 1, "data directory "+mine+` belongs to node "mine", not to "other"`)
	bad(t, node("--id", "mine", "--dir", mine, "--store", storeURL(t), "--listen", "127.0.0.1:0"), 1, "data directory "+mine+" belongs to cluster", "the object store to cluster")
	bad(t, node("--id", "a/b", "--dir", other, "--store", store), 2, "--id: ", `"a/b" contains '/'`)
	bad(t, node("--id", "other", "--dir", other, "--store", "file:///dev/null/store"), 1, "/dev/null/store")
	bad(t, node("--id", "other", "--dir", "/dev/null/other", "--store", store), 1, "/dev/null/other")
	bad(t, node("--id", "other", "--dir", other, "--store", store, "--listen", "0.0.0.0:0"), 2, "--advertise must say")
	bad(t, node("--id", "other", "--dir", other, "--store", store, "--gc-percent", "0"), 2, "--gc-percent is 0")
	bad(t, node("--id", "other", "--dir", other, "--store", store, "--shards", "2", "--disk-budget", "64MiB"), 2, "--disk-budget is 64MiB", "at least 384MiB are needed", "--segment-file")

	// After all the refusals both directories still serve.
	for _, id := range []string{"mine", "other"} {
		p, _ := nodeProcess(t, id, filepath.Join(dir, id), store)
		if res := p.end(syscall.SIGTERM); res.code != 0 {
			t.Errorf("node %s ended with code %d, stderr %q", id, res.code, res.err)
		}
	}
}

// Garbage on the ports of a node does not disturb it: bytes, packets of other clusters and versions, and damaged ones of its own. It counts them.
func TestNodeGarbage(t *testing.T) {
	store := storeURL(t)
	p, address := nodeProcess(t, "n", filepath.Join(t.TempDir(), "n"), store)
	good(t, "", "log", "--store", store, "create", "--n", "1", "l")
	good(t, "kept\n", "log", "--store", store, "append", "l")
	type counts struct{ BadPackets, OtherCluster, OtherVersion int }
	var s struct {
		Cluster string                      `json:"cluster_id"`
		Shards  []struct{ Counters counts } `json:"shard_status"`
	}
	nodeStatus(t, address, &s)
	cluster, err := strconv.ParseUint(s.Cluster, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.Dial("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	send := func(packet []byte) {
		t.Helper()
		if _, err := udp.Write(packet); err != nil {
			t.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for n := range 1400 {
		send([]byte(strings.Repeat("\xb7", n)))
		// The beginning of a packet, and behind it anything.
		version, to := byte(wire.Version), cluster
		switch n % 3 {
		case 1:
			version += 1 + byte(r.IntN(200))
		case 2:
			to ^= 1 + r.Uint64N(1<<60)
		}
		packet := append([]byte("BTRL"), version, 0, 0, 0)
		packet = binary.LittleEndian.AppendUint64(packet, to)
		send(append(packet, randomBytes(r, wire.HeaderBytes+n)...))
	}
	for _, body := range [][]byte{[]byte(strings.Repeat("\xb7", 4096)), []byte("POST /btrlog/v1/message HTTP/1.1\r\nHost: n\r\nContent-Length: 40\r\n\r\n" + strings.Repeat("\xff", 40)),
		[]byte("POST /btrlog/v1/message HTTP/1.1\r\nHost: n\r\nContent-Length: 99999999999\r\n\r\n")} {
		tcp, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tcp.Write(body); err != nil {
			t.Fatal(err)
		}
		tcp.Close()
	}
	if got := good(t, "x\n", "log", "--nodes", address, "append", "l"); got != "appended 1 record, LSN 2, committed\n" {
		t.Errorf("append says %q", got)
	}
	if got := good(t, "", "log", "--nodes", address, "cat", "--lines", "l"); got != "kept\nx\n" {
		t.Errorf("the log holds %q", got)
	}
	eventually(t, "all kinds of garbage are counted", func() bool {
		nodeStatus(t, address, &s)
		c := s.Shards[0].Counters
		return c.BadPackets > 0 && c.OtherCluster > 0 && c.OtherVersion > 0
	})
	if res := p.end(syscall.SIGTERM); res.code != 0 {
		t.Errorf("the node ended with code %d, stderr %q", res.code, res.err)
	}
}
