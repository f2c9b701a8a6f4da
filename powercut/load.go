package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/powercut/judge"
)

// load is one client outside of the machine, with a writer for each log. It ends with a cut; after it comes another one, which takes
// the logs over.
type load struct {
	client *btrlog.Client
	stop   context.CancelFunc
	wg     sync.WaitGroup
	logs   []*loadedLog
}

// loadedLog is one log under load. Its judge belongs to its goroutine while that runs.
type loadedLog struct {
	judge *judge.Log
	w     *btrlog.Writer
	err   error // why the load ended before it was told to
}

// logOptions are what the logs differ in.
func logOptions(name string) btrlog.LogOptions {
	switch name {
	case "small": // segments are archived, and dropped from the nodes, all the time
		return btrlog.LogOptions{SegmentBytes: 1 << 20, FlushAge: 2 * time.Second}
	case "quiet":
		return btrlog.LogOptions{Window: 64}
	}
	return btrlog.LogOptions{}
}

// dial makes a client of the nodes that run.
func (w *world) dial(ctx context.Context) error {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	c, err := btrlog.Connect(ctx, btrlog.Config{Nodes: w.addresses(), Name: "powercut", MaxDatagramBytes: 1400, Timeout: 2 * time.Minute, Logger: quiet})
	if err != nil {
		return fmt.Errorf("connect to the nodes: %w", err)
	}
	w.load = &load{client: c, stop: func() {}}
	return nil
}

// connect opens all logs anew and judges each. The verdicts of the logs come first; that of the control, if there was one, is apart.
func (w *world) connect(ctx context.Context, everything bool) (verdicts []judge.Verdict, control *judge.Verdict, err error) {
	if err := w.dial(ctx); err != nil {
		return nil, nil, err
	}
	l, c := w.load, w.load.client
	for _, j := range w.logs {
		if _, err := c.Create(ctx, j.Name, logOptions(j.Name)); err != nil && !errors.Is(err, btrlog.ErrExists) {
			return nil, nil, fmt.Errorf("create log %s: %w", j.Name, err)
		}
		writer, v := open(ctx, c, j, everything)
		verdicts = append(verdicts, v)
		if writer != nil {
			l.logs = append(l.logs, &loadedLog{judge: j, w: writer})
		}
	}
	if w.control != nil {
		_, v := open(ctx, c, w.control, true)
		control, w.control = &v, nil
	}
	return verdicts, control, nil
}

// recent is how much of a log is read back after each cut; all of it is at the end.
const recent = 3000

func open(ctx context.Context, c *btrlog.Client, j *judge.Log, everything bool) (*btrlog.Writer, judge.Verdict) {
	failed := func(err error) judge.Verdict {
		return judge.Verdict{Name: j.Name, Acknowledged: j.Acked(), Lost: j.Acked(), Problems: []string{err.Error()}}
	}
	writer, err := c.OpenWriter(ctx, j.Name, btrlog.WriterOptions{})
	if err != nil {
		return nil, failed(fmt.Errorf("open: %w", err))
	}
	tail := uint64(writer.Info().Recovered)
	from := uint64(1)
	if !everything && tail > recent {
		from = tail - recent
	}
	r, err := c.OpenReader(ctx, j.Name)
	if err != nil {
		return writer, failed(fmt.Errorf("open for reading: %w", err))
	}
	return writer, j.Recovered(tail, from, func(record func(uint64, []byte)) error {
		if tail == 0 {
			return nil
		}
		for rec, err := range r.Scan(ctx, btrlog.LSN(from), btrlog.LSN(tail)) {
			if err != nil {
				return err
			}
			record(uint64(rec.LSN), rec.Data)
		}
		return nil
	})
}

// run lets all writers append until end.
func (l *load) run(seed uint64) {
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	for i, g := range l.logs {
		l.wg.Add(1)
		go func() {
			defer l.wg.Done()
			g.err = g.append(ctx, rand.New(rand.NewPCG(seed, uint64(i))))
			g.judge.Acknowledged(uint64(g.w.Committed()))
		}()
	}
}

func (g *loadedLog) append(ctx context.Context, rng *rand.Rand) error {
	for ctx.Err() == nil {
		var last btrlog.LSN
		for range 1 + rng.IntN(16) { // in flight together
			n := 1
			if rng.IntN(10) == 0 {
				n = 2 + rng.IntN(7)
			}
			first, end, err := g.w.AppendBatch(ctx, g.judge.Next(n))
			if err != nil {
				return ended(ctx, err)
			}
			if err := g.judge.Appended(uint64(first), uint64(end)); err != nil {
				return err
			}
			last = end
		}
		if err := g.w.Sync(ctx, last); err != nil {
			return ended(ctx, err)
		}
		g.judge.Acknowledged(uint64(last))
	}
	return nil
}

// ended is nil if the load was told to end.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// committed is the sum over all logs.
func (l *load) committed() uint64 {
	var sum uint64
	for _, g := range l.logs {
		sum += uint64(g.w.Committed())
	}
	return sum
}

// quiesce waits until no acknowledgement has come for a while: those that were on their way at the cut have arrived.
func (l *load) quiesce() {
	last, since := l.committed(), time.Now()
	for time.Since(since) < 150*time.Millisecond {
		time.Sleep(10 * time.Millisecond)
		if now := l.committed(); now != last {
			last, since = now, time.Now()
		}
	}
}

// end stops the writers, as if their host had died, and returns what went wrong with them before.
func (l *load) end() error {
	l.stop()
	l.client.Close()
	l.wg.Wait()
	var errs []error
	for _, g := range l.logs {
		if g.err != nil {
			errs = append(errs, fmt.Errorf("log %s: %w", g.judge.Name, g.err))
		}
	}
	l.logs = nil
	return errors.Join(errs...)
}
