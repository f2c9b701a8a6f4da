package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/btrlog/btrlog"
)

// idleResult is what many idle logs cost. Bytes.
type idleResult struct {
	Logs int `json:"logs"`
	// CreateSeconds and OpenSeconds are for all logs, 64 at a time: Create; OpenWriter, one append and its Sync.
	CreateSeconds float64 `json:"create_seconds"`
	OpenSeconds   float64 `json:"open_and_append_seconds"`
	Client        usage   `json:"client"`
	Nodes         []usage `json:"nodes"`
	// FilesPerShard are the engine's files: the active one, and the next one, preallocated.
	FilesPerShard []map[string]int `json:"segment_files_per_shard"`
	Passed        bool             `json:"passed"` // at most 64 KiB per idle log on the client and on each node, memory fell, files did not grow
}

// usage is the memory of one process.
type usage struct {
	ResidentBefore int64 `json:"resident_before"` // without a log
	ResidentPeak   int64 `json:"resident_peak"`
	ResidentIdle   int64 `json:"resident_idle"` // the lowest while idle
	HeapBefore     int64 `json:"heap_before"`
	HeapIdle       int64 `json:"heap_idle"` // the lowest while idle; of a node it includes garbage
	// PerLog is the growth of the resident memory, and HeapPerLog that of the heap, from before to idle, for each log.
	PerLog     int64 `json:"resident_per_log"`
	HeapPerLog int64 `json:"heap_per_log"`
	// SettledSeconds is how long after the last append the resident memory first was within a tenth of its lowest.
	SettledSeconds float64 `json:"settled_seconds"`
	// IdlePercent is the processor time of the idle process, in percent of one core; on the client with the garbage collections of
	// the measurement.
	IdlePercent float64 `json:"idle_cpu_percent"`
}

const idleBound = 64 << 10

type idleProbe struct {
	pid  int
	heap func() (int64, error)
	usage
	seen []int64
	cpu  time.Duration // when it was idle first
}

func (p *idleProbe) before() (err error) {
	p.ResidentBefore, _, err = memoryOf(p.pid)
	if err == nil {
		p.HeapBefore, err = p.heap()
	}
	return err
}

func (p *idleProbe) look() error {
	resident, peak, err := memoryOf(p.pid)
	if err != nil {
		return err
	}
	heap, err := p.heap()
	if err != nil {
		return err
	}
	p.seen = append(p.seen, resident)
	p.ResidentPeak = max(p.ResidentPeak, peak)
	if p.ResidentIdle == 0 || resident < p.ResidentIdle {
		p.ResidentIdle = resident
	}
	if p.HeapIdle == 0 || heap < p.HeapIdle {
		p.HeapIdle = heap
	}
	return nil
}

func (p *idleProbe) result(logs int, every time.Duration) usage {
	u := p.usage
	u.PerLog, u.HeapPerLog = (u.ResidentIdle-u.ResidentBefore)/int64(logs), (u.HeapIdle-u.HeapBefore)/int64(logs)
	for i, r := range p.seen {
		if r <= u.ResidentIdle+u.ResidentIdle/10 {
			u.SettledSeconds = (time.Duration(i) * every).Seconds()
			break
		}
	}
	return u
}

func ownHeap() (int64, error) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), nil
}

func (o *options) idle(ctx context.Context) (any, error) {
	set(&o.logs, 10_000)
	set(&o.shards, 1)
	c, client, err := o.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	defer client.Close()
	probes := []*idleProbe{{pid: os.Getpid(), heap: ownHeap}}
	for _, n := range c.nodes {
		probes = append(probes, &idleProbe{pid: n.cmd.Process.Pid, heap: func() (int64, error) {
			m, err := n.metrics()
			return int64(m["go_memstats_heap_inuse_bytes"]), err
		}})
	}
	for _, p := range probes {
		if err := p.before(); err != nil {
			return nil, err
		}
	}
	res := idleResult{Logs: o.logs}
	name := func(i int) string { return fmt.Sprintf("idle-%05d", i) }
	began := time.Now()
	if err := each(ctx, o.logs, 64, func(i int) error {
		_, err := client.Create(ctx, name(i), btrlog.LogOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	res.CreateSeconds = time.Since(began).Seconds()
	writers := make([]*btrlog.Writer, o.logs)
	began = time.Now()
	if err := each(ctx, o.logs, 64, func(i int) error {
		w, err := client.OpenWriter(ctx, name(i), btrlog.WriterOptions{})
		if err != nil {
			return err
		}
		writers[i] = w
		lsn, err := w.Append(ctx, fmt.Appendf(nil, "the only record of log %d", i))
		if err != nil {
			return err
		}
		return w.Sync(ctx, lsn)
	}); err != nil {
		return nil, err
	}
	res.OpenSeconds = time.Since(began).Seconds()
	const every = 5 * time.Second
	fmt.Fprintf(os.Stderr, "%d logs are open after %.0f s; idle for %v\n", o.logs, res.CreateSeconds+res.OpenSeconds, o.settle)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for _, p := range probes {
		if p.cpu, err = processorTime(p.pid); err != nil {
			return nil, err
		}
	}
	idleSince := time.Now()
	for began := time.Now(); ; {
		for _, p := range probes {
			if err := p.look(); err != nil {
				return nil, err
			}
		}
		if time.Since(began) >= o.settle {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for _, p := range probes {
		cpu, err := processorTime(p.pid)
		if err != nil {
			return nil, err
		}
		p.IdlePercent = 100 * float64(cpu-p.cpu) / float64(time.Since(idleSince))
	}
	runtime.KeepAlive(writers)
	res.Client, res.Passed = probes[0].result(o.logs, every), true
	for _, p := range probes[1:] {
		res.Nodes = append(res.Nodes, p.result(o.logs, every))
	}
	for _, u := range append(res.Nodes, res.Client) {
		res.Passed = res.Passed && u.PerLog <= idleBound && u.ResidentIdle < u.ResidentPeak
	}
	for _, n := range c.nodes {
		files, err := n.segmentFiles()
		if err != nil {
			return nil, err
		}
		res.FilesPerShard = append(res.FilesPerShard, files)
		for _, f := range files {
			res.Passed = res.Passed && f <= 2
		}
	}
	return res, nil
}
