package objstore

import (
	"context"
	"errors"
	"fmt"
)

// The kinds of error, each defined by what the caller does. Test with errors.Is.
var (
	// ErrNotFound: there is no such object (404).
	ErrNotFound = errors.New("object not found")
	// ErrPrecondition: the condition does not hold (412). Not applied by this request; but if an
	// earlier try of the same write had an unknown outcome, that one may be why: look.
	ErrPrecondition = errors.New("condition does not hold")
	// ErrConflict: another write of the key is in flight (409). Not applied, and it says nothing
	// about whether the object exists: retry.
	ErrConflict = errors.New("conflicting write in flight")
	// ErrUnavailable: the store cannot serve now (503, no connection, no space). Definitely not
	// applied: retry with back-off.
	ErrUnavailable = errors.New("store unavailable, not applied")
	// ErrUnknown: the request may or may not have been applied, or may still be: look before acting.
	ErrUnknown = errors.New("outcome unknown")
	// ErrDamaged: the object is there but its bytes are not what was written. Not absent, not
	// retryable: restore it or read elsewhere.
	ErrDamaged = errors.New("object damaged")
	// ErrInvalid: the key, metadata, range or limit is malformed: fix the program.
	ErrInvalid = errors.New("invalid argument")
	// ErrTooLarge: the body or object exceeds a limit: fix the program.
	ErrTooLarge = errors.New("too large")
	// ErrDenied: credentials or permissions (401, 403), or a missing bucket: tell the operator.
	ErrDenied = errors.New("access denied")
)

// Error is the error of every Store method.
type Error struct {
	Store string // the store's String
	Op    string // put, get, head, list, delete
	Key   string // key or prefix
	Kind  error  // one of the Err variables
	Err   error  // the cause; may be nil
}

func (e *Error) Error() string {
	s := fmt.Sprintf("objstore %s: %s %q: %v", e.Store, e.Op, e.Key, e.Kind)
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

// Retryable says that the same request may simply be sent again after a pause.
func Retryable(err error) bool {
	return errors.Is(err, ErrConflict) || errors.Is(err, ErrUnavailable)
}

// CheckContext is for backends: the error of a request that was given up before it was sent.
// It is ErrUnavailable with the context's error as cause.
func CheckContext(ctx context.Context, store, op, key string) error {
	if err := ctx.Err(); err != nil {
		return &Error{Store: store, Op: op, Key: key, Kind: ErrUnavailable, Err: err}
	}
	return nil
}
