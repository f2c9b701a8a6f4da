package objtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
)

const (
	racers = 16
	rounds = 20
)

// tryPut retries what a store may answer under contention (409, 503) until there is a verdict.
func tryPut(ctx context.Context, s objstore.Store, key string, body []byte, c objstore.Condition) (objstore.Info, error) {
	for {
		info, err := s.Put(ctx, key, body, nil, c)
		if err == nil || !objstore.Retryable(err) || ctx.Err() != nil {
			return info, err
		}
	}
}

// race lets all racers write under one condition and demands exactly one winner, whose body is there afterwards.
func race(t *testing.T, s objstore.Store, key string, round int, c objstore.Condition) objstore.Info {
	t.Helper()
	var mu sync.Mutex
	var winners []int
	var infos [racers]objstore.Info
	each(racers, func(i int) {
		info, err := tryPut(t.Context(), s, key, fmt.Appendf(nil, "round %d racer %d", round, i), c)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			winners = append(winners, i)
			infos[i] = info
		case !errors.Is(err, objstore.ErrPrecondition):
			t.Errorf("racer %d: %v", i, err)
		}
	})
	if len(winners) != 1 {
		t.Fatalf("round %d of %v: winners %v, want exactly one", round, c, winners)
	}
	wantBody(t, s, key, fmt.Sprintf("round %d racer %d", round, winners[0]))
	return infos[winners[0]]
}

func testRaceIfAbsent(t *testing.T, s objstore.Store) {
	for round := range rounds {
		race(t, s, fmt.Sprintf("race/%d", round), round, objstore.IfAbsent())
	}
}

func testRaceIfMatch(t *testing.T, s objstore.Store) {
	info := put(t, s, "race", "start", objstore.IfAbsent())
	for round := range rounds {
		info = race(t, s, "race", round, objstore.IfMatch(info.ETag))
	}
}

// testRaceCounter counts by compare-and-swap: no increment is lost.
func testRaceCounter(t *testing.T, s objstore.Store) {
	put(t, s, "n", "0", objstore.IfAbsent())
	const perRacer = 5
	each(racers, func(int) {
		for done := 0; done < perRacer; {
			body, info, err := objstore.ReadAll(t.Context(), s, "n", 100)
			if err != nil {
				t.Errorf("read: %v", err)
				return
			}
			n, _ := strconv.Atoi(string(body))
			_, err = tryPut(t.Context(), s, "n", fmt.Append(nil, n+1), objstore.IfMatch(info.ETag))
			switch {
			case err == nil:
				done++
			case !errors.Is(err, objstore.ErrPrecondition):
				t.Errorf("increment: %v", err)
				return
			}
		}
	})
	wantBody(t, s, "n", fmt.Sprint(racers*perRacer))
}

// testRaceReaders reads while writers replace: every read is one whole version, and versions never go back.
func testRaceReaders(t *testing.T, s objstore.Store) {
	version := func(n int) []byte {
		return bytes.Repeat(fmt.Appendf(nil, "%08d", n), 20_000)
	}
	last := 30
	if _, err := s.Put(t.Context(), "v", version(0), map[string]string{"n": "0"}, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	var written atomic.Int64
	var reads atomic.Int64
	each(5, func(i int) {
		if i == 0 {
			for n := 1; n <= last; n++ {
				if _, err := s.Put(t.Context(), "v", version(n), map[string]string{"n": fmt.Sprint(n)}, objstore.Always()); err != nil {
					t.Errorf("write %d: %v", n, err)
				}
				written.Store(int64(n))
			}
			return
		}
		for {
			low := written.Load()
			body, info, err := objstore.ReadAll(t.Context(), s, "v", 1<<20)
			if err != nil || len(body) != 160_000 {
				t.Errorf("read: %d bytes, %v", len(body), err)
				return
			}
			n, _ := strconv.Atoi(string(body[:8]))
			if !bytes.Equal(body, version(n)) || info.Metadata["n"] != fmt.Sprint(n) {
				t.Errorf("read a mixture: begins with version %d, metadata %v", n, info.Metadata)
				return
			}
			if int64(n) < low {
				t.Errorf("read version %d after version %d was written", n, low)
				return
			}
			reads.Add(1)
			if n == last {
				return
			}
		}
	})
	if reads.Load() == 0 {
		t.Fatal("no read completed")
	}
}

// testLostReply: a write that was applied and whose reply was lost is found by looking.
func testLostReply(t *testing.T, s objstore.Store) {
	f := faulty.New(s, faulty.Config{Seed: 1})
	f.Add(faulty.Rule{Ops: faulty.Puts, Fault: faulty.LostReply, Count: 1})
	_, err := f.Put(t.Context(), "k", []byte("mine"), nil, objstore.IfAbsent())
	wantErr(t, "Put with a lost reply", err, objstore.ErrUnknown)
	_, err = f.Put(t.Context(), "k", []byte("mine"), nil, objstore.IfAbsent())
	wantErr(t, "the same Put again", err, objstore.ErrPrecondition)
	info := wantBody(t, f, "k", "mine")
	f.Add(faulty.Rule{Ops: faulty.Puts, Fault: faulty.LostRequest, Count: 1})
	_, err = f.Put(t.Context(), "k", []byte("mine too"), nil, objstore.IfMatch(info.ETag))
	wantErr(t, "Put with a lost request", err, objstore.ErrUnknown)
	wantBody(t, f, "k", "mine")
}

// deaf ignores one condition, as some servers do.
type deaf struct {
	objstore.Store
	absent, match bool
}

func (d deaf) Put(ctx context.Context, key string, body []byte, meta map[string]string, c objstore.Condition) (objstore.Info, error) {
	if _, m := c.Match(); m && d.match || c.IsIfAbsent() && d.absent {
		c = objstore.Always()
	}
	return d.Store.Put(ctx, key, body, meta, c)
}

// racy decides conditions by a look before the write, as a naive gateway does.
type racy struct{ objstore.Store }

func (r racy) Put(ctx context.Context, key string, body []byte, meta map[string]string, c objstore.Condition) (objstore.Info, error) {
	h, err := r.Store.Head(ctx, key)
	for range 200 {
		runtime.Gosched() // let the others look too
	}
	if !c.Holds(err == nil, h.ETag) {
		return objstore.Info{}, &objstore.Error{Store: r.String(), Op: "put", Key: key, Kind: objstore.ErrPrecondition}
	}
	return r.Store.Put(ctx, key, body, meta, objstore.Always())
}

func testProbe(t *testing.T, s objstore.Store) {
	if err := objstore.Probe(t.Context(), s, "probe"); err != nil {
		t.Fatalf("Probe: %v", err)
	}
	page, err := s.List(t.Context(), "", "", 0)
	if err != nil || len(page.Objects) != 0 {
		t.Fatalf("Probe left %+v, %v", page.Objects, err)
	}
	for _, c := range []struct {
		store objstore.Store
		want  string
	}{
		{deaf{s, true, false}, "create-if-absent"},
		{deaf{s, false, true}, "replace-if-match"},
		{deaf{s, true, true}, "create-if-absent"},
		{racy{s}, "concurren"},
	} {
		err := objstore.Probe(t.Context(), c.store, "probe")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Probe of a broken store %T: %v, want an error about %q", c.store, err, c.want)
		}
	}
}
