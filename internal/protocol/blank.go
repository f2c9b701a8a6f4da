package protocol

// Forget drops the state of a log that does not exist, so that an open that somebody made up does not take room for ever: the
// driver has looked for the claim of its id in the metadata (which precedes every token) after the promise was given, and found
// none. Nobody has held a token of such a log, so nobody relies on the promise; were the id claimed later, its first open asks for
// a promise anew. It does nothing for a log that has, or had, anything, or whose promise is not the one that was looked for.
func (s *Shard) Forget(log LogID, promised Epoch, out *Out) bool {
	l := s.logs[log]
	if l == nil || l.activated != 0 || l.deleted || l.dirty || l.promised != promised || len(l.held) > 0 || len(l.damaged) > 0 || l.archived != 0 {
		return false // dirty: this batch is about to write the state
	}
	s.touch(l)
	delete(s.logs, log)
	s.blank--
	out.Forgotten = append(out.Forgotten, log)
	return true
}

// Deleted drops what is held of a log that is deleted, as Drop does: the driver has read of the deletion in the metadata, because the
// node did not hear of it. Nobody can open the log any more, so its promise does not matter.
func (s *Shard) Deleted(log LogID, out *Out) {
	if l := s.logs[log]; l != nil && !l.deleted {
		s.empty(l, out)
	}
}

// empty drops the copies of a log, and keeps that it was deleted: late appends are refused (R11).
func (s *Shard) empty(l *nodeLog, out *Out) {
	l.deleted = true
	for i := range l.held {
		out.Trims = append(out.Trims, Trim{Log: l.id, Label: l.held[i].label, Whole: true})
	}
	l.held, l.damaged, l.oldest = nil, nil, 0
	s.mark(l, out)
}
