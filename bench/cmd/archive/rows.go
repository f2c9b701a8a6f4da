package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

const (
	recordBytes  = 4096
	segmentBytes = 16 << 20
	// perSegment is how many such records make a full segment.
	perSegment = segmentBytes / (recordBytes + protocol.RecordOverhead)
	readLog    = "log"
)

// filled is a cluster with a log that is archived but for its last half segment.
type filled struct {
	b        *backend
	nodes    []string
	id       protocol.LogID
	segments int
	keys     []string // of the objects, in order
	last     uint64   // LSN that they reach to
	client   *btrlog.Client
	writer   *btrlog.Writer // stays open: one that is closed archives its tail, and nothing of the log would be hot
}

// reading fills a log and measures how it got into the store and how it is read.
func (o *options) reading(ctx context.Context, name string) (rows []row, err error) {
	dir := filepath.Join(o.dir, "reading-"+name)
	defer os.RemoveAll(dir) // when nobody uses it any more
	var p processes
	defer p.stop()
	f := &filled{}
	if f.b, err = o.backend(ctx, &p, name, filepath.Join(dir, "store"), false); err != nil {
		return nil, err
	}
	if f.nodes, err = o.nodes(ctx, &p, f.b.url(f.b.Node), dir); err != nil {
		return nil, err
	}
	puts, err := o.fill(ctx, f)
	if f.client != nil {
		defer f.client.Close()
	}
	if err != nil {
		return nil, err
	}
	rows = append(rows, puts)
	for _, part := range []struct {
		name string
		run  func(context.Context, *filled) ([]row, error)
	}{{"cold", o.coldRows}, {"client", o.clientRows}, {"record", o.recordRows}} {
		if o.wants(part.name) {
			more, err := part.run(ctx, f)
			rows = append(rows, more...)
			if err != nil {
				return rows, err
			}
		}
	}
	return rows, nil
}

// fill appends the log as fast as it goes, and counts the PUTs of segments, refused ones included.
func (o *options) fill(ctx context.Context, f *filled) (row, error) {
	c, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: f.b.url(f.b.Client), Name: "writer", Timeout: time.Minute})
	if err != nil {
		return row{}, err
	}
	f.client = c
	info, err := c.Create(ctx, readLog, btrlog.LogOptions{SegmentBytes: segmentBytes, FlushAge: -1})
	if err != nil {
		return row{}, err
	}
	f.id = protocol.LogID(info.ID)
	w, err := c.OpenWriter(ctx, readLog, btrlog.WriterOptions{})
	if err != nil {
		return row{}, err
	}
	f.writer = w
	before, err := f.b.counts(ctx)
	if err != nil {
		return row{}, err
	}
	f.segments = max(2, int(o.log/(perSegment*recordBytes)))
	f.last = uint64(f.segments * perSegment)
	fmt.Fprintf(os.Stderr, "%s: appending %d segments and a half\n", f.b.name, f.segments)
	data := make([]byte, recordBytes)
	rng := rand.NewChaCha8([32]byte{2})
	_, _ = rng.Read(data) // never fails
	began := time.Now()
	for i := range f.segments*perSegment + perSegment/2 {
		data[0], data[1], data[2] = byte(i), byte(i>>8), byte(i>>16)
		if _, err := w.Append(ctx, data); err != nil {
			return row{}, err
		}
	}
	if err := w.Sync(ctx, btrlog.LSN(f.segments*perSegment+perSegment/2)); err != nil {
		return row{}, err
	}
	took := time.Since(began)
	if err := awaitArchived(ctx, f.nodes, readLog, btrlog.LSN(f.last)); err != nil {
		return row{}, err
	}
	after, err := f.b.counts(ctx)
	if err != nil {
		return row{}, err
	}
	store, err := objstore.Open(ctx, f.b.url(f.b.Client))
	if err != nil {
		return row{}, err
	}
	defer store.Close()
	a, err := archive.New(store, archive.Options{})
	if err != nil {
		return row{}, err
	}
	parts := 0 // of segments of which a node lacked records: that node wrote what it had, beside the whole one
	for o, err := range objstore.All(ctx, store, "arch/") {
		if err != nil {
			return row{}, err
		}
		k, err := a.ParseKey(o.Key)
		if err != nil {
			return row{}, err
		}
		if k.First != protocol.LSN(len(f.keys)*perSegment+1) || k.Last != k.First+perSegment-1 {
			parts++
			continue
		}
		f.keys = append(f.keys, o.Key)
	}
	if len(f.keys) != f.segments {
		return row{}, fmt.Errorf("of %d segments %d are archived whole, beside %d other objects", f.segments, len(f.keys), parts)
	}
	attempts := after.since(before).sum("node PUT arch")
	return atMost("PUT attempts per full segment, 3 nodes", f.b.name, float64(attempts)/float64(f.segments), 1.02, "%.3f",
		map[string]any{"segments": f.segments, "puts": attempts, "objects_of_parts": parts, "append_mb_per_second": float64(f.segments) * segmentBytes / 1e6 / took.Seconds()}), nil
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}

// coldRows compares the archive's reader, which lists, finds, verifies and orders, with plain downloads of the same objects, by
// the time that each takes for all of them.
func (o *options) coldRows(ctx context.Context, f *filled) (rows []row, err error) {
	n := min(len(f.keys), max(2, int(o.cold/segmentBytes)))
	keys, last := f.keys[:n], n*perSegment
	widths := []int{1, 2, 4, 8, 16, 32, 64}
	for _, way := range []struct{ name, port string }{{"shaped", f.b.ShapedClient}, {"unshaped", f.b.Client}} {
		streams := make([][]float64, len(widths))
		var scans, cpu []float64
		var peak int64
		for range o.repeat {
			var r readResult
			if err := o.role(ctx, &r, scanRoleArg, f.b.url(way.port), fmt.Sprintf("%016x", uint64(f.id)), fmt.Sprint(last)); err != nil {
				return rows, err
			}
			if r.Records != int64(last) {
				return rows, fmt.Errorf("the scan gave %d records of %d", r.Records, last)
			}
			scans, cpu, peak = append(scans, r.Seconds), append(cpu, r.CPU), max(peak, r.Peak)
			for i, width := range widths {
				if err := o.role(ctx, &r, streamsArg, f.b.url(way.port), strings.Join(keys, " "), fmt.Sprint(width)); err != nil {
					return rows, err
				}
				streams[i] = append(streams[i], r.Seconds)
			}
		}
		best, at := 0.0, 0
		each := map[string]float64{}
		for i, width := range widths {
			m := median(streams[i])
			each[fmt.Sprint(width)] = m
			if best == 0 || m < best {
				best, at = m, width
			}
		}
		bytes := float64(n) * segmentBytes
		if got := bytes / best / o.linkBytes(); way.name == "shaped" && (got > 1.02 || got < 0.9) {
			return rows, fmt.Errorf("void: the best of the plain streams takes %.2f of the link's bandwidth; it should fill the link and cannot exceed it", got)
		}
		ratio := best / median(scans)
		detail := map[string]any{"scan_seconds": median(scans), "scan_mb_per_second": bytes / 1e6 / median(scans), "best_streams": at, "best_mb_per_second": bytes / 1e6 / best,
			"streams_seconds": each, "scan_peak_mib": peak >> 20, "scan_processor_seconds": median(cpu)}
		what := fmt.Sprintf("cold scan over the best of 1-64 plain streams, %s", way.name)
		if way.name == "shaped" {
			rows = append(rows, atLeast(what, f.b.name, ratio, 0.95, detail))
		} else {
			rows = append(rows, printed(what, f.b.name, fmt.Sprintf("%.3f (%.0f of %.0f MB/s)", ratio, bytes/1e6/median(scans), bytes/1e6/best), detail))
		}
	}
	return rows, nil
}

// clientRows compares a fresh client that reads the whole log, from the store and from the nodes, with the archive's reader on the
// part that is archived, by bytes of records a second.
func (o *options) clientRows(ctx context.Context, f *filled) (rows []row, err error) {
	for _, way := range []struct{ name, port string }{{"unshaped", f.b.Client}, {"shaped", f.b.ShapedClient}} {
		var scans, clients, cpu []float64
		var peak int64
		var cold uint64
		repeat := o.repeat
		if way.name == "shaped" {
			repeat = 1
		}
		for range repeat {
			var s, c readResult
			if err := o.role(ctx, &s, scanRoleArg, f.b.url(way.port), fmt.Sprintf("%016x", uint64(f.id)), fmt.Sprint(f.last)); err != nil {
				return rows, err
			}
			if err := o.role(ctx, &c, clientArg, f.b.url(way.port), readLog); err != nil {
				return rows, err
			}
			if want := int64(f.segments*perSegment + perSegment/2); c.Records != want {
				return rows, fmt.Errorf("the client read %d records of %d", c.Records, want)
			}
			scans, clients = append(scans, float64(s.Bytes)/s.Seconds/1e6), append(clients, float64(c.Bytes)/c.Seconds/1e6)
			peak, cold, cpu = max(peak, c.Peak), c.Cold, append(cpu, c.CPU/s.CPU)
		}
		rows = append(rows, atLeast("a fresh client reads all, cold and hot, over the cold scan, "+way.name, f.b.name, median(clients)/median(scans), 0.8,
			map[string]any{"client_mb_per_second": median(clients), "scan_mb_per_second": median(scans), "peak_mib": peak >> 20, "cold_records": cold,
				"records": f.segments*perSegment + perSegment/2, "processor_time_over_the_scans": median(cpu)}))
	}
	return rows, nil
}

// recordRows counts the GETs of single records, and of a scan of stretches that lie side by side in a pack.
func (o *options) recordRows(ctx context.Context, f *filled) (rows []row, err error) {
	store, err := objstore.Open(ctx, f.b.url(f.b.Client))
	if err != nil {
		return nil, err
	}
	defer store.Close()
	a, err := archive.New(store, archive.Options{})
	if err != nil {
		return nil, err
	}
	gets := func(do func() error) (int, error) {
		before, err := f.b.counts(ctx)
		if err != nil {
			return 0, err
		}
		if err := do(); err != nil {
			return 0, err
		}
		after, err := f.b.counts(ctx)
		d := after.since(before)
		return d.sum("client GET arch") + d.sum("client GET pack"), err
	}
	read := func(r *archive.Reader, lsn protocol.LSN) func() error {
		return func() error {
			_, err := r.Read(ctx, lsn, archive.Watermark{}, nil)
			return err
		}
	}
	r := a.Reader(f.id)
	if err := read(r, 10)(); err != nil { // lists, and reads the index of the first object
		return nil, err
	}
	other, err1 := gets(read(r, perSegment+10)) // another object, of which nothing is known but its name
	warm, err2 := gets(read(r, 3000))
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("%v %v", err1, err2)
	}
	rows = append(rows, atMost("GETs of a single record, index warm", f.b.name, float64(warm), 1, "%.0f", map[string]any{"first_record_of_an_object": other}))

	// A pack of 200 logs with two records each, and of one log with 64 stretches.
	const many, firstLog = 64, 0x1000
	var plans []archive.PackPlan
	add := func(log protocol.LogID, first protocol.LSN) {
		plans = append(plans, archive.PackPlan{Plan: protocol.Segment{Log: log, Label: 1, SegStart: first, First: first, Last: first + 1, CLSN: first + 1},
			Source: func(yield func(archive.Record, error) bool) {
				for i := range 2 {
					if !yield(archive.Record{LSN: first + protocol.LSN(i), Label: 1, Data: make([]byte, 500)}, nil) {
						return
					}
				}
			}})
	}
	for i := range 200 {
		add(firstLog+protocol.LogID(i), 1)
	}
	for i := range many {
		add(firstLog+200, protocol.LSN(1+2*i))
	}
	for _, res := range a.FlushPack(ctx, plans) {
		if res.Err != nil {
			return rows, res.Err
		}
	}
	r = a.Reader(firstLog + 7)
	cold, err1 := gets(read(r, 1))
	warm, err2 = gets(read(r, 2))
	if err1 != nil || err2 != nil {
		return rows, fmt.Errorf("%v %v", err1, err2)
	}
	rows = append(rows, atMost("GETs of a single record in a pack, index warm", f.b.name, float64(warm), 1, "%.0f", map[string]any{"index_cold": cold}))
	r = a.Reader(firstLog + 200)
	if err := read(r, 1)(); err != nil {
		return rows, err
	}
	all, err := gets(func() error {
		for _, err := range r.Scan(ctx, 1, 2*many, archive.Watermark{}) {
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return rows, err
	}
	return append(rows, atMost(fmt.Sprintf("GETs of a scan of %d stretches in a pack, index warm", many), f.b.name, float64(all), 2, "%.0f", nil)), nil
}

// memoryRow reads a large log, through a store that makes it up, and looks at the most memory that the reader had.
func (o *options) memoryRow(ctx context.Context) ([]row, error) {
	var p processes
	defer p.stop()
	b := &backend{name: embedded}
	fmt.Fprintf(os.Stderr, "making up a log of %d MiB\n", o.memory>>20)
	if err := p.start(ctx, &b.front, o.self, storeRole, fmt.Sprintf("made:%d", o.memory), o.rtt.String(), "0"); err != nil {
		return nil, err
	}
	segments := (o.memory + perSegment*recordBytes - 1) / (perSegment * recordBytes)
	var r readResult
	if err := o.role(ctx, &r, scanRoleArg, b.Client, fmt.Sprintf("%016x", uint64(madeLog)), fmt.Sprint(segments*perSegment)); err != nil {
		return nil, err
	}
	if r.Records != segments*perSegment {
		return nil, fmt.Errorf("the scan gave %d records of %d", r.Records, segments*perSegment)
	}
	return []row{atMost(fmt.Sprintf("memory (VmHWM) of a cold scan of %d MiB, in MiB", o.memory>>20), b.name, float64(r.Peak)/(1<<20), 256, "%.0f",
		map[string]any{"seconds": r.Seconds, "mb_per_second": float64(r.Bytes) / 1e6 / r.Seconds})}, nil
}
