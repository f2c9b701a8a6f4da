package lst

import (
	"errors"
	"fmt"
	"runtime"

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
	b.force = d == Forced
	b.sum()
	if s.lead.CompareAndSwap(leadNobody, leadOne) {
		return s.leadAlone(b)
	}
	if b.done == nil {
		b.done = make(chan commitResult, 1)
	}
	s.qmu.Lock()
	for !s.lead.CompareAndSwap(leadOne, leadQueued) && s.lead.Load() != leadQueued {
		if s.lead.CompareAndSwap(leadNobody, leadOne) {
			s.qmu.Unlock()
			return s.leadAlone(b)
		}
	}
	s.queue = append(s.queue, b)
	s.qmu.Unlock()
	if r := <-b.done; !r.lead {
		return b.loc, r.err
	}
	s.qmu.Lock()
	s.group = append(s.group[:0], s.queue...)
	s.queue = s.queue[:0]
	s.lead.Store(leadOne)
	s.qmu.Unlock()
	return s.leadGroup(b, s.group)
}

// One caller leads: it commits its own batch and those of the callers that came
// while another one led.
const (
	leadNobody = iota
	leadOne    // somebody leads
	leadQueued // somebody leads, and batches are in the queue
)

// leadAlone commits b, and hands the lead on.
func (s *Store) leadAlone(b *Batch) (Location, error) {
	if s.opt.Mode == Buffered {
		if ok, err := s.commitAlone(b); ok {
			s.handOn()
			return b.loc, err
		}
	}
	s.group = append(s.group[:0], b)
	return s.leadGroup(b, s.group)
}

// leadGroup commits a group, its own batch included, and hands the lead on.
func (s *Store) leadGroup(own *Batch, group []*Batch) (Location, error) {
	var ownErr error
	for len(group) > 0 {
		n := s.commitSome(group, own, &ownErr)
		group = group[n:]
	}
	s.handOn()
	return own.loc, ownErr
}

// handOn makes the first of the queue the leader, if there is one.
func (s *Store) handOn() {
	if s.lead.CompareAndSwap(leadOne, leadNobody) {
		return
	}
	s.qmu.Lock()
	s.queue[0].done <- commitResult{lead: true}
	s.qmu.Unlock()
}

// lockSoon takes mu. Whoever holds it beside a commit encodes a few entries of a
// snapshot, or counts: a microsecond or two. To be put to sleep and woken takes ten times
// as long, and sync.Mutex tries for less than that before it does it.
func (s *Store) lockSoon() {
	if !s.mu.TryLock() {
		s.lockPatiently()
	}
}

func (s *Store) lockPatiently() {
	for range s.spins {
		if s.mu.TryLock() {
			return
		}
		pause()
	}
	s.mu.Lock()
}

// lockSpins is how often lockSoon tries, about 5 µs in all. With one processor the
// holder cannot go on meanwhile.
func lockSpins() int {
	if runtime.GOMAXPROCS(0) == 1 {
		return 0
	}
	return 64
}

// commitAlone is the short way of a batch that nobody waits with, in Buffered
// mode, while no index frame is to ride along: it is written from the batch's own
// memory. ok is false if something else has to be done first, and nothing was.
func (s *Store) commitAlone(b *Batch) (ok bool, err error) {
	if len(b.ops) > 0 {
		s.ix.byID.prefetch(&b.ops[0].stream) // here when the lock is taken
	}
	s.lockSoon()
	need := int64(len(b.frame))
	switch {
	case s.err != nil || s.closed || s.fresh || len(s.inflight) > 0 || s.active.head.block != 1,
		len(s.ix.seal) > 0 || s.snap.running || s.ix.cold.Load() != nil,
		s.spare == nil || need+linkRoom+1 > s.room() || need > s.opt.SegmentBytes/2,
		s.opt.DiskBudgetBytes != 0 && s.overBudget(0, b.room()) != nil:
		s.mu.Unlock()
		return false, nil
	}
	at := mkpos(s.active.head.number, s.nextOff)
	if len(b.ops) > 0 {
		s.ix.byID.prefetchStream(&b.ops[0].stream) // here when the checksums are done
		b.bind(b.frame, s.durable, at, s.active.head.salt)
	}
	if err := s.check(b); err != nil {
		s.mu.Unlock()
		return true, err
	}
	s.note(b)
	if s.snapDue() {
		s.sinceRecords -= b.adds
		s.sinceBytes -= need
		s.mu.Unlock()
		return false, nil
	}
	p := &s.alone
	b.loc = Location{Segment: at.seg(), Offset: at.off(), Length: len(b.frame)}
	p.seg, p.off, p.buf, p.done, p.through = s.active, s.nextOff, b.frame, false, s.through(b.force)
	p.batches = append(p.batches[:0], pendingBatch{b, at})
	s.launch(p)
	file, off, ticket, end := s.writeTo(p), p.off, p.ticket, p.pos()
	zeroAt, zeros := s.readyFor(p)
	s.ix.cache.prefetch(len(b.frame), at) // here when the write is done
	s.mu.Unlock()

	if zeros > 0 {
		makeReady(file, zeroAt, zeros)
	}
	n, err := file.WriteAt(b.frame, off)
	if err == nil && n != len(b.frame) {
		err = shortWrite(n, len(b.frame))
	}

	s.lockSoon()
	if zeros > 0 {
		s.readyDone()
	}
	s.finish(p, err)
	p.batches[0].b, p.buf = nil, nil
	if err = s.err; err != nil || s.completed < ticket {
		err = s.waitCompleted(ticket)
	}
	s.cond.Broadcast()
	due, open := s.upkeepDue(), s.durable < end
	s.mu.Unlock()
	if err == nil && b.force && open {
		err = s.Sync()
	}
	if err == nil && due {
		s.keep()
	}
	return true, err
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
	s.lockSoon()
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
	p, err := s.prepare(good, s.through(force))
	if err != nil {
		s.mu.Unlock()
		for _, b := range good {
			answer(b, err)
		}
		return n
	}
	for _, pb := range p.batches {
		pb.b.loc = Location{Segment: pb.at.seg(), Offset: pb.at.off(), Length: pb.b.Bytes()}
	}
	w := Write{Ticket: p.ticket, File: s.writeTo(p), Offset: p.off, Buffer: p.buf, p: p}
	end := p.pos()
	zeroAt, zeros := s.readyFor(p)
	s.mu.Unlock()

	if zeros > 0 {
		makeReady(w.File, zeroAt, zeros)
	}
	werr := w.Execute()

	s.lockSoon()
	if zeros > 0 {
		s.readyDone()
	}
	s.finish(p, werr)
	err = s.waitCompleted(w.Ticket)
	s.cond.Broadcast()
	due, open := s.upkeepDue(), s.durable < end
	s.mu.Unlock()
	// Before the answer: of what was written without a sync in front of a forced
	// commit nothing may be missing either, or recovery would end in front of it.
	if err == nil && force && open {
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

// through reports whether a write goes down at once. It does not if nobody waits for
// that, nor if something in front of it has to be synced anyway: then one fdatasync
// behind it does both. Under mu.
func (s *Store) through(force bool) bool { return s.dsync && force && s.durable == s.applied }

// writeTo returns the file that a write goes to. What need not go down at once goes
// through the page cache, also in Direct mode. The two do not get in each other's
// way: a direct write first writes back and drops the cached pages that it touches.
// Under mu.
func (s *Store) writeTo(p *pending) vfs.File {
	w := p.seg
	if p.through || !s.dsync {
		return w.file
	}
	if w.cached == nil {
		f, err := s.opt.FS.Open(w.path, 0)
		if err != nil {
			p.through = true // slower, and as good
			return w.file
		}
		w.cached = f
	}
	return w.cached
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
	target, root, written := s.applied, s.snap.last, s.written
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
	s.forced = max(s.forced, written)
	s.closeRetired()
	s.snapSynced(root)
	return nil
}

// closeRetired closes the segments that will not be written or synced again.
// Under syncMu and mu: a Sync that is under way uses their descriptors.
func (s *Store) closeRetired() {
	keep := s.retired[:0]
	for _, w := range s.retired {
		if w.head.number < s.durable.seg() && w.head.number < s.applied.seg() {
			if err := w.close(); err != nil && !errors.Is(err, vfs.ErrCrashed) {
				s.latch(err)
			}
			continue
		}
		keep = append(keep, w)
	}
	clear(s.retired[len(keep):])
	s.retired = keep
}
