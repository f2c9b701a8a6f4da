//go:build linux && (amd64 || arm64)

package ring

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// The kernel's interface to io_uring, as much of it as is used here (include/uapi/linux/io_uring.h). Both architectures are
// little-endian and have the same numbers.
const (
	sysUringSetup    = 425
	sysUringEnter    = 426
	sysUringRegister = 427

	setupCQSize       = 1 << 3
	setupDisabled     = 1 << 6 // until enabled, by the thread that is then the only one
	setupSubmitAll    = 1 << 7
	setupTaskrunFlag  = 1 << 9
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13

	featSingleMmap = 1 << 0
	featExtArg     = 1 << 8

	enterGetEvents = 1 << 0
	enterExtArg    = 1 << 3

	registerFiles       = 2
	unregisterFiles     = 3
	registerEnableRings = 12
	registerBufferRing  = 22

	opPollAdd     = 6
	opSendmsg     = 9
	opRecvmsg     = 10
	opAsyncCancel = 14
	opWrite       = 23

	cancelAll = 1 << 0 // in sqe.opFlags
	cancelAny = 1 << 2

	sqeFixedFile    = 1 << 0
	sqeBufferSelect = 1 << 5
	sqeSkipSuccess  = 1 << 6

	recvMultishot = 1 << 1 // in sqe.ioprio
	pollMultishot = 1 << 0 // in sqe.length

	cqeBuffer = 1 << 0
	cqeMore   = 1 << 1

	sqTaskrun = 1 << 2 // in the submission ring's flags: enter has completions to bring

	offRings   = 0
	offEntries = 0x10000000
)

type uringParams struct {
	sqEntries, cqEntries, flags, sqCPU, sqIdle, features, wqFD uint32
	_                                                          [3]uint32
	sq                                                         struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

type sqe struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	off           uint64
	addr          uint64
	length        uint32
	opFlags       uint32
	user          uint64
	buf           uint16 // group of provided buffers
	_             uint16
	_             int32
	_             [2]uint64
}

type cqe struct {
	user  uint64
	res   int32
	flags uint32
}

// providedBuffer is struct io_uring_buf. The ring's tail lies over the last two bytes of the first one.
type providedBuffer struct {
	addr   uint64
	length uint32
	id     uint16
	tail   uint16
}

type eventsArg struct {
	sigmask   uint64
	sigmaskSz uint32
	_         uint32
	timeout   uint64
}

// queues are the shared rings of one io_uring.
type queues struct {
	fd      int
	rings   []byte
	entries []byte // the SQEs
	sqes    []sqe
	cqes    []cqe

	sqHead, sqTail, sqFlags *uint32
	cqHead, cqTail          *uint32
	tail                    uint32 // of the SQEs that are filled
	given                   uint32 // of those that the kernel has been told of

	arg eventsArg
	ts  syscall.Timespec
}

// newQueues makes a ring that its first owner has to enable.
func newQueues(entries, completions uint32) (*queues, error) {
	p := uringParams{cqEntries: completions, flags: setupCQSize | setupDisabled | setupSubmitAll | setupTaskrunFlag | setupSingleIssuer | setupDeferTaskrun}
	fd, _, e := syscall.RawSyscall(sysUringSetup, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
	switch e {
	case 0:
	case syscall.ENOSYS:
		return nil, errors.New("this kernel has no io_uring")
	case syscall.EINVAL:
		return nil, errors.New("io_uring of this kernel is too old: Linux 6.1 or later is needed")
	case syscall.EPERM, syscall.EACCES:
		return nil, fmt.Errorf("io_uring is not allowed here (kernel.io_uring_disabled, or a seccomp filter): %w", e)
	default:
		return nil, os.NewSyscallError("io_uring_setup", e)
	}
	q := &queues{fd: int(fd)}
	syscall.CloseOnExec(q.fd)
	if p.features&featSingleMmap == 0 || p.features&featExtArg == 0 {
		return nil, errors.Join(errors.New("io_uring of this kernel is too old: Linux 6.1 or later is needed"), q.close())
	}
	size := max(p.sq.array+p.sqEntries*4, p.cq.cqes+p.cqEntries*uint32(unsafe.Sizeof(cqe{})))
	var err error
	if q.rings, err = syscall.Mmap(q.fd, offRings, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_POPULATE); err == nil {
		q.entries, err = syscall.Mmap(q.fd, offEntries, int(p.sqEntries)*int(unsafe.Sizeof(sqe{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_POPULATE)
	}
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("mmap of an io_uring", err), q.close())
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&q.rings[off])) }
	q.sqHead, q.sqTail, q.sqFlags = at(p.sq.head), at(p.sq.tail), at(p.sq.flags)
	q.cqHead, q.cqTail = at(p.cq.head), at(p.cq.tail)
	q.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&q.entries[0])), p.sqEntries)
	q.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&q.rings[p.cq.cqes])), p.cqEntries)
	for i := range p.sqEntries { // entry i is always SQE i
		*at(p.sq.array + 4*i) = i
	}
	return q, nil
}

func (q *queues) register(op uintptr, arg unsafe.Pointer, n int) error {
	if _, _, e := syscall.RawSyscall6(sysUringRegister, uintptr(q.fd), op, uintptr(arg), uintptr(n), 0, 0); e != 0 {
		return os.NewSyscallError("io_uring_register", e)
	}
	return nil
}

// close gives everything back. The kernel ends requests under way in the background.
func (q *queues) close() error {
	var errs []error
	for _, m := range [][]byte{q.rings, q.entries} {
		if m != nil {
			errs = append(errs, syscall.Munmap(m))
		}
	}
	q.rings, q.entries = nil, nil
	return errors.Join(append(errs, syscall.Close(q.fd))...)
}

// next returns an empty SQE; nil if all are in use.
func (q *queues) next() *sqe {
	if q.tail-atomic.LoadUint32(q.sqHead) == uint32(len(q.sqes)) {
		return nil
	}
	e := &q.sqes[q.tail&uint32(len(q.sqes)-1)]
	q.tail++
	*e = sqe{}
	return e
}

// pending is how many SQEs the kernel has not taken yet.
func (q *queues) pending() uint32 { return q.tail - q.given }

// enter submits what is pending, runs what the kernel has put off, and with a timeout waits for a completion. Only a call that may
// block is made known to the scheduler (L1).
func (q *queues) enter(timeout time.Duration) syscall.Errno {
	n := q.pending()
	atomic.StoreUint32(q.sqTail, q.tail)
	var got uintptr
	var e syscall.Errno
	if timeout <= 0 {
		got, _, e = syscall.RawSyscall6(sysUringEnter, uintptr(q.fd), uintptr(n), 0, enterGetEvents, 0, 0)
	} else {
		q.ts = syscall.NsecToTimespec(int64(timeout))
		q.arg = eventsArg{timeout: uint64(uintptr(unsafe.Pointer(&q.ts)))}
		got, _, e = syscall.Syscall6(sysUringEnter, uintptr(q.fd), uintptr(n), 1, enterGetEvents|enterExtArg, uintptr(unsafe.Pointer(&q.arg)), unsafe.Sizeof(q.arg))
	}
	if e == 0 {
		q.given += uint32(got)
	} else {
		// What was submitted before a wait that was cut short is not told; the kernel's head is.
		q.given = atomic.LoadUint32(q.sqHead)
	}
	return e
}

// ready reports whether there are completions, or the kernel has some that enter would bring.
func (q *queues) ready() bool {
	return *q.cqHead != atomic.LoadUint32(q.cqTail) || atomic.LoadUint32(q.sqFlags)&sqTaskrun != 0
}

// reap hands out the completions that are there.
func (q *queues) reap(f func(*cqe)) {
	head, tail := *q.cqHead, atomic.LoadUint32(q.cqTail)
	for ; head != tail; head++ {
		f(&q.cqes[head&uint32(len(q.cqes)-1)])
	}
	atomic.StoreUint32(q.cqHead, head)
}

// buffers are those that the kernel receives into, in the order in which it is given them.
type buffers struct {
	shared []byte
	ring   []providedBuffer
	memory []byte
	size   int
	tail   uint16
}

// newBuffers makes n buffers, a power of two, of size bytes, and tells the kernel of them as group 0. Their memory is the
// program's own, so that packets outlive the ring.
func newBuffers(q *queues, n, size int) (*buffers, error) {
	shared, err := syscall.Mmap(-1, 0, n*int(unsafe.Sizeof(providedBuffer{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_POPULATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	b := &buffers{shared: shared, ring: unsafe.Slice((*providedBuffer)(unsafe.Pointer(&shared[0])), n), memory: make([]byte, n*size), size: size}
	r := struct {
		addr    uint64
		entries uint32
		group   uint16
		flags   uint16
		_       [3]uint64
	}{addr: uint64(uintptr(unsafe.Pointer(&shared[0]))), entries: uint32(n)}
	if err := q.register(registerBufferRing, unsafe.Pointer(&r), 1); err != nil {
		return nil, errors.Join(err, b.close())
	}
	for i := range n {
		b.give(uint16(i))
	}
	b.publish()
	return b, nil
}

func (b *buffers) close() error { return syscall.Munmap(b.shared) }

func (b *buffers) at(id uint16) []byte { return b.memory[int(id)*b.size : (int(id)+1)*b.size] }

// give queues a buffer for the kernel; publish tells it.
func (b *buffers) give(id uint16) {
	e := &b.ring[int(b.tail)&(len(b.ring)-1)]
	e.addr, e.length, e.id = uint64(uintptr(unsafe.Pointer(&b.at(id)[0]))), uint32(b.size), id
	b.tail++
}

// publish writes the tail together with the two bytes below it, which are the first buffer's number: there is no atomic store of
// two bytes. What was given must be visible before the tail is, or the kernel would write where a buffer was before.
func (b *buffers) publish() {
	first := (*uint32)(unsafe.Pointer(&b.ring[0].id))
	atomic.StoreUint32(first, uint32(b.ring[0].id)|uint32(b.tail)<<16)
}
