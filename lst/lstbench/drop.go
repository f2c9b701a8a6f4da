package lstbench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/lst/vfs"
)

// dropReads trims everything but the newest records and drops the segments that are free then.
func dropReads(r *run) ([]Result, error) {
	segment := r.Scale.pick(1<<20, 4<<20, 64<<20)
	dir := r.dir()
	probe := newProbe()
	s, _, err := lst.Open(dir, lst.Options{SegmentBytes: segment, TailCacheBytes: -1, FS: probe})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	l := newLoader(s, 100, 150, r.Seed)
	if err := l.fill(r, int(32*segment/170), 20, l.uniform); err != nil {
		return nil, err
	}
	probe.reset()
	dropped := 0
	io, err := ioBetween(func() error {
		if err := l.trimAll(10); err != nil {
			return err
		}
		var err error
		dropped, err = s.Reclaim()
		return err
	})
	if err != nil {
		return nil, err
	}
	c := probe.counts()
	res := Result{What: "drop of segments: data bytes read", Unit: "bytes", Must: most(0), Mode: "buffered",
		Counted: "bytes that the trims and lst.Store.Reclaim read from segment files, as the file system sees them, less those of reads that begin with a leaf, table or root frame; exact"}
	index := c.kinds[frameLeaf] + c.kinds[frameTable] + c.kinds[frameRoot]
	res.exact(float64(c.bytes - index))
	res.Note("%d segments of %d MiB dropped; index bytes read: %d; /proc/self/io: %d bytes in %d reads; seed %d", dropped, segment>>20, index, io.rchar, io.syscr, r.Seed)
	if dropped == 0 {
		return nil, fmt.Errorf("nothing was dropped of a store of %d segments", s.Stats().Segments)
	}
	return []Result{res}, nil
}

// dropCarry counts what a drop writes: the state of idle streams and the key-values, whatever the number of messages was.
func dropCarry(r *run) ([]Result, error) {
	const idle, keys, busy = 5000, 1000, 20
	small := r.Scale.of(100_000, 1_000_000, 1_000_000)
	segment := r.Scale.pick(1<<20, 2<<20, 2<<20)
	last := int(2 * segment / 32)
	var carried [2]int64
	var notes []string
	for i, messages := range []int{small, 10 * small} {
		dir := r.dir()
		opt := byRecords(2 * last)
		opt.SegmentBytes, opt.TailCacheBytes = segment, -1
		s, _, err := lst.Open(dir, opt)
		if err != nil {
			return nil, err
		}
		l := newLoader(s, busy+idle, 32, r.Seed)
		// Idle streams come once, and are emptied; their state and the keys stay in the oldest segment.
		for k := busy; k < busy+idle; k++ {
			if err := l.commit(1, func() int { return k }); err != nil {
				return nil, err
			}
		}
		l.b.Reset()
		var key [8]byte
		for k := range keys {
			binary.BigEndian.PutUint64(key[:], uint64(k))
			l.b.Put(key[:], l.payload)
		}
		if _, err := s.Commit(&l.b, lst.Acknowledged); err != nil {
			return nil, err
		}
		if err := l.fill(r, idle+messages, 100, func() int { return int(l.records/100) % busy }); err != nil {
			return nil, err
		}
		// A snapshot now, and less than an interval behind it, but more than two segments: none is under way when the drop
		// begins, and the newest one is in its way.
		if err := s.Snapshot(); err != nil {
			return nil, err
		}
		if err := l.fill(r, idle+messages+last, 100, func() int { return int(l.records/100) % busy }); err != nil {
			return nil, err
		}
		if err := l.trimAll(0); err != nil {
			return nil, err
		}
		before := s.Stats().WrittenBytes
		dropped, err := s.Reclaim()
		if err != nil {
			return nil, err
		}
		st := s.Stats()
		carried[i] = st.WrittenBytes - before
		notes = append(notes, fmt.Sprintf("%d messages: %d segments dropped, %d bytes written, %d streams and %d keys stay", messages, dropped, carried[i], st.Streams, st.KVs))
		if st.Streams != busy+idle || st.KVs != keys || dropped == 0 {
			return nil, fmt.Errorf("after the drop: %s", notes[i])
		}
		if err := s.Close(); err != nil {
			return nil, err
		}
		if err := removeContents(r.Dir); err != nil {
			return nil, err
		}
	}
	res := Result{What: fmt.Sprintf("drop of segments: carry bytes at %d messages over those at %d, same streams and keys", 10*small, small), Unit: "×", Must: most(1.02), Mode: "buffered",
		Counted: "Stats.WrittenBytes over lst.Store.Reclaim after everything was trimmed; equal means within 2 %, the numbers of larger sequences take a byte more; exact"}
	res.exact(float64(carried[1]) / float64(max(carried[0], 1)))
	res.Notes = append(res.Notes, notes...)
	return []Result{res}, nil
}

// tailSide is one of the two stores of commitTail.
type tailSide struct {
	l     *loader
	probe *probeFS
}

func (r *run) newTailSide(every int) (*tailSide, error) {
	opt := byRecords(every)
	opt.SegmentBytes, opt.Mode, opt.FS = 1<<20, lst.Direct, newProbe()
	s, _, err := lst.Open(r.dir(), opt)
	if err != nil {
		return nil, err
	}
	t := &tailSide{l: newLoader(s, 2000, smallRecord, r.Seed), probe: opt.FS.(*probeFS)}
	for k := 0; k < len(t.l.seq); k += 100 {
		next := k - 1
		if err := t.l.commit(100, func() int { next++; return next }); err != nil {
			return nil, err
		}
	}
	t.l.d = lst.Forced
	return t, nil
}

// commits times ops forced commits, and calls after behind each.
func (t *tailSide) commits(ops int, after func(i int)) (p50, p99 float64, err error) {
	times := make([]float64, 0, ops)
	for i := range ops {
		begin := time.Now()
		if err := t.l.whenRoom(t.l.commit(1, t.l.uniform)); err != nil {
			return 0, 0, err
		}
		times = append(times, since(begin))
		if after != nil {
			after(i)
		}
	}
	return Quantile(times, .5), Quantile(times, .99), nil
}

// commitTail compares the slowest commits while a store takes snapshots, carries and drops with those of a store that does
// not, beside which a plain file gets as many bytes, written and synced.
func commitTail(r *run) ([]Result, error) {
	var all []Result
	dirs := []string{r.Dir}
	if shm, err := os.MkdirTemp("/dev/shm", "lstbench-"); err == nil {
		defer os.RemoveAll(shm)
		dirs = append(dirs, shm)
	}
	for _, dir := range dirs {
		in := *r
		in.Dir = dir
		res, err := in.commitTailIn()
		if err != nil {
			return all, err
		}
		res.Device = DeviceOf(dir)
		all = append(all, res)
	}
	return all, nil
}

func (r *run) commitTailIn() (Result, error) {
	busy, err := r.newTailSide(500)
	if err != nil {
		return Result{}, err
	}
	defer busy.l.s.Close()
	calm, err := r.newTailSide(1 << 40)
	if err != nil {
		return Result{}, err
	}
	defer calm.l.s.Close()
	const size = 16 << 20
	raw, err := directFile(filepath.Join(r.Dir, "beside"), size)
	if err != nil {
		return Result{}, err
	}
	defer raw.Close()
	ops, blocks := r.Scale.of(500, 1000, 2000), r.Scale.of(20, 30, 60)
	if strings.HasPrefix(DeviceOf(r.Dir), "tmpfs") {
		ops *= 4
	}
	var busyTotal, calmTotal, besideTotal int64
	var balance int64 // bytes by which the control lags behind
	var a99, b99, a50, b50, pairs []float64
	for i := -1; i < blocks; i++ {
		if err := r.progress(max(i, 0), blocks); err != nil {
			return Result{}, err
		}
		for _, t := range []*tailSide{busy, calm} {
			if err := t.l.trimAll(0); err != nil {
				return Result{}, err
			}
		}
		if _, err := calm.l.s.Reclaim(); err != nil { // outside of its block: it must not grow without end
			return Result{}, err
		}
		before := busy.probe.written()
		x50, x99, err := withBackground(busy, ops)
		if err != nil {
			return Result{}, err
		}
		more := busy.probe.written() - before
		before = calm.probe.written()
		// What a segment made in one block is too much for its control is made up for in the next.
		balance += more
		y50, y99, wrote, err := besideWriter(calm, raw, size, ops, max(balance, 0))
		if err != nil {
			return Result{}, err
		}
		balance -= calm.probe.written() - before + wrote
		if i < 0 {
			continue // the first blocks warm up
		}
		busyTotal, calmTotal, besideTotal = busyTotal+more, calmTotal+calm.probe.written()-before, besideTotal+wrote
		a50, a99, b50, b99, pairs = append(a50, x50), append(a99, x99), append(b50, y50), append(b99, y99), append(pairs, x99/y99)
	}
	res := Result{What: "p99 of a forced commit while snapshot, carry and drop run, over a control that writes and syncs the same bytes beside it", Must: most(1.5), Unit: "×", Mode: "direct, Forced",
		Counted: "interleaved blocks of forced commits of 128 bytes by one caller; A: a snapshot every 500 records, and one goroutine that calls Snapshot and Reclaim without pause; B: the same store with neither, and one goroutine that writes to a file of its own with O_DIRECT|O_DSYNC what is due by the commits so far, looking every 200 µs, so that both together write as many bytes as A did; ratio of the medians of the blocks' p99, quartiles of the pairs"}
	res.Value, res.Low, res.High, res.Blocks = Quantile(a99, .5)/Quantile(b99, .5), Quantile(pairs, .25), Quantile(pairs, .75), blocks
	st := busy.l.s.Stats()
	perBlock := func(n int64) float64 { return float64(n) / 1e6 / float64(blocks) }
	if st.Dropped == 0 {
		return res, fmt.Errorf("nothing was dropped in %d blocks", blocks)
	}
	if n := busy.l.refused + calm.l.refused; n > 0 {
		res.Note("%d commits were refused for want of the next segment, and repeated: that is within their time", n)
	}
	res.Note("a block is %d commits; p99 %.0f µs against %.0f µs, p50 %.0f µs against %.0f µs", ops, Quantile(a99, .5)*1e6, Quantile(b99, .5)*1e6, Quantile(a50, .5)*1e6, Quantile(b50, .5)*1e6)
	res.Note("A: %d snapshots, %d segments dropped in all, %.2f MB a block; B %.2f MB a block and %.2f MB beside it; seed %d", st.Snapshots, st.Dropped,
		perBlock(busyTotal), perBlock(calmTotal), perBlock(besideTotal), r.Seed)
	return res, nil
}

// withBackground commits while a goroutine takes snapshots and drops what is free, without pause.
func withBackground(t *tailSide, ops int) (p50, p99 float64, err error) {
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := t.l.s.Snapshot(); err != nil && !errors.Is(err, lst.ErrNoSpace) {
				done <- err
				return
			}
			if _, err := t.l.s.Reclaim(); err != nil && !errors.Is(err, lst.ErrNoSpace) {
				done <- err
				return
			}
		}
	}()
	p50, p99, err = t.commits(ops, nil)
	close(stop)
	if berr := <-done; err == nil {
		err = berr
	}
	return p50, p99, err
}

// besideEvery is how often the control's writer looks for what is due: as often as a store's Snapshot does beside commits.
const besideEvery = 200 * time.Microsecond

// besideWriter commits while a goroutine writes to raw: after each commit both together have written their part of total, or will
// have when the goroutine looks next. It looks by itself: were it woken by each commit, outside of the time that is taken, the
// second processor would be awake whenever a commit of the control wakes the store's own goroutine, and only then.
func besideWriter(t *tailSide, raw vfs.File, size int64, ops int, total int64) (p50, p99 float64, wrote int64, err error) {
	start := t.probe.written()
	var due atomic.Int64
	stop, done := make(chan struct{}), make(chan error, 1)
	page := aligned(32 << 10)
	writeDue := func() error {
		for n := due.Load() - wrote - (t.probe.written() - start); n >= 4096; n = due.Load() - wrote - (t.probe.written() - start) {
			p := page[:min(n, int64(len(page)))/4096*4096]
			if _, err := raw.WriteAt(p, wrote%(size-int64(len(page)))/4096*4096); err != nil {
				return err
			}
			wrote += int64(len(p))
		}
		return nil
	}
	go func() {
		tick := time.NewTicker(besideEvery)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				done <- writeDue()
				return
			case <-tick.C:
			}
			if err := writeDue(); err != nil {
				done <- err
				return
			}
		}
	}()
	p50, p99, err = t.commits(ops, func(i int) { due.Store(total * int64(i+1) / int64(ops)) })
	close(stop)
	if berr := <-done; err == nil {
		err = berr
	}
	return p50, p99, wrote, err
}

// descriptors looks at what is open for writing, and where bytes go, while 100,000 streams are written.
func descriptors(r *run) ([]Result, error) {
	const streams = 100_000
	dir, err := filepath.EvalSymlinks(r.Dir)
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "store")
	probe := newProbe()
	probe.keepWrites = true
	s, _, err := lst.Open(dir, lst.Options{FS: probe, SegmentBytes: 16 << 20})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	probe.reset()
	l := newLoader(s, streams, smallRecord, r.Seed)
	next := -1
	if err := l.fill(r, streams, 20, func() int { next++; return next }); err != nil {
		return nil, err
	}
	var samples []float64
	for i := range r.Scale.of(10_000, 30_000, 100_000) {
		if err := l.commit(10, l.uniform); err != nil {
			return nil, err
		}
		if i%100 == 0 {
			n, err := writeDescriptors(dir)
			if err != nil {
				return nil, err
			}
			samples = append(samples, float64(n))
		}
	}
	res := Result{What: "write descriptors with 100,000 streams, directory and lock not counted", Unit: "descriptors", Must: most(1), Mode: "buffered",
		Counted: "entries of /proc/self/fd that are segment files opened for writing, looked at while records are written; median and quartiles"}
	res.spread(samples)
	worst := Quantile(samples, 1)
	probe.mu.Lock()
	writes, mostOpen, readied := probe.writes, probe.c.mostOpen, probe.c.readied
	probe.mu.Unlock()
	res.Note("at most %.0f in %d moments; %d at a time as the file system saw it: the next segment while it is made, and the last one until it is synced, have one too", worst, len(samples), mostOpen)
	back, headers, heads := 0, 0, map[uint32]bool{}
	var last place
	for _, w := range writes {
		if w.offset == 0 && w.bytes <= 4096 && !heads[w.segment] {
			headers, heads[w.segment] = headers+1, true
			continue
		}
		if w.segment < last.segment || w.segment == last.segment && w.offset < last.offset+int64(last.bytes) {
			back++
		}
		last = w
	}
	off := Result{What: "writes that do not lie behind the one before, with 100,000 streams", Unit: "writes", Must: most(0), Mode: "buffered",
		Counted: "segment number and offset of every write as the file system sees it; the header of each segment, written once before its first use, is apart, and so are the zeros that make a place ready for the writes that follow; exact"}
	off.exact(float64(back))
	off.Note("%d writes, besides %d segment headers and %d times zeros; seed %d", len(writes)-headers, headers, readied, r.Seed)
	return []Result{res, off}, nil
}

// writeDescriptors counts this process's descriptors of files in dir that are open for writing, except the lock.
func writeDescriptors(dir string) (int, error) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	n := 0
	for _, fd := range fds {
		target, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err != nil || filepath.Dir(target) != dir || !strings.HasSuffix(target, ".lst") {
			continue // it may be closed by now
		}
		info, err := os.ReadFile("/proc/self/fdinfo/" + fd.Name())
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(info), "\n") {
			if v, ok := strings.CutPrefix(line, "flags:"); ok {
				flags, err := strconv.ParseUint(strings.TrimSpace(v), 8, 64)
				if err != nil {
					return 0, err
				}
				if flags&3 != 0 { // O_WRONLY or O_RDWR
					n++
				}
			}
		}
	}
	return n, nil
}
