package btrlog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

// The kinds of error, each defined by what the caller does. Test with errors.Is; errors.As with *Error gives the details.
var (
	// ErrFenced: another writer has opened the log, and nothing more is accepted here. Of Append it is definite: no LSN was
	// given out. Of Sync and Close the outcome is Unknown: the other writer's open has decided which of the LSNs that were given
	// out and not committed are in the log. Stop writing; open again only if this process is meant to own the log.
	ErrFenced = errors.New("fenced by a newer writer")
	// ErrUnavailable: too few log nodes, or the metadata store, answered in time. Error.Missing names the nodes. Retry.
	ErrUnavailable = errors.New("unavailable")
	// ErrOverloaded: the nodes refuse reads because their bounded queues are full. Definite. Retry later, and less.
	ErrOverloaded = errors.New("overloaded")
	// ErrWindowFull: W LSNs (or the window's bytes) are not committed yet; no LSN was given out. Definite. Sync, then retry.
	ErrWindowFull = errors.New("append window is full")
	// ErrTrimmed: the records were removed on purpose, by Trim or retention. Error.To is the last of them.
	ErrTrimmed = errors.New("trimmed")
	// ErrDataLoss: committed records are in no node and in no archived object. Error.From and To say which. Tell the operator.
	ErrDataLoss = errors.New("committed records are lost")
	// ErrTooLarge: the record or batch exceeds a limit; no LSN was given out. Definite. Fix the program.
	ErrTooLarge = errors.New("too large")
	// ErrNotFound: there is no such log (or it was deleted), or no such LSN yet.
	ErrNotFound = errors.New("not found")
	// ErrExists: the name is taken. Definite.
	ErrExists = errors.New("exists already")
	// ErrClosed: the Client or Writer was closed by this process. Of a call that begins something it is definite: nothing was
	// accepted. Of Sync, and of a Close after Client.Close, it is Unknown for LSNs that were given out before and not committed:
	// the next open of the log decides them.
	ErrClosed = errors.New("closed")
	// ErrInvalid: an argument or option is not allowed. Definite. Fix the program or the command.
	ErrInvalid = errors.New("invalid")
)

// Error is the error of every method of this package.
type Error struct {
	// Kind is one of the Err variables.
	Kind error
	// Op says what was done, for example "open writer".
	Op string
	// Log is the log's name; empty where no log is concerned.
	Log string
	// From and To are the LSNs that the error speaks of, both inclusive; zero where none are.
	From, To LSN
	// Epoch is the epoch of the writer, or with ErrFenced, if it is known, that of the new owner; zero where none is.
	Epoch Epoch
	// Unknown: the operation may or may not have taken effect, or may still. False: it definitely did not.
	Unknown bool
	// Retryable: the same call may succeed later without any change. A retried Sync, Read, Tail, OpenWriter or Delete
	// never doubles anything. A failed Append gave out no LSN, so a retried Append does not double either.
	Retryable bool
	// Missing names the log nodes whose answer was waited for.
	Missing []string
	// Replaced names those of Missing that run with another data directory than the log knows: to wait for them is in vain.
	// WriterOptions.Replace adopts them, once enough of the others answer.
	Replaced []string
	// Incompatible says of some of Missing that they answer, and why the answers are of no use: another version of the protocol, another
	// cluster. To wait for them is in vain.
	Incompatible map[string]string
	// Err is the cause; may be nil.
	Err error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("btrlog: ")
	b.WriteString(e.Op)
	if e.Log != "" {
		fmt.Fprintf(&b, " of log %q", e.Log)
	}
	fmt.Fprintf(&b, ": %v", e.Kind)
	var about []string
	switch {
	case e.From != 0 && e.To > e.From:
		about = append(about, fmt.Sprintf("LSNs %d to %d", e.From, e.To))
	case e.From != 0:
		about = append(about, fmt.Sprintf("LSN %d", e.From))
	}
	if e.Epoch != 0 {
		about = append(about, fmt.Sprintf("epoch %d", e.Epoch))
	}
	if len(about) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(about, ", "))
	}
	if e.Unknown {
		b.WriteString("; the outcome is unknown")
	}
	if why := e.why(); why != "" {
		b.WriteString(": " + why)
	}
	silent := slices.DeleteFunc(slices.Clone(e.Missing), func(n string) bool { return slices.Contains(e.Replaced, n) || e.Incompatible[n] != "" })
	if len(silent) > 0 {
		fmt.Fprintf(&b, "; no answer from %s", strings.Join(silent, ", "))
	}
	for _, n := range slices.Sorted(maps.Keys(e.Incompatible)) {
		fmt.Fprintf(&b, "; %s: %s", n, e.Incompatible[n])
	}
	for _, n := range e.Replaced {
		fmt.Fprintf(&b, "; %s (running, but with another data directory than the log knows: once the others answer, adopt it with WriterOptions.Replace{%q: %[1]q})", n, n)
	}
	return b.String()
}

// why is what the cause adds to what is said already.
func (e *Error) why() string {
	if e.Err == nil {
		return ""
	}
	if m, ok := e.Err.(*meta.Error); ok {
		return e.whyMetadata(m)
	}
	text := e.Err.Error()
	for _, known := range []error{e.Kind, protocol.ErrTooLarge, protocol.ErrFenced, protocol.ErrWindowFull} {
		if rest, ok := strings.CutPrefix(text, known.Error()); ok && errors.Is(e, known) && (rest == "" || strings.HasPrefix(rest, ": ")) {
			text = strings.TrimPrefix(rest, ": ")
		}
	}
	return text
}

// whyMetadata leaves out the operation, the log and the kind where they are the error's own.
func (e *Error) whyMetadata(m *meta.Error) string {
	for { // of an operation within an operation, the inner knows more
		inner, ok := m.Err.(*meta.Error)
		if !ok {
			break
		}
		m = inner
	}
	var parts []string
	if m.Object != fmt.Sprintf("log %q", e.Log) {
		parts = append(parts, m.Object)
	}
	switch m.Kind {
	case meta.ErrNotFound, meta.ErrExists, meta.ErrInvalid, meta.ErrFenced:
		if m.Kind.Error() != e.Kind.Error() && !errors.Is(e.Kind, ErrFenced) {
			parts = append(parts, m.Kind.Error())
		}
	case meta.ErrUnavailable, meta.ErrUnknown: // the store's own error says that
		if m.Err == nil {
			parts = append(parts, m.Kind.Error())
		}
	default:
		parts = append(parts, m.Kind.Error())
	}
	if m.Err != nil {
		parts = append(parts, m.Err.Error())
	}
	return strings.Join(parts, ": ")
}

// plainly is an error with words of our own.
type plainly struct {
	text string
	err  error
}

func (p *plainly) Error() string { return p.text }
func (p *plainly) Unwrap() error { return p.err }

// Unwrap gives errors.Is both the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// kindOf maps the error of a lower layer to what the caller does about it.
func kindOf(err error) (kind error, unknown, retryable bool) {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Kind, e.Unknown, e.Retryable
	case errors.Is(err, meta.ErrFenced), errors.Is(err, protocol.ErrFenced):
		return ErrFenced, false, false
	case errors.Is(err, meta.ErrNotFound), errors.Is(err, meta.ErrDeleted), errors.Is(err, protocol.ErrDeleted):
		return ErrNotFound, false, false
	case errors.Is(err, meta.ErrExists):
		return ErrExists, false, false
	case errors.Is(err, meta.ErrInvalid):
		return ErrInvalid, false, false
	case errors.Is(err, meta.ErrUnknown):
		return ErrUnavailable, true, true
	case errors.Is(err, meta.ErrCorrupt), errors.Is(err, meta.ErrNewer), errors.Is(err, archive.ErrTooNew):
		return ErrUnavailable, false, false
	case errors.Is(err, protocol.ErrWindowFull):
		return ErrWindowFull, false, true
	case errors.Is(err, protocol.ErrTooLarge):
		return ErrTooLarge, false, false
	case errors.Is(err, protocol.ErrQuorumLost):
		return ErrUnavailable, false, false
	}
	return ErrUnavailable, false, true
}

// wrap makes err an *Error of this operation. A nil err stays nil.
func wrap(op, log string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if direct, ok := err.(*Error); ok && direct.Op == "" { // of a step that serves several calls
		out := *direct
		out.Op, out.Log = op, log
		return &out
	}
	if errors.As(err, &e) && e.Log == log { // it says more exactly what was done
		return e
	}
	kind, unknown, retryable := kindOf(err)
	out := &Error{Kind: kind, Op: op, Log: log, Unknown: unknown, Retryable: retryable, Err: err}
	var m *meta.Error
	if errors.As(err, &m) {
		out.Epoch = Epoch(m.Epoch)
	}
	if e != nil {
		out.From, out.To, out.Epoch, out.Missing, out.Replaced = e.From, e.To, e.Epoch, e.Missing, e.Replaced
		out.Incompatible = e.Incompatible
	}
	return out
}

func invalid(op, log, format string, args ...any) error {
	return &Error{Kind: ErrInvalid, Op: op, Log: log, Err: fmt.Errorf(format, args...)}
}

// ended is the error of a wait that ctx or a time limit ended.
func ended(op, log string, ctx context.Context, format string, args ...any) *Error {
	cause := context.Cause(ctx)
	if cause == nil {
		cause = context.DeadlineExceeded
	}
	return &Error{Kind: ErrUnavailable, Op: op, Log: log, Retryable: true, Err: fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), cause)}
}
