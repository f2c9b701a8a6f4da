package meta

import (
	"context"
	"errors"

	"github.com/btrlog/btrlog/objstore"
)

// Versioned is a record as it was read or written, with the ETag that a compare-and-swap needs.
type Versioned[T any] struct {
	Record T
	ETag   string
}

// recordOf is what swap needs to know of a kind of record.
type recordOf[T any] interface {
	*T
	// stamp sets what changes with every write.
	stamp(nonce string, c *Catalog, old *T)
	// follows says why the record may not be written over old (nil: over nothing).
	follows(old *T) error
	encode() ([]byte, error)
	decode(body []byte) error
	limit() int64
}

// what names a call for its errors.
type what struct {
	op, object string
	// replaces says that the call all but always replaces what it reads first.
	replaces bool
}

func (w what) err(kind, cause error) *Error {
	return &Error{Op: w.op, Object: w.object, Kind: kind, Err: cause}
}

// errGivenUp is the cause when a call without a deadline reaches maxAttempts.
var errGivenUp = errors.New("gave up after too many tries")

// load reads a record, and tries again while the store is unavailable. ok is false if there is none.
func load[T any, P recordOf[T]](ctx context.Context, c *Catalog, w what, key string) (v Versioned[T], ok bool, err error) {
	for try := 1; ; try++ {
		c.reads.Add(1)
		body, info, err := objstore.ReadAll(ctx, c.store, key, P(&v.Record).limit())
		if err == nil {
			v.ETag = info.ETag
			if err := P(&v.Record).decode(body); err != nil {
				kind := ErrCorrupt
				if errors.Is(err, ErrNewer) {
					kind = ErrNewer
				}
				return v, false, w.err(kind, keyed(key, err))
			}
			return v, true, nil
		}
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			return v, false, nil
		case errors.Is(err, objstore.ErrDamaged), errors.Is(err, objstore.ErrTooLarge):
			return v, false, w.err(ErrCorrupt, err)
		case !objstore.Retryable(err) || ctx.Err() != nil || try == maxAttempts:
			return v, false, w.err(ErrUnavailable, err)
		}
		if c.pause(ctx, try) != nil {
			return v, false, w.err(ErrUnavailable, err)
		}
	}
}

// swap is the one way in which a record changes (M1). change computes the next record from the current one (nil: absent); it
// returns nil if nothing is to be done, either because the goal is reached, or because an earlier try of this call reached it:
// so change must recognise its own work. It may be called many times. cur, if not nil, saves the first read.
func swap[T any, P recordOf[T]](ctx context.Context, c *Catalog, w what, key string, cur *Versioned[T],
	change func(old *T) (*T, error)) (Versioned[T], error) {

	unknown := false // an earlier try may have been applied, or may still be
	refused := false // the last try met a 412 that nobody has looked into
	fail := func(cause error) (Versioned[T], error) {
		kind := ErrUnavailable
		if unknown || refused {
			kind = ErrUnknown
		}
		return Versioned[T]{}, w.err(kind, cause)
	}
	var old Versioned[T]
	have, exists, given := cur != nil, cur != nil, cur != nil
	if have {
		old = *cur
	}
	peek := w.replaces && !given
	for try := 1; ; try++ {
		if !have {
			var err error
			read := ctx
			if peek {
				read = objstore.Replacing(ctx)
			}
			if old, exists, err = load[T, P](read, c, w, key); err != nil {
				if errors.Is(err, ErrUnavailable) {
					return fail(err)
				}
				return Versioned[T]{}, err
			}
			have, given = true, false
		}
		var base *T
		if exists {
			base = &old.Record
		}
		next, err := change(base)
		if err != nil && given || peek && exists && (err != nil || next == nil) {
			// The version that the caller remembered may be out of date, and one that was read to be replaced may not last. No verdict
			// without a look.
			have, given, peek = false, false, false
			continue
		}
		peek = false
		if err != nil {
			return Versioned[T]{}, err
		}
		if next == nil {
			return old, nil
		}
		refused = false // the look did not find it done
		put, err := writeOnce[T, P](ctx, c, w, key, base, old.ETag, next)
		switch {
		case err == nil:
			return put, nil
		case errors.Is(err, objstore.ErrPrecondition):
			have, refused = false, true // look (M3): either an earlier try of mine, or somebody else's change
		case errors.Is(err, objstore.ErrUnknown):
			have, unknown = false, true
		case objstore.Retryable(err):
			// Not applied, and it says nothing about the record (R14). The same version serves again.
		case errors.Is(err, objstore.ErrDamaged):
			return Versioned[T]{}, w.err(ErrCorrupt, err)
		default:
			var mine *Error
			if errors.As(err, &mine) {
				return Versioned[T]{}, err
			}
			return fail(err)
		}
		if ctx.Err() != nil {
			return fail(err)
		}
		if try == maxAttempts {
			return fail(errors.Join(errGivenUp, err))
		}
		// The first refusal is looked at without delay: mostly it is a lone trim, or a lost reply.
		if try > 1 || objstore.Retryable(err) {
			if c.pause(ctx, try) != nil {
				return fail(err)
			}
		}
	}
}

// writeOnce makes one conditional write. Its errors are the store's, or an *Error if the record must not be written.
func writeOnce[T any, P recordOf[T]](ctx context.Context, c *Catalog, w what, key string, base *T, etag string, next *T) (Versioned[T], error) {
	p := P(next)
	p.stamp(c.Nonce(), c, base) // M2
	if err := p.follows(base); err != nil {
		return Versioned[T]{}, w.err(ErrInvalid, err)
	}
	body, err := p.encode()
	if err != nil {
		return Versioned[T]{}, w.err(ErrInvalid, err)
	}
	if int64(len(body)) > p.limit() {
		return Versioned[T]{}, w.err(ErrInvalid, errTooLong(len(body), p.limit()))
	}
	cond := objstore.IfAbsent()
	if base != nil {
		cond = objstore.IfMatch(etag)
		c.swaps.Add(1)
	} else {
		c.creates.Add(1)
	}
	info, err := c.store.Put(ctx, key, body, nil, cond)
	if err != nil {
		return Versioned[T]{}, err
	}
	return Versioned[T]{*next, info.ETag}, nil
}
