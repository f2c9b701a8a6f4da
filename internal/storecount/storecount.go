// Package storecount counts what a process asks of an object store, by kind and outcome, and knows for how long the store has
// not answered.
package storecount

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/metrics"
	"github.com/btrlog/btrlog/objstore"
)

// The metrics, for every program that has an object store. Those who count label themselves as users.
var (
	Requests = &metrics.Desc{Name: "btrlog_object_store_requests_total", Kind: metrics.Counter, Unit: "requests", Labels: []string{"user", "request", "outcome"},
		Help: "Requests to the object store by what they were for, kind and outcome; retries count. Outcome unavailable was not applied, unknown may have been."}
	Bytes = &metrics.Desc{Name: "btrlog_object_store_bytes_total", Kind: metrics.Counter, Unit: "bytes", Labels: []string{"user", "request"},
		Help: "Bytes of bodies that were read from (get) or stored in (put) the object store."}
	Seconds = &metrics.Desc{Name: "btrlog_object_store_request_seconds", Kind: metrics.Distribution, Unit: "seconds", Labels: []string{"user", "request"},
		Help: "Time until the object store answered; of a get, until its body began."}
	Failing = &metrics.Desc{Name: "btrlog_object_store_failing_seconds", Kind: metrics.Gauge, Unit: "seconds",
		Help: "Time since the object store gave its last answer, if the latest request got none; 0 while it answers."}
)

// Descs are all of them.
var Descs = []*metrics.Desc{Requests, Bytes, Seconds, Failing}

type op int

const (
	opPut op = iota
	opGet
	opHead
	opList
	opDelete
	ops
)

var opNames = [ops]string{"put", "get", "head", "list", "delete"}

// outcomes are the kinds of error of package objstore, by what they mean to who watches.
var outcomes = []struct {
	name string
	err  error
}{
	{"ok", nil},
	{"not_found", objstore.ErrNotFound},
	{"precondition", objstore.ErrPrecondition},
	{"conflict", objstore.ErrConflict},
	{"unavailable", objstore.ErrUnavailable},
	{"unknown", objstore.ErrUnknown},
	{"damaged", objstore.ErrDamaged},
	{"denied", objstore.ErrDenied},
	{"other", nil},
}

const (
	outcomeOK    = 0
	maxOutcomes  = 9
	outcomeOther = maxOutcomes - 1
)

func outcomeOf(err error) int {
	if err == nil {
		return outcomeOK
	}
	for i := 1; i < outcomeOther; i++ {
		if errors.Is(err, outcomes[i].err) {
			return i
		}
	}
	return outcomeOther
}

// answered says whether an outcome is an answer of the store. A request that its own caller gave up says nothing.
func answered(err error) bool {
	return !errors.Is(err, objstore.ErrUnavailable) && !errors.Is(err, objstore.ErrUnknown) && !errors.Is(err, objstore.ErrDenied)
}

// Health is what all users of one store together know of it. The zero Health has seen no failure.
type Health struct {
	mu     sync.Mutex
	latest time.Time // last answer
	since  time.Time // first failure after the last answer; zero while it answers
	err    error     // the latest failure
}

func (h *Health) note(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	switch {
	case answered(err):
		h.latest, h.since, h.err = now, time.Time{}, nil
	case h.since.IsZero():
		h.since, h.err = now, err
	default:
		h.err = err
	}
}

// Failing returns for how long no request has got an answer, and the latest error; 0 and nil while the store answers.
func (h *Health) Failing() (time.Duration, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.since.IsZero() {
		return 0, nil
	}
	return time.Since(h.since), h.err
}

// Quiet returns how long ago the last answer or failure was.
func (h *Health) Quiet() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := h.latest
	if h.since.After(last) {
		last = h.since
	}
	return time.Since(last)
}

// Counter counts the requests of one user of a store.
type Counter struct {
	user    string
	health  *Health
	byOp    [ops][maxOutcomes]atomic.Uint64
	bytes   [ops]atomic.Uint64
	seconds [ops]metrics.Histogram
}

// New returns a counter for user; health may be shared and must not be nil.
func New(user string, health *Health) *Counter { return &Counter{user: user, health: health} }

// Wrap returns s with its requests counted. Close is passed on.
func (c *Counter) Wrap(s objstore.Store) objstore.Store { return &store{s, c} }

// Collect adds the counters to a list. Outcomes that never came are left out, but for ok.
func (c *Counter) Collect(l *metrics.List) {
	for o := range ops {
		for i := range maxOutcomes {
			if n := c.byOp[o][i].Load(); n > 0 || i == outcomeOK {
				l.Add(Requests, float64(n), c.user, opNames[o], outcomes[i].name)
			}
		}
		if o == opPut || o == opGet {
			l.Add(Bytes, float64(c.bytes[o].Load()), c.user, opNames[o])
		}
		l.AddHistogram(Seconds, c.seconds[o].Snapshot(), c.user, opNames[o])
	}
}

// Requests returns how many requests of a kind (put, get, head, list, delete) ended with an outcome as Collect names it.
func (c *Counter) Requests(kind, outcome string) uint64 {
	for o := range ops {
		for i := range maxOutcomes {
			if opNames[o] == kind && outcomes[i].name == outcome {
				return c.byOp[o][i].Load()
			}
		}
	}
	return 0
}

func (c *Counter) note(o op, began time.Time, err error) {
	c.byOp[o][outcomeOf(err)].Add(1)
	c.seconds[o].Observe(time.Since(began), 1)
	c.health.note(err)
}

type store struct {
	objstore.Store
	c *Counter
}

func (s *store) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	began := time.Now()
	info, err := s.Store.Put(ctx, key, body, meta, cond)
	s.c.note(opPut, began, err)
	if err == nil {
		s.c.bytes[opPut].Add(uint64(len(body)))
	}
	return info, err
}

func (s *store) Get(ctx context.Context, key string, r objstore.Range) (io.ReadCloser, objstore.Info, error) {
	began := time.Now()
	body, info, err := s.Store.Get(ctx, key, r)
	s.c.note(opGet, began, err)
	if err != nil {
		return nil, info, err
	}
	return &reader{body, s.c}, info, nil
}

func (s *store) Head(ctx context.Context, key string) (objstore.Info, error) {
	began := time.Now()
	info, err := s.Store.Head(ctx, key)
	s.c.note(opHead, began, err)
	return info, err
}

func (s *store) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	began := time.Now()
	page, err := s.Store.List(ctx, prefix, startAfter, limit)
	s.c.note(opList, began, err)
	return page, err
}

func (s *store) Delete(ctx context.Context, key string) error {
	began := time.Now()
	err := s.Store.Delete(ctx, key)
	s.c.note(opDelete, began, err)
	return err
}

// reader counts a body as it is read. That it breaks is an error of its reader, whose next request says what the store is like.
type reader struct {
	io.ReadCloser
	c *Counter
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.c.bytes[opGet].Add(uint64(n))
	return n, err
}
