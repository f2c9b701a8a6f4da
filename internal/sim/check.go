package sim

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/btrlog/btrlog/internal/protocol"
)

// checker tells the judges of a log what clients were told. It knows nothing of how that came about: not the nodes, not the
// protocol, not the metadata. There is a judge for each safety property, each with its own memory, and each judges by
// the contents of records (judges.go).
type checker struct {
	logs  map[protocol.LogID]*logHistory
	fail  func(rule string, format string, args ...any)
	count *counters
	// record returns the trim point and the lost ranges on record, past all faults; a log that is deleted has neither.
	record func(protocol.LogID) (trimBefore protocol.LSN, lost protocol.LostRanges)
}

// logHistory is one log with its judges.
type logHistory struct {
	name  string
	acked protocol.LSN // highest LSN that a writer was told is committed

	trimAsked protocol.LSN        // the highest trim point that a client asked for
	expired   protocol.LSN        // the highest that retention moved it to
	lost      protocol.LostRanges // all that was ever on record
	// forgotten has, by the first LSN of a lost range, the epoch of the record when a trim took the range off it. Opens of later epochs do
	// not know of the range, nor do the nodes that they activate: nobody is to ask for it, since it is trimmed.
	forgotten map[protocol.LSN]protocol.Epoch
	consents  map[protocol.Epoch]bool // epochs whose opens had their owner's consent to lose what is missing
	dead      bool                    // its deletion has been told; what is given out from here on is never acknowledged
	late      map[protocol.LSN][]told // what was given out after that, by whatever writer: a fenced one may not know yet

	s1 stays
	s2 unique
	s3 prefix
	s4 onlyCommitted
	s5 oneReign
	s6 nothingLost
}

// told is a record that somebody was told is in the log, or a tail.
type told struct {
	data  []byte
	who   string
	epoch protocol.Epoch
}

// openFact is a completed open, or a tail that a reader was told by the record of an epoch.
type openFact struct {
	epoch       protocol.Epoch
	start, tail protocol.LSN
	who         string
}

// judge is what a judge says: empty is no complaint.
type complaint string

func complain(format string, args ...any) complaint { return complaint(fmt.Sprintf(format, args...)) }

func newChecker(count *counters, fail func(rule, format string, args ...any)) *checker {
	return &checker{logs: map[protocol.LogID]*logHistory{}, fail: fail, count: count,
		record: func(protocol.LogID) (protocol.LSN, protocol.LostRanges) { return 1, nil }}
}

// accepted returns the range in which lsn was lost with its owner's consent. Nothing is promised of it any more; not either to one who
// has not read the record since.
func (h *logHistory) accepted(lsn protocol.LSN) (protocol.Lost, bool) {
	if len(h.consents) == 0 {
		return protocol.Lost{}, false
	}
	l, ok := h.lost.At(lsn)
	return l, ok && h.consents[l.Epoch]
}

// recorded notes what a version of the log's record, which gave out epochs up to the given one, calls lost. A trim lets the record forget
// what is below it.
func (h *logHistory) recorded(epoch protocol.Epoch, lost protocol.LostRanges) {
	for _, l := range h.lost {
		_, still := lost.At(l.From)
		if _, ok := h.forgotten[l.From]; !still && !ok {
			h.forgotten[l.From] = epoch
		}
	}
	for _, l := range lost {
		if _, ok := h.lost.At(l.From); !ok {
			h.lost = append(h.lost, l)
			slices.SortFunc(h.lost, func(a, b protocol.Lost) int { return cmp.Compare(a.From, b.From) })
		}
	}
}

// consented notes that an open of an epoch may lose what is missing.
func (c *checker) consented(log protocol.LogID, epoch protocol.Epoch) {
	h := c.log(log)
	if h.consents == nil {
		h.consents = map[protocol.Epoch]bool{}
	}
	h.consents[epoch] = true
}

// trimming notes that somebody asks for a trim.
func (c *checker) trimming(log protocol.LogID, before protocol.LSN) {
	h := c.log(log)
	h.trimAsked = max(h.trimAsked, before)
}

// deleted notes that a client was told that the log is deleted.
func (c *checker) deleted(log protocol.LogID) {
	h := c.log(log)
	h.dead = true
}

// dataLoss notes that a reader was told that lsn is lost, by the log's record.
func (c *checker) dataLoss(log protocol.LogID, lsn protocol.LSN, who string) {
	h := c.log(log)
	c.count.add(&c.count.LossReads)
	if _, ok := h.accepted(lsn); !ok {
		c.fail("A5", "log %s: %s was told that LSN %d is lost, and nobody has accepted that", h.name, who, lsn)
	}
}

// trimmedRead notes that a reader was told that lsn is trimmed.
func (c *checker) trimmedRead(log protocol.LogID, lsn protocol.LSN, who string) {
	h := c.log(log)
	c.count.add(&c.count.TrimmedReads)
	if lsn >= max(h.trimAsked, h.expired) {
		c.fail("A5", "log %s: %s was told that LSN %d is trimmed, and nobody asked for more than %d, nor did the retention trim more than %d", h.name, who, lsn, h.trimAsked, h.expired)
	}
}

// resurrected notes what a node serves that has activated an epoch. What was recorded as lost at that one or before must not be of it,
// unless it was trimmed before that epoch was given out: then the node was not told.
func (c *checker) resurrected(log protocol.LogID, lsn protocol.LSN, activated protocol.Epoch, who string) {
	h := c.log(log)
	l, ok := h.accepted(lsn)
	trimmedAt, trimmed := h.forgotten[l.From]
	if ok && activated >= l.Epoch && (!trimmed || activated <= trimmedAt) {
		c.fail("P5", "log %s: LSN %d was recorded as lost at epoch %d, and %s at epoch %d serves it", h.name, lsn, l.Epoch, who, activated)
	}
}

func (c *checker) log(id protocol.LogID) *logHistory {
	h := c.logs[id]
	if h == nil {
		h = &logHistory{forgotten: map[protocol.LSN]protocol.Epoch{}, late: map[protocol.LSN][]told{}, s1: stays{}, s2: unique{}, s3: prefix{given: map[protocol.LSN][]told{}}, s6: nothingLost{}}
		h.s4 = onlyCommitted{given: map[protocol.LSN][]told{}, seen: map[protocol.LSN]told{}, marks: map[string]protocol.LSN{}}
		c.logs[id] = h
	}
	return h
}

// report tells the first complaint.
func (c *checker) report(h *logHistory, rule string, what complaint) {
	if what != "" {
		c.fail(rule, "log %s: %s", h.name, string(what))
	}
}

// gave notes that a writer gave lsn to data.
func (c *checker) gave(log protocol.LogID, epoch protocol.Epoch, lsn protocol.LSN, data []byte) {
	h := c.log(log)
	t := told{bytes.Clone(data), "", epoch}
	h.s3.gave(lsn, t)
	h.s4.gave(lsn, t)
	if h.dead {
		h.late[lsn] = append(h.late[lsn], t)
		c.count.add(&c.count.LateForDeleted)
	}
}

// acked notes that a writer was told that lsn is committed.
func (c *checker) acked(log protocol.LogID, epoch protocol.Epoch, lsn protocol.LSN, data []byte, who string) {
	h := c.log(log)
	c.count.add(&c.count.Commits)
	// The same LSN may have been given to another record before: what is acknowledged is a record, of this epoch or an earlier one.
	if slices.ContainsFunc(h.late[lsn], func(t told) bool { return t.epoch <= epoch && bytes.Equal(t.data, data) }) {
		c.fail("A5", "log %s: LSN %d was given out after the log was deleted, and acknowledged to %s", h.name, lsn, who)
	}
	t := told{bytes.Clone(data), who, epoch}
	c.report(h, "S2", h.s2.acked(lsn, t))
	c.report(h, "S1", h.s1.acked(lsn, t))
	c.report(h, "S5", h.s5.acked(lsn, t))
	c.report(h, "S4", h.s4.acked(lsn, t))
	h.s6.acked(lsn, t)
	h.acked = max(h.acked, lsn)
}

// read notes that a reader returned a record.
func (c *checker) read(log protocol.LogID, lsn protocol.LSN, data []byte, who string) {
	h := c.log(log)
	if _, ok := h.accepted(lsn); ok {
		return
	}
	c.report(h, "S1", h.s1.read(lsn, data, who))
	c.report(h, "S3", h.s3.read(lsn, data, who))
	c.report(h, "S4", h.s4.read(lsn, data, who))
}

// opened notes a completed open: everything at or below tail is committed and nothing older will appear behind it.
func (c *checker) opened(log protocol.LogID, epoch protocol.Epoch, start, tail protocol.LSN, who string) {
	h := c.log(log)
	o := openFact{epoch, start, tail, who}
	c.report(h, "S1", h.s1.opened(o))
	c.report(h, "S3", h.s3.opened(o))
	c.report(h, "S5", h.s5.opened(o))
	c.report(h, "S4", h.s4.opened(o))
}

// tailRead notes that a reader was told the tail, by the record of an epoch; before is what was acknowledged when it asked:
// a linearizable tail is not below that.
func (c *checker) tailRead(log protocol.LogID, epoch protocol.Epoch, before, tail protocol.LSN, who string) {
	h := c.log(log)
	c.report(h, "S4", h.s4.tailRead(before, openFact{epoch: epoch, tail: tail, who: who}))
}

// watermark notes how far a reader was told that the log is committed.
func (c *checker) watermark(log protocol.LogID, lsn protocol.LSN, who string) {
	h := c.log(log)
	c.report(h, "S4", h.s4.watermark(lsn, who))
}

// lost notes that a reader found that lsn is committed and that nobody has it.
func (c *checker) lost(log protocol.LogID, lsn protocol.LSN, who string) {
	h := c.log(log)
	if _, ok := h.accepted(lsn); ok {
		return
	}
	c.report(h, "S6", h.s6.lost(lsn, who))
}

// final compares a whole log, read after everything has healed, with all that was ever told: of what is neither trimmed nor lost with
// its owner's consent, all must be there.
func (c *checker) final(log protocol.LogID, tail protocol.LSN, got map[protocol.LSN][]byte, who string) {
	h := c.log(log)
	trimBefore, lost := c.record(log)
	if n := max(h.trimAsked, h.expired, 1); trimBefore > n {
		c.fail("A5", "log %s: trimmed before LSN %d, and nobody asked for more than %d", h.name, trimBefore, n)
	}
	for _, l := range lost {
		if !h.consents[l.Epoch] {
			c.fail("P5", "log %s: LSNs [%d,%d] are on record as lost at epoch %d, and nobody has accepted that", h.name, l.From, l.To, l.Epoch)
		}
	}
	left := kept(trimBefore, tail, lost)
	c.report(h, "S6", h.s6.final(left, tail, got, who))
	for _, r := range left {
		for lsn := r.From; lsn <= r.To && got[lsn] != nil; lsn++ {
			c.count.add(&c.count.FinalRecords)
			c.read(log, lsn, got[lsn], who)
		}
	}
	c.report(h, "S4", h.s4.final(tail, who))
	c.report(h, "S1", wholeBatches(left, tail, got, who))
}

// kept returns what of a log is to be there, ascending.
func kept(trimBefore, tail protocol.LSN, lost protocol.LostRanges) (out []protocol.Range) {
	for x := max(trimBefore, 1); x <= tail; {
		if l, ok := lost.At(x); ok {
			x = l.To + 1
			continue
		}
		end := min(tail, lost.Next(x)-1)
		out = append(out, protocol.Range{From: x, To: end})
		x = end + 1
	}
	return out
}
