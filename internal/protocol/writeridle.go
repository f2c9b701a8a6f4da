package protocol

// A writer that appends nothing for a while keeps only what an idle log may cost: a process may hold ten thousand of them.
const (
	// idleAfter is how long after its last append a writer is idle, when all members have acknowledged all of it, and
	// idleAnyway when some have not: until then what they lack is kept for them (P15).
	idleAfter  = 30_000 * Millisecond
	idleAnyway = 600_000 * Millisecond
	// idleRecords and idleBytes are what is kept for reads of the newest records.
	idleRecords = 16
	idleBytes   = 16 << 10
)

// restAt is when the writer goes to rest, or never. It must have committed everything.
func (w *Writer) restAt() Time {
	if w.resting || w.clsn != w.next-1 {
		return never
	}
	for i := range w.nodes {
		if w.nodes[i].lo < w.next {
			return w.lastAt + idleAnyway
		}
	}
	return w.lastAt + idleAfter
}

// rest gives back the memory of an idle writer. What it forgets is committed; a member that lacks it is served by its peers or
// the archive, as after any drop of a backlog.
func (w *Writer) rest(now Time) {
	if now < w.restAt() {
		return
	}
	w.resting = true
	for w.low < w.next && (w.next-w.low > idleRecords || w.kept > idleBytes) {
		w.forget()
	}
	old := *w
	w.ring = make([]slot, idleRecords)
	for x := w.low; x < w.next; x++ {
		s := *old.slot(x)
		s.data = append([]byte(nil), s.data...) // without the room that larger records left in it
		*w.slot(x) = s
	}
	w.outbox = nil
}

// Resting reports whether the writer has given back what an idle one does not need; the next append ends it.
func (w *Writer) Resting() bool { return w.resting }
