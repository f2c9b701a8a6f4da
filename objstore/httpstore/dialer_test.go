package httpstore

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/memory"
)

// A connection that a request still uses does not count as idle. Close must end it all the same, or it stays for the
// transport's idle time-out.
func TestCloseEndsConnectionsInUse(t *testing.T) {
	back := memory.New(memory.Options{})
	if _, err := back.Put(t.Context(), "a", make([]byte, 8<<20), nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(Handler(back, "", HandlerOptions{}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	counted := &countedListener{Listener: server.Listener}
	server.Listener = counted
	server.Start()
	defer server.Close()
	s, err := New([]string{server.URL}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := s.Get(t.Context(), "a", objstore.Whole)
	if err != nil {
		t.Fatal(err)
	}
	if n := counted.open.Load(); n == 0 {
		t.Fatal("a body is being read over no connection")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for counted.open.Load() != 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open after Close", counted.open.Load())
		}
		<-tick.C
	}
	if _, err := io.Copy(io.Discard, r); err == nil {
		t.Error("the body was read to its end over a closed connection")
	}
	r.Close()
	if n := s.(*Store).dialer.Open(); n != 0 {
		t.Errorf("the dialer still knows %d connections", n)
	}
}

type countedListener struct {
	net.Listener
	open atomic.Int64
}

func (l *countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	return &countedConn{Conn: c, from: l}, nil
}

type countedConn struct {
	net.Conn
	from   *countedListener
	closed atomic.Bool
}

func (c *countedConn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.from.open.Add(-1)
	}
	return c.Conn.Close()
}

// A dial that ends after CloseAll must not leave its connection behind.
func TestDialerAfterCloseAll(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var d Dialer
	c, err := d.DialContext(context.Background(), "tcp", l.Addr().String())
	if err != nil || d.Open() != 1 {
		t.Fatalf("%d connections, %v", d.Open(), err)
	}
	d.CloseAll()
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("a connection works after CloseAll")
	}
	if _, err := d.DialContext(context.Background(), "tcp", l.Addr().String()); err == nil || d.Open() != 0 {
		t.Errorf("a dial after CloseAll: %v, %d connections", err, d.Open())
	}
}
