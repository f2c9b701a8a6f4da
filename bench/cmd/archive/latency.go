package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/protocol"
)

// latencyRow compares appends beside the archiving of their log with appends of a log whose segments are so large that none is
// archived meanwhile, in blocks by turns. The load is open: each append has its time, and its latency counts from then until it is
// known to be committed. shapedTmpfs: nodes and store are on tmpfs, and the store behind the shaped link, as if it were on another machine: it and
// the link take what processor time the appends leave; otherwise both are on the same disk and one machine, and the link is not shaped.
func (o *options) latencyRow(ctx context.Context, name, dir string, shapedTmpfs bool) (rows []row, err error) {
	dir = filepath.Join(dir, "latency-"+name)
	defer os.RemoveAll(dir) // when nobody uses it any more
	var p processes
	defer p.stop()
	b, err := o.backend(ctx, &p, name, filepath.Join(dir, "store"), shapedTmpfs)
	if err != nil {
		return nil, err
	}
	port := b.Node
	if shapedTmpfs {
		port = b.ShapedNode
	}
	nodes, err := o.nodes(ctx, &p, b.url(port), dir)
	if err != nil {
		return nil, err
	}
	c, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: b.url(b.Client), Name: "writer", Timeout: time.Minute})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	const flushing, still = 0, 1
	// Segments of a quarter of the default size: some are archived in every block, and the link is in use most of the time.
	const flushed, perFlushed = segmentBytes / 4, segmentBytes / 4 / (recordBytes + protocol.RecordOverhead)
	if n := int(o.rate * o.block.Seconds()); n < 3*perFlushed || n*(recordBytes+protocol.RecordOverhead) > 250<<20 {
		return nil, fmt.Errorf("-rate times -block is %d appends; between %d and %d are needed, so that segments are archived in the one kind of block and none in the other", n, 3*perFlushed, 250<<20/(recordBytes+protocol.RecordOverhead))
	}
	var p99, p50 [2][]float64
	var worst float64
	before, err := b.counts(ctx)
	if err != nil {
		return nil, err
	}
	for i := range 2 * (o.blocks + 1) {
		kind := i % 2
		log := fmt.Sprintf("block-%d", i)
		segment := int64(flushed)
		if kind == still {
			segment = 256 << 20
		}
		if _, err := c.Create(ctx, log, btrlog.LogOptions{SegmentBytes: segment, FlushAge: -1}); err != nil {
			return nil, err
		}
		w, err := c.OpenWriter(ctx, log, btrlog.WriterOptions{})
		if err != nil {
			return nil, err
		}
		lat, err := o.load(ctx, w)
		if err != nil {
			return nil, err
		}
		full := btrlog.LSN(len(lat) / perFlushed * perFlushed)
		if err := w.Close(ctx); err != nil {
			return nil, err
		}
		if kind == flushing {
			if err := awaitArchived(ctx, nodes, log, full); err != nil {
				return nil, err
			}
		}
		if err := c.Delete(ctx, log); err != nil {
			return nil, err
		}
		if i < 2 {
			continue // the first of each are for warming up
		}
		slices.Sort(lat)
		p99[kind], p50[kind] = append(p99[kind], lat[len(lat)*99/100].Seconds()*1e6), append(p50[kind], lat[len(lat)/2].Seconds()*1e6)
		worst = max(worst, lat[len(lat)-1].Seconds()*1e3)
	}
	after, err := b.counts(ctx)
	if err != nil {
		return nil, err
	}
	ratio := median(p99[flushing]) / median(p99[still])
	detail := map[string]any{"p99_us_flushing": median(p99[flushing]), "p99_us_still": median(p99[still]), "p50_us_flushing": median(p50[flushing]), "p50_us_still": median(p50[still]),
		"p99_us_flushing_quartiles": quartiles(p99[flushing]), "p99_us_still_quartiles": quartiles(p99[still]), "worst_ms": worst,
		"segments_archived": after.since(before).sum("node PUT arch"), "appends_per_second": o.rate, "blocks": o.blocks}
	if shapedTmpfs {
		return []row{atMost("append p99 while segments are archived over without, tmpfs, store shaped", b.name, ratio, 1.25, "%.2f", detail)}, nil
	}
	return []row{printed("append p99 while segments are archived over without, nodes and store on one disk", b.name, fmt.Sprintf("%.2f", ratio), detail)}, nil
}

func quartiles(v []float64) [2]float64 {
	s := slices.Sorted(slices.Values(v))
	return [2]float64{s[len(s)/4], s[len(s)*3/4]}
}

// load appends for one block and returns the latencies in the order of the appends.
func (o *options) load(ctx context.Context, w *btrlog.Writer) ([]time.Duration, error) {
	n := int(o.rate * o.block.Seconds())
	gap := time.Duration(float64(time.Second) / o.rate)
	lat := make([]time.Duration, n)
	first := w.Info().Recovered + 1
	began := time.Now().Add(10 * time.Millisecond)
	due := func(i int) time.Time { return began.Add(time.Duration(i) * gap) }
	failed := make(chan error, 1)
	appended := make(chan int, n)
	go func() {
		defer close(appended)
		data := make([]byte, recordBytes)
		for i := range n {
			wait(time.Until(due(i)))
			if _, err := w.Append(ctx, data); err != nil {
				failed <- err
				return
			}
			appended <- i
		}
	}()
	for i := range appended {
		if err := w.Sync(ctx, first+btrlog.LSN(i)); err != nil {
			return nil, err
		}
		lat[i] = time.Since(due(i))
	}
	select {
	case err := <-failed:
		return nil, err
	default:
		return lat, nil
	}
}
