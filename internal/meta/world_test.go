package meta

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/memory"
)

// world is a store with faults, and Catalogs on it as if of several processes.
type world struct {
	t      *testing.T
	store  *faulty.Store
	slept  time.Duration
	onWait func()
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	return &world{t: t, store: faulty.New(memory.New(memory.Options{Name: t.Name()}), faulty.Config{Seed: seed})}
}

func testConfig(seed uint64, sleep func(context.Context, time.Duration) error) Config {
	rng := rand.New(rand.NewPCG(seed, 1))
	return Config{Root: "c1", Random: rng.Uint64, Now: func() time.Time { return time.Unix(1_800_000_000, 0) }, Sleep: sleep}
}

// catalog returns a Catalog whose sleeps take no time. It is for one goroutine.
func (w *world) catalog(seed uint64) *Catalog {
	w.t.Helper()
	c, err := New(w.store, testConfig(seed, func(ctx context.Context, d time.Duration) error {
		w.slept += d
		if w.onWait != nil {
			w.onWait()
		}
		return ctx.Err()
	}))
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func mustCreate(t *testing.T, c *Catalog, name string) Log {
	t.Helper()
	l, err := c.Create(t.Context(), name, DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustRaise(t *testing.T, c *Catalog, name string) Log {
	t.Helper()
	l, err := c.RaiseEpoch(t.Context(), name, Raise{Nonce: c.Nonce(), Opener: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustLoad(t *testing.T, c *Catalog, name string) Log {
	t.Helper()
	l, err := c.Load(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func members(incarnations ...protocol.Incarnation) protocol.Ensemble {
	var e protocol.Ensemble
	for i, inc := range incarnations {
		e = append(e, protocol.Member{Node: protocol.NodeID("n" + string(rune('1'+i))), Incarnation: inc, Zone: "z"})
	}
	return e
}

func mustEnsemble(t *testing.T, c *Catalog, e protocol.Ensemble) string {
	t.Helper()
	id, _, err := c.PutEnsemble(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func wantKind(t *testing.T, what string, err, kind error) {
	t.Helper()
	var e *Error
	if !errors.Is(err, kind) || !errors.As(err, &e) || e.Op == "" || e.Object == "" {
		t.Fatalf("%s: error %v, want %v that names operation and object", what, err, kind)
	}
}

// rewrite replaces an object behind the Catalog's back.
func (w *world) rewrite(key, from, to string) {
	w.t.Helper()
	body, _, err := objstore.ReadAll(w.t.Context(), w.store, key, 1<<20)
	if err != nil {
		w.t.Fatal(err)
	}
	if !strings.Contains(string(body), from) {
		w.t.Fatalf("object %s lacks %q:\n%s", key, from, body)
	}
	if _, err := w.store.Put(w.t.Context(), key, []byte(strings.Replace(string(body), from, to, 1)), nil, objstore.Always()); err != nil {
		w.t.Fatal(err)
	}
}
