package archive

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
)

// empty puts an object without a real body: listings do not look inside.
func emptyObject(t testing.TB, a *Archive, label protocol.Epoch, segStart, first, last protocol.LSN) Key {
	k := Key{Log: testLog, Label: label, First: first, Last: last, Kind: Committed, Hash: [16]byte{byte(first), byte(last)}}
	p := plan(label, segStart, first, last, last, 0)
	if _, err := a.store.Put(t.Context(), a.KeyString(k), make([]byte, 200), metadata(p, NoCompression), objstore.IfAbsent()); err != nil && !errors.Is(err, objstore.ErrPrecondition) {
		t.Fatal(err)
	}
	return k
}

// The jump of walk skips objects that end at or below after, and no other: against a filter over the whole listing, for
// logs of many objects, several labels, long and short segments, and pieces within segments.
func TestWalkSkipsNothingThatMatters(t *testing.T) {
	root := seed(t)
	for round := range 4 {
		rng := newRand(root + uint64(round))
		s := newFaulty()
		a := newArchive(t, s, Options{})
		var all []Key
		next := protocol.LSN(1)
		labels := 1 + rng.IntN(3)
		for label := range protocol.Epoch(labels) {
			usual := 1 + protocol.LSN(rng.IntN(200))
			for range 1200 + rng.IntN(1500) {
				start, size := next, usual
				if rng.IntN(100) == 0 {
					size *= 100
				}
				switch rng.IntN(10) {
				case 0: // pieces, some inside others
					for range 3 {
						f := start + protocol.LSN(rng.IntN(int(size)))
						all = append(all, emptyObject(t, a, label+1, start, f, f+protocol.LSN(rng.IntN(int(start+size-f)))))
					}
				case 1: // not flushed
				default:
					all = append(all, emptyObject(t, a, label+1, start, start, start+size-1))
				}
				next = start + size
			}
			next -= protocol.LSN(rng.IntN(3)) * usual // the next reign repeats some
		}
		for range 20 {
			after := protocol.LSN(rng.IntN(int(next) + 10))
			switch rng.IntN(3) {
			case 0:
				after = next - protocol.LSN(rng.IntN(300))
			case 1: // inside a long segment, if there is one
				for _, i := range rng.Perm(len(all)) {
					if k := all[i]; k.Last-k.First > 1000 {
						after = k.First + protocol.LSN(rng.IntN(int(k.Last-k.First)))
						break
					}
				}
			}
			var got, want []string
			s.ResetCounts()
			if err := a.walk(t.Context(), testLog, after, func(k Key, _ objstore.Info) { got = append(got, k.name()) }); err != nil {
				t.Fatal(err)
			}
			requests := s.Requests(faulty.AllOps)
			for _, k := range all {
				if k.Last > after {
					want = append(want, k.name())
				}
			}
			slices.Sort(want)
			want = slices.Compact(want)
			slices.Sort(got)
			got = slices.Compact(got)
			if !slices.Equal(got, want) {
				t.Fatalf("round %d: after %d of %d: walk saw %d objects, there are %d", round, after, next, len(got), len(want))
			}
			// Never much dearer than the plain listing, whatever the shape: a few probes per label.
			if limit := 1 + len(all)/objstore.MaxListLimit + 9*labels; requests > limit {
				t.Fatalf("round %d: after %d of %d: %d requests for %d objects", round, after, next, requests, len(want))
			}
		}
	}
}

// An object that begins far below after and ends above it, among pieces of the same segment that begin in between: the
// jump must go back to the start of the segment, not only to where it found a piece.
func TestWalkFindsTheLongObjectBehindItsPieces(t *testing.T) {
	a := newArchive(t, newFaulty(), Options{})
	for i := range protocol.LSN(1500) {
		emptyObject(t, a, 1, i*10+1, i*10+1, i*10+10)
	}
	const start, last = 15001, 215000
	whole := emptyObject(t, a, 1, start, start, last)
	for first := protocol.LSN(start + 7); first < last; first += 40 {
		emptyObject(t, a, 1, start, first, first+20)
	}
	found := false
	err := a.walk(t.Context(), testLog, start+150000, func(k Key, _ objstore.Info) { found = found || k == whole })
	if err != nil || !found {
		t.Fatal(found, err)
	}
}

// A log of many objects: learning what is new at its end takes a handful of requests.
func TestWalkOfALongLogIsShort(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	const objects, size = 30000, 1000
	for i := range protocol.LSN(objects) {
		emptyObject(t, a, 1, i*size+1, i*size+1, (i+1)*size)
	}
	s.ResetCounts()
	objs, err := a.Look(t.Context(), testLog, (objects-3)*size)
	if n := s.Requests(faulty.AllOps); err != nil || len(objs) != 3 || n > 5 {
		t.Fatalf("%v: %d objects with %d requests: %v", err, len(objs), n, s.Counts())
	}
}

// An index that is too small for the log moves along as a window.
func TestWindowMoves(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{MaxObjects: 7})
	const objects = 60
	for i := range protocol.LSN(objects) {
		flush(t, a, plan(1, i*10+1, i*10+1, i*10+10, objects*10, 0))
	}
	r := a.Reader(testLog)
	for range 2 {
		if _, err := scanAll(t, r, 1, objects*10, Watermark{}); err != nil {
			t.Fatal(err)
		}
		if w := r.index.current.Load(); len(w.objects) > 7 {
			t.Fatalf("%d objects in a window of 7", len(w.objects))
		}
	}
	rng := newRand(seed(t))
	for range 50 {
		lsn := 1 + protocol.LSN(rng.IntN(objects*10))
		rec, err := r.Read(t.Context(), lsn, Watermark{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		checkRecord(t, rec, 1, lsn)
	}
	// More than that at one LSN is refused with a reason.
	for i := range protocol.LSN(9) {
		flush(t, a, plan(1, 1001, 1001, 1010+i, 1010+i, 0))
	}
	var nf *NotFoundError
	if _, err := r.Read(t.Context(), 1005, Watermark{}, nil); err == nil || errors.As(err, &nf) {
		t.Fatal(err)
	}
}

// Objects of other logs, foreign keys and damaged descriptions are passed over.
func TestForeignObjects(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	flush(t, a, plan(1, 1, 1, 10, 10, 0))
	other := plan(1, 1, 11, 20, 20, 0)
	other.Log++
	flush(t, a, other)
	for i, key := range []string{"note.txt", "0000000000000001/x", fmt.Sprintf("%016x/%016x-%016x-c-short", 1, 1, 50)} {
		if _, err := s.Put(t.Context(), a.logPrefix(testLog)+key, make([]byte, 1000+i), nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
	}
	// Our name, but too small to be an object.
	tiny := Key{Log: testLog, Label: 1, First: 11, Last: 20, Kind: Committed}
	if _, err := s.Put(t.Context(), a.KeyString(tiny), make([]byte, 10), nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	objs, err := a.Look(t.Context(), testLog, 0)
	if err != nil || len(objs) != 1 || objs[0].Last != 10 {
		t.Fatal(objs, err)
	}
	var nf *NotFoundError
	if _, err := a.Reader(testLog).Read(t.Context(), 11, Watermark{}, nil); !errors.As(err, &nf) {
		t.Fatal(err)
	}
}

// Readers of one Reader at once, while flushes go on. Meant for -race.
func TestConcurrentReaders(t *testing.T) {
	a := newArchive(t, newFaulty(), Options{ReadBytes: 1000, Parallel: 2})
	r := a.Reader(testLog)
	const objects = 20
	errs := make(chan error, 5)
	for g := range 4 {
		go func() {
			for lsn := protocol.LSN(1 + g); lsn <= objects*50; {
				rec, err := r.Read(t.Context(), lsn, Watermark{}, nil)
				var nf *NotFoundError
				switch {
				case errors.As(err, &nf):
				case err != nil || rec.LSN != lsn:
					errs <- fmt.Errorf("LSN %d: %v", lsn, err)
					return
				default:
					for rec, err := range r.Scan(t.Context(), lsn, lsn+20, Watermark{}) {
						if err == nil {
							lsn = rec.LSN
						}
					}
					lsn += 7
				}
			}
			errs <- nil
		}()
	}
	for i := range protocol.LSN(objects) {
		flush(t, a, plan(1, i*50+1, i*50+1, i*50+50, i*50+50, 0))
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}
