package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/objstore"
)

const nodeLong = `Run one log node until SIGINT or SIGTERM.

The node keeps its data in one directory, which belongs to it alone, and its metadata and archive in the cluster's object store. All nodes
of a cluster are given the same store; the first one that comes makes the cluster. The store has no default, because nodes that each take
a store of their own would be clusters of one without anyone noticing.

Every flag but --json can be given in the environment or in the configuration file as well: --listen as BTRLOG_NODE_LISTEN or node.listen
('btrlog config --help').

When the node serves it prints one line. It ends with exit code 0 after a signal, and with 1 and one line on standard error when it cannot
start or a part of it fails; what was acknowledged is on disk in either case.`

type nodeFlags struct {
	cfg      node.Config
	id       string
	store    string
	engine   string
	compress string
	pin      string
	segment  byteSize
	budget   byteSize
	memory   byteSize
	gc       int
	verbose  bool
	json     bool
}

func nodeCommand() *cobra.Command {
	var o nodeFlags
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run a log node",
		Long:  nodeLong,
		Example: `  btrlog node --id n1 --dir /var/lib/btrlog/n1 --listen 10.0.0.1:4460 --store file:///mnt/shared/btrlog
  btrlog node --id n2 --dir ./n2 --listen 127.0.0.1:4470 --store file:///tmp/btrlog/store --shards 2 --zone b`,
		Args: noArgs,
	}
	f := cmd.Flags()
	f.StringVar(&o.id, "id", "", "name of the node in its cluster; a replaced disk keeps it (default: the host's name)")
	f.StringVar(&o.cfg.Dir, "dir", "./btrlog-node", "data directory; it is made if absent")
	f.StringVar(&o.cfg.Listen, "listen", defaultListen, "host:port of UDP and HTTP; shard k listens on UDP port + k; port 0 takes free ports")
	f.StringVar(&o.cfg.Advertise, "advertise", "", "host or host:port under which clients reach the node (default: as --listen)")
	f.StringVar(&o.cfg.Zone, "zone", "", "failure domain of the node, for the placement of logs")
	f.IntVar(&o.cfg.Shards, "shards", 1, "shards that take new logs; each is a thread with its own port and directory")
	f.StringVar(&o.store, "store", "", "the cluster's object store, as a URL such as file:///var/lib/btrlog/store (environment: "+envStore+"); required")
	f.StringVar(&o.cfg.Root, "root", "", "prefix of the cluster's keys in the store (environment: "+envRoot+")")
	storageFlags(cmd, &o.cfg.Buffered, &o.segment)
	f.Var(&o.budget, "disk-budget", "bound of all segment files together, such as 100GiB; takeovers may go above it by three segments per shard (default: the disk)")
	f.Var(&o.memory, "memory-budget", "memory for what was written last, of all shards together; older records are read from disk (default 64MiB)")
	f.DurationVar(&o.cfg.PackEvery, "pack-every", 40*time.Second, "at most how often the short tails that are due of all logs are archived, in one object together; negative: an object for each")
	f.StringVar(&o.compress, "compress", "none", "how archived records are stored: none, zstd. Programs of your own that read them must then import github.com/btrlog/btrlog/compress/zstd")
	f.StringVar(&o.engine, "engine", string(ring.Auto), "how shards talk to the kernel: plain (system calls), uring (io_uring, Linux 6.1 or later; plain where it is not allowed), auto (what was measured best: plain)")
	f.DurationVar(&o.cfg.Spin, "spin", 0, "for how long an idle shard looks for datagrams before it sleeps, at most 10ms; it keeps a processor per shard busy")
	f.IntVar(&o.cfg.TraceEvery, "trace-every", 0, "how many LSNs of a log apart the appends are of which the node notes where their time went; 0 is 1024, negative is none")
	f.StringVar(&o.pin, "pin-cpus", "", "processors of the shards' threads, such as 2,3: the first shard on the first one, and so on (default: not pinned)")
	f.IntVar(&o.gc, "gc-percent", defaultGCPercent, "garbage that is let grow before it is collected, in percent of what is in use; GOGC, if set, goes before this default, and GOMEMLIMIT bounds both")
	f.DurationVar(&o.cfg.StartTimeout, "start-timeout", 30*time.Second, "longest wait for the object store at the start")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log what the node does, not only warnings, on standard error")
	configurable(f, "node", "store", "root")
	jsonFlag(cmd, &o.json, "the line that says that the node is ready as a JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd) }
	return cmd
}

// defaultGCPercent trades memory for collections. An append leaves no garbage behind, so what there is comes from heartbeats, archiving and
// questions, and what is in use is small; twice the language's default halves how often a shard is stopped, for some tens of megabytes.
const defaultGCPercent = 200

// setGC sets when garbage is collected: as the flag says, or else as the environment does.
func (o *nodeFlags) setGC(cmd *cobra.Command) {
	if _, set := os.LookupEnv("GOGC"); !set || cmd.Flags().Changed("gc-percent") {
		debug.SetGCPercent(o.gc)
	}
}

func storageFlags(cmd *cobra.Command, buffered *bool, segment *byteSize) {
	cmd.Flags().BoolVar(buffered, "buffered", false, "write through the page cache with fdatasync, instead of direct writes into preallocated files")
	cmd.Flags().Var(segment, "segment-file", "size of a segment file of the storage engine, at least 20MiB, so that the largest record fits (default 64MiB)")
}

// minSegmentFile is twice the largest append and some room: an engine takes nothing that is larger than half a file, and a node
// that can never store a record that the client may give out would hold up its log for ever.
const minSegmentFile = 20 << 20

// defaultSegmentFile is the storage engine's.
const defaultSegmentFile = 64 << 20

func checkSegmentFile(n byteSize) error {
	if n != 0 && n < minSegmentFile {
		return usagef("--segment-file is %d bytes, at least 20MiB are needed for the largest record", int64(n))
	}
	return nil
}

func (o *nodeFlags) run(ctx context.Context, cmd *cobra.Command) error {
	signal.Ignore(syscall.SIGPIPE) // who reads our output may go; the node stays
	o.cfg.SegmentBytes, o.cfg.DiskBudgetBytes, o.cfg.MemoryBudgetBytes = int64(o.segment), int64(o.budget), int64(o.memory)
	o.cfg.Log = serverLogger(cmd, o.verbose)
	if err := checkSegmentFile(o.segment); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	o.setGC(cmd)
	roomForThreads(o.cfg.Shards + sparePlaces)
	store, err := objstore.Open(ctx, o.store)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer store.Close() // after the node, which has finished its requests; there is nothing to lose in a store that is closed
	o.cfg.Store = store
	prepared := slowNotice(cmd.ErrOrStderr(), fmt.Sprintf("preparing node %s in %s", o.id, absolute(o.cfg.Dir)))
	n, err := node.Start(ctx, o.cfg)
	prepared()
	if err != nil {
		return interrupted(ctx, explainStart(err))
	}
	r := readinessOf(n, &o.cfg)
	if o.json {
		_ = printJSON(cmd.OutOrStdout(), r) // a node whose output nobody reads still serves
	} else {
		fmt.Fprintln(cmd.OutOrStdout(), r.line())
	}
	if err := n.Wait(ctx); err != nil {
		return err
	}
	stopped(cmd.ErrOrStderr())
	return nil
}

func (o *nodeFlags) check() error {
	if o.store == "" {
		return usagef("--store is missing: all nodes of a cluster share one object store, for example file:///var/lib/btrlog/store")
	}
	if err := checkStoreURL(o.store); err != nil {
		return err
	}
	if err := checkHostPort(o.cfg.Listen); err != nil {
		return usagef("--listen: %w", err)
	}
	if o.id == "" {
		host, err := os.Hostname()
		if err != nil {
			return usagef("--id is missing, and the host has no name to take instead: %w", err)
		}
		o.id = host
	}
	var err error
	if o.cfg.Engine, err = ring.ParseEngine(o.engine); err != nil {
		return usagef("--engine: %w", err)
	}
	if o.cfg.Compression, err = archive.ParseCompression(o.compress); err != nil {
		return usagef("--compress: %w", err)
	}
	if o.cfg.Spin < 0 || o.cfg.Spin > 10*time.Millisecond {
		return usagef("--spin is %v; 0 to 10ms are allowed", o.cfg.Spin)
	}
	if o.gc < 10 {
		return usagef("--gc-percent is %d; at least 10 are needed", o.gc)
	}
	if o.cfg.PinCPUs, err = parseCPUs(o.pin); err != nil {
		return usagef("--pin-cpus: %w", err)
	}
	if o.cfg.StartTimeout <= 0 {
		return usagef("--start-timeout is %v; it must be positive", o.cfg.StartTimeout)
	}
	if err := meta.CheckName(o.id); err != nil {
		return usagef("--id: %w", err)
	}
	if host, _, _ := net.SplitHostPort(o.cfg.Listen); o.cfg.Advertise == "" { // it was just checked
		if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
			return usagef("--listen %s is every address; --advertise must say under which host or host:port clients reach the node", o.cfg.Listen)
		}
	}
	file := o.segment
	if file == 0 {
		file = defaultSegmentFile
	}
	// A directory with more shards than these needs more, which the start finds out.
	if least := byteSize(max(o.cfg.Shards, 1)) * 3 * file; o.budget > 0 && o.budget < least {
		return usagef("--disk-budget is %v; each shard needs three segment files, so at least %v are needed, or a smaller --segment-file", &o.budget, &least)
	}
	o.cfg.Node = protocol.NodeID(o.id)
	return nil
}

// parseCPUs reads the numbers of processors.
func parseCPUs(text string) (cpus []int, err error) {
	if text == "" {
		return nil, nil
	}
	for f := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil || n < 0 || n > 1023 {
			return nil, fmt.Errorf("%q is no number of a processor; the form is 2,3", f)
		}
		cpus = append(cpus, n)
	}
	return cpus, nil
}

// serverLogger writes warnings, and with verbose everything, to standard error.
func serverLogger(cmd *cobra.Command, verbose bool) *slog.Logger {
	level := slog.LevelWarn
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
}

// explainStart adds what to do to the errors of the operating system that a start can meet.
func explainStart(err error) error {
	var damage *lst.Corruption
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return &hinted{err, "stop the process that has the port, or choose another with --listen"}
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return &hinted{err, "--listen must name an address of this host"}
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EROFS):
		return &hinted{err, "run it as the user who owns the directory, or choose another with --dir"}
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, lst.ErrNoSpace):
		return &hinted{err, "make room in the file system of --dir, or choose another"}
	case errors.As(err, &damage):
		return &hinted{err, fmt.Sprintf("'btrlog lst verify %s' finds all damage; the other nodes have the records: start with an empty --dir, and let each log adopt it "+
			"('btrlog log replace')", filepath.Dir(damage.File))}
	}
	return err
}

// absolute is for messages: a path that cannot be made absolute stays as it is.
func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}
