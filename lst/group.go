package lst

import (
	"errors"
	"fmt"

	"github.com/btrlog/btrlog/lst/vfs"
)

// Commit makes a batch part of the store. Any number of goroutines may call it:
// what arrives while a write is under way goes into the next one together. See
// Durability for what is promised at return.
//
// If a split-phase owner has writes in flight, Commit waits for them: the owner
// must not call it then.
//
// ErrExists, ErrTrimmed, ErrTooLarge, ErrInvalid and ErrNoSpace are definite:
// nothing of the batch is in the store. Any other error leaves it unknown.
func (s *Store) Commit(b *Batch, d Durability) (Location, error) {
	if b.done == nil {
		b.done = make(chan commitResult, 1)
	}
	b.force = d == Forced
	s.qmu.Lock()
	if lead := !s.leading; lead {
		// Nobody is at it, so nobody waits: the group is this batch.
		s.leading = true
		s.group = append(s.group[:0], b)
		s.qmu.Unlock()
		return s.lead(b, s.group)
	}
	s.queue = append(s.queue, b)
	s.qmu.Unlock()
	if r := <-b.done; !r.lead {
		return b.loc, r.err
	}
	s.qmu.Lock()
	group := append(s.group[:0], s.queue...)
	s.group = group
	s.queue = s.queue[:0]
	s.qmu.Unlock()
	return s.lead(b, group)
}

// lead commits a group, its own batch included, and hands the lead on.
func (s *Store) lead(own *Batch, group []*Batch) (Location, error) {
	var ownErr error
	for len(group) > 0 {
		n := s.commitSome(group, own, &ownErr)
		group = group[n:]
	}
	// Copied now: once the lead is handed on, the batches are not ours.
	loc := own.loc
	s.qmu.Lock()
	if len(s.queue) > 0 {
		s.queue[0].done <- commitResult{lead: true}
	} else {
		s.leading = false
	}
	s.qmu.Unlock()
	return loc, ownErr
}

// commitSome commits the first batches of group that fit into one write,
// answers their callers, and returns how many those were.
func (s *Store) commitSome(group []*Batch, own *Batch, ownErr *error) int {
	answer := func(b *Batch, err error) {
		if b == own {
			*ownErr = err
		} else {
			b.done <- commitResult{err: err}
		}
	}

	for _, b := range group {
		if err := s.preload(b); err != nil {
			break // latched: prepare refuses all
		}
	}
	s.mu.Lock()
	good := s.good[:0]
	n, size, force := 0, 0, false
	for _, b := range group {
		if len(good) > 0 && (size+b.Bytes() > 1<<20 || conflicts(good, b)) {
			break
		}
		n++
		if err := s.check(b); err != nil {
			answer(b, err)
			continue
		}
		good = append(good, b)
		size += b.Bytes()
		force = force || b.force
	}
	s.good = good
	if len(good) == 0 {
		s.mu.Unlock()
		return n
	}
	p, err := s.prepare(good)
	if err != nil {
		s.mu.Unlock()
		for _, b := range good {
			answer(b, err)
		}
		return n
	}
	for _, pb := range p.batches {
		pb.b.loc = Location{Segment: pb.at.seg(), Offset: pb.at.off(), Length: frameHeadBytes + len(pb.b.body)}
	}
	w := Write{Ticket: p.ticket, File: p.seg.file, Offset: p.off, Buffer: p.buf, p: p}
	s.mu.Unlock()

	werr := w.Execute()

	s.mu.Lock()
	s.finish(p, werr)
	err = s.waitCompleted(w.Ticket)
	s.cond.Broadcast()
	due := s.upkeepDue()
	s.mu.Unlock()
	if err == nil && force && !s.dsync {
		err = s.Sync()
	}
	if err == nil && due {
		s.keep()
	}
	for _, b := range good {
		answer(b, err)
	}
	return n
}

// conflicts reports whether b appends to a stream that a batch of the same
// write touches: b is then checked for ErrExists after that one is applied.
func conflicts(good []*Batch, b *Batch) bool {
	pairs := 0
	for _, g := range good {
		pairs += len(g.ops) * len(b.ops)
	}
	if pairs > 1<<14 {
		return true // cheaper to write them apart than to compare
	}
	for i := range b.ops {
		if c := b.ops[i].code; c != opAppend && c != opAppendNext {
			continue
		}
		for _, g := range good {
			for k := range g.ops {
				if g.ops[k].code != opPut && g.ops[k].code != opDelete && g.ops[k].stream == b.ops[i].stream && g.ops[k].seq >= b.ops[i].seq {
					return true
				}
			}
		}
	}
	return false
}

// Sync makes everything committed so far durable against power loss.
func (s *Store) Sync() error {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	s.mu.Lock()
	if s.err != nil || s.closed {
		err := s.err
		if err == nil {
			err = ErrClosed
		}
		s.mu.Unlock()
		return err
	}
	target, root := s.applied, s.snap.last
	if s.durable >= target {
		s.snapSynced(root)
		s.mu.Unlock()
		return nil
	}
	// Older segments first does not matter: the claim moves only after all.
	files := append([]*writeSegment(nil), s.retired...)
	files = append(files, s.active)
	s.mu.Unlock()

	var err error
	for _, f := range files {
		if e := f.file.Sync(); e != nil && err == nil {
			err = fmt.Errorf("sync of %s: %w", f.path, e)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.syncs++
	if err != nil {
		// The kernel may have dropped the pages: a later sync that succeeds proves
		// nothing (L12).
		s.latch(err)
		return s.err
	}
	s.durable = max(s.durable, target)
	s.closeRetired()
	s.snapSynced(root)
	return nil
}

// closeRetired closes the segments that will not be written or synced again.
// Under mu.
func (s *Store) closeRetired() {
	keep := s.retired[:0]
	for _, w := range s.retired {
		if w.head.number < s.durable.seg() && w.head.number < s.applied.seg() {
			if err := w.file.Close(); err != nil && !errors.Is(err, vfs.ErrCrashed) {
				s.latch(err)
			}
			continue
		}
		keep = append(keep, w)
	}
	clear(s.retired[len(keep):])
	s.retired = keep
}
