package lstbench

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"

	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/lst/vfs"
)

const smallRecord = 128

// rawFile is the floor: a file that is written with one system call each, reserved beforehand as segments are.
type rawFile struct {
	f    *os.File
	size int64
	at   int64
}

func newRaw(path string, size int64) (*rawFile, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &rawFile{f: f, size: size}, syscall.Fallocate(int(f.Fd()), 1, 0, size)
}

// room begins the file anew if the next n bytes do not fit.
func (w *rawFile) room(n int64) error {
	if w.at+n <= w.size {
		return nil
	}
	if err := w.f.Truncate(0); err != nil {
		return err
	}
	w.at = 0
	if _, err := w.f.Seek(0, 0); err != nil {
		return err
	}
	return syscall.Fallocate(int(w.f.Fd()), 1, 0, w.size)
}

// block writes ops times p with write(2).
func (w *rawFile) block(ops int, p []byte) (time.Duration, error) {
	if err := w.room(int64(ops * len(p))); err != nil {
		return 0, err
	}
	fd := int(w.f.Fd())
	begin := time.Now()
	for range ops {
		if n, err := syscall.Write(fd, p); err != nil || n != len(p) {
			return 0, fmt.Errorf("write(2): %d of %d bytes, %w", n, len(p), err)
		}
	}
	w.at += int64(ops * len(p))
	return time.Since(begin), nil
}

// block commits ops batches of n records each. What the streams hold beyond the newest records is trimmed and dropped
// afterwards, outside of the clock: the disk use stays bounded.
func (l *loader) block(ops, n int, pick func() int) (time.Duration, error) {
	begin := time.Now()
	for range ops {
		if err := l.commit(n, pick); err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}

// shrink trims all but keep records of each stream and drops what is free, if the store has grown above limit.
func (l *loader) shrink(dir string, limit int64, keep uint64) error {
	size, _, err := fileBytes(dir)
	if err != nil || size < limit {
		return err
	}
	if err := l.trimAll(keep); err != nil {
		return err
	}
	_, err = l.s.Reclaim()
	return err
}

func appendRaw(r *run) ([]Result, error) {
	dir := r.dir()
	s, _, err := lst.Open(dir, lst.Options{})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	raw, err := newRaw(filepath.Join(r.Dir, "raw"), 64<<20)
	if err != nil {
		return nil, err
	}
	defer raw.f.Close()
	l := newLoader(s, 1, smallRecord, r.Seed)
	ops := r.Scale.of(10_000, 20_000, 40_000)
	blocks := r.Scale.of(20, 40, 60)
	x, err := Interleave(blocks, func(int) (time.Duration, error) {
		if err := l.shrink(dir, 128<<20, 1000); err != nil {
			return 0, err
		}
		return l.block(ops, 1, first)
	}, func(int) (time.Duration, error) { return raw.block(ops, l.payload) }, r.progress)
	if err != nil {
		return nil, err
	}
	res := Result{What: "unforced append of 128 bytes, one stream, batch 1, over one raw write(2)", Must: most(1.4), Aim: most(1.2), Mode: "buffered, Acknowledged",
		Counted: "interleaved blocks of lst.Store.Commit and of write(2) of the same 128 bytes to a reserved file; ratio of medians, quartiles of the pairs. Rolls, snapshots and their syncs happen within the blocks"}
	res.SetRatio(x, "Commit", "write(2)", ops)
	return []Result{res}, nil
}

func appendStreams(r *run) ([]Result, error) {
	const streams = 10_000
	var all []Result
	for _, batch := range []int{1, 16} {
		ops := r.Scale.of(10_000, 20_000, 40_000) / batch
		blocks := r.Scale.of(20, 40, 60)
		var sides [2]Side
		for i, n := range []int{1, streams} {
			dir := r.dir()
			s, _, err := lst.Open(dir, lst.Options{})
			if err != nil {
				return nil, err
			}
			defer s.Close()
			l := newLoader(s, n, smallRecord, r.Seed)
			pick := first
			if n > 1 {
				pick = l.uniform
			}
			// The steady state is measured: every stream is known and has filled a leaf of 256 records.
			if err := l.fill(r, r.Scale.of(20, 300, 300)*n, 100, pick); err != nil {
				return nil, err
			}
			if err := l.shrink(dir, 0, 10); err != nil {
				return nil, err
			}
			sides[i] = func(int) (time.Duration, error) {
				if err := l.shrink(dir, 128<<20, 10); err != nil {
					return 0, err
				}
				return l.block(ops, batch, pick)
			}
		}
		x, err := Interleave(blocks, sides[0], sides[1], r.progress)
		if err != nil {
			return nil, err
		}
		res := Result{What: fmt.Sprintf("append over 10,000 streams against one, batch %d", batch), Must: least(.8), Aim: least(.95), Mode: "buffered, Acknowledged",
			Counted: "records per second over 10,000 streams, uniform at random, over those of one stream; two stores in interleaved blocks, 128-byte records; ratio of medians, quartiles of the pairs"}
		res.SetRatio(x, "one stream", "10,000 streams", ops)
		if batch > 1 {
			res.Must, res.Aim = nil, nil
			res.Note("printed beside the row: each of the 16 records of a batch goes to another stream and carries its id")
		}
		res.Note("seed %d", r.Seed)
		all = append(all, res)
	}
	return all, nil
}

// aligned is a buffer for direct I/O.
func aligned(n int) []byte {
	b := make([]byte, n+4096)
	at := int(-uintptr(unsafe.Pointer(&b[0])) & 4095)
	return b[at : at+n : at+n]
}

// directFile is a file filled with zeros, for direct synced writes: the floor of a forced commit.
func directFile(path string, size int64) (vfs.File, error) {
	f, err := vfs.OS.Create(path, 0)
	if err != nil {
		return nil, err
	}
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros, at); err != nil {
			return nil, err
		}
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return vfs.OS.Open(path, vfs.Direct|vfs.DSync)
}

func forcedDirect(r *run) ([]Result, error) {
	dir := r.dir()
	s, report, err := lst.Open(dir, lst.Options{Mode: lst.Direct})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	const size = 16 << 20
	raw, err := directFile(filepath.Join(r.Dir, "raw"), size)
	if err != nil {
		return nil, fmt.Errorf("the floor needs direct I/O: %w", err)
	}
	defer raw.Close()
	page := aligned(4096)
	at := int64(0)
	l := newLoader(s, 1, smallRecord, r.Seed)
	l.d = lst.Forced
	ops := r.Scale.of(100, 200, 400)
	blocks := r.Scale.of(20, 40, 60)
	x, err := Interleave(blocks, func(int) (time.Duration, error) { return l.block(ops, 1, first) }, func(int) (time.Duration, error) {
		begin := time.Now()
		for range ops {
			page[0]++
			if _, err := raw.WriteAt(page, at); err != nil {
				return 0, err
			}
			at = (at + int64(len(page))) % size
		}
		return time.Since(begin), nil
	}, r.progress)
	if err != nil {
		return nil, err
	}
	res := Result{What: "forced append of 128 bytes, direct mode, one caller, over one raw 4 KiB direct synced write", Must: most(1.15), Mode: "direct, Forced (O_DIRECT and O_DSYNC)",
		Counted: "interleaved blocks of lst.Store.Commit and of pwrite of 4 KiB with O_DIRECT|O_DSYNC into a file filled with zeros; ratio of medians, quartiles of the pairs"}
	res.SetRatio(x, "Commit", "raw write", ops)
	res.Note("the store writes blocks of %d bytes", s.Stats().BlockBytes)
	if !report.Direct {
		res.Verdict = Void
		res.Note("no direct I/O here: %s", report.DirectReason)
	}
	return []Result{res}, nil
}

func allocations(r *run) ([]Result, error) {
	n := r.Scale.of(200_000, 1_000_000, 4_000_000)
	var all []Result
	for _, streams := range []int{1, 10_000} {
		dir := r.dir()
		s, _, err := lst.Open(dir, lst.Options{})
		if err != nil {
			return nil, err
		}
		defer s.Close()
		l := newLoader(s, streams, smallRecord, r.Seed)
		pick := first
		if streams > 1 {
			pick = l.uniform
		}
		// Streams, batches and buffers are made before: the steady state is what counts.
		// A leaf holds 256 records of a stream: with fewer, its slots still grow.
		if err := l.fill(r, max(n/4, r.Scale.of(20, 300, 600)*streams), r.Scale.of(1, 100, 100), pick); err != nil {
			return nil, err
		}
		count, err := mallocs(func() error {
			for range n {
				if err := l.commit(1, pick); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		name := "one stream"
		if streams > 1 {
			name = "10,000 streams"
		}
		res := Result{What: "allocations per append, batch 1, background included, " + name, Unit: "allocations", Must: most(.01), Aim: most(0), Mode: "buffered, Acknowledged, batch 1",
			Counted: "difference of runtime.MemStats.Mallocs of the whole process over the steady state, over the number of commits: snapshots, rolls and syncs are in it"}
		res.exact(float64(count) / float64(n))
		res.Note("%d allocations in %d commits, %d records before them", count, n, l.records-int64(n))
		all = append(all, res)

		v := s.View()
		dst := make([]byte, 0, 4096)
		read := func() error {
			for range n {
				k := l.uniform()
				var err error
				if dst, err = v.Get(streamID(k), l.random.Uint64N(l.seq[k]), dst[:0]); err != nil {
					return err
				}
			}
			return nil
		}
		if err := read(); err != nil { // descriptors and leaves are opened here
			return nil, err
		}
		if count, err = mallocs(read); err != nil {
			return nil, err
		}
		res = Result{What: "allocations per point read, " + name, Unit: "allocations", Must: most(.01), Aim: most(0), Mode: "buffered, tail cache and page cache",
			Counted: "difference of runtime.MemStats.Mallocs over lst.View.Get of records at random into a slice that is used again, over their number"}
		res.exact(float64(count) / float64(n))
		res.Note("%d allocations in %d reads", count, n)
		all = append(all, res)
		if err := s.Close(); err != nil {
			return nil, err
		}
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
	}
	return all, nil
}
