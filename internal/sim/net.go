package sim

import (
	"math/rand/v2"

	"github.com/btrlog/btrlog/internal/protocol"
)

// endpoint is the address of a node or a client on the simulated network.
type endpoint uint64

// class is a kind of message, which is what the network may hold back.
type class uint8

const (
	classOpen class = iota
	classAppend
	classRepair
	classFetch
	classActivate
	classWatermark
	classRead
	classAck
	classReply
	classes
)

func (c class) String() string {
	return [...]string{"open", "append", "repair", "fetch", "activate", "watermark", "read", "ack", "reply"}[c]
}

func classOf(m protocol.Message) class {
	switch m := m.(type) {
	case *protocol.Open:
		return classOpen
	case *protocol.Append:
		if m.Kind == protocol.AppendNormal {
			return classAppend
		}
		return classRepair
	case *protocol.Fetch:
		return classFetch
	case *protocol.Activate:
		return classActivate
	case *protocol.Watermark:
		return classWatermark
	case *protocol.Read:
		return classRead
	case *protocol.Ack:
		return classAck
	}
	return classReply
}

// starvation holds back some classes of messages at one host: an order of events that chance would hardly find.
type starvation struct {
	classes      uint16   // bit by class
	host         endpoint // to or from it
	until, delay protocol.Time
}

// network carries packets, byte for byte. It loses, doubles, delays and reorders them, and blocks directions.
type network struct {
	s       *scheduler
	rng     *rand.Rand
	p       *params
	c       *counters
	hosts   map[endpoint]func(from endpoint, packet []byte)
	blocked map[[2]endpoint]protocol.Time // until when a direction is blocked
	dark    map[endpoint]protocol.Time    // until when a host is out of everybody's reach, of those that come later too
	starved []starvation
	healed  bool
	trace   func(from, to endpoint, what string, packet []byte)
}

func newNetwork(s *scheduler, rng *rand.Rand, p *params, c *counters) *network {
	return &network{s: s, rng: rng, p: p, c: c, hosts: map[endpoint]func(endpoint, []byte){}, blocked: map[[2]endpoint]protocol.Time{}, dark: map[endpoint]protocol.Time{}}
}

// block stops everything from a to b until the given instant; the other direction goes on.
func (n *network) block(a, b endpoint, until protocol.Time) {
	k := [2]endpoint{a, b}
	n.blocked[k] = max(n.blocked[k], until)
}

// isBlocked reports whether nothing goes from a to b now.
func (n *network) isBlocked(a, b endpoint) bool { return n.s.now < n.blocked[[2]endpoint{a, b}] }

// heal ends all faults for good.
func (n *network) heal() {
	n.healed = true
	clear(n.blocked)
	clear(n.dark)
	n.starved = nil
}

func (n *network) latency(from, to endpoint, c class) protocol.Time {
	d := n.p.netDelay + protocol.Time(n.rng.ExpFloat64()*float64(n.p.netJitter))
	if !n.healed && n.rng.Float64() < n.p.netStall {
		// A packet that was stuck somewhere: it comes after its sender has sent it again, after a takeover, after a crash.
		d += protocol.Time(n.rng.Int64N(int64(n.p.netStallMax) + 1))
		n.c.add(&n.c.Delayed)
	}
	for i := range n.starved {
		if s := &n.starved[i]; s.classes>>c&1 != 0 && (s.host == from || s.host == to) && n.s.now < s.until {
			d += s.delay
			n.c.add(&n.c.Starved)
		}
	}
	return d
}

// send takes ownership of packet.
func (n *network) send(from, to endpoint, c class, packet []byte) {
	n.c.add(&n.c.Packets)
	if n.s.now < n.dark[from] || n.s.now < n.dark[to] {
		n.c.add(&n.c.Partitioned)
		return
	}
	if until, ok := n.blocked[[2]endpoint{from, to}]; ok {
		if n.s.now < until {
			n.c.add(&n.c.Partitioned)
			return
		}
		delete(n.blocked, [2]endpoint{from, to})
	}
	if !n.healed {
		if n.rng.Float64() < n.p.netLoss {
			n.c.add(&n.c.Lost)
			return
		}
		if n.rng.Float64() < n.p.netDup {
			n.c.add(&n.c.Duplicated)
			n.deliver(from, to, c, packet)
		}
	}
	n.deliver(from, to, c, packet)
}

func (n *network) deliver(from, to endpoint, c class, packet []byte) {
	n.s.after(n.latency(from, to, c), func() {
		if n.trace != nil {
			n.trace(from, to, "packet", packet)
		}
		if host := n.hosts[to]; host != nil {
			host(from, packet)
		}
	})
}
