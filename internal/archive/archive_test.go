package archive

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/memory"
)

const testLog protocol.LogID = 0xabc

// payload is the record that the writer of epoch label gave LSN lsn: its bytes name both, its length varies.
func payload(label protocol.Epoch, lsn protocol.LSN) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(label))
	b = binary.BigEndian.AppendUint64(b, uint64(lsn))
	for i := range int(lsn*7+protocol.LSN(label)) % 50 {
		b = append(b, byte(i))
	}
	return b
}

func more(lsn protocol.LSN) bool { return lsn%5 == 2 }

// record is what the stretch of a plan holds at lsn.
func record(label protocol.Epoch, lsn protocol.LSN) Record {
	return Record{LSN: lsn, Label: label, More: more(lsn), Data: payload(label, lsn)}
}

// sourceOf yields a plan's records; one buffer serves all, as a real source may.
func sourceOf(p protocol.Segment) RecordSource {
	return func(yield func(Record, error) bool) {
		var buf []byte
		for lsn := p.First; lsn <= p.Last; lsn++ {
			r := record(p.Label, lsn)
			buf = append(buf[:0], r.Data...)
			r.Data = buf
			if !yield(r, nil) {
				return
			}
		}
	}
}

func plan(label protocol.Epoch, segStart, first, last, clsn protocol.LSN, rank int) protocol.Segment {
	return protocol.Segment{Log: testLog, Label: label, SegStart: segStart, First: first, Last: last, CLSN: clsn, Complete: true, Rank: rank}
}

// seed returns the root seed of a test and prints it; BTRLOG_SEED repeats a run.
func seed(t testing.TB) uint64 {
	s := uint64(time.Now().UnixNano())
	if v := os.Getenv("BTRLOG_SEED"); v != "" {
		var err error
		if s, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("BTRLOG_SEED=%d", s)
	return s
}

func newArchive(t testing.TB, store objstore.Store, o Options) *Archive {
	t.Helper()
	o.Root = "cluster/one"
	o.Rand = func() float64 { return 0.5 }
	if o.Sleep == nil {
		o.Sleep = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	}
	a, err := New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newFaulty() *faulty.Store {
	return faulty.New(memory.New(memory.Options{}), faulty.Config{Seed: 1})
}

func flush(t testing.TB, a *Archive, p protocol.Segment) []protocol.ArchivedObject {
	t.Helper()
	objs, err := a.Flush(context.Background(), p, sourceOf(p))
	if err != nil {
		t.Fatalf("flush of %+v: %v", p, err)
	}
	return objs
}

// keys lists the store.
func keys(t testing.TB, a *Archive) []Key {
	t.Helper()
	var all []Key
	for o, err := range objstore.All(context.Background(), a.store, a.prefix) {
		if err != nil {
			t.Fatal(err)
		}
		k, err := a.ParseKey(o.Key)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, k)
	}
	return all
}

// checkRecord fails unless r is what label wrote at lsn.
func checkRecord(t testing.TB, r Record, label protocol.Epoch, lsn protocol.LSN) {
	t.Helper()
	want := record(label, lsn)
	if r.LSN != lsn || r.Label != label || r.More != want.More || !bytes.Equal(r.Data, want.Data) {
		t.Fatalf("LSN %d: got %d@%d more %v %x, want label %d", lsn, r.LSN, r.Label, r.More, r.Data, label)
	}
}

// scanAll runs a scan and returns the labels served from from upward, and the error that ended it.
func scanAll(t testing.TB, r *Reader, from, to protocol.LSN, wm Watermark) ([]protocol.Epoch, error) {
	t.Helper()
	var labels []protocol.Epoch
	for rec, err := range r.Scan(context.Background(), from, to, wm) {
		if err != nil {
			return labels, err
		}
		checkRecord(t, rec, rec.Label, from+protocol.LSN(len(labels)))
		labels = append(labels, rec.Label)
	}
	if protocol.LSN(len(labels)) != to-from+1 {
		t.Fatalf("scan of %d to %d gave %d records and no error", from, to, len(labels))
	}
	return labels, nil
}

func TestRoundTrip(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{ReadBytes: 2000, Parallel: 3})
	for i := range protocol.LSN(5) {
		p := plan(1, i*1000+1, i*1000+1, i*1000+1000, 9000, 0)
		objs := flush(t, a, p)
		if len(objs) != 1 || objs[0] != (protocol.ArchivedObject{Label: 1, First: p.First, Last: p.Last, CLSN: 9000}) {
			t.Fatalf("learnt %v", objs)
		}
	}
	if n := s.Requests(faulty.AllOps); n != 5 {
		t.Fatalf("%d requests for 5 healthy segments, want 5: %v", n, s.Counts())
	}
	r := a.Reader(testLog)
	if _, err := scanAll(t, r, 1, 5000, Watermark{}); err != nil {
		t.Fatal(err)
	}
	for _, lsn := range []protocol.LSN{1, 64, 65, 999, 1000, 1001, 3333, 5000} {
		rec, err := r.Read(t.Context(), lsn, Watermark{}, []byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		checkRecord(t, rec, 1, lsn)
	}
	s.ResetCounts()
	if _, err := r.Read(t.Context(), 4444, Watermark{}, nil); err != nil || s.Requests(faulty.AllOps) != 1 {
		t.Fatalf("%v; with the index cached a record is one ranged read: %v", err, s.Counts())
	}
	var nf *NotFoundError
	if _, err := r.Read(t.Context(), 5001, Watermark{}, nil); !errors.As(err, &nf) || nf.LSN != 5001 || nf.Next != 0 {
		t.Fatal(err)
	}
	if labels, err := scanAll(t, r, 4990, 5003, Watermark{}); len(labels) != 11 || !errors.As(err, &nf) || nf.LSN != 5001 {
		t.Fatal(len(labels), err)
	}
}

// The names of the shapes of one stretch all differ (A1), and the same stretch has one name and one body on every node (A2).
func TestNamesBindContents(t *testing.T) {
	base := plan(3, 10, 12, 300, 400, 0)
	seen := map[string]string{}
	add := func(what string, p protocol.Segment, src RecordSource) {
		t.Helper()
		_, k, err := Build(nil, p, src)
		if err != nil {
			t.Fatal(err)
		}
		if prev, dup := seen[k.name()]; dup {
			t.Fatalf("%s and %s share the name %s", prev, what, k.name())
		}
		seen[k.name()] = what
		// The hash alone must tell contents apart, but it does not know the kind.
		if h := fmt.Sprintf("%x", k.Hash); k.Kind == Committed {
			if prev, dup := seen[h]; dup {
				t.Fatalf("%s and %s share a hash", prev, what)
			}
			seen[h] = what
		}
	}
	add("base", base, sourceOf(base))
	p := base
	p.CLSN = 299
	add("not all committed", p, sourceOf(p))
	p = base
	p.Last = 299
	add("short", p, sourceOf(p))
	p = base
	p.SegStart = 11
	add("other segment", p, sourceOf(p))
	p = base
	p.Log++
	add("other log", p, sourceOf(p))
	p = base
	p.Label++
	add("other label", p, sourceOf(p))
	for what, change := range map[string]func(*Record){
		"other more bit":  func(r *Record) { r.More = !r.More },
		"longer record":   func(r *Record) { r.Data = append(r.Data, 0) },
		"one bit flipped": func(r *Record) { r.Data[0] ^= 1 },
	} {
		add(what, base, func(yield func(Record, error) bool) {
			for r := range sourceOf(base) {
				if r.LSN == 77 {
					change(&r)
				}
				if !yield(r, nil) {
					return
				}
			}
		})
	}
	one, k1, _ := Build(nil, base, sourceOf(base))
	p = base
	p.CLSN, p.Rank, p.Complete, p.Age = 9999, 2, false, 77
	two, k2, _ := Build(make([]byte, 5), p, sourceOf(p))
	if k1 != k2 || !bytes.Equal(one, two) {
		t.Fatal("two nodes make two bodies of one stretch")
	}
}

func TestBadSources(t *testing.T) {
	a := newArchive(t, newFaulty(), Options{})
	p := plan(1, 1, 1, 10, 10, 0)
	broken := errors.New("disk")
	for what, edit := range map[string]func(Record) (Record, error){
		"hole":        func(r Record) (Record, error) { r.LSN += r.LSN / 5; return r, nil },
		"other label": func(r Record) (Record, error) { r.Label += protocol.Epoch(r.LSN / 10); return r, nil },
		"error": func(r Record) (Record, error) {
			if r.LSN == 4 {
				return r, broken
			}
			return r, nil
		},
	} {
		_, err := a.Flush(t.Context(), p, func(yield func(Record, error) bool) {
			for r := range sourceOf(p) {
				if !yield(edit(r)) {
					return
				}
			}
		})
		if !errors.Is(err, ErrSource) && !errors.Is(err, broken) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	short := p
	short.Last = 9
	if _, err := a.Flush(t.Context(), p, sourceOf(short)); !errors.Is(err, ErrSource) {
		t.Fatal(err)
	}
	long := p
	long.Last = 11
	if _, err := a.Flush(t.Context(), p, sourceOf(long)); !errors.Is(err, ErrSource) {
		t.Fatal(err)
	}
	for _, bad := range []protocol.Segment{{}, plan(0, 1, 1, 2, 2, 0), plan(1, 2, 1, 2, 2, 0), plan(1, 1, 3, 2, 2, 0), plan(1, 1, 1, 1<<63, 2, 0)} {
		if _, err := a.Flush(t.Context(), bad, sourceOf(p)); !errors.Is(err, ErrSource) {
			t.Fatalf("%+v: %v", bad, err)
		}
	}
	if n := a.Counters().Put.Attempts(); n != 0 {
		t.Fatalf("%d objects written from bad sources", n)
	}
}

func newRand(s uint64) *rand.Rand { return rand.New(rand.NewPCG(s, 1)) }
