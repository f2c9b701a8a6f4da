package main

import (
	"context"
	"fmt"
	"time"

	"github.com/btrlog/btrlog"
)

// takeoverResult is what it costs one new client to take over many logs whose writer is gone.
type takeoverResult struct {
	Logs    int     `json:"logs"`
	Width   int     `json:"at_a_time"`
	Seconds float64 `json:"seconds"` // from the first OpenWriter to the last one's return
	PerLog  float64 `json:"milliseconds_per_log"`
	// Requests are those that arrived at the object store meanwhile, by sender, method, condition and kind of key.
	Requests map[string]int `json:"requests"`
	// SwapsPerLog and ReadsPerLog: how many logs had so many compare-and-swaps and reads of their record by the client.
	SwapsPerLog map[int]int `json:"logs_by_swaps"`
	ReadsPerLog map[int]int `json:"logs_by_reads"`
	Passed      bool        `json:"passed"` // every tail was found; two swaps and one read at most of each log
}

func (o *options) takeover(ctx context.Context) (any, error) {
	const records, width = 10, 32
	set(&o.logs, 1000)
	set(&o.shards, 1)
	c, err := o.start(ctx, 3, o.shards)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	first, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	name := func(i int) string { return fmt.Sprintf("moved-%05d", i) }
	err = each(ctx, o.logs, width, func(i int) error {
		if _, err := first.Create(ctx, name(i), btrlog.LogOptions{}); err != nil {
			return err
		}
		w, err := first.OpenWriter(ctx, name(i), btrlog.WriterOptions{})
		if err != nil {
			return err
		}
		for j := range records {
			if _, err := w.Append(ctx, fmt.Appendf(nil, "log %d, record %d", i, j)); err != nil {
				return err
			}
		}
		return w.Sync(ctx, records)
	})
	if err != nil {
		return nil, err
	}
	if err := first.Close(); err != nil { // its writers are gone as if the process had died
		return nil, err
	}
	second, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer second.Close()
	before, err := c.requests()
	if err != nil {
		return nil, err
	}
	res := takeoverResult{Logs: o.logs, Width: width, SwapsPerLog: map[int]int{}, ReadsPerLog: map[int]int{}, Passed: true}
	began := time.Now()
	err = each(ctx, o.logs, width, func(i int) error {
		w, err := second.OpenWriter(ctx, name(i), btrlog.WriterOptions{})
		if err != nil {
			return err
		}
		if got := w.Info().Recovered; got != records {
			return fmt.Errorf("log %s: found %d of %d records", name(i), got, records)
		}
		return nil
	})
	res.Seconds = time.Since(began).Seconds()
	if err != nil {
		return nil, err
	}
	after, err := c.requests()
	if err != nil {
		return nil, err
	}
	res.PerLog = res.Seconds * 1000 / float64(o.logs)
	d := after.since(before)
	res.Requests = d.Total
	for i := range o.logs {
		n := d.PerLog[name(i)]
		res.SwapsPerLog[n["swaps"]]++
		res.ReadsPerLog[n["reads"]]++
		res.Passed = res.Passed && n["swaps"] <= 2 && n["reads"] <= 1 && n["others"] == 0
	}
	return res, nil
}
