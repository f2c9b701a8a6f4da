package btrlog

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/internal/wire"
)

// One at a time receives for all: it takes the datagrams, applies them and drives the timers, which the background drives too while it
// stands by. It does no file, HTTP or metadata
// I/O, and it calls no user code. Who it is changes:
//
//	Sync, while nobody else waits    it receives its acknowledgements itself, for at most leadFor
//	OpenWriter, likewise             it receives the nodes' answers
//	the background goroutine         whenever others wait, and when nobody received so for standbyFor
//
// A goroutine that is woken from another one costs two switches between threads and two system calls, which was half of what an
// append and its Sync took in the client. But the goroutine that blocks in the kernel for the socket cannot be taken out of it at
// no cost either. So the background stands by, outside the kernel, while Syncs follow one another.
//
// What is received is never older than standbyFor when nobody waits for it, and waits for nobody when somebody does: who begins to
// wait is counted first and looks who has the role second; who gives up the role gives it up first and looks at the count second.
type receiver struct {
	role    sync.Mutex    // whoever holds it receives, and is the only one to touch packet and what follows
	waiting atomic.Int32  // who waits and does not receive
	synced  atomic.Int64  // when somebody received for himself last, or will
	wake    chan struct{} // ends the standby
	packet  packetState
	trimmed protocol.Time // when the pools were looked at
	yielded protocol.Time // when a Sync that received went through the scheduler
}

const (
	// leadFor bounds how long a Sync receives, but for the one wait under way: neither its context nor a timer that is due nor Close
	// can end that.
	leadFor = protocol.Time(ring.RecvWaitTime)
	// standbyFor is how late a datagram may be seen that nobody waits for, and a timer.
	standbyFor = time.Millisecond
	// yieldEvery is how often a goroutine that does nothing but append and receive goes through the scheduler. If it never did, the
	// scheduler's monitor would take it for one that hogs its processor, take that away from every system call that it sees under
	// way, and look fifty times as often.
	yieldEvery = protocol.Time(5 * time.Millisecond)
)

// packetState is the receiver's scratch memory.
type packetState struct {
	reader  wire.Reader
	ack     protocol.Ack
	touched []endpoint
	dropped atomic.Uint64 // packets that were not ours, damaged, or of another version
}

// background is the goroutine that receives when no Sync does.
//
// It is not locked to its OS thread, as a node's shard is. The goroutine that a commit wakes runs on the processor that this
// one leaves: it yields to it, which is a switch between goroutines, before it sleeps in the kernel, where the processor
// would be taken from it only after a while. Locked, the same wake-up costs a switch between OS threads. The plain
// socket has no owner thread.
func (c *Client) background() {
	r := &c.receiver
	timer := time.NewTimer(standbyFor)
	defer timer.Stop()
	for {
		if !r.role.TryLock() {
			c.tickDue(c.now()) // a Sync that receives may be in the kernel for longer than a lost append should wait
			c.standBy(timer)
			continue
		}
		received, err := c.receive()
		r.role.Unlock()
		if err != nil {
			return // closed
		}
		if received {
			runtime.Gosched()
		}
		if r.waiting.Load() == 0 && c.now()-protocol.Time(r.synced.Load()) < protocol.Time(standbyFor) {
			c.standBy(timer)
			continue
		}
		if !r.role.TryLock() {
			continue
		}
		err = c.await(maxSleep)
		r.role.Unlock()
		if err != nil {
			return
		}
	}
}

// standBy lets Syncs receive for themselves, for a while or until somebody waits.
func (c *Client) standBy(timer *time.Timer) {
	timer.Reset(standbyFor)
	select {
	case <-timer.C:
	case <-c.receiver.wake:
	case <-c.ctx.Done():
	}
}

// wait counts somebody who waits and does not receive; the other must be called when the wait is over.
func (r *receiver) wait() {
	r.waiting.Add(1)
	r.rouse()
}

func (r *receiver) waited() { r.waiting.Add(-1) }

// rouse ends the standby.
func (r *receiver) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// await waits until there is something to receive or to do, or limit has passed. The caller has the role.
func (c *Client) await(limit protocol.Time) error {
	_, err := c.sock.Wait(min(c.timers.rest(c.now()), time.Duration(limit)))
	c.timers.sleep.Store(0)
	return err
}

// receive applies what has arrived and does what is due. The caller has the role.
func (c *Client) receive() (received bool, err error) {
	packets, err := c.sock.Recv()
	if err != nil {
		return false, err
	}
	c.process(packets)
	return len(packets) > 0, nil
}

// process applies packets and does what is due. The caller has the role.
func (c *Client) process(packets []ring.Packet) {
	now, p := c.now(), &c.receiver.packet
	for i := range packets {
		c.apply(now, packets[i].From, packets[i].Data)
	}
	for _, e := range p.touched {
		e.timer().touched = false
		e.settle(now)
	}
	clear(p.touched)
	p.touched = p.touched[:0]
	if now-c.receiver.trimmed > trimEvery {
		c.receiver.trimmed = now
		c.jobs.trim()
	}
	c.tickDue(now)
}

// tickDue does what is due by time. It needs no role.
func (c *Client) tickDue(now protocol.Time) {
	for e := c.timers.due(now); e != nil; e = c.timers.due(now) {
		e.tick(now)
	}
}

// take makes the caller the one that receives, if nobody else waits or receives. If it does not, the caller is counted as one who waits.
func (r *receiver) take(now protocol.Time) bool {
	r.synced.Store(int64(now))
	if r.waiting.Add(1) > 1 || !r.role.TryLock() {
		return false
	}
	r.waiting.Add(-1)
	return true
}

// give ends what take began. Who is not done is counted as one who waits.
func (r *receiver) give(now protocol.Time, done bool) {
	r.synced.Store(int64(now))
	if !done {
		r.waiting.Add(1)
	}
	yield := now-r.yielded > yieldEvery
	if yield {
		r.yielded = now
	}
	r.role.Unlock()
	if r.waiting.Load() > 0 {
		r.rouse()
	}
	if yield {
		runtime.Gosched()
	}
}

// lead receives until lsn is committed, for at most leadFor, if nobody else waits or receives. It reports whether lsn is committed;
// if it is not, the caller is counted as one who waits.
func (w *Writer) lead(lsn LSN) bool {
	r := &w.c.receiver
	now := w.c.now()
	if !r.take(now) {
		return false
	}
	for end := now + leadFor; now < end && w.Committed() < lsn; now = w.c.now() {
		packets, err := w.c.sock.RecvWait()
		if err != nil {
			break
		}
		w.c.process(packets)
	}
	committed := w.Committed() >= lsn
	r.give(now, committed)
	return committed
}

// lead receives until the open has something for drive, as Writer.lead. What comes over HTTP ends the wait in the kernel, by deliver.
func (call *openCall) lead() bool {
	c := call.c
	now := c.now()
	if !c.receiver.take(now) {
		return false
	}
	for end := now + leadFor; now < end && len(call.notify) == 0; now = c.now() {
		if c.await(end-now) != nil {
			break
		}
		if _, err := c.receive(); err != nil {
			break
		}
	}
	told := len(call.notify) > 0
	c.receiver.give(now, told)
	return told
}

// expectWait lets the background stand by although nobody waits: somebody will, who comes from a request to the store. If that takes
// long, it does not matter who receives.
func (c *Client) expectWait() {
	c.receiver.synced.Store(int64(c.now() + leadFor))
	c.sock.Wake()
}

// apply routes the messages of one packet. What cannot be read is dropped and counted: UDP may lose it as well.
func (c *Client) apply(now protocol.Time, from ring.Addr, data []byte) {
	p := &c.receiver.packet
	if err := p.reader.Reset(data, c.cluster); err != nil {
		if n := c.nodes.at(from); n != nil {
			n.heed(err)
		}
		if p.dropped.Add(1) == 1 {
			c.log.Warn("btrlog: dropped a packet that cannot be read; further ones are only counted", "reason", err)
		}
		return
	}
	h := p.reader.Header()
	for p.reader.Next() {
		targets := c.routes.get(p.reader.Log())
		if len(targets) == 0 {
			continue // a late reply
		}
		if p.reader.Kind() == wire.KindAck {
			if p.reader.Ack(&p.ack) != nil {
				p.dropped.Add(1)
				continue
			}
			for _, e := range targets {
				e.onAck(now, h, &p.ack)
			}
		} else {
			m, err := p.reader.Message()
			if err != nil {
				p.dropped.Add(1)
				continue
			}
			for _, e := range targets {
				e.onMessage(now, h, m, false)
			}
		}
		for _, e := range targets {
			if t := e.timer(); !t.touched {
				t.touched = true
				p.touched = append(p.touched, e)
			}
		}
	}
}
