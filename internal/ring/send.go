//go:build linux && (amd64 || arm64)

package ring

import (
	"syscall"
	"unsafe"
)

// sendTries and sendPause bound how long a full socket buffer may hold up a sender: about a millisecond. UDP may drop, the
// protocol sends again; a shard that waits for its network answers nobody.
const (
	sendTries   = 4
	sendPauseNS = 250_000
)

// Batch is a queue of datagrams with all that the kernel wants to know of them. It is made once by NewBatch and used again
// and again. It belongs to one goroutine at a time.
type Batch struct {
	v6    bool
	n     int
	hdrs  []mmsghdr
	iovs  []syscall.Iovec // two for each
	names []syscall.RawSockaddrInet6
	heads [][MaxHead]byte
	skip  uint64 // datagrams whose address this socket cannot express
}

// NewBatch implements Loop.
func (s *Socket) NewBatch(n int) *Batch {
	n = max(1, min(n, maxBatch))
	b := &Batch{v6: s.v6, hdrs: make([]mmsghdr, n), iovs: make([]syscall.Iovec, 2*n), names: make([]syscall.RawSockaddrInet6, n), heads: make([][MaxHead]byte, n)}
	for i := range n {
		b.hdrs[i].hdr.Name = (*byte)(unsafe.Pointer(&b.names[i]))
	}
	return b
}

// Len returns the number of datagrams in the batch.
func (b *Batch) Len() int { return b.n }

// Add adds a datagram and borrows data until SendBatch. It returns false when the batch is full.
func (b *Batch) Add(to Addr, data []byte) bool { return b.AddParts(to, nil, data) }

// AddParts adds a datagram made of head and body. head is copied, at most MaxHead bytes (more panics: it is a bug of the
// caller); body is borrowed until SendBatch. So one body goes to many nodes, each with its own header.
func (b *Batch) AddParts(to Addr, head, body []byte) bool {
	if len(head) > MaxHead {
		panic("ring: head of a datagram longer than MaxHead")
	}
	if b.n == len(b.hdrs) {
		return false
	}
	i := b.n
	h := &b.hdrs[i].hdr
	length, ok := putName(&b.names[i], to, b.v6)
	if !ok {
		b.skip++
		return true
	}
	h.Namelen = length
	iov := b.iovs[2*i : 2*i+2]
	h.Iov, h.Iovlen = &iov[0], 0
	if len(head) > 0 {
		copy(b.heads[i][:], head)
		iov[0].Base, iov[0].Len = &b.heads[i][0], uint64(len(head))
		h.Iovlen++
	}
	if len(body) > 0 {
		iov[h.Iovlen].Base, iov[h.Iovlen].Len = unsafe.SliceData(body), uint64(len(body))
		h.Iovlen++
	}
	b.n++
	return true
}

// reset empties the batch and lets go of the caller's memory.
func (b *Batch) reset() {
	clear(b.iovs[:2*b.n])
	b.n, b.skip = 0, 0
}

// Send implements Loop.
func (s *Socket) Send(to Addr, data []byte) { s.SendParts(to, nil, data) }

// SendParts implements Loop.
func (s *Socket) SendParts(to Addr, head, body []byte) {
	if !s.out.AddParts(to, head, body) {
		_ = s.Flush() // ErrClosed is told by the caller's own Flush
		s.out.AddParts(to, head, body)
	}
}

// Flush implements Loop.
func (s *Socket) Flush() error {
	_, err := s.SendBatch(s.out)
	return err
}

// SendBatch implements Loop.
func (s *Socket) SendBatch(b *Batch) (int, error) {
	if b.n == 0 && b.skip == 0 {
		return 0, nil
	}
	defer b.reset()
	if !s.enter() {
		return 0, ErrClosed
	}
	defer s.leave()
	if b.skip > 0 {
		s.fail(b.skip, syscall.EAFNOSUPPORT)
	}
	var sent int
	var bytes uint64
	for i, tries := 0, 0; i < b.n; {
		s.sendCalls.Add(1)
		n, _, e := syscall.RawSyscall6(sysSendmmsg, uintptr(s.fd), uintptr(unsafe.Pointer(&b.hdrs[i])), uintptr(b.n-i), syscall.MSG_DONTWAIT, 0, 0)
		switch e {
		case 0:
			for j := range int(n) {
				bytes += uint64(b.hdrs[i+j].n)
			}
			i, sent, tries = i+int(n), sent+int(n), 0
		case syscall.EINTR:
		case syscall.EAGAIN, syscall.ENOBUFS:
			if tries++; tries > sendTries {
				s.sendDropped.Add(uint64(b.n - i))
				i = b.n
			} else {
				s.waitWritable()
			}
		case syscall.ECONNREFUSED:
			// An earlier datagram's echo, reported once in the place of this one: this one was not tried. The bound is there
			// because a peer can make these at will.
			if tries++; tries > sendTries {
				s.fail(1, e)
				i, tries = i+1, 0
			}
		default:
			s.fail(1, e)
			i, tries = i+1, 0
		}
	}
	s.sent.Add(uint64(sent))
	s.sentBytes.Add(bytes)
	return sent, nil
}

func (s *Socket) fail(n uint64, e syscall.Errno) {
	s.sendFailed.Add(n)
	s.sendErrno.Store(uint32(e))
}

// waitWritable waits until the socket's buffer has room again, for sendPauseNS at most.
func (s *Socket) waitWritable() {
	p := pollfd{fd: int32(s.fd), events: pollout}
	ts := syscall.NsecToTimespec(sendPauseNS)
	syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
}
