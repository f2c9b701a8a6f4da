package lst

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/btrlog/btrlog/lst/vfs"
)

// recover opens the store's directory for writing.
func (s *Store) recover(rep *RecoveryReport) error {
	s.dsync = s.opt.Mode == Direct
	r := &recovery{fs: s.opt.FS, dir: s.dir, ix: s.ix, rep: rep}
	if err := r.run(); err != nil {
		return err
	}
	if r.last == nil {
		return s.startNew(r, rep)
	}
	s.storeID = r.last.head.storeID
	if err := s.settle(r); err != nil {
		return err
	}
	for _, n := range r.numbers {
		if sg := r.segs[n]; n > r.end.seg() && (sg == nil || !sg.blank || n > r.end.seg()+1) || r.root != nil && n < r.root.floor {
			rep.Removed = append(rep.Removed, segmentPath(s.dir, n))
		}
	}
	// From the highest down: a crash in between leaves no hole in the numbers.
	for i := len(rep.Removed) - 1; i >= 0; i-- {
		if err := s.opt.FS.Remove(rep.Removed[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if len(rep.Removed) > 0 {
		if err := s.opt.FS.SyncDir(s.dir); err != nil {
			return err
		}
	}
	s.applied, s.durable = r.end, r.end
	if r.root != nil {
		s.snap.last, s.snap.number = *r.root, r.root.number
		s.snap.last.pieces = nil
		s.snap.synced = s.snap.last
		s.snap.deltas, s.snap.deltaBytes, s.snap.baseBytes = r.chain, r.deltas, r.baseLen
	}
	s.sinceRecords = rep.ReplayedRecords
	return s.resume(r)
}

// settle makes what was walked durable: it may still be in the page cache of a
// process that was killed, and the store builds on it from now on.
func (s *Store) settle(r *recovery) error {
	from := min(r.last.claim.seg(), r.end.seg())
	for n := max(from, r.numbers[0]); n <= r.end.seg(); n++ {
		f, err := s.opt.FS.Open(segmentPath(s.dir, n), 0)
		if err != nil {
			return err
		}
		err = f.Sync()
		f.Close()
		if err != nil {
			return err
		}
	}
	return s.opt.FS.SyncDir(s.dir)
}

// resume continues in the last segment, or behind a tear in the next one. That
// one is made when the first write needs it, so that a store on a full disk
// still opens: to be read, and to be written once there is space.
func (s *Store) resume(r *recovery) error {
	last, err := r.segment(r.end.seg())
	if err != nil {
		return err
	}
	block := int64(last.head.block)
	run := vfs.Flag(0)
	if s.opt.Mode == Direct {
		run = vfs.DSync
		if block > 1 {
			run |= vfs.Direct
		}
	}
	w, err := s.openSegment(last.path, last.head, run)
	if err != nil {
		return err
	}
	s.active, s.nextOff = w, alignUp(r.end.off(), block)
	if f := s.ix.files.get(last.number); f != nil {
		f.header.Store(&last.head)
	}
	if s.opt.Mode == Direct && block > 1 && !s.direct.is(directNo) {
		s.direct.set(directYes, "")
	}
	aligned := int64(w.file.BlockSize()) <= block
	if r.torn || (s.opt.Mode == Direct) != (last.head.flags&flagZeroed != 0) || !aligned || s.nextOff > w.size {
		s.cutEnd, s.nextOff = r.end, w.size
	}
	return s.adoptSpare(r)
}

// adoptSpare takes over a preallocated segment that was not used yet, so that a
// crash loop does not leak files (L23).
func (s *Store) adoptSpare(r *recovery) error {
	n := s.active.head.number + 1
	if !r.exists(n) || r.segs[n] == nil || !r.segs[n].blank {
		return nil
	}
	sp, err := r.segment(n)
	if err != nil {
		return err
	}
	run := vfs.Flag(0)
	if s.opt.Mode == Direct {
		run = vfs.DSync
		if !s.direct.is(directNo) {
			run |= vfs.Direct
		}
	}
	fits := sp.head.flags&flagZeroed == 0 == (s.opt.Mode == Buffered) && s.direct.is(directYes) == (sp.head.block > 1)
	if sp.blank && fits && sp.head.storeID == s.storeID && int64(sp.head.size) == s.opt.SegmentBytes&^(int64(sp.head.block)-1) {
		w, err := s.openSegment(sp.path, sp.head, run)
		if err != nil {
			return err
		}
		s.spare = w
		return nil
	}
	if err := s.opt.FS.Remove(sp.path); err != nil {
		return err
	}
	return s.opt.FS.SyncDir(s.dir)
}

// startNew begins a store in a directory without any segment in use.
func (s *Store) startNew(r *recovery, rep *RecoveryReport) error {
	rep.Created = true
	for i := len(r.numbers) - 1; i >= 0; i-- {
		path := segmentPath(s.dir, r.numbers[i])
		if err := s.opt.FS.Remove(path); err != nil {
			return err
		}
		rep.Removed = append(rep.Removed, path)
	}
	s.opt.Random(s.storeID[:])
	w, err := s.createSegment(1, s.opt.SegmentBytes)
	if err != nil {
		if isNoSpace(err) {
			err = fmt.Errorf("%w: %w", ErrNoSpace, err)
		}
		return fmt.Errorf("lst: create store in %s: %w", filepath.Clean(s.dir), err)
	}
	s.active, s.nextOff, s.fresh = w, int64(w.head.dataStart), true
	s.applied = mkpos(1, s.nextOff)
	s.durable = s.applied
	s.ix.files.add(1, &w.head)
	return nil
}
