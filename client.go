package btrlog

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/internal/sparselog"
	"github.com/btrlog/btrlog/internal/storecount"
	"github.com/btrlog/btrlog/internal/wire"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/httpstore"
	_ "github.com/btrlog/btrlog/objstore/localdir" // file:// works out of the box
)

const defaultTimeout = 10 * time.Second

// Client is a process's connection to a cluster: one UDP socket, one receiver and one HTTP/2 connection per
// node, shared by all its logs. All methods may be called concurrently.
type Client struct {
	cfg     Config
	log     *sparselog.Logger
	store   objstore.Store
	owned   bool // the store is closed with the client
	cat     *meta.Catalog
	cluster wire.ClusterID
	begin   time.Time

	sock      *ring.Socket
	transport *http.Transport
	dialer    httpstore.Dialer
	http      *http.Client

	ctx    context.Context // ends with Close; parent of everything in the background
	cancel context.CancelCauseFunc

	spawnMu sync.Mutex
	over    bool           // no goroutine starts any more
	wg      sync.WaitGroup // background goroutines, that which receives included

	nodes   nodeTable
	routes  routeTable
	timers  timerQueue
	jobs    jobPool
	waiters waiterPool
	trims   trims

	counters counters
	requests requests

	receiver receiver

	closeOnce sync.Once
}

// Connect opens the store, reads the cluster's record and starts to receive. The Client outlives ctx; ctx
// bounds only this call, with Config.Timeout when it has no deadline. Errors: ErrInvalid, ErrUnavailable; nothing is left running.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	const op = "connect"
	if err := cfg.check(); err != nil {
		return nil, &Error{Kind: ErrInvalid, Op: op, Err: err}
	}
	ctx, done := bounded(ctx, cfg.Timeout)
	defer done()
	c := &Client{cfg: cfg, log: sparselog.New(cfg.Logger), begin: time.Now(), receiver: receiver{wake: make(chan struct{}, 1)}}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.requests.metadata = storecount.New("metadata", &c.requests.health)
	c.requests.archive = storecount.New("archive", &c.requests.health)
	c.makeHTTP()
	fail := func(kind error, err error) (*Client, error) {
		c.cancel(ErrClosed)
		c.closeHTTP()
		if c.owned && c.store != nil {
			_ = c.store.Close() // it is the first error that counts
		}
		return nil, &Error{Kind: kind, Op: op, Retryable: kind == ErrUnavailable, Err: err}
	}
	if err := c.openStore(ctx); err != nil {
		return fail(ErrUnavailable, err)
	}
	cat, err := meta.New(c.requests.metadata.Wrap(c.store), meta.Config{Root: c.cfg.Root, Random: random64, Now: time.Now, Sleep: sleep})
	if err != nil {
		return fail(ErrInvalid, err)
	}
	c.cat = cat
	cluster, err := cat.LoadCluster(ctx)
	if errors.Is(err, meta.ErrNotFound) {
		err = fmt.Errorf("there is no cluster at root %q of %s: no log node has started with this store yet, or store or root are others", cfg.Root, c.store)
	}
	if err != nil {
		return fail(ErrUnavailable, err)
	}
	c.cluster = wire.ClusterID(cluster.ID)
	if c.sock, err = listen(); err != nil {
		return fail(ErrUnavailable, err)
	}
	c.spawn(c.background)
	return c, nil
}

func (cfg *Config) check() error {
	for _, n := range cfg.Nodes {
		if err := checkNodeAddress(n); err != nil {
			return err
		}
	}
	set := 0
	for _, b := range []bool{cfg.StoreURL != "", cfg.Store != nil, len(cfg.Nodes) > 0} {
		if b {
			set++
		}
	}
	if set != 1 {
		return fmt.Errorf("%d of Config.StoreURL, Config.Store and Config.Nodes are set; set exactly one", set)
	}
	if cfg.Timeout < 0 || cfg.MaxDatagramBytes < 0 || (cfg.MaxDatagramBytes > 0 && cfg.MaxDatagramBytes < minDatagram) {
		return fmt.Errorf("timeout %v, largest datagram %d bytes (at least %d)", cfg.Timeout, cfg.MaxDatagramBytes, minDatagram)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown host"
		}
		cfg.Name = fmt.Sprintf("%s, process %d", host, os.Getpid())
	}
	if len(cfg.Name) > 256 {
		return fmt.Errorf("Config.Name has %d bytes, at most 256", len(cfg.Name))
	}
	return nil
}

// checkNodeAddress looks at an entry of Config.Nodes: host:port, or the same as a URL. A missing port would not be noticed
// before a node is asked, and then as a connection refused at HTTP's own.
func checkNodeAddress(n string) error {
	hostport := n
	if scheme, rest, ok := strings.Cut(n, "://"); ok {
		if scheme != "http" {
			return fmt.Errorf("Config.Nodes has %q: nodes speak http only; the form is host:port", n)
		}
		hostport = strings.TrimSuffix(rest, "/")
	}
	host, port, err := net.SplitHostPort(hostport)
	if err == nil {
		if _, perr := strconv.ParseUint(port, 10, 16); perr != nil || port == "0" {
			err = errors.New("no port number")
		} else if host == "" {
			err = errors.New("no host")
		}
	}
	if err != nil {
		return fmt.Errorf("Config.Nodes has %q: the form is host:port with the port of a log node, for example 10.0.0.1:4460 or [fd00::1]:4460", n)
	}
	return nil
}

func (c *Client) openStore(ctx context.Context) error {
	switch {
	case c.cfg.Store != nil:
		c.store = c.cfg.Store
		return nil
	case c.cfg.StoreURL != "":
		s, err := objstore.Open(ctx, c.cfg.StoreURL)
		c.store, c.owned = s, err == nil
		return err
	}
	urls := make([]string, len(c.cfg.Nodes))
	for i, n := range c.cfg.Nodes {
		if urls[i] = n; !strings.Contains(n, "://") {
			urls[i] = "http://" + n
		}
	}
	s, err := httpstore.New(urls, httpstore.Options{})
	if err != nil {
		return err
	}
	c.store, c.owned = s, true
	if c.cfg.Root == "" {
		c.cfg.Root, err = c.rootOf(ctx, urls)
	}
	return err
}

// startingPause is between two questions to nodes that all are starting, as far as they answer.
const startingPause = 50 * time.Millisecond

// rootOf asks the nodes for the prefix of the cluster's keys, one after the other until one answers. A node that says that it is starting is
// waited for: a program that begins together with its cluster is as common as one that begins later.
func (c *Client) rootOf(ctx context.Context, urls []string) (string, error) {
	var waiting error
	for {
		root, starting, err := c.askRoot(ctx, urls)
		if ctx.Err() != nil && waiting != nil {
			return "", waiting // why it took so long, not that the time is over
		}
		if err == nil || !starting {
			return root, err
		}
		if waiting = err; sleep(ctx, startingPause) != nil {
			return "", waiting
		}
	}
}

// askRoot asks each node once. starting: one of them says that it cannot answer yet.
func (c *Client) askRoot(ctx context.Context, urls []string) (root string, starting bool, err error) {
	var errs []error
	for _, u := range urls {
		root, err := func() (string, error) {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, u+identityPath, nil)
			if err != nil {
				return "", err
			}
			resp, err := c.http.Do(req)
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			var id struct{ Root string }
			if resp.StatusCode != http.StatusOK {
				starting = starting || resp.StatusCode == http.StatusServiceUnavailable
				why, _ := io.ReadAll(io.LimitReader(resp.Body, 512)) // only for the message
				return "", fmt.Errorf("%s: %s: %s", u, resp.Status, bytes.TrimSpace(why))
			}
			err = json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&id)
			return id.Root, err
		}()
		if err == nil {
			return root, false, nil
		}
		errs = append(errs, err)
	}
	return "", starting, fmt.Errorf("no node says who it is: %w", errors.Join(errs...))
}

// listen binds the client's socket; hosts without IPv6 are served too.
func listen() (*ring.Socket, error) {
	s, err := ring.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), 0), ring.Config{})
	if err != nil {
		s, err = ring.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), 0), ring.Config{})
	}
	return s, err
}

// Close ends every Writer (as lost, without draining: Close those first), every wait and every background goroutine, and
// closes the sockets. Later calls of anything return ErrClosed. It is idempotent and returns an error only of the store's Close.
func (c *Client) Close() error {
	var err error
	c.closeOnce.Do(func() {
		c.cancel(ErrClosed)
		for _, e := range c.routes.all() {
			e.clientClosed()
		}
		_ = c.sock.Close() // ErrClosed only, and closeOnce excludes it
		c.spawnMu.Lock()
		c.over = true
		c.spawnMu.Unlock()
		c.wg.Wait()
		c.closeHTTP()
		if c.owned {
			err = wrap("close", "", c.store.Close())
		}
	})
	return err
}

// spawn runs f on a goroutine that Close waits for; false: the client is closed and f will not run.
func (c *Client) spawn(f func()) bool {
	c.spawnMu.Lock()
	defer c.spawnMu.Unlock()
	if c.over {
		return false
	}
	c.wg.Go(f)
	return true
}

func (c *Client) closed() bool { return c.ctx.Err() != nil }

func closedError(op, log string) error { return &Error{Kind: ErrClosed, Op: op, Log: log} }

// now is the clock of the protocol machines.
func (c *Client) now() protocol.Time { return protocol.Time(time.Since(c.begin)) }

// call bounds ctx by Config.Timeout if it has no deadline, and by the life of the client.
func (c *Client) call(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, done := bounded(ctx, c.cfg.Timeout)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil); done() }
}

func bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// random64 draws from the system's source: log ids and nonces must not repeat over processes.
func random64() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: the program ends instead
	return binary.LittleEndian.Uint64(b[:])
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finish turns the error of a call into one of this package, and says so when it was Close that ended it.
func (c *Client) finish(op, log string, err error) error {
	if err != nil && c.closed() && !errors.Is(err, ErrClosed) {
		return &Error{Kind: ErrClosed, Op: op, Log: log, Err: err}
	}
	out := wrap(op, log, err)
	if e, ok := out.(*Error); ok && len(e.Missing) > 0 {
		if odd := c.incompatible(e.Missing); odd != nil {
			told := *e // e may be kept by a writer
			told.Incompatible = odd
			return &told
		}
	}
	return out
}
