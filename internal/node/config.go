package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/lst/vfs"
	"github.com/btrlog/btrlog/objstore"
)

// Config of a node. Fields without a default are required.
type Config struct {
	// Dir is the data directory. It belongs to one node of one cluster, and to one process at a time. It is made if absent.
	Dir string
	// Node is the node's name: it survives a wiped disk, the incarnation does not.
	Node protocol.NodeID
	// Listen is the host:port of shard 0's UDP port and of HTTP over TCP, the same number for both. Shard k listens on port + k.
	// Port 0 takes free ports.
	Listen string
	// Advertise is the host, or host:port, under which clients reach the node. Default: Listen, unless that is no address of a
	// host.
	Advertise string
	// Zone is the failure domain, for placement; may be empty.
	Zone string
	// Shards is how many shards take new logs. Default 1.
	Shards int

	// Store is the object store for metadata and archive; it stays the caller's to close. Root is the prefix of the cluster's
	// keys in it, without slashes at its ends; may be empty.
	Store objstore.Store
	Root  string

	// Mode is the way to the disk; the default of a node is lst.Direct, so set Buffered to have page cache and fdatasync.
	Buffered bool
	// SegmentBytes is the size of a file of the storage engine; default 64 MiB. Appends of more than half of it are refused.
	SegmentBytes int64
	// DiskBudgetBytes bounds the files of all shards together; 0: no bound but the disk. When it is used up appends are
	// refused, and each shard may go above it by reserveFiles for takeovers and by one file for what frees space: set it below
	// the size of the disk by so much.
	DiskBudgetBytes int64
	// MemoryBudgetBytes bounds the memory in which all shards together keep what was written last, so that reading a hot tail
	// costs no disk; older records are read from the shards' stores. Default 64 MiB, at least 1 MiB per shard.
	MemoryBudgetBytes int64
	// FS is the file system of the storage engine; nil is the real one. Identity and lock are always real files.
	FS vfs.FS

	// FlushWorkers is how many segments the node archives at a time, each held in memory. Default 2.
	FlushWorkers int
	// FlushGrace is how long the node of the next rank waits for the one before it to archive a segment. Default 2 s.
	FlushGrace time.Duration
	// PackEvery is how often, at most, the node puts the short stretches that are due of all its logs into one object; it delays
	// them by no more than that. Default 40 s; negative: each is an object of its own.
	PackEvery time.Duration
	// Compression is how the node stores archived records; its codec must be linked. Whoever reads them needs the codec too: nodes
	// and clients hand objects on as they are. Nodes of one cluster may differ.
	Compression archive.Compression
	// PackSettled is how long the store must have had a pack before it is merged, or deleted because it was. Listings of the store
	// must not lag by as much. Default 5 min.
	PackSettled time.Duration
	// IdleRelease is how long a log must have been idle before its archived window is dropped too. Default 1 min.
	IdleRelease time.Duration

	// PeerInterval is how often the node asks the other nodes for a sign of life, and PeerTimeout is how long one may give none
	// before it is taken for down and failure snapshots are made (P12). Defaults 1 s and 5 s.
	PeerInterval, PeerTimeout time.Duration
	// CollectEvery is how often the node looks for archived objects that may go: below the trim point, beyond the retention, of
	// deleted logs. Default 10 min; negative: never.
	CollectEvery time.Duration
	// StoreGrace is for how long the object store may be silent before the node says that it is not ready. Default 1 min.
	StoreGrace time.Duration
	// StoreProbe is how often the node asks the object store for a small object when nobody else asks for anything, and how often
	// it asks again while there is no answer, at most. Default 30 s.
	StoreProbe time.Duration

	// StartTimeout bounds the wait for the object store at the start. Default 30 s.
	StartTimeout time.Duration
	// InboxMessages and InboxBytes bound what waits for one shard from HTTP and from other shards. Default 4096 and 64 MiB.
	InboxMessages int
	InboxBytes    int
	// MTU is that of the network to the clients, in bytes; default 1500. Larger answers wait to be asked for over HTTP.
	MTU int

	// Engine is how the shards' threads talk to the kernel; where it cannot be had the node says so and takes plain system calls.
	// Default ring.Auto.
	Engine ring.Engine
	// Spin is for how long a shard that has nothing to do looks for datagrams before it sleeps. It keeps a processor per shard busy
	// for that long after every datagram, and helps only where the processors are not needed by others. At most 10 ms. Default: not.
	Spin time.Duration
	// PinCPUs are the processors of the shards' threads, shard k on entry k modulo their number. A thread that is pinned waits for
	// its processor although another one is free. Default: where the system puts them.
	PinCPUs []int

	// TraceEvery is how many LSNs of a log apart the appends are of which the node notes where their time went (TracesPath), rounded up
	// to a power of two. Default stagetrace.Every, which is the writers' too; negative: none.
	TraceEvery int

	// Log is where the node says what happens; default: nowhere.
	Log *slog.Logger
	// Observer, if not nil, is told of every batch.
	Observer Observer
}

// Observer is told what the shards do. Its methods are called on the shards' threads: they must not block or allocate.
type Observer interface {
	// Batch is called after every commit with the messages and records of the batch and how long the commit took.
	Batch(shard, messages, records int, commit time.Duration)
}

func (c *Config) fill() error {
	setInt(&c.Shards, 1)
	setInt(&c.FlushWorkers, 2)
	setInt(&c.InboxMessages, 4096)
	setInt(&c.InboxBytes, 64<<20)
	setInt(&c.MTU, 1500)
	setDuration(&c.FlushGrace, 2*time.Second)
	setDuration(&c.PackEvery, 40*time.Second)
	setDuration(&c.PackSettled, 5*time.Minute)
	setDuration(&c.IdleRelease, time.Minute)
	setDuration(&c.StoreGrace, time.Minute)
	setDuration(&c.StoreProbe, 30*time.Second)
	setDuration(&c.StartTimeout, 30*time.Second)
	setDuration(&c.CollectEvery, 10*time.Minute)
	setDuration(&c.PeerInterval, time.Second)
	setDuration(&c.PeerTimeout, 5*time.Second)
	if c.Engine == "" {
		c.Engine = ring.Auto
	}
	if c.MemoryBudgetBytes == 0 {
		c.MemoryBudgetBytes = 64 << 20
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 64 << 20
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.Dir == "":
		return errors.New("node: no data directory given")
	case c.Store == nil:
		return errors.New("node: no object store given")
	case c.Shards < 1 || c.Shards > maxShards:
		return fmt.Errorf("node: %d shards; 1 to %d are allowed", c.Shards, maxShards)
	case c.FlushWorkers < 1 || c.FlushWorkers > 256:
		return fmt.Errorf("node: %d flush workers; 1 to 256 are allowed", c.FlushWorkers)
	case c.Spin < 0 || c.Spin > maxSpin:
		return fmt.Errorf("node: %v of spinning; 0 to %v are allowed", c.Spin, maxSpin)
	case c.MTU < 576 || c.MTU > 65536:
		return fmt.Errorf("node: MTU of %d bytes; 576 to 65536 are allowed", c.MTU)
	case c.SegmentBytes < 1<<20:
		return fmt.Errorf("node: segment files of %d bytes; at least 1 MiB is needed", c.SegmentBytes)
	case c.MemoryBudgetBytes < int64(c.Shards)<<20:
		return fmt.Errorf("node: memory budget of %d bytes for %d shards; at least 1 MiB is needed for each", c.MemoryBudgetBytes, c.Shards)
	case c.DiskBudgetBytes < 0:
		return fmt.Errorf("node: disk budget of %d bytes", c.DiskBudgetBytes)
	case c.PeerInterval < time.Millisecond || c.PeerTimeout < 2*c.PeerInterval:
		return fmt.Errorf("node: a sign of life every %v, down after %v without: at least 1 ms, and twice that, are needed", c.PeerInterval, c.PeerTimeout)
	case c.CollectEvery > 0 && c.CollectEvery < time.Millisecond:
		return fmt.Errorf("node: collection every %v; at least 1 ms", c.CollectEvery)
	case c.PackEvery > 0 && c.PackEvery < time.Millisecond:
		return fmt.Errorf("node: packs every %v; at least 1 ms", c.PackEvery)
	case c.FlushGrace < 0 || c.IdleRelease < 0 || c.StoreGrace < 0 || c.StoreProbe < 0 || c.StartTimeout < 0 || c.InboxMessages < 1 || c.InboxBytes < 1:
		return errors.New("node: a negative limit")
	}
	if _, err := ring.ParseEngine(string(c.Engine)); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if err := meta.CheckName(string(c.Node)); err != nil {
		return fmt.Errorf("node: id: %w", err)
	}
	if c.Zone != "" {
		if err := meta.CheckName(c.Zone); err != nil {
			return fmt.Errorf("node: zone: %w", err)
		}
	}
	return nil
}

const (
	// maxShards bounds the stores of a node.
	maxShards = 256
	// maxSpin bounds Config.Spin: a shard must do what is due by time.
	maxSpin = 10 * time.Millisecond
	// minFiles is how many files a store's part of the disk budget must hold: one that is written, the next one, and one
	// that waits for its records to be archived.
	minFiles = 3
)

func setInt(p *int, def int) {
	if *p == 0 {
		*p = def
	}
}

func setDuration(p *time.Duration, def time.Duration) {
	if *p == 0 {
		*p = def
	}
}

// reserveFiles is how many files a shard may have above its disk budget for the repairs of takeovers (R15). A repair writes what is
// given out and not known committed again: at most the window of a log. The reserve takes one window of 64 MiB of each of two
// logs, or the few records of each of thousands; beyond it a repair is refused as an append is.
const reserveFiles = 2

// storeOptions returns the options of one shard's store among n.
func (c *Config) storeOptions(n int) lst.Options {
	o := lst.Options{FS: c.FS, Mode: lst.Direct, SegmentBytes: c.SegmentBytes, DiskBudgetBytes: c.DiskBudgetBytes / int64(n),
		ReserveBytes: reserveFiles * c.SegmentBytes, TailCacheBytes: int(max(c.MemoryBudgetBytes/int64(n), 512<<10))}
	if c.Buffered {
		o.Mode = lst.Buffered
	}
	return o
}

// durability names the way to the disk for people.
func (c *Config) durability() string {
	if c.Buffered {
		return "buffered, fdatasync"
	}
	return "direct, O_DSYNC"
}

// advertised returns the host:port that the node's record shows for a node that listens on host and port.
func (c *Config) advertised(listen *net.UDPAddr, port int) (string, error) {
	host, p := c.Advertise, strconv.Itoa(port)
	if h, q, err := net.SplitHostPort(c.Advertise); err == nil {
		host, p = h, q
		if p == "0" {
			p = strconv.Itoa(port)
		}
	}
	if host == "" {
		if listen.IP == nil || listen.IP.IsUnspecified() {
			return "", fmt.Errorf("node: it listens on every address (%s), so say under which one clients reach it (advertise)", c.Listen)
		}
		host = listen.IP.String()
	}
	return net.JoinHostPort(host, p), nil
}
