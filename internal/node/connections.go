package node

import (
	"net"
	"sync"
	"syscall"
)

// maxConnections bounds the TCP connections of a node. Clients need one each.
const maxConnections = 4096

// connectionBound is maxConnections, or half of the process's descriptors if those are fewer: a store that cannot open its
// next file stops the shard, so idle connections must never take the last ones (P15).
func connectionBound() int {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil || r.Cur/2 > maxConnections {
		return maxConnections
	}
	return max(1, int(r.Cur/2))
}

// boundListener closes connections above its bound at once, so that the peer learns it and the queue of the kernel stays
// empty.
type boundListener struct {
	net.Listener
	slots chan struct{}
}

func boundConnections(l net.Listener, n int) net.Listener {
	return &boundListener{l, make(chan struct{}, n)}
}

func (b *boundListener) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case b.slots <- struct{}{}:
			return &boundConn{Conn: c, release: func() { <-b.slots }}, nil
		default:
			c.Close()
		}
	}
}

type boundConn struct {
	net.Conn
	once    sync.Once
	release func()
}

// Close gives the slot back, once.
func (c *boundConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.release)
	return err
}
