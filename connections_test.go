package btrlog_test

import (
	"net"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
)

// Close leaves no TCP connection behind: not those of the message path, and not those over which the nodes serve the store.
func TestCloseEndsEveryConnection(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client(func(cfg *btrlog.Config) { cfg.Store, cfg.Nodes = nil, []string{c.address("n1")} })
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	lsn, err := w.Append(t.Context(), make([]byte, 1<<20)) // over HTTP to all nodes
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Sync(t.Context(), lsn); err != nil {
		t.Fatal(err)
	}
	if n := client.Stats().Connections; n < 4 {
		t.Fatalf("%d connections, want one to each node and one to the store at least", n)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if n := client.Stats().Connections; n != 0 {
		t.Errorf("%d connections after Close", n)
	}
}

// A node that accepts and then says nothing, which a failed Connect must leave too.
func TestFailedConnectEndsItsConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan error, 8)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				buf := make([]byte, 4096)
				for {
					conn.SetReadDeadline(time.Now().Add(20 * time.Second))
					if _, err := conn.Read(buf); err != nil {
						conn.Close()
						ended <- err
						return
					}
				}
			}()
		}
	}()
	if _, err := btrlog.Connect(t.Context(), btrlog.Config{Nodes: []string{l.Addr().String()}, Timeout: 200 * time.Millisecond, Logger: testLog(t)}); err == nil {
		t.Fatal("connected to a node that says nothing")
	}
	if err, ok := (<-ended).(net.Error); ok && err.Timeout() {
		t.Fatalf("the connection is open although Connect has failed: %v", err)
	}
}
