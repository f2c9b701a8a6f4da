package btrlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/internal/wire"
)

const (
	// minDatagram is the least that Config.MaxDatagramBytes may be: every small message of an open must fit.
	minDatagram = 512
	// defaultMTU is assumed where the kernel does not tell: Ethernet's.
	defaultMTU = 1500
	// refreshEvery bounds how often the record of a silent node is read again.
	refreshEvery = 2 * time.Second
)

// node is one log node as the client knows it. It is made once per name and never removed; place changes when the node
// moves.
type node struct {
	id    protocol.NodeID
	place atomic.Pointer[place] // nil until the node's record was read
	odd   atomic.Pointer[odd]   // nil unless what it sends cannot be used
	mu    sync.Mutex
	read  time.Time // when the record was read last, or tried
	busy  bool
}

// place is where a node is, immutable.
type place struct {
	inc   protocol.Incarnation
	addr  ring.Addr // well-known UDP port
	http  string    // host:port
	limit int       // largest datagram, in bytes
	zone  string
}

// odd says why what a node sends cannot be used, which looks like silence otherwise.
type odd struct {
	why string
	at  time.Time
}

// oddFor is how long that is believed without another answer: the node may have been exchanged meanwhile.
const oddFor = time.Minute

// errOtherCluster: the process at a node's address belongs to another cluster.
var errOtherCluster = errors.New("a node of another cluster answers at its address")

// heed notes what the outcome of a question to the node, or the refusal of a packet of it, says of the node.
func (n *node) heed(err error) {
	var v *wire.VersionError
	switch {
	case err == nil:
		if n.odd.Load() != nil {
			n.odd.Store(nil)
		}
	case errors.As(err, &v):
		older := "the node"
		if v.Newer() {
			older = "this program"
		}
		n.odd.Store(&odd{fmt.Sprintf("speaks version %d of the protocol, this program %s; upgrade %s", v.Version, spoken(), older), time.Now()})
	case errors.Is(err, errOtherCluster):
		n.odd.Store(&odd{errOtherCluster.Error(), time.Now()})
	}
}

func spoken() string {
	if wire.OldestVersion == wire.Version {
		return strconv.Itoa(wire.Version)
	}
	return fmt.Sprintf("%d to %d", wire.OldestVersion, wire.Version)
}

// incompatible says of silent nodes which ones answer, and what is wrong with the answers; nil if none does.
func (c *Client) incompatible(silent []string) (out map[string]string) {
	for _, name := range silent {
		if o := c.nodes.get(protocol.NodeID(name)).odd.Load(); o != nil && time.Since(o.at) < oddFor {
			if out == nil {
				out = map[string]string{}
			}
			out[name] = o.why
		}
	}
	return out
}

// at returns the node with that address, or nil.
func (t *nodeTable) at(a ring.Addr) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.byID {
		if p := n.place.Load(); p != nil && p.addr == a {
			return n
		}
	}
	return nil
}

type nodeTable struct {
	mu   sync.Mutex
	byID map[protocol.NodeID]*node
}

func (t *nodeTable) get(id protocol.NodeID) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = make(map[protocol.NodeID]*node)
	}
	n := t.byID[id]
	if n == nil {
		n = &node{id: id}
		t.byID[id] = n
	}
	return n
}

// node returns the node of a name, and reads its record if it was never read. A node whose record cannot be read is
// returned without a place: it is treated as silent, and its record is tried again.
func (c *Client) node(ctx context.Context, id protocol.NodeID) *node {
	n := c.nodes.get(id)
	if n.place.Load() == nil {
		c.refresh(ctx, n)
	}
	return n
}

// located returns the nodes of an ensemble, in its order; records that are not known are read at the same time.
func (c *Client) located(ctx context.Context, e protocol.Ensemble) []*node {
	out := make([]*node, len(e))
	var wg sync.WaitGroup
	for i, m := range e {
		wg.Go(func() { out[i] = c.node(ctx, m.Node) })
	}
	wg.Wait()
	return out
}

func (c *Client) refresh(ctx context.Context, n *node) {
	n.mu.Lock()
	n.read = time.Now()
	n.mu.Unlock()
	rec, err := c.cat.LoadNode(ctx, n.id)
	if err == nil {
		err = c.settlePlace(ctx, n, &rec.Record)
	}
	if err != nil && ctx.Err() == nil {
		c.log.Repeat(slog.LevelWarn, string(n.id), "btrlog: cannot find a log node; it counts as silent", "node", string(n.id), "error", err)
	}
}

// refreshSoon reads the record of a node that does not answer, in the background, at most once in refreshEvery: it may
// have moved to another address.
func (c *Client) refreshSoon(n *node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy || time.Since(n.read) < refreshEvery || c.closed() {
		return
	}
	n.busy = c.spawn(func() {
		ctx, cancel := context.WithTimeout(c.ctx, c.cfg.Timeout)
		c.refresh(ctx, n)
		cancel()
		n.mu.Lock()
		n.busy = false
		n.mu.Unlock()
	})
}

func (c *Client) settlePlace(ctx context.Context, n *node, r *meta.NodeRecord) error {
	addr, err := resolve(ctx, r.UDP)
	if err != nil {
		return err
	}
	p := &place{inc: r.Incarnation, addr: ring.AddrFrom(addr), http: r.HTTP, zone: r.Zone}
	if p.http == "" {
		p.http = r.UDP // the admin endpoint has the same port number
	}
	if old := n.place.Load(); old != nil && old.addr == p.addr {
		p.limit = old.limit
	} else {
		p.limit = wire.DatagramLimit(pathMTU(addr), !addr.Addr().Unmap().Is4())
		if c.cfg.MaxDatagramBytes > 0 {
			p.limit = min(p.limit, c.cfg.MaxDatagramBytes)
		}
	}
	n.place.Store(p)
	return nil
}

func resolve(ctx context.Context, hostport string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address %q: %w", hostport, err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(ips[0].Unmap(), uint16(n)), nil
}

const (
	optMTU4 = 14 // IP_MTU
	optMTU6 = 24 // IPV6_MTU
)

// pathMTU asks the kernel for the MTU of the path to addr, as it knows it now: a datagram socket is connected for it, which
// sends nothing.
func pathMTU(addr netip.AddrPort) int {
	family, level, opt := syscall.AF_INET6, syscall.IPPROTO_IPV6, optMTU6
	var sa syscall.Sockaddr = &syscall.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
	if addr.Addr().Is4() {
		family, level, opt = syscall.AF_INET, syscall.IPPROTO_IP, optMTU4
		sa = &syscall.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return defaultMTU
	}
	defer syscall.Close(fd)
	if syscall.Connect(fd, sa) != nil {
		return defaultMTU
	}
	mtu, err := syscall.GetsockoptInt(fd, level, opt)
	if err != nil || mtu < 576 {
		return defaultMTU
	}
	return mtu
}

// Nodes lists the registered log nodes, by name. Errors: ErrUnavailable; ErrClosed.
func (c *Client) Nodes(ctx context.Context) ([]NodeInfo, error) {
	const op = "list nodes"
	if c.closed() {
		return nil, closedError(op, "")
	}
	ctx, done := c.call(ctx)
	defer done()
	records, err := c.nodeRecords(ctx)
	if err != nil {
		return nil, c.finish(op, "", err)
	}
	out := make([]NodeInfo, 0, len(records))
	for _, r := range records {
		out = append(out, NodeInfo{Name: string(r.ID), Incarnation: uint64(r.Incarnation), Zone: r.Zone, UDP: r.UDP, HTTP: r.HTTP,
			Shards: r.Shards, State: string(r.State)})
	}
	return out, nil
}

// nodeRecords reads all node records. One that is damaged is left out and logged: the others serve.
func (c *Client) nodeRecords(ctx context.Context) ([]meta.NodeRecord, error) {
	var out []meta.NodeRecord
	for n, err := range c.cat.Nodes(ctx) {
		switch {
		case err == nil:
			out = append(out, n.Record)
		case n.Record.ID != "" && ctx.Err() == nil && !isUnavailable(err):
			c.log.Repeat(slog.LevelWarn, string(n.Record.ID), "btrlog: node record cannot be used", "node", string(n.Record.ID), "error", err)
		default:
			return nil, err
		}
	}
	return out, nil
}
