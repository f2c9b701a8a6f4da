//go:build linux && (amd64 || arm64)

package ring

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// mmsghdr is the kernel's struct mmsghdr.
type mmsghdr struct {
	hdr syscall.Msghdr
	n   uint32
	_   [4]byte
}

type pollfd struct {
	fd      int32
	events  int16
	revents int16
}

const (
	pollin  = 0x1
	pollout = 0x4

	soRcvbufForce = 33
	soSndbufForce = 32
	soBusyPoll    = 46
	msgWaitForOne = 0x10000
)

// Socket is a Loop of plain system calls.
type Socket struct {
	fd, wakefd int
	v6         bool // an AF_INET6 socket: IPv4 peers have mapped addresses
	local      Addr

	// users counts calls in the kernel on fd or wakefd; Close subtracts closing and waits for exactly that. Without it a
	// late Wake could write into whatever file got the number of the closed descriptor.
	users atomic.Int64
	// woken is set from a Wake until the owner drained the event counter.
	woken atomic.Uint32

	poll    [2]pollfd
	timeout syscall.Timespec

	rhdrs   []mmsghdr
	riovs   []syscall.Iovec
	rnames  []syscall.RawSockaddrInet6
	rbufs   []byte
	packets []Packet
	used    int // headers that the last Recv left to be reset

	out  *Batch
	done []*Write

	received, receivedBytes, truncated, recvErrors  atomic.Uint64
	sent, sentBytes, sendDropped, sendFailed, wakes atomic.Uint64
	sendErrno                                       atomic.Uint32
	submissions, sleeps                             atomic.Uint64
	enters, recvCalls, sendCalls, writeCalls, polls atomic.Uint64
	spin                                            time.Duration
	rcvbuf, sndbuf                                  int
}

var _ Loop = (*Socket)(nil)

const closing = 1 << 40

// Listen binds a UDP socket to addr; port zero takes a free one. The address :: takes IPv4 and IPv6.
func Listen(addr netip.AddrPort, cfg Config) (*Socket, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s := &Socket{fd: -1, wakefd: -1, spin: cfg.Spin, v6: addr.Addr().Is6() && !addr.Addr().Is4In6()}
	if err := s.open(addr, cfg); err != nil {
		s.closeFDs()
		return nil, fmt.Errorf("ring: listen on %v: %w", addr, err)
	}
	n := cfg.Batch
	s.rhdrs, s.riovs, s.rnames = make([]mmsghdr, n), make([]syscall.Iovec, n), make([]syscall.RawSockaddrInet6, n)
	s.rbufs, s.packets = make([]byte, n*cfg.MaxDatagram), make([]Packet, n)
	for i := range n {
		s.riovs[i].Base = &s.rbufs[i*cfg.MaxDatagram]
		s.riovs[i].Len = uint64(cfg.MaxDatagram)
		h := &s.rhdrs[i].hdr
		h.Iov, h.Iovlen = &s.riovs[i], 1
		h.Name = (*byte)(unsafe.Pointer(&s.rnames[i]))
	}
	s.used = n
	s.poll = [2]pollfd{{fd: int32(s.fd), events: pollin}, {fd: int32(s.wakefd), events: pollin}}
	s.out = s.NewBatch(n)
	s.done = make([]*Write, 0, 16)
	return s, nil
}

func (c *Config) fill() error {
	set := func(name string, v *int, def, limit int) error {
		if *v == 0 {
			*v = def
		}
		if *v < 1 || *v > limit {
			return fmt.Errorf("ring: %s is %d, want 1 to %d", name, *v, limit)
		}
		return nil
	}
	if err := set("Batch", &c.Batch, defaultBatch, maxBatch); err != nil {
		return err
	}
	if err := set("MaxDatagram", &c.MaxDatagram, maxDatagram, maxDatagram); err != nil {
		return err
	}
	return set("SocketBytes", &c.SocketBytes, defaultSocket, maxSocketBytes)
}

func (s *Socket) open(addr netip.AddrPort, cfg Config) error {
	family := syscall.AF_INET
	if s.v6 {
		family = syscall.AF_INET6
	}
	var err error
	if s.fd, err = syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if s.v6 {
		only := 1
		if addr.Addr().IsUnspecified() {
			only = 0
		}
		if err := syscall.SetsockoptInt(s.fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, only); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	s.rcvbuf = buffer(s.fd, soRcvbufForce, syscall.SO_RCVBUF, cfg.SocketBytes)
	s.sndbuf = buffer(s.fd, soSndbufForce, syscall.SO_SNDBUF, cfg.SocketBytes)
	// Every other call says that it does not wait.
	wait := syscall.NsecToTimeval(int64(RecvWaitTime))
	if err := syscall.SetsockoptTimeval(s.fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &wait); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if us := int(cfg.BusyPoll.Microseconds()); us > 0 {
		_ = syscall.SetsockoptInt(s.fd, syscall.SOL_SOCKET, soBusyPoll, us) // it is a wish
	}
	var name syscall.RawSockaddrInet6
	a := AddrFrom(addr)
	n, ok := putName(&name, a, s.v6)
	if !ok {
		return fmt.Errorf("address family of %v", addr)
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_BIND, uintptr(s.fd), uintptr(unsafe.Pointer(&name)), uintptr(n)); e != 0 {
		return os.NewSyscallError("bind", e)
	}
	n = syscall.SizeofSockaddrInet6
	if _, _, e := syscall.RawSyscall(syscall.SYS_GETSOCKNAME, uintptr(s.fd), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&n))); e != 0 {
		return os.NewSyscallError("getsockname", e)
	}
	s.local, _ = getName(&name)
	r, _, e := syscall.RawSyscall(syscall.SYS_EVENTFD2, 0, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if e != 0 {
		return os.NewSyscallError("eventfd2", e)
	}
	s.wakefd = int(r)
	return nil
}

// buffer asks for a socket buffer, beyond the system's limit if we may, and returns what was granted.
func buffer(fd, force, option, size int) int {
	if syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, force, size) != nil {
		// A smaller buffer works, it only drops sooner; Stats shows it.
		_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, option, size)
	}
	got, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, option)
	if err != nil {
		return 0
	}
	return got
}

// enter and leave bracket every use of the descriptors.
func (s *Socket) enter() bool {
	if s.users.Add(1) > 0 {
		return true
	}
	s.users.Add(-1)
	return false
}

func (s *Socket) leave() { s.users.Add(-1) }

// LocalAddr implements Loop.
func (s *Socket) LocalAddr() Addr { return s.local }

// Wait implements Loop.
func (s *Socket) Wait(timeout time.Duration) (Event, error) {
	if !s.enter() {
		return 0, ErrClosed
	}
	defer s.leave()
	if s.out.n > 0 {
		_ = s.Flush() // ErrClosed is told below
	}
	if len(s.done) > 0 {
		timeout = 0
	}
	var n int
	var e syscall.Errno
	if timeout > 0 && s.spin > 0 {
		for began := time.Now(); n == 0 && e == 0 && time.Since(began) < s.spin; {
			n, e = s.pollFor(0)
		}
	}
	if n == 0 && e == 0 {
		_, e = s.pollFor(timeout)
	}
	if e != 0 && e != syscall.EINTR {
		return 0, os.NewSyscallError("ppoll", e)
	}
	var ev Event
	if e == 0 && s.poll[0].revents != 0 {
		ev |= Readable
	}
	if e == 0 && s.poll[1].revents != 0 {
		s.drainWake()
		ev |= Woken
	}
	if len(s.done) > 0 {
		ev |= Done
	}
	if s.users.Load() < 0 {
		return ev, ErrClosed
	}
	return ev, nil
}

// pollFor waits until the socket or Wake's counter is readable.
func (s *Socket) pollFor(timeout time.Duration) (int, syscall.Errno) {
	s.timeout = syscall.NsecToTimespec(int64(max(0, timeout)))
	s.poll[0].revents, s.poll[1].revents = 0, 0
	s.polls.Add(1)
	call := syscall.RawSyscall6
	if timeout > 0 {
		call = syscall.Syscall6
		s.sleeps.Add(1)
	}
	n, _, e := call(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&s.poll)), 2, uintptr(unsafe.Pointer(&s.timeout)), 0, 0, 0)
	return int(n), e
}

func (s *Socket) drainWake() {
	var count [8]byte
	syscall.RawSyscall(syscall.SYS_READ, uintptr(s.wakefd), uintptr(unsafe.Pointer(&count)), 8)
	// The counter is drained before the flag falls. The other way round, a Wake between the two would add to the counter,
	// be drained with it, and leave the flag up: every later Wake would believe that one is under way, and be lost.
	s.woken.Store(0)
}

// Wake implements Loop.
func (s *Socket) Wake() {
	if s.woken.Swap(1) != 0 || !s.enter() {
		return
	}
	s.signal()
	s.leave()
}

func (s *Socket) signal() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	// It can fail only when 2^64 − 1 signals are pending.
	syscall.RawSyscall(syscall.SYS_WRITE, uintptr(s.wakefd), uintptr(unsafe.Pointer(&one)), 8)
	s.wakes.Add(1)
}

// Recv implements Loop.
func (s *Socket) Recv() ([]Packet, error) { return s.recv(false) }

// RecvWait is Wait and Recv in one system call, for an owner that knows that datagrams are coming: it waits for at most about
// RecvWaitTime, and neither Wake nor Close ends it sooner.
func (s *Socket) RecvWait() ([]Packet, error) { return s.recv(true) }

// RecvWaitTime is how long RecvWait waits; the kernel may round it up by some milliseconds.
const RecvWaitTime = 2 * time.Millisecond

func (s *Socket) recv(wait bool) ([]Packet, error) {
	if !s.enter() {
		return nil, ErrClosed
	}
	defer s.leave()
	if s.out.n > 0 {
		_ = s.Flush()
	}
	for i := range s.used { // the kernel shortened these
		s.rhdrs[i].hdr.Namelen = syscall.SizeofSockaddrInet6
	}
	s.used = 0
	var got int
	for {
		s.recvCalls.Add(1)
		var n uintptr
		var e syscall.Errno
		if wait {
			n, _, e = syscall.Syscall6(syscall.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.rhdrs[0])), uintptr(len(s.rhdrs)), msgWaitForOne, 0, 0)
		} else {
			n, _, e = syscall.RawSyscall6(syscall.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.rhdrs[0])), uintptr(len(s.rhdrs)),
				syscall.MSG_DONTWAIT, 0, 0)
		}
		if e == 0 {
			got = int(n)
			break
		}
		switch e {
		case syscall.EINTR:
			if wait {
				return nil, nil
			}
			continue
		case syscall.EAGAIN:
			return nil, nil
		case syscall.EBADF, syscall.ENOTSOCK, syscall.EFAULT, syscall.EINVAL:
			return nil, os.NewSyscallError("recvmmsg", e)
		}
		// What is left is an error that a peer or the network caused; the kernel reports it once and it passes.
		s.recvErrors.Add(1)
		return nil, nil
	}
	s.used = got
	size := int(s.riovs[0].Len)
	var kept int
	var total uint64
	for i := range got {
		h := &s.rhdrs[i]
		from, ok := getName(&s.rnames[i])
		if h.hdr.Flags&syscall.MSG_TRUNC != 0 || !ok {
			s.truncated.Add(1)
			continue
		}
		end := i*size + int(h.n)
		s.packets[kept] = Packet{From: from, Data: s.rbufs[i*size : end : end]}
		kept++
		total += uint64(h.n)
	}
	s.received.Add(uint64(kept))
	s.receivedBytes.Add(total)
	return s.packets[:kept], nil
}

// Submit implements Loop. This implementation writes at once; the queue is there for the one that does not.
func (s *Socket) Submit(w *Write) {
	s.writeCalls.Add(1)
	w.Err = Pwrite(w.FD, w.Buf, w.Off)
	s.done = append(s.done, w)
}

// Completed implements Loop.
func (s *Socket) Completed() []*Write {
	done := s.done
	s.done = s.done[:0]
	return done
}

// Stats implements Loop.
func (s *Socket) Stats() Stats {
	st := Stats{
		Received: s.received.Load(), ReceivedBytes: s.receivedBytes.Load(), Truncated: s.truncated.Load(), ReceiveErrors: s.recvErrors.Load(),
		Sent: s.sent.Load(), SentBytes: s.sentBytes.Load(), SendDropped: s.sendDropped.Load(), SendFailed: s.sendFailed.Load(),
		Enters: s.enters.Load(), ReceiveCalls: s.recvCalls.Load(), SendCalls: s.sendCalls.Load(), WriteCalls: s.writeCalls.Load(), PollCalls: s.polls.Load(), Submissions: s.submissions.Load(), Sleeps: s.sleeps.Load(),
		Wakes: s.wakes.Load(), RecvBuffer: s.rcvbuf, SendBuffer: s.sndbuf,
	}
	if e := s.sendErrno.Load(); e != 0 {
		st.LastSendError = os.NewSyscallError("sendmmsg", syscall.Errno(e))
	}
	return st
}

// Close implements Loop.
func (s *Socket) Close() error {
	for {
		n := s.users.Load()
		if n < 0 {
			return ErrClosed
		}
		if s.users.CompareAndSwap(n, n-closing) {
			break
		}
	}
	s.signal() // a Wait under way returns; every other call is short by itself
	for s.users.Load() != -closing {
		runtime.Gosched()
	}
	s.closeFDs()
	return nil
}

func (s *Socket) closeFDs() {
	for _, fd := range []int{s.fd, s.wakefd} {
		if fd >= 0 {
			_ = syscall.Close(fd) // of a socket and a counter: nothing can be lost
		}
	}
}

// putName writes a as the kernel's socket address and returns its length; false if the socket's family cannot express it.
func putName(name *syscall.RawSockaddrInet6, a Addr, v6 bool) (uint32, bool) {
	if v6 {
		name.Family, name.Flowinfo, name.Addr, name.Scope_id = syscall.AF_INET6, 0, a.ip, a.scope
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&name.Port))[:], a.port)
		return syscall.SizeofSockaddrInet6, true
	}
	if !a.Is4() {
		return 0, false
	}
	in := (*syscall.RawSockaddrInet4)(unsafe.Pointer(name))
	in.Family, in.Addr, in.Zero = syscall.AF_INET, [4]byte(a.ip[12:]), [8]byte{}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&in.Port))[:], a.port)
	return syscall.SizeofSockaddrInet4, true
}

func getName(name *syscall.RawSockaddrInet6) (Addr, bool) {
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&name.Port))[:])
	switch name.Family {
	case syscall.AF_INET6:
		return Addr{ip: name.Addr, scope: name.Scope_id, port: port}, true
	case syscall.AF_INET:
		a := Addr{port: port}
		copy(a.ip[:], mapped[:])
		in := (*syscall.RawSockaddrInet4)(unsafe.Pointer(name))
		copy(a.ip[12:], in.Addr[:])
		return a, true
	}
	return Addr{}, false
}
