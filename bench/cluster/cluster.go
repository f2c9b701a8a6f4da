// Package cluster runs log nodes as processes for the benchmarks: the built program as it is, or, where a delay is injected into the
// device, a node of this module with the same settings, whose file system is late (Jitter).
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/btrlog/btrlog/bench/load"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst/vfs"
	"github.com/btrlog/btrlog/objstore"
	_ "github.com/btrlog/btrlog/objstore/localdir" // file://
)

// Config of a cluster.
type Config struct {
	// Binary is the built program. It is not used for nodes with Jitter.
	Binary string
	// Dir is where the cluster makes its directory, on the device that is measured.
	Dir   string
	Nodes int
	// Jitter is of all nodes; node i draws with seed Seed + i.
	Jitter Jitter
	// RTT, if not empty, is the injected round-trip time between the client and each node.
	RTT []time.Duration
	// Flags are further ones of the built program.
	Flags []string
}

// Cluster is running nodes.
type Cluster struct {
	cfg    Config
	dir    string
	nodes  []*member
	relays []*relay
}

type member struct {
	id      string
	args    []string
	process *load.Process // nil: killed
	spent   time.Duration // processor time of processes that are gone
}

// Start starts the nodes.
func Start(cfg Config) (*Cluster, error) {
	dir, err := os.MkdirTemp(cfg.Dir, "btrlog-bench-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, dir: dir}
	for i := range cfg.Nodes {
		m := &member{id: fmt.Sprintf("n%d", i+1)}
		port, err := freePort()
		if err != nil {
			return nil, errors.Join(err, c.Stop())
		}
		listen := net.JoinHostPort("127.0.0.1", port)
		j := cfg.Jitter
		j.Seed += uint64(i)
		m.args = []string{"node", "--id", m.id, "--dir", filepath.Join(dir, m.id), "--store", c.store(), "--json", "--listen", listen}
		if cfg.Jitter.Mean > 0 {
			text, err := json.Marshal(j)
			if err != nil {
				return nil, errors.Join(err, c.Stop())
			}
			m.args = []string{NodeRole, m.id, filepath.Join(dir, m.id), c.store(), listen, string(text)}
		} else {
			m.args = append(m.args, cfg.Flags...)
		}
		if i < len(cfg.RTT) {
			r, err := newRelay(net.JoinHostPort(fmt.Sprintf("127.0.1.%d", i+1), port), listen, cfg.RTT[i]/2)
			if err != nil {
				return nil, errors.Join(err, c.Stop())
			}
			c.relays = append(c.relays, r)
			m.args = append(m.args, "--advertise", r.front.LocalAddr().String())
		}
		c.nodes = append(c.nodes, m)
		if err := c.StartNode(i); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	return c, nil
}

func (c *Cluster) store() string { return "file://" + filepath.Join(c.dir, "store") }

// Client starts a client whose logs' names begin with prefix.
func (c *Cluster) Client(cpus, prefix string, quorum int, durability string) (*load.Client, error) {
	return c.BatchClient(cpus, prefix, quorum, durability, 0, 1)
}

// BatchClient is Client for logs with this append window (0: the default), each of whose appends is a batch of so many records.
func (c *Cluster) BatchClient(cpus, prefix string, quorum int, durability string, window, batch int) (*load.Client, error) {
	return load.StartClient(Kind, cpus, c.store(), prefix, strconv.Itoa(c.cfg.Nodes), strconv.Itoa(quorum), durability, strconv.Itoa(window), strconv.Itoa(batch))
}

// StartNode starts a node that does not run.
func (c *Cluster) StartNode(i int) error {
	m, program := c.nodes[i], c.cfg.Binary
	if m.args[0] == NodeRole {
		var err error
		if program, err = os.Executable(); err != nil {
			return err
		}
	}
	p, err := load.Start(os.Stderr, "", nil, program, m.args...)
	if err != nil {
		return err
	}
	if _, err := p.Line(); err != nil {
		p.Kill()
		return fmt.Errorf("node %s: %w", m.id, err)
	}
	m.process = p
	return nil
}

// KillNode ends a node by SIGKILL.
func (c *Cluster) KillNode(i int) {
	m := c.nodes[i]
	m.spent += m.process.Processor()
	m.process.Kill()
	m.process = nil
}

// Processor is how long all nodes have run on a processor.
func (c *Cluster) Processor() (sum time.Duration) {
	for _, m := range c.nodes {
		sum += m.spent
		if m.process != nil {
			sum += m.process.Processor()
		}
	}
	return sum
}

// Pids are the process ids of the nodes that run.
func (c *Cluster) Pids() (pids []int) {
	for _, m := range c.nodes {
		if m.process != nil {
			pids = append(pids, m.process.Cmd.Process.Pid)
		}
	}
	return pids
}

// Stop stops the nodes and removes the directory.
func (c *Cluster) Stop() error {
	for _, m := range c.nodes {
		if m.process != nil {
			m.process.Stop()
		}
	}
	for _, r := range c.relays {
		r.close()
	}
	return os.RemoveAll(c.dir)
}

// NodeRole is the first argument of a process that is a node with jitter.
const NodeRole = "jitter-node"

// ServeNode is the process of a node with jitter, if args say so.
func ServeNode(args []string) (mine bool, err error) {
	if len(args) < 6 || args[0] != NodeRole {
		return false, nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var j Jitter
	if err := json.Unmarshal([]byte(args[5]), &j); err != nil {
		return true, err
	}
	store, err := objstore.Open(ctx, args[3])
	if err != nil {
		return true, err
	}
	cfg := node.Config{Node: protocol.NodeID(args[1]), Dir: args[2], Store: store, Listen: args[4], FS: newJitterFS(vfs.OS, j),
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))}
	if len(args) == 8 {
		cfg.Advertise = args[7]
	}
	n, err := node.Start(ctx, cfg)
	if err != nil {
		return true, errors.Join(err, store.Close())
	}
	fmt.Println(n.Address())
	go func() { // who started us is gone
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return true, errors.Join(n.Wait(ctx), store.Close())
}

// freePort is a port that is free for UDP and TCP on 127.0.0.1 now.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
