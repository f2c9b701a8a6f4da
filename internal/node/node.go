// Package node runs a log node: the shards' threads, their sockets, the flusher and HTTP, around internal/shard.
//
//	UDP datagrams ──► thread (one per shard, locked to its OS thread): receive, step, commit, answer
//	                    ▲ inbox: HTTP requests, datagrams for a log of this shard, reports of the flusher
//	HTTP/2 over TCP ────┘          flusher: a few goroutines, PUT or look, report
//
// Invariants:
//
//	N1  A directory has one process, one node and one cluster (identity.go).
//	N2  A log lives in the shard in whose store its state value stands; only a log that no store knows goes by its hash.
//	    Otherwise a restart with another number of shards would find its promise forgotten.
//	N3  A shard that cannot go on ends the node, and Run returns why (P14): a node that half lives would hang its clients.
//	N4  Queues are bounded, and what does not fit is refused at once (P15).
package node

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/internal/shard"
	"github.com/btrlog/btrlog/internal/sparselog"
	"github.com/btrlog/btrlog/internal/stagetrace"
	"github.com/btrlog/btrlog/internal/wire"
	"github.com/btrlog/btrlog/lst"
)

// Node is a running log node.
type Node struct {
	cfg       Config
	dir       *directory
	cluster   wire.ClusterID
	catalog   *meta.Catalog
	archive   *archive.Archive
	threads   []*thread
	active    int                    // shards that take new logs: the first ones
	elsewhere map[protocol.LogID]int // logs that do not live where their hash says (N2)
	reports   []lst.RecoveryReport

	udp       net.UDPAddr
	port      int
	engine    ring.Engine
	engineWhy error // why it is not the one that was asked for; may be nil
	advertise string
	recorded  string // the start that the node's record named when this one began
	listener  net.Listener
	server    *http.Server
	traffic   traffic

	log      *sparselog.Logger
	requests requests // to the object store
	phase    atomic.Pointer[string]

	base       time.Time
	started    time.Time
	registered atomic.Bool
	jobs       chan job
	flusher    flusher
	collector  collector
	packer     packer
	watcher    watcher

	stop       context.CancelFunc
	background sync.WaitGroup // flusher's context: reclaimers, HTTP
	running    sync.WaitGroup // threads
	failed     chan error     // the first error of a part
	closing    sync.Once
	closed     error
	done       chan struct{} // closed when Close has begun
}

// Run runs a node until ctx ends, and returns nil, or until a part of it fails, and returns why. The caller must then end the
// process with a non-zero status.
func Run(ctx context.Context, cfg Config) error {
	n, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	return n.Wait(ctx)
}

// Wait lets a started node run until ctx ends, closes it and returns what Close does; or until a part of it fails, and returns
// why, whether or not the rest can be closed: the caller must then end the process with a non-zero status.
func (n *Node) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return n.Close()
	case err := <-n.failed:
		// The node is not whole any more, and closing says nothing that is more important. It may not even return, when a
		// disk hangs; then the end of the process closes.
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = n.Close()
		}()
		timer := time.NewTimer(2 * closeTimeout)
		defer timer.Stop()
		select {
		case <-closed:
		case <-timer.C:
		}
		return err
	}
}

// Start starts a node and returns when it serves. ctx bounds the start alone. Errors name what is wrong and what to do.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	udp, err := net.ResolveUDPAddr("udp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("node: listen address %q: %w", cfg.Listen, err)
	}
	dir, err := openDirectory(cfg.Dir, cfg.Node)
	if err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, dir: dir, active: cfg.Shards, udp: *udp, base: time.Now(), started: time.Now(), jobs: make(chan job, maxJobs),
		failed: make(chan error, 1), done: make(chan struct{}), elsewhere: make(map[protocol.LogID]int)}
	background, stop := context.WithCancel(context.Background())
	n.stop = stop
	n.log = sparselog.New(cfg.Log)
	n.requests.init()
	n.packer.init()
	n.makeThreads()
	if err := n.start(ctx, background); err != nil {
		n.abandon()
		return nil, err
	}
	return n, nil
}

func (n *Node) start(ctx, background context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.StartTimeout)
	defer cancel()
	// Before HTTP is served: without a phase the node counts as started.
	n.enter("waiting for the object store")
	// The sockets are bound first: HTTP tells who waits for the node what it is doing, and no datagram that arrives before the
	// threads run is lost.
	if err := n.listen(); err != nil {
		return err
	}
	n.serve()
	if err := n.joinCluster(ctx); err != nil {
		return err
	}
	if err := n.checkStart(ctx); err != nil {
		return err
	}
	n.enter("recovering the shards' stores")
	if err := n.openShards(); err != nil {
		return err
	}
	n.enter("registering")
	if err := n.register(ctx); err != nil {
		return err
	}
	n.startWatcher(background) // before the threads, which ask it who is down
	for _, t := range n.threads {
		t.post.cluster = n.cluster
		t.beat.Store(int64(n.now()))
		t.alive.Store(true)
		t.reclaim = make(chan struct{}, 1)
		n.background.Go(func() { n.reclaimer(background, t) })
		n.running.Go(func() {
			if err := t.run(); err != nil {
				n.fail(err)
			}
		})
	}
	n.flusher.start(background, n, n.cfg.FlushWorkers)
	n.collector.Collector = n.newCollector()
	n.collector.wg.Go(func() { n.collectLoop(background) })
	if n.packing() {
		n.flusher.wg.Go(func() { n.packLoop(background) })
	}
	n.background.Go(func() { n.prober(background) })
	n.phase.Store(nil)
	n.cfg.Log.Info("node serves", "node", n.cfg.Node, "incarnation", n.dir.inc.String(), "cluster", n.cluster.String(), "address", n.advertise,
		"shards", len(n.threads), "durability", n.cfg.durability(), "engine", string(n.engine))
	if n.engineWhy != nil {
		n.cfg.Log.Warn("the shards use plain system calls instead of io_uring", "reason", n.engineWhy)
	}
	return nil
}

// abandon undoes a start that failed.
func (n *Node) abandon() {
	n.stop()
	if n.server != nil {
		n.server.Close() // the start's error is the one that counts
	} else if n.listener != nil {
		n.listener.Close()
	}
	n.background.Wait()
	for _, t := range n.threads {
		if t.loop != nil {
			t.loop.Close()
		}
		if t.core == nil {
			continue
		}
		if err := t.core.Close(); err != nil {
			n.cfg.Log.Warn("closing a store after a failed start", "shard", t.index, "error", err)
		}
	}
	n.dir.close()
}

// enter says what the start is doing, until the node serves.
func (n *Node) enter(phase string) { n.phase.Store(&phase) }

// serving reports whether the start is over. What the start sets up may be used by other goroutines only after that.
func (n *Node) serving() bool { return n.phase.Load() == nil }

// fail notes the first error of a part; Run returns it.
func (n *Node) fail(err error) {
	n.cfg.Log.Info("node fails", "error", err) // whoever runs the node prints the error; once is enough
	select {
	case n.failed <- err:
	default:
	}
}

// Failed delivers the error of the first part that failed. The node must then be closed, and the process must end (N3).
func (n *Node) Failed() <-chan error { return n.failed }

// Close stops the node: it receives no more, finishes the batches under way, and closes the stores. Requests that wait get an
// error or no answer; what was acknowledged stays.
func (n *Node) Close() error {
	n.closing.Do(func() {
		close(n.done)
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		for _, t := range n.threads {
			t.stop()
		}
		n.running.Wait()
		n.stop()
		err := n.server.Shutdown(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = n.server.Close() // clients that read slowly are cut off
		}
		n.background.Wait()
		n.flusher.wg.Wait()
		n.collector.wg.Wait()
		n.watcher.wg.Wait()
		errs := []error{err}
		for _, t := range n.threads {
			errs = append(errs, t.core.Close())
		}
		n.closed = errors.Join(append(errs, n.dir.close())...)
	})
	return n.closed
}

// closeTimeout bounds how long Close waits for HTTP clients.
const closeTimeout = 5 * time.Second

// now is the time since the node's start, the only clock of its shards.
func (n *Node) now() protocol.Time { return protocol.Time(time.Since(n.base)) + 1 }

// owner returns the shard in which a log lives, or will (N2).
func (n *Node) owner(log protocol.LogID) int {
	if i, ok := n.elsewhere[log]; ok {
		return i
	}
	return home(log, n.active)
}

// home is where a log goes that no store knows.
func home(log protocol.LogID, shards int) int {
	h := uint64(log) * 0x9e3779b97f4a7c15
	h ^= h >> 32
	return int(h % uint64(shards))
}

// joinCluster learns the cluster's id, and refuses a store that does not keep its conditions (A6) or a directory of another
// cluster. While the store cannot be reached it tries again until the start's deadline.
func (n *Node) joinCluster(ctx context.Context) error {
	var err error
	n.catalog, err = meta.New(n.requests.metadata.Wrap(n.cfg.Store), meta.Config{Root: n.cfg.Root, Random: random64, Now: time.Now, Sleep: sleep})
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if n.archive, err = archive.New(n.requests.archive.Wrap(n.cfg.Store), archive.Options{Root: n.cfg.Root, Sleep: sleep, Rand: mathrand.Float64, Compression: n.cfg.Compression}); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if err := n.probe(ctx); err != nil {
		return err
	}
	record, err := n.catalog.Cluster(ctx)
	if err != nil {
		return fmt.Errorf("node: object store %s: %w", n.cfg.Store, err)
	}
	n.cluster = wire.ClusterID(record.ID)
	return n.dir.join(n.cluster)
}

// makeThreads makes a thread for every shard that the directory has, and for those that are to be.
func (n *Node) makeThreads() {
	for i := range max(n.cfg.Shards, n.dir.id.Shards) {
		t := &thread{n: n, index: i, parked: make(map[protocol.LogID][]parkedRead), maxBatch: int(min(maxBatchBytes, n.cfg.SegmentBytes/4))}
		t.tracer.every = stagetrace.Interval(n.cfg.TraceEvery)
		t.inbox.maxItems, t.inbox.maxBytes = n.cfg.InboxMessages, n.cfg.InboxBytes
		t.plan.init()
		n.threads = append(n.threads, t)
	}
}

// openShards opens the store of every shard (steps 2 and 3 of identity.go).
func (n *Node) openShards() error {
	total := len(n.threads)
	if b := n.cfg.DiskBudgetBytes; b > 0 && b/int64(total) < minFiles*n.cfg.SegmentBytes {
		return fmt.Errorf("node: disk budget of %d bytes: %s has shards: %d, each of which needs at least %d files of %d bytes; give it %d bytes or more, or smaller segment files",
			b, n.dir.path, total, minFiles, n.cfg.SegmentBytes, int64(total)*minFiles*n.cfg.SegmentBytes)
	}
	n.reports = make([]lst.RecoveryReport, total)
	errs := make([]error, total)
	var wg sync.WaitGroup
	for i := range total {
		wg.Go(func() {
			open := shard.Open
			if i < n.dir.id.Shards {
				open = shard.Reopen
			}
			n.threads[i].core, n.reports[i], errs[i] = open(n.dir.shardDir(i), n.cfg.storeOptions(total), n.dir.inc, protocol.Rules{}, n.now())
			if errors.Is(errs[i], shard.ErrLost) {
				errs[i] = fmt.Errorf("%s is missing or empty, and with it what this node has promised: wipe %s and let the node join as a blank one",
					n.dir.shardDir(i), n.dir.path)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	where := make(map[protocol.LogID]int)
	for i, t := range n.threads {
		for _, s := range t.core.Logs() {
			if j, twice := where[s.Log]; twice {
				return fmt.Errorf("node: log %v is in %s and in %s: one of them is a copy from elsewhere; remove it", s.Log, n.dir.shardDir(j), n.dir.shardDir(i))
			}
			where[s.Log] = i
			if home(s.Log, n.active) != i {
				n.elsewhere[s.Log] = i
			}
		}
	}
	return n.dir.setShards(total)
}

// listen binds TCP and shard 0's UDP socket to one port, and the other shards' sockets.
func (n *Node) listen() error {
	const tries = 20 // with port 0 the TCP port that was free may be taken for UDP
	for try := 1; ; try++ {
		err := n.listenOnce()
		if err == nil {
			break
		}
		n.unlisten()
		if n.udp.Port != 0 || try == tries {
			return fmt.Errorf("node: %w", err)
		}
	}
	var err error
	n.advertise, err = n.cfg.advertised(&n.udp, n.port)
	return err
}

func (n *Node) listenOnce() error {
	var err error
	if n.listener, err = net.ListenTCP("tcp", &net.TCPAddr{IP: n.udp.IP, Port: n.udp.Port, Zone: n.udp.Zone}); err != nil {
		return err
	}
	n.port = n.listener.Addr().(*net.TCPAddr).Port
	ip, ok := netip.AddrFromSlice(n.udp.IP)
	if !ok {
		ip = netip.IPv6Unspecified()
	}
	ip = ip.Unmap()
	for i, t := range n.threads {
		port := n.port
		if i > 0 {
			port = 0
			if n.udp.Port != 0 {
				port = n.port + i
			}
		}
		cfg := ring.Config{Batch: ringBatch, Spin: n.cfg.Spin, BusyPoll: n.cfg.Spin}
		loop, engine, why, err := ring.Open(netip.AddrPortFrom(ip, uint16(port)), cfg, n.cfg.Engine)
		if errors.Is(err, syscall.EAFNOSUPPORT) && ip == netip.IPv6Unspecified() {
			ip = netip.IPv4Unspecified() // a host without IPv6
			loop, engine, why, err = ring.Open(netip.AddrPortFrom(ip, uint16(port)), cfg, n.cfg.Engine)
		}
		if err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
		n.engine, n.engineWhy = engine, why
		t.loop, t.port, t.busy = loop, loop.LocalAddr().Port(), 1
		if engine == ring.URing {
			t.busy = busyPackets
		}
		t.post = post{loop: loop, port: t.port, mtu: n.cfg.MTU, open: make(map[ring.Addr]int)}
	}
	return nil
}

func (n *Node) unlisten() {
	if n.listener != nil {
		n.listener.Close()
		n.listener = nil
	}
	for _, t := range n.threads {
		if t.loop != nil {
			t.loop.Close()
			t.loop = nil
		}
	}
}

// reclaimer gives back the files of one store in which nothing lives any more, and once a second (releaseEvery) syncs what was
// committed without force: what a power cut may take of a log of memory durability is no older than that and the sync, also when
// nothing more is written. It writes and syncs, so it is no work for the shard's thread.
func (n *Node) reclaimer(ctx context.Context, t *thread) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.reclaim:
		}
		err := t.core.Store().Sync() // nothing, if all was forced
		dropped := 0
		if err == nil {
			dropped, err = t.core.Store().Reclaim()
		}
		switch {
		case errors.Is(err, lst.ErrNoSpace):
			n.log.Repeat(slog.LevelWarn, strconv.Itoa(t.index), "no space to reclaim files", "shard", t.index, "error", err)
		case errors.Is(err, lst.ErrClosed):
			return
		case err != nil:
			n.fail(fmt.Errorf("node: shard %d: %w", t.index, err))
			return
		case dropped > 0:
			n.cfg.Log.Debug("files reclaimed", "shard", t.index, "files", dropped)
		}
	}
}

// Incarnation is the identity of the node's data directory.
func (n *Node) Incarnation() protocol.Incarnation { return n.dir.inc }

// Cluster is the id of the cluster that the node belongs to.
func (n *Node) Cluster() wire.ClusterID { return n.cluster }

// Address is the host:port under which clients reach the node, by UDP (shard 0) and HTTP.
func (n *Node) Address() string { return n.advertise }

// Port is the UDP and TCP port of shard 0.
func (n *Node) Port() int { return n.port }

func random64() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
