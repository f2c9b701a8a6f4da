package archive

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/memory"
)

// want fails unless the reader serves lsn from label under wm; label 0 is "not found".
func want(t *testing.T, r *Reader, lsn protocol.LSN, wm Watermark, label protocol.Epoch) {
	t.Helper()
	rec, err := r.Read(t.Context(), lsn, wm, nil)
	var nf *NotFoundError
	switch {
	case label == 0 && !errors.As(err, &nf):
		t.Fatalf("LSN %d: served %d@%d, %v; want nothing", lsn, rec.LSN, rec.Label, err)
	case label != 0 && err != nil:
		t.Fatal(err)
	case label != 0:
		checkRecord(t, rec, label, lsn)
	}
	labels, err := scanAll(t, r, lsn, lsn, wm)
	if (label == 0) != (len(labels) == 0) || label != 0 && (labels[0] != label || err != nil) {
		t.Fatalf("LSN %d: scan served %v, %v; want label %d", lsn, labels, err, label)
	}
}

// TRACES H10, and H11: y@e1 is archived uncommitted; e2 starts at 1, commits z and archives nothing. A reader that
// learnt watermark 1 must not serve y, whatever the object's neighbours say.
func TestWatermarkOfAnEpochThatArchivedNothing(t *testing.T) {
	a := newArchive(t, newFaulty(), Options{})
	flush(t, a, plan(1, 1, 1, 1, 0, 0)) // {y}, cLSN 0 from the plan's snapshot
	r := a.Reader(testLog)
	h1 := protocol.History{{Epoch: 1, Start: 1}}
	h2 := append(h1[:1:1], protocol.HistoryEntry{Epoch: 2, Start: 1})
	want(t, r, 1, Watermark{}, 0)
	want(t, r, 1, Watermark{LSN: 1, Epoch: 2, History: h2}, 0)
	// A history from before e2 cannot judge e2's watermark: read the record again.
	if _, err := r.Read(t.Context(), 1, Watermark{LSN: 1, Epoch: 2, History: h1}, nil); !errors.Is(err, ErrStaleHistory) {
		t.Fatal(err)
	}
	for _, err := range r.Scan(t.Context(), 1, 1, Watermark{LSN: 1, Epoch: 2, History: h1}) {
		if !errors.Is(err, ErrStaleHistory) {
			t.Fatal(err)
		}
	}
	// e1's own watermark would have proven y.
	want(t, r, 1, Watermark{LSN: 1, Epoch: 1, History: h1}, 1)
	want(t, r, 1, Watermark{LSN: 0, Epoch: 1, History: h1}, 0)
	// Once e2 archives z it is served, with and without a watermark.
	flush(t, a, plan(2, 1, 1, 1, 1, 0))
	want(t, r, 1, Watermark{}, 2)
	want(t, r, 1, Watermark{LSN: 1, Epoch: 2, History: h2}, 2)
}

// TRACES H8: c missed e2 and holds y@e1. What it may archive is decided at the node; but an object with y above its own
// cLSN is void for a reader who knows the history, also when e3 starts above.
func TestVoidByAnEarlierStart(t *testing.T) {
	a := newArchive(t, newFaulty(), Options{})
	flush(t, a, plan(1, 1, 1, 2, 0, 0))
	h := protocol.History{{Epoch: 1, Start: 1}, {Epoch: 2, Start: 1}, {Epoch: 3, Start: 2}}
	r := a.Reader(testLog)
	for lsn := range protocol.LSN(3) {
		if lsn > 0 {
			want(t, r, lsn, Watermark{LSN: 2, Epoch: 3, History: h}, 0)
		}
	}
	// Starts decide one by one: a copy of e2 is void from 2 up only.
	flush(t, a, plan(2, 1, 1, 2, 0, 0))
	want(t, r, 1, Watermark{LSN: 2, Epoch: 3, History: h}, 2)
	want(t, r, 2, Watermark{LSN: 2, Epoch: 3, History: h}, 0)
	// A repair whose epoch was never recorded is not void until a later epoch voids it (H6).
	h = protocol.History{{Epoch: 1, Start: 1}, {Epoch: 3, Start: 2}}
	want(t, r, 1, Watermark{LSN: 2, Epoch: 3, History: h}, 2)
	// A label above the history belongs to a reign it cannot judge.
	flush(t, a, plan(9, 1, 1, 2, 0, 0))
	want(t, r, 1, Watermark{LSN: 2, Epoch: 3, History: h}, 2)
	want(t, r, 2, Watermark{LSN: 2, Epoch: 3, History: h}, 0)
}

// Under a watermark the highest label that is not void is served, also when it begins or ends inside another's object.
func TestHighestLabelFirst(t *testing.T) {
	a := newArchive(t, newFaulty(), Options{})
	flush(t, a, plan(1, 1, 1, 6, 0, 0))
	flush(t, a, plan(2, 2, 2, 3, 0, 0)) // a repair by an opener that died
	flush(t, a, plan(3, 5, 5, 6, 5, 0))
	wm := Watermark{LSN: 6, Epoch: 3, History: protocol.History{{Epoch: 1, Start: 1}, {Epoch: 3, Start: 5}}}
	labels, err := scanAll(t, a.Reader(testLog), 1, 6, wm)
	if want := []protocol.Epoch{1, 2, 2, 1, 3, 3}; err != nil || !slices.Equal(labels, want) {
		t.Fatalf("served %v, %v; want %v", labels, err, want)
	}
	for lsn, label := range map[protocol.LSN]protocol.Epoch{1: 1, 2: 2, 4: 1, 6: 3} {
		want(t, a.Reader(testLog), lsn, wm, label)
	}
}

// Paper 4.4, figure 4: C1's LSNs 1–3 and a pending 4 filled a segment that L1 flushed; C2 took over and appended another
// LSN 4. Both copies of 4 are in the archive; readers get C2's.
func TestDuplicateLSNOfTwoEpochs(t *testing.T) {
	a := newArchive(t, newFaulty(), Options{})
	flush(t, a, plan(1, 1, 1, 4, 3, 0))
	h := protocol.History{{Epoch: 1, Start: 1}, {Epoch: 2, Start: 4}}
	r := a.Reader(testLog)
	want(t, r, 3, Watermark{}, 1)
	want(t, r, 4, Watermark{}, 0)
	want(t, r, 4, Watermark{LSN: 4, Epoch: 2, History: h}, 0)
	flush(t, a, plan(2, 4, 4, 6, 5, 0)) // C2's, uncommitted above 5
	want(t, r, 4, Watermark{}, 2)
	want(t, r, 6, Watermark{LSN: 6, Epoch: 2, History: h}, 2)
	labels, err := scanAll(t, r, 1, 6, Watermark{LSN: 6, Epoch: 2, History: h})
	if err != nil || len(labels) != 6 || labels[2] != 1 || labels[3] != 2 || labels[5] != 2 {
		t.Fatal(labels, err)
	}
	var nf *NotFoundError
	if labels, err := scanAll(t, r, 1, 6, Watermark{}); len(labels) != 5 || !errors.As(err, &nf) || nf.LSN != 6 {
		t.Fatal(labels, err)
	}
}

// Damage in one object is served around by others; without another one the error names the key.
func TestDamageIsReadAround(t *testing.T) {
	for what, harm := range map[string]func(b []byte) []byte{
		"record": func(b []byte) []byte { b[headBytes+3000] ^= 4; return b },
		"footer": func(b []byte) []byte { b[len(b)-tailBytes-5] ^= 4; return b },
		"cut":    func(b []byte) []byte { return b[:len(b)/2] },
		"gone":   func(b []byte) []byte { return nil },
	} {
		t.Run(what, func(t *testing.T) {
			s := newFaulty()
			a := newArchive(t, s, Options{ReadBytes: 3000, Parallel: 2})
			flush(t, a, plan(1, 1, 1, 500, 500, 0))
			bad := a.KeyString(keys(t, a)[0])
			r := a.Reader(testLog)
			if _, err := r.Read(t.Context(), 1, Watermark{}, nil); err != nil {
				t.Fatal(err)
			}
			body, info, err := objstore.ReadAll(t.Context(), s, bad, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if b := harm(body); b == nil {
				err = s.Delete(t.Context(), bad)
			} else {
				_, err = s.Put(t.Context(), bad, b, info.Metadata, objstore.Always())
			}
			if err != nil {
				t.Fatal(err)
			}
			// A reader that knew the object names it; only its cached footer may save it from noticing a damaged one.
			if _, err := scanAll(t, r, 1, 500, Watermark{}); what == "footer" {
				if err != nil {
					t.Fatal(err)
				}
			} else if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), bad) {
				t.Fatal(err)
			}
			// One that did not know it names it too, unless it is not even listed.
			var nf *NotFoundError
			if _, err := scanAll(t, a.Reader(testLog), 1, 500, Watermark{}); what == "gone" {
				if !errors.As(err, &nf) {
					t.Fatal(err)
				}
			} else if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), bad) {
				t.Fatal(err)
			}
			// Other nodes' objects hold the same records.
			flush(t, a, plan(1, 1, 1, 300, 500, 0))
			flush(t, a, plan(1, 1, 200, 500, 500, 0))
			for _, r := range []*Reader{r, a.Reader(testLog)} {
				if _, err := scanAll(t, r, 1, 500, Watermark{}); err != nil {
					t.Fatal(err)
				}
				if rec, err := r.Read(t.Context(), 250, Watermark{}, nil); err != nil {
					t.Fatal(err)
				} else {
					checkRecord(t, rec, 1, 250)
				}
			}
		})
	}
}

// Transient read faults are retried within bounds; past them the error is retryable and nothing hangs.
func TestReadsUnderFaults(t *testing.T) {
	for _, f := range []faulty.Fault{faulty.Unavailable, faulty.CutBody} {
		s := newFaulty()
		a := newArchive(t, s, Options{ReadBytes: 20000, Parallel: 4, Attempts: 3})
		flush(t, a, plan(1, 1, 1, 4000, 2000, 0)) // a "p" object: HEAD too
		flush(t, a, plan(1, 2001, 2001, 4000, 4000, 0))
		for skip := range 12 {
			s.Add(faulty.Rule{Ops: faulty.Reads, Fault: f, Skip: skip, Count: 2})
			if _, err := scanAll(t, a.Reader(testLog), 1, 4000, Watermark{}); err != nil {
				t.Fatalf("fault %d after %d requests: %v", f, skip, err)
			}
			s.Heal()
			s.Add(faulty.Rule{Ops: faulty.Reads, Fault: f, Skip: skip})
			if _, err := scanAll(t, a.Reader(testLog), 1, 4000, Watermark{}); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("fault %d for ever after %d requests: %v", f, skip, err)
			}
			s.Heal()
		}
	}
}

// A scan that is left early or cancelled stops its reads; a cancelled one does not look complete.
func TestScanStops(t *testing.T) {
	block := make(chan struct{})
	var s *faulty.Store
	hang := false
	s = faulty.New(memory.New(memory.Options{}), faulty.Config{Delay: func(ctx context.Context, op faulty.Op, _ string) error {
		if op == faulty.Get && hang {
			select {
			case <-block:
			case <-ctx.Done():
			}
		}
		return ctx.Err()
	}})
	a := newArchive(t, s, Options{ReadBytes: 500, Parallel: 3, Attempts: 2})
	flush(t, a, plan(1, 1, 1, 2000, 2000, 0))
	r := a.Reader(testLog)
	before := runtime.NumGoroutine()
	for rec, err := range r.Scan(t.Context(), 1, 2000, Watermark{}) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.LSN == 100 {
			break
		}
	}
	// The scan has waited until its goroutines have nothing left to do; they still have to end.
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		n := runtime.NumGoroutine()
		if n <= before {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines before the scan, %d after it", before, n)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var last protocol.LSN
	var end error
	for rec, err := range r.Scan(ctx, 1, 2000, Watermark{}) {
		if err != nil {
			end = err
			break
		}
		if last = rec.LSN; last == 50 {
			cancel()
		}
	}
	if !errors.Is(end, context.Canceled) || last >= 2000 {
		t.Fatalf("cancelled scan ended at %d with %v", last, end)
	}
	// Cancelled before it begins, which races with everything: it always ends in an error.
	for range 100 {
		end = nil
		for _, err := range r.Scan(ctx, 1, 2000, Watermark{}) {
			end = err
		}
		if !errors.Is(end, context.Canceled) {
			t.Fatalf("a cancelled scan ended with %v", end)
		}
	}
	// Cancelled while every read hangs.
	end = nil
	hang = true
	ctx, cancel = context.WithCancel(t.Context())
	go cancel()
	for _, err := range a.Reader(testLog).Scan(ctx, 1, 2000, Watermark{}) {
		if err == nil {
			t.Fatal("a record came from a store that hangs")
		}
		end = err
	}
	close(block)
	if !errors.Is(end, context.Canceled) {
		t.Fatal(end)
	}
}

// A8: reads run in parallel, and never more of them than asked for.
func TestScanReadsInParallel(t *testing.T) {
	const parallel = 4
	arrived := make(chan struct{}, 100)
	release := make(chan struct{})
	blocking := false
	s := faulty.New(memory.New(memory.Options{}), faulty.Config{Delay: func(ctx context.Context, op faulty.Op, key string) error {
		if op == faulty.Get && blocking {
			arrived <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return ctx.Err()
	}})
	a := newArchive(t, s, Options{ReadBytes: 2000, Parallel: parallel})
	flush(t, a, plan(1, 1, 1, 3000, 3000, 0))
	r := a.Reader(testLog)
	if _, err := r.Read(t.Context(), 1, Watermark{}, nil); err != nil { // caches the footer
		t.Fatal(err)
	}
	blocking = true
	done := make(chan error, 1)
	go func() {
		n := protocol.LSN(0)
		for rec, err := range r.Scan(context.Background(), 1, 3000, Watermark{}) {
			if n++; err != nil || rec.LSN != n {
				done <- errors.Join(err, errors.New("out of order"))
				return
			}
		}
		done <- nil
	}()
	for range parallel {
		<-arrived
	}
	select {
	case <-arrived:
		t.Fatalf("more than %d reads in flight", parallel)
	default:
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
