package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst/vfs"
	"github.com/btrlog/btrlog/objstore/localdir"
)

const devLong = `Run a whole cluster in one process, for development: log nodes n1, n2, … and an object store in a local directory. It needs no
configuration, keeps everything in one directory, and goes on from there at the next start.

The nodes are the same code as 'btrlog node' and write as safely, but they share a process and a disk: for tests, not for data that must
survive the loss of either.`

type devFlags struct {
	nodes    int
	dir      string
	listen   string
	shards   int
	buffered bool
	segment  byteSize
	verbose  bool
	json     bool
}

const devDefaultNodes = 3

func devCommand() *cobra.Command {
	var o devFlags
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a cluster for development in one process",
		Long:  devLong,
		Example: `  btrlog dev
  btrlog dev --nodes 5 --dir /tmp/five --listen 127.0.0.1:0`,
		Args: noArgs,
	}
	f := cmd.Flags()
	f.IntVar(&o.nodes, "nodes", 0, "number of log nodes (default 3, or as many as the directory has)")
	f.StringVar(&o.dir, "dir", "./btrlog-dev", "directory of the cluster; it is made if absent")
	f.StringVar(&o.listen, "listen", defaultListen, "host:port of the first node; the others take the ports behind it; port 0 takes free ports")
	f.IntVar(&o.shards, "shards", 1, "shards per node that take new logs")
	storageFlags(cmd, &o.buffered, &o.segment)
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log what the nodes do, not only warnings, on standard error")
	configurable(f, "dev")
	jsonFlag(cmd, &o.json, "what to connect to as one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd) }
	return cmd
}

func (o *devFlags) run(ctx context.Context, cmd *cobra.Command) error {
	signal.Ignore(syscall.SIGPIPE) // who reads our output may go; the cluster stays
	if err := errors.Join(o.check(cmd), checkSegmentFile(o.segment)); err != nil {
		return err
	}
	lock, err := o.claim(cmd.Flags().Changed("nodes"))
	if err != nil {
		return explainStart(err)
	}
	defer lock.Close()
	store, err := localdir.Open(filepath.Join(o.dir, devStore), localdir.Options{})
	if err != nil {
		return explainStart(err)
	}
	defer store.Close() // after the nodes, which have finished their requests
	base := node.Config{Shards: o.shards, Store: store, Buffered: o.buffered, SegmentBytes: int64(o.segment), Log: serverLogger(cmd, o.verbose)}
	prepared := slowNotice(cmd.ErrOrStderr(), fmt.Sprintf("preparing %s in %s", plural(int64(o.nodes), "node"), absolute(o.dir)))
	roomForThreads(o.nodes*o.shards + sparePlaces)
	nodes, ready, err := o.start(ctx, base)
	prepared()
	if err != nil {
		return interrupted(ctx, explainStart(err))
	}
	if o.json {
		_ = printJSON(cmd.OutOrStdout(), o.connection(ready)) // a cluster whose output nobody reads still serves
	} else {
		o.print(cmd.OutOrStdout(), ready)
	}
	failed := make(chan error, len(nodes))
	for _, n := range nodes {
		go func() { failed <- <-n.Failed() }() // until the process ends
	}
	select {
	case <-ctx.Done():
		if err := closeAll(nodes); err != nil {
			return err
		}
		stopped(cmd.ErrOrStderr())
		return nil
	case err := <-failed:
		_ = closeAll(nodes) // the failure is what counts
		return err
	}
}

func (o *devFlags) check(cmd *cobra.Command) error {
	if o.nodes < 1 && cmd.Flags().Changed("nodes") || o.nodes > protocol.MaxEnsemble {
		return usagef("--nodes is %d; 1 to %d are allowed", o.nodes, protocol.MaxEnsemble)
	}
	if err := checkHostPort(o.listen); err != nil {
		return usagef("--listen: %w", err)
	}
	host, port, _ := net.SplitHostPort(o.listen) // it was just checked
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		return usagef("--listen %s is every address; name one, since it is also the address that clients are told", o.listen)
	}
	if first, _ := strconv.Atoi(port); first > 0 && first+max(o.nodes, devDefaultNodes)*o.shards > 1<<16 {
		return usagef("--listen %s leaves no room for the ports of the other nodes behind it", o.listen)
	}
	return nil
}

const (
	devLock  = "LOCK"
	devStore = "store"
)

var devNodeDir = regexp.MustCompile(`^n([1-9][0-9]{0,3})$`)

// claim takes the directory for this process, and decides how many nodes there are.
func (o *devFlags) claim(chosen bool) (io.Closer, error) {
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return nil, fmt.Errorf("directory %s: %w", o.dir, err)
	}
	entries, err := os.ReadDir(o.dir)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", o.dir, err)
	}
	have := 0
	for _, e := range entries {
		m := devNodeDir.FindStringSubmatch(e.Name())
		switch {
		case m != nil:
			n, _ := strconv.Atoi(m[1]) // at most four digits
			have = max(have, n)
		case e.Name() != devLock && e.Name() != devStore:
			return nil, &hinted{fmt.Errorf("directory %s holds %s, which is not of a development cluster", absolute(o.dir), e.Name()),
				"give the cluster a directory of its own with --dir"}
		}
	}
	switch {
	case !chosen:
		o.nodes = have
		if have == 0 {
			o.nodes = devDefaultNodes
		}
	case o.nodes < have:
		// A log whose nodes are not all there is under-protected at best. That must be asked for node by node, not by a smaller number.
		return nil, &hinted{fmt.Errorf("directory %s holds %d nodes, --nodes is %d", absolute(o.dir), have, o.nodes),
			"leave --nodes out, or take another directory with --dir"}
	}
	lock, err := vfs.OS.Lock(filepath.Join(o.dir, devLock))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, &hinted{fmt.Errorf("directory %s is in use by another 'btrlog dev'", absolute(o.dir)),
			"use that one, stop it, or take another directory with --dir and another port with --listen"}
	}
	if err != nil {
		return nil, fmt.Errorf("lock of directory %s: %w", absolute(o.dir), err)
	}
	return lock, nil
}

// start starts all nodes at the same time. After an error none is left running.
func (o *devFlags) start(ctx context.Context, base node.Config) ([]*node.Node, []readiness, error) {
	host, port, err := net.SplitHostPort(o.listen)
	if err != nil {
		return nil, nil, err
	}
	first, err := strconv.Atoi(port)
	if err != nil {
		return nil, nil, err
	}
	nodes, ready, errs := make([]*node.Node, o.nodes), make([]readiness, o.nodes), make([]error, o.nodes)
	var wg sync.WaitGroup
	for i := range nodes {
		cfg := base
		name := "n" + strconv.Itoa(i+1)
		cfg.Node, cfg.Dir = protocol.NodeID(name), filepath.Join(o.dir, name)
		cfg.Log = base.Log.With("node", name)
		at := 0
		if first != 0 {
			at = first + i*o.shards
		}
		cfg.Listen = net.JoinHostPort(host, strconv.Itoa(at))
		wg.Go(func() {
			if nodes[i], errs[i] = node.Start(ctx, cfg); errs[i] == nil {
				ready[i] = readinessOf(nodes[i], &cfg)
			}
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			_ = closeAll(nodes) // the first failure is what counts
			return nil, nil, fmt.Errorf("node n%d: %w", i+1, err)
		}
	}
	return nodes, ready, nil
}

// closeAll closes the nodes that there are.
func closeAll(nodes []*node.Node) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		if n != nil {
			wg.Go(func() { errs[i] = n.Close() })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// devConnection says how to reach the cluster.
type devConnection struct {
	Addresses []string    `json:"addresses"`
	Store     string      `json:"store"`
	Dir       string      `json:"dir"`
	PID       int         `json:"pid"`
	Nodes     []readiness `json:"nodes"`
}

func (o *devFlags) connection(ready []readiness) devConnection {
	abs := absolute(o.dir)
	u := url.URL{Scheme: "file", Path: filepath.Join(abs, devStore)}
	c := devConnection{Store: u.String(), Dir: abs, PID: os.Getpid(), Nodes: ready}
	for _, r := range ready {
		c.Addresses = append(c.Addresses, r.Address)
	}
	return c
}

func (o *devFlags) print(w io.Writer, ready []readiness) {
	c := o.connection(ready)
	fmt.Fprintf(w, "btrlog dev: %s ready in %s; durability %s, file system %s\n", plural(int64(len(ready)), "node"), c.Dir, ready[0].Durability, ready[0].FileSystem)
	for _, r := range ready {
		fmt.Fprintf(w, "  %s at %s, incarnation %s\n", r.Node, r.Address, r.Incarnation)
	}
	flag := ""
	if c.Addresses[0] != defaultListen {
		flag = " --nodes " + c.Addresses[0]
	}
	quoted := make([]string, len(c.Addresses))
	for i, a := range c.Addresses {
		quoted[i] = strconv.Quote(a)
	}
	fmt.Fprintf(w, `
On the command line:
  btrlog log%[1]s create hello
  echo world | btrlog log%[1]s append hello
  btrlog log%[1]s cat --lines hello
In Go:
  client, err := btrlog.Connect(ctx, btrlog.Config{Nodes: []string{%[2]s}})

Ctrl-C stops the cluster; its data stays.
`, flag, strings.Join(quoted, ", "))
}
