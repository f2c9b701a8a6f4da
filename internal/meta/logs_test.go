package meta

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/localdir"
	"github.com/btrlog/btrlog/objstore/memory"
)

// A takeover makes exactly two compare-and-swaps and, with a version known, no read.
func TestTakeoverMakesTwoSwaps(t *testing.T) {
	w := newWorld(t, 1)
	c := w.catalog(1)
	known := mustCreate(t, c, "orders")
	ens := mustEnsemble(t, c, members(1, 2, 3))
	before := c.Requests()
	l, err := c.RaiseEpoch(t.Context(), "orders", Raise{Nonce: c.Nonce(), Known: &known})
	if err != nil {
		t.Fatal(err)
	}
	l, err = c.Install(t.Context(), "orders", Install{Owner: l.Record.Owner(), Ensemble: ens, Start: 1, Known: &l})
	if err != nil {
		t.Fatal(err)
	}
	after := c.Requests()
	if got, want := after, (Requests{before.Reads, before.Lists, before.Creates, before.Swaps + 2}); got != want {
		t.Fatalf("takeover went from requests %+v to %+v, want %+v", before, got, want)
	}
	if n := w.store.Requests(faulty.PutIfMatch); int64(n) != after.Swaps {
		t.Fatalf("the store saw %d swaps, the Catalog counts %d", n, after.Swaps)
	}
	got := mustLoad(t, c, "orders")
	if got.ETag != l.ETag || got.Record.Epoch != 1 || got.Record.Ensemble != ens || fmt.Sprint(got.Record.History) != "[{1 1}]" {
		t.Fatalf("record %+v", got.Record)
	}
}

// R13, R14, R21, X3: whatever happens to the write of each step, the step succeeds once, and once only.
func TestEveryFaultOnEveryStep(t *testing.T) {
	faults := map[string]faulty.Fault{"lost reply": faulty.LostReply, "lost request": faulty.LostRequest, "hidden retry": faulty.HiddenRetry,
		"409": faulty.Conflict, "503": faulty.Unavailable, "late": faulty.Late}
	for name, fault := range faults {
		for _, times := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s x%d", name, times), func(t *testing.T) {
				w := newWorld(t, 1)
				c := w.catalog(7)
				strike := func(prefix string) {
					w.store.Add(faulty.Rule{Ops: faulty.Puts, Prefix: "c1/" + prefix, Fault: fault, Count: times})
				}
				strike("ids/")
				strike("logs/")
				l := mustCreate(t, c, "orders")
				id := l.Record.ID
				strike("ensembles/")
				ens := mustEnsemble(t, c, members(1, 2, 3))
				for epoch := protocol.Epoch(1); epoch <= 3; epoch++ {
					strike("logs/")
					l = mustRaise(t, c, "orders")
					if l.Record.Epoch != epoch {
						t.Fatalf("epoch %d after %d raises: an applied raise was doubled", l.Record.Epoch, epoch)
					}
					strike("logs/")
					var err error
					if l, err = c.Install(t.Context(), "orders", Install{Owner: l.Record.Owner(), Ensemble: ens, Start: protocol.LSN(epoch) * 10}); err != nil {
						t.Fatal(err)
					}
				}
				strike("logs/")
				if _, err := c.Trim(t.Context(), "orders", id, 25); err != nil {
					t.Fatal(err)
				}
				// A stalled write that arrives at last changes nothing: no ETag comes back (M2).
				w.store.Release(t.Context())
				got := mustLoad(t, c, "orders").Record
				if fmt.Sprint(got.History) != "[{1 10} {2 20} {3 30}]" || got.TrimBefore != 25 || got.ID != id || got.Revision != 8 {
					t.Fatalf("record %+v", got)
				}
				strike("logs/")
				if err := c.Delete(t.Context(), "orders", Owner{ID: id}); err != nil {
					t.Fatal(err)
				}
				w.store.Release(t.Context())
				if _, err := c.Load(t.Context(), "orders"); !errors.Is(err, ErrNotFound) {
					t.Fatal(err)
				}
				strike("deleted/")
				strike("logs/")
				if l = mustCreate(t, c, "orders"); l.Record.ID == id || l.Record.Epoch != 0 {
					t.Fatalf("created again: %+v", l.Record)
				}
				if _, err := c.LoadByID(t.Context(), id); !errors.Is(err, ErrDeleted) {
					t.Fatalf("the id of the deleted log: %v", err)
				}
				strike("nodes/")
				if _, err := c.RegisterNode(t.Context(), Registration{Node: testNode("n1", 5)}); err != nil {
					t.Fatal(err)
				}
				strike("cluster")
				if _, err := c.Cluster(t.Context()); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// P1: after an unknown outcome and after a 412 comes a look, not another write.
func TestLookBeforeActing(t *testing.T) {
	for _, f := range []faulty.Fault{faulty.LostReply, faulty.HiddenRetry} {
		w := newWorld(t, 1)
		c := w.catalog(1)
		known := mustCreate(t, c, "l")
		before := c.Requests()
		w.store.Add(faulty.Rule{Ops: faulty.PutIfMatch, Fault: f, Count: 1})
		l, err := c.RaiseEpoch(t.Context(), "l", Raise{Nonce: c.Nonce(), Known: &known})
		if err != nil || l.Record.Epoch != 1 {
			t.Fatalf("fault %d: epoch %d, %v", f, l.Record.Epoch, err)
		}
		if got, want := c.Requests(), (Requests{before.Reads + 1, before.Lists, before.Creates, before.Swaps + 1}); got != want {
			t.Fatalf("fault %d: requests %+v, want %+v: one write and one look", f, got, want)
		}
	}
}

// Reads are retried too.
func TestReadsAreRetried(t *testing.T) {
	w := newWorld(t, 1)
	c := w.catalog(1)
	mustCreate(t, c, "a")
	w.store.Add(faulty.Rule{Ops: faulty.Reads, Fault: faulty.Unavailable, Count: 5})
	mustLoad(t, c, "a")
	w.store.Add(faulty.Rule{Ops: faulty.List, Fault: faulty.Unavailable, Count: 5})
	w.store.Add(faulty.Rule{Ops: faulty.Get, Fault: faulty.CutBody, Count: 2})
	n := 0
	for l, err := range c.Logs(t.Context(), "") {
		if err != nil || l.Record.Name != "a" {
			t.Fatal(l, err)
		}
		n++
	}
	if n != 1 || w.slept == 0 {
		t.Fatalf("%d logs, slept %v", n, w.slept)
	}
}

// X4: a trim that comes between is merged, and a newer trim point is never overwritten.
func TestTrimBetween(t *testing.T) {
	w := newWorld(t, 1)
	owner, trimmer := w.catalog(1), w.catalog(2)
	known := mustCreate(t, owner, "l")
	ens := mustEnsemble(t, owner, members(1, 2, 3))
	if _, err := trimmer.Trim(t.Context(), "l", 0, 10); err != nil {
		t.Fatal(err)
	}
	l, err := owner.RaiseEpoch(t.Context(), "l", Raise{Nonce: owner.Nonce(), Known: &known})
	if err != nil || l.Record.TrimBefore != 10 || l.Record.Epoch != 1 {
		t.Fatalf("raise after a trim: %+v, %v", l.Record, err)
	}
	if _, err := trimmer.Trim(t.Context(), "l", 0, 20); err != nil {
		t.Fatal(err)
	}
	if _, err := trimmer.SetRetention(t.Context(), "l", 0, Retention{Bytes: 5}, time.Second); err != nil {
		t.Fatal(err)
	}
	l, err = owner.Install(t.Context(), "l", Install{Owner: l.Record.Owner(), Ensemble: ens, Start: 30, Known: &l})
	if err != nil || l.Record.TrimBefore != 20 || l.Record.Options.Retention.Bytes != 5 {
		t.Fatalf("install after a trim: %+v, %v", l.Record, err)
	}
	if l, err = trimmer.Trim(t.Context(), "l", 0, 15); err != nil || l.Record.TrimBefore != 20 {
		t.Fatalf("trim backwards: %+v, %v", l.Record, err)
	}
	_, err = trimmer.Trim(t.Context(), "l", l.Record.ID+1, 99)
	wantKind(t, "trim of another log of the name", err, ErrNotFound)
}

// P1, P7: the owner of an old epoch can write nothing, and each open by its own nonce.
func TestFencedOwner(t *testing.T) {
	w := newWorld(t, 1)
	a, b := w.catalog(1), w.catalog(2)
	mustCreate(t, a, "l")
	ens := mustEnsemble(t, a, members(1, 2, 3))
	la := mustRaise(t, a, "l")
	lb := mustRaise(t, b, "l")
	_, err := a.Install(t.Context(), "l", Install{Owner: la.Record.Owner(), Ensemble: ens, Start: 1, Known: &la})
	wantKind(t, "install by the old owner", err, ErrFenced)
	var e *Error
	if errors.As(err, &e); e.Epoch != lb.Record.Epoch {
		t.Fatalf("error %v names epoch %d, want %d", err, e.Epoch, lb.Record.Epoch)
	}
	forged := lb.Record.Owner()
	forged.Nonce = a.Nonce()
	_, err = a.Install(t.Context(), "l", Install{Owner: forged, Ensemble: ens, Start: 1})
	wantKind(t, "install with another's nonce", err, ErrFenced)
	_, err = a.RaiseEpoch(t.Context(), "l", Raise{Nonce: a.Nonce(), From: la.Record.Owner()})
	wantKind(t, "live re-open by the old owner", err, ErrFenced)
	lb2, err := b.RaiseEpoch(t.Context(), "l", Raise{Nonce: b.Nonce(), From: lb.Record.Owner(), Known: &la}) // Known is out of date
	if err != nil || lb2.Record.Epoch != 3 {
		t.Fatalf("live re-open by the owner: %+v, %v", lb2.Record, err)
	}
	in := Install{Owner: lb2.Record.Owner(), Ensemble: ens, Start: 4}
	if _, err := b.Install(t.Context(), "l", in); err != nil {
		t.Fatal(err)
	}
	swaps := b.Requests().Swaps
	if _, err := b.Install(t.Context(), "l", in); err != nil || b.Requests().Swaps != swaps {
		t.Fatalf("the same install again: %v, %d swaps", err, b.Requests().Swaps-swaps)
	}
	in.Start = 5
	_, err = b.Install(t.Context(), "l", in)
	wantKind(t, "another start for an installed epoch", err, ErrInvalid)
	if err := b.Delete(t.Context(), "l", Owner{}); err != nil {
		t.Fatal(err)
	}
	_, err = b.Install(t.Context(), "l", in)
	wantKind(t, "install into a deleted log", err, ErrNotFound)
	_, err = b.RaiseEpoch(t.Context(), "l", Raise{Nonce: b.Nonce()})
	wantKind(t, "open of a deleted log", err, ErrNotFound)
	mustCreate(t, b, "l")
	in.Start = 4
	_, err = b.Install(t.Context(), "l", in)
	wantKind(t, "install into the next log of the name", err, ErrNotFound)
}

// R13: the caller's own repetition after a time-out, with the same nonce, finds the epoch that is his.
func TestRaiseRepeatedByCaller(t *testing.T) {
	w := newWorld(t, 1)
	c := w.catalog(1)
	mustCreate(t, c, "l")
	ctx, cancel := context.WithCancel(t.Context())
	w.onWait = cancel
	w.store.Add(faulty.Rule{Ops: faulty.PutIfMatch, Fault: faulty.LostReply, Count: 1})
	w.store.Add(faulty.Rule{Ops: faulty.Get, Fault: faulty.Unavailable, Skip: 1})
	nonce := c.Nonce()
	_, err := c.RaiseEpoch(ctx, "l", Raise{Nonce: nonce})
	wantKind(t, "raise that could not look", err, ErrUnknown)
	w.store.Heal()
	l, err := c.RaiseEpoch(t.Context(), "l", Raise{Nonce: nonce})
	if err != nil || l.Record.Epoch != 1 {
		t.Fatalf("repeated raise: epoch %d, %v; want the epoch 1 that was applied", l.Record.Epoch, err)
	}
	// A store that never answers ends in an error that says so, without a deadline too, and definite when nothing was sent.
	w.onWait = nil
	w.store.Add(faulty.Rule{Fault: faulty.Unavailable})
	_, err = c.RaiseEpoch(t.Context(), "l", Raise{Nonce: c.Nonce()})
	wantKind(t, "raise without a store", err, ErrUnavailable)
	_, err = c.RaiseEpoch(t.Context(), "l", Raise{Nonce: c.Nonce(), Known: &l})
	wantKind(t, "raise refused by the store", err, ErrUnavailable)
	if w.slept < 30*time.Second || w.slept > 30*time.Minute {
		t.Fatalf("gave up after %v of pauses", w.slept)
	}
}

// P1: many openers under every fault, a trimmer between them: each epoch has one owner, nothing falls, nothing is lost.
func TestRaceOfOpeners(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for name, open := range map[string]func() objstore.Store{
		"memory": func() objstore.Store { return memory.New(memory.Options{}) },
		"localdir": func() objstore.Store {
			s, err := localdir.Open(t.TempDir(), localdir.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) { raceOfOpeners(t, seed, open()) })
	}
}

func raceOfOpeners(t *testing.T, seed uint64, inner objstore.Store) {
	store := faulty.New(inner, faulty.Config{Seed: seed})
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 2))
	cfg := testConfig(seed, func(ctx context.Context, _ time.Duration) error { return ctx.Err() })
	cfg.Random = func() uint64 { mu.Lock(); defer mu.Unlock(); return rng.Uint64() }
	setup, err := New(store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	mustCreate(t, setup, "l")
	ens := mustEnsemble(t, setup, members(1, 2, 3))
	for _, f := range []faulty.Fault{faulty.LostReply, faulty.LostRequest, faulty.HiddenRetry, faulty.Conflict, faulty.Unavailable, faulty.Late} {
		store.Add(faulty.Rule{Ops: faulty.Puts, Fault: f, Probability: 0.08})
	}
	store.Add(faulty.Rule{Ops: faulty.Get, Fault: faulty.Unavailable, Probability: 0.1})
	const openers, opens = 8, 6
	owners := make(map[protocol.Epoch]string)
	installed := make(map[protocol.Epoch]protocol.LSN)
	var wg sync.WaitGroup
	for i := range openers {
		wg.Go(func() {
			c, err := New(store, cfg)
			if err != nil {
				t.Error(err)
				return
			}
			for n := range opens {
				l, err := c.RaiseEpoch(t.Context(), "l", Raise{Nonce: c.Nonce()})
				if err != nil {
					t.Errorf("opener %d, open %d: %v", i, n, err)
					return
				}
				o := l.Record.Owner()
				mu.Lock()
				if other, taken := owners[o.Epoch]; taken {
					t.Errorf("epoch %d belongs to %s and to %s", o.Epoch, other, o.Nonce)
				}
				owners[o.Epoch] = o.Nonce
				mu.Unlock()
				start := l.Record.History.Last().Start + 1
				_, err = c.Install(t.Context(), "l", Install{Owner: o, Ensemble: ens, Start: start, Known: &l})
				if err == nil {
					mu.Lock()
					installed[o.Epoch] = start
					mu.Unlock()
				} else if !errors.Is(err, ErrFenced) {
					t.Errorf("opener %d, open %d: install: %v", i, n, err)
				}
			}
		})
	}
	const trims = 40
	wg.Go(func() {
		c, _ := New(store, cfg)
		for n := protocol.LSN(1); n <= trims; n++ {
			if l, err := c.Trim(t.Context(), "l", 0, n); err != nil || l.Record.TrimBefore < n {
				t.Errorf("trim to %d: %+v, %v", n, l.Record, err)
			}
			if n%8 == 0 {
				store.Release(t.Context())
			}
		}
	})
	wg.Wait()
	store.Heal()
	store.Release(t.Context())
	got := mustLoad(t, setup, "l").Record
	if got.TrimBefore != trims || int(got.Epoch) < openers*opens {
		t.Fatalf("record %+v, want trim point %d and at least epoch %d", got, trims, openers*opens)
	}
	if nonce, known := owners[got.Epoch]; known && nonce != got.OpenNonce {
		t.Fatalf("the last epoch belongs to %s, its owner got %s", got.OpenNonce, nonce)
	}
	recorded := make(map[protocol.Epoch]protocol.LSN)
	for _, h := range got.History {
		recorded[h.Epoch] = h.Start
	}
	for epoch, start := range installed {
		if recorded[epoch] != start {
			t.Errorf("epoch %d was installed with start %d, the record has %d", epoch, start, recorded[epoch])
		}
	}
	if len(installed) == 0 || len(owners) != openers*opens {
		t.Fatalf("%d installs, %d owners: the race proved nothing", len(installed), len(owners))
	}
}

// Ids are never reused, not even with a random source that repeats itself, nor over a tombstone.
func TestIDsAreNeverReused(t *testing.T) {
	w := newWorld(t, 1)
	a, b := w.catalog(5), w.catalog(5) // the same random numbers
	ids := make(map[protocol.LogID]bool)
	for i := range 4 {
		for j, c := range []*Catalog{a, b} {
			name := fmt.Sprintf("log-%d", j)
			l := mustCreate(t, c, name)
			if ids[l.Record.ID] || l.Record.ID == 0 {
				t.Fatalf("round %d: id %v again", i, l.Record.ID)
			}
			ids[l.Record.ID] = true
			if err := c.Delete(t.Context(), name, Owner{ID: l.Record.ID}); err != nil {
				t.Fatal(err)
			}
			wantKind(t, "second delete", c.Delete(t.Context(), name, Owner{ID: l.Record.ID}), ErrNotFound)
		}
	}
	for id := range ids {
		if _, err := a.LoadByID(t.Context(), id); !errors.Is(err, ErrDeleted) {
			t.Errorf("id %v: %v, want ErrDeleted", id, err)
		}
	}
	l := mustCreate(t, a, "log-0")
	if got, err := a.LoadByID(t.Context(), l.Record.ID); err != nil || got.Record.Name != "log-0" {
		t.Fatalf("LoadByID of a live log: %+v, %v", got.Record, err)
	}
	_, err := a.LoadByID(t.Context(), 12345)
	wantKind(t, "an id nobody has", err, ErrNotFound)
	_, err = a.Create(t.Context(), "log-0", DefaultOptions())
	wantKind(t, "create over a live log", err, ErrExists)
}

func TestRaceOfCreators(t *testing.T) {
	w := newWorld(t, 3)
	var mu sync.Mutex
	made := make(map[protocol.LogID]bool)
	for round := range 10 {
		var wg sync.WaitGroup
		winners := 0
		for i := range 8 {
			cfg := testConfig(uint64(round*8+i), func(ctx context.Context, _ time.Duration) error { return ctx.Err() })
			c, err := New(w.store, cfg)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				l, err := c.Create(t.Context(), "l", DefaultOptions())
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					winners++
					made[l.Record.ID] = true
				} else if !errors.Is(err, ErrExists) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if winners != 1 {
			t.Fatalf("round %d: %d creators won", round, winners)
		}
		if err := w.catalog(99).Delete(t.Context(), "l", Owner{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(made) != 10 {
		t.Fatalf("%d ids for 10 logs", len(made))
	}
}

func TestLogs(t *testing.T) {
	w := newWorld(t, 1)
	c := w.catalog(1)
	for _, n := range []string{"b", "a", "a-2", "a.1", "broken", "gone"} {
		mustCreate(t, c, n)
	}
	if err := c.Delete(t.Context(), "gone", Owner{}); err != nil {
		t.Fatal(err)
	}
	w.rewrite("c1/logs/broken.json", `"live"`, `"dead"`)
	w.store.Put(t.Context(), "c1/logs/not a record", nil, nil, objstore.Always())
	list := func(prefix string) (out []string) {
		for l, err := range c.Logs(t.Context(), prefix) {
			s := l.Record.Name
			if err != nil {
				s += "!"
			}
			out = append(out, s)
		}
		return out
	}
	if got, want := strings.Join(list(""), " "), "a-2 a.1 a b broken!"; got != want {
		t.Fatalf("logs %s, want %s", got, want)
	}
	if got, want := strings.Join(list("a."), " "), "a.1"; got != want {
		t.Fatalf("logs %s, want %s", got, want)
	}
}

// TestDeleteWhileTheOwnerStands: who took the token to delete a log, and was overtaken by an open, deletes nothing: the opener's writer
// would go on, and its appends with it (R11).
func TestDeleteWhileTheOwnerStands(t *testing.T) {
	c := newWorld(t, 1).catalog(7)
	l := mustCreate(t, c, "l")
	first, err := c.RaiseEpoch(t.Context(), "l", Raise{Nonce: "deleter"})
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.RaiseEpoch(t.Context(), "l", Raise{Nonce: "opener"})
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, "delete by an owner that was overtaken", c.Delete(t.Context(), "l", first.Record.Owner()), ErrFenced)
	if _, err := c.Load(t.Context(), "l"); err != nil {
		t.Fatalf("the log is gone: %v", err)
	}
	if err := c.Delete(t.Context(), "l", second.Record.Owner()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.LoadByID(t.Context(), l.Record.ID); !errors.Is(err, ErrDeleted) {
		t.Fatalf("load of a deleted log: %v", err)
	}
}

// readingStore notes which reads are of one who goes on to replace what he reads.
type readingStore struct {
	objstore.Store
	replacing []bool
}

func (s *readingStore) Get(ctx context.Context, key string, r objstore.Range) (io.ReadCloser, objstore.Info, error) {
	s.replacing = append(s.replacing, objstore.IsReplacing(ctx))
	return s.Store.Get(ctx, key, r)
}

// TestRaiseDecidesNothingByAPeek: the version that an open reads to replace it may go with a power cut. Replacing it is all that it is good
// for; that the token is taken already, or the log another's or deleted, is said after a read that lasts.
func TestRaiseDecidesNothingByAPeek(t *testing.T) {
	s := &readingStore{Store: memory.New(memory.Options{})}
	c, err := New(s, testConfig(1, func(ctx context.Context, _ time.Duration) error { return ctx.Err() }))
	if err != nil {
		t.Fatal(err)
	}
	mustCreate(t, c, "orders")
	raise := func(r Raise, kind error, want ...bool) {
		t.Helper()
		s.replacing = nil
		if _, err := c.RaiseEpoch(t.Context(), "orders", r); !errors.Is(err, kind) {
			t.Fatalf("raise %+v: %v, want %v", r, err, kind)
		}
		if !slices.Equal(s.replacing, want) {
			t.Fatalf("raise %+v read %v, want %v", r, s.replacing, want)
		}
	}
	raise(Raise{Nonce: "a"}, nil, true)
	raise(Raise{Nonce: "a"}, nil, true, false)
	raise(Raise{Nonce: "b", From: Owner{ID: 1, Epoch: 1, Nonce: "x"}}, ErrFenced, true, false)
	known, err := c.Load(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	raise(Raise{Nonce: "c", Known: &known}, nil)
	raise(Raise{Nonce: "d", Known: &known}, nil, false) // refused by the store, and looked at
	if err := c.Delete(t.Context(), "orders", Owner{}); err != nil {
		t.Fatal(err)
	}
	raise(Raise{Nonce: "e"}, ErrNotFound, true, false)
}
