package httpstore

import (
	"context"
	"net"
	"sync"
)

// Dialer is a net.Dialer that remembers the connections it made until they are closed, so that their owner can close them
// all at his own end. http.Transport.CloseIdleConnections does not: an HTTP/2 connection that has only just ended its last
// request, or that is being established, does not count as idle, and would stay until its idle time-out. Set the embedded
// Dialer before the first use. All methods may be called concurrently.
type Dialer struct {
	net.Dialer

	mu     sync.Mutex
	open   map[*dialed]struct{}
	closed bool
}

// dialed is one connection of a Dialer.
type dialed struct {
	net.Conn
	from *Dialer
}

// DialContext is for http.Transport. After CloseAll it returns net.ErrClosed.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	out := &dialed{c, d}
	d.mu.Lock()
	over := d.closed
	if !over {
		if d.open == nil {
			d.open = make(map[*dialed]struct{})
		}
		d.open[out] = struct{}{}
	}
	d.mu.Unlock()
	if over {
		c.Close()
		return nil, net.ErrClosed
	}
	return out, nil
}

// Close closes the connection.
func (c *dialed) Close() error {
	c.from.mu.Lock()
	delete(c.from.open, c)
	c.from.mu.Unlock()
	return c.Conn.Close()
}

// Open returns how many connections are open.
func (d *Dialer) Open() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open)
}

// CloseAll closes every connection, also those that are in use, and those that are made later as soon as they are.
func (d *Dialer) CloseAll() {
	d.mu.Lock()
	d.closed = true
	open := d.open
	d.open = nil
	d.mu.Unlock()
	for c := range open {
		c.Conn.Close() // their users learn it at their next read or write
	}
}
