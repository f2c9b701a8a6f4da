package lstbench

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/btrlog/btrlog/lst"
)

// readStore is a store of one stream on disk, opened again without a tail cache, and the places of its records for the floor.
type readStore struct {
	s      *lst.Store
	v      lst.View
	n      int
	places []lst.Location
	files  map[uint32]*os.File
	random *rand.Rand
}

func newReadStore(r *run, records int) (*readStore, error) {
	dir := r.dir()
	s, _, err := lst.Open(dir, lst.Options{TailCacheBytes: -1})
	if err != nil {
		return nil, err
	}
	l := newLoader(s, 1, smallRecord, r.Seed)
	if err := l.fill(r, records, 100, first); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	if s, _, err = lst.Open(dir, lst.Options{TailCacheBytes: -1}); err != nil {
		return nil, err
	}
	rs := &readStore{s: s, v: s.View(), n: records, files: map[uint32]*os.File{}, random: rand.New(rand.NewPCG(r.Seed, 7))}
	for i := range records {
		at, err := rs.v.Locate(streamID(0), uint64(i))
		if err != nil {
			rs.close()
			return nil, err
		}
		if rs.files[at.Segment] == nil {
			f, err := os.Open(filepath.Join(dir, fmt.Sprintf("%08x.lst", at.Segment)))
			if err != nil {
				rs.close()
				return nil, err
			}
			rs.files[at.Segment] = f
		}
		rs.places = append(rs.places, at)
	}
	return rs, nil
}

func (rs *readStore) close() {
	for _, f := range rs.files {
		f.Close()
	}
	rs.s.Close()
}

// gets reads ops records at random through the store.
func (rs *readStore) gets(ops int, dst []byte) (time.Duration, error) {
	want := rs.draw(ops)
	begin := time.Now()
	for _, i := range want {
		var err error
		if dst, err = rs.v.Get(streamID(0), uint64(i), dst[:0]); err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}

// preads reads ops records at random with one pread each.
func (rs *readStore) preads(ops int, dst []byte) (time.Duration, error) {
	want := rs.draw(ops)
	fds := map[uint32]int{}
	for n, f := range rs.files {
		fds[n] = int(f.Fd())
	}
	type read struct {
		fd int
		at int64
	}
	list := make([]read, len(want))
	for k, i := range want {
		list[k] = read{fds[rs.places[i].Segment], rs.places[i].Offset}
	}
	p := dst[:smallRecord]
	begin := time.Now()
	for _, q := range list {
		if n, err := syscall.Pread(q.fd, p, q.at); err != nil || n != len(p) {
			return 0, fmt.Errorf("pread: %d of %d bytes, %w", n, len(p), err)
		}
	}
	return time.Since(begin), nil
}

func (rs *readStore) draw(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = rs.random.IntN(rs.n)
	}
	return list
}

// evict takes the files out of the page cache.
func (rs *readStore) evict() error {
	const dontNeed = 4
	for _, f := range rs.files {
		if _, _, errno := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0); errno != 0 {
			return fmt.Errorf("fadvise of %s: %w", f.Name(), errno)
		}
	}
	return nil
}

func readCached(r *run) ([]Result, error) {
	rs, err := newReadStore(r, r.Scale.of(200_000, 500_000, 2_000_000))
	if err != nil {
		return nil, err
	}
	defer rs.close()
	dst := make([]byte, 0, 4096)
	if _, err := rs.preads(rs.n, dst); err != nil { // into the page cache
		return nil, err
	}
	ops, blocks := r.Scale.of(10_000, 20_000, 40_000), r.Scale.of(20, 40, 60)
	x, err := Interleave(blocks, func(int) (time.Duration, error) { return rs.gets(ops, dst) }, func(int) (time.Duration, error) { return rs.preads(ops, dst) }, r.progress)
	if err != nil {
		return nil, err
	}
	res := Result{What: "point read of 128 bytes from a cached file over one pread", Must: most(1.3), Mode: "buffered, no tail cache, page cache warm, index in memory",
		Counted: "interleaved blocks of lst.View.Get and of pread(2) of the same payloads, both at random over the whole store; ratio of medians, quartiles of the pairs. A Get also looks the record up and checks its CRC32C"}
	res.SetRatio(x, "Get", "pread", ops)
	res.Note("%d records in %d segments, seed %d; the store was opened again after writing", rs.n, len(rs.files), r.Seed)
	return []Result{res}, nil
}

func readCold(r *run) ([]Result, error) {
	rs, err := newReadStore(r, r.Scale.of(500_000, 2_000_000, 4_000_000))
	if err != nil {
		return nil, err
	}
	defer rs.close()
	dst := make([]byte, 0, 4096)
	ops, blocks := 200, r.Scale.of(20, 40, 60)
	device := int64(0)
	cold := func(read func(int, []byte) (time.Duration, error)) Side {
		return func(int) (time.Duration, error) {
			if err := rs.evict(); err != nil {
				return 0, err
			}
			before, err := selfIO()
			if err != nil {
				return 0, err
			}
			d, err := read(ops, dst)
			if err != nil {
				return 0, err
			}
			after, err := selfIO()
			device += after.minus(before).readBytes
			return d, err
		}
	}
	x, err := Interleave(blocks, cold(rs.gets), cold(rs.preads), r.progress)
	if err != nil {
		return nil, err
	}
	res := Result{What: "point read of 128 bytes from a cold file over one pread after fadvise", Must: most(1.2), Mode: "buffered, no tail cache, files out of the page cache, index in memory",
		Counted: "as read-cached, but before each block posix_fadvise(DONTNEED) on all segment files"}
	res.SetRatio(x, "Get", "pread", ops)
	perRead := float64(device) / float64(2*ops*(blocks+1))
	res.Note("%.0f bytes a read came from the device (read_bytes of /proc/self/io); %d records, seed %d", perRead, rs.n, r.Seed)
	if perRead < 2048 { // some reads share a page
		res.Verdict = Void
		res.Note("the reads did not reach a device: nothing was cold")
	}
	return []Result{res}, nil
}

// rangeNodes counts the leaf frames that ranges of 64 records read. Each range lies where no other has loaded a leaf.
func rangeNodes(r *run) ([]Result, error) {
	const length, apart = 64, 1024
	ranges := r.Scale.of(200, 1000, 4000)
	dir := r.dir()
	s, _, err := lst.Open(dir, lst.Options{})
	if err != nil {
		return nil, err
	}
	l := newLoader(s, 1, smallRecord, r.Seed)
	if err := l.fill(r, (ranges+1)*apart, 100, first); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	probe := newProbe()
	ro, err := lst.OpenReadOnly(dir, lst.Options{FS: probe, TailCacheBytes: -1})
	if err != nil {
		return nil, err
	}
	defer ro.Close()
	v := ro.View()
	opened := probe.counts()
	if _, ok := v.Stat(streamID(0)); !ok {
		return nil, fmt.Errorf("the stream is not there: %v", v.Err())
	}
	state := probe.counts().frames[frameTable] - opened.frames[frameTable]
	most2, sum, data := 0, 0, 0
	for i := range ranges {
		probe.reset()
		from := uint64(i*apart) + l.random.Uint64N(256)
		got, it := 0, v.Range(streamID(0), from, from+length)
		for it.Next() {
			if it.Seq() != from+uint64(got) {
				return nil, fmt.Errorf("range from %d: record %d at place %d", from, it.Seq(), got)
			}
			got++
		}
		if err := it.Err(); err != nil && err != io.EOF || got != length {
			return nil, fmt.Errorf("range from %d: %d of %d records, %v", from, got, length, err)
		}
		c := probe.counts()
		nodes := c.frames[frameLeaf] + c.frames[frameTable] + c.frames[frameRoot]
		most2, sum, data = max(most2, nodes), sum+nodes, data+c.reads-nodes
	}
	res := Result{What: "index nodes touched by a range read of 64, the most of all ranges", Unit: "nodes", Must: most(2), Mode: "buffered, read-only opener, no leaf in memory",
		Counted: "reads of leaf, table and root frames as the file system sees them, by the frame that the bytes begin with; exact"}
	res.exact(float64(most2))
	res.Note("%d ranges at random starts, none where a leaf was loaded before; %.2f nodes and %.1f data reads each on average, seed %d", ranges, float64(sum)/float64(ranges), float64(data)/float64(ranges), r.Seed)
	res.Note("the state of the stream was read once before: %d table pieces", state)
	return []Result{res}, nil
}

func statTime(r *run) ([]Result, error) {
	const few = 1000
	many := r.Scale.of(1_000_000, 10_000_000, 100_000_000)
	dir := r.dir()
	// Leaves are small against 10^8 records only if the payload is small too: 8 bytes.
	s, _, err := lst.Open(dir, lst.Options{TailCacheBytes: -1, SegmentBytes: 256 << 20, SnapshotRecords: 1_000_000})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	l := newLoader(s, 2, 8, r.Seed)
	if err := l.fill(r, few, 100, first); err != nil {
		return nil, err
	}
	if err := l.fill(r, few+many, 1000, func() int { return 1 }); err != nil {
		return nil, err
	}
	v := s.View()
	ops, blocks := r.Scale.of(200_000, 500_000, 500_000), r.Scale.of(20, 40, 60)
	query := func(k int, want uint64) Side {
		id := streamID(k)
		return func(int) (time.Duration, error) {
			begin := time.Now()
			for range ops {
				st, ok := v.Stat(id)
				if !ok || st.Count != want || st.EOF != want || st.Bytes != want*8 {
					return 0, fmt.Errorf("stream of %d records: %+v, %v", want, st, ok)
				}
			}
			return time.Since(begin), nil
		}
	}
	x, err := Interleave(blocks, query(1, uint64(many)), query(0, few), r.progress)
	if err != nil {
		return nil, err
	}
	res := Result{What: fmt.Sprintf("count, bytes, EOF query: time at %d messages over that at %d", many, few), Must: most(1.5), Mode: "buffered",
		Counted: "interleaved blocks of lst.View.Stat on two streams of one store, each answer compared; ratio of medians, quartiles of the pairs"}
	res.SetRatio(x, "large", "small", ops)
	side := query(1, uint64(many))
	count, err := mallocs(func() error { _, err := side(0); return err })
	if err != nil {
		return nil, err
	}
	// The counter itself is not free of other goroutines of the process; whole calls are.
	a := Result{What: "count, bytes, EOF query: allocations", Unit: "allocations", Must: most(0), Mode: "buffered",
		Counted: "difference of runtime.MemStats.Mallocs of the whole process over a block of queries, over their number, in whole allocations"}
	a.exact(float64(int(count) / ops))
	a.Note("%d allocations of the process in %d queries", count, ops)
	return []Result{res, a}, nil
}
