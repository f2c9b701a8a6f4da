package lst

// HasRoom reports whether a batch with records, of bytes bytes by Batch.Bytes,
// would find space now: in the active segment above the reserve, or in the next
// one, which is there or being made. It is for owners who must know before they
// act; the answer holds for one batch of the owner's, if nobody else commits. A
// false answer makes the store try to get its next segment: ask again later,
// not in a loop.
func (s *Store) HasRoom(bytes int64) bool { return s.hasRoom(bytes, roomRecords) }

// HasReserve is HasRoom for a batch that may use the reserve (Batch.UseReserve).
func (s *Store) HasReserve(bytes int64) bool { return s.hasRoom(bytes, roomReserve) }

func (s *Store) hasRoom(bytes int64, class roomClass) bool {
	s.mu.Lock()
	want := bytes + linkRoom + int64(s.active.head.block)
	switch {
	case s.err != nil || s.closed:
		s.mu.Unlock()
		return true // the commit says what is wrong
	case bytes+linkRoom > s.opt.SegmentBytes-2*int64(max(s.active.head.block, headerBytes)):
		s.mu.Unlock()
		return false
	case s.overBudget(0, class) != nil, s.spare != nil && want > s.room() && s.overBudget(s.opt.SegmentBytes, class) != nil:
		s.mu.Unlock()
		return false // what is left is for what is more urgent
	case s.spare != nil || want+s.keepFree(class) <= s.room():
		s.mu.Unlock()
		return true
	case s.spareErr == nil && !s.opt.Inline && (s.overBudget(s.opt.SegmentBytes, class) == nil || s.reclaiming || s.reclaimable()):
		s.mu.Unlock()
		return true // the next segment is on its way; the commit waits for it
	}
	if class == roomReserve {
		s.reserveAsked = true // of the keeper, who else makes segments for records only
	}
	s.mu.Unlock()
	if !s.opt.Inline {
		s.kick()
		return false
	}
	s.ensureSpare()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil || s.spare != nil && s.overBudget(s.opt.SegmentBytes, class) == nil
}
