package lst

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/btrlog/btrlog/lst/vfs"
)

// StreamID names a stream. Its bytes order streams: View.Streams lists by prefix.
type StreamID [16]byte

// String is the id in hexadecimal.
func (id StreamID) String() string { return hex.EncodeToString(id[:]) }

// Location is where a batch or record is, for tools and error messages.
type Location struct {
	Segment uint32 // number in the file name
	Offset  int64  // bytes from the start of the file
	Length  int    // bytes
}

// Mode is the way to the disk.
type Mode uint8

const (
	// Buffered appends through the page cache. An Acknowledged commit survives
	// the end of the process, a Forced one is fdatasync'ed.
	Buffered Mode = iota
	// Direct writes into preallocated, zeroed files with O_DIRECT|O_DSYNC: a Forced
	// commit is one such write, padded to the device's block. An Acknowledged one has
	// the same layout and goes through the page cache; the next Forced one, or Sync,
	// syncs it. Where the file system has no direct I/O it falls back to O_DSYNC alone and
	// says so in RecoveryReport and Stats.
	Direct
)

// Durability is what a Commit waits for.
type Durability uint8

const (
	// Acknowledged commits survive the end of the process, but not the loss of power
	// before the next snapshot, Sync or Forced commit.
	Acknowledged Durability = iota
	// Forced commits, and all before them, survive the loss of power.
	Forced
)

const (
	maxRecordLimit      = 16<<20 - 1
	defaultSegmentBytes = 64 << 20
	defaultMaxRecord    = 8<<20 + 64<<10
)

// Options configures a Store. The zero value is usable.
type Options struct {
	// FS is the file system; nil means vfs.OS.
	FS vfs.FS
	// Mode is the way to the disk.
	Mode Mode
	// SegmentBytes is the size of a segment file, 32 KiB and eight
	// blocks to just below 4 GiB.
	// 0 means 64 MiB. A batch must fit into one segment.
	SegmentBytes int64
	// BlockBytes overrides the device's direct-I/O alignment: a power of two from
	// 512 to 65536. 0 asks the device.
	BlockBytes int
	// MaxRecordBytes is the largest payload, at most 16 MiB - 1. 0 means 8 MiB + 64 KiB.
	MaxRecordBytes int
	// SnapshotRecords, SnapshotBytes and SnapshotInterval start a snapshot when
	// that much was committed since the last, or that much time has passed and
	// something was committed. They bound the work of a restart and what a power
	// loss takes of Acknowledged commits. Zero means 100,000
	// records, a quarter of a segment, 10 seconds.
	SnapshotRecords  int
	SnapshotBytes    int64
	SnapshotInterval time.Duration
	// DiskBudgetBytes limits the segment files together; commits that need
	// another segment beyond it are refused with ErrNoSpace until Reclaim can
	// drop one. 0 means no limit.
	DiskBudgetBytes int64
	// ReserveBytes is how far above DiskBudgetBytes, in whole segments, batches
	// with records may go that Batch.UseReserve marks: for what an owner must be
	// able to write although its store is full. Trims, snapshots and key-values may
	// go one segment further. 0 means none.
	ReserveBytes int64
	// DropOldest makes the store keep within DiskBudgetBytes by itself: instead of
	// refusing it trims every stream past the oldest segment, and drops that. Not
	// for owners whose data must be somewhere else first.
	DropOldest bool
	// RetainAge makes the store trim and drop records of this age, in whole
	// segments. 0 means never.
	RetainAge time.Duration
	// TailCacheBytes is the memory that holds the most recent bytes written, so
	// that hot reads cost no disk read. 0 means 16 MiB; negative means none.
	TailCacheBytes int
	// MaxOpenFiles bounds the read descriptors. 0 means 32.
	MaxOpenFiles int
	// Inline runs preallocation, snapshot syncs and budget reclaims inside the
	// calls instead of a goroutine of the store, so that a simulation is
	// deterministic; Open then reads the state of all streams and keys.
	Inline bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// lazyInline makes a restart in Inline mode read the snapshot when it is asked
	// for, as the others do. Without it Open reads all, and reports all damage.
	lazyInline bool
	// Random fills p with random bytes for store ids and file salts; nil means
	// crypto/rand.
	Random func(p []byte)
}

func (o Options) withDefaults() (Options, error) {
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = defaultSegmentBytes
	}
	if o.SegmentBytes < minSegmentBytes || o.SegmentBytes > maxSegmentBytes {
		return o, fmt.Errorf("%w: SegmentBytes %d is not within %d and %d", ErrInvalid, o.SegmentBytes, minSegmentBytes, int64(maxSegmentBytes))
	}
	if b := o.BlockBytes; b != 0 && (b < 512 || b > 65536 || b&(b-1) != 0) {
		return o, fmt.Errorf("%w: BlockBytes %d is not a power of two from 512 to 65536", ErrInvalid, b)
	}
	if o.SegmentBytes < 8*int64(o.BlockBytes) {
		return o, fmt.Errorf("%w: SegmentBytes %d is less than eight blocks of %d", ErrInvalid, o.SegmentBytes, o.BlockBytes)
	}
	if o.MaxRecordBytes == 0 {
		o.MaxRecordBytes = defaultMaxRecord
	}
	if o.MaxRecordBytes < 0 || o.MaxRecordBytes > maxRecordLimit {
		return o, fmt.Errorf("%w: MaxRecordBytes %d is not within 1 and %d", ErrInvalid, o.MaxRecordBytes, maxRecordLimit)
	}
	if o.SnapshotRecords == 0 {
		o.SnapshotRecords = 100_000
	}
	if o.SnapshotBytes == 0 {
		o.SnapshotBytes = o.SegmentBytes / 4
	}
	if o.SnapshotInterval == 0 {
		o.SnapshotInterval = 10 * time.Second
	}
	o.ReserveBytes -= o.ReserveBytes % o.SegmentBytes
	if o.ReserveBytes < 0 || o.ReserveBytes > 0 && o.DropOldest {
		return o, fmt.Errorf("%w: ReserveBytes %d; with DropOldest there is no reserve, and none is needed", ErrInvalid, o.ReserveBytes)
	}
	if o.SnapshotRecords < 0 || o.SnapshotBytes < 0 || o.SnapshotInterval < 0 || o.DiskBudgetBytes < 0 || o.MaxOpenFiles < 0 {
		return o, fmt.Errorf("%w: negative limit in Options", ErrInvalid)
	}
	if o.RetainAge < 0 || o.DropOldest && o.DiskBudgetBytes < 3*o.SegmentBytes {
		return o, fmt.Errorf("%w: RetainAge %v; DropOldest needs a DiskBudgetBytes of at least three segments of %d", ErrInvalid, o.RetainAge, o.SegmentBytes)
	}
	if o.TailCacheBytes == 0 {
		o.TailCacheBytes = 16 << 20
	}
	if o.MaxOpenFiles == 0 {
		o.MaxOpenFiles = 32
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Random == nil {
		o.Random = cryptoRandom
	}
	return o, nil
}
