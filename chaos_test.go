package btrlog_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
)

// TestTakeoversUnderNodeFailures lets several clients take one log from each other while nodes stop, start and are replaced,
// one at a time, and then compares: every acknowledged record is in the log at its LSN, for ever, and a follower sees the log as
// it is. BTRLOG_SEED repeats a run's choices; goroutines and the network have their own.
func TestTakeoversUnderNodeFailures(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("BTRLOG_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("BTRLOG_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	all := []string{"n1", "n2", "n3", "n4"}
	c := newCluster(t, all...)
	admin := c.client()
	c.create(admin, "orders", btrlog.LogOptions{Nodes: all[:3], SegmentBytes: 64 << 10, Window: 32})

	var mu sync.Mutex
	acked := map[btrlog.LSN]string{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var reigns, appends int
	for id := range 2 {
		client := c.client()
		wg.Go(func() {
			pace := rand.New(rand.NewPCG(seed, uint64(id)+2))
			for n := 0; ctx.Err() == nil; n++ {
				// Two that open again at once fence each other for ever; a person or a failure detector takes its time.
				select {
				case <-time.After(time.Duration(10+pace.IntN(60)) * time.Millisecond):
				case <-ctx.Done():
				}
				mu.Lock()
				var floor btrlog.LSN // acknowledged before the open began
				for lsn := range acked {
					floor = max(floor, lsn)
				}
				mu.Unlock()
				w, err := client.OpenWriter(ctx, "orders", btrlog.WriterOptions{})
				if err != nil {
					continue // a node is down, the other one was faster, or the test is over
				}
				mu.Lock()
				reigns++
				mu.Unlock()
				if w.Info().Recovered < floor {
					t.Errorf("recovered %d, LSN %d was acknowledged", w.Info().Recovered, floor)
				}
				for i := 0; ctx.Err() == nil && i < 200; i++ {
					rec := fmt.Sprintf("client %d reign %d record %d %0200d", id, n, i, 0)
					lsn, err := w.Append(ctx, []byte(rec))
					if err == nil {
						err = w.Sync(ctx, lsn)
					}
					if err != nil {
						break
					}
					mu.Lock()
					if old, twice := acked[lsn]; twice {
						t.Errorf("LSN %d was given to %q and to %q", lsn, old, rec)
					}
					acked[lsn] = rec
					appends++
					mu.Unlock()
				}
				if n%2 == 0 {
					_ = w.Close(ctx) // fenced, mostly
				}
			}
		})
	}
	seen := map[btrlog.LSN]string{}
	followed := make(chan struct{})
	r := c.reader(c.client(), "orders")
	go func() {
		defer close(followed)
		next := btrlog.LSN(1)
		for rec, err := range r.Follow(ctx, 1) {
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("follow: %v", err)
				}
				return
			}
			if rec.LSN != next {
				t.Errorf("follow gave LSN %d after %d", rec.LSN, next-1)
				return
			}
			next++
			mu.Lock()
			seen[rec.LSN] = string(rec.Data)
			mu.Unlock()
		}
	}()

	// Tails are linearizable: at or above what was acknowledged before they were asked, never falling, and readable.
	tails := map[btrlog.LSN]string{}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		readers := []*btrlog.Reader{c.reader(c.client(), "orders"), c.reader(c.client(), "orders")}
		var last btrlog.LSN
		for i := 0; ctx.Err() == nil; i++ {
			mu.Lock()
			floor := last
			for lsn := range acked {
				floor = max(floor, lsn)
			}
			mu.Unlock()
			r := readers[i%2]
			tail, err := r.Tail(ctx)
			if err != nil {
				continue // undecided, or too few nodes
			}
			if tail < floor {
				t.Errorf("tail %d, LSN %d was acknowledged or told before", tail, floor)
			}
			last = tail
			if data, err := r.Read(ctx, tail, nil); err == nil {
				tails[tail] = string(data)
			} else if tail > 0 && !errors.Is(err, btrlog.ErrUnavailable) {
				t.Errorf("read of the tail %d: %v", tail, err)
			}
		}
	}()

	members := append([]string(nil), all[:3]...)
	spare := all[3]
	for range 6 {
		i := rng.IntN(3)
		switch rng.IntN(3) {
		case 0, 1:
			c.stop(members[i])
			c.progress(t, &mu, &appends, 20)
			c.start(members[i])
		case 2:
			w, err := admin.OpenWriter(ctx, "orders", btrlog.WriterOptions{Replace: map[string]string{members[i]: spare}})
			if err != nil {
				// Another opener was faster; whether this one's ensemble stands, the record says.
				t.Logf("replacement: %v", err)
			} else {
				_ = w.Close(ctx)
			}
			info, err := admin.Info(ctx, "orders")
			if err != nil {
				t.Fatal(err)
			}
			members = members[:0]
			for _, n := range info.Nodes {
				members = append(members, n.Name)
			}
			for _, n := range all {
				if names(info.Nodes, without(all, n)...) {
					spare = n
				}
			}
		}
		c.progress(t, &mu, &appends, 20)
	}
	cancel()
	wg.Wait()
	<-followed
	<-asked

	final := map[btrlog.LSN]string{}
	w := c.writer(admin, "orders") // decides the last LSN
	for rec, err := range c.reader(c.client(), "orders").Scan(t.Context(), 0, 0) {
		if err != nil {
			t.Fatal(err)
		}
		final[rec.LSN] = string(rec.Data)
	}
	if len(final) != int(w.Info().Recovered) {
		t.Errorf("%d records, recovered %d", len(final), w.Info().Recovered)
	}
	for lsn, rec := range acked {
		if final[lsn] != rec {
			t.Errorf("LSN %d: acknowledged %.60q, the log has %.60q", lsn, rec, final[lsn])
		}
	}
	for lsn, rec := range seen {
		if final[lsn] != rec {
			t.Errorf("LSN %d: a follower saw %.60q, the log has %.60q", lsn, rec, final[lsn])
		}
	}
	for lsn, rec := range tails {
		if final[lsn] != rec {
			t.Errorf("LSN %d: as the tail it was %.60q, the log has %.60q", lsn, rec, final[lsn])
		}
	}
	t.Logf("%d tails, %d reigns, %d acknowledged records, %d in the log, %d followed", len(tails), reigns, len(acked), len(final), len(seen))
}

func without(all []string, n string) (out []string) {
	for _, x := range all {
		if x != n {
			out = append(out, x)
		}
	}
	return out
}

// progress waits for n more acknowledged appends.
func (c *cluster) progress(t *testing.T, mu *sync.Mutex, appends *int, n int) {
	t.Helper()
	mu.Lock()
	want := *appends + n
	mu.Unlock()
	eventually(t, "appends go on", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return *appends >= want || t.Failed()
	})
}
