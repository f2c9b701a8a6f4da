package protocol

// Message is one message between a client and a log node. The concrete types below are pointers.
// Requests go to a node, replies come from it; package wire gives each its bytes.
type Message interface{ isMessage() }

// Open asks a node to promise Epoch, durably, before it answers, and to say what it holds: fence and read in one
// message (P2). It is the only request that may be sent to an unknown incarnation.
type Open struct {
	Log   LogID
	Epoch Epoch
	Req   uint64 // chosen by the sender, returned in the reply
	Name  string // the log's name, so that the node can find its record
}

// OpenReply is a node's answer to Open. With StatusFenced only Promised and Incarnation mean anything.
type OpenReply struct {
	Log             LogID
	Epoch           Epoch // the epoch asked for
	Req             uint64
	Incarnation     Incarnation
	Status          Status
	Promised        Epoch
	Activated       Epoch // highest activated epoch and its start; zero if none
	Start           LSN
	CLSN            LSN
	ArchivedThrough LSN
	// Held lists every copy above ArchivedThrough that is not void by this node's history, ascending in (From, Label).
	Held []Extent
	// Damaged lists LSNs above ArchivedThrough of which this node cannot say what it had: unknown, never absent (P3).
	Damaged []Range
	// Through is the highest LSN that Held and Damaged speak of completely; above it everything is unknown. It is
	// MaxLSN unless the lists hit MaxExtents.
	Through LSN
}

// AppendKind tells the three ways in which records are written to a node.
type AppendKind uint8

const (
	// AppendNormal: by the writer, at the epoch that the node activated; Label equals Epoch.
	AppendNormal AppendKind = iota
	// AppendRepair: by an opener, [R, T] again under its own epoch, before that epoch is activated (P6); Label equals Epoch.
	AppendRepair
	// AppendCopy: by an opener, committed records below R under the label they have (P6, second half); Label < Epoch.
	AppendCopy
)

func (k AppendKind) String() string { return [...]string{"normal", "repair", "copy", "bad"}[k&3] }

// Append carries a run of consecutive records to a node. One Append is stored whole or not at all.
type Append struct {
	Log         LogID
	Epoch       Epoch // the sender's epoch, whose authority it is
	Label       Epoch // the label of the copies
	Kind        AppendKind
	Incarnation Incarnation // the addressed incarnation; another one refuses (R3)
	First       LSN
	Count       uint32
	SegStart    LSN    // first LSN of the segment that the run lies in; a run never straddles two segments
	SegOff      uint64 // offset in bytes of the first record in its segment's body
	CLSN        LSN    // the sender's watermark
	Block       []byte // Count records, encoded by AppendRecord; borrowed for the duration of the step
}

// Last returns the highest LSN of the run.
func (a *Append) Last() LSN { return a.First + LSN(a.Count) - 1 }

// Ack answers Append, Activate, Watermark and Drop. For Append [First, Last] echoes the run; for Watermark Last is the
// seal that the node holds durably.
type Ack struct {
	Log   LogID
	Epoch Epoch // echo of the request's epoch
	// Incarnation is the node's; with StatusWrongIncarnation it is the one that the request named and that is gone.
	Incarnation Incarnation
	Kind        AckKind
	Append      AppendKind
	Status      Status
	First, Last LSN
	Label       Epoch
	Promised    Epoch
	Activated   Epoch
	CLSN        LSN // the node's durable watermark
}

// AckKind tells which request an Ack answers.
type AckKind uint8

const (
	AckAppend AckKind = iota
	AckActivate
	AckWatermark
	AckDrop
)

func (k AckKind) String() string { return [...]string{"append", "activate", "watermark", "drop"}[k&3] }

// Fetch is a recovery read of [From, To], refused unless the node promised Epoch (P2). From zero is the node's own watermark or
// archived-through, whichever is higher, plus one: the read of a tail that goes out with Open, when nothing is known of where it begins.
type Fetch struct {
	Log         LogID
	Epoch       Epoch
	Req         uint64
	Incarnation Incarnation
	From, To    LSN
	Label       Epoch  // only copies of this label; zero asks for the highest label that is not void
	MaxBytes    uint32 // the node stops after the record that reaches it
}

// Record is one record with all that recovery needs of it.
type Record struct {
	LSN      LSN
	Label    Epoch
	More     bool // the record's batch goes on with the next LSN
	SegStart LSN
	SegOff   uint64
	Data     []byte
}

// FetchReply carries the records found in [From, Through]; an LSN in that range without a record is Absent, Archived (at
// or below ArchivedThrough) or Unknown (in Damaged).
type FetchReply struct {
	Log             LogID
	Epoch           Epoch
	Req             uint64
	Incarnation     Incarnation
	Status          Status
	Promised        Epoch
	ArchivedThrough LSN
	From, Through   LSN
	Records         []Record
	Damaged         []Range
}

// Activate tells a node that the epoch is on record (P7): it persists the activation, voids by P8 every copy it holds,
// seals the older segment and raises its watermark to B, in one step.
type Activate struct {
	Log         LogID
	Epoch       Epoch
	Incarnation Incarnation
	Start       LSN // R
	B           LSN
	History     History // up to and including (Epoch, Start)
	// Lost are the lost ranges of the record, ascending: every copy of their LSNs is void, whatever its label, and nothing of them
	// will ever be archived (see Lost).
	Lost     []Range
	Settings Settings
}

// Settings is what a node must know of a log's options and surroundings; it travels with Activate.
type Settings struct {
	Name         string
	Window       uint32 // W in LSNs
	SegmentBytes uint64
	FlushAgeMS   uint32 // an idle tail older than this is archived; zero never
	Memory       bool   // memory durability: acknowledged without a force, and so named everywhere
	Peers        []Incarnation
	Qw           uint8
}

// Watermark tells a node how far the log is committed when no append carries it (P9: an idle writer still pushes it).
type Watermark struct {
	Log         LogID
	Epoch       Epoch
	Incarnation Incarnation
	CLSN        LSN
	// Sealed is the last LSN of the writer's segment that was cut by age or at a close; zero when none was. The segment
	// that ends there takes no more records.
	Sealed LSN
}

// Read is a hot read of committed records; it never fences and needs no promise.
type Read struct {
	Log      LogID
	Req      uint64
	From, To LSN    // From = 0 asks for the state only
	MaxBytes uint32 // the node stops after the record that reaches it
	// WaitAbove, when not zero, asks the node to hold the answer until its watermark exceeds it or a short time has
	// passed (long poll of a follower). It is a hint to the driver; the machine answers at once.
	WaitAbove LSN
	// Raw asks for every copy that is not void by the node's own history, committed or not. The reader serves one of them
	// only at or below a watermark from elsewhere and not void by a history up to that watermark's epoch (P8).
	Raw bool
}

// ReadReply is a node's answer to Read. Records are committed and not void by this node's own history, so a record it
// carries may be served as it is; what it lacks in [From, min(To, CLSN)] must come from another node or the archive.
type ReadReply struct {
	Log         LogID
	Req         uint64
	Incarnation Incarnation
	Status      Status
	Activated   Epoch
	Start       LSN
	// CLSN proves what this node holds, at the epoch it activated. ArchivedThrough may be above it, at a node that missed
	// an epoch: what is at or below is committed and in the archive, but the copies here may be others.
	CLSN            LSN
	ArchivedThrough LSN
	Highest         LSN // highest LSN held that is not void, committed or not (for a linearizable tail)
	HighestLabel    Epoch
	// Uncommitted lists what the node holds above CLSN, so that a reader can count copies itself (X11).
	Uncommitted   []Extent
	From, Through LSN
	Records       []Record
	// Damaged lists LSNs of which the node cannot say what it had: those of the range read and all above CLSN.
	Damaged []Range
}

// Drop tells a node that the log was deleted at Epoch, whose tombstone is on record: its local copies may go. The node
// keeps the promise and the deletion mark, so that late appends are refused (R11).
type Drop struct {
	Log         LogID
	Epoch       Epoch
	Incarnation Incarnation
}

func (*Open) isMessage()       {}
func (*OpenReply) isMessage()  {}
func (*Append) isMessage()     {}
func (*Ack) isMessage()        {}
func (*Fetch) isMessage()      {}
func (*FetchReply) isMessage() {}
func (*Activate) isMessage()   {}
func (*Watermark) isMessage()  {}
func (*Read) isMessage()       {}
func (*ReadReply) isMessage()  {}
func (*Drop) isMessage()       {}
