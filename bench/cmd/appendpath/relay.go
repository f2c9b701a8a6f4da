package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/ring"
)

// relay stands at an address of its own, with the port of the node behind it, because a node tells its clients a port and no address.
// Datagrams go through it in both directions, each lost with the same chance; connections go through whole. It knows one client
// socket for each source address, and gives each a socket of its own towards the node, as a NAT does.
type relay struct {
	address string
	node    ring.Addr
	loss    atomic.Uint64 // chance of a datagram to be lost, as math.Float64bits
	front   *ring.Socket
	tcp     net.Listener
	seen    [2]atomic.Uint64 // datagrams towards the node, and back
	lost    [2]atomic.Uint64

	mu     sync.Mutex
	backs  []*ring.Socket
	closed bool
	wg     sync.WaitGroup
}

func newRelay(listen, node string, seed uint64) (*relay, error) {
	from, err1 := netip.ParseAddrPort(listen)
	to, err2 := netip.ParseAddrPort(node)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	r := &relay{address: listen, node: ring.AddrFrom(to)}
	var err error
	if r.front, err = ring.Listen(from, ring.Config{Batch: batch}); err != nil {
		return nil, err
	}
	if r.tcp, err = net.Listen("tcp", listen); err != nil {
		return nil, errors.Join(err, r.front.Close())
	}
	r.wg.Go(func() { r.forth(rand.New(rand.NewPCG(seed, 1))) })
	r.wg.Go(func() {
		for {
			in, err := r.tcp.Accept()
			if err != nil {
				return // closed
			}
			go connect(in, node)
		}
	})
	return r, nil
}

func connect(in net.Conn, node string) {
	out, err := net.Dial("tcp", node)
	if err != nil {
		in.Close()
		return
	}
	for _, c := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			_, _ = io.Copy(c[0], c[1])
			c[0].Close()
		}()
	}
}

// lose draws for one datagram.
func (r *relay) lose(way int, rng *rand.Rand) bool {
	r.seen[way].Add(1)
	if rng.Float64() >= math.Float64frombits(r.loss.Load()) {
		return false
	}
	r.lost[way].Add(1)
	return true
}

// way is the relay's socket towards the node for one client, and what is to be sent through it.
type way struct {
	*ring.Socket
	out *ring.Batch
}

// forth carries datagrams to the node.
func (r *relay) forth(rng *rand.Rand) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	backs := map[ring.Addr]*way{}
	for {
		if _, err := r.front.Wait(time.Hour); err != nil {
			return // closed
		}
		packets, err := r.front.Recv()
		if err != nil {
			return
		}
		for _, p := range packets {
			if r.lose(0, rng) {
				continue
			}
			b := backs[p.From]
			if b == nil {
				if b, err = r.newWay(p.From, rng.Uint64()); err != nil {
					fmt.Fprintln(os.Stderr, "relay:", err)
					return
				}
				backs[p.From] = b
			}
			b.out.Add(r.node, p.Data) // it has room for all that one Recv brings
		}
		for _, b := range backs {
			_, _ = b.SendBatch(b.out)
		}
	}
}

// newWay makes the socket for the client at an address, and begins to carry what the node answers there.
func (r *relay) newWay(client ring.Addr, seed uint64) (*way, error) {
	s, err := ring.Listen(netip.MustParseAddrPort("127.0.0.1:0"), ring.Config{Batch: batch})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errors.Join(ring.ErrClosed, s.Close())
	}
	r.backs = append(r.backs, s)
	r.wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		rng, out := rand.New(rand.NewPCG(seed, 2)), r.front.NewBatch(batch)
		for {
			if _, err := s.Wait(time.Hour); err != nil {
				return // closed
			}
			packets, err := s.Recv()
			if err != nil {
				return
			}
			for _, p := range packets {
				if !r.lose(1, rng) {
					out.Add(client, p.Data)
				}
			}
			_, _ = r.front.SendBatch(out)
		}
	})
	return &way{s, s.NewBatch(batch)}, nil
}

// batch is how many datagrams a socket receives at a time.
const batch = 64

func (r *relay) setLoss(chance float64) { r.loss.Store(math.Float64bits(chance)) }

func (r *relay) close() {
	_ = r.tcp.Close()
	r.mu.Lock()
	r.closed = true
	socks := append(r.backs, r.front)
	r.mu.Unlock()
	for _, s := range socks {
		_ = s.Close()
	}
	r.wg.Wait()
}
