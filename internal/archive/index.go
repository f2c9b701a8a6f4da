package archive

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// object is what the index knows of one object. Only the atomic fields change.
type object struct {
	key  Key
	size int64
	// pack, if not nil, is what holds the object, at offset base.
	pack *pack
	base int64
	// clsn+1 of a "p" object once its metadata was read; 0 before.
	clsn atomic.Uint64
	// gone: the store had it no more when it was read.
	gone atomic.Bool
}

// placed names one copy of an object: by itself, or in a pack.
type placed struct {
	key  Key
	pack string
}

func (o *object) placed() placed {
	if o.pack == nil {
		return placed{key: o.key}
	}
	return placed{o.key, o.pack.name}
}

// name says in an error which object of the store holds o.
func (a *Archive) nameOf(o *object) string {
	if o.pack == nil {
		return a.KeyString(o.key)
	}
	return fmt.Sprintf("%s at %d in %s", a.KeyString(o.key), o.base, o.pack.name)
}

// rangeOf reads n bytes at offset of an object.
func (a *Archive) rangeOf(ctx context.Context, o *object, offset, n int64, buf []byte) ([]byte, error) {
	if o.pack == nil {
		return a.getRange(ctx, a.KeyString(o.key), o.size, offset, n, buf)
	}
	return a.getRange(ctx, o.pack.name, o.pack.size, o.base+offset, n, buf)
}

// compareObjects sorts as a window does. Copies of one object in several places are several: one may be damaged.
func compareObjects(a, b *object) int {
	return cmp.Or(cmp.Compare(a.key.First, b.key.First), cmp.Compare(a.key.Label, b.key.Label), cmp.Compare(a.key.Last, b.key.Last),
		cmp.Compare(a.key.Kind, b.key.Kind), slices.Compare(a.key.Hash[:], b.key.Hash[:]), strings.Compare(a.placed().pack, b.placed().pack))
}

// window is an immutable picture of a log's objects: every object that the listing showed and that ends at or above from
// and begins at or below upper. The objects are sorted by first LSN, then label.
type window struct {
	objects []*object
	// lastMax[i] is the highest last LSN of objects[:i+1]: where to stop when looking backwards.
	lastMax     []protocol.LSN
	from, upper protocol.LSN
	// settled: every LSN in [from, settled] is proven by an object of the window. New objects matter only above it.
	settled protocol.LSN
	// broken says which packs could not be read that may hold something of the log; nil: none.
	broken error
}

// index keeps the window of one log. Readers use the current window without a lock; refresh replaces it.
type index struct {
	a   *Archive
	log protocol.LogID

	mu      sync.Mutex // held across a refresh, so that readers that miss at once share one listing
	current atomic.Pointer[window]
}

// newWindow sorts objects, drops doubles, cuts to the limit and computes the rest. It owns objects.
func newWindow(objects []*object, from protocol.LSN, limit int) *window {
	w := &window{from: from, upper: protocol.MaxLSN}
	w.objects, w.upper = cutObjects(objects, w.upper, limit)
	w.lastMax = make([]protocol.LSN, len(w.objects))
	var last protocol.LSN
	w.settled = from - 1
	for i, o := range w.objects {
		last = max(last, o.key.Last)
		w.lastMax[i] = last
		if end, known := o.provenEnd(); known && o.key.First <= w.settled+1 {
			w.settled = max(w.settled, end)
		}
	}
	return w
}

// cutObjects sorts and drops doubles (of which the first, the older one, stays, because it may know its cLSN), and keeps
// the limit lowest. It returns the highest LSN up to which nothing was cut.
func cutObjects(objects []*object, upper protocol.LSN, limit int) ([]*object, protocol.LSN) {
	slices.SortStableFunc(objects, compareObjects)
	objects = slices.CompactFunc(objects, func(a, b *object) bool { return compareObjects(a, b) == 0 })
	if len(objects) > limit {
		upper = min(upper, objects[limit].key.First-1)
		clear(objects[limit:])
		objects = objects[:limit]
	}
	return objects, upper
}

// load lists what ends at or above from; keep are objects known already. The caller holds mu.
func (x *index) load(ctx context.Context, from, after protocol.LSN, keep []*object) (*window, error) {
	objects := slices.Clone(keep)
	upper := protocol.MaxLSN
	limit := x.a.o.MaxObjects
	add := func(o *object) {
		objects = append(objects, o)
		// What a listing collects beyond the limit is cut as it goes: memory stays within twice the limit.
		if len(objects) >= 2*limit+len(keep) {
			objects, upper = cutObjects(objects, upper, limit)
		}
	}
	err := x.a.walk(ctx, x.log, after, func(k Key, info objstore.Info) { add(&object{key: k, size: info.Size}) })
	if err != nil {
		return nil, fmt.Errorf("archive: listing the objects of log %v: %w", x.log, err)
	}
	// Of packs everything is taken again, the settled part too: merging may have moved it, and directories are cached.
	broken, err := x.a.packedOf(ctx, x.log, from-1, func(m *member, p *pack) { add(&object{key: m.key, size: m.size, pack: p, base: m.offset}) })
	if err != nil {
		return nil, err
	}
	w := newWindow(objects, from, limit)
	w.broken = broken
	w.upper = min(w.upper, upper)
	x.current.Store(w)
	return w, nil
}

// at returns a window that covers lsn.
func (x *index) at(ctx context.Context, lsn protocol.LSN) (*window, error) {
	if w := x.current.Load(); w.covers(lsn) {
		return w, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	w := x.current.Load()
	if w.covers(lsn) {
		return w, nil
	}
	if w != nil && lsn < w.from {
		// A reader that goes back once will again: take all, if it fits.
		if w, err := x.load(ctx, 1, 0, nil); err != nil || w.covers(lsn) {
			return w, err
		}
	}
	w, err := x.load(ctx, lsn, lsn-1, nil)
	if err == nil && !w.covers(lsn) {
		return nil, fmt.Errorf("archive: log %v: more than %d objects hold LSN %d; raise the limit of the index", x.log, x.a.o.MaxObjects, lsn)
	}
	return w, err
}

func (w *window) covers(lsn protocol.LSN) bool { return w != nil && w.from <= lsn && lsn <= w.upper }

// refresh lists what is new since seen, for lsn. If another reader did so meanwhile, its result is returned. all lists the
// settled part too: objects there are of use once one that settled it has failed.
func (x *index) refresh(ctx context.Context, seen *window, lsn protocol.LSN, all bool) (*window, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	w := x.current.Load()
	if w != seen && w.covers(lsn) {
		return w, nil
	}
	if !w.covers(lsn) {
		return x.load(ctx, lsn, lsn-1, nil)
	}
	after := w.settled // computed when the window was made; cLSNs learnt since could only raise it
	keep := make([]*object, 0, len(w.objects))
	for _, o := range w.objects {
		switch {
		case o.pack != nil: // listed again
		case o.gone.Load():
			all = true
		default:
			keep = append(keep, o)
		}
	}
	if !all {
		return x.load(ctx, w.from, after, keep)
	}
	// Everything is listed again, so what the listing lacks is gone; only the cLSNs learnt are kept.
	fresh, err := x.load(ctx, w.from, w.from-1, nil)
	if err != nil {
		return nil, err
	}
	for _, o := range fresh.objects {
		if i, found := slices.BinarySearchFunc(w.objects, o, compareObjects); found {
			o.clsn.CompareAndSwap(0, w.objects[i].clsn.Load())
		}
	}
	return fresh, nil
}

// provenEnd returns the highest LSN that the object proves; not known for a "p" object whose metadata was not read.
func (o *object) provenEnd() (protocol.LSN, bool) {
	if o.key.Kind == Committed {
		return o.key.Last, true
	}
	c := o.clsn.Load()
	if c == 0 {
		return 0, false
	}
	return min(o.key.Last, protocol.LSN(c-1)), true
}

// holding calls visit for the objects that hold lsn, until it returns false.
func (w *window) holding(lsn protocol.LSN, visit func(*object) bool) {
	for i := w.above(lsn) - 1; i >= 0 && w.lastMax[i] >= lsn; i-- {
		if o := w.objects[i]; o.key.Last >= lsn && !o.gone.Load() && !visit(o) {
			return
		}
	}
}

// above returns the place of the first object that begins above lsn.
func (w *window) above(lsn protocol.LSN) int {
	return sort.Search(len(w.objects), func(i int) bool { return w.objects[i].key.First > lsn })
}
