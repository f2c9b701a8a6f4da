package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/btrlog/btrlog/bench/cluster"
	"github.com/btrlog/btrlog/bench/load"
)

// system is one set-up of a peer, or the product.
type system struct {
	name, what string
	peer       string // systems with the same peer are set-ups of one, of which the best counts
	prepare    func(ctx context.Context, o *options) error
	start      func(ctx context.Context, o *options, dir string) (*running, error)
}

const product = "btrlog"

var systems = []*system{
	{name: product, what: "3 nodes, quorum 2, direct synced writes", peer: product, prepare: buildProduct, start: startProduct},
	{name: "file", what: "local file written in advance, write and fdatasync, not replicated", peer: "local file",
		start: func(_ context.Context, o *options, dir string) (*running, error) {
			return &running{kind: load.FileKind, words: []string{dir}, own: true}, nil
		}},
	{name: "etcd", what: "v3, 3 members, put", peer: "etcd",
		start: func(_ context.Context, o *options, dir string) (*running, error) { return startEtcd(o, dir) }},
	{name: "nats", what: "JetStream R3, sync always, a stream for each log", peer: "NATS R3",
		start: func(_ context.Context, o *options, dir string) (*running, error) { return startNATS(o, dir, false) }},
	{name: "nats-one", what: "JetStream R3, sync always, one stream for all logs", peer: "NATS R3",
		start: func(_ context.Context, o *options, dir string) (*running, error) { return startNATS(o, dir, true) }},
	{name: "bookkeeper", what: "3 bookies, acknowledgement quorum 2, default", peer: "BookKeeper default", prepare: fetchBookKeeper, start: bookkeeper("default")},
	{name: "bookkeeper-tuned", what: "no group wait, flush when the queue is empty, two journals", peer: "BookKeeper tuned", prepare: fetchBookKeeper, start: bookkeeper("tuned")},
	{name: "bookkeeper-busy", what: "the same with threads that wait busily", peer: "BookKeeper tuned", prepare: fetchBookKeeper, start: bookkeeper("busy")},
}

func bookkeeper(setup string) func(context.Context, *options, string) (*running, error) {
	return func(ctx context.Context, o *options, dir string) (*running, error) {
		return startBookKeeper(ctx, o, dir, setup)
	}
}

// notRun are what MEASURE names and this program cannot run.
var notRun = [][2]string{{"a replicated network block device", "DRBD and the like need kernel modules, which this program does not load"}}

func buildProduct(_ context.Context, o *options) (err error) {
	if o.binary == "" {
		o.binary, err = load.BuildProduct(o.cache)
	}
	return err
}

func startProduct(_ context.Context, o *options, dir string) (*running, error) {
	c, err := cluster.Start(cluster.Config{Binary: o.binary, Dir: dir, Nodes: 3})
	if err != nil {
		return nil, err
	}
	return &running{product: c, kind: cluster.Kind}, nil
}

// running is a system that runs.
type running struct {
	product *cluster.Cluster
	nodes   []*load.Process // those that hold data
	helpers []*load.Process
	kind    string // of its client
	words   []string
	own     bool // the client's process does it all
	clients []*load.Client
	files   []*os.File
}

func (r *running) run(dir string, env []string, name string, args ...string) (*load.Process, error) {
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("stderr%d", len(r.files))))
	if err != nil {
		return nil, err
	}
	r.files = append(r.files, f)
	return load.Start(f, dir, env, name, args...)
}

func (r *running) node(dir, name string, env []string, args ...string) error {
	p, err := r.run(dir, env, name, args...)
	if err == nil {
		r.nodes = append(r.nodes, p)
	}
	return err
}

func (r *running) helper(dir, name string, args ...string) error {
	p, err := r.run(dir, nil, name, args...)
	if err == nil {
		r.helpers = append(r.helpers, p)
	}
	return err
}

func (r *running) client(cpus string) (*load.Client, error) {
	var c *load.Client
	var err error
	if r.product != nil {
		c, err = r.product.Client(cpus, fmt.Sprintf("c%d-", len(r.clients)), 2, "disk")
	} else {
		c, err = load.StartClient(r.kind, cpus, r.words...)
	}
	if err == nil {
		r.clients = append(r.clients, c)
	}
	return c, err
}

// pids are the processes that hold data.
func (r *running) pids() (pids []int) {
	if r.product != nil {
		return r.product.Pids()
	}
	for _, n := range r.nodes {
		pids = append(pids, n.Cmd.Process.Pid)
	}
	if r.own {
		for _, c := range r.clients {
			pids = append(pids, c.Cmd.Process.Pid)
		}
	}
	return pids
}

func (r *running) processor() (sum time.Duration) {
	if r.product != nil {
		return r.product.Processor()
	}
	for _, p := range append(r.nodes, r.helpers...) {
		sum += p.Processor()
	}
	return sum
}

func (r *running) stop() (err error) {
	for _, c := range r.clients {
		c.Stop()
	}
	if r.product != nil {
		err = r.product.Stop()
	}
	for _, n := range append(r.nodes, r.helpers...) {
		n.Kill() // its directory is removed
	}
	for _, f := range r.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
