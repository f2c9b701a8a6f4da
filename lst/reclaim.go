package lst

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
)

// Order of a drop (T6), and what is lost otherwise:
//
//	1 a snapshot that needs nothing of the segment: without it the only whole
//	  index could be in the file that goes
//	2 synced: otherwise a power loss leaves the older snapshot, whose segments
//	  are gone
//	3 unlink, oldest first: a hole in the middle would be taken for damage
//
// Carrying forward is done by 1: a base snapshot holds every key-value and the
// state of every stream, so nothing of them is left behind (T3). Its size goes
// with the number of streams and keys, not of messages.

// reclaimable reports whether the oldest segment holds no live record. Under mu.
func (s *Store) reclaimable() bool {
	list := *s.ix.files.list.Load()
	return len(list) > 0 && list[0].number < s.lowestLive()
}

// Reclaim drops the oldest segments that hold no live record and returns how
// many, after trimming what Options.DropOldest and RetainAge want gone. Commits go on meanwhile; it writes a snapshot if it needs one. Call it
// after trimming streams. Segments are dropped oldest first: one live record
// pins its segment and all later ones.
func (s *Store) Reclaim() (int, error) {
	s.reclaimMu.Lock()
	defer s.reclaimMu.Unlock()
	if err := s.loadRest(); err != nil {
		return 0, err
	}
	if err := s.retain(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	if !s.reclaimable() {
		s.mu.Unlock()
		return 0, nil
	}
	floor := s.lowestLive()
	if s.snap.synced.floor < floor {
		// A base is needed only if pieces of older snapshots are in the way.
		if s.snap.running || s.snap.last.oldest < floor {
			s.snap.wantBase = true
		}
		s.mu.Unlock()
		if err := s.snapshotNow(floor); err != nil {
			return 0, err
		}
		s.mu.Lock()
	}
	keep := s.snap.synced.floor
	s.mu.Unlock()
	return s.dropBelow(keep)
}

// Snapshot completes a snapshot now and makes it durable.
func (s *Store) Snapshot() error {
	s.reclaimMu.Lock()
	defer s.reclaimMu.Unlock()
	if err := s.loadRest(); err != nil {
		return err
	}
	return s.snapshotNow(0)
}

// carriedBy is how many commits in one pause of snapshotNow carry a snapshot to its end
// by themselves. To encode it beside them would only make them wait for the lock.
const carriedBy = 16

// snapshotNow runs snapshots to their end until a durable one has a floor of at
// least floor, or cannot have: the one under way may have begun too early, so
// it can take two.
func (s *Store) snapshotNow(floor uint32) error {
	s.mu.Lock()
	s.snap.drivers++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.snap.drivers--
		s.mu.Unlock()
	}()
	for round := 0; round < 3; round++ {
		s.mu.Lock()
		before := s.snap.taken
		s.mu.Unlock()
		for {
			s.mu.Lock()
			if s.snap.taken > before {
				s.mu.Unlock()
				break
			}
			if !s.snap.running && !s.snap.rootFlies() {
				s.snapBegin()
			}
			ticket := s.ticket
			s.mu.Unlock()
			s.pace()
			s.mu.Lock()
			carried := s.ticket-ticket >= carriedBy && s.snapLag(s.snap.part()) <= 0 || s.snap.taken > before
			s.mu.Unlock()
			if !carried {
				if err := s.indexWrite(); err != nil {
					return err
				}
			}
		}
		if err := s.Sync(); err != nil {
			return err
		}
		s.mu.Lock()
		enough := s.snap.synced.floor >= floor && s.snap.synced.number >= s.snap.last.number
		if !enough && s.snap.last.oldest < floor {
			s.snap.wantBase = true
		}
		s.mu.Unlock()
		if enough {
			return nil
		}
	}
	return nil
}

// indexWrite writes what index frames are due, without a batch.
func (s *Store) indexWrite() error {
	s.mu.Lock()
	for !s.encodeStep() {
		s.mu.Unlock()
		if !s.opt.Inline {
			runtime.Gosched() // commits wait for a few entries, not for a piece
		}
		s.mu.Lock()
	}
	if s.opt.Inline && len(s.inflight) > 0 {
		s.mu.Unlock()
		return fmt.Errorf("%w: snapshot or reclaim while prepared writes are in flight in Inline mode", ErrInvalid)
	}
	// With less room than this the piece, or the root, would not be written.
	least := int64(max(len(s.snap.body), entryRoom)+2*frameHeadBytes+linkRoom+1024+s.snap.rootDue) + 2*int64(s.active.head.block)
	if s.room() < least {
		if int64(s.active.head.dataStart)+least > s.active.size {
			s.mu.Unlock()
			return fmt.Errorf("%w: the snapshot's root needs %d bytes, segments have %d: use larger segments", ErrTooLarge, s.snap.rootDue, s.active.size)
		}
		if err := s.makeRoom(s.room(), roomFree); err != nil {
			s.mu.Unlock()
			return err
		}
	}
	p, err := s.prepare(nil, s.through(true))
	if err != nil {
		s.mu.Unlock()
		return err
	}
	s.mu.Unlock()
	err = s.writeOut(p)
	if err == nil {
		s.housekeepSpare()
	}
	return err
}

// housekeepSpare replaces a spare that an index write has used up.
func (s *Store) housekeepSpare() {
	s.mu.Lock()
	want := s.wantSpare
	s.wantSpare = false
	s.mu.Unlock()
	switch {
	case want && s.opt.Inline:
		s.ensureSpare()
	case want:
		s.kick()
	}
}

// dropBelow unlinks the segments below keep.
func (s *Store) dropBelow(keep uint32) (int, error) {
	n := 0
	for {
		list := *s.ix.files.list.Load()
		if len(list) == 0 || list[0].number >= keep {
			break
		}
		f := list[0]
		// Out of the list first: a reader that comes later must not open a file
		// that is about to go; one that has it open keeps it.
		s.ix.files.drop(f.number)
		if err := s.opt.FS.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.mu.Lock()
			s.latch(err)
			s.mu.Unlock()
			return n, fmt.Errorf("lst: drop %s: %w", f.path, err)
		}
		n++
		s.mu.Lock()
		s.dropped++
		s.ix.liveDrop(f.number)
		s.mu.Unlock()
	}
	if n > 0 {
		if err := s.opt.FS.SyncDir(s.dir); err != nil {
			s.mu.Lock()
			s.latch(err)
			s.mu.Unlock()
			return n, err
		}
		if !s.opt.Inline {
			s.kick()
		} else {
			s.ensureSpare()
		}
	}
	return n, nil
}
