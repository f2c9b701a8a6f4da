package node

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

// TestNewcomerLooksForTheArchive: a node that takes another's place holds nothing of a log that is archived. It must learn
// archived-through from the store, and soon: an open that hears only newcomers would wait for records that no node has (P6).
func TestNewcomerLooksForTheArchive(t *testing.T) {
	x := startTrio(t, time.Hour) // rank 0 alone writes, and what the newcomer learns it learns by its own look
	w := newWriter(31)
	x.begin(w)
	x.segments(w, 5, all)
	eventually(t, "the segments to be in the store", func() bool { return x.store.puts.Load() == 5 })

	cfg := testConfig(t, "d", x.store)
	cfg.FlushGrace = time.Hour
	d := startNode(t, cfg)
	c := dial(t, d)
	c.ack(w.activate(c.inc, 2, 21), protocol.StatusOK)
	eventually(t, "the newcomer to know what is archived", func() bool {
		l, _ := logAt(d, 31)
		return l.ArchivedThrough == 20
	})
	if l, _ := logAt(d, 31); l.Highest != 0 {
		t.Fatalf("the newcomer holds records up to %d: this test proves nothing", l.Highest)
	}
}

// TestOlderCopyIsRefused: a directory that was copied, and put back after the node had started again, lacks what was
// acknowledged since; its incarnation would count all the same (P4, O4).
func TestOlderCopyIsRefused(t *testing.T) {
	store := newStore()
	cfg := testConfig(t, "a", store)
	stopNode(t, startNode(t, cfg))
	backup := t.TempDir() + "/copy"
	if err := os.CopyFS(backup, os.DirFS(cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	stopNode(t, startNode(t, cfg)) // the copy is the directory of before this start
	stopNode(t, startNode(t, cfg))
	if err := os.RemoveAll(cfg.Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(backup, cfg.Dir); err != nil {
		t.Fatal(err)
	}
	n, err := Start(t.Context(), cfg)
	if err == nil {
		n.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "older copy") {
		t.Fatalf("an older copy started: %v", err)
	}
	// Wiped, it joins as a blank node.
	if err := os.RemoveAll(cfg.Dir); err != nil {
		t.Fatal(err)
	}
	stopNode(t, startNode(t, cfg))
}

// TestCrashBetweenStartAndItsRecord: a start that noted its nonce and died before it was registered is no older copy.
func TestCrashBetweenStartAndItsRecord(t *testing.T) {
	store := newStore()
	cfg := testConfig(t, "a", store)
	n := startNode(t, cfg)
	recorded := n.dir.id.Start
	stopNode(t, n)
	dir, err := openDirectory(cfg.Dir, cfg.Node)
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.setStart("a start that died", recorded); err != nil {
		t.Fatal(err)
	}
	if err := dir.close(); err != nil {
		t.Fatal(err)
	}
	stopNode(t, startNode(t, cfg))
}

// TestIdleConnectionsAreBounded: silent TCP connections must not take the descriptors that the stores need (P15).
func TestIdleConnectionsAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := boundConnections(l, 4)
	defer b.Close()
	served := make(chan net.Conn, 16)
	go func() {
		for {
			c, err := b.Accept()
			if err != nil {
				close(served)
				return
			}
			served <- c
		}
	}()
	var held []net.Conn
	for range 4 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, <-served)
	}
	extra, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	extra.SetReadDeadline(time.Now().Add(waitFor))
	if n, err := extra.Read(make([]byte, 1)); err == nil || n != 0 {
		t.Fatalf("a connection above the bound was served: %d bytes, %v", n, err)
	}
	if len(served) != 0 {
		t.Fatal("a connection above the bound was accepted")
	}
	held[0].Close()
	held[0].Close() // twice counts once
	again, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	(<-served).Close()
}
