package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/memory"
)

// stretch is a plan of a log of one label whose records are all committed.
func stretch(log protocol.LogID, label protocol.Epoch, first, last protocol.LSN) PackPlan {
	p := protocol.Segment{Log: log, Label: label, SegStart: first, First: first, Last: last, CLSN: last}
	return PackPlan{p, sourceOf(p)}
}

func flushPack(t testing.TB, a *Archive, plans ...PackPlan) {
	t.Helper()
	for i, r := range a.FlushPack(context.Background(), plans) {
		p := plans[i].Plan
		want := protocol.ArchivedObject{Label: p.Label, First: p.First, Last: p.Last, CLSN: p.Last}
		if r.Err != nil || len(r.Objects) != 1 || r.Objects[0] != want {
			t.Fatalf("plan %d %+v: %+v", i, p, r)
		}
	}
}

// packNames lists the packs of the store.
func packNames(t testing.TB, a *Archive) (names []string) {
	t.Helper()
	for o, err := range objstore.All(context.Background(), a.store, a.packPrefix()) {
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.parsePackName(o.Key); err != nil {
			t.Fatal(err)
		}
		names = append(names, o.Key)
	}
	return names
}

func keepAll(context.Context, protocol.LogID) (protocol.LSN, error) { return 0, nil }

var inFuture = time.Now().Add(100 * 365 * 24 * time.Hour)

// checkLog reads a log from from to to in every way that there is.
func checkLog(t testing.TB, a *Archive, log protocol.LogID, from, to protocol.LSN, label protocol.Epoch) {
	t.Helper()
	r := a.Reader(log)
	labels, err := scanAll(t, r, from, to, Watermark{})
	if err != nil {
		t.Fatalf("log %v %d to %d: %v", log, from, to, err)
	}
	for i, l := range labels {
		if l != label {
			t.Fatalf("log %v LSN %d: label %d", log, from+protocol.LSN(i), l)
		}
	}
	for lsn := from; lsn <= to; lsn += 1 + (to-from)/5 {
		rec, err := r.Read(context.Background(), lsn, Watermark{}, nil)
		if err != nil {
			t.Fatalf("log %v LSN %d: %v", log, lsn, err)
		}
		checkRecord(t, rec, label, lsn)
	}
	found, err := a.Look(context.Background(), log, from-1)
	if err != nil || reach(from-1, found, func(o protocol.ArchivedObject) protocol.LSN { return min(o.Last, o.CLSN) }) < to {
		t.Fatalf("log %v: a look finds %v, %v", log, found, err)
	}
}

// One object serves many logs, whatever the order of the plans, and a log's records are found whether packed or not.
func TestPackServesManyLogs(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	const logs = 1000
	var plans []PackPlan
	for i := range protocol.LogID(logs) {
		plans = append(plans, stretch(logs-i, 3, 11, 11+protocol.LSN(i%3)))
	}
	flushPack(t, a, plans...)
	if n := s.Requests(faulty.PutIfAbsent); n != 1 {
		t.Fatalf("%d PUTs", n)
	}
	for log := protocol.LogID(1); log <= logs; log++ {
		p := stretch(log, 3, 1, 10).Plan
		if log%100 == 7 { // the record before it is an object of its own
			if _, err := a.Flush(t.Context(), p, sourceOf(p)); err != nil {
				t.Fatal(err)
			}
			checkLog(t, a, log, 1, 11+protocol.LSN((logs-log)%3), 3)
		}
	}
	before := s.Requests(faulty.Get)
	b := newArchive(t, s, Options{})
	if rec, err := b.Reader(500).Read(t.Context(), 11, Watermark{}, nil); err != nil {
		t.Fatal(err)
	} else {
		checkRecord(t, rec, 3, 11)
	}
	if n := s.Requests(faulty.Get) - before; n > 3 { // the pack's end, a block of its directory, the member
		t.Errorf("a reader of one of %d logs took %d GETs", logs, n)
	}
	if _, err := b.Reader(logs+1).Read(t.Context(), 1, Watermark{}, nil); !errors.As(err, new(*NotFoundError)) {
		t.Error(err)
	}
	// The next rank finds what is there.
	rank := protocol.Segment{Log: 500, Label: 3, SegStart: 11, First: 11, Last: 11, CLSN: 11, Rank: 1}
	puts := s.Requests(faulty.PutIfAbsent)
	if found, err := b.Flush(t.Context(), rank, sourceOf(rank)); err != nil || len(found) == 0 || s.Requests(faulty.PutIfAbsent) != puts {
		t.Errorf("%v, %v, %d PUTs", found, err, s.Requests(faulty.PutIfAbsent)-puts)
	}
}

// A plan whose records cannot be read does not keep the others out; a plan that is not committed never goes in.
func TestPackWithBadMembers(t *testing.T) {
	a := newArchive(t, newFaulty(), Options{})
	boom := errors.New("boom")
	good, short, open := stretch(1, 1, 1, 5), stretch(2, 1, 1, 5), stretch(3, 1, 1, 5)
	bad := stretch(4, 1, 1, 500)
	bad.Source = func(yield func(Record, error) bool) {
		for lsn := range protocol.LSN(400) {
			if !yield(record(1, lsn+1), nil) {
				return
			}
		}
		yield(Record{}, boom)
	}
	short.Source = sourceOf(protocol.Segment{Label: 1, First: 1, Last: 4})
	open.Plan.CLSN = 4
	last := stretch(9, 1, 1, 5)
	got := a.FlushPack(t.Context(), []PackPlan{last, bad, good, short, open})
	if got[0].Err != nil || got[2].Err != nil || !errors.Is(got[1].Err, boom) || !errors.Is(got[3].Err, ErrSource) || !errors.Is(got[4].Err, ErrSource) {
		t.Fatalf("%+v", got)
	}
	checkLog(t, a, 1, 1, 5, 1)
	checkLog(t, a, 9, 1, 5, 1)
	for _, log := range []protocol.LogID{2, 3, 4} {
		if found, err := a.Look(t.Context(), log, 0); len(found) != 0 || err != nil {
			t.Errorf("log %v: %v, %v", log, found, err)
		}
	}
	if got := a.FlushPack(t.Context(), []PackPlan{short, open}); got[0].Err == nil || got[1].Err == nil || len(packNames(t, a)) != 1 {
		t.Errorf("an empty pack: %+v", got)
	}
}

// A full pack is cut, and each part holds what its name says.
func TestPackIsCut(t *testing.T) {
	a := newArchive(t, newFaulty(), Options{})
	var plans []PackPlan
	for log := range protocol.LogID(9) {
		p := protocol.Segment{Log: log + 1, Label: 1, SegStart: 1, First: 1, Last: 4, CLSN: 4}
		plans = append(plans, PackPlan{p, func(yield func(Record, error) bool) {
			for lsn := range protocol.LSN(4) {
				if !yield(Record{LSN: lsn + 1, Label: 1, Data: bytes.Repeat([]byte{byte(p.Log)}, 1<<20)}, nil) {
					return
				}
			}
		}})
	}
	flushPack(t, a, plans...)
	if n := len(packNames(t, a)); n != 3 { // 16 MiB, 16 MiB, 4 MiB
		t.Fatalf("%d packs", n)
	}
	for log := range protocol.LogID(9) {
		n := 0
		for rec, err := range a.Reader(log+1).Scan(t.Context(), 1, 4, Watermark{}) {
			if err != nil || rec.LSN != protocol.LSN(n+1) || !bytes.Equal(rec.Data, bytes.Repeat([]byte{byte(log + 1)}, 1<<20)) {
				t.Fatal(rec.LSN, err)
			}
			n++
		}
		if n != 4 {
			t.Fatal(n)
		}
	}
}

// Many nodes pack, merge, trim, look and read at once. Whatever the interleaving, a record that was archived and is not trimmed
// reads back, and in the end a few packs hold everything once.
func TestMergingAgainstModel(t *testing.T) {
	root := seed(t)
	for round := range uint64(5) {
		rng := newRand(root + round)
		now := time.Unix(1e9, 0)
		var clock sync.Mutex
		s := faulty.New(memory.New(memory.Options{Now: func() time.Time { clock.Lock(); defer clock.Unlock(); return now }}), faulty.Config{Seed: root + round})
		logs := 1 + rng.IntN(40)
		tails := make([]protocol.LSN, logs+1)
		trims := make([]protocol.LSN, logs+1)
		gone := make([]bool, logs+1)
		keep := func(_ context.Context, log protocol.LogID) (protocol.LSN, error) {
			if gone[log] {
				return protocol.MaxLSN + 1, nil
			}
			return trims[log], nil
		}
		nodes := []*Archive{newArchive(t, s, Options{}), newArchive(t, s, Options{}), newArchive(t, s, Options{Parallel: 1, ReadBytes: 100})}
		for range 60 {
			var plans []PackPlan
			for log := 1; log <= logs; log++ {
				if rng.IntN(3) == 0 {
					continue
				}
				n := protocol.LSN(1 + rng.IntN(4))
				p := stretch(protocol.LogID(log), 1, tails[log]+1, tails[log]+n)
				tails[log] += n
				if rng.IntN(8) == 0 {
					flush := p.Plan
					if _, err := nodes[0].Flush(t.Context(), flush, p.Source); err != nil {
						t.Fatal(err)
					}
					continue
				}
				plans = append(plans, p)
				if rng.IntN(8) == 0 { // another node's cut of it
					plans = append(plans, stretch(protocol.LogID(log), 1, p.Plan.First, p.Plan.Last-protocol.LSN(rng.IntN(int(n)))))
				}
			}
			flushPack(t, nodes[rng.IntN(3)], plans...)
			clock.Lock()
			now = now.Add(time.Minute)
			clock.Unlock()
			if log := 1 + rng.IntN(logs); rng.IntN(3) == 0 && tails[log] > 0 {
				trims[log] = max(trims[log], 1+protocol.LSN(rng.IntN(int(tails[log]))))
			}
			if rng.IntN(40) == 0 {
				gone[1+rng.IntN(logs)] = true
			}
			var wg sync.WaitGroup
			for _, a := range nodes[:1+rng.IntN(3)] {
				wg.Go(func() {
					if _, err := a.MergePacks(t.Context(), inFuture, keep); err != nil {
						t.Error(err)
					}
				})
			}
			for range 2 {
				log, a := 1+rng.IntN(logs), nodes[rng.IntN(3)]
				from := max(trims[log], 1)
				if !gone[log] && from <= tails[log] {
					wg.Go(func() { checkLog(t, a, protocol.LogID(log), from, tails[log], 1) })
				}
			}
			wg.Wait()
			if t.Failed() {
				t.FailNow()
			}
		}
		for {
			r, err := nodes[0].MergePacks(t.Context(), inFuture, keep)
			if err != nil {
				t.Fatal(err)
			}
			if r == (MergeResult{}) {
				break
			}
		}
		for cursor := ""; ; {
			next, _, err := nodes[0].ScrubPack(t.Context(), cursor, inFuture, keep)
			if err != nil {
				t.Fatal(err)
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		for log := 1; log <= logs; log++ {
			if from := max(trims[log], 1); !gone[log] && from <= tails[log] {
				checkLog(t, newArchive(t, s, Options{}), protocol.LogID(log), from, tails[log], 1)
			}
		}
		if n := len(packNames(t, nodes[0])); n > 3*mergeFan {
			t.Errorf("%d packs are left", n)
		}
	}
}

// Packs stay until what replaced them has been there for as long as a listing may lag (AP3); young ones are not merged at all.
func TestMergedPacksStayForAWhile(t *testing.T) {
	now := time.Unix(1e9, 0)
	a := newArchive(t, memory.New(memory.Options{Now: func() time.Time { return now }}), Options{})
	for i := range protocol.LSN(mergeFan) {
		flushPack(t, a, stretch(1, 1, i+1, i+1), stretch(2, 1, i+1, i+1))
	}
	merge := func(ago time.Duration, want MergeResult) {
		t.Helper()
		if r, err := a.MergePacks(t.Context(), now.Add(-ago), keepAll); r != want || err != nil {
			t.Fatalf("%+v, %v; want %+v", r, err, want)
		}
	}
	merge(time.Minute, MergeResult{})
	now = now.Add(time.Hour)
	merge(time.Minute, MergeResult{Merged: mergeFan, Created: 1, Members: 2})
	merge(time.Minute, MergeResult{}) // they are merged, and not again
	if n := len(packNames(t, a)); n != mergeFan+1 {
		t.Fatalf("%d packs: the sources are gone, and a listing that lags shows nothing of what was in them", n)
	}
	checkLog(t, a, 1, 1, mergeFan, 1)
	now = now.Add(2 * time.Minute)
	merge(time.Minute, MergeResult{Deleted: mergeFan})
	if n := len(packNames(t, a)); n != 1 {
		t.Fatalf("%d packs", n)
	}
	checkLog(t, a, 2, 1, mergeFan, 1)
}

// What is deleted or trimmed leaves the store, although nothing new is packed.
func TestScrub(t *testing.T) {
	a := newArchive(t, newFaulty(), Options{})
	var plans []PackPlan
	for log := range protocol.LogID(100) {
		plans = append(plans, stretch(log+1, 1, 1, 50))
	}
	flushPack(t, a, plans...)
	if next, r, err := a.ScrubPack(t.Context(), packNames(t, a)[0], inFuture, keepAll); next != "" || r != (MergeResult{}) || err != nil {
		t.Fatal(next, r, err)
	}
	low := map[protocol.LogID]protocol.LSN{}
	keep := func(_ context.Context, log protocol.LogID) (protocol.LSN, error) { return low[log], nil }
	scrub := func() (r MergeResult) {
		t.Helper()
		cursor, r, err := a.ScrubPack(t.Context(), "", inFuture, keep)
		if err != nil || cursor == "" {
			t.Fatal(cursor, err)
		}
		return r
	}
	for log := range protocol.LogID(40) {
		low[log+1] = protocol.MaxLSN + 1
	}
	if r := scrub(); r != (MergeResult{}) {
		t.Fatalf("40 of 100 are gone: %+v", r)
	}
	for log := range protocol.LogID(60) {
		low[log+1] = protocol.MaxLSN + 1
	}
	if r := scrub(); r != (MergeResult{Merged: 1, Created: 1, Members: 40, Dropped: 60}) {
		t.Fatalf("60 of 100 are gone: %+v", r)
	}
	checkLog(t, a, 61, 1, 50, 1)
	if r, err := a.MergePacks(t.Context(), inFuture, keep); r != (MergeResult{Deleted: 1}) || err != nil || len(packNames(t, a)) != 1 {
		t.Fatalf("the pack that was written anew: %+v, %v", r, err)
	}
	checkLog(t, a, 61, 1, 50, 1)
	for log := range protocol.LogID(100) {
		low[log+1] = 51
	}
	if r := scrub(); r != (MergeResult{Merged: 1, Dropped: 40, Deleted: 1}) || len(packNames(t, a)) != 0 {
		t.Fatalf("all are trimmed: %+v", r)
	}
}

// With any byte of a pack changed, or cut short, or of another version: a read gives the record or an error that names the pack,
// never another record, and a look claims nothing more than what is there.
func TestPackDamage(t *testing.T) {
	s := memory.New(memory.Options{})
	a := newArchive(t, s, Options{})
	flushPack(t, a, stretch(1, 1, 1, 2), stretch(2, 1, 1, 2), stretch(2, 2, 3, 3))
	name := packNames(t, a)[0]
	rc, _, err := s.Get(t.Context(), name, objstore.Range{})
	if err != nil {
		t.Fatal(err)
	}
	var whole bytes.Buffer
	if _, err := whole.ReadFrom(rc); err != nil {
		t.Fatal(err)
	}
	check := func(what string, b []byte) {
		t.Helper()
		if _, err := s.Put(t.Context(), name, b, nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		a := newArchive(t, s, Options{})
		for log := protocol.LogID(1); log <= 2; log++ {
			rec, err := a.Reader(log).Read(t.Context(), 2, Watermark{}, nil)
			switch {
			case err == nil:
				checkRecord(t, rec, 1, 2)
			case !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrTooNew), !strings.Contains(err.Error(), name):
				t.Fatalf("%s: log %v: %v", what, log, err)
			}
			if found, err := a.Look(t.Context(), log, 0); err != nil || len(found) > 2 {
				t.Fatalf("%s: log %v: %v, %v", what, log, found, err)
			}
		}
		if _, err := a.merge(t.Context(), []*pack{mustPack(t, a, name)}, keepAll); err == nil {
			// What merging took over is what it was.
			if rec, err := a.Reader(1).Read(t.Context(), 2, Watermark{}, nil); err == nil {
				checkRecord(t, rec, 1, 2)
			} else if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrTooNew) {
				t.Fatalf("%s: merged: %v", what, err)
			}
			for _, n := range packNames(t, a) {
				if err := s.Delete(t.Context(), n); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for i := range whole.Len() {
		b := bytes.Clone(whole.Bytes())
		b[i] ^= 0x41
		check(fmt.Sprintf("byte %d", i), b)
		check(fmt.Sprintf("cut at %d", i), whole.Bytes()[:i])
	}
	check("whole", whole.Bytes())
}

func mustPack(t *testing.T, a *Archive, name string) *pack {
	t.Helper()
	var found *pack
	if err := a.listPacks(t.Context(), 0, ^protocol.LogID(0), func(p *pack) error {
		if p.name == name {
			found = p
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if found == nil {
		k, err := a.parsePackName(name)
		if err != nil {
			t.Fatal(err)
		}
		found = &pack{packKey: k, name: name}
	}
	return found
}

// Every outcome of every request of a flush and a merge: nothing is lost, an error is retryable, and trying again ends well.
func TestPackUnderFaults(t *testing.T) {
	for _, f := range []faulty.Fault{faulty.Unavailable, faulty.LostRequest, faulty.LostReply, faulty.Conflict} {
		for skip := range 40 {
			s := newFaulty()
			a := newArchive(t, s, Options{Attempts: 2})
			ctx := t.Context()
			for i := range protocol.LSN(mergeFan) {
				flushPack(t, a, stretch(1, 1, 3*i+1, 3*i+3), stretch(2, 1, 3*i+1, 3*i+3))
			}
			s.Add(faulty.Rule{Ops: faulty.AllOps, Fault: f, Skip: skip, Count: 2})
			more := []PackPlan{stretch(1, 1, 3*mergeFan+1, 3*mergeFan+2), stretch(3, 1, 1, 9)}
			for i, r := range a.FlushPack(ctx, more) {
				if r.Err != nil && !errors.Is(r.Err, ErrUnavailable) {
					t.Fatalf("fault %v after %d: %v", f, skip, r.Err)
				}
				if r.Err == nil && len(r.Objects) == 0 {
					t.Fatalf("fault %v after %d: plan %d: nothing", f, skip, i)
				}
			}
			if _, err := a.MergePacks(ctx, inFuture, keepAll); err != nil && !errors.Is(err, ErrUnavailable) {
				t.Fatalf("fault %v after %d: %v", f, skip, err)
			}
			s.Heal()
			flushPack(t, a, more...)
			for range 2 {
				for log, last := range map[protocol.LogID]protocol.LSN{1: 3*mergeFan + 2, 2: 3 * mergeFan, 3: 9} {
					checkLog(t, newArchive(t, s, Options{}), log, 1, last, 1)
				}
				if _, err := a.MergePacks(ctx, inFuture, keepAll); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// Retention sees what is packed, and merging makes nothing younger.
func TestExpiredInPacks(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	a := newArchive(t, memory.New(memory.Options{Now: func() time.Time { return now }}), Options{})
	start := now
	for i := range protocol.LSN(mergeFan) {
		now = start.Add(time.Duration(i) * time.Hour)
		// Each under a label of its own, so that they stay apart.
		flushPack(t, a, stretch(testLog, protocol.Epoch(i+1), i*10+1, i*10+10))
	}
	for range 2 {
		for _, c := range []struct {
			hours int
			want  protocol.LSN
		}{{0, 1}, {1, 11}, {3, 31}, {99, mergeFan*10 + 1}} {
			r := Retention{Before: start.Add(time.Duration(c.hours) * time.Hour)}
			if got, err := a.Expired(t.Context(), testLog, 1, r); got != c.want || err != nil {
				t.Errorf("%d hours: %d, %v; want %d", c.hours, got, err, c.want)
			}
		}
		if got, err := a.Expired(t.Context(), testLog, 1, Retention{Bytes: 1}); got != (mergeFan-1)*10+1 || err != nil {
			t.Errorf("bytes: %d, %v", got, err)
		}
		now = start.Add(50 * time.Hour)
		if r, err := a.MergePacks(t.Context(), inFuture, keepAll); err != nil || r.Merged+r.Deleted != mergeFan {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if names := packNames(t, a); len(names) != 1 || !strings.Contains(names[0], "/pack/01/") {
		t.Error(names)
	}
}

// The bytes of version 1 never change.
func TestPackGolden(t *testing.T) {
	const file = "testdata/pack-v1.golden"
	s := memory.New(memory.Options{})
	a := newArchive(t, s, Options{})
	flushPack(t, a, stretch(7, 2, 5, 5), stretch(3, 1, 1, 2), stretch(7, 1, 4, 4))
	name := packNames(t, a)[0]
	r, _, err := s.Get(t.Context(), name, objstore.Range{})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	got := append([]byte(name+"\n"), body...)
	if *rewrite {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Fatal("the format of packs has changed", err)
	}
}

func TestPackNames(t *testing.T) {
	a := newArchive(t, newFaulty(), Options{})
	k := packKey{level: 0xab, lowest: 5, highest: 1 << 60, members: 77}
	k.hash[3] = 9
	name := a.packName(k)
	if got, err := a.parsePackName(name); got != k || err != nil {
		t.Fatal(got, err)
	}
	for i := range len(name) {
		for _, c := range "0aAfg/-" {
			b := []byte(name)
			b[i] = byte(c)
			if got, err := a.parsePackName(string(b)); err == nil && a.packName(got) != string(b) {
				t.Fatalf("%q is taken for %q", b, a.packName(got))
			}
		}
		if _, err := a.parsePackName(name[:i]); err == nil {
			t.Fatal(name[:i])
		}
	}
}

// Stretches that lie side by side in a pack are scanned with one request, and one of them that is damaged takes nothing from the
// others.
func TestScanReadsAPackAtOnce(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	const log, stretches = 77, 64
	plans := []PackPlan{stretch(log-1, 1, 1, 3), stretch(log+1, 1, 1, 3)}
	for i := range protocol.LSN(stretches) {
		plans = append(plans, stretch(log, 1, 1+2*i, 2+2*i))
	}
	flushPack(t, a, plans...)
	r := a.Reader(log)
	want(t, r, 1, Watermark{}, 1) // lists, and reads the directory
	before := a.Counters()
	if labels, err := scanAll(t, r, 1, 2*stretches, Watermark{}); err != nil || len(labels) != 2*stretches {
		t.Fatalf("%d records, %v", len(labels), err)
	}
	after := a.Counters()
	if gets, lists := after.Get.Attempts()-before.Get.Attempts(), after.List.Attempts()-before.List.Attempts(); gets != 1 || lists != 0 {
		t.Fatalf("%d GETs and %d listings for %d stretches in one pack", gets, lists, stretches)
	}

	// A byte of the 30th stretch changes.
	name := packNames(t, a)[0]
	var at int64
	if err := a.packed(context.Background(), log, 0, func(m *member, _ *pack) {
		if m.key.First == 59 {
			at = m.offset + headBytes + 5
		}
	}); err != nil || at == 0 {
		t.Fatal(at, err)
	}
	body, info, err := objstore.ReadAll(context.Background(), s, name, maxPackObject)
	if err != nil {
		t.Fatal(err)
	}
	body[at] ^= 1
	if _, err := s.Put(context.Background(), name, body, info.Metadata, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	r = newArchive(t, s, Options{}).Reader(log)
	labels, err := scanAll(t, r, 1, 2*stretches, Watermark{})
	if len(labels) != 58 || !errors.Is(err, ErrDamaged) {
		t.Fatalf("%d records in front of the damage, want 58; %v", len(labels), err)
	}
	if labels, err = scanAll(t, r, 61, 2*stretches, Watermark{}); err != nil || len(labels) != 2*stretches-60 {
		t.Fatalf("%d records behind the damage, %v", len(labels), err)
	}
}

// The first reads of a scan grow, so that they do not all end together; all of the range is read, whatever the sizes.
func TestScanBeginsWithSmallReads(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{Parallel: 4, ReadBytes: 64 << 10})
	p := plan(1, 1, 1, 4000, 4000, 0)
	flush(t, a, p)
	sc := newScan(context.Background(), a.Reader(p.Log), 1, 4000, Watermark{})
	var sizes []uint64
	for range 6 {
		sizes = append(sizes, sc.readBytes()>>10)
	}
	if want := []uint64{16, 32, 48, 64, 64, 64}; !slices.Equal(sizes, want) {
		t.Fatalf("sizes in KiB %v, want %v", sizes, want)
	}
	if labels, err := scanAll(t, a.Reader(p.Log), 1, 4000, Watermark{}); err != nil || len(labels) != 4000 {
		t.Fatalf("%d records, %v", len(labels), err)
	}
}

// Of packs that hold the same the one that sorts first stays; one that holds anything of its own stays.
func TestGarbagePacksThatAreDoubled(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{})
	flushPack(t, a, stretch(5, 1, 1, 3), stretch(6, 1, 1, 3))
	flushPack(t, a, stretch(6, 1, 1, 3))                      // all of it is in the first
	flushPack(t, a, stretch(6, 1, 1, 3), stretch(7, 1, 1, 3)) // half of it is
	doubled := func() (names []string) {
		t.Helper()
		err := a.GarbagePacks(context.Background(), inFuture, keepAll, func(g Garbage) error {
			if g.Why != Doubled {
				t.Errorf("%+v", g)
			}
			names = append(names, g.Key)
			return a.Remove(context.Background(), g)
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	if names := doubled(); len(names) != 1 || !strings.Contains(names[0], "0000000000000006-0000000000000006-00000001-") {
		t.Fatalf("doubled: %v", names)
	}
	if names := doubled(); len(names) != 0 {
		t.Fatalf("then: %v", names)
	}
	b := newArchive(t, s, Options{})
	for log := protocol.LogID(5); log <= 7; log++ {
		checkLog(t, b, log, 1, 3, 1)
	}
}
