//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/torture/history"
)

// command is a line that a worker reads, answer the one that it prints when it is done.
type command struct {
	ID   uint64   `json:"id"`
	Do   string   `json:"do"`
	Log  string   `json:"log,omitempty"`
	Logs []string `json:"logs,omitempty"`
	// Nodes of a log to create. From and To of a replacement.
	Nodes    []string `json:"nodes,omitempty"`
	From     string   `json:"from,omitempty"`
	To       string   `json:"to,omitempty"`
	On       bool     `json:"on,omitempty"`
	LimitSec float64  `json:"limit_s,omitempty"` // how long it may take
}

type answer struct {
	ID  uint64 `json:"id"`
	Err string `json:"err,omitempty"`
}

// worker is the process of a client host: it writes and reads logs with the public package as it is told, and notes what
// it does and sees in a history file.
type worker struct {
	name   string
	number uint64 // of this process, among all workers of the run
	client *btrlog.Client
	rec    *history.Recorder
	count  atomic.Uint64
	bulk   atomic.Bool

	mu      sync.Mutex
	writers map[string]*writing
	readers map[string]*reading
	out     sync.Mutex
}

func runWorker(args []string) error {
	fs := flag.NewFlagSet("torture worker", flag.ContinueOnError)
	w := &worker{writers: make(map[string]*writing), readers: make(map[string]*reading)}
	var cfg btrlog.Config
	fs.StringVar(&w.name, "name", "", "name of the client host")
	fs.Uint64Var(&w.number, "number", 0, "number of this process among all workers")
	path := fs.String("history", "", "history file to make")
	nodes := fs.String("nodes", "", "addresses of nodes")
	fs.StringVar(&cfg.StoreURL, "store", "", "URL of the store, instead of nodes")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *nodes != "" {
		cfg.Nodes = strings.Split(*nodes, ",")
	}
	cfg.Name = w.name
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	var err error
	if w.rec, err = history.Create(*path); err != nil {
		return err
	}
	// A worker can be started while the network is at its worst.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		if w.client, err = btrlog.Connect(ctx, cfg); err == nil {
			break
		}
		fmt.Fprintln(os.Stderr, "connect:", err)
		if ctx.Err() != nil || errors.Is(err, btrlog.ErrInvalid) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond): // between two tries
		}
	}
	w.reply(0, nil)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var c command
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			return fmt.Errorf("command %q: %w", in.Text(), err)
		}
		switch c.Do {
		case "write", "yield", "read": // at once, and in the order in which they come
			w.reply(c.ID, w.do(c))
		default:
			go func() { w.reply(c.ID, w.do(c)) }()
		}
	}
	return w.rec.Err()
}

func (w *worker) reply(id uint64, err error) {
	a := answer{ID: id}
	if err != nil {
		a.Err = err.Error()
	}
	line, _ := json.Marshal(a) // a number and a text
	w.out.Lock()
	defer w.out.Unlock()
	_, _ = os.Stdout.Write(append(line, '\n')) // the parent is gone, and so will this process be
}

func (w *worker) do(c command) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.LimitSec*float64(time.Second)))
	defer cancel()
	switch c.Do {
	case "create":
		return insist(ctx, func() error {
			_, err := w.client.Create(ctx, c.Log, btrlog.LogOptions{Nodes: c.Nodes, SegmentBytes: 1 << 20, FlushAge: 10 * time.Second})
			if errors.Is(err, btrlog.ErrExists) {
				return nil // by an earlier try
			}
			return err
		})
	case "write":
		w.startWriting(c.Log)
	case "yield": // to the next writer, which is on another host
		w.yield(c.Log)
	case "read":
		w.startReading(c.Log)
	case "end":
		return w.end(ctx, c.Log)
	case "bulk":
		w.bulk.Store(c.On)
	case "replace":
		return w.replace(ctx, c.Logs, c.From, c.To)
	case "settle":
		return w.settle(ctx, c.Log)
	case "verify":
		return w.verify(ctx, c.Log)
	case "check":
		return w.rec.Err()
	default:
		return fmt.Errorf("unknown command %q", c.Do)
	}
	return nil
}

// insist repeats what may be repeated until ctx ends.
func insist(ctx context.Context, f func() error) error {
	for {
		err := f()
		var e *btrlog.Error
		if err == nil || ctx.Err() != nil || !errors.As(err, &e) || errors.Is(err, btrlog.ErrInvalid) || errors.Is(err, btrlog.ErrNotFound) {
			return err
		}
		fmt.Fprintln(os.Stderr, "again:", err)
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// end stops the workload of a log on this host; a writer that is open is drained.
func (w *worker) end(ctx context.Context, log string) error {
	w.mu.Lock()
	r, wr := w.readers[log], w.writers[log]
	delete(w.readers, log)
	w.mu.Unlock()
	if wr != nil {
		if err := wr.end(ctx); err != nil {
			return err
		}
	}
	if r != nil {
		r.cancel()
		r.wg.Wait()
	}
	return nil
}

// replace exchanges a node of logs, or adopts its new disk if both names are the same: by the writer that is open here, or
// by a writer for this purpose.
func (w *worker) replace(ctx context.Context, logs []string, from, to string) error {
	var wg sync.WaitGroup
	errs := make([]error, len(logs))
	slots := make(chan struct{}, 4)
	for i, log := range logs {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = insist(ctx, func() error { return w.replaceOne(ctx, log, from, to) })
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (w *worker) replaceOne(ctx context.Context, log, from, to string) error {
	info, err := w.client.Info(ctx, log)
	if err != nil {
		return err
	}
	due := false
	for _, n := range info.Nodes {
		due = due || n.Name == from && (from != to || n.Replaced)
	}
	if !due {
		return nil
	}
	o := btrlog.WriterOptions{Replace: map[string]string{from: to}}
	// Where the workload's writer is about to open the log, it is waited for: another open would take the log from it, for good.
	open := w.writing(log).wait(ctx)
	try, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if open != nil {
		return open.Reopen(try, o)
	}
	writer, err := w.client.OpenWriter(try, log, o)
	if err != nil {
		return err
	}
	return writer.Close(try)
}

// settle opens the log once more, so that what is undecided is decided.
func (w *worker) settle(ctx context.Context, log string) error {
	return insist(ctx, func() error {
		id := w.rec.Call(history.Event{Op: history.Open, Log: log})
		writer, err := w.client.OpenWriter(ctx, log, btrlog.WriterOptions{})
		if err != nil {
			w.rec.Return(history.Event{ID: id, Op: history.Open, Log: log, Out: history.Failed, Err: err.Error()})
			return err
		}
		w.rec.Return(history.Event{ID: id, Op: history.Open, Log: log, Out: history.OK, LSN: uint64(writer.Info().Recovered)})
		return writer.Close(ctx)
	})
}

// verify reads the log whole, with a new reader. Events of a scan that failed are followed by a whole one under another name.
func (w *worker) verify(ctx context.Context, log string) error {
	return insist(ctx, func() error {
		name := fmt.Sprintf("%s.%d", w.name, w.number)
		r, err := w.client.OpenReader(ctx, log)
		if err != nil {
			return err
		}
		tail, err := r.Tail(ctx)
		if err != nil {
			return err
		}
		events := make([]history.Event, 0, tail)
		if tail > 0 {
			for rec, err := range r.Scan(ctx, 1, tail) {
				if err != nil {
					if !errors.Is(err, btrlog.ErrUnavailable) && !errors.Is(err, btrlog.ErrOverloaded) || ctx.Err() != nil {
						w.rec.Return(history.Event{Op: history.Final, Log: log, LSN: uint64(tail), Out: history.Failed, Err: err.Error(), Reader: name})
					}
					return err
				}
				number, bad := checkRecord(rec.Data)
				events = append(events, history.Event{Op: history.Final, Log: log, LSN: uint64(rec.LSN), Val: number, Bad: bad, Reader: name})
			}
		}
		for _, e := range events {
			w.rec.Return(e)
		}
		w.rec.Return(history.Event{Op: history.Final, Log: log, LSN: uint64(tail), Out: history.OK, Reader: name})
		return nil
	})
}
