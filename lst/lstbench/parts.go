package lstbench

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/lst/vfs"
)

// idleFS does all but the writes to files opened for appending: what is left is what the engine does itself.
type idleFS struct{ vfs.FS }

type idleFile struct{ vfs.File }

func (f idleFile) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }

func (f idleFS) Open(name string, flag vfs.Flag) (vfs.File, error) {
	file, err := f.FS.Open(name, flag)
	if err != nil || flag&vfs.ReadOnly != 0 {
		return file, err
	}
	return idleFile{file}, nil
}

// writer appends p to a reserved file as a store does, with its file system's way to make places ready, or without.
type writer struct {
	f     vfs.File
	unit  int
	at    int64
	ready int64
}

func (w *writer) block(ops int, p []byte, size int64) (time.Duration, error) {
	if w.at+int64(ops*len(p)+w.unit) > size {
		return 0, fmt.Errorf("the file of %d bytes is too short", size)
	}
	begin := time.Now()
	for range ops {
		if end := w.at + int64(len(p)); w.unit > 0 && end > w.ready {
			from := max(w.at, w.ready)
			w.ready = (end + int64(w.unit) - 1) / int64(w.unit) * int64(w.unit)
			from = max(from, w.ready-int64(w.unit))
			if err := w.f.(vfs.Readier).Ready(from, int(w.ready-from)); err != nil {
				return 0, err
			}
		}
		if _, err := w.f.WriteAt(p, w.at); err != nil {
			return 0, err
		}
		w.at += int64(len(p))
	}
	return time.Since(begin), nil
}

// appendParts shows what an unforced append consists of: the write into the page cache, with places made ready and
// without, and what is left of a commit when nothing is written.
func appendParts(r *run) ([]Result, error) {
	var all []Result
	blocks := r.Scale.of(20, 40, 60)
	for _, batch := range []int{1, 16} {
		ops := r.Scale.of(2_000, 4_000, 4_000) / batch * 4
		bytes := 0
		{
			var b lst.Batch
			for i := range batch {
				b.Append(streamID(0), uint64(i), make([]byte, smallRecord))
			}
			bytes = b.Bytes()
		}
		p := make([]byte, bytes)
		size := int64((blocks+2)*ops*bytes) + 1<<20
		var sides [2]*writer
		for i := range sides {
			f, err := vfs.OS.Create(filepath.Join(r.Dir, fmt.Sprintf("parts-%d-%d", batch, i)), 0)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			if err := f.Allocate(size); err != nil {
				return nil, err
			}
			sides[i] = &writer{f: f}
			if q, ok := f.(vfs.Readier); ok && i == 0 {
				sides[i].unit = q.ReadyBytes()
			}
		}
		x, err := Interleave(blocks, func(int) (time.Duration, error) { return sides[0].block(ops, p, size) },
			func(int) (time.Duration, error) { return sides[1].block(ops, p, size) }, r.progress)
		if err != nil {
			return nil, err
		}
		res := Result{What: fmt.Sprintf("pwrite of a batch of %d, places made ready before it, over the same without", batch), Mode: "buffered",
			Counted: "interleaved blocks of pwrite of as many bytes as the batch's frame to the ends of two reserved files; before the first one in each unit of one file, zeros over the rest of the unit, within the clock; ratio of medians, quartiles of the pairs"}
		res.SetRatio(x, "ready", "not ready", ops)
		res.Note("%d bytes each, units of %d bytes", bytes, sides[0].unit)
		if sides[0].unit == 0 {
			res.Verdict = Void
			res.Note("this file system does not make places ready: it would gain nothing")
		}
		all = append(all, res)

		opt := byRecords(1 << 40)
		opt.FS = idleFS{vfs.OS}
		s, _, err := lst.Open(r.dir(), opt)
		if err != nil {
			return nil, err
		}
		defer s.Close()
		l := newLoader(s, 1, smallRecord, r.Seed)
		raw, err := newRaw(filepath.Join(r.Dir, fmt.Sprintf("parts-raw-%d", batch)), 64<<20)
		if err != nil {
			return nil, err
		}
		defer raw.f.Close()
		x, err = Interleave(blocks, func(int) (time.Duration, error) { return l.block(ops, batch, first) },
			func(int) (time.Duration, error) { return raw.block(ops, p[:batch*smallRecord]) }, r.progress)
		if err != nil {
			return nil, err
		}
		res = Result{What: fmt.Sprintf("commit of a batch of %d without its write, over one raw write(2) of its payloads", batch), Mode: "buffered, Acknowledged",
			Counted: "interleaved blocks of lst.Store.Commit on a file system whose writes to files opened for appending do nothing, without snapshots, and of write(2) to a reserved file; ratio of medians, quartiles of the pairs. The rest of a commit's time is its write, and what the write does to the processor's caches"}
		res.SetRatio(x, "Commit", "write(2)", ops)
		all = append(all, res)
	}
	return all, nil
}
