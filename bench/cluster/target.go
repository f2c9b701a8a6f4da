package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/bench/load"
)

// Target is the public client of the product. Kind and Connect make it a client process of package load.
type Target struct {
	c      *btrlog.Client
	o      btrlog.LogOptions
	prefix string
	batch  int

	mu   sync.Mutex
	logs []*openLog
}

// Kind is the name of Connect for load.ServeClient.
const Kind = "btrlog"

// openLog is a writer, and the appends under way. Those are in a ring by LSN, as many as the window has.
type openLog struct {
	w       *btrlog.Writer
	mu      sync.Mutex
	waiting []load.Completion
	next    btrlog.LSN // the lowest that nobody was told of
	last    btrlog.LSN
	err     error
}

// window is that of a log unless it is told otherwise: LogOptions' default.
const window = 1024

// Connect is the client of the cluster whose words (Client) these are.
func Connect(ctx context.Context, words []string) (load.Target, error) {
	if len(words) != 7 {
		return nil, fmt.Errorf("%d words; they are store, prefix, nodes, quorum, durability, window, batch", len(words))
	}
	n, err1 := strconv.Atoi(words[2])
	q, err2 := strconv.Atoi(words[3])
	w, err3 := strconv.Atoi(words[5])
	b, err4 := strconv.Atoi(words[6])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	if w == 0 {
		w = window
	}
	c, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: words[0], Name: "bench", Timeout: time.Minute,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		return nil, err
	}
	return &Target{c: c, prefix: words[1], batch: max(1, b), o: btrlog.LogOptions{N: n, Qw: q, Durability: btrlog.Durability(words[4]), Window: w}}, nil
}

// openers is how many logs are opened at a time.
const openers = 16

func (t *Target) Open(ctx context.Context, logs int) error {
	first := len(t.logs)
	if logs <= first {
		return nil
	}
	made, errs := make([]*openLog, logs-first), make([]error, logs-first)
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(openers, len(made)) {
		wg.Go(func() {
			for i := range next {
				made[i], errs[i] = t.open(ctx, first+i)
			}
		})
	}
	for i := range made {
		next <- i
	}
	close(next)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	t.mu.Lock()
	t.logs = append(t.logs, made...)
	t.mu.Unlock()
	return nil
}

func (t *Target) open(ctx context.Context, i int) (*openLog, error) {
	name := fmt.Sprintf("%s%d", t.prefix, i)
	if _, err := t.c.Create(ctx, name, t.o); err != nil && !errors.Is(err, btrlog.ErrExists) {
		return nil, err
	}
	w, err := t.c.OpenWriter(ctx, name, btrlog.WriterOptions{})
	if err != nil {
		return nil, err
	}
	l := &openLog{w: w, waiting: make([]load.Completion, t.o.Window), next: w.Committed() + 1}
	w.OnCommit(func(lsn btrlog.LSN) { l.done(lsn, nil) })
	go func() { // ends with the client
		<-w.Done()
		l.lost(w.Err())
	}()
	return l, nil
}

func (t *Target) Append(log int, record []byte, c load.Completion) error {
	l := t.logs[log]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	n := btrlog.LSN(len(l.waiting))
	if l.last+btrlog.LSN(t.batch) > l.next+n-1 && l.last != 0 { // the client has space, but we have not been told yet
		return load.ErrRefused
	}
	first, lsn, err := t.appendTo(l.w, record)
	if errors.Is(err, btrlog.ErrWindowFull) {
		return load.ErrRefused
	}
	if err != nil {
		return err
	}
	if l.next > lsn || l.last == 0 {
		l.next = first // of ours
	}
	l.last = lsn
	l.waiting[lsn%n] = c
	return nil
}

// appendTo appends one record, or a batch of records like it for which there is space.
func (t *Target) appendTo(w *btrlog.Writer, record []byte) (first, last btrlog.LSN, err error) {
	if t.batch == 1 {
		last, err = w.TryAppend(record)
		return last, last, err
	}
	batch := make([][]byte, t.batch)
	for i := range batch {
		batch[i] = record
	}
	return w.AppendBatch(context.Background(), batch)
}

// done tells those up to lsn.
func (l *openLog) done(lsn btrlog.LSN, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := btrlog.LSN(len(l.waiting))
	for ; l.next <= min(lsn, l.last); l.next++ {
		c := l.waiting[l.next%n]
		l.waiting[l.next%n] = nil
		if c != nil { // Closed appends have nobody to be told
			c.Done(err)
		}
	}
}

func (l *openLog) lost(err error) {
	l.mu.Lock()
	if err == nil {
		err = btrlog.ErrClosed
	}
	l.err = err
	last := l.last
	l.mu.Unlock()
	l.done(last, err)
}

func (t *Target) Closed(ctx context.Context, count int, record []byte) ([]time.Duration, error) {
	l := t.logs[0]
	took, err := load.ClosedLoop(count, func() error {
		lsn, err := l.w.Append(ctx, record)
		if err != nil {
			return err
		}
		return l.w.Sync(ctx, lsn)
	})
	l.mu.Lock()
	l.next, l.last = l.w.Committed()+1, 0
	l.mu.Unlock()
	return took, err
}

func (t *Target) Close() error { return t.c.Close() }
