//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/btrlog/btrlog/objstore/httpstore"
	"github.com/btrlog/btrlog/objstore/localdir"
)

const (
	smallFSBytes = 1 << 30 // of a node on tmpfs: a run's idle logs keep their windows, and only the fault is to fill it
	storeBytes   = 4 << 30 // at most, of the store's objects
	startLimit   = 60 * time.Second
)

// runStore is the process of the object store: a directory behind HTTP.
func runStore(args []string) error {
	fs := flag.NewFlagSet("torture store", flag.ContinueOnError)
	dir := fs.String("dir", "", "directory of the objects")
	listen := fs.String("listen", "", "host:port")
	if err := fs.Parse(args); err != nil {
		return err
	}
	store, err := localdir.Open(*dir, localdir.Options{})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	srv := &http.Server{Protocols: new(http.Protocols), Handler: httpstore.Handler(store, "", httpstore.HandlerOptions{})}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	fmt.Println("ready")
	return srv.Serve(l)
}

// node is one log node: its host, its directory, and the process that runs on it now.
type node struct {
	host    *host
	dir     string // the data directory
	ballast string // a file that fills its file system; empty on a large one
	mu      sync.Mutex
	proc    *process
	down    bool // on purpose
}

// clientHost is a client host and the worker that runs on it now.
type clientHost struct {
	host *host
	args []string // how a worker is told where the cluster is

	mu       sync.Mutex
	proc     *process
	next     uint64
	waiting  map[uint64]chan error
	stopping bool
}

// cluster is all processes of a run.
type cluster struct {
	dir, binary, self string
	net               *network
	store             *process
	nodes             map[string]*node
	clients           map[string]*clientHost
	histories         []string
	fatal             context.CancelCauseFunc // ends the run: a part ended by itself
	mu                sync.Mutex
}

func (c *cluster) start(ctx context.Context) error {
	storeDir := filepath.Join(c.dir, "store")
	if err := os.MkdirAll(storeDir, 0o755); err != nil {
		return err
	}
	// In memory: a real one has disks of its own, and its forced writes would delay those of the nodes on this disk.
	if err := syscall.Mount("tmpfs", storeDir, "tmpfs", 0, "size="+strconv.Itoa(storeBytes)); err != nil {
		return fmt.Errorf("mount tmpfs for the store: %w", err)
	}
	h := c.net.byName["store"]
	var err error
	if c.store, err = h.spawn(c.dir, "store", c.self, "store", "--dir", storeDir, "--listen", h.addr()); err != nil {
		return err
	}
	if _, err := c.store.line(ctx, "the store"); err != nil {
		return err
	}
	c.nodes, c.clients = make(map[string]*node), make(map[string]*clientHost)
	var addresses string
	for _, name := range allNodes {
		n := &node{host: c.net.byName[name], dir: filepath.Join(c.dir, name, "data")}
		if err := os.MkdirAll(filepath.Dir(n.dir), 0o755); err != nil {
			return err
		}
		if slices.Contains(smallFS, name) {
			if err := syscall.Mount("tmpfs", filepath.Dir(n.dir), "tmpfs", 0, "size="+strconv.Itoa(smallFSBytes)); err != nil {
				return fmt.Errorf("mount tmpfs for %s: %w", name, err)
			}
			n.ballast = filepath.Join(c.dir, name, "ballast")
		}
		c.nodes[name] = n
		if addresses != "" {
			addresses += ","
		}
		addresses += n.host.addr()
	}
	if err := c.each(allNodes, func(name string) error { return c.startNode(ctx, name) }); err != nil {
		return err
	}
	for i, name := range clients {
		// One knows the store, the other only nodes, which serve the store's content.
		args := []string{"--store", "http://" + c.net.byName["store"].addr()}
		if i == 0 {
			args = []string{"--nodes", addresses}
		}
		c.clients[name] = &clientHost{host: c.net.byName[name], args: args}
	}
	return c.each(clients, func(name string) error { return c.startClient(ctx, name) })
}

// each runs f for all names at the same time.
func (c *cluster) each(names []string, f func(name string) error) error {
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { errs[i] = f(name) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// startNode starts a node's process and waits until it serves.
func (c *cluster) startNode(ctx context.Context, name string) error {
	n := c.nodes[name]
	p, err := n.host.spawn(c.dir, name, c.binary, "node", "--id", name, "--dir", n.dir, "--listen", n.host.addr(),
		"--store", "http://"+c.net.byName["store"].addr(), "--segment-file", "20MiB", "--json", "--start-timeout", startLimit.String())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if _, err := p.line(ctx, "readiness"); err != nil {
		p.kill()
		return err
	}
	n.mu.Lock()
	n.proc, n.down = p, false
	n.mu.Unlock()
	go func() {
		for range p.lines {
		}
		<-p.done
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.proc == p && !n.down {
			c.fatal(fmt.Errorf("node %s ended by itself: %v; see %s.log", name, p.err, filepath.Join(c.dir, name)))
		}
	}()
	return nil
}

// process returns the node's process.
func (n *node) process() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc
}

func (n *node) kill() {
	n.mu.Lock()
	n.down = true
	p := n.proc
	n.mu.Unlock()
	p.signal(syscall.SIGKILL)
	<-p.done
}

// fill takes all space of the node's file system, free gives it back.
func (n *node) fill() error {
	f, err := os.Create(n.ballast)
	if err != nil {
		return err
	}
	defer f.Close()
	at := int64(0)
	for size := int64(smallFSBytes); size >= 4096; {
		if err := unix.Fallocate(int(f.Fd()), 0, at, size); err == nil {
			at += size
		} else if errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("fill %s: %w", n.ballast, err)
		}
	}
	return nil
}

func (n *node) free() error { return os.Remove(n.ballast) }

// startClient starts the worker of a client host and waits until it is connected.
func (c *cluster) startClient(ctx context.Context, name string) error {
	ch := c.clients[name]
	c.mu.Lock()
	number := len(c.histories) + 1
	file := filepath.Join(c.dir, fmt.Sprintf("history-%03d-%s.jsonl", number, name))
	c.histories = append(c.histories, file)
	c.mu.Unlock()
	args := append([]string{"worker", "--name", name, "--number", strconv.Itoa(number), "--history", file}, ch.args...)
	p, err := ch.host.spawn(c.dir, name, c.self, args...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if _, err := p.line(ctx, "its connection"); err != nil {
		p.kill()
		return err
	}
	waiting := make(map[uint64]chan error)
	ch.mu.Lock()
	ch.proc, ch.waiting, ch.stopping = p, waiting, false
	ch.mu.Unlock()
	go func() {
		for line := range p.lines {
			var a answer
			if err := json.Unmarshal(line, &a); err != nil {
				c.fatal(fmt.Errorf("client %s says %q", name, line))
				continue
			}
			ch.mu.Lock()
			w := waiting[a.ID]
			delete(waiting, a.ID)
			ch.mu.Unlock()
			if w != nil {
				if a.Err != "" {
					w <- errors.New(a.Err)
				}
				close(w)
			}
		}
		<-p.done
		ch.mu.Lock()
		defer ch.mu.Unlock()
		for id, w := range waiting {
			w <- fmt.Errorf("the worker of %s ended", name)
			close(w)
			delete(waiting, id)
		}
		if !ch.stopping {
			c.fatal(fmt.Errorf("the worker of %s ended by itself: %v; see %s.log", name, p.err, filepath.Join(c.dir, name)))
		}
	}()
	return nil
}

// kill is kill -9 of the worker.
func (ch *clientHost) kill() {
	ch.mu.Lock()
	ch.stopping = true
	p := ch.proc
	ch.mu.Unlock()
	p.signal(syscall.SIGKILL)
	<-p.done
}

func (ch *clientHost) process() *process {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.proc
}

// tell gives the worker a command and waits for its answer, which comes soon after limit at the latest.
func (ch *clientHost) tell(ctx context.Context, limit time.Duration, cmd command) error {
	return ch.send(limit, cmd)(ctx)
}

// send gives the worker a command; what it returns waits for the answer.
func (ch *clientHost) send(limit time.Duration, cmd command) func(ctx context.Context) error {
	answered := make(chan error, 1)
	ch.mu.Lock()
	ch.next++
	cmd.ID, cmd.LimitSec = ch.next, limit.Seconds()
	ch.waiting[cmd.ID] = answered
	line, _ := json.Marshal(cmd) // texts and numbers
	_, err := ch.proc.stdin.Write(append(line, '\n'))
	ch.mu.Unlock()
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, limit+10*time.Second, fmt.Errorf("no answer within %v", limit+10*time.Second))
		defer cancel()
		if err == nil {
			select {
			case err = <-answered:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		if err != nil {
			return fmt.Errorf("client %s, %s %s: %w", ch.host.name, cmd.Do, cmd.Log, err)
		}
		return nil
	}
}

// stop ends all processes.
func (c *cluster) stop() {
	var wg sync.WaitGroup
	for _, ch := range c.clients {
		wg.Go(func() {
			if p := ch.process(); p != nil {
				ch.mu.Lock()
				ch.stopping = true
				ch.mu.Unlock()
				p.signal(syscall.SIGCONT)
				p.signal(syscall.SIGKILL) // its history is written as it goes
				<-p.done
			}
		})
	}
	wg.Wait()
	for _, n := range c.nodes {
		wg.Go(func() {
			n.mu.Lock()
			n.down = true
			p := n.proc
			n.mu.Unlock()
			if p != nil {
				p.stop()
			}
		})
	}
	wg.Wait()
	if c.store != nil {
		c.store.kill()
	}
}
