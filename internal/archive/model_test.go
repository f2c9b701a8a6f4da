package archive

import (
	"errors"
	"fmt"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/memory"
)

// world is a log as a god sees it: which epoch's copy of each LSN is right, and the history. Segments are fixed per label.
type world struct {
	history protocol.History
	owner   []protocol.Epoch // owner[lsn]: the label of the committed copy
	tail    protocol.LSN
	// label, and the LSNs that its writer wrote (committed or not)
	reigns []reign
}

type reign struct {
	label       protocol.Epoch
	from, to    protocol.LSN // written
	committed   protocol.LSN // when the reign ended
	segmentSize protocol.LSN
}

func (r reign) segStart(lsn protocol.LSN) protocol.LSN {
	return r.from + (lsn-r.from)/r.segmentSize*r.segmentSize
}

// TestMergeAgainstModel flushes random stretches of a random log with random snapshots of cLSN, and compares every answer
// of a reader that lives through it with a dumb model that looks at the list of flushes alone.
func TestMergeAgainstModel(t *testing.T) {
	root := seed(t)
	for round := range 60 {
		s := root + uint64(round)
		if !t.Run(fmt.Sprint(s), func(t *testing.T) { modelRound(t, s) }) {
			t.Fatalf("repeat with BTRLOG_SEED=%d", s)
		}
	}
}

func modelRound(t *testing.T, s uint64) {
	rng := newRand(s)
	n := func(k int) protocol.LSN { return protocol.LSN(rng.IntN(k)) }
	// Reigns: each starts behind what the one before committed, and re-writes its uncommitted tail as other records.
	var w world
	next := protocol.LSN(1)
	for e := range protocol.Epoch(1 + n(4)) {
		r := reign{label: 2*e + 1, from: next, to: next + n(200), segmentSize: 1 + n(80)}
		r.committed = r.from - 1 + n(int(r.to-r.from)+2)
		w.reigns = append(w.reigns, r)
		w.history, _ = w.history.Add(r.label, r.from)
		next = r.committed + 1
	}
	w.tail = next - 1
	w.owner = make([]protocol.Epoch, w.tail+1)
	for _, r := range w.reigns {
		for lsn := r.from; lsn <= r.committed; lsn++ {
			w.owner[lsn] = r.label
		}
	}
	inner := memory.New(memory.Options{})
	plain := newArchive(t, inner, Options{}) // looks at the store without faults
	store := faulty.New(inner, faulty.Config{Seed: s})
	if rng.IntN(2) == 0 {
		store.Add(faulty.Rule{Fault: faulty.Unavailable, Probability: 0.1})
		store.Add(faulty.Rule{Ops: faulty.Puts, Fault: faulty.LostReply, Probability: 0.2})
	}
	a := newArchive(t, store, Options{Attempts: 30, ReadBytes: 1 + rng.IntN(3000), Parallel: 1 + rng.IntN(4), MaxObjects: 40 + rng.IntN(60)})
	r := a.Reader(testLog)
	// The model: all flushes that made an object.
	var flushed []protocol.Segment
	for range 1 + rng.IntN(40) {
		g := w.reigns[rng.IntN(len(w.reigns))]
		first := g.from + n(int(g.to-g.from)+1)
		start := g.segStart(first)
		last := min(first+n(40), start+g.segmentSize-1, g.to)
		p := plan(g.label, start, first, last, n(int(g.committed)+1), rng.IntN(3))
		if rng.IntN(2) == 0 {
			p.CLSN = g.committed
		}
		before := len(keys(t, plain))
		objs := flush(t, a, p)
		made := len(keys(t, plain)) > before
		if made {
			flushed = append(flushed, p)
		}
		// Without a new object the store had covered the plan, or a "p" object had the name already.
		if !Covers(objs, p) && (made || p.CLSN >= p.Last) {
			t.Fatalf("flush of %+v learnt %v", p, objs)
		}
		if rng.IntN(4) == 0 {
			compare(t, &w, flushed, a, r, rng.IntN(2) == 0, n)
		}
	}
	compare(t, &w, flushed, a, r, true, n)
	compare(t, &w, flushed, a, a.Reader(testLog), false, n)
	objs, err := a.Look(t.Context(), testLog, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objs {
		for lsn := o.First; lsn <= min(o.Last, o.CLSN); lsn++ {
			if w.owner[lsn] != o.Label {
				t.Fatalf("object %+v claims to prove LSN %d, which belongs to label %d", o, lsn, w.owner[lsn])
			}
		}
	}
}

// served is the dumb model's answer: the label served at lsn, or 0.
func served(w *world, flushed []protocol.Segment, lsn protocol.LSN, wm Watermark) protocol.Epoch {
	var best protocol.Epoch
	for _, f := range flushed {
		if f.First <= lsn && lsn <= f.Last && lsn <= f.CLSN {
			return w.owner[lsn]
		}
	}
	for _, f := range flushed {
		if f.First <= lsn && lsn <= f.Last && lsn <= wm.LSN && !wm.History.Void(f.Label, lsn) {
			best = max(best, f.Label)
		}
	}
	return best
}

func compare(t *testing.T, w *world, flushed []protocol.Segment, a *Archive, r *Reader, withMark bool, n func(int) protocol.LSN) {
	t.Helper()
	var wm Watermark
	if withMark {
		wm = Watermark{LSN: n(int(w.tail) + 1), Epoch: w.history.Last().Epoch, History: w.history}
	}
	top := w.tail + 3
	answers := make([]protocol.Epoch, top+1)
	for lsn := protocol.LSN(1); lsn <= top; lsn++ {
		if lsn <= w.tail {
			answers[lsn] = served(w, flushed, lsn, wm)
		}
		if want := answers[lsn]; want != 0 && want != w.owner[lsn] {
			t.Fatalf("the model itself serves LSN %d from %d, not %d", lsn, want, w.owner[lsn])
		}
	}
	for from := protocol.LSN(1); from <= top; {
		labels, err := scanAll(t, r, from, top, wm)
		for i, label := range labels {
			if lsn := from + protocol.LSN(i); label != answers[lsn] {
				t.Fatalf("LSN %d: scan served label %d, model %d (watermark %d)", lsn, label, answers[lsn], wm.LSN)
			}
		}
		var nf *NotFoundError
		if !errors.As(err, &nf) {
			t.Fatalf("scan from %d to %d: %v", from, top, err)
		}
		if nf.LSN != from+protocol.LSN(len(labels)) || answers[nf.LSN] != 0 {
			t.Fatalf("scan from %d: %v after %d records; model serves %d", from, err, len(labels), answers[nf.LSN])
		}
		from = nf.LSN + 1
	}
	for range 5 {
		lsn := 1 + n(int(top))
		rec, err := r.Read(t.Context(), lsn, wm, nil)
		var nf *NotFoundError
		if err != nil && !errors.As(err, &nf) {
			t.Fatal(err)
		}
		if rec.Label != answers[lsn] {
			t.Fatalf("LSN %d: read label %d, model %d: %v", lsn, rec.Label, answers[lsn], err)
		}
		if err == nil {
			checkRecord(t, rec, answers[lsn], lsn)
		}
	}
}
