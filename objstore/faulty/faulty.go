// Package faulty wraps an object store and makes it fail as real ones do: requests
// lost before or after they were applied, applied late, 409, 503, delays. It is
// deterministic for one seed and one order of requests, starts no goroutine and reads no clock. It
// also counts every request by kind and outcome, without any fault configured too.
package faulty

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/btrlog/btrlog/objstore"
)

// Op is a kind of request; a set of them is their sum.
type Op uint8

const (
	PutAlways Op = 1 << iota
	PutIfAbsent
	PutIfMatch
	Get
	Head
	List
	Delete

	Puts   = PutAlways | PutIfAbsent | PutIfMatch
	Writes = Puts | Delete
	Reads  = Get | Head | List
	AllOps = Writes | Reads
)

func (o Op) String() string {
	switch o {
	case PutAlways:
		return "put"
	case PutIfAbsent:
		return "put-if-absent"
	case PutIfMatch:
		return "put-if-match"
	case Get:
		return "get"
	case Head:
		return "head"
	case List:
		return "list"
	case Delete:
		return "delete"
	}
	return fmt.Sprintf("ops(%#x)", uint8(o))
}

// Fault is what happens to a request.
type Fault uint8

const (
	// Unavailable: ErrUnavailable, not applied (503).
	Unavailable Fault = iota + 1
	// Conflict: ErrConflict, not applied (409). A read fails with ErrUnavailable instead.
	Conflict
	// LostRequest: ErrUnknown, not applied and never will be. A read fails with ErrUnavailable instead.
	LostRequest
	// LostReply: applied, then ErrUnknown. A read fails with ErrUnavailable instead.
	LostReply
	// HiddenRetry: applied, then ErrPrecondition, if the request carried a condition: what a client
	// library that retries by itself reports after a lost reply. Otherwise applied and reported.
	HiddenRetry
	// Late: ErrUnknown now, and applied when the test calls Release: a stalled creator. Writes only; a read fails with ErrUnavailable.
	Late
	// Denied: ErrDenied, not applied.
	Denied
	// CutBody: a Get succeeds and its reader fails with ErrUnavailable half way. Other requests are not touched.
	CutBody
)

// Rule says which requests suffer which fault. The first rule that applies decides.
type Rule struct {
	Ops    Op     // 0 means AllOps
	Prefix string // of the key, or of a List's prefix
	Fault  Fault
	// Probability per matching request; 0 means always.
	Probability float64
	// Skip lets that many matching requests pass first.
	Skip int
	// Count is how many requests suffer before the rule is spent; 0 means without end.
	Count int
}

// Config of New.
type Config struct {
	Seed uint64 // of the draws against Rule.Probability
	// Delay, if not nil, is called before each request, without a lock held; it may wait or block, and
	// should end with ctx. An error from it fails the request as ErrUnavailable.
	Delay func(ctx context.Context, op Op, key string) error
}

// Count is a kind of request with its outcome. Outcome is "ok" or the text of the error's kind.
type Count struct {
	Op      Op
	Outcome string
}

// Store implements objstore.Store around another one.
type Store struct {
	inner objstore.Store
	delay func(context.Context, Op, string) error

	mu     sync.Mutex
	rng    *rand.Rand
	rules  []*Rule
	counts map[Count]int
	late   []func(context.Context) error
}

// New wraps inner, which the Store closes when it is closed.
func New(inner objstore.Store, c Config) *Store {
	return &Store{inner: inner, delay: c.Delay, rng: rand.New(rand.NewPCG(c.Seed, 0xfa017)), counts: make(map[Count]int)}
}

// Add appends a rule.
func (s *Store) Add(r Rule) {
	if r.Ops == 0 {
		r.Ops = AllOps
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = append(s.rules, &r)
}

// Heal removes all rules. Requests held by Late stay held.
func (s *Store) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
}

// Release applies the requests that Late holds, oldest first, and returns their outcomes.
func (s *Store) Release(ctx context.Context) []error {
	s.mu.Lock()
	late := s.late
	s.late = nil
	s.mu.Unlock()
	var outcomes []error
	for _, apply := range late {
		outcomes = append(outcomes, apply(ctx))
	}
	return outcomes
}

// Counts returns a copy of all counters.
func (s *Store) Counts() map[Count]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
}

// Requests returns how many requests of the given kinds were made, whatever their outcome.
func (s *Store) Requests(ops Op) int {
	n := 0
	for c, k := range s.Counts() {
		if c.Op&ops != 0 {
			n += k
		}
	}
	return n
}

// ResetCounts sets all counters to zero.
func (s *Store) ResetCounts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.counts)
}

func (s *Store) String() string { return s.inner.String() }

// Close closes the inner store.
func (s *Store) Close() error { return s.inner.Close() }

// draw finds the fault of a request; 0 is none.
func (s *Store) draw(op Op, key string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.rules {
		if r.Ops&op == 0 || !strings.HasPrefix(key, r.Prefix) {
			continue
		}
		if r.Skip > 0 {
			r.Skip--
			continue
		}
		if r.Probability > 0 && s.rng.Float64() >= r.Probability {
			continue
		}
		if r.Count > 0 {
			if r.Count--; r.Count == 0 {
				s.rules = slices.Delete(s.rules, i, i+1)
			}
		}
		return r.Fault
	}
	return 0
}

var errInjected = errors.New("injected fault")

func (s *Store) fault(op, key string, kind error) error {
	return &objstore.Error{Store: s.String(), Op: op, Key: key, Kind: kind, Err: errInjected}
}

var kinds = []error{objstore.ErrNotFound, objstore.ErrPrecondition, objstore.ErrConflict, objstore.ErrUnavailable,
	objstore.ErrUnknown, objstore.ErrDamaged, objstore.ErrInvalid, objstore.ErrTooLarge, objstore.ErrDenied}

func (s *Store) count(op Op, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "other error"
		for _, k := range kinds {
			if errors.Is(err, k) {
				outcome = k.Error()
				break
			}
		}
	}
	s.mu.Lock()
	s.counts[Count{op, outcome}]++
	s.mu.Unlock()
}

func (s *Store) wait(ctx context.Context, op Op, name, key string) error {
	if s.delay == nil {
		return nil
	}
	if err := s.delay(ctx, op, key); err != nil {
		return &objstore.Error{Store: s.String(), Op: name, Key: key, Kind: objstore.ErrUnavailable, Err: err}
	}
	return nil
}

// write runs a write under its fault. apply may be called after the method that made it returned.
func (s *Store) write(ctx context.Context, op Op, name, key string, apply func(context.Context) error) (err error) {
	defer func() { s.count(op, err) }()
	if err := s.wait(ctx, op, name, key); err != nil {
		return err
	}
	switch s.draw(op, key) {
	case Unavailable:
		return s.fault(name, key, objstore.ErrUnavailable)
	case Conflict:
		return s.fault(name, key, objstore.ErrConflict)
	case Denied:
		return s.fault(name, key, objstore.ErrDenied)
	case LostRequest:
		return s.fault(name, key, objstore.ErrUnknown)
	case LostReply:
		if err := apply(ctx); errors.Is(err, objstore.ErrInvalid) {
			return err // found before anything was sent
		}
		return s.fault(name, key, objstore.ErrUnknown)
	case HiddenRetry:
		if err := apply(ctx); err != nil || op&(PutIfAbsent|PutIfMatch) == 0 {
			return err
		}
		return s.fault(name, key, objstore.ErrPrecondition)
	case Late:
		s.mu.Lock()
		s.late = append(s.late, apply)
		s.mu.Unlock()
		return s.fault(name, key, objstore.ErrUnknown)
	}
	return apply(ctx)
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body []byte, meta map[string]string, c objstore.Condition) (objstore.Info, error) {
	op := PutAlways
	if _, match := c.Match(); match {
		op = PutIfMatch
	} else if c.IsIfAbsent() {
		op = PutIfAbsent
	}
	body, meta = slices.Clone(body), maps.Clone(meta) // Late may outlive the caller's
	var info objstore.Info
	err := s.write(ctx, op, "put", key, func(ctx context.Context) (err error) {
		i, err := s.inner.Put(ctx, key, body, meta, c)
		info = i
		return err
	})
	if err != nil {
		return objstore.Info{}, err
	}
	return info, nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.write(ctx, Delete, "delete", key, func(ctx context.Context) error { return s.inner.Delete(ctx, key) })
}

// read runs a read under its fault.
func (s *Store) read(ctx context.Context, op Op, key string, apply func() error) (f Fault, err error) {
	defer func() { s.count(op, err) }()
	if err := s.wait(ctx, op, op.String(), key); err != nil {
		return 0, err
	}
	switch f = s.draw(op, key); f {
	case 0, CutBody, HiddenRetry:
		return f, apply()
	case Denied:
		return f, s.fault(op.String(), key, objstore.ErrDenied)
	}
	return f, s.fault(op.String(), key, objstore.ErrUnavailable)
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string, r objstore.Range) (rc io.ReadCloser, info objstore.Info, err error) {
	f, err := s.read(ctx, Get, key, func() (err error) {
		rc, info, err = s.inner.Get(ctx, key, r)
		return err
	})
	if err == nil && f == CutBody {
		from, to, _ := r.Resolve(info.Size)
		rc = &cutReader{ReadCloser: rc, left: (to - from) / 2, err: s.fault("get", key, objstore.ErrUnavailable)}
	}
	return rc, info, err
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (info objstore.Info, err error) {
	_, err = s.read(ctx, Head, key, func() (err error) {
		info, err = s.inner.Head(ctx, key)
		return err
	})
	return info, err
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) (page objstore.Page, err error) {
	_, err = s.read(ctx, List, prefix, func() (err error) {
		page, err = s.inner.List(ctx, prefix, startAfter, limit)
		return err
	})
	return page, err
}

type cutReader struct {
	io.ReadCloser
	left int64
	err  error
}

func (c *cutReader) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, c.err
	}
	n, err := c.ReadCloser.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}
