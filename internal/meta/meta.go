// Package meta keeps BtrLog's cluster, node, ensemble and log records in an object store, by conditional writes
// alone. There is no other metadata service.
//
//	<root>/cluster.json           the cluster's id, created once
//	<root>/nodes/<node>.json      where a node is and which incarnation its disk has
//	<root>/ensembles/<hash>.json  an immutable list of nodes with their incarnations
//	<root>/logs/<name>.json       a log's record: the register that decides who owns the log
//	<root>/ids/<id>.json          the claim of a log id; never deleted, so that no id is ever given twice
//	<root>/deleted/<id>.json      a deleted log whose name was taken again
//
// Invariants, cited by number in the code:
//
//	M1  A record changes only by create-if-absent or replace-if-match, from a version that was read, through
//	    one function (swap), after its predicates passed (invariants.go).
//	M2  Every body carries a fresh nonce, so that no ETag ever comes back: on real servers the ETag is a hash of the body,
//	    and a stalled write against an old ETag would be applied if an equal body returned.
//	M3  No outcome is guessed. After an unknown outcome, and after every 412, the record is read again, and what it
//	    says decides (P1): a library that retries by itself turns a lost reply into a 412. 409 and 503 are retried.
//	M4  A change is a function of the record that was read last. It is computed anew on what is found, so a concurrent change of
//	    another field (trim, retention) is merged, never overwritten.
//	M5  An epoch has one owner: who wrote it with his nonce. Every later write of an owner demands that epoch and nonce still stand.
//
// A Catalog starts no goroutine. Time, sleep and random numbers come from its Config, so a simulator can own them.
package meta

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// FormatVersion is the newest version of a record that this program writes and reads. A record is written with the lowest
// version that can say what it says, so that an older program goes on with all records but those it must not touch.
//
//	1  all kinds
//	2  the record of a log with lost ranges
const FormatVersion = 2

const (
	firstVersion = 1
	lostVersion  = 2
)

// Limits.
const (
	// maxLogBytes bounds a log's record: MaxHistory entries of about 60 bytes each, MaxLost ranges, and the rest.
	maxLogBytes = 5 << 20
	// maxSmallBytes bounds all other records.
	maxSmallBytes = 64 << 10
	// maxAttempts bounds the tries of one call whose context has no deadline; with the pauses between them it is
	// about two minutes.
	maxAttempts = 150
	minPause    = 10 * time.Millisecond
	maxPause    = time.Second
	// pruneHistoryAbove is the number of history entries above which Trim drops those that no untrimmed record needs.
	pruneHistoryAbove = 1024
)

// Kinds of error, each defined by what the caller does.
var (
	// ErrNotFound: no such log, node or ensemble.
	ErrNotFound = errors.New("not found")
	// ErrExists: the name is taken, or the node is alive elsewhere. Choose another.
	ErrExists = errors.New("exists already")
	// ErrDeleted: the log was deleted; a log of the same name is another log.
	ErrDeleted = errors.New("log was deleted")
	// ErrFenced: another writer owns the log; Error.Epoch says its epoch. Stop.
	ErrFenced = errors.New("another writer owns the log")
	// ErrInvalid: the argument or the change is not allowed. Fix the program or the command.
	ErrInvalid = errors.New("invalid")
	// ErrUnavailable: the store cannot be reached or refuses, and nothing of this call was applied. Retry later.
	ErrUnavailable = errors.New("metadata store unavailable, nothing was applied")
	// ErrUnknown: time ran out before it was known whether the change was applied. Call again with the same arguments (nonce).
	ErrUnknown = errors.New("outcome unknown")
	// ErrCorrupt: the record is not one that this program writes. Never overwritten; the operator must look.
	ErrCorrupt = errors.New("record damaged")
	// ErrNewer: the record was written by a newer version. Upgrade this program.
	ErrNewer = errors.New("record has a newer format")
)

// Error is the error of every method of Catalog.
type Error struct {
	Op     string         // for example "raise epoch"
	Object string         // log "orders", node "n1", …
	Kind   error          // one of the Err variables
	Epoch  protocol.Epoch // with ErrFenced: the owner's
	Err    error          // the cause; may be nil
}

func (e *Error) Error() string {
	s := fmt.Sprintf("metadata: %s %s: %v", e.Op, e.Object, e.Kind)
	if e.Kind == ErrFenced {
		s += fmt.Sprintf(" (epoch %d)", e.Epoch)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap gives errors.Is both the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Config of a Catalog. All fields but Root are required: a test must be able to own them all.
type Config struct {
	// Root is the key prefix of all records, without a trailing slash; may be empty.
	Root string
	// Random returns 64 random bits. Ids and nonces are made of it, so in production it must read a cryptographic source. Calls are serialised.
	Random func() uint64
	// Now is the wall clock, for the times that people read in records. Nothing depends on it.
	Now func() time.Time
	// Sleep waits for d or until ctx ends, and then returns ctx's error.
	Sleep func(ctx context.Context, d time.Duration) error
}

// Catalog reads and writes the records of one cluster. Safe for concurrent use.
type Catalog struct {
	store objstore.Store
	cfg   Config

	randomMu sync.Mutex

	reads, lists, creates, swaps atomic.Int64

	mu        sync.Mutex
	ensembles map[string]protocol.Ensemble // immutable, so cached for ever; an ensemble has a few hundred bytes
}

// New returns a Catalog on store. It makes no request.
func New(store objstore.Store, cfg Config) (*Catalog, error) {
	if cfg.Random == nil || cfg.Now == nil || cfg.Sleep == nil {
		return nil, fmt.Errorf("metadata: Config lacks Random, Now or Sleep")
	}
	if cfg.Root != "" {
		if err := objstore.CheckKey(cfg.Root); err != nil {
			return nil, fmt.Errorf("metadata: root %q: %w", cfg.Root, err)
		}
		if len(cfg.Root) > objstore.MaxKeyBytes/2 {
			return nil, fmt.Errorf("metadata: root has %d bytes, the limit is %d", len(cfg.Root), objstore.MaxKeyBytes/2)
		}
		cfg.Root += "/"
	}
	return &Catalog{store: store, cfg: cfg, ensembles: make(map[string]protocol.Ensemble)}, nil
}

// Requests counts the requests that a Catalog made to the store, retries included.
type Requests struct {
	Reads   int64 // GET
	Lists   int64 // LIST
	Creates int64 // PUT if absent
	Swaps   int64 // PUT if match: the compare-and-swaps
}

// Requests returns the counters.
func (c *Catalog) Requests() Requests {
	return Requests{c.reads.Load(), c.lists.Load(), c.creates.Load(), c.swaps.Load()}
}

// Nonce makes a nonce for RaiseEpoch: 128 random bits in hex.
func (c *Catalog) Nonce() string { return fmt.Sprintf("%016x%016x", c.random(), c.random()) }

func (c *Catalog) random() uint64 {
	c.randomMu.Lock()
	defer c.randomMu.Unlock()
	return c.cfg.Random()
}

// pause sleeps before try number n+1 (n ≥ 1): exponential with full jitter above one half, so that contenders
// do not meet again.
func (c *Catalog) pause(ctx context.Context, n int) error {
	d := min(minPause<<min(n-1, 20), maxPause)
	d = d/2 + time.Duration(c.random()%uint64(d/2+1))
	return c.cfg.Sleep(ctx, d)
}

// CheckName says what is wrong with a log's name or a node's id: 1 to 128 bytes of [A-Za-z0-9._-], the first and the last
// a letter or digit.
func CheckName(name string) error {
	if name == "" || len(name) > protocol.MaxNameBytes {
		return fmt.Errorf("name %.40q has %d bytes; 1 to %d are allowed", name, len(name), protocol.MaxNameBytes)
	}
	for i := range len(name) {
		c := name[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		inner := i > 0 && i < len(name)-1
		if !alnum && !(inner && (c == '.' || c == '_' || c == '-')) {
			if c == '.' || c == '_' || c == '-' {
				return fmt.Errorf("name %q begins or ends with %q; a letter or digit is needed there", name, c)
			}
			return fmt.Errorf("name %q contains %q; letters, digits, '.', '_' and '-' are allowed", name, c)
		}
	}
	return nil
}
