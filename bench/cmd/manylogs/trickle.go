package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/btrlog/btrlog"
)

// trickleResult is what archiving many logs costs that get a record now and then.
type trickleResult struct {
	Logs         int     `json:"logs"`
	EverySeconds float64 `json:"a_record_every_seconds"` // of each log, at a time of its own
	FlushAge     float64 `json:"flush_age_seconds"`
	Minutes      float64 `json:"minutes"` // that were counted, behind as many flush ages as the warm-up takes
	Appended     int     `json:"appended"`
	// Puts are attempts of all nodes that arrived at the store, by what they wrote. PerMinute is their sum.
	Puts      map[string]int `json:"puts"`
	PerMinute float64        `json:"puts_per_minute"`
	// Others are the nodes' other requests per minute, by kind.
	Others map[string]float64 `json:"other_requests_per_minute"`
	// WorstLag is the age of the oldest record that a node did not know to be archived, the worst of samples each second.
	WorstLag float64 `json:"worst_lag_seconds"`
	// Bound: flush age, the time between two packs until it is in one, and once more until the other nodes have read that; and grace.
	Bound  float64 `json:"lag_bound_seconds"`
	Passed bool    `json:"passed"` // at most six PUTs a minute, and no lag above the bound
}

const (
	packEvery = 40 * time.Second // the node's default
	packSlack = 10 * time.Second // grace, ticks, and the store
)

// trickle appends a record a minute to each of many logs, and counts what the nodes ask of the store.
func (o *options) trickle(ctx context.Context) (any, error) {
	set(&o.logs, 10_000)
	set(&o.shards, 1)
	c, client, err := o.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	defer client.Close()
	res := trickleResult{Logs: o.logs, EverySeconds: o.every.Seconds(), FlushAge: o.flushAge.Seconds(), Puts: map[string]int{}, Others: map[string]float64{}}
	res.Bound = (o.flushAge + 2*packEvery + packSlack).Seconds()
	writers := make([]*btrlog.Writer, o.logs)
	began := time.Now()
	err = each(ctx, o.logs, 64, func(i int) error {
		name := fmt.Sprintf("trickle-%05d", i)
		if _, err := client.Create(ctx, name, btrlog.LogOptions{FlushAge: o.flushAge}); err != nil {
			return err
		}
		w, err := client.OpenWriter(ctx, name, btrlog.WriterOptions{})
		writers[i] = w
		return err
	})
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "%d logs are open after %.0f s; a record to each every %v for %v, then as long again, counted\n", o.logs, time.Since(began).Seconds(), o.every, o.warmUp())
	appended := make(chan int, 1)
	running, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() {
		n, err := o.feed(running, writers)
		appended <- n
		failed <- err
	}()
	if err := pause(ctx, o.warmUp(), failed); err != nil {
		return nil, err
	}
	before, err := c.requests()
	if err != nil {
		return nil, err
	}
	began = time.Now()
	for time.Since(began) < o.settle {
		if err := pause(ctx, time.Second, failed); err != nil {
			return nil, err
		}
		for _, n := range c.nodes {
			m, err := n.metrics()
			if err != nil {
				return nil, err
			}
			for name, v := range m {
				if strings.HasPrefix(name, "btrlog_node_flush_lag_seconds") {
					res.WorstLag = max(res.WorstLag, v)
				}
			}
		}
	}
	after, err := c.requests()
	if err != nil {
		return nil, err
	}
	res.Minutes = time.Since(began).Minutes()
	stop()
	res.Appended = <-appended
	for what, n := range after.since(before).Total {
		who, rest, _ := strings.Cut(what, " ")
		switch {
		case who != "node":
		case strings.HasPrefix(rest, "PUT") && (strings.HasSuffix(rest, " pack") || strings.HasSuffix(rest, " arch")):
			res.Puts[rest] = n
			res.PerMinute += float64(n) / res.Minutes
		default:
			res.Others[rest] = float64(n) / res.Minutes
		}
	}
	res.Passed = res.PerMinute <= 6 && res.WorstLag <= res.Bound
	return res, nil
}

func (o *options) warmUp() time.Duration { return o.flushAge + packEvery + o.every }

// feed appends to all logs, each at its own time, until ctx ends. It waits for no acknowledgement.
func (o *options) feed(ctx context.Context, writers []*btrlog.Writer) (n int, err error) {
	rng := rand.New(rand.NewPCG(1, 1))
	order := rng.Perm(len(writers))
	record := make([]byte, 100)
	gap := o.every / time.Duration(len(writers))
	began := time.Now()
	for ctx.Err() == nil {
		for due := int(time.Since(began)/gap) + 1; n < due && ctx.Err() == nil; n++ {
			if _, err := writers[order[n%len(order)]].Append(ctx, record); err != nil && ctx.Err() == nil {
				return n, err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	return n, nil
}

// pause waits, unless the feeder fails.
func pause(ctx context.Context, d time.Duration, failed <-chan error) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case err := <-failed:
		return fmt.Errorf("the appends ended: %w", err)
	case <-ctx.Done():
		return ctx.Err()
	}
}
