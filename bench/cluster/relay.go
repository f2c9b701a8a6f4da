package cluster

import (
	"container/list"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// relay is a network path to a node: it delays each datagram by a constant time in each direction, and lets connections through at once. It
// has an address of its own with the port of the node behind it, because a node tells its clients a port and no address. It gives
// each client socket one of its own towards the node, as a NAT does.
type relay struct {
	delay time.Duration
	front *net.UDPConn
	node  *net.UDPAddr
	tcp   net.Listener

	mu    sync.Mutex
	backs map[netip.AddrPort]*net.UDPConn
}

func newRelay(listen, node string, delay time.Duration) (*relay, error) {
	at, err1 := net.ResolveUDPAddr("udp4", listen)
	to, err2 := net.ResolveUDPAddr("udp4", node)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	front, err := net.ListenUDP("udp4", at)
	if err != nil {
		return nil, err
	}
	tcp, err := net.Listen("tcp4", listen)
	if err != nil {
		return nil, errors.Join(err, front.Close())
	}
	r := &relay{delay: delay, front: front, node: to, tcp: tcp, backs: map[netip.AddrPort]*net.UDPConn{}}
	go r.connections(node)
	forth := newLine(delay)
	go r.receive(front, forth, func(from netip.AddrPort) func([]byte) {
		back := r.back(from)
		if back == nil {
			return nil
		}
		return func(b []byte) { _, _ = back.Write(b) }
	})
	return r, nil
}

// back is the socket towards the node of one client.
func (r *relay) back(client netip.AddrPort) *net.UDPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.backs[client]; b != nil {
		return b
	}
	b, err := net.DialUDP("udp4", nil, r.node)
	if err != nil {
		return nil
	}
	r.backs[client] = b
	go r.receive(b, newLine(r.delay), func(netip.AddrPort) func([]byte) {
		return func(p []byte) { _, _ = r.front.WriteToUDPAddrPort(p, client) }
	})
	return b
}

// receive puts what a socket receives on a line.
func (r *relay) receive(from *net.UDPConn, l *line, to func(netip.AddrPort) func([]byte)) {
	defer l.close()
	buf := make([]byte, 1<<16)
	for {
		n, at, err := from.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // the node is down: its port answers so
			continue
		}
		if send := to(at); send != nil {
			l.put(append([]byte(nil), buf[:n]...), send)
		}
	}
}

// line holds datagrams for the delay, in order.
type line struct {
	delay time.Duration
	mu    sync.Mutex
	some  *sync.Cond
	queue list.List
	ended bool
}

type datagram struct {
	due  time.Time
	data []byte
	send func([]byte)
}

func newLine(delay time.Duration) *line {
	l := &line{delay: delay}
	l.some = sync.NewCond(&l.mu)
	go l.run()
	return l
}

func (l *line) put(data []byte, send func([]byte)) {
	l.mu.Lock()
	l.queue.PushBack(datagram{time.Now().Add(l.delay), data, send})
	l.mu.Unlock()
	l.some.Signal()
}

func (l *line) close() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.some.Signal()
}

func (l *line) run() {
	for {
		l.mu.Lock()
		for l.queue.Len() == 0 && !l.ended {
			l.some.Wait()
		}
		if l.queue.Len() == 0 {
			l.mu.Unlock()
			return
		}
		d := l.queue.Remove(l.queue.Front()).(datagram)
		l.mu.Unlock()
		if wait := time.Until(d.due); wait > 0 { // in the kernel: the runtime's timers are up to a millisecond late
			ts := syscall.NsecToTimespec(int64(wait))
			_ = syscall.Nanosleep(&ts, nil)
		}
		d.send(d.data)
	}
}

func (r *relay) connections(node string) {
	for {
		in, err := r.tcp.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			out, err := net.Dial("tcp4", node)
			if err != nil {
				in.Close()
				return
			}
			for _, c := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(c[0], c[1])
					c[0].Close()
				}()
			}
		}()
	}
}

func (r *relay) close() {
	_ = r.front.Close()
	_ = r.tcp.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.backs {
		_ = b.Close()
	}
}
