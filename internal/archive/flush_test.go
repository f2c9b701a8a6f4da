package archive

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/localdir"
	"github.com/btrlog/btrlog/objstore/memory"
)

// Paper 4.1: each node derives the same name, so that at most one concurrent uploader succeeds.
func TestRacingFlushersMakeOneObjectPerSegment(t *testing.T) {
	const segments, nodes = 8, 3
	for name, open := range map[string]func(t *testing.T) objstore.Store{
		"memory": func(t *testing.T) objstore.Store { return memory.New(memory.Options{}) },
		"localdir": func(t *testing.T) objstore.Store {
			s, err := localdir.Open(t.TempDir(), localdir.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			defer s.Close()
			a := newArchive(t, s, Options{})
			var wg sync.WaitGroup
			errs := make(chan error, nodes*segments)
			for range nodes {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for i := range protocol.LSN(segments) {
						p := plan(1, i*100+1, i*100+1, i*100+100, 800, 0) // all think that they are first
						objs, err := a.Flush(context.Background(), p, sourceOf(p))
						if err == nil && !Covers(objs, p) {
							err = fmt.Errorf("segment %d: learnt only %v", i, objs)
						}
						errs <- err
					}
				}()
			}
			wg.Wait()
			close(errs)
			for err := range errs {
				if err != nil {
					t.Fatal(err)
				}
			}
			c := a.Counters()
			if n := len(keys(t, a)); n != segments || c.Put.OK != segments || c.Put.Exists != segments*(nodes-1) || c.Flushed != segments || c.Found != segments*(nodes-1) {
				t.Fatalf("%d objects of %d segments, counters %+v", n, segments, c)
			}
			if _, err := scanAll(t, a.Reader(testLog), 1, segments*100, Watermark{}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A2: one healthy three-node cluster makes one PUT per segment, refused attempts included.
func TestHealthyClusterMakesOnePutAttemptPerSegment(t *testing.T) {
	const segments = 7
	s := newFaulty()
	a := newArchive(t, s, Options{})
	for rank := range 3 {
		for i := range protocol.LSN(segments) {
			p := plan(1, i*100+1, i*100+1, i*100+100, 700, rank)
			if objs := flush(t, a, p); !Covers(objs, p) {
				t.Fatalf("rank %d segment %d: learnt %v", rank, i, objs)
			}
		}
	}
	if s.Requests(faulty.Puts) != segments || s.Requests(faulty.List) != 2*segments || s.Requests(faulty.Head|faulty.Get) != 0 {
		t.Fatalf("requests for %d segments on three nodes: %v", segments, s.Counts())
	}
}

// A node that has archived less or more than another cuts its stretch elsewhere; looking from the segment's start finds
// what covers it whatever the first LSN.
func TestLookFindsCoverWithOtherFirstLSN(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	flush(t, a, plan(1, 101, 101, 200, 250, 0))
	s.ResetCounts()
	p := plan(1, 101, 150, 200, 200, 1)
	if objs := flush(t, a, p); len(objs) != 1 || objs[0].First != 101 || s.Requests(faulty.Puts) != 0 {
		t.Fatalf("%v, %v", objs, s.Counts())
	}
	// A union of several covers too.
	flush(t, a, plan(1, 201, 201, 250, 250, 0))
	flush(t, a, plan(1, 201, 240, 300, 300, 0))
	s.ResetCounts()
	if objs := flush(t, a, plan(1, 201, 201, 300, 300, 2)); len(objs) != 2 || s.Requests(faulty.Puts) != 0 {
		t.Fatalf("%v, %v", objs, s.Counts())
	}
	// A neighbour's segment, another label or an uncommitted end do not.
	flush(t, a, plan(1, 401, 401, 410, 405, 0))
	for _, p := range []protocol.Segment{plan(1, 301, 301, 310, 310, 1), plan(2, 201, 201, 300, 300, 1), plan(1, 401, 401, 410, 410, 1)} {
		s.ResetCounts()
		if flush(t, a, p); s.Requests(faulty.Puts) != 1 {
			t.Fatalf("%+v: %v", p, s.Counts())
		}
	}
}

// Every fault at every request of a flush: it ends with the object there exactly once and learnt, or with an error that
// can be retried, and the retry succeeds.
func TestFlushUnderEveryFault(t *testing.T) {
	faults := []faulty.Fault{faulty.Unavailable, faulty.Conflict, faulty.LostRequest, faulty.LostReply, faulty.HiddenRetry, faulty.Late}
	for _, f := range faults {
		for _, rank := range []int{0, 1} {
			for _, clsn := range []protocol.LSN{120, 60} {
				for skip := range 4 {
					for _, count := range []int{1, 2, 0} {
						t.Run(fmt.Sprintf("fault%d/rank%d/clsn%d/skip%d/count%d", f, rank, clsn, skip, count), func(t *testing.T) {
							s := newFaulty()
							a := newArchive(t, s, Options{Attempts: 4})
							p := plan(1, 1, 1, 100, clsn, rank)
							s.Add(faulty.Rule{Fault: f, Skip: skip, Count: count})
							objs, err := a.Flush(t.Context(), p, sourceOf(p))
							if err != nil {
								if !errors.Is(err, ErrUnavailable) {
									t.Fatalf("not retryable: %v", err)
								}
								if count == 1 {
									t.Fatalf("one fault is not survived: %v", err)
								}
								s.Heal()
								if objs, err = a.Flush(t.Context(), p, sourceOf(p)); err != nil {
									t.Fatal(err)
								}
							}
							s.Heal()
							s.Release(t.Context())
							if !Covers(objs, p) {
								t.Fatalf("learnt %v of %+v", objs, p)
							}
							if k := keys(t, a); len(k) != 1 {
								t.Fatalf("store holds %v", k)
							}
							// What was learnt is there: LSNs up to min(cLSN, last) can be read.
							if _, err := scanAll(t, a.Reader(testLog), 1, min(clsn, 100), Watermark{}); err != nil {
								t.Fatal(err)
							}
						})
					}
				}
			}
		}
	}
}

// After an unknown outcome nothing is learnt before the store was looked at (A2).
func TestUnknownOutcomeIsLookedAt(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	s.Add(faulty.Rule{Ops: faulty.Puts, Fault: faulty.LostReply, Count: 1})
	p := plan(1, 1, 1, 100, 100, 0)
	flush(t, a, p)
	if s.Requests(faulty.Puts) != 1 || s.Requests(faulty.Head) != 1 {
		t.Fatalf("applied but timed out: want one PUT and one look: %v", s.Counts())
	}
	// Stalled creator: the write arrives only after the second try made the object; it is refused, nothing doubles.
	s.ResetCounts()
	s.Add(faulty.Rule{Ops: faulty.Puts, Fault: faulty.Late, Count: 1})
	flush(t, a, plan(1, 101, 101, 200, 200, 0))
	if out := s.Release(t.Context()); len(out) != 1 || !errors.Is(out[0], objstore.ErrPrecondition) || len(keys(t, a)) != 2 {
		t.Fatalf("%v, %v", out, keys(t, a))
	}
	// A 412 after an unknown outcome that the store does not confirm: the object is not claimed.
	liar := &lyingStore{Store: memory.New(memory.Options{})}
	b := newArchive(t, liar, Options{Attempts: 3})
	if objs, err := b.Flush(t.Context(), p, sourceOf(p)); err == nil || len(objs) != 0 || !errors.Is(err, ErrUnavailable) {
		t.Fatalf("claimed %v of an object that is not there, %v", objs, err)
	}
}

// lyingStore stores nothing: its first Put has an unknown outcome, the others are refused.
type lyingStore struct {
	objstore.Store
	puts int
}

func (s *lyingStore) Put(_ context.Context, key string, _ []byte, _ map[string]string, _ objstore.Condition) (objstore.Info, error) {
	s.puts++
	kind := objstore.ErrPrecondition
	if s.puts == 1 {
		kind = objstore.ErrUnknown
	}
	return objstore.Info{}, &objstore.Error{Store: "liar", Op: "put", Key: key, Kind: kind}
}

func TestBackoffAndBounds(t *testing.T) {
	s := newFaulty()
	var waits []time.Duration
	a := newArchive(t, s, Options{Attempts: 5, Sleep: func(ctx context.Context, d time.Duration) error {
		waits = append(waits, d)
		return ctx.Err()
	}})
	s.Add(faulty.Rule{Ops: faulty.Puts, Fault: faulty.Unavailable})
	p := plan(1, 1, 1, 100, 100, 0)
	_, err := a.Flush(t.Context(), p, sourceOf(p))
	if !errors.Is(err, ErrUnavailable) || !errors.Is(err, objstore.ErrUnavailable) || s.Requests(faulty.Puts) != 5 || len(waits) != 4 {
		t.Fatalf("%v, %v, waits %v", err, s.Counts(), waits)
	}
	for i := 1; i < len(waits); i++ {
		if waits[i] <= waits[i-1] || waits[i] > backoffMax {
			t.Fatalf("waits %v", waits)
		}
	}
	// A cancelled context ends it between tries, and no request follows.
	ctx, cancel := context.WithCancel(t.Context())
	a.o.Sleep = func(ctx context.Context, _ time.Duration) error { cancel(); return ctx.Err() }
	s.ResetCounts()
	if _, err := a.Flush(ctx, p, sourceOf(p)); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnavailable) || s.Requests(faulty.AllOps) != 1 {
		t.Fatalf("%v, %v", err, s.Counts())
	}
	// A refusal that only an operator can end is not retried.
	s.Heal()
	s.ResetCounts()
	s.Add(faulty.Rule{Ops: faulty.Puts, Fault: faulty.Denied})
	if _, err := a.Flush(t.Context(), p, sourceOf(p)); !errors.Is(err, objstore.ErrDenied) || errors.Is(err, ErrUnavailable) || s.Requests(faulty.AllOps) != 1 {
		t.Fatalf("%v, %v", err, s.Counts())
	}
}

// Another node writes the segment while this one reads its records, which takes long: this one asks before it puts. Only rank 0 in good time
// does not ask: nobody else writes then.
func TestNoPutOfWhatWasWrittenMeanwhile(t *testing.T) {
	for _, late := range []struct {
		rank       int
		late       bool
		puts, asks int
	}{{0, false, 2, 0}, {0, true, 1, 1}, {1, false, 1, 1}} {
		s := newFaulty()
		a, other := newArchive(t, s, Options{}), newArchive(t, s, Options{})
		p := plan(1, 1, 1, 10, 10, late.rank)
		p.Late = late.late
		objs, err := a.Flush(t.Context(), p, func(yield func(Record, error) bool) {
			flush(t, other, plan(1, 1, 1, 10, 10, 0))
			sourceOf(p)(yield)
		})
		if err != nil || !Covers(objs, p) || s.Requests(faulty.Puts) != late.puts || s.Requests(faulty.Head) != late.asks {
			t.Errorf("rank %d, late %v: %v, %v, %v", late.rank, late.late, objs, err, s.Counts())
		}
		// And it writes what nobody wrote.
		p.SegStart, p.First, p.Last, p.CLSN = 11, 11, 20, 20
		if objs := flush(t, a, p); !Covers(objs, p) || s.Requests(faulty.Puts) != late.puts+1 {
			t.Errorf("rank %d, late %v: %v, %v", late.rank, late.late, objs, s.Counts())
		}
	}
}

// Paper 4.4: nodes with holes; the union of what they hold closes them.
func TestHoledNodesCloseByUnion(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	// One node holds 1–3 and 7–10, the other 3–8; neither can know the other's hashes.
	learnt := flush(t, a, plan(1, 1, 1, 3, 10, 0))
	learnt = append(learnt, flush(t, a, plan(1, 1, 7, 10, 10, 0))...)
	whole := plan(1, 1, 1, 10, 10, 1)
	if Covers(learnt, whole) {
		t.Fatal("a hole counts as covered (H4)")
	}
	r := a.Reader(testLog)
	var nf *NotFoundError
	if labels, err := scanAll(t, r, 1, 10, Watermark{}); len(labels) != 3 || !errors.As(err, &nf) || nf.LSN != 4 || nf.Next != 7 {
		t.Fatal(len(labels), err)
	}
	flush(t, a, plan(1, 1, 3, 8, 10, 1))
	if _, err := scanAll(t, r, 1, 10, Watermark{}); err != nil {
		t.Fatalf("the same reader does not see the hole closed: %v", err)
	}
	objs, err := a.Look(t.Context(), testLog, 0)
	if err != nil || len(objs) != 3 || !Covers(objs, whole) {
		t.Fatal(objs, err)
	}
	if objs, err := a.Look(t.Context(), testLog, 8); err != nil || len(objs) != 1 || objs[0].First != 7 {
		t.Fatal(objs, err)
	}
}

// A failure snapshot must put what lies above the watermark into the store, even if all below is there (P12).
func TestSnapshotWritesWhatIsNotThere(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	flush(t, a, plan(1, 1, 1, 50, 50, 0))
	p := plan(1, 1, 1, 100, 50, 1)
	if objs := flush(t, a, p); !Covers(objs, p) || len(keys(t, a)) != 2 {
		t.Fatal(objs)
	}
	// What is held suffices for the next survivor.
	s.ResetCounts()
	if objs := flush(t, a, plan(1, 1, 60, 100, 50, 2)); len(objs) != 1 || s.Requests(faulty.Puts) != 0 {
		t.Fatal(objs, s.Counts())
	}
}

// TRACES H13: a stretch is in the store with a cLSN below its end, and the log goes idle. The proof of commitment that
// comes later has a name of its own and gets there.
func TestProofOfCommitmentReachesTheArchive(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	for _, clsn := range []protocol.LSN{0, 60, 99} {
		p := plan(1, 1, 1, 100, clsn, 0)
		objs := flush(t, a, p)
		// All three have the same name; the first one's cLSN stays.
		if len(objs) != 1 || objs[0].CLSN != 0 {
			t.Fatalf("cLSN %d: %v", clsn, objs)
		}
	}
	for rank := range 3 {
		p := plan(1, 1, 1, 100, 100, rank)
		if objs := flush(t, a, p); !Covers(objs, p) {
			t.Fatalf("rank %d: %v", rank, objs)
		}
	}
	if k := keys(t, a); len(k) != 2 {
		t.Fatal(k)
	}
	if _, err := scanAll(t, a.Reader(testLog), 1, 100, Watermark{}); err != nil {
		t.Fatal(err)
	}
}

// TRACES H14: the end of a segment cut short by a takeover is flushed late, under the old label, behind objects of the
// new one. A reader that has been following sees it.
func TestSealedEndUnderOldLabel(t *testing.T) {
	a := newArchive(t, newFaulty(), Options{})
	flush(t, a, plan(1, 1, 1, 50, 50, 0))
	r := a.Reader(testLog)
	if _, err := scanAll(t, r, 1, 50, Watermark{}); err != nil {
		t.Fatal(err)
	}
	flush(t, a, plan(3, 81, 81, 100, 100, 0))
	var nf *NotFoundError
	if _, err := r.Read(t.Context(), 60, Watermark{}, nil); !errors.As(err, &nf) || nf.Next != 81 {
		t.Fatal(err)
	}
	flush(t, a, plan(1, 51, 51, 70, 70, 0))
	flush(t, a, plan(2, 71, 71, 80, 80, 0)) // a label between two others
	labels, err := scanAll(t, r, 1, 100, Watermark{})
	if err != nil || labels[69] != 1 || labels[70] != 2 || labels[80] != 3 {
		t.Fatal(labels, err)
	}
}

// A damaged object of the very name that a flush makes is reported, never counted as archived.
func TestFlushOntoADamagedObject(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	p := plan(1, 1, 1, 100, 50, 0)
	body, k, err := Build(nil, p, sourceOf(p))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), a.KeyString(k), body[:len(body)-1], metadata(p, NoCompression), objstore.Always()); err != nil {
		t.Fatal(err)
	}
	if objs, err := a.Flush(t.Context(), p, sourceOf(p)); !errors.Is(err, ErrDamaged) || len(objs) != 0 {
		t.Fatal(objs, err)
	}
}

func TestTrim(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	for i := range protocol.LSN(4) {
		flush(t, a, plan(1, i*10+1, i*10+1, i*10+10, 40, 0))
	}
	r := a.Reader(testLog)
	if _, err := scanAll(t, r, 1, 40, Watermark{}); err != nil {
		t.Fatal(err)
	}
	s.Add(faulty.Rule{Ops: faulty.Delete, Fault: faulty.LostReply, Count: 1})
	if n, err := a.Trim(t.Context(), testLog, 25); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := r.Read(t.Context(), 21, Watermark{}, nil); err != nil {
		t.Fatal("the object that holds the trim point is gone", err)
	}
	// An index from before still names the deleted object: an error that names it, and once that is learnt, not found.
	if _, err := r.Read(t.Context(), 5, Watermark{}, nil); !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
	var nf *NotFoundError
	if _, err := r.Read(t.Context(), 5, Watermark{}, nil); !errors.As(err, &nf) || nf.Next != 21 {
		t.Fatal(err)
	}
	// A stalled flusher that never heard of the trim makes the object again; the next trim removes it (A4).
	flush(t, a, plan(1, 1, 1, 10, 40, 0))
	if n, err := a.Trim(t.Context(), testLog, protocol.MaxLSN+1); n != 3 || err != nil || len(keys(t, a)) != 0 {
		t.Fatal(n, err, keys(t, a))
	}
}
