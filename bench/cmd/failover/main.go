// Command failover measures takeovers of a log beside the floor of the same machine in the same run, and prints one JSON object.
// Run it in the directory bench:
//
//	go run ./cmd/failover -takeovers 1000
//
// Three nodes are processes of the built binary; two clients of this process take one log from each other, each time with
// records under way, so that there is a tail to be read and repaired. After every takeover its five floors are taken: twice a
// durable compare-and-swap of a file with as many bytes as the log's record has at that time, by plain system calls on the same
// file system, and three times a quorum write: three processes that receive a datagram, write 4 KiB direct and synced, and answer, of which two are
// waited for.
//
// The floor of a takeover is two compare-and-swaps and three quorum writes: promise, repair, activate. What a takeover does beyond
// that: it reads the log's record, and the tail, and its compare-and-swaps go through the store, whose own sample (store_swap) is no part
// of the floor. An open that finds no tail, because all was known committed, has nothing to repair and is counted all the same.
//
// Further rows are takeovers of logs with other tails. Their floor is the same sum, which knows nothing of the size of a tail.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/localdir"
)

const nodes, quorum = 3, 2

// summary is of samples in microseconds.
type summary struct {
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	Max float64 `json:"max_us"`
}

type result struct {
	FileSystem string `json:"directory"`
	row
	Rows []*row `json:"other_tails"`
}

// row is what was measured of one log.
type row struct {
	Takeovers  int                `json:"takeovers"`
	Records    int                `json:"records_under_way"`
	Bytes      int                `json:"bytes_each"`
	Repaired   int                `json:"repaired_lsns"`
	WithRepair int                `json:"takeovers_with_repair"`
	RecordSize int64              `json:"record_bytes"` // of the log's record at the end
	Stages     map[string]summary `json:"stages"`
	Total      summary            `json:"total"`
	Floors     map[string]summary `json:"floors"`
	// FloorP50 is the sum of the floors' medians, two compare-and-swaps and three quorum writes; FloorP99 that of their p99s.
	FloorP50 float64 `json:"floor_p50_us"`
	FloorP99 float64 `json:"floor_p99_us"`
	RatioP50 float64 `json:"ratio_p50"` // of the first log: must be at most 1.5
	RatioP99 float64 `json:"ratio_p99"` // must be at most 3
	// RatioOfSums is the total's median by the median of what the five floors took together after the same takeover. On a busy machine
	// the median of a sum is well above the sum of the medians, of a takeover and of its floor alike.
	RatioOfSums float64 `json:"ratio_of_sums_p50"`
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == floorRole {
		if err := floorServer(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "failover: floor:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.binary, "btrlog", "", "the binary of the nodes (default: it is built)")
	flag.StringVar(&o.dir, "dir", "", "directory for the nodes; its device is what is measured (default: the directory for temporary files)")
	flag.IntVar(&o.takeovers, "takeovers", 1000, "takeovers")
	flag.IntVar(&o.records, "records", 3, "records of 128 bytes that are under way when the log is taken over")
	flag.IntVar(&o.others, "others", 100, "takeovers for each of the other tails")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	r, err := o.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		os.Exit(1)
	}
}

type options struct {
	binary, dir                string
	takeovers, records, others int
}

func (o *options) run(ctx context.Context) (*result, error) {
	dir, err := os.MkdirTemp(o.dir, "failover-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if o.binary == "" {
		o.binary = filepath.Join(dir, "btrlog")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, ".")
		build.Dir, build.Env = filepath.Join("..", "cmd", "btrlog"), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	store := filepath.Join(dir, "store")
	for i := range nodes {
		id := fmt.Sprintf("n%d", i+1)
		_, stop, err := process(ctx, o.binary, "ready at", "node", "--id", id, "--dir", filepath.Join(dir, id), "--listen", "127.0.0.1:0", "--store", "file://"+store)
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	floor, err := newFloor(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer floor.stop()
	return o.measure(ctx, dir, store, floor)
}

func (o *options) measure(ctx context.Context, dir, store string, floor *floor) (*result, error) {
	m := &meter{floor: floor}
	for i := range m.clients {
		c, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: "file://" + store, Name: fmt.Sprintf("client %d", i), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, err
		}
		defer c.Close()
		m.clients[i] = c
	}
	var err error
	if m.store, err = newStoreSwap(ctx, store); err != nil {
		return nil, err
	}
	if m.swap, err = newFloorSwap(filepath.Join(dir, "floor-swap")); err != nil {
		return nil, err
	}
	defer m.swap.close()
	r := &result{FileSystem: dir, row: row{Takeovers: o.takeovers, Records: o.records, Bytes: 128}}
	r.Rows = []*row{{Takeovers: o.others}, {Takeovers: o.others, Records: 64, Bytes: 128}, {Takeovers: o.others, Records: 64, Bytes: 16 << 10}}
	for i, w := range append([]*row{&r.row}, r.Rows...) {
		if w.Takeovers > 0 {
			err = m.measure(ctx, fmt.Sprintf("wal-%d", i), w)
		}
		if err != nil {
			return nil, fmt.Errorf("%d records of %d bytes: %w", w.Records, w.Bytes, err)
		}
	}
	return r, nil
}

// meter takes the samples.
type meter struct {
	clients [2]*btrlog.Client
	floor   *floor
	swap    *floorSwap
	store   *storeSwap
}

const warmUp = 10

// fiveFloors are the floors of one takeover, in the order of its stages.
type fiveFloors struct {
	swaps  [2]time.Duration
	writes [3]time.Duration
}

func (m *meter) floors(body []byte) (f fiveFloors, err error) {
	if f.swaps[0], err = m.swap.once(body); err != nil {
		return f, err
	}
	for i := range f.writes {
		if i == 2 {
			body[len(body)-1] ^= 1 // another record than the last one
			if f.swaps[1], err = m.swap.once(body); err != nil {
				return f, err
			}
		}
		if f.writes[i], err = m.floor.write(); err != nil {
			return f, err
		}
	}
	return f, nil
}

func (m *meter) measure(ctx context.Context, name string, r *row) error {
	if _, err := m.clients[0].Create(ctx, name, btrlog.LogOptions{}); err != nil {
		return err
	}
	w, err := m.clients[1].OpenWriter(ctx, name, btrlog.WriterOptions{})
	if err != nil {
		return err
	}
	stages := make(map[string][]float64)
	floors := make(map[string][]float64)
	add := func(m map[string][]float64, what string, d time.Duration) {
		m[what] = append(m[what], float64(d.Nanoseconds())/1e3)
	}
	record := make([]byte, max(r.Bytes, 128))
	for i := range r.Takeovers + warmUp {
		last, err := w.Append(ctx, record)
		if err == nil {
			err = w.Sync(ctx, last)
		}
		for range r.Records {
			if err == nil {
				_, err = w.Append(ctx, record)
			}
		}
		if err != nil {
			return err
		}
		next, err := m.clients[i%2].OpenWriter(ctx, name, btrlog.WriterOptions{})
		if err != nil {
			return err
		}
		if err := w.Close(ctx); err != nil && !errors.Is(err, btrlog.ErrFenced) {
			return err
		}
		w = next
		if r.RecordSize, err = m.store.size(ctx, "logs/"+name+".json"); err != nil {
			return err
		}
		body := fmt.Appendf(nil, "%-*d", r.RecordSize, i)
		f, err := m.floors(body)
		if err != nil {
			return err
		}
		own, err := m.store.once(ctx, body)
		if err != nil {
			return err
		}
		if i < warmUp {
			continue
		}
		info := w.Info()
		t := info.Opened
		for what, d := range map[string]time.Duration{"token": t.Token, "fence": t.Fence, "tail": t.Tail, "repair": t.Repair, "record": t.Record,
			"activate": t.Activate, "total": t.Total()} {
			add(stages, what, d)
		}
		var sum time.Duration
		for _, d := range f.swaps {
			add(floors, "compare_and_swap", d)
			sum += d
		}
		for _, d := range f.writes {
			add(floors, "quorum_write", d)
			sum += d
		}
		add(floors, "all_five", sum)
		add(floors, "store_swap", own)
		r.Repaired += info.Repaired
		if info.Repaired > 0 {
			r.WithRepair++
		}
	}
	r.Stages, r.Floors = make(map[string]summary), make(map[string]summary)
	for what, v := range stages {
		r.Stages[what] = summarise(v)
	}
	r.Total = r.Stages["total"]
	delete(r.Stages, "total")
	for what, v := range floors {
		r.Floors[what] = summarise(v)
	}
	cas, write := r.Floors["compare_and_swap"], r.Floors["quorum_write"]
	r.FloorP50, r.FloorP99 = 2*cas.P50+3*write.P50, 2*cas.P99+3*write.P99
	r.RatioOfSums = round(r.Total.P50 / r.Floors["all_five"].P50)
	r.RatioP50, r.RatioP99 = round(r.Total.P50/r.FloorP50), round(r.Total.P99/r.FloorP99)
	return w.Close(ctx)
}

func summarise(v []float64) summary {
	slices.Sort(v)
	at := func(q float64) float64 { return round(v[min(len(v)-1, int(q*float64(len(v))))]) }
	return summary{at(0.5), at(0.99), at(1)}
}

func round(x float64) float64 { return math.Round(x*100) / 100 }

// storeSwap is the store's compare-and-swap by itself.
type storeSwap struct {
	store objstore.Store
	etag  string
}

func newStoreSwap(ctx context.Context, dir string) (*storeSwap, error) {
	s, err := localdir.Open(dir, localdir.Options{})
	if err != nil {
		return nil, err
	}
	info, err := s.Put(ctx, "floor/record", []byte("first"), nil, objstore.IfAbsent())
	return &storeSwap{store: s, etag: info.ETag}, err
}

func (s *storeSwap) size(ctx context.Context, key string) (int64, error) {
	info, err := s.store.Head(ctx, key)
	return info.Size, err
}

func (s *storeSwap) once(ctx context.Context, body []byte) (time.Duration, error) {
	began := time.Now()
	info, err := s.store.Put(ctx, "floor/record", body, nil, objstore.IfMatch(s.etag))
	s.etag = info.ETag
	return time.Since(began), err
}

// process starts a program and waits for the line that says it is ready.
func process(ctx context.Context, name, ready string, args ...string) (line string, stop func(), err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
	var b [1]byte
	var text strings.Builder
	for {
		if _, err := out.Read(b[:]); err != nil {
			stop()
			return "", nil, fmt.Errorf("%s ended before it was ready: %q", name, text.String())
		}
		if b[0] == '\n' {
			break
		}
		text.WriteByte(b[0])
	}
	if line = text.String(); !strings.Contains(line, ready) {
		stop()
		return "", nil, fmt.Errorf("%s said %q", name, line)
	}
	return line, stop, nil
}
