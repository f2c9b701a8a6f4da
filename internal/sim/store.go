package sim

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/memory"
)

// store is the object store as a process sees it: a request takes time to get there, is applied at one instant, and its
// answer takes time to come back. Between the two instants everybody else runs, which is where compare-and-swaps race. A
// request that has left is applied even if its sender dies.
type store struct {
	s     *scheduler
	rng   *rand.Rand
	p     *params
	c     *counters
	inner *memory.Store
	puts  *countingStore
	f     *faulty.Store
	down  protocol.Time // outage until
	slow  protocol.Time // slow until
	calm  bool

	// strike kills the node that a proc is of, if it is one; kills draws when.
	strike func(*proc)
	kills  *rand.Rand

	created []creation // young objects, oldest first: what a list that lags does not show yet
}

// creation is an object that was created a short while ago.
type creation struct {
	key string
	at  protocol.Time
}

func newStore(s *scheduler, rng *rand.Rand, seed uint64, p *params, c *counters) *store {
	inner := memory.New(memory.Options{Name: "sim", Now: func() time.Time { return wallAt(s.now) }})
	puts := &countingStore{Store: inner}
	st := &store{s: s, rng: rng, p: p, c: c, inner: inner, puts: puts, f: faulty.New(puts, faulty.Config{Seed: seed}),
		strike: func(*proc) {}, kills: derive(seed, "kills at the store")}
	puts.created = func(key string) { st.created = append(st.created, creation{key, s.now}) }
	puts.stored, puts.removed = func(string, bool) {}, func(string) {}
	for _, r := range []faulty.Rule{
		{Ops: faulty.AllOps, Fault: faulty.Unavailable, Probability: p.storeUnavailable},
		{Ops: faulty.Puts, Fault: faulty.Conflict, Probability: p.storeConflict},
		{Ops: faulty.Puts, Fault: faulty.LostRequest, Probability: p.storeLost},
		{Ops: faulty.Puts, Fault: faulty.LostReply, Probability: p.storeLost},
		{Ops: faulty.PutIfAbsent | faulty.PutIfMatch, Fault: faulty.HiddenRetry, Probability: p.storeLost},
		{Ops: faulty.Puts, Fault: faulty.Late, Probability: p.storeLate},
		{Ops: faulty.Get, Fault: faulty.CutBody, Probability: p.storeUnavailable},
	} {
		if r.Probability > 0 {
			st.f.Add(r)
		}
	}
	return st
}

// heal ends all faults; what stalled creators still hold is applied now.
func (t *store) heal() {
	t.calm = true
	t.down, t.slow = 0, 0
	t.f.Heal()
	t.f.Release(context.Background())
}

func (t *store) latency() protocol.Time {
	d := t.p.storeDelay + protocol.Time(t.rng.ExpFloat64()*float64(t.p.storeDelay))
	if t.s.now < t.slow {
		d *= 10
	}
	return d
}

// request runs apply at the store and returns when the answer has come back. Without a proc in ctx (the checkers) it
// takes no time.
func (t *store) request(ctx context.Context, op, key string, apply func(context.Context) error) error {
	p := procOf(ctx)
	if p == nil {
		return apply(ctx)
	}
	if p.dead {
		panic(killed{})
	}
	if err := ctx.Err(); err != nil {
		return &objstore.Error{Store: t.String(), Op: op, Key: key, Kind: objstore.ErrUnavailable, Err: err}
	}
	var err error
	done := false
	t.s.after(t.latency(), func() {
		t.c.add(&t.c.StoreRequests)
		if t.s.now < t.down {
			t.c.add(&t.c.StoreOutages)
			err = &objstore.Error{Store: t.String(), Op: op, Key: key, Kind: objstore.ErrUnavailable}
		} else {
			kill := !t.calm && t.p.storeKill > 0 && t.kills.Float64() < t.p.storeKill
			if kill && t.kills.IntN(2) == 0 {
				t.strike(p) // and what it asked for is lost with it
				return
			}
			if err = apply(context.Background()); kill {
				t.strike(p)
			}
		}
		t.s.after(t.latency(), func() {
			done = true
			p.wake()
		})
	})
	for !done {
		p.wait(t.s.now + 3600*1000*protocol.Millisecond)
	}
	return err
}

func (t *store) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	body = append([]byte(nil), body...)
	var info objstore.Info
	err := t.request(ctx, "put", key, func(ctx context.Context) (err error) {
		before := t.puts.applied
		info, err = t.f.Put(ctx, key, body, meta, cond)
		switch applied := t.puts.applied > before; {
		case applied && errors.Is(err, objstore.ErrUnknown):
			t.c.add(&t.c.AppliedButUnknown)
		case applied && errors.Is(err, objstore.ErrPrecondition):
			t.c.add(&t.c.HiddenRetries)
		case errors.Is(err, objstore.ErrConflict):
			t.c.add(&t.c.StoreConflicts)
		case errors.Is(err, objstore.ErrPrecondition):
			t.c.add(&t.c.StoreRefusals)
		}
		if t.p.storeLate > 0 && !t.calm {
			t.s.after(protocol.Time(t.rng.Int64N(int64(2000*protocol.Millisecond))), func() { t.f.Release(context.Background()) })
		}
		return err
	})
	return info, err
}

func (t *store) Get(ctx context.Context, key string, r objstore.Range) (rc io.ReadCloser, info objstore.Info, err error) {
	err = t.request(ctx, "get", key, func(ctx context.Context) (err error) {
		rc, info, err = t.f.Get(ctx, key, r)
		return err
	})
	return rc, info, err
}

func (t *store) Head(ctx context.Context, key string) (info objstore.Info, err error) {
	err = t.request(ctx, "head", key, func(ctx context.Context) (err error) {
		info, err = t.f.Head(ctx, key)
		return err
	})
	return info, err
}

func (t *store) List(ctx context.Context, prefix, startAfter string, limit int) (page objstore.Page, err error) {
	err = t.request(ctx, "list", prefix, func(ctx context.Context) (err error) {
		page, err = t.f.List(ctx, prefix, startAfter, limit)
		if err == nil && !t.calm && t.p.storeStale > 0 && t.rng.Float64() < t.p.storeStale {
			t.lag(&page)
		}
		return err
	})
	return page, err
}

// lag takes from a page what was created less than staleFor ago.
func (t *store) lag(page *objstore.Page) {
	for len(t.created) > 0 && t.created[0].at+staleFor < t.s.now {
		t.created = t.created[1:]
	}
	old := slices.DeleteFunc(slices.Clone(page.Objects), func(o objstore.Info) bool {
		return slices.ContainsFunc(t.created, func(c creation) bool { return c.key == o.Key })
	})
	if len(old) == len(page.Objects) || len(old) == 0 && page.More {
		return // a page without objects ends a listing, and what follows may be old
	}
	page.Objects = old
	t.c.add(&t.c.StaleLists)
}

func (t *store) Delete(ctx context.Context, key string) error {
	return t.request(ctx, "delete", key, func(ctx context.Context) error { return t.f.Delete(ctx, key) })
}

func (t *store) String() string { return "mem://sim" }
func (t *store) Close() error   { return nil }

// raceStore is a mutant's view of the store: it notes when one who did not look would take a refusal for a lost race, be it that he
// tries again after an unknown outcome and meets his own write.
type raceStore struct {
	*store
	lost bool
}

func (t *raceStore) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	info, err := t.store.Put(ctx, key, body, meta, cond)
	if tag, ok := cond.Match(); ok && errors.Is(err, objstore.ErrUnknown) {
		if now, e := t.inner.Head(context.Background(), key); e == nil && now.ETag != tag {
			t.lost = true
		}
	} else if ok && errors.Is(err, objstore.ErrPrecondition) {
		t.lost = true
	}
	return info, err
}

// takeLost reports whether a race was taken for lost since the last call.
func (t *raceStore) takeLost() bool {
	if t == nil {
		return false
	}
	was := t.lost
	t.lost = false
	return was
}

// staleFor is how long a list may lag behind the writes.
const staleFor = 500 * millisecond

// countingStore sees the writes that are applied, whatever their sender is told.
type countingStore struct {
	objstore.Store
	applied int
	created func(key string)
	stored  func(key string, created bool)
	removed func(key string)
}

func (s *countingStore) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	info, err := s.Store.Put(ctx, key, body, meta, cond)
	if err == nil {
		s.applied++
		if cond.IsIfAbsent() {
			s.created(key)
		}
		s.stored(key, cond.IsIfAbsent())
	}
	return info, err
}

func (s *countingStore) Delete(ctx context.Context, key string) error {
	_, gone := s.Store.Head(ctx, key)
	err := s.Store.Delete(ctx, key)
	if err == nil && gone == nil {
		s.removed(key)
	}
	return err
}
