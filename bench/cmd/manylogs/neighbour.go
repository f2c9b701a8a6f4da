package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/btrlog/btrlog"
)

// neighbourResult compares quiet logs beside a firehose on their own shard (same) with the same quiet logs beside the same
// firehose on another shard of the same nodes (other): the same load of disk, processors and client, but another thread, store
// and socket. Blocks of both kinds alternate.
type neighbourResult struct {
	Quiet       int     `json:"quiet_logs"`
	PerSecond   float64 `json:"appends_per_second_of_each"`
	RecordBytes int     `json:"firehose_record_bytes"`
	Blocks      int     `json:"blocks_of_each_kind"`
	Same        side    `json:"same_shard"`
	Other       side    `json:"other_shard"`
	Alone       side    `json:"no_firehose"` // for orientation: the disk is idle then
	// RatioP99 is the median, over the pairs of blocks, of the quiet logs' p99 beside the firehose to that in the control.
	RatioP99 float64 `json:"ratio_p99"`
	// Spread are the lower and upper quartile of these ratios.
	Spread [2]float64 `json:"ratio_p99_quartiles"`
	Passed bool       `json:"passed"` // ratio at most 2
}

// side is one kind of block. Latencies are from the scheduled time of an append to its commit, medians over the blocks.
type side struct {
	P50ms        float64 `json:"p50_ms"`
	P99ms        float64 `json:"p99_ms"`
	Offered      int     `json:"offered"`
	Completed    int     `json:"completed"`
	FirehoseMBps float64 `json:"firehose_mb_per_s"`
	p50, p99, mb []float64
}

func (o *options) neighbour(ctx context.Context) (any, error) {
	set(&o.shards, 2)
	c, client, err := o.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	defer client.Close()
	var quiet []*btrlog.Writer
	hoses := map[bool]*btrlog.Writer{} // on the shard of the quiet logs, or on another
	for i := 0; len(quiet) < o.quiet || len(hoses) < 2; i++ {
		name := fmt.Sprintf("log-%05d", i)
		if _, err := client.Create(ctx, name, btrlog.LogOptions{}); err != nil {
			return nil, err
		}
		w, err := client.OpenWriter(ctx, name, btrlog.WriterOptions{})
		if err != nil {
			return nil, err
		}
		shards, err := c.nodes[0].shards() // ids are the same everywhere, so is the shard
		if err != nil {
			return nil, err
		}
		switch on0 := shards[name] == 0; {
		case hoses[on0] == nil:
			hoses[on0] = w
		case on0 && len(quiet) < o.quiet:
			quiet = append(quiet, w)
		default:
			if err := w.Close(ctx); err != nil {
				return nil, err
			}
		}
	}
	res := neighbourResult{Quiet: len(quiet), PerSecond: o.perSecond, RecordBytes: o.recordBytes, Blocks: o.blocks}
	var ratios []float64
	if err := o.runBlock(ctx, quiet, hoses[true], new(side)); err != nil { // warms up
		return nil, err
	}
	for i := range o.blocks {
		for _, same := range []bool{i%2 == 0, i%2 != 0} {
			s := &res.Other
			if same {
				s = &res.Same
			}
			if err := o.runBlock(ctx, quiet, hoses[same], s); err != nil {
				return nil, err
			}
		}
		if i%4 == 0 {
			if err := o.runBlock(ctx, quiet, nil, &res.Alone); err != nil {
				return nil, err
			}
		}
		ratios = append(ratios, res.Same.p99[i]/res.Other.p99[i])
		fmt.Fprintf(os.Stderr, "block %d: p99 %.2f ms beside the firehose, %.2f ms in the control\n", i+1, res.Same.p99[i], res.Other.p99[i])
	}
	for _, s := range []*side{&res.Same, &res.Other, &res.Alone} {
		s.P50ms, s.P99ms, s.FirehoseMBps = quantile(s.p50, 0.5), quantile(s.p99, 0.5), quantile(s.mb, 0.5)
	}
	res.RatioP99, res.Spread = quantile(ratios, 0.5), [2]float64{quantile(ratios, 0.25), quantile(ratios, 0.75)}
	res.Passed = res.RatioP99 <= 2
	return res, nil
}

// runBlock lets the quiet logs append by the clock, beside a firehose that appends whenever its window has room.
func (o *options) runBlock(ctx context.Context, quiet []*btrlog.Writer, hose *btrlog.Writer, s *side) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	began := time.Now()
	var wg sync.WaitGroup
	sent := 0
	if hose != nil {
		wg.Go(func() {
			rec := make([]byte, o.recordBytes)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := hose.Append(ctx, rec); err != nil {
					cancel(fmt.Errorf("firehose: %w", err))
					return
				}
				sent++
			}
		})
	}
	var mu sync.Mutex
	var latencies []float64
	offered := 0
	every := time.Duration(float64(time.Second) / o.perSecond)
	var quietDone sync.WaitGroup
	for i, w := range quiet {
		quietDone.Go(func() {
			rec := make([]byte, 100)
			// Spread over the interval, so that they do not come all at once.
			for at := began.Add(every * time.Duration(i) / time.Duration(len(quiet))); at.Before(began.Add(o.block)); at = at.Add(every) {
				time.Sleep(time.Until(at))
				lsn, err := w.Append(ctx, rec)
				if err == nil {
					err = w.Sync(ctx, lsn)
				}
				if err != nil {
					cancel(fmt.Errorf("quiet log: %w", err))
					return
				}
				d := time.Since(at).Seconds() * 1000
				mu.Lock()
				latencies, offered = append(latencies, d), offered+1
				mu.Unlock()
			}
		})
	}
	quietDone.Wait()
	close(stop)
	wg.Wait()
	seconds := time.Since(began).Seconds()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if hose != nil {
		if err := hose.Sync(ctx, hose.Info().Next-1); err != nil {
			return err
		}
	}
	s.Offered += offered
	s.Completed += len(latencies)
	s.p50, s.p99 = append(s.p50, quantile(latencies, 0.5)), append(s.p99, quantile(latencies, 0.99))
	s.mb = append(s.mb, float64(sent)*float64(o.recordBytes)/1e6/seconds)
	return nil
}

func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Clone(v)
	slices.Sort(s)
	return s[min(len(s)-1, int(q*float64(len(s))))]
}
