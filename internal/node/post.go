package node

import (
	"errors"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/internal/wire"
)

// ringBatch is how many datagrams one system call receives or sends.
const ringBatch = 64

// post collects the answers of a batch and sends them: the acknowledgements of one peer in as few datagrams as fit.
type post struct {
	loop    ring.Loop
	cluster wire.ClusterID
	port    uint16 // told to the peers: the shard to which they send next
	mtu     int

	open    map[ring.Addr]int // peers with a packet that takes more, by its index in packets
	packets []packet
	used    int
	unsent  uint64 // answers that no datagram takes
	err     error  // of a flush in between; the next one returns it
}

type packet struct {
	w   wire.Writer
	to  ring.Addr
	buf []byte // its memory, kept from batch to batch
	raw bool   // buf is the packet
}

// limit returns the largest packet for a peer, in bytes. On the loopback there is no network that could fragment it.
func (p *post) limit(to ring.Addr) int {
	mtu := p.mtu
	if to.AddrPort().Addr().IsLoopback() {
		mtu = 65536
	}
	return wire.DatagramLimit(mtu, !to.Is4())
}

// maxPackets is how many datagrams wait for one flush: it bounds the memory of answers. Answers are added after the commit that
// covers them, so it does not matter when they are sent.
const maxPackets = 256

func (p *post) next(to ring.Addr) *packet {
	if p.used >= maxPackets {
		p.err = errors.Join(p.err, p.queue(), p.loop.Flush())
	}
	if p.used == len(p.packets) {
		p.packets = append(p.packets, packet{buf: make([]byte, 0, 2048)})
	}
	k := &p.packets[p.used]
	p.used++
	k.to, k.raw = to, false
	return k
}

func (p *post) start(to ring.Addr) *packet {
	k := p.next(to)
	k.w.Reset(k.buf, p.limit(to), p.cluster, p.port)
	return k
}

// ack adds one acknowledgement. a is copied.
func (p *post) ack(to ring.Addr, a *protocol.Ack) {
	if i, ok := p.open[to]; ok {
		if p.packets[i].w.Ack(a) == nil {
			return
		}
	}
	k := p.start(to)
	p.open[to] = p.used - 1
	if k.w.Ack(a) != nil {
		p.unsent++
	}
}

// message adds a datagram with one message, which must fit (fillDatagram).
func (p *post) message(to ring.Addr, m protocol.Message) {
	if m == nil {
		return
	}
	if p.start(to).w.Message(m) != nil {
		p.used--
		p.unsent++
	}
}

// raw adds a datagram that is complete.
func (p *post) raw(to ring.Addr, data []byte) {
	k := p.next(to)
	k.buf, k.raw = append(k.buf[:0], data...), true
}

// queue hands everything to the loop, which sends it with the next Wait or Recv; until then the datagrams' memory is in use.
func (p *post) queue() error {
	if p.used == 0 || p.err != nil {
		return p.err
	}
	for i := range p.packets[:p.used] {
		k := &p.packets[i]
		if !k.raw {
			if k.w.Empty() {
				continue
			}
			k.buf = k.w.Finish()
		}
		p.loop.Send(k.to, k.buf)
	}
	clear(p.open)
	p.used = 0
	return nil
}
