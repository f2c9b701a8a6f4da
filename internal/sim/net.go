package sim

import (
	"math/rand/v2"

	"github.com/btrlog/btrlog/internal/protocol"
)

// endpoint is the address of a node or a client on the simulated network.
type endpoint uint64

// network carries packets, byte for byte. It loses, doubles, delays and reorders them, and blocks directions.
type network struct {
	s       *scheduler
	rng     *rand.Rand
	p       *params
	c       *counters
	hosts   map[endpoint]func(from endpoint, packet []byte)
	blocked map[[2]endpoint]protocol.Time // until when a direction is blocked
	healed  bool
	trace   func(from, to endpoint, what string, packet []byte)
}

func newNetwork(s *scheduler, rng *rand.Rand, p *params, c *counters) *network {
	return &network{s: s, rng: rng, p: p, c: c, hosts: map[endpoint]func(endpoint, []byte){}, blocked: map[[2]endpoint]protocol.Time{}}
}

// block stops everything from a to b until the given instant; the other direction goes on.
func (n *network) block(a, b endpoint, until protocol.Time) {
	k := [2]endpoint{a, b}
	n.blocked[k] = max(n.blocked[k], until)
}

// heal ends all faults for good.
func (n *network) heal() {
	n.healed = true
	clear(n.blocked)
}

func (n *network) latency() protocol.Time {
	d := n.p.netDelay + protocol.Time(n.rng.ExpFloat64()*float64(n.p.netJitter))
	if !n.healed && n.rng.Float64() < n.p.netStall {
		// A packet that was stuck somewhere: it comes after its sender has sent it again, after a takeover, after a crash.
		d += protocol.Time(n.rng.Int64N(int64(n.p.netStallMax) + 1))
		n.c.add(&n.c.Delayed)
	}
	return d
}

// send takes ownership of packet.
func (n *network) send(from, to endpoint, packet []byte) {
	n.c.add(&n.c.Packets)
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
			n.deliver(from, to, packet)
		}
	}
	n.deliver(from, to, packet)
}

func (n *network) deliver(from, to endpoint, packet []byte) {
	n.s.after(n.latency(), func() {
		if n.trace != nil {
			n.trace(from, to, "packet", packet)
		}
		if host := n.hosts[to]; host != nil {
			host(from, packet)
		}
	})
}
