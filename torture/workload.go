//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/torture/history"
)

const (
	appendSlots = 3                     // appends of one writer that are on their way at once
	appendPause = 8 * time.Millisecond  // of each slot, between two
	readPause   = 15 * time.Millisecond // between two point reads of one reader
	tailPause   = 50 * time.Millisecond
	appendLimit = 5 * time.Second // then the outcome is unknown
	readLimit   = 2 * time.Second
	openLimit   = 5 * time.Second
	bulkBytes   = 64 << 10
)

// writing is the writer's side of one log on this host. It opens the log, and again when it loses it for want of nodes, until
// another host has fenced it, or it is told to end.
type writing struct {
	w      *worker
	log    string
	ctx    context.Context // of opens and pauses, not of what is on its way
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	writer  *btrlog.Writer // while it is open
	yielded bool
}

func (w *worker) writing(log string) *writing {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writers[log]
}

func (w *worker) startWriting(log string) {
	ctx, cancel := context.WithCancel(context.Background())
	wr := &writing{w: w, log: log, ctx: ctx, cancel: cancel, done: make(chan struct{})}
	w.mu.Lock()
	old := w.writers[log]
	w.writers[log] = wr
	w.mu.Unlock()
	go func() {
		if old != nil {
			old.cancel()
			<-old.done
		}
		wr.run()
	}()
}

func (w *worker) yield(log string) {
	if wr := w.writing(log); wr != nil {
		wr.mu.Lock()
		wr.yielded = true
		if wr.writer == nil {
			wr.cancel() // it does not take the log back
		}
		wr.mu.Unlock()
	}
}

func (wr *writing) open() *btrlog.Writer {
	wr.mu.Lock()
	defer wr.mu.Unlock()
	return wr.writer
}

// wait returns the open writer, or nil when this host does not write the log any more, or there never was one.
func (wr *writing) wait(ctx context.Context) *btrlog.Writer {
	if wr == nil {
		return nil
	}
	for {
		select {
		case <-wr.done:
			return nil
		case <-ctx.Done():
			return nil
		default:
		}
		if open := wr.open(); open != nil {
			return open
		}
		pause(ctx, 5*time.Millisecond)
	}
}

func (wr *writing) end(ctx context.Context) error {
	wr.cancel()
	select {
	case <-wr.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the writer of %s does not end: %w", wr.log, ctx.Err())
	}
}

func (wr *writing) run() {
	defer close(wr.done)
	for wr.ctx.Err() == nil {
		writer := wr.take()
		if writer == nil {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-wr.ctx.Done():
			}
			continue
		}
		var wg sync.WaitGroup
		for range appendSlots {
			wg.Go(func() { wr.slot(writer) })
		}
		wg.Wait()
		wr.mu.Lock()
		wr.writer = nil
		yielded := wr.yielded
		wr.mu.Unlock()
		if wr.ctx.Err() != nil {
			ctx, cancel := context.WithTimeout(context.Background(), appendLimit)
			if err := writer.Close(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "close:", err)
			}
			cancel()
			return
		}
		err := writer.Err()
		fmt.Fprintf(os.Stderr, "writer of %s ended: %v\n", wr.log, err)
		if yielded || errors.Is(err, btrlog.ErrFenced) || errors.Is(err, btrlog.ErrClosed) || errors.Is(err, btrlog.ErrNotFound) {
			return
		}
	}
}

// take opens the log.
func (wr *writing) take() *btrlog.Writer {
	ctx, cancel := context.WithTimeout(wr.ctx, openLimit)
	defer cancel()
	id := wr.w.rec.Call(history.Event{Op: history.Open, Log: wr.log})
	writer, err := wr.w.client.OpenWriter(ctx, wr.log, btrlog.WriterOptions{})
	if err != nil {
		wr.w.rec.Return(history.Event{ID: id, Op: history.Open, Log: wr.log, Out: history.Failed, Err: err.Error()})
		return nil
	}
	wr.w.rec.Return(history.Event{ID: id, Op: history.Open, Log: wr.log, Out: history.OK, LSN: uint64(writer.Info().Recovered)})
	wr.mu.Lock()
	defer wr.mu.Unlock()
	wr.writer = writer
	return writer
}

// slot appends and syncs one record after the other while the writer lives.
func (wr *writing) slot(writer *btrlog.Writer) {
	w := wr.w
	for wr.ctx.Err() == nil {
		number := w.number<<32 | w.count.Add(1)
		size := recordHeader + rand.IntN(600)
		switch rand.IntN(200) {
		case 0:
			size = 100 << 10 // over HTTP, and not in one packet
		case 1, 2, 3, 4:
			size = 8 << 10
		}
		if w.bulk.Load() {
			size = bulkBytes
		}
		data := makeRecord(number, size)
		ctx, cancel := context.WithTimeout(context.Background(), appendLimit)
		e := history.Event{Op: history.Append, Log: wr.log, Val: number}
		e.ID = w.rec.Call(e)
		lsn, err := writer.Append(ctx, data)
		if err != nil {
			e.Out, e.Err = history.Failed, err.Error() // definite, as its contract says
		} else if e.LSN, e.Out = uint64(lsn), history.OK; true {
			if err = writer.Sync(ctx, lsn); err != nil {
				e.Out, e.Err = history.Unknown, err.Error()
			}
		}
		w.rec.Return(e)
		cancel()
		if err != nil {
			select {
			case <-writer.Done():
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
		select {
		case <-writer.Done():
			return
		case <-wr.ctx.Done():
		case <-time.After(appendPause):
		}
	}
}

// reading is the reader's side of one log on this host: point reads, tails, and a follower from the first record on.
type reading struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (w *worker) startReading(log string) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &reading{cancel: cancel}
	w.mu.Lock()
	old := w.readers[log]
	w.readers[log] = r
	w.mu.Unlock()
	if old != nil {
		old.cancel()
	}
	r.wg.Go(func() {
		var reader *btrlog.Reader
		for reader == nil {
			var err error
			if reader, err = w.client.OpenReader(ctx, log); err != nil {
				fmt.Fprintln(os.Stderr, "open reader:", err)
				select {
				case <-ctx.Done():
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		}
		r.wg.Go(func() { w.pointReads(ctx, log, reader) })
		r.wg.Go(func() { w.tails(ctx, log, reader) })
		r.wg.Go(func() { w.follow(ctx, log, reader) })
	})
}

func (w *worker) pointReads(ctx context.Context, log string, r *btrlog.Reader) {
	var buf []byte
	for ctx.Err() == nil {
		known := uint64(r.Committed())
		lsn := max(1, known+2-min(known, rand.Uint64N(5)))
		if rand.IntN(2) == 0 && known > 0 {
			lsn = 1 + rand.Uint64N(known)
		}
		e := history.Event{Op: history.Read, Log: log, LSN: lsn}
		e.ID = w.rec.Call(e)
		try, cancel := context.WithTimeout(context.Background(), readLimit)
		out, err := r.Read(try, btrlog.LSN(lsn), buf[:0])
		cancel()
		var be *btrlog.Error
		switch {
		case err == nil:
			e.Out = history.OK
			e.Val, e.Bad = checkRecord(out)
		case errors.Is(err, btrlog.ErrNotFound) && errors.As(err, &be) && be.From != 0:
			e.Out = history.Absent
		case errors.Is(err, btrlog.ErrUnavailable), errors.Is(err, btrlog.ErrOverloaded):
			e.Out, e.Err = history.Failed, err.Error()
		default: // data loss, trimmed, no such log: none of it may be
			e.Out, e.Err, e.Bad = history.Failed, err.Error(), err.Error()
		}
		w.rec.Return(e)
		buf = out
		pause(ctx, readPause)
	}
}

func (w *worker) tails(ctx context.Context, log string, r *btrlog.Reader) {
	for ctx.Err() == nil {
		e := history.Event{Op: history.Tail, Log: log}
		e.ID = w.rec.Call(e)
		try, cancel := context.WithTimeout(context.Background(), readLimit)
		tail, err := r.Tail(try)
		cancel()
		e.LSN, e.Out = uint64(tail), history.OK
		if err != nil {
			e.LSN, e.Out, e.Err = 0, history.Failed, err.Error()
		}
		w.rec.Return(e)
		pause(ctx, tailPause)
	}
}

func (w *worker) follow(ctx context.Context, log string, r *btrlog.Reader) {
	next := btrlog.LSN(1)
	for ctx.Err() == nil {
		for rec, err := range r.Follow(ctx, next) {
			if err != nil {
				if ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, "follow:", err)
					if !errors.Is(err, btrlog.ErrUnavailable) {
						w.rec.Return(history.Event{Op: history.Follow, Log: log, LSN: uint64(next), Out: history.Failed, Bad: err.Error(), Reader: "follower"})
						return
					}
				}
				break
			}
			number, bad := checkRecord(rec.Data)
			w.rec.Return(history.Event{Op: history.Follow, Log: log, LSN: uint64(rec.LSN), Val: number, Bad: bad, Out: history.OK, Reader: "follower"})
			next = rec.LSN + 1
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
