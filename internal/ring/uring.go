//go:build linux && (amd64 || arm64)

package ring

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Uring is a Loop on io_uring: datagrams come by a multishot receive into provided buffers, and what is queued goes to the kernel
// with the call that waits. So a datagram that is answered costs one call, and one that comes meanwhile none. Wake, NewBatch,
// SendBatch and LocalAddr are Socket's, plain system calls: they are for other threads than the owner, and the kernel lets only one
// thread use the ring.
//
// The thread that first calls Wait, Recv, Flush, Submit or Completed is the owner for good.
type Uring struct {
	*Socket
	q       *queues
	bufs    *buffers
	enabled bool
	owner   atomic.Int64 // its thread, once enabled

	head     syscall.Msghdr // of the receive: how much room a buffer has for the address
	armed    bool           // the receive is under way
	watching bool           // so is the poll for Wake
	event    bool           // Wake's counter is up
	ready    []arrival
	first    int      // the first of ready that was not handed out
	lent     []uint16 // buffers of the packets that were
	handle   func(*cqe)

	writes  []*Write // under way, by place
	free    []uint32 // places
	waiting int      // writes under way
	dead    error    // the ring cannot be used
}

var _ Loop = (*Uring)(nil)

// arrival is a datagram in a provided buffer.
type arrival struct {
	id  uint16
	res int32
}

// What a completion is of; writes are writeUser and their place.
const (
	recvUser = 1 + iota
	wakeUser
	sendUser
	cancelUser
	writeUser = 1 << 32
)

const (
	fixedSocket = 0 // places of registered files
	fixedWake   = 1

	recvOutBytes  = 16 // struct io_uring_recvmsg_out
	uringEntries  = 256
	writesAtOnce  = 128
	closePatience = time.Second
)

// ListenUring is Listen with a loop on io_uring. The error says why there is none.
func ListenUring(addr netip.AddrPort, cfg Config) (*Uring, error) {
	s, err := Listen(addr, cfg)
	if err != nil {
		return nil, err
	}
	u := &Uring{Socket: s}
	if err := u.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("ring: %w", err), u.Close())
	}
	return u, nil
}

func (u *Uring) open() error {
	s := u.Socket
	n := 2
	for n < 2*len(s.packets) { // one batch is with the owner, one with the kernel
		n *= 2
	}
	var err error
	if u.q, err = newQueues(uringEntries, uint32(max(4*uringEntries, 2*n))); err != nil {
		return err
	}
	files := [2]int32{fixedSocket: int32(s.fd), fixedWake: int32(s.wakefd)}
	if err := u.q.register(registerFiles, unsafe.Pointer(&files), len(files)); err != nil {
		return err
	}
	u.head.Namelen = syscall.SizeofSockaddrInet6
	if u.bufs, err = newBuffers(u.q, n, recvOutBytes+syscall.SizeofSockaddrInet6+int(s.riovs[0].Len)); err != nil {
		return err
	}
	s.rbufs, s.rhdrs, s.riovs, s.rnames = nil, nil, nil, nil // of the plain receive
	u.ready, u.lent = make([]arrival, 0, n), make([]uint16, 0, n)
	u.writes, u.free = make([]*Write, writesAtOnce), make([]uint32, writesAtOnce)
	for i := range u.free {
		u.free[i] = uint32(i)
	}
	u.handle = u.complete // once: a method value is an allocation
	return nil
}

// begin makes the calling thread the owner.
func (u *Uring) begin() error {
	if u.dead != nil {
		return u.dead
	}
	if !u.enabled {
		if err := u.q.register(registerEnableRings, nil, 0); err != nil {
			u.dead = err
			return err
		}
		u.enabled = true
		u.owner.Store(int64(syscall.Gettid()))
	}
	return nil
}

// cancel ends the receive and the poll. Only the owner can, and only so does the kernel take a ring apart at once.
func (u *Uring) cancel() {
	u.out.reset()
	u.arm() // what is under way is not armed again
	if e := u.q.next(); e != nil {
		e.opcode, e.opFlags, e.user = opAsyncCancel, cancelAll|cancelAny, cancelUser
	}
	for end := time.Now().Add(closePatience); (u.armed || u.watching || u.waiting > 0) && time.Now().Before(end); {
		if e := u.q.enter(10 * time.Millisecond); e != 0 && e != syscall.EINTR && e != syscall.ETIME {
			return // Close waits for what is left
		}
		u.q.reap(u.handle)
	}
	// The files would keep the port until the kernel has taken the ring apart.
	_ = u.q.register(unregisterFiles, nil, 0)
}

// arm starts what is not under way any more.
func (u *Uring) arm() {
	// Without a buffer that is free the receive would only end again.
	if !u.armed && len(u.ready)-u.first+len(u.lent) < len(u.bufs.ring) {
		if e := u.q.next(); e != nil {
			e.opcode, e.flags, e.ioprio, e.fd = opRecvmsg, sqeFixedFile|sqeBufferSelect, recvMultishot, fixedSocket
			e.addr, e.length, e.user = uint64(uintptr(unsafe.Pointer(&u.head))), 1, recvUser
			u.armed = true
		}
	}
	if !u.watching {
		if e := u.q.next(); e != nil {
			e.opcode, e.flags, e.fd, e.length, e.opFlags, e.user = opPollAdd, sqeFixedFile, fixedWake, pollMultishot, pollin, wakeUser
			u.watching = true
		}
	}
}

// push queues the datagrams of the batch. Their memory is the kernel's until enter, which sends at once or not at all.
func (u *Uring) push() {
	b := u.out
	if b.skip > 0 {
		u.fail(b.skip, syscall.EAFNOSUPPORT)
		b.skip = 0
	}
	for i := range b.n {
		e := u.q.next()
		if e == nil { // cannot be: there are more entries than datagrams in a batch and all were submitted
			u.sendDropped.Add(uint64(b.n - i))
			break
		}
		h := &b.hdrs[i].hdr
		e.opcode, e.flags, e.fd, e.addr, e.length, e.opFlags, e.user = opSendmsg, sqeFixedFile|sqeSkipSuccess, fixedSocket,
			uint64(uintptr(unsafe.Pointer(h))), 1, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, sendUser
		var size uint64
		for j := range h.Iovlen {
			size += b.iovs[2*i+int(j)].Len
		}
		u.sent.Add(1)
		u.sentBytes.Add(size)
	}
}

// call enters the kernel: it sends what is queued, submits what is armed, and waits if timeout is positive.
func (u *Uring) call(timeout time.Duration) error {
	u.arm()
	sends := u.out.n > 0 || u.out.skip > 0
	if sends {
		u.push()
	}
	u.enters.Add(1)
	u.submissions.Add(uint64(u.q.pending()))
	if timeout > 0 {
		u.sleeps.Add(1)
	}
	e := u.q.enter(timeout)
	for u.q.pending() > 0 && (e == 0 || e == syscall.EINTR || e == syscall.EAGAIN || e == syscall.EBUSY || e == syscall.ETIME) {
		u.q.reap(u.handle)
		u.enters.Add(1)
		e = u.q.enter(0) // borrowed memory must not stay with the ring
	}
	if sends {
		u.out.reset()
	}
	u.q.reap(u.handle)
	switch e {
	case 0, syscall.EINTR, syscall.ETIME, syscall.EAGAIN, syscall.EBUSY:
		return nil
	}
	u.dead = os.NewSyscallError("io_uring_enter", e)
	return u.dead
}

// complete notes one completion.
func (u *Uring) complete(c *cqe) {
	switch {
	case c.user == recvUser:
		if c.flags&cqeMore == 0 {
			u.armed = false // out of buffers, or an error that the kernel reports once
		}
		switch {
		case c.flags&cqeBuffer != 0:
			if len(u.ready) == cap(u.ready) { // there are as many as buffers, so that some were handed out
				u.ready, u.first = u.ready[:copy(u.ready, u.ready[u.first:])], 0
			}
			u.ready = append(u.ready, arrival{uint16(c.flags >> 16), c.res})
		case c.res < 0 && c.res != -int32(syscall.ENOBUFS) && c.res != -int32(syscall.ECANCELED):
			u.recvErrors.Add(1)
		}
	case c.user == wakeUser:
		u.watching = c.flags&cqeMore != 0
		u.event = true
	case c.user == sendUser: // failed, else it is silent
		u.sent.Add(^uint64(0))
		switch e := syscall.Errno(-c.res); e {
		case syscall.EAGAIN, syscall.ENOBUFS:
			u.sendDropped.Add(1)
		default:
			u.fail(1, e)
		}
	case c.user >= writeUser:
		i := uint32(c.user)
		w := u.writes[i]
		u.writes[i] = nil
		u.free = append(u.free, i)
		u.waiting--
		w.Err = finishWrite(w, int(c.res))
		u.done = append(u.done, w)
	}
}

// finishWrite makes a write whole that the kernel cut short or put off.
func finishWrite(w *Write, n int) error {
	switch {
	case n == len(w.Buf):
		return nil
	case n < 0 && n != -int(syscall.EINTR) && n != -int(syscall.EAGAIN):
		return fmt.Errorf("write of %d bytes at offset %d: %w", len(w.Buf), w.Off, syscall.Errno(-n))
	}
	n = max(n, 0)
	return Pwrite(w.FD, w.Buf[n:], w.Off+int64(n))
}

// Wait implements Loop.
func (u *Uring) Wait(timeout time.Duration) (Event, error) {
	if !u.Socket.enter() {
		return 0, ErrClosed
	}
	defer u.leave()
	if err := u.begin(); err != nil {
		return 0, err
	}
	u.recycle()
	if u.pendingEvents() != 0 {
		timeout = 0
	}
	if timeout > 0 && u.spin > 0 {
		if err := u.call(0); err != nil { // what is queued does not wait for the end of it
			return 0, err
		}
		for began := time.Now(); u.pendingEvents() == 0 && !u.q.ready() && time.Since(began) < u.spin; {
		}
		if u.pendingEvents() != 0 || u.q.ready() {
			timeout = 0
		}
	}
	if err := u.call(timeout); err != nil {
		return 0, err
	}
	ev := u.pendingEvents()
	if u.event {
		u.drainWake()
		u.event = false
	}
	if u.users.Load() < 0 {
		return ev, ErrClosed
	}
	return ev, nil
}

func (u *Uring) pendingEvents() (ev Event) {
	if u.first < len(u.ready) {
		ev |= Readable
	}
	if u.event {
		ev |= Woken
	}
	if len(u.done) > 0 {
		ev |= Done
	}
	return ev
}

// recycle gives the buffers of packets that were handed out back to the kernel.
func (u *Uring) recycle() {
	if len(u.lent) == 0 {
		return
	}
	for _, id := range u.lent {
		u.bufs.give(id)
	}
	u.bufs.publish()
	u.lent = u.lent[:0]
}

// Recv implements Loop.
func (u *Uring) Recv() ([]Packet, error) {
	if !u.Socket.enter() {
		return nil, ErrClosed
	}
	defer u.leave()
	if err := u.begin(); err != nil {
		return nil, err
	}
	u.recycle()
	if u.first == len(u.ready) {
		u.ready, u.first = u.ready[:0], 0
	}
	// Without a call if nothing is to be sent and the kernel has nothing. It brings some 30 at a time.
	for i := 0; i < 4 && len(u.ready)-u.first < len(u.packets) && (u.out.n > 0 || !u.armed || !u.watching || u.q.ready()); i++ {
		was := len(u.ready) - u.first
		if err := u.call(0); err != nil {
			return nil, err
		}
		if len(u.ready)-u.first == was {
			break
		}
	}
	kept, total := 0, uint64(0)
	for u.first < len(u.ready) && kept < len(u.packets) {
		a := u.ready[u.first]
		u.first++
		u.lent = append(u.lent, a.id)
		p, ok := u.parse(u.bufs.at(a.id), int(a.res))
		if !ok {
			u.truncated.Add(1)
			continue
		}
		u.packets[kept] = p
		kept++
		total += uint64(len(p.Data))
	}
	u.received.Add(uint64(kept))
	u.receivedBytes.Add(total)
	return u.packets[:kept], nil
}

// parse takes a provided buffer apart: what the kernel says of the datagram, its sender's address, and the datagram.
func (u *Uring) parse(buf []byte, n int) (Packet, bool) {
	const data = recvOutBytes + syscall.SizeofSockaddrInet6
	if n < data {
		return Packet{}, false
	}
	out := (*struct{ name, control, payload, flags uint32 })(unsafe.Pointer(&buf[0]))
	from, ok := getName((*syscall.RawSockaddrInet6)(unsafe.Pointer(&buf[recvOutBytes])))
	if !ok || out.flags&syscall.MSG_TRUNC != 0 || int(out.payload) > n-data {
		return Packet{}, false
	}
	end := data + int(out.payload)
	return Packet{From: from, Data: buf[data:end:end]}, true
}

// SendParts implements Loop.
func (u *Uring) SendParts(to Addr, head, body []byte) {
	if !u.out.AddParts(to, head, body) {
		_ = u.Flush() // ErrClosed is told by the caller's own Flush
		u.out.AddParts(to, head, body)
	}
}

// Send implements Loop.
func (u *Uring) Send(to Addr, data []byte) { u.SendParts(to, nil, data) }

// Flush implements Loop.
func (u *Uring) Flush() error {
	if u.out.n == 0 && u.out.skip == 0 {
		return nil
	}
	if !u.Socket.enter() {
		u.out.reset()
		return ErrClosed
	}
	defer u.leave()
	if u.begin() != nil || u.call(0) != nil {
		return nil // the next Wait or Recv says what is wrong
	}
	return nil
}

// Submit implements Loop. The write begins with the next call that enters the kernel.
func (u *Uring) Submit(w *Write) {
	if !u.Socket.enter() {
		w.Err = ErrClosed
		u.done = append(u.done, w)
		return
	}
	defer u.leave()
	if len(u.free) == 0 || u.begin() != nil {
		u.Socket.Submit(w)
		return
	}
	e := u.q.next()
	if e == nil {
		u.Socket.Submit(w)
		return
	}
	i := u.free[len(u.free)-1]
	u.free = u.free[:len(u.free)-1]
	u.writes[i] = w
	u.waiting++
	u.writeCalls.Add(1)
	e.opcode, e.fd, e.addr, e.length, e.off, e.user = opWrite, int32(w.FD), uint64(uintptr(unsafe.Pointer(unsafe.SliceData(w.Buf)))), uint32(len(w.Buf)),
		uint64(w.Off), writeUser|uint64(i)
}

// Close implements Loop. The kernel takes the ring apart in the background, and until it has, the port is taken: Close waits for
// that, so that whoever listens next finds it free. When the owner closes, the port is free at once, and else after some 50 ms.
func (u *Uring) Close() error {
	if u.q != nil && u.owner.Load() == int64(syscall.Gettid()) && u.dead == nil && u.users.Load() >= 0 {
		u.cancel()
	}
	if err := u.Socket.Close(); err != nil || u.q == nil {
		return err
	}
	err := u.q.close()
	if u.bufs != nil {
		err = errors.Join(err, u.bufs.close())
	}
	for deadline := time.Now().Add(closePatience); !portFree(u.local, u.v6) && time.Now().Before(deadline); {
		time.Sleep(100 * time.Microsecond)
	}
	return err
}

// portFree reports whether an address can be bound.
func portFree(a Addr, v6 bool) bool {
	family := syscall.AF_INET
	if v6 {
		family = syscall.AF_INET6
	}
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return true // it cannot be known
	}
	defer syscall.Close(fd)
	var name syscall.RawSockaddrInet6
	n, _ := putName(&name, a, v6)
	_, _, e := syscall.RawSyscall(syscall.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&name)), uintptr(n))
	return e != syscall.EADDRINUSE
}
