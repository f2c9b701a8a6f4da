package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/btrlog/btrlog"
)

// clientRole makes this program the client's process: it does what each line of its input says, and answers with one line.
const clientRole = "client-process"

const recordBytes = 128

// order is one line of input.
type order struct {
	Do string // open, pipeline, callers, open-loop
	// open: so many logs Log0, Log1 … of all nodes.
	Log        string
	Count      int
	Durability btrlog.Durability
	Window     int
	Segment    int64
	// pipeline: one goroutine has Depth appends in flight; callers: Depth goroutines append and sync one record at a time.
	Depth int
	// open-loop: Rate appends per second at exponential distances, each to one of the logs at random.
	Rate float64
	Seed uint64
	For  time.Duration
	// open: every so many-th append of these logs is traced, as btrlog.Config.TraceEvery has it; pipeline: Traces are wanted.
	TraceEvery int
	Traces     bool
}

// answer is one line of output.
type answer struct {
	Error     string
	Committed int // appends that were committed
	Refused   int // append window full: the record was given no LSN
	Offered   int // of an open loop
	Seconds   float64
	P50, P99  float64 // µs, from the call, or the scheduled time of an open loop, to the commit
	P999, Max float64
	Processor float64           // µs of the client's processor time per commit
	Mallocs   float64           // per commit
	Pauses    int               // of garbage collections
	PauseMax  float64           // µs
	Calls     map[string]uint64 // system calls on the socket
	Sent      uint64            // datagrams
	Traces    []stages          // of this block
	Queue     *queue            // of an open loop of one log
}

// queue says what the latencies of an open loop are made of. An append is admitted when at most window-1 others are not committed, and
// commits are in order: so it waits, whatever lies between, for as long as the nodes need for a window of appends, and the queue is no deeper
// than the window. Times are µs at the 99th percentile.
type queue struct {
	Late     float64 // from the scheduled time until the generator came to it
	Admitted float64 // from then to the commit
	Served   float64 // in which a window of appends was committed, each one of the block as the last of it
}

type client struct {
	store string
	c     *btrlog.Client         // of most logs
	trace map[int]*btrlog.Client // of others, by TraceEvery
	of    map[string]*btrlog.Client
	logs  map[string][]*btrlog.Writer
	all   []arrival // of an open loop, used again: making it anew would have garbage collected, at the cost of what is measured
}

// connect connects a client that traces every so many-th append.
func (k *client) connect(ctx context.Context, every int) (*btrlog.Client, error) {
	if c := k.trace[every]; c != nil {
		return c, nil
	}
	c, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: k.store, Name: "appendpath", Timeout: time.Minute, TraceEvery: every,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err == nil {
		k.trace[every] = c
	}
	return c, err
}

// runClient is the client's process.
func runClient(ctx context.Context, store string) error {
	k := &client{store: store, trace: map[int]*btrlog.Client{}, of: map[string]*btrlog.Client{}, logs: map[string][]*btrlog.Writer{}}
	defer func() {
		for _, c := range k.trace {
			_ = c.Close() // the process ends
		}
	}()
	var err error
	if k.c, err = k.connect(ctx, 0); err != nil {
		return err
	}
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	fmt.Println("ready")
	for in.Scan() {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			return err
		}
		a, err := k.do(ctx, &o)
		if err != nil {
			a = &answer{Error: err.Error()}
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return in.Err()
}

func (k *client) do(ctx context.Context, o *order) (*answer, error) {
	if o.Do == "open" {
		return &answer{}, k.open(ctx, o)
	}
	ws := k.logs[o.Log]
	if len(ws) == 0 {
		return nil, fmt.Errorf("no log %s", o.Log)
	}
	c, from := k.of[o.Log], ws[0].Committed()
	m := begin(c)
	var took []time.Duration
	var a answer
	var all []arrival
	var err error
	switch o.Do {
	case "pipeline":
		took, err = pipeline(ctx, ws[0], o.Depth, o.For)
	case "callers":
		took, err = callers(ctx, ws[0], o.Depth, o.For)
	case "open-loop":
		all, a.Offered, a.Refused, err = k.openLoop(ctx, ws, o)
		took = latencies(all)
	default:
		err = fmt.Errorf("unknown order %q", o.Do)
	}
	if err != nil {
		return nil, err
	}
	m.end(&a, took)
	if len(all) > 0 && len(ws) == 1 {
		a.Queue = queueOf(all, ws[0].Info().Window) // its time is none of the block's
	}
	if o.Traces {
		a.Traces, err = traced(ctx, c, ws[0], ws[0].Info().Qw, from)
	}
	return &a, err
}

// open makes logs and opens them, some at a time.
func (k *client) open(ctx context.Context, o *order) error {
	c, err := k.connect(ctx, o.TraceEvery)
	if err != nil {
		return err
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return err
	}
	n := len(nodes)
	ws, errs := make([]*btrlog.Writer, o.Count), make([]error, o.Count)
	var wg sync.WaitGroup
	next := atomic.Int64{}
	for range min(o.Count, 16) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(o.Count); i = next.Add(1) - 1 {
				name := fmt.Sprintf("%s%d", o.Log, i)
				if _, errs[i] = c.Create(ctx, name, btrlog.LogOptions{N: n, Qw: n/2 + 1, Durability: o.Durability, Window: o.Window, SegmentBytes: o.Segment}); errs[i] == nil {
					ws[i], errs[i] = c.OpenWriter(ctx, name, btrlog.WriterOptions{})
				}
			}
		})
	}
	wg.Wait()
	k.logs[o.Log], k.of[o.Log] = ws, c
	return errors.Join(errs...)
}

// pipeline has depth appends in flight. The time of a record is up to the moment at which this goroutine sees it committed.
func pipeline(ctx context.Context, w *btrlog.Writer, depth int, length time.Duration) ([]time.Duration, error) {
	began := time.Now()
	took, given := make([]time.Duration, 0, 1<<16), make([]time.Duration, depth)
	record := make([]byte, recordBytes)
	var first, last, seen btrlog.LSN
	see := func() {
		at := time.Since(began)
		for c := min(w.Committed(), last); seen < c; {
			seen++
			took = append(took, at-given[int(seen)%depth])
		}
	}
	for at := time.Duration(0); at < length; at = time.Since(began) {
		lsn, err := w.Append(ctx, record)
		if err != nil {
			return nil, err
		}
		if first == 0 {
			first, seen = lsn, lsn-1
		}
		given[int(lsn)%depth], last = at, lsn
		if lsn < first+btrlog.LSN(depth-1) {
			continue
		}
		if err := w.Sync(ctx, lsn-btrlog.LSN(depth-1)); err != nil {
			return nil, err
		}
		see()
	}
	err := w.Sync(ctx, last)
	see()
	return took, err
}

// callers are n goroutines that append and sync one record at a time.
func callers(ctx context.Context, w *btrlog.Writer, n int, length time.Duration) ([]time.Duration, error) {
	took, errs := make([][]time.Duration, n), make([]error, n)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range n {
		wg.Go(func() {
			record := make([]byte, recordBytes)
			took[i] = make([]time.Duration, 0, 1<<13)
			for at := time.Duration(0); at < length && errs[i] == nil; {
				lsn, err := w.Append(ctx, record)
				if err == nil {
					err = w.Sync(ctx, lsn)
				}
				errs[i] = err
				then := time.Since(began)
				took[i] = append(took[i], then-at)
				at = then
			}
		})
	}
	wg.Wait()
	return slices.Concat(took...), errors.Join(errs...)
}

// arrival is a record that an open loop has given to a log and waits for.
type arrival struct {
	log                   int // not the writer itself: without pointers the collector need not look at these
	lsn                   btrlog.LSN
	due, given, committed time.Duration // scheduled; when the generator had woken for it; seen to be committed
}

func latencies(all []arrival) []time.Duration {
	took := make([]time.Duration, len(all))
	for i := range all {
		took[i] = all[i].committed - all[i].due
	}
	return took
}

func queueOf(all []arrival, window int) *queue {
	var q queue
	for _, x := range []struct {
		to   *float64
		from int
		of   func(i int) time.Duration
	}{
		{&q.Late, 0, func(i int) time.Duration { return all[i].given - all[i].due }},
		{&q.Admitted, 0, func(i int) time.Duration { return all[i].committed - all[i].given }},
		{&q.Served, window, func(i int) time.Duration { return all[i].committed - all[i-window].committed }},
	} {
		if x.from >= len(all) {
			continue
		}
		v := make([]time.Duration, 0, len(all)-x.from)
		for i := x.from; i < len(all); i++ {
			v = append(v, x.of(i))
		}
		slices.Sort(v)
		*x.to = micro(v[min(len(v)-1, len(v)*99/100)])
	}
	return &q
}

// openLoop appends at exponential distances, whatever becomes of it, and waits for no space: what the window refuses counts as refused.
// One goroutine sends what is due and sleeps in the kernel until the next is, another waits for the commits in the order of sending.
func (k *client) openLoop(ctx context.Context, ws []*btrlog.Writer, o *order) (all []arrival, offered, refused int, err error) {
	rng := rand.New(rand.NewPCG(o.Seed, 1))
	if most := 1024 + int(2*o.Rate*o.For.Seconds()); cap(k.all) < most {
		k.all = make([]arrival, 0, most)
	}
	all = k.all[:0]
	room := all[:cap(all)]
	sent := make(chan int, cap(all)) // so many of all are given to a log
	failed := make(chan error, 1)
	began := time.Now()
	go func() {
		defer close(failed)
		for i := range sent {
			a := &room[i]
			if w := ws[a.log]; w.Committed() < a.lsn {
				if err := w.Sync(ctx, a.lsn); err != nil {
					failed <- err
					for range sent {
					}
					return
				}
			}
			a.committed = time.Since(began)
		}
	}()
	least := 50 * time.Microsecond // so many at once, rather than a wake-up for each
	if o.Rate < 10_000 {
		least = 0
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerslack, 1, 0) // wakes in time; without it some 50 µs late
	}
	record := make([]byte, recordBytes)
	due, now := time.Duration(0), time.Duration(0)
	for {
		due += time.Duration(rng.ExpFloat64() / o.Rate * 1e9)
		if due > o.For {
			break
		}
		if now < due {
			if now = time.Since(began); now < due {
				ts := syscall.NsecToTimespec(int64(max(due-now, least)))
				_ = syscall.Nanosleep(&ts, nil) // an early wake sends early by a little
				now = time.Since(began)
			}
		}
		offered++
		log := 0
		if len(ws) > 1 {
			log = rng.IntN(len(ws))
		}
		lsn, err := ws[log].TryAppend(record)
		e, _ := err.(*btrlog.Error) // that is what all errors are; errors.Is allocates
		switch {
		case err == nil:
			if len(all) == cap(all) {
				close(sent)
				return nil, 0, 0, errors.Join(fmt.Errorf("more than %d arrivals", cap(all)), <-failed)
			}
			all = append(all, arrival{log: log, lsn: lsn, due: due, given: max(now, due)}) // in place: the other sees it
			sent <- len(all) - 1
		case e != nil && e.Kind == btrlog.ErrWindowFull:
			refused++
		default:
			close(sent)
			return nil, 0, 0, errors.Join(err, <-failed)
		}
	}
	close(sent)
	err = <-failed // and so the other has ended
	return all, offered, refused, err
}

const prSetTimerslack = 29

// meter is what was counted when a block began.
type meter struct {
	c      *btrlog.Client
	at     time.Time
	cpu    time.Duration
	memory runtime.MemStats
	calls  map[string]uint64
	sent   uint64
}

func begin(c *btrlog.Client) *meter {
	m := &meter{c: c}
	m.calls, m.sent = calls(c)
	runtime.ReadMemStats(&m.memory)
	m.cpu, m.at = ownProcessor(), time.Now()
	return m
}

func (m *meter) end(a *answer, took []time.Duration) {
	n := float64(max(1, len(took)))
	a.Committed, a.Seconds = len(took), time.Since(m.at).Seconds()
	a.Processor = micro(ownProcessor()-m.cpu) / n
	before := m.memory
	runtime.ReadMemStats(&m.memory)
	a.Mallocs = float64(m.memory.Mallocs-before.Mallocs) / n
	a.Pauses = int(m.memory.NumGC - before.NumGC)
	for i := before.NumGC; i < m.memory.NumGC && m.memory.NumGC-i <= 256; i++ {
		a.PauseMax = max(a.PauseMax, float64(m.memory.PauseNs[i%256])/1e3)
	}
	now, sent := calls(m.c)
	a.Calls, a.Sent = map[string]uint64{}, sent-m.sent
	for k, v := range now {
		a.Calls[k] = v - m.calls[k]
	}
	if len(took) > 0 {
		slices.Sort(took)
		at := func(q float64) float64 { return micro(took[min(len(took)-1, int(q*float64(len(took))))]) }
		a.P50, a.P99, a.P999, a.Max = at(0.5), at(0.99), at(0.999), at(1)
	}
}

// calls reads the client's counters.
func calls(c *btrlog.Client) (byKind map[string]uint64, sent uint64) {
	byKind = map[string]uint64{}
	for _, f := range c.Metrics() {
		for _, s := range f.Samples {
			switch {
			case f.Desc.Name == "btrlog_client_system_calls_total":
				byKind[s.Labels[0]] += uint64(s.Value)
			case f.Desc.Name == "btrlog_client_datagrams_total" && s.Labels[0] == "sent":
				sent = uint64(s.Value)
			}
		}
	}
	return byKind, sent
}

func ownProcessor() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func micro(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
