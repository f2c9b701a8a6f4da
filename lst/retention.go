package lst

import (
	"errors"
	"fmt"
	"time"
)

// Retention: what goes, in which order, and what holds it.
//
//	R1 Data leaves from the front of a stream: expiring a segment trims each stream
//	   with records in it to behind the last of them. Nothing is read but index.
//	R2 The segment is dropped when a synced snapshot no longer needs it (reclaim.go).
//	   That snapshot carries the state of idle streams and the key-values forward.
//	R3 What is still needed is never dropped: the store stays above its budget and
//	   says so (Held).
//	R4 Time runs by the monotonic clock of the process where there is one. A time in
//	   the future counts as now: it neither stops retention nor drops anything early.

// RetentionState says what limits the store's space.
type RetentionState uint8

const (
	// RetentionOK: the next segment is there, being made, or not needed yet.
	RetentionOK RetentionState = iota
	// RetentionReclaiming: segments are being dropped.
	RetentionReclaiming
	// RetentionHeld: over the budget, or the disk is full, and the oldest segment
	// holds what is still needed. Commits still fit into the active segment.
	RetentionHeld
	// RetentionReserveOnly: batches with records are refused with ErrNoSpace; trims,
	// deletes and key-values are accepted from the reserve.
	RetentionReserveOnly
)

// String names the state.
func (r RetentionState) String() string {
	return [...]string{"ok", "reclaiming", "held", "reserve only"}[r]
}

// RetentionStatus is an answer of Store.Retention.
type RetentionStatus struct {
	State       RetentionState
	Reason      string // what holds the oldest segment, or why there is no other; empty if ok
	UsedBytes   int64  // segment files together
	BudgetBytes int64  // 0: none
	Oldest      uint32 // number of the oldest segment
	OldestLive  int64  // records in it that are not trimmed
	PinnedBytes int64  // in segments that are unlinked while readers still have them open
	Expired     uint64 // segments whose records retention has trimmed
	Dropped     uint64 // segments unlinked
}

// Retention says whether the store stays within its budget, and what holds it if not.
func (s *Store) Retention() RetentionStatus {
	pinned := s.ix.files.pinned()
	s.mu.Lock()
	defer s.mu.Unlock()
	list := *s.ix.files.list.Load()
	n := int64(len(list))
	if s.spare != nil {
		n++
	}
	st := RetentionStatus{
		UsedBytes: n * s.opt.SegmentBytes, BudgetBytes: s.opt.DiskBudgetBytes, PinnedBytes: pinned * s.opt.SegmentBytes,
		Expired: s.expired, Dropped: s.dropped,
	}
	if len(list) == 0 {
		return st
	}
	st.Oldest = list[0].number
	if v := s.ix.live[st.Oldest]; v != nil {
		st.OldestLive = v.records
	}
	switch {
	case s.reclaiming:
		st.State, st.Reason = RetentionReclaiming, "segments are being dropped"
	case s.spare != nil || s.spareErr == nil:
	case s.reserve()+linkRoom+int64(s.active.head.block) > s.room():
		st.State, st.Reason = RetentionReserveOnly, s.spareErr.Error()
	default:
		st.State = RetentionHeld
	}
	if st.State == RetentionHeld || st.State == RetentionReserveOnly {
		st.Reason = fmt.Sprintf("%v; %s", s.spareErr, s.holder(st))
	}
	return st
}

// holder says what keeps the oldest segment. Under mu.
func (s *Store) holder(st RetentionStatus) string {
	name := segmentName(st.Oldest)
	switch {
	case s.ix.cold.Load() != nil:
		return "the index is still being read after the restart"
	case st.OldestLive > 0:
		return fmt.Sprintf("%s holds %d records that are not trimmed", name, st.OldestLive)
	case st.Oldest >= s.lowestLive():
		return fmt.Sprintf("%s is being written", name)
	case s.snap.synced.floor <= st.Oldest:
		return fmt.Sprintf("%s holds index that the next durable snapshot carries forward", name)
	}
	return fmt.Sprintf("%s can be dropped: call Reclaim", name)
}

// nowMS is the time for ages. time.Time keeps the monotonic clock, so that setting
// the wall clock while the process runs changes nothing (R4).
func (s *Store) nowMS() int64 {
	return s.startWall.UnixMilli() + s.opt.Now().Sub(s.startWall).Milliseconds()
}

// dueSegment is the newest segment that retention wants expired, 0 for none, and
// why. Segments below the oldest are long gone.
func (s *Store) dueSegment() uint32 {
	due := uint32(0)
	s.mu.Lock()
	list := *s.ix.files.list.Load()
	active, last := s.active.head.number, s.lastAppendMS
	over := s.opt.DropOldest && s.spare == nil && s.overBudget(s.opt.SegmentBytes, roomRecords) != nil
	s.mu.Unlock()
	if over && len(list) > 1 {
		due = list[0].number
	}
	if s.opt.RetainAge <= 0 {
		return due
	}
	now, end, young := s.nowMS(), int64(0), false
	for i, f := range list {
		e := last
		if i+1 < len(list) {
			h, err := s.ix.files.head(list[i+1])
			if err != nil {
				break // dropped meanwhile, or damaged: reading it will say so
			}
			e = h.createdMS
		} else if f.number != active || last == 0 {
			break
		}
		if seen, ok := s.ends[f.number]; ok {
			e = seen
		}
		// A clock that went back must not make younger data look older than what
		// lies in front of it; one that is ahead counts from now.
		e = min(max(e, end), now)
		if f.number != active {
			s.ends[f.number] = e
		}
		// All are looked at, young ones too: a time in the future is made now when it
		// is first seen, not when everything in front is gone.
		end = e
		if young = young || now-e < s.opt.RetainAge.Milliseconds(); !young {
			due = max(due, f.number)
		}
	}
	return due
}

const trimsAtOnce = 256

// expire trims every stream to behind its last record in segments up to upTo.
func (s *Store) expire(upTo uint32) error {
	// Most streams arrive in order: their records in old segments are in front. If
	// that leaves records behind, look at all of every stream.
	for _, all := range [2]bool{false, true} {
		var b Batch
		var err error
		s.ix.streams.ascend(nil, func(st *stream) bool {
			var before uint64
			if before, err = s.ix.expiredTo(st, upTo, all); err != nil {
				return false
			}
			if before > 0 {
				b.Trim(st.id, before)
			}
			if b.Len() >= trimsAtOnce {
				err = s.commitOwn(&b)
				b.Reset()
			}
			return err == nil
		})
		if err == nil && b.Len() > 0 {
			err = s.commitOwn(&b)
		}
		if err != nil {
			return err
		}
		left := int64(0)
		s.mu.Lock()
		for seg, v := range s.ix.live {
			if seg <= upTo {
				left += v.records
			}
		}
		s.mu.Unlock()
		if left == 0 {
			break
		}
	}
	return nil
}

// expiredTo is the sequence behind the last record of st in a segment up to upTo,
// 0 if it has none. It reads like a reader, without a lock.
func (x *index) expiredTo(st *stream, upTo uint32, all bool) (before uint64, err error) {
	trim := st.trim.Load()
	for _, l := range st.list() {
		found := false
		see := func(i int, s slot) {
			if seq := l.base + uint64(i); seq >= trim && s.at != 0 && s.at.seg() <= upTo {
				before, found = seq+1, true
			}
		}
		if o := l.open.Load(); o != nil {
			o.all(see)
		} else {
			d, err := x.leafData(st.id, l.base, l.sealed.Load())
			if errors.Is(err, errDropped) {
				continue
			}
			if err != nil {
				return 0, err
			}
			d.all(see)
		}
		if !found && !all && l.base+leafSlots > trim {
			break
		}
	}
	return before, nil
}

// commitOwn commits a batch of the store's own, past the queue of its callers.
func (s *Store) commitOwn(b *Batch) error {
	b.sum()
	s.mu.Lock()
	if err := s.check(b); err != nil {
		s.mu.Unlock()
		return err
	}
	p, err := s.prepare([]*Batch{b}, s.through(true))
	if err != nil {
		s.mu.Unlock()
		return err
	}
	s.mu.Unlock()
	return s.writeOut(p)
}

// writeOut does a prepared write of the store's own and waits until it is complete.
func (s *Store) writeOut(p *pending) error {
	s.mu.Lock()
	w := Write{Ticket: p.ticket, File: s.writeTo(p), Offset: p.off, Buffer: p.buf, p: p}
	s.mu.Unlock()
	werr := error(nil)
	if len(w.Buffer) > 0 {
		werr = w.Execute()
	}
	s.mu.Lock()
	s.finish(p, werr)
	err := s.waitCompleted(w.Ticket)
	s.cond.Broadcast()
	s.mu.Unlock()
	return err
}

// retain applies DropOldest and RetainAge once. The caller holds reclaimMu.
func (s *Store) retain() error {
	if !s.opt.DropOldest && s.opt.RetainAge <= 0 {
		return nil
	}
	due := s.dueSegment()
	if due == 0 || due <= s.expiredUpTo {
		return nil
	}
	if err := s.expire(due); err != nil {
		return err
	}
	s.mu.Lock()
	s.expired += uint64(due - max(s.expiredUpTo, s.firstSegment()-1))
	s.expiredUpTo = due
	// An idle active segment whose records are gone would stay for ever.
	if due == s.active.head.number {
		s.expiredUpTo--
		s.lastAppendMS = 0
	}
	s.mu.Unlock()
	return nil
}

func (s *Store) firstSegment() uint32 {
	if list := *s.ix.files.list.Load(); len(list) > 0 {
		return list[0].number
	}
	return 1
}

// ageTick is how often an idle store looks at ages.
func (s *Store) ageTick() (<-chan time.Time, func()) {
	if s.opt.RetainAge <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(max(s.opt.RetainAge/16, time.Second))
	return t.C, t.Stop
}
