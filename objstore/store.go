// Package objstore is the conditional-write object store that BtrLog keeps its
// archive and its metadata in. It is small on purpose: what S3, Google Cloud
// Storage, Azure Blob and a local directory all do, and nothing else.
//
// What every backend promises:
//
//  1. A Put is atomic. A reader sees the old object or the new one, body and
//     metadata together, never a mixture and never a prefix.
//  2. A Put that returned nil is durable, and every later Get, Head and List, by
//     any process, sees it or something newer. The same for Delete.
//  3. Conditions are decided by the store at the moment of the write. Of any
//     number of concurrent creators of one key, or replacers of one ETag, at
//     most one succeeds. [Probe] tries this at start-up.
//  4. An error says which of three things is true: not applied, refused because
//     the condition does not hold, or unknown. See the Err variables.
//
// What no backend promises: that an ETag is unique in time. On most servers it is
// a hash of the body, so writing an earlier body again brings the earlier ETag
// back, and a compare-and-swap against it succeeds although the object changed
// twice in between (the ABA problem). The backends of this module behave that badly on purpose.
// Whoever uses [IfMatch] as a register must put a fresh nonce into every body. Metadata does not
// count towards the ETag.
//
// Nor is a conditional Delete offered: several servers accept the condition and ignore it.
//
// Backends register a URL scheme; importing objstore/localdir gives "file" and
// objstore/memory gives "mem". Backends with heavy dependencies live in modules
// of their own and register in the same way.
package objstore

import (
	"context"
	"fmt"
	"io"
	"iter"
	"time"
)

// Limits that hold for every backend, so that a program that works on one works on all.
const (
	// MaxKeyBytes bounds a key.
	MaxKeyBytes = 1024
	// MaxMetadataBytes bounds the sum of the lengths of all metadata names and values (S3's limit).
	MaxMetadataBytes = 2048
	// MaxBodyBytes bounds the body of one Put.
	MaxBodyBytes = 1 << 30
	// MaxListLimit is the largest page that List returns, and what a limit of 0 means.
	MaxListLimit = 1000
)

// Store is a conditional-write object store. All methods may be called
// concurrently. All errors are *[Error].
type Store interface {
	// Put writes one object under a condition and returns its Info. The store does not
	// keep body or meta after it returns, and does not change them. meta may be nil; see [CheckMetadata].
	//
	// Errors: ErrPrecondition (also for IfMatch on an absent key), ErrConflict, ErrUnavailable,
	// ErrUnknown, ErrInvalid, ErrTooLarge, ErrDenied.
	Put(ctx context.Context, key string, body []byte, meta map[string]string, cond Condition) (Info, error)

	// Get opens an object, or a part of it, for reading. The caller closes the
	// reader. Bytes come from one version of the object even if it is replaced meanwhile.
	// Info.Size is the size of the whole object, whatever the range; Info carries the metadata.
	// A read that is cut short or finds damage ends in an error, never in io.EOF.
	//
	// Errors, here and from the reader: ErrNotFound, ErrUnavailable, ErrDamaged, ErrInvalid (also for a
	// range that starts behind the end), ErrDenied.
	Get(ctx context.Context, key string, r Range) (io.ReadCloser, Info, error)

	// Head returns an object's Info with its metadata. Errors as Get.
	Head(ctx context.Context, key string) (Info, error)

	// List returns objects whose key starts with prefix and is greater than
	// startAfter, in the order of the keys' bytes, at most limit of them (0: MaxListLimit;
	// more than MaxListLimit is ErrInvalid). prefix is any string, not only whole path elements.
	// The Infos carry no metadata. Errors: ErrUnavailable, ErrInvalid, ErrDenied.
	List(ctx context.Context, prefix, startAfter string, limit int) (Page, error)

	// Delete removes an object. To delete an absent key is no error.
	// Errors: ErrConflict, ErrUnavailable, ErrUnknown, ErrInvalid, ErrDenied.
	Delete(ctx context.Context, key string) error

	// String names the store for error messages and logs, without credentials.
	String() string

	// Close releases connections. No other method may be called after it.
	Close() error
}

// Info describes one version of an object.
type Info struct {
	Key  string
	Size int64 // bytes of the body
	// ETag is opaque. It is what IfMatch compares. It is not unique in time, see the package
	// comment. In a listing it is empty for an object whose description cannot be read (it is
	// there, and Get says what is wrong with it).
	ETag string
	// Modified is for people and for retention by age; nothing may depend on its order. Zero
	// if the store has no clock.
	Modified time.Time
	// Metadata is nil in listings. The caller owns it.
	Metadata map[string]string
}

// Page is one answer of List.
type Page struct {
	Objects []Info
	// More says that the page was cut, or at least is full: nothing may follow. The next one starts after the key of the last
	// object. An empty page has no More.
	More bool
}

// Range selects bytes of an object. The zero Range is the whole object. A range that ends
// behind the object ends at its end.
type Range struct {
	Offset int64
	Length int64 // bytes; 0 means up to the end
}

// Whole is the range of the whole object.
var Whole = Range{}

// Resolve returns the offsets [from, to) that the range selects in an object of size bytes. ok is
// false if the range is malformed or starts behind the end (the byte just behind the last counts as behind,
// except that the zero Range fits the empty object).
func (r Range) Resolve(size int64) (from, to int64, ok bool) {
	if r.Offset < 0 || r.Length < 0 || r.Offset > size {
		return 0, 0, false
	}
	if r == Whole {
		return 0, size, true
	}
	if r.Offset == size {
		return 0, 0, false
	}
	if r.Length == 0 || r.Length > size-r.Offset {
		return r.Offset, size, true
	}
	return r.Offset, r.Offset + r.Length, true
}

// Condition is what must hold at the moment of a Put. The zero Condition is [Always].
type Condition struct {
	kind condKind
	etag string
}

type condKind uint8

const (
	condAlways condKind = iota
	condAbsent
	condMatch
)

// Always writes whatever is there.
func Always() Condition { return Condition{} }

// IfAbsent writes only if the key does not exist (If-None-Match: *).
func IfAbsent() Condition { return Condition{kind: condAbsent} }

// IfMatch writes only if the key exists with this ETag (If-Match).
func IfMatch(etag string) Condition { return Condition{kind: condMatch, etag: etag} }

// IsIfAbsent reports whether the condition is IfAbsent.
func (c Condition) IsIfAbsent() bool { return c.kind == condAbsent }

// Match returns the ETag of an IfMatch condition.
func (c Condition) Match() (etag string, ok bool) { return c.etag, c.kind == condMatch }

// Holds says whether the condition holds for an object that exists with etag, or does not exist.
func (c Condition) Holds(exists bool, etag string) bool {
	switch c.kind {
	case condAbsent:
		return !exists
	case condMatch:
		return exists && c.etag == etag
	}
	return true
}

func (c Condition) String() string {
	switch c.kind {
	case condAbsent:
		return "if absent"
	case condMatch:
		return fmt.Sprintf("if match %q", c.etag)
	}
	return "always"
}

// ReadAll reads a whole object of at most maxBytes. A larger one is ErrTooLarge, and nothing is
// allocated for it. The caller owns the slice.
func ReadAll(ctx context.Context, s Store, key string, maxBytes int64) ([]byte, Info, error) {
	r, info, err := s.Get(ctx, key, Whole)
	if err != nil {
		return nil, Info{}, err
	}
	defer r.Close()
	if info.Size > maxBytes {
		return nil, info, &Error{Store: s.String(), Op: "get", Key: key, Kind: ErrTooLarge,
			Err: fmt.Errorf("object has %d bytes, the reader accepts %d", info.Size, maxBytes)}
	}
	body := make([]byte, info.Size)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, info, readError(s, key, err)
	}
	// The end must be read too: that is where a backend reports damage or a cut.
	var one [1]byte
	if n, err := r.Read(one[:]); n != 0 || (err != nil && err != io.EOF) {
		if n != 0 {
			err = fmt.Errorf("body is longer than the %d bytes announced", info.Size)
		}
		return nil, info, readError(s, key, err)
	}
	return body, info, nil
}

type replacing struct{}

// Replacing marks a Get whose caller goes on to replace what it read, with IfMatch, and does nothing else on the strength of it: reports
// nothing, decides nothing. A backend may then return a version whose Put has not returned and never may, without first making
// sure that it survives a power cut: either the caller's Put, whose success covers both, or nobody, has acted on it.
func Replacing(ctx context.Context) context.Context {
	return context.WithValue(ctx, replacing{}, true)
}

// IsReplacing reports whether ctx comes from Replacing.
func IsReplacing(ctx context.Context) bool {
	is, _ := ctx.Value(replacing{}).(bool)
	return is
}

func readError(s Store, key string, err error) error {
	if _, ok := err.(*Error); ok {
		return err
	}
	return &Error{Store: s.String(), Op: "get", Key: key, Kind: ErrUnavailable, Err: err}
}

// All iterates over every object under prefix, page by page. It ends after the first error.
func All(ctx context.Context, s Store, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		after := ""
		for {
			page, err := s.List(ctx, prefix, after, 0)
			if err != nil {
				yield(Info{}, err)
				return
			}
			for _, o := range page.Objects {
				if !yield(o, nil) {
					return
				}
				after = o.Key
			}
			if !page.More {
				return
			}
		}
	}
}
