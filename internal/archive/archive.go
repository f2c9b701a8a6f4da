// Package archive keeps segments of logs as objects of an object store: their names and format, the idempotent flush by
// several nodes, what the store holds of a log, and reading it back in order.
//
// Invariants that the code cites by number:
//
//	AR1  A key determines the records: the hash in it covers log, label, segment, first and last LSN and every record,
//	     so a short or holed stretch never takes the name of the whole one, and "exists" means "holds exactly this".
//	AR2  The body without compression is a function of the records alone: every node that holds the stretch makes the same
//	     bytes. With compression the bytes may differ between nodes and versions, the records and so the name do not.
//	     What differs between nodes (cLSN) lives in the object's metadata.
//	AR3  An object proves its records up to its own cLSN and no further. Kind "c" in the key says that its cLSN was at or
//	     above its last LSN when it was written, so a listing is proof enough; for kind "p" the metadata is asked.
//	AR4  An object is never replaced: it is created if absent, or found. No outcome is guessed: after an unknown one the
//	     store is looked at before anything else.
//	AR5  An object holds every LSN of [first, last], of one label, and lies inside one segment.
//
// docs/FORMAT-ARCHIVE.md draws the key, the body and the metadata.
package archive

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// Limits of the archive.
const (
	// MaxContentBytes bounds the record block of one object: a segment, and one largest run behind its size limit.
	MaxContentBytes = protocol.MaxSegmentBytes + protocol.MaxBlockBytes
	// MaxRootBytes bounds Options.Root.
	MaxRootBytes = 512
	// DefaultAttempts is how often one request to the store is tried.
	DefaultAttempts = 6
	// DefaultParallel is how many ranged reads a Scan keeps in flight or ready. With reads of DefaultReadBytes it is enough for
	// 64 MiB on the way: 25 Gbit/s at 20 ms.
	DefaultParallel = 16
	// DefaultReadBytes is the size of one ranged read of a Scan.
	DefaultReadBytes = 4 << 20
	// DefaultMaxObjects is how many objects of one log a Reader's index holds at a time.
	DefaultMaxObjects = 1 << 18

	backoffMin = 20 * time.Millisecond
	backoffMax = 2 * time.Second
)

var (
	// ErrUnavailable: the object store did not give a definite answer within the attempts. Nothing is lost; call again later.
	ErrUnavailable = errors.New("archive: the object store does not answer")
	// ErrDamaged: an object's bytes are not what was written, or an object that was listed is gone. The error names its
	// key. Restore the object, or read the records elsewhere.
	ErrDamaged = errors.New("archive: object damaged or missing")
	// ErrTooNew: an object was written by a newer version of this program. Upgrade the reader.
	ErrTooNew = errors.New("archive: object format is newer than this program")
	// ErrSource: the records to flush are not the ones that the plan names. Nothing was written; plan again.
	ErrSource = errors.New("archive: records do not match the plan")
	// ErrStaleHistory: the history given with a watermark ends below the watermark's epoch. Read the log's record again.
	ErrStaleHistory = errors.New("archive: history ends below the watermark's epoch")
)

// Options of New. The zero value of each field means its default.
type Options struct {
	// Root is put before every key, without a slash at its ends; empty: keys start with "arch/".
	Root string
	// Attempts bounds the tries of one request, the first included.
	Attempts int
	// Sleep waits for d or until ctx ends, and then returns ctx's error. Default: a timer.
	Sleep func(ctx context.Context, d time.Duration) error
	// Rand returns a number in [0, 1) that spreads the retries of several nodes. It may be called concurrently.
	Rand func() float64
	// Parallel bounds the ranged reads that one Scan keeps in flight or ready.
	Parallel int
	// ReadBytes is the size of one such read; a single larger record makes one of its own size. One Scan holds at most
	// Parallel × max(ReadBytes, one record and 64 KiB) bytes of records, as much again of compressed ones while they are
	// being read, and the footers of a few objects.
	ReadBytes int
	// MaxObjects bounds the index of one Reader, about 100 bytes each. A log with more objects is indexed window by window.
	MaxObjects int
	// Compression of what is written; its codec must be registered. What is read is what it is, and needs the codec too.
	Compression Compression
}

// Archive writes and reads the segment objects of one store under one root. All methods may be called concurrently.
type Archive struct {
	store  objstore.Store
	prefix string // "<root>/arch/"
	o      Options
	counts counts
	bodies sync.Pool // *[]byte: bodies being built
	dirs   directories
}

// New returns an Archive over store, which stays the caller's to close.
func New(store objstore.Store, o Options) (*Archive, error) {
	if o.Root != "" {
		if err := objstore.CheckKey(o.Root); err != nil || len(o.Root) > MaxRootBytes {
			return nil, fmt.Errorf("archive: root %q: at most %d bytes of a valid key are allowed: %v", o.Root, MaxRootBytes, err)
		}
	}
	for _, n := range []int{o.Attempts, o.Parallel, o.ReadBytes, o.MaxObjects} {
		if n < 0 {
			return nil, fmt.Errorf("archive: options must not be negative: attempts %d, parallel %d, read bytes %d, max objects %d",
				o.Attempts, o.Parallel, o.ReadBytes, o.MaxObjects)
		}
	}
	if o.Compression != NoCompression {
		if _, err := o.Compression.codec(); err != nil {
			return nil, err
		}
	}
	setDefault(&o.Attempts, DefaultAttempts)
	setDefault(&o.Parallel, DefaultParallel)
	setDefault(&o.ReadBytes, DefaultReadBytes)
	setDefault(&o.MaxObjects, DefaultMaxObjects)
	if o.Sleep == nil {
		o.Sleep = sleep
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	a := &Archive{store: store, prefix: "arch/", o: o}
	if o.Root != "" {
		a.prefix = strings.TrimSuffix(o.Root, "/") + "/arch/"
	}
	return a, nil
}

func setDefault(field *int, value int) {
	if *field == 0 {
		*field = value
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Record is one record of a log as the archive takes and gives it.
type Record struct {
	LSN   protocol.LSN
	Label protocol.Epoch // of this copy
	More  bool           // its batch goes on with the next LSN
	Data  []byte         // who owns it is said where a Record is passed
}
