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
