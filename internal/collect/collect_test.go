package collect

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/memory"
)

const testInc protocol.Incarnation = 7

// place is a store with a log of four objects of ten records each.
type place struct {
	t     *testing.T
	inner *memory.Store
	store *faulty.Store
	cat   *meta.Catalog
	arch  *archive.Archive
	log   meta.LogRecord
	c     *Collector

	deleted []protocol.LogID // what the shards were told
}

func newPlace(t *testing.T, rules Rules) *place {
	p := &place{t: t, inner: memory.New(memory.Options{Name: t.Name()})}
	p.store = faulty.New(p.inner, faulty.Config{})
	r := rand.New(rand.NewPCG(1, 2))
	sleep := func(context.Context, time.Duration) error { return nil }
	var err error
	if p.cat, err = meta.New(p.store, meta.Config{Root: "r", Random: r.Uint64, Now: func() time.Time { return time.Unix(1, 0) }, Sleep: sleep}); err != nil {
		t.Fatal(err)
	}
	if p.arch, err = archive.New(p.store, archive.Options{Root: "r", Sleep: sleep, Rand: r.Float64, Attempts: 1}); err != nil {
		t.Fatal(err)
	}
	log, err := p.cat.Create(t.Context(), "orders", meta.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	p.log = log.Record
	for i := range protocol.LSN(4) {
		if err := p.flush(i); err != nil {
			t.Fatal(err)
		}
	}
	p.c = New(Config{Incarnation: testInc, Catalog: p.cat, Archive: p.arch, Rules: rules, Thorough: 3, Orphans: 5,
		Clock:   func(context.Context) (time.Time, error) { return time.Time{}, nil },
		Bound:   func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} },
		Forget:  func(l Known) { t.Errorf("log %v is forgotten", l.ID) },
		Deleted: func(l Known) { p.deleted = append(p.deleted, l.ID) },
		Failed:  func(id protocol.LogID, err error) { t.Errorf("log %v: %v", id, err) },
	})
	return p
}

// flush archives the i-th ten records.
func (p *place) flush(i protocol.LSN) error {
	s := protocol.Segment{Log: p.log.ID, Label: 1, SegStart: i*10 + 1, First: i*10 + 1, Last: i*10 + 10, CLSN: 40, Complete: true}
	_, err := p.arch.Flush(p.t.Context(), s, func(yield func(archive.Record, error) bool) {
		for x := s.First; x <= s.Last; x++ {
			if !yield(archive.Record{LSN: x, Label: 1, Data: []byte{byte(x)}}, nil) {
				return
			}
		}
	})
	return err
}

func (p *place) objects() (n int) {
	p.t.Helper()
	for _, err := range objstore.All(p.t.Context(), p.inner, "r/arch/") {
		if err != nil {
			p.t.Fatal(err)
		}
		n++
	}
	return n
}

func (p *place) rounds(from, to uint64, deleted bool) {
	p.t.Helper()
	known := []Known{{ID: p.log.ID, Name: "orders", Peers: []protocol.Incarnation{testInc}, Deleted: deleted}}
	for r := from; r <= to; r++ {
		if err := p.c.Round(p.t.Context(), r, known); err != nil {
			p.t.Fatal(err)
		}
	}
}

// TestGarbage: what would go is shown, whatever a round of collection has done so far, and nothing changes; a log that the metadata does
// not know stays, for its creator may be on his way.
func TestGarbage(t *testing.T) {
	p := newPlace(t, Rules{})
	look := func() (g []archive.Garbage, unknown []protocol.LogID) {
		t.Helper()
		unknown, err := Garbage(t.Context(), p.cat, p.arch, time.Unix(1<<40, 0), func(x archive.Garbage) error { g = append(g, x); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return g, unknown
	}
	if g, unknown := look(); len(g)+len(unknown) != 0 {
		t.Fatalf("of a log that was not trimmed: %v, %v", g, unknown)
	}
	if _, err := p.cat.Trim(t.Context(), "orders", p.log.ID, 25); err != nil {
		t.Fatal(err)
	}
	g, _ := look()
	if len(g) != 2 || g[0].Why != archive.Trimmed || g[0].Log != p.log.ID || p.objects() != 4 {
		t.Fatalf("trimmed below 25: %v, %d objects", g, p.objects())
	}
	// A pack of the log's trimmed part, and of nobody's log.
	stretch := func(log protocol.LogID) archive.PackPlan {
		return archive.PackPlan{Plan: protocol.Segment{Log: log, Label: 2, SegStart: 1, First: 1, Last: 1, CLSN: 1},
			Source: func(yield func(archive.Record, error) bool) {
				yield(archive.Record{LSN: 1, Label: 2, Data: []byte("x")}, nil)
			}}
	}
	for _, plans := range [][]archive.PackPlan{{stretch(p.log.ID)}, {stretch(p.log.ID), stretch(p.log.ID ^ 1)}} {
		for _, r := range p.arch.FlushPack(t.Context(), plans) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	g, unknown := look()
	if len(g) != 3 || g[2].Why != archive.Unwanted || g[2].Log != 0 || len(unknown) != 1 || unknown[0] != p.log.ID^1 {
		t.Fatalf("with packs: %v, unknown %v", g, unknown)
	}
	for _, x := range g {
		if err := p.arch.Remove(t.Context(), x); err != nil {
			t.Fatal(err)
		}
	}
	if g, _ := look(); len(g) != 0 || p.objects() != 2 {
		t.Fatalf("after the removal: %v, %d objects", g, p.objects())
	}
}

// TestStalledCreator: a flusher whose PUT is under way for long makes an object again that was deleted meanwhile (A4, R8). It is below the
// trim point, so nobody is shown what it holds, and it goes again; with the later look left out it stays.
func TestStalledCreator(t *testing.T) {
	for _, never := range []bool{false, true} {
		p := newPlace(t, Rules{NeverAgain: never})
		// Another node's PUT of the first object, which it began before that one was there, arrives late.
		key := ""
		for o, err := range objstore.All(t.Context(), p.inner, "r/arch/") {
			if err != nil {
				t.Fatal(err)
			}
			key = o.Key
			break
		}
		body, info, err := objstore.ReadAll(t.Context(), p.inner, key, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		p.store.Add(faulty.Rule{Ops: faulty.PutIfAbsent, Prefix: "r/arch/", Fault: faulty.Late, Count: 1})
		if _, err := p.store.Put(t.Context(), key, body, info.Metadata, objstore.IfAbsent()); !errors.Is(err, objstore.ErrUnknown) {
			t.Fatalf("a put that is under way: %v", err)
		}
		if _, err := p.cat.Trim(t.Context(), "orders", p.log.ID, 21); err != nil {
			t.Fatal(err)
		}
		p.rounds(1, 1, false)
		if n := p.objects(); n != 2 {
			t.Fatalf("%d objects are left of four, two of which are trimmed", n)
		}
		p.store.Release(t.Context())
		if n := p.objects(); n != 3 {
			t.Fatalf("%d objects: the stalled creator has not made its one again", n)
		}
		p.rounds(2, 5, false)
		if n, want := p.objects(), map[bool]int{false: 2, true: 3}[never]; n != want {
			t.Errorf("%d objects a few rounds later, want %d (rule broken: %v)", n, want, never)
		}
	}
}

// TestDeletedLog: all objects of a deleted log go, whether its nodes have heard of the deletion, or not, or do not know the log any
// more; those who have not are told.
func TestDeletedLog(t *testing.T) {
	p := newPlace(t, Rules{})
	p.rounds(1, 10, false)
	if n := p.objects(); n != 4 || len(p.deleted) > 0 {
		t.Fatalf("%d of 4 objects are left of a log that nobody deleted; told %v", n, p.deleted)
	}
	p.rounds(11, 20, true) // hearsay: the metadata does not say so
	if n := p.objects(); n != 4 {
		t.Fatalf("%d of 4 objects are left of a log that the metadata does not call deleted", n)
	}
	if err := p.cat.Delete(t.Context(), "orders", meta.Owner{ID: p.log.ID}); err != nil {
		t.Fatal(err)
	}
	p.rounds(21, 21, false)
	if n := p.objects(); n != 0 || len(p.deleted) != 1 || p.deleted[0] != p.log.ID {
		t.Fatalf("%d objects of a deleted log are left; told %v", n, p.deleted)
	}
	if err := p.flush(0); err != nil { // one who has not heard
		t.Fatal(err)
	}
	for r := uint64(22); r < 22+5; r++ {
		if err := p.c.Round(t.Context(), r, nil); err != nil { // no shard knows it
			t.Fatal(err)
		}
	}
	if n := p.objects(); n != 0 {
		t.Errorf("%d objects of a deleted log that no node knows are left", n)
	}
	// An open that came too late left a promise at the only nodes that heard of the log again.
	if err := p.flush(0); err != nil {
		t.Fatal(err)
	}
	for r := uint64(27); r < 27+5; r++ {
		if err := p.c.Round(t.Context(), r, []Known{{ID: p.log.ID, Promised: 18, Blank: true}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.objects(); n != 0 {
		t.Errorf("%d objects of a deleted log that the nodes know by a promise alone are left", n)
	}
}

// TestLookCountsWhatIsLost: a node that has never heard of a lost range, because it was replaced since, comes past it as past what is trimmed:
// otherwise it would never know the objects behind for archived, and an open would wait for that for ever.
func TestLookCountsWhatIsLost(t *testing.T) {
	p := newPlace(t, Rules{})
	ctx := t.Context()
	raised, err := p.cat.RaiseEpoch(ctx, "orders", meta.Raise{Nonce: p.cat.Nonce()})
	if err != nil {
		t.Fatal(err)
	}
	id, _, err := p.cat.PutEnsemble(ctx, protocol.Ensemble{{Node: "a", Incarnation: testInc}})
	if err != nil {
		t.Fatal(err)
	}
	e := raised.Record.Epoch
	lost := protocol.LostRanges{{From: 41, To: 45, Epoch: e}, {From: 60, To: 62, Epoch: e, Skipped: true}}
	if _, err := p.cat.Install(ctx, "orders", meta.Install{Owner: raised.Record.Owner(), Ensemble: id, Start: 63, Lost: lost}); err != nil {
		t.Fatal(err)
	}
	if err := p.flush(4); err != nil { // what the archive has behind the hole: 46 to 50 are in it
		t.Fatal(err)
	}
	objects, err := Look(ctx, p.arch, p.cat, p.log.ID, 40)
	if err != nil {
		t.Fatal(err)
	}
	want := map[protocol.LSN]protocol.LSN{41: 45, 60: 62}
	for _, o := range objects {
		if last, ok := want[o.First]; ok && o.Last == last && o.CLSN == last && o.Label == e {
			delete(want, o.First)
		}
	}
	if len(want) > 0 {
		t.Errorf("lost and not told: %v; objects %v", want, objects)
	}
	if objects, err = Look(ctx, p.arch, p.cat, p.log.ID, 62); err != nil || len(objects) != 0 {
		t.Errorf("above all: %v, %v", objects, err)
	}
}
