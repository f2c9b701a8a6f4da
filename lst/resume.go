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
	count := &countFS{FS: s.opt.FS}
	r := &recovery{fs: count, dir: s.dir, ix: s.ix, rep: rep, lazy: !s.opt.Inline || s.opt.lazyInline, deferZeros: !s.opt.Inline}
	s.ix.lock = &s.mu
	err := r.run()
	rep.Reads, rep.BytesRead = int(count.calls.Load()), count.bytes.Load()
	rep.BoundBytes = restartBound(rep)
	if err != nil {
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
	s.applied, s.durable, s.resumedAt = r.end, r.end, r.end
	if r.root != nil {
		s.snap.last, s.snap.number = *r.root, r.root.number
		s.snap.last.pieces = nil
		s.snap.synced = s.snap.last
		if c := s.ix.cold.Load(); c != nil {
			c.failed = s.coldFailed
			c.loaded = s.snap.follows
		} else {
			s.snap.follows(r.chain)
		}
	}
	s.sinceRecords = rep.ReplayedRecords
	return s.resume(r)
}

// restartBound is what a restart may read: the walk, the search for the newest
// root over the same bytes, and a constant for headers, probes, the root and the
// look behind the end of this file and the next.
func restartBound(rep *RecoveryReport) int64 { return 3*rep.ReplayedBytes + 2*zeroWindow + 4<<20 }

// coldFailed stops the store: a stream that cannot be read must not pass for
// absent, and nothing may be built on it.
func (s *Store) coldFailed(err error) {
	s.mu.Lock()
	s.latch(err)
	s.mu.Unlock()
}

// follows takes the sizes of the chain of snapshots that a restart found.
func (n *snapState) follows(chain []*rootInfo) {
	n.deltas = len(chain) - 1
	for _, root := range chain {
		if root.base {
			n.baseBytes = root.bytes
		} else {
			n.deltaBytes += root.bytes
		}
	}
}

// settle makes what was walked durable: it may still be in the page cache of a
// process that was killed, and the store builds on it from now on.
func (s *Store) settle(r *recovery) error {
	from := min(r.from.seg(), r.end.seg())
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
	w := &writeSegment{head: last.head, path: last.path, run: run, size: int64(last.head.size)}
	if err := s.openSegment(w); err != nil {
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
	} else if from, ok := r.unchecked[last.number]; ok {
		// Until the keeper has seen that only zeros follow, no further.
		w.size = from &^ (block - 1)
		s.checks = append(s.checks, zeroCheck{w, from})
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
		w := &writeSegment{head: sp.head, path: sp.path, run: run, size: int64(sp.head.size)}
		if from, ok := r.unchecked[n]; ok {
			s.making = true // whoever needs it waits for the keeper's look
			s.checks = append(s.checks, zeroCheck{w, from})
			return nil
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
	if err := s.openSegment(w); err != nil {
		return err
	}
	s.active, s.nextOff, s.fresh = w, int64(w.head.dataStart), true
	s.applied = mkpos(1, s.nextOff)
	s.durable = s.applied
	s.ix.files.add(1, &w.head)
	return nil
}

// zeroCheck is the rest of a preallocated file that a restart has not looked at.
type zeroCheck struct {
	w    *writeSegment
	from int64
}

// checkZeros looks at what the restart left. A frame found there proves, by its
// claim, that durable data in front of it is damaged; anything else only makes
// that part of the file unusable: stale frames of a torn write must never come to
// stand behind new ones.
func (s *Store) checkZeros() {
	s.mu.Lock()
	checks, end := s.checks, s.resumedAt
	s.checks = nil
	s.mu.Unlock()
	for _, c := range checks {
		claim, at, err := s.beyond(c)
		s.mu.Lock()
		spare := c.w.head.number > end.seg()
		switch {
		case err != nil:
			s.latch(err)
		case claim > end:
			s.latch(&Corruption{File: segmentPath(s.dir, end.seg()), Offset: end.off(), Reason: fmt.Sprintf(
				"no valid frame here, but the frame at %v was written when everything below %v was durable", at, claim)})
		case at == 0 && !spare:
			c.w.size = int64(c.w.head.size)
		case at == 0:
			s.spare = c.w
		}
		if spare {
			s.making = false // if it is no good, ensureSpare makes it anew
		}
		s.cond.Broadcast()
		s.mu.Unlock()
	}
}

// beyond looks for bytes from c.from on: the highest claim, and where something
// is; 0 if nothing is.
func (s *Store) beyond(c zeroCheck) (claim, at pos, err error) {
	f, err := s.opt.FS.Open(c.w.path, vfs.ReadOnly)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	r := &recovery{fs: s.opt.FS, dir: s.dir}
	size := int64(c.w.head.size)
	off, zero, err := r.zeros(f, c.from, size)
	if err != nil || zero {
		return 0, 0, err
	}
	at = mkpos(c.w.head.number, off)
	rs := &recSegment{number: c.w.head.number, path: c.w.path, head: c.w.head, size: size}
	err = r.claims(rs, f, off, func(p, frame pos) {
		if p > claim {
			claim, at = p, frame
		}
	})
	return claim, at, err
}
