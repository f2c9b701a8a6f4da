package btrlog

import (
	"slices"
	"sync"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/internal/wire"
)

const (
	batchSize = 64      // datagrams of one job
	keepBytes = 1 << 17 // a larger buffer is not kept for the next packet
	keepJobs  = 64
)

// packet is one encoded packet and the memory it was made in.
type packet struct {
	w     wire.Writer
	buf   []byte // packets
	block []byte // record block of an append
	app   protocol.Append
}

// sendJob is what one step of a machine wants sent. It is filled under the machine's lock and sent after it is released,
// so that no lock is held across a system call. The memory is used again and again.
type sendJob struct {
	batch   *ring.Batch
	packets []*packet
	used    int
	next    *sendJob // a job that was full
}

// jobPool keeps jobs. It is not a sync.Pool: that is emptied by every garbage collection.
type jobPool struct {
	mu   sync.Mutex
	free []*sendJob
	low  int // fewest in free since trim looked last
}

func (p *jobPool) get(c *Client) *sendJob {
	p.mu.Lock()
	n := len(p.free)
	if n == 0 {
		p.low = 0
	}
	if n > 0 {
		j := p.free[n-1]
		p.free[n-1] = nil
		p.free = p.free[:n-1]
		p.low = min(p.low, n-1)
		p.mu.Unlock()
		return j
	}
	p.mu.Unlock()
	return &sendJob{batch: c.sock.NewBatch(batchSize)}
}

func (p *jobPool) put(j *sendJob) {
	for _, pk := range j.packets[:j.used] {
		if cap(pk.buf) > keepBytes {
			pk.buf = nil
		}
		if cap(pk.block) > keepBytes {
			pk.block = nil
		}
		pk.app.Block = nil
	}
	j.used, j.next = 0, nil
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < keepJobs {
		p.free = append(p.free, j)
	}
}

// trim forgets the jobs that nobody has needed since it was called last: those of a burst.
func (p *jobPool) trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = slices.Delete(p.free, 0, p.low)
	p.low = len(p.free)
}

// packet returns a packet to be filled; its memory belongs to the job.
func (j *sendJob) packet() *packet {
	if j.used == len(j.packets) {
		j.packets = append(j.packets, new(packet))
	}
	j.used++
	return j.packets[j.used-1]
}

// add queues a datagram made of head (copied) and body (borrowed until transmit). It returns the job to go on with: another
// one when this one is full.
func (j *sendJob) add(c *Client, to ring.Addr, head, body []byte) *sendJob {
	if j.batch.AddParts(to, head, body) {
		return j
	}
	more := c.jobs.get(c)
	more.next = j
	more.batch.AddParts(to, head, body)
	return more
}

// transmit sends a job, nil is none, and takes its memory back.
func (c *Client) transmit(j *sendJob) {
	for k := j; k != nil; k = k.next {
		_, _ = c.sock.SendBatch(k.batch) // ErrClosed only: then nobody waits any more
	}
	for j != nil {
		next := j.next
		c.jobs.put(j)
		j = next
	}
}
