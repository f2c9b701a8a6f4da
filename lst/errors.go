package lst

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound says that the store has never held this record, or that the
	// key has no value.
	ErrNotFound = errors.New("lst: not found")
	// ErrTrimmed says that the sequence is below the stream's trim point.
	ErrTrimmed = errors.New("lst: record is below the trim point of its stream")
	// ErrExists refuses a whole batch because it appends a (stream, sequence)
	// that is present already; nothing of the batch was written. Definite. The
	// error is an *Exists, which says which record, and where its stream ends: what
	// a publisher that sends again after a crash needs to go on.
	ErrExists = errors.New("lst: record exists")
	// ErrNoSpace refuses a batch because the next segment file could not be
	// preallocated or the disk budget is used up. Nothing was written; the same
	// batch succeeds once space returns. Batches without records (trims,
	// deletes, key-values) are still accepted from the reserve.
	ErrNoSpace = errors.New("lst: no space for another segment")
	// ErrTooLarge refuses a record, key, value or batch above its limit. Definite.
	ErrTooLarge = errors.New("lst: too large")
	// ErrLocked says that another writer holds the directory.
	ErrLocked = errors.New("lst: directory is open for writing elsewhere")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("lst: closed")
	// ErrInvalid refuses a call that breaks the rules of the interface.
	ErrInvalid = errors.New("lst: invalid argument")
)

// Exists is the error of a batch that appends a record which is present: the first
// such record of the batch. It matches ErrExists.
type Exists struct {
	Stream StreamID
	Seq    uint64
	EOF    uint64 // of the stream: highest sequence ever appended, plus one
}

// Error implements error.
func (e *Exists) Error() string {
	return fmt.Sprintf("%v: %d in stream %v, which ends at %d", ErrExists, e.Seq, e.Stream, e.EOF)
}

// Is makes errors.Is(err, ErrExists) true.
func (e *Exists) Is(target error) bool { return target == ErrExists }

// Corruption reports damage in data that was durable. It is never a torn tail:
// those are cut silently. The store refuses to guess; restore the file, or let
// the replicating layer above provide the data.
type Corruption struct {
	File   string // path of the segment file
	Offset int64  // byte offset of the damage, or of the frame that holds it
	Reason string // what does not fit
}

// Error implements error.
func (c *Corruption) Error() string {
	return fmt.Sprintf("lst: damaged data in %s at offset %d: %s", c.File, c.Offset, c.Reason)
}

// failedStore is what every commit after the first I/O error returns (P14).
type failedStore struct{ first error }

func (f *failedStore) Error() string {
	return "lst: store stopped after an I/O error, reopen it: " + f.first.Error()
}
func (f *failedStore) Unwrap() error { return f.first }
