//go:build linux && (amd64 || arm64)

// Package ring is the event loop of one thread: datagrams in, datagrams out, file writes, wake-ups and a deadline, all
// from the same thread and without the scheduler between a datagram and its answer. A log node's shard owns one, and so
// does a client's receiver; the client's senders share the client's through SendBatch.
//
// Loop is the interface of the loop. Socket does it with plain system calls, which work wherever Linux does, and Uring with
// io_uring: Send and Submit only queue, Flush, Wait and Recv enter the kernel, Recv and Completed hand out what it left, and
// buffers belong to the loop until then. Open chooses.
//
//	loop:
//		packets := Recv()                  never blocks; step each; encode replies
//		Submit(write), Completed()         replies wait for the completion of the step's writes
//		Send…
//		Wait(until the next deadline)      sends them; Recv does, if there may be more and one must not wait
//
// Why not package net: its poller wakes a goroutine on whatever thread is free and makes two passes through the scheduler
// per datagram, which was measured at 15 to 60 µs; its reads take one datagram per call and its write path locks.
// Why package syscall and not golang.org/x/sys/unix: recvmmsg and sendmmsg need raw calls in both, everything else that
// is used here is in syscall, and this package is linked into every client.
//
// Rules:
//
//	L1  Calls that can block (Wait, Pwrite, Submit) tell the runtime so, else a garbage collection would wait for the
//	    network or the disk. Calls that cannot block do not tell it: that costs more than the call.
//	L2  Nothing is allocated after Listen and NewBatch.
//	L3  Datagrams may be dropped, by us too; every drop is counted in Stats.
package ring

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"
)

// Loop is what its owner thread sees of an event loop. All methods but Wake, NewBatch, SendBatch, Stats, LocalAddr and
// Close are for the owner alone, which has locked its goroutine to its thread.
type Loop interface {
	// Wait sends what is queued and blocks until datagrams or completions are there, Wake is called, or timeout has passed; zero or less polls.
	// It may return early with no event. It returns ErrClosed after Close.
	Wait(timeout time.Duration) (Event, error)
	// Recv sends what is queued and returns the datagrams that are there, at most Config.Batch, without blocking. Packets and their Data belong to
	// the loop and are valid until the next Recv. A full batch says that there may be more.
	Recv() ([]Packet, error)
	// Send queues a datagram. data is borrowed until the next Flush, Wait or Recv, which sends it. A full queue is flushed.
	Send(to Addr, data []byte)
	// SendParts queues a datagram made of head, at most MaxHead bytes and copied, and body, borrowed likewise.
	SendParts(to Addr, head, body []byte)
	// Flush sends what is queued. It returns only ErrClosed: a datagram that cannot be sent is dropped and counted.
	Flush() error
	// Submit starts a write. w and its Buf belong to the loop until Completed returns w.
	Submit(w *Write)
	// Completed returns the writes that are done, in the order of their completion; the slice is valid until the next
	// Submit, Wait or Recv.
	Completed() []*Write

	// Wake makes the current or the next Wait return. Any goroutine may call it; many calls cost one wake-up. What was
	// published before Wake is visible to the owner after that Wait.
	Wake()
	// NewBatch returns a queue of at most n datagrams for SendBatch. It belongs to one goroutine at a time.
	NewBatch(n int) *Batch
	// SendBatch sends the datagrams of b, empties it, and returns how many went out. Any goroutine may call it, several
	// at the same time with a batch each. It returns only ErrClosed.
	SendBatch(b *Batch) (sent int, err error)
	// Stats returns the counters since Listen.
	Stats() Stats
	// LocalAddr returns the bound address.
	LocalAddr() Addr
	// Close ends every Wait, waits for calls under way, and closes the socket. Calls made later return ErrClosed. The
	// owner must not use packets of an earlier Recv after it called Recv again, as ever; Close leaves them alone.
	Close() error
}

// Event tells why Wait returned; zero: the timeout passed.
type Event uint8

const (
	// Readable: Recv will find datagrams.
	Readable Event = 1 << iota
	// Woken: Wake was called.
	Woken
	// Done: Completed has writes.
	Done
)

// ErrClosed: the loop was closed.
var ErrClosed = errors.New("ring: closed")

// Packet is one received datagram.
type Packet struct {
	From Addr
	Data []byte
}

// Write is one write of a whole buffer. For a file opened with O_DIRECT, Buf, its length and Off must be aligned to the
// device's block.
type Write struct {
	FD  int
	Buf []byte
	Off int64
	// Err is the outcome, valid once Completed returned the write. Nil: every byte was written, and is durable if the file
	// was opened with O_DSYNC.
	Err error
	// User is the submitter's own.
	User uint64
}

// Config of a loop. Zero fields take the default.
type Config struct {
	// Batch is the most datagrams received or sent by one system call. Default 64, at most 1024.
	Batch int
	// MaxDatagram is the largest datagram that is received, in bytes; larger ones are dropped and counted as Truncated.
	// Default and limit 65536.
	MaxDatagram int
	// SocketBytes is the size asked for each of the socket's two buffers. The kernel may grant less: Stats says what
	// it granted. Default 4 MiB.
	SocketBytes int
	// Spin is for how long Wait looks again and again before it sleeps. It keeps a processor busy that the sender may need, so it
	// helps only where every loop has a processor of its own. Zero sleeps at once.
	Spin time.Duration
	// BusyPoll is for how long a system call that finds no datagram asks the network card itself (SO_BUSY_POLL), rounded to
	// microseconds; without the privilege, or a driver that can do it, it changes nothing. It does nothing on the loopback.
	BusyPoll time.Duration
}

const (
	defaultBatch   = 64
	maxBatch       = 1024
	maxDatagram    = 64 << 10
	defaultSocket  = 4 << 20
	maxSocketBytes = 1 << 30

	// MaxHead is the longest head of SendParts and Batch.AddParts, in bytes.
	MaxHead = 64
)

// Stats counts since Listen.
type Stats struct {
	Received, ReceivedBytes uint64
	Truncated               uint64 // received datagrams dropped because they were larger than Config.MaxDatagram
	ReceiveErrors           uint64 // receive calls that failed for a reason that passes
	Sent, SentBytes         uint64
	SendDropped             uint64 // not sent because the socket's buffer stayed full
	SendFailed              uint64 // refused by the kernel: too large, no route, wrong address family
	LastSendError           error  // the reason of the latest SendFailed
	Wakes                   uint64 // wake-ups that reached the kernel
	// System calls: into the ring, which do the work of all the others, and by kind; of sends, also those of SendBatch. A write
	// that went through the ring counts in WriteCalls although it is no call of its own.
	Enters, ReceiveCalls, SendCalls, WriteCalls, PollCalls uint64
	Sleeps                                                 uint64 // waits that were left to the kernel, which may have taken the thread off its processor
	Submissions                                            uint64 // operations that the ring was given
	RecvBuffer, SendBuffer                                 int    // bytes granted by the kernel, its own bookkeeping included
}

// Addr is the address of a UDP socket: 24 bytes without a pointer, comparable, usable as the key of a map. IPv4 is kept in
// its IPv6 form. The zero Addr is no address.
type Addr struct {
	ip    [16]byte
	scope uint32 // zone of a link-local IPv6 address
	port  uint16
}

var mapped = [12]byte{10: 0xff, 11: 0xff}

// AddrFrom converts an address. A zone must be numeric, as the kernel counts interfaces; other zones are lost.
func AddrFrom(a netip.AddrPort) Addr {
	out := Addr{ip: a.Addr().As16(), port: a.Port()}
	for _, c := range []byte(a.Addr().Zone()) {
		if c < '0' || c > '9' {
			out.scope = 0
			break
		}
		out.scope = out.scope*10 + uint32(c-'0')
	}
	return out
}

// AddrPort converts back; an IPv4 address comes out as IPv4. It allocates when the address has a zone.
func (a Addr) AddrPort() netip.AddrPort {
	ip := netip.AddrFrom16(a.ip).Unmap()
	if a.scope != 0 {
		var digits [10]byte
		i := len(digits)
		for n := a.scope; n > 0; n /= 10 {
			i--
			digits[i] = byte('0' + n%10)
		}
		ip = ip.WithZone(string(digits[i:]))
	}
	return netip.AddrPortFrom(ip, a.port)
}

// WithPort returns the same host at another port: the answering shard of a node (wire.Header.ReplyTo).
func (a Addr) WithPort(port uint16) Addr {
	a.port = port
	return a
}

// Port returns the UDP port.
func (a Addr) Port() uint16 { return a.port }

// IsValid reports whether a is an address.
func (a Addr) IsValid() bool { return a != Addr{} }

// Is4 reports whether a is an IPv4 address.
func (a Addr) Is4() bool { return [12]byte(a.ip[:12]) == mapped }

// Hash mixes the address, for choosing a queue or a shard. It is the same in every process.
func (a Addr) Hash() uint64 {
	h := binary.LittleEndian.Uint64(a.ip[:8]) ^ binary.LittleEndian.Uint64(a.ip[8:])*0x9e3779b97f4a7c15
	h ^= uint64(a.port)<<32 | uint64(a.scope)
	h *= 0xbf58476d1ce4e5b9
	return h ^ h>>29
}

func (a Addr) String() string {
	if !a.IsValid() {
		return "no address"
	}
	return a.AddrPort().String()
}
