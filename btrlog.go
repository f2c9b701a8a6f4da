// Package btrlog is the client of BtrLog, a write-ahead log for databases that run in a cloud.
//
// A log is a single-writer sequence of records with the LSNs 1, 2, 3 … without holes. The writer sends every record to all log
// nodes of the log; when a quorum has it on disk the record is committed, one network round trip later. Full segments
// move to an object store in the background. When the writer's host dies, another host opens the log, fences the old
// writer, gets exactly the committed log, and goes on.
//
//	client, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: "file:///var/lib/btrlog/store"})
//	w, err := client.OpenWriter(ctx, "orders", btrlog.WriterOptions{})
//	lsn, err := w.Append(ctx, record)   // returns at once
//	err = w.Sync(ctx, lsn)              // everything up to lsn is on the disks of a quorum
//
// Offsets of a log, all LSNs, each the highest of its kind:
//
//	  trimmed   archived        committed      given out
//	─────┴─────────┴────────────────┴──────────────┴────────►
//	 ErrTrimmed │ object store │ log nodes │ only the writer knows
//
// Every error is an *Error. It says whether its outcome is definite or unknown, whether a retry may help, and which nodes are
// missing. A cancelled context ends a wait, never what was waited for: an LSN that was given out is spent.
//
// One Client has one UDP socket, one receiver of acknowledgements and one HTTP/2 connection per node for all logs of the
// process. All methods of Client, Writer and Reader may be called concurrently.
package btrlog

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// LSN numbers the records of a log: 1, 2, 3 … without holes. Zero is "before the first".
type LSN uint64

// Epoch numbers the reigns of the writers of a log; each OpenWriter takes a higher one.
type Epoch uint64

// LogID identifies a log for ever. A log that is deleted and created again has another one.
type LogID uint64

func (id LogID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// Limits.
const (
	// MaxRecordBytes is the largest record, and the largest sum of the records of one batch.
	MaxRecordBytes = protocol.MaxRecordBytes
	// MaxBatchRecords is the most records of one AppendBatch. The log's window bounds a batch too: LogOptions.Window, 1024
	// unless set.
	MaxBatchRecords = protocol.MaxBatchRecords
	// MaxNameBytes is the longest name of a log.
	MaxNameBytes = protocol.MaxNameBytes
)

// Config of a Client. Exactly one of Store, StoreURL and Nodes is set.
type Config struct {
	// StoreURL is the cluster's object store, for example file:///var/lib/btrlog/store. The backend of its scheme must be linked
	// into the program; file is.
	StoreURL string
	// Store is the same, opened by the caller, who closes it after the Client.
	Store objstore.Store
	// Nodes are addresses (host:port) of any log nodes of the cluster; they serve the store's content by proxy. One that
	// answers is enough.
	Nodes []string
	// Root is the prefix of the cluster's keys in the store, as the nodes have it; empty is the top, or, with Nodes, what
	// they say.
	Root string
	// Name says who opens logs, for operators; empty is the host's name and the process id. At most 256 bytes.
	Name string
	// Timeout bounds every wait whose context has no deadline; zero is 10 s.
	Timeout time.Duration
	// MaxDatagramBytes bounds the UDP packets that this client sends; zero takes what each path's MTU allows. Larger
	// records travel over HTTP/2.
	MaxDatagramBytes int
	// TraceEvery is how many LSNs of a log apart the appends are of which a Writer notes where their time went (Writer.Traces), rounded up
	// to a power of two; zero is 1024, which is the nodes' too, negative is none.
	TraceEvery int
	// Logger gets what an operator should know; nil is slog.Default.
	Logger *slog.Logger
}

// Durability says when a node may acknowledge a record.
type Durability string

const (
	// Disk: when it is on the device.
	Disk Durability = "disk"
	// Memory: when it is in the memory of the node's machine. A power cut of a quorum at once loses acknowledged records. It is faster
	// on nodes that write through the page cache (btrlog node --buffered); those that write directly, the default, have each record on
	// the device anyway when they acknowledge it.
	Memory Durability = "memory"
)

// LogOptions of Create. Zero fields take the default.
type LogOptions struct {
	// N nodes hold the log, and Qw of them must have a record before it is committed. Defaults 3 and 2; with N alone, Qw is
	// the majority.
	N, Qw int
	// Zones is how many zones the nodes must span at least; zero: as many as there are, without insisting.
	Zones int
	// Nodes names the nodes instead of leaving the choice to the client. Create then opens the log once, so they must run.
	Nodes []string
	// SegmentBytes is the size at which a segment is cut and archived. Default 16 MiB.
	SegmentBytes int64
	// Window is W: at most so many LSNs are given out and not committed. Default 1024.
	Window int
	// Durability is Disk unless set.
	Durability Durability
	// FlushAge is the age at which a segment is archived although it is not full. Default 5 minutes; negative is never.
	FlushAge time.Duration
	// RetainAge and RetainBytes say what is to be kept: what was archived longer ago, and the oldest beyond so many bytes, may
	// be trimmed; zero keeps everything. The nodes look every ten minutes unless told otherwise, and trim whole segments.
	RetainAge   time.Duration
	RetainBytes int64
}

// Reign is one entry of a log's history: the writer of Epoch began at Start.
type Reign struct {
	Epoch Epoch
	Start LSN
}

// NodeInfo describes a log node.
type NodeInfo struct {
	Name        string
	Incarnation uint64 // of its data directory
	Zone        string
	UDP, HTTP   string // host:port; empty in a log's ensemble
	Shards      int
	State       string // active, draining or retired; empty in a log's ensemble
	// Replaced, in what Client.Info returns: the node is registered with another data directory than the log knows, so that it
	// holds nothing of the log and takes no part. WriterOptions.Replace adopts it.
	Replaced bool
}

// LogInfo is what a log's record says. It tells nothing about the tail; see Reader.Tail.
type LogInfo struct {
	Name       string
	ID         LogID
	Epoch      Epoch  // highest that was given out; zero before the first open
	Opener     string // who took it
	Nodes      []NodeInfo
	History    []Reign
	Options    LogOptions
	TrimBefore LSN // LSNs below it are trimmed; at least 1
	// Lost is what was given up with AcceptLoss and is not trimmed, ascending.
	Lost    []LostRange
	Created time.Time
	Updated time.Time
}

// Record is one record of a log.
type Record struct {
	LSN LSN
	// Epoch is that of the reign to which the LSN belongs (LogInfo.History); zero where the reader has not learned it, which can
	// be just after a takeover. A takeover counts what it repairs to its own reign, committed records too of which its read quorum had
	// not heard that they are: a record read before can have a higher epoch when it is read again, with the same bytes.
	Epoch Epoch
	// Data is valid until the iterator's next step.
	Data []byte
}
