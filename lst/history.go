package lst

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/btrlog/btrlog/lst/vfs"
)

// PointInTime is a snapshot that is still on disk, whole, with every record
// that was live when it ended.
type PointInTime struct {
	Number   uint64   // counts up from 1
	At       Location // of its root frame: the snapshot is the state of all batches in front of it
	Base     bool     // holds everything; others build on the one before
	UnixMS   int64    // when it began, by the writer's clock
	Records  uint64   // in the store then
	Floor    uint32   // the lowest segment that it needs
	Pieces   int
	Bytes    int64 // of its own index
	replayed pos
}

// Snapshots lists the snapshots that are on disk now, newest first, at most limit
// of them (0: all). It follows the snapshots to their base; to find the one in
// front of a base it reads backwards through what was written in between, about
// one interval of data for each base.
func (r *Reader) Snapshots(limit int) ([]PointInTime, error) {
	var out []PointInTime
	err := r.eachRoot(func(root *rootInfo) bool {
		out = append(out, PointInTime{
			Number: root.number, At: Location{root.at.seg(), root.at.off(), root.length}, Base: root.base, UnixMS: root.unixMS,
			Records: root.records, Floor: root.floor, Pieces: len(root.pieces), Bytes: root.bytes, replayed: root.replay,
		})
		return limit == 0 || len(out) < limit
	})
	if err != nil {
		return nil, fmt.Errorf("lst: snapshots of %s: %w", r.dir, err)
	}
	return out, nil
}

// At opens the state that the store had when snapshot number was complete, exactly:
// every batch in front of its root frame and none behind it. The Reader returned
// does not move; close it by itself. ErrNotFound if the snapshot is not on disk any
// more. The writer is not held up and may drop its segments later: reads then fail
// with ErrTrimmed.
func (r *Reader) At(number uint64) (*Reader, error) {
	var found *rootInfo
	err := r.eachRoot(func(root *rootInfo) bool {
		if root.number == number {
			found = root
		}
		return found == nil && root.number > number
	})
	if err == nil && found == nil {
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("lst: snapshot %d of %s: %w", number, r.dir, err)
	}
	at := &Reader{dir: r.dir, opt: r.opt, fixed: true}
	ix := newIndex(newFileSet(r.opt.FS, r.dir, r.opt.MaxOpenFiles), nil)
	ix.attached = true
	rep := &RecoveryReport{}
	rec := &recovery{fs: r.opt.FS, dir: r.dir, ix: ix, readOnly: true, rep: rep}
	if err := rec.until(found); err != nil {
		ix.files.closeAll()
		return nil, fmt.Errorf("lst: snapshot %d of %s: %w", number, r.dir, err)
	}
	at.ix.Store(ix)
	at.rep.Store(rep)
	return at, nil
}

// until builds the state of a snapshot that is known to be durable, or verified:
// its pieces and the batches from its beginning to its root.
func (r *recovery) until(root *rootInfo) error {
	if err := r.list(); err != nil {
		return err
	}
	last, err := r.segment(root.at.seg())
	if err != nil {
		return err
	}
	r.last, r.root, r.end, r.from = last, root, root.at, root.replay
	r.rep.Snapshot = root.number
	r.ops.reset()
	for n := root.replay.seg(); n <= root.at.seg(); n++ {
		if err := r.walkPart(n, root); err != nil {
			return err
		}
	}
	for n := root.floor; n <= r.end.seg(); n++ {
		if !r.exists(n) {
			return &Corruption{File: segmentPath(r.dir, n), Reason: "segment file is missing"}
		}
	}
	r.ix.files.addRange(root.floor, r.end.seg())
	r.rep.ReplayedRecords = r.ops.since(root.replay)
	if err := r.loadSnapshot(); err != nil {
		return err
	}
	r.ops.apply(r.ix)
	r.rep.Segments = len(*r.ix.files.list.Load())
	if r.ix.broken != nil {
		return r.ix.broken
	}
	return r.ix.damage
}

// walkPart collects the batches of segment n that lie between a snapshot's
// beginning and its root.
func (r *recovery) walkPart(n uint32, root *rootInfo) error {
	s, err := r.segment(n)
	if err != nil {
		return err
	}
	if s.reason != "" {
		return &Corruption{File: s.path, Reason: s.reason}
	}
	off, limit := int64(s.head.dataStart), root.at.off()
	if n == root.replay.seg() {
		off = max(off, root.replay.off())
	}
	if n < root.at.seg() {
		next, err := r.segment(n + 1)
		if err != nil {
			return err
		}
		if !next.link || next.prev.seg() != n {
			return &Corruption{File: next.path, Offset: int64(next.head.dataStart), Reason: "link frame is damaged"}
		}
		limit = next.prev.off()
	}
	end, err := r.walk(s, off, limit, func(h frameHead, body []byte, at pos) error {
		if h.kind != kindBatch {
			return nil
		}
		if err := r.ops.batch(body, at+frameHeadBytes); err != nil {
			return r.corrupt(at, err.Error())
		}
		return nil
	})
	if err == nil && end < limit {
		err = &Corruption{File: s.path, Offset: end, Reason: "no valid frame in data that a snapshot needs"}
	}
	return err
}

// eachRoot visits the snapshots from the one of the last Refresh, or the newest one
// that is there by now, down to the oldest that is whole.
func (r *Reader) eachRoot(fn func(*rootInfo) bool) error {
	var err error
	for try := 0; try < readerTries; try++ {
		rec := &recovery{fs: r.opt.FS, dir: r.dir, ix: newIndex(newFileSet(r.opt.FS, r.dir, 1), nil), readOnly: true, rep: &RecoveryReport{}, lazy: true, deferZeros: true}
		if err = rec.run(); err == nil {
			if rec.root == nil {
				return nil
			}
			return rec.roots(fn)
		}
		// As in Refresh: a writer beside us may have rolled or dropped.
		var c *Corruption
		if !errors.As(err, &c) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errDropped) {
			break
		}
	}
	return err
}

func (r *recovery) roots(fn func(*rootInfo) bool) error {
	first := r.numbers[0]
	for root := r.root; root != nil; {
		// All that was live then must still be there.
		if root.floor < first || !fn(root) {
			return nil
		}
		var err error
		var next *rootInfo
		if root.prev != 0 {
			if root.prev.seg() < first {
				return nil
			}
			next, err = r.readRoot(root.prev)
		} else {
			next, err = r.rootBefore(root.at)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // dropped while we looked
		}
		if err != nil {
			return err
		}
		root = next
	}
	return nil
}

// rootBefore looks for the root in front of position at, in this segment and the
// ones before; nil if there is none.
func (r *recovery) rootBefore(at pos) (*rootInfo, error) {
	for n, hi := at.seg(), at.off(); ; n-- {
		s, err := r.segment(n)
		if err != nil {
			return nil, err
		}
		f, err := r.fs.Open(s.path, vfs.ReadOnly)
		if err != nil {
			return nil, err
		}
		root, err := r.lastRoot(s, f, hi)
		f.Close()
		if root != nil || err != nil {
			return root, err
		}
		if !s.link || s.prev == 0 || !r.exists(n-1) {
			return nil, nil
		}
		hi = s.prev.off()
	}
}

// lastRoot looks for the last root frame of s that begins in front of hi.
func (r *recovery) lastRoot(s *recSegment, f vfs.File, hi int64) (*rootInfo, error) {
	low := int64(s.head.dataStart)
	mark := []byte{byte(kindRoot), formatVersion, 0, 0}
	buf := make([]byte, min(1<<20, s.size)+frameHeadBytes)
	var found []int
	for hi > low {
		lo := max(low, hi-1<<20)
		win := buf[:min(hi+frameHeadBytes-1, s.size)-lo]
		n, err := f.ReadAt(win, lo)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		// Forwards, because that search is fast, and the last one first.
		found = found[:0]
		for off := 0; ; {
			i := bytes.Index(win[off:n], mark)
			if i < 0 {
				break
			}
			found = append(found, off+i)
			off += i + 1
		}
		for k := len(found) - 1; k >= 0; k-- {
			at := lo + int64(found[k])
			if at >= hi {
				continue
			}
			root, err := r.rootIn(s, win[found[k]:n], at)
			if root != nil || err != nil {
				return root, err
			}
		}
		hi = lo
	}
	return nil, nil
}

// newestRoot looks for the newest root frame of the last segment that begins in
// front of the offset before, backwards; nil if there is none. What it finds is a frame that was written, not
// yet a snapshot that is whole.
func (r *recovery) newestRoot(before int64) (*rootInfo, error) {
	s := r.last
	f, err := r.fs.Open(s.path, vfs.ReadOnly)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	hi, err := r.usedTo(s, f)
	if err != nil {
		return nil, err
	}
	return r.lastRoot(s, f, min(hi, before))
}

// rootIn reads the root frame that may begin at off, where b was found; nil if
// there is none.
func (r *recovery) rootIn(s *recSegment, b []byte, off int64) (*rootInfo, error) {
	at := mkpos(s.number, off)
	if len(b) < frameHeadBytes {
		return nil, nil
	}
	h, ok := readFrameHead(b, at, s.head.salt)
	if !ok || h.kind != kindRoot || off+frameHeadBytes+int64(h.length) > s.size {
		return nil, nil
	}
	root, err := r.readRoot(at)
	var c *Corruption
	if errors.As(err, &c) {
		return nil, nil // torn: the walk judges that
	}
	return root, err
}

// usedTo is a place in s that no root frame worth finding lies behind: the end of
// a file that grows; in a zero-filled one the end of the data to some 100 KiB. If
// zeros in the data mislead it, an older root is found, which does as well.
func (r *recovery) usedTo(s *recSegment, f vfs.File) (int64, error) {
	if s.head.flags&flagZeroed == 0 {
		return s.size, nil
	}
	const step = 128 << 10
	used, free := int64(0), (s.size+step-1)/step // the block at used holds data
	var probe, zero [4096]byte
	for used+1 < free {
		mid := (used + free) / 2
		n, err := f.ReadAt(probe[:], mid*step)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if bytes.Equal(probe[:n], zero[:n]) {
			free = mid
		} else {
			used = mid
		}
	}
	return min(s.size, free*step), nil
}
