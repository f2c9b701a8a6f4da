// Package protocol is the replication protocol of BtrLog as pure state machines: the log node's shard (Shard), the
// takeover (Opener), the append path of a writer (Writer) and the merge of hot reads (Merge). Nothing in this package
// reads a clock, starts a goroutine, opens a socket or a file, or draws a random number: every machine is driven by
// step(input, now) → outputs, by the production runtime, by the simulator and by the tests alike.
//
// Invariants that the rest of the code cites by number (they are the rules P1–P15 of docs/PROTOCOL.md in short):
//
//	I1  A node's promise never falls; a message of a lower epoch is refused.
//	I2  Every reply of a node leaves after the writes of the step that made it are durable (Out: "replies after writes").
//	I3  A copy of LSN x labelled e is void iff some e' > e in the history starts at or below x (History.Void, P8).
//	I4  Only the incarnations of the recorded ensemble count, for fencing, for "absent" and for acknowledgements.
//	I5  B never falls: it is the maximum over answers and over every start − 1 of the record (P5).
//	I6  An LSN that was given out is spent: same bytes or an unknown outcome, never another record (P10).
//
// Concurrency: a machine belongs to one goroutine at a time.
package protocol

import (
	"errors"
	"fmt"
	"math"
	"sort"
)

// LogID names one log for ever; ids are never reused, a deleted and re-created log has another one. Zero is no log.
type LogID uint64

func (id LogID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// Epoch is a writer's reign over a log (the paper's write token), raised by compare-and-swap in the log's record. The
// label of a copy is the epoch under which it was last written. Zero is "never".
type Epoch uint64

// LSN numbers the records of a log: 1, 2, 3 … without holes. Zero is "before the first".
type LSN uint64

// MaxLSN is the highest LSN that a log may give out; the room above keeps LSN arithmetic from wrapping.
const MaxLSN LSN = math.MaxInt64

// NodeID names a log node for its operator; it survives a wiped disk, the Incarnation does not.
type NodeID string

// Incarnation is the random identity of a node's data directory, made when the directory is initialised. A wiped disk is
// another incarnation (P4). Zero means "any": it is used only by Open, which asks a node who it is.
type Incarnation uint64

func (i Incarnation) String() string { return fmt.Sprintf("%016x", uint64(i)) }

// Time is a monotonic time in nanoseconds, of which only differences mean anything. The driver supplies it.
type Time int64

// Millisecond is the unit in which the timeouts of this package are written.
const Millisecond Time = 1e6

// HistoryEntry says that the writer of Epoch began at Start: copies of older labels from Start upward are void.
type HistoryEntry struct {
	Epoch Epoch `json:"epoch"`
	Start LSN   `json:"start"`
}

// History is the (epoch, start) list of a log's record, ascending in epoch; starts never fall (I5).
type History []HistoryEntry

// Void reports whether a copy of lsn labelled label is void (P8): a later recorded epoch starts at or below it. Because
// starts never fall, the first later entry decides. A label whose epoch was never recorded is a repair and is valid until
// a later epoch voids it, so it needs no entry of its own.
func (h History) Void(label Epoch, lsn LSN) bool { return lsn >= h.VoidFrom(label) }

// VoidFrom returns the lowest LSN at which copies labelled label are void, or MaxLSN+1 when none is.
func (h History) VoidFrom(label Epoch) LSN {
	if i := sort.Search(len(h), func(i int) bool { return h[i].Epoch > label }); i < len(h) {
		return h[i].Start
	}
	return MaxLSN + 1
}

// Last returns the newest entry, or a zero entry for a log that nobody opened yet.
func (h History) Last() HistoryEntry {
	if len(h) == 0 {
		return HistoryEntry{}
	}
	return h[len(h)-1]
}

// At returns the entry of the reign to which lsn belongs, or a zero entry when it is before the first.
func (h History) At(lsn LSN) HistoryEntry {
	for i := len(h) - 1; i >= 0; i-- { // most questions are about the newest
		if h[i].Start <= lsn {
			return h[i]
		}
	}
	return HistoryEntry{}
}

// Add returns a copy of h with (e, start) added. Of two entries with the same start only the younger is kept: it voids
// everything that the older voids, so a log that is re-opened without appends does not grow its record. It fails when the
// entry would break the order of the history, which a caller must treat as a bug or a damaged record.
func (h History) Add(e Epoch, start LSN) (History, error) {
	last := h.Last()
	if e <= last.Epoch || start < last.Start || start == 0 {
		return nil, fmt.Errorf("history: entry (epoch %d, start %d) after (epoch %d, start %d)", e, start, last.Epoch, last.Start)
	}
	out := make(History, 0, len(h)+1)
	out = append(out, h...)
	if len(out) > 0 && out[len(out)-1].Start == start {
		out = out[:len(out)-1]
	}
	return append(out, HistoryEntry{e, start}), nil
}

// Validate reports a history that no sequence of Adds could have made.
func (h History) Validate() error {
	for i := range h {
		if h[i].Epoch == 0 || h[i].Start == 0 || h[i].Start > MaxLSN {
			return fmt.Errorf("history: entry %d is (epoch %d, start %d)", i, h[i].Epoch, h[i].Start)
		}
		if i > 0 && (h[i].Epoch <= h[i-1].Epoch || h[i].Start < h[i-1].Start) {
			return fmt.Errorf("history: entry %d (epoch %d, start %d) does not follow (epoch %d, start %d)",
				i, h[i].Epoch, h[i].Start, h[i-1].Epoch, h[i-1].Start)
		}
	}
	return nil
}

// Member is one node of an ensemble at one incarnation.
type Member struct {
	Node        NodeID      `json:"node"`
	Incarnation Incarnation `json:"incarnation"`
	Zone        string      `json:"zone,omitempty"`
}

// Ensemble is the immutable list of the nodes of a log.
type Ensemble []Member

// Index returns the position of the member with incarnation inc, or −1. An incarnation identifies a node by itself, so
// that acknowledgements need no address (I4).
func (e Ensemble) Index(inc Incarnation) int {
	for i := range e {
		if e[i].Incarnation == inc {
			return i
		}
	}
	return -1
}

// Equal reports whether both hold the same incarnations in the same order.
func (e Ensemble) Equal(o Ensemble) bool {
	if len(e) != len(o) {
		return false
	}
	for i := range e {
		if e[i].Incarnation != o[i].Incarnation || e[i].Node != o[i].Node {
			return false
		}
	}
	return true
}

// Extent is a run of LSNs [From, To], both inclusive, under one label.
type Extent struct {
	From, To LSN
	Label    Epoch
}

// Range is a run of LSNs [From, To], both inclusive.
type Range struct{ From, To LSN }

// Answer is what a node says about one LSN (P3).
type Answer uint8

const (
	// Unknown: the node cannot tell (I/O error, checksum failure, starting). It never counts as absent.
	Unknown Answer = iota
	// Present: the node holds a copy that is not void, under the label it names.
	Present
	// Archived: at or below the node's archived-through.
	Archived
	// Absent: the node holds no copy that is not void and would know if it did.
	Absent
)

func (a Answer) String() string {
	return [...]string{"unknown", "present", "archived", "absent"}[a&3]
}

// Status is the outcome that a reply carries.
type Status uint8

const (
	// StatusOK: done, and durable.
	StatusOK Status = iota
	// StatusFenced: the node promised a higher epoch; Promised says which. Definite: nothing was stored.
	StatusFenced
	// StatusNotActivated: the node has not activated the message's epoch: send Activate, then again. Nothing was stored.
	StatusNotActivated
	// StatusNotPromised: a recovery read or repair of an epoch that this node did not promise: send Open first.
	StatusNotPromised
	// StatusWrongIncarnation: the message was meant for another incarnation of this node (its disk was replaced).
	StatusWrongIncarnation
	// StatusOverloaded: a bounded queue is full; retry later. Nothing was stored.
	StatusOverloaded
	// StatusNoSpace: the node's disk budget is used up; ends by itself when space returns. Nothing was stored.
	StatusNoSpace
	// StatusDeleted: the log was deleted. Nothing was stored.
	StatusDeleted
	// StatusBad: the message contradicts itself or what the node holds; a bug or corruption at the sender.
	StatusBad
	// StatusUnavailable: the node is starting or stopping.
	StatusUnavailable
)

var statusNames = [...]string{"ok", "fenced", "not-activated", "not-promised", "wrong-incarnation", "overloaded", "no-space", "deleted", "bad", "unavailable"}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// Explain is String for people who wait for a node that answers so.
func (s Status) Explain() string {
	if s == StatusNoSpace {
		return s.String() + ": its disk budget is used up, or its disk is full; it takes records again when what it holds is archived"
	}
	return s.String()
}

// Limits of the protocol, in one place; limits_test.go checks their relations.
const (
	// MaxRecordBytes is the largest payload of one record.
	MaxRecordBytes = 8 << 20
	// MaxBatchRecords is the most records that one Append may carry, batches included.
	MaxBatchRecords = 4096
	// MaxBlockBytes bounds the encoded records of one Append: one largest record, or a batch, with its framing.
	MaxBlockBytes = MaxRecordBytes + MaxBatchRecords*RecordOverhead
	// MaxWindow bounds the window W of a log.
	MaxWindow = 1 << 16
	// DefaultWindow is the window of a log that does not name one.
	DefaultWindow = 1024
	// DefaultSegmentBytes is the segment size of a log that does not name one.
	DefaultSegmentBytes = 16 << 20
	// MinSegmentBytes and MaxSegmentBytes bound a log's segment size.
	MinSegmentBytes = 64 << 10
	MaxSegmentBytes = 256 << 20
	// MaxEnsemble bounds the nodes of one log.
	MaxEnsemble = 15
	// MaxHistory bounds the entries of a history in a message or a record.
	MaxHistory = 1 << 16
	// MaxExtents bounds the extents in one OpenReply; a node that holds more answers with its lowest and says so.
	MaxExtents = 1 << 14
	// MaxLogs bounds the logs of one shard, and MaxBlankLogs those of them that never had a writer there: an open, or a delete, of
	// a log that is not known takes memory and disk for good, and whoever can send a datagram can ask for one.
	MaxLogs      = 1 << 20
	MaxBlankLogs = 1 << 16
	// MaxNameBytes bounds a log's name.
	MaxNameBytes = 128
)

// ErrBadMessage is wrapped by every decoding error of record blocks and node state.
var ErrBadMessage = errors.New("bad message")
