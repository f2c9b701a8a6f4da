package main

import (
	"cmp"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// link is the path between a store and its clients: each way takes half of the round trip, and what goes one way shares one bandwidth, whatever
// the number of connections. It stands in user space, because the kernel of the machine may lack netem. Nothing is lost or
// reordered; a connection has windowBytes on its way at most, as a TCP connection of Linux has unless told otherwise.
type link struct{ down, up *wire }

// newLink returns a link of a round trip, and a bandwidth each way in bytes a second; 0 is unbounded.
func newLink(rtt time.Duration, rate float64) *link {
	return &link{newWire(rtt/2, rate), newWire(rtt/2, rate)}
}

const (
	windowBytes = 4 << 20
	// pieceBytes is what takes its turn on a wire as a whole.
	pieceBytes = 32 << 10
	// aheadOf is how far the wire hands out in advance; what arrives later than that has not lost its turn.
	aheadOf = 5 * time.Millisecond
)

// wire is one direction. Connections take turns on it, piece by piece. When a piece has left is reckoned from when it was written and
// when the one before had left, not from when this process got a processor: on a loaded machine the link is no slower for that.
type wire struct {
	delay time.Duration
	rate  float64
	mu    sync.Mutex
	moved *sync.Cond
	turns []*flow // that have something to send
	free  time.Time
}

func newWire(delay time.Duration, rate float64) *wire {
	w := &wire{delay: delay, rate: rate}
	w.moved = sync.NewCond(&w.mu)
	go w.run()
	return w
}

// piece is some bytes on their way.
type piece struct {
	b    []byte
	when time.Time // it was written; then: it arrives
}

// flow is one connection's share of a wire.
type flow struct {
	w       *wire
	waiting []piece // to be sent
	going   []piece // sent, not arrived
	bytes   int     // of both
	closed  bool    // nothing more will be written
	broken  bool    // nobody takes what arrives
}

// push writes to the flow and waits while its window is full; false: the flow is closed.
func (f *flow) push(b []byte) bool {
	w := f.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(b) > 0 {
		for f.bytes >= windowBytes && !f.closed && !f.broken {
			w.moved.Wait()
		}
		if f.closed || f.broken {
			return false
		}
		n := min(len(b), pieceBytes)
		if last := len(f.waiting) - 1; last >= 0 && len(f.waiting[last].b)+n <= pieceBytes {
			f.waiting[last].b = append(f.waiting[last].b, b[:n]...)
		} else {
			p := piece{make([]byte, n, pieceBytes), time.Now()}
			copy(p.b, b)
			if f.waiting = append(f.waiting, p); len(f.waiting) == 1 {
				w.turns = append(w.turns, f)
			}
		}
		f.bytes += n
		b = b[n:]
		w.moved.Broadcast()
	}
	return true
}

// close says that nothing more is written.
func (f *flow) close() {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.closed = true
	f.w.moved.Broadcast()
}

// run sends what is written, connections by turns.
func (w *wire) run() {
	for {
		w.mu.Lock()
		for len(w.turns) == 0 {
			w.moved.Wait()
		}
		f := w.turns[0]
		w.turns = w.turns[1:]
		p := f.waiting[0]
		if f.waiting = f.waiting[1:]; len(f.waiting) > 0 {
			w.turns = append(w.turns, f)
		}
		if w.free.Before(p.when) {
			w.free = p.when
		}
		if w.rate > 0 {
			w.free = w.free.Add(time.Duration(float64(len(p.b)) / w.rate * float64(time.Second)))
		}
		p.when = w.free.Add(w.delay)
		f.going = append(f.going, p)
		w.moved.Broadcast()
		ahead := time.Until(w.free) - aheadOf
		w.mu.Unlock()
		wait(ahead)
	}
}

// deliver hands out what arrives, in order and each at its time, until the flow is closed and empty, or take says no.
func (f *flow) deliver(take func([]byte) bool) {
	w := f.w
	for {
		w.mu.Lock()
		for len(f.going) == 0 {
			if f.closed && len(f.waiting) == 0 {
				w.mu.Unlock()
				return
			}
			w.moved.Wait()
		}
		p := f.going[0]
		f.going = f.going[1:]
		w.mu.Unlock()
		wait(time.Until(p.when))
		ok := take(p.b)
		w.mu.Lock()
		f.bytes -= len(p.b)
		f.broken = !ok
		w.moved.Broadcast()
		w.mu.Unlock()
		if !ok {
			return
		}
	}
}

func wait(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}

// shaped is a listener whose connections go through the link; without one they are as they are.
type shaped struct {
	net.Listener
	link *link
}

func (s shaped) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil || s.link == nil {
		return c, err
	}
	x := &linked{Conn: c, out: &flow{w: s.link.down}, from: &flow{w: s.link.up}}
	x.moved = sync.NewCond(&x.mu)
	go x.listen()
	go func() {
		x.from.deliver(x.arrived)
		x.end(io.EOF)
	}()
	go func() {
		x.out.deliver(func(b []byte) bool { _, err := c.Write(b); return err == nil })
		x.end(net.ErrClosed)
		c.Close()
	}()
	return x, nil
}

// linked is one connection. Reads are what came over the link from the client; writes go over it to the client.
type linked struct {
	net.Conn
	out, from *flow

	mu      sync.Mutex
	moved   *sync.Cond // any of the below has changed
	in      []byte     // has arrived and was not read
	ended   error      // of the client's side
	expired bool       // reads are to end at once
}

// listen puts what the client sends onto the wire.
func (x *linked) listen() {
	b := make([]byte, pieceBytes)
	for {
		n, err := x.Conn.Read(b)
		if n > 0 && !x.from.push(b[:n]) || err != nil {
			break
		}
	}
	x.from.close()
}

// arrived takes what has come over the link.
func (x *linked) arrived(b []byte) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.in) > windowBytes && x.ended == nil {
		x.moved.Wait()
	}
	x.in = append(x.in, b...)
	x.moved.Broadcast()
	return x.ended == nil
}

func (x *linked) end(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = cmp.Or(x.ended, err)
	x.moved.Broadcast()
}

func (x *linked) Read(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.in) == 0 && x.ended == nil && !x.expired {
		x.moved.Wait()
	}
	switch {
	case x.expired:
		return 0, os.ErrDeadlineExceeded
	case len(x.in) == 0:
		return 0, x.ended
	}
	n := copy(b, x.in)
	if x.in = x.in[n:]; len(x.in) == 0 {
		x.in = nil
	}
	x.moved.Broadcast()
	return n, nil
}

func (x *linked) Write(b []byte) (int, error) {
	if !x.out.push(b) {
		return 0, net.ErrClosed
	}
	return len(b), nil
}

// Close ends both directions; what is on its way to the client arrives first.
func (x *linked) Close() error {
	x.out.close()
	x.end(net.ErrClosed)
	return nil
}

// SetReadDeadline knows two: none, and one that is over, by which net/http ends a read.
func (x *linked) SetReadDeadline(t time.Time) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.expired = !t.IsZero() && !t.After(time.Now())
	x.moved.Broadcast()
	return nil
}

// SetDeadline is SetReadDeadline.
func (x *linked) SetDeadline(t time.Time) error { return x.SetReadDeadline(t) }

// SetWriteDeadline does nothing: whoever waits for the link waits on.
func (x *linked) SetWriteDeadline(time.Time) error { return nil }
