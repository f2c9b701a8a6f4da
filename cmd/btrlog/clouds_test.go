package main_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/btrlog/btrlog/objstore"
)

// On a server that somebody else wrote: three node processes, a bucket that is there and empty. Each test runs if the variable names
// a store; make test-s3, test-gcs and test-azure start servers and set them.
func TestNodesOnS3(t *testing.T)    { nodesOn(t, "BTRLOG_S3_NODES_URL") }
func TestNodesOnGCS(t *testing.T)   { nodesOn(t, "BTRLOG_GCS_NODES_URL") }
func TestNodesOnAzure(t *testing.T) { nodesOn(t, "BTRLOG_AZURE_NODES_URL") }

// nodesOn runs the cluster on the store that the variable names: metadata and archive go through it, a node dies, a second writer takes
// over, and every byte comes back through the objects.
func nodesOn(t *testing.T, variable string) {
	store := os.Getenv(variable)
	if store == "" {
		t.Logf("%s is not set: nodes run on a local directory in all other tests", variable)
		return
	}
	s, err := objstore.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	procs, addrs := make([]*process, 3), make([]string, 3)
	for i := range procs {
		id := fmt.Sprintf("n%d", i)
		procs[i], addrs[i] = nodeProcess(t, id, filepath.Join(t.TempDir(), id), store)
	}
	log := func(args ...string) []string { return append([]string{"log", "--store", store}, args...) }
	good(t, "", log("create", "--segment", "1MiB", "wal")...)

	// Random bytes: nothing of a wrong place can look right. The seed is fixed.
	data := make([]byte, 12<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(data)
	half := string(data[:6<<20])
	good(t, half, log("append", "--chunk", "16KiB", "wal")...)
	if res := procs[0].end(syscall.SIGKILL); res.signal != syscall.SIGKILL {
		t.Fatalf("the node ended with %+v", res)
	}
	good(t, string(data[6<<20:]), log("append", "--chunk", "16KiB", "wal")...)
	eventually(t, "ten segments are in the store", func() bool {
		page, err := s.List(t.Context(), "arch/", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Objects) >= 10
	})
	if got := good(t, "", log("cat", "wal")...); !bytes.Equal([]byte(got), data) {
		t.Errorf("%d bytes came back, %d were written", len(got), len(data))
	}
	// A client without credentials of the store reads what is archived through a node.
	if got := good(t, "", "log", "--nodes", addrs[1], "cat", "wal"); !bytes.Equal([]byte(got), data) {
		t.Errorf("%d bytes came back through a node, %d were written", len(got), len(data))
	}
	good(t, "", log("trim", "--before", "300", "wal")...)
	if got := good(t, "", log("cat", "wal")...); !bytes.Equal([]byte(got), data[299*16<<10:]) {
		t.Errorf("behind the trim point are %d bytes, want %d", len(got), len(data)-299*16<<10)
	}
	if out := good(t, "", log("info", "wal")...); !strings.Contains(out, "tail        768\n") {
		t.Errorf("info: %s", out)
	}
	for _, p := range procs[1:] {
		if res := p.end(syscall.SIGTERM); res.code != 0 {
			t.Errorf("%s ended with code %d, stderr %q", p.name, res.code, res.err)
		}
	}
}
