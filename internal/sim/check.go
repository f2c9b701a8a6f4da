package sim

import (
	"bytes"
	"fmt"

	"github.com/btrlog/btrlog/internal/protocol"
)

// checker tells the judges of a log what clients were told. It knows nothing of how that came about: not the nodes, not the
// protocol, not the metadata. There is a judge for each safety property, each with its own memory, and each judges by
// the contents of records (judges.go).
type checker struct {
	logs  map[protocol.LogID]*logHistory
	fail  func(rule string, format string, args ...any)
	count *counters
}

// logHistory is one log with its judges.
type logHistory struct {
	name  string
	acked protocol.LSN // highest LSN that a writer was told is committed

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
	return &checker{logs: map[protocol.LogID]*logHistory{}, fail: fail, count: count}
}

func (c *checker) log(id protocol.LogID) *logHistory {
	h := c.logs[id]
	if h == nil {
		h = &logHistory{s1: stays{}, s2: unique{}, s3: prefix{given: map[protocol.LSN][]told{}}, s6: nothingLost{}}
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
}

// acked notes that a writer was told that lsn is committed.
func (c *checker) acked(log protocol.LogID, epoch protocol.Epoch, lsn protocol.LSN, data []byte, who string) {
	h := c.log(log)
	c.count.add(&c.count.Commits)
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
	c.report(h, "S6", h.s6.lost(lsn, who))
}

// final compares a whole log, read after everything has healed, with all that was ever told.
func (c *checker) final(log protocol.LogID, tail protocol.LSN, got map[protocol.LSN][]byte, who string) {
	h := c.log(log)
	c.report(h, "S6", h.s6.final(tail, got, who))
	for lsn := protocol.LSN(1); lsn <= tail && got[lsn] != nil; lsn++ {
		c.count.add(&c.count.FinalRecords)
		c.read(log, lsn, got[lsn], who)
	}
	c.report(h, "S4", h.s4.final(tail, who))
	c.report(h, "S1", wholeBatches(tail, got, who))
}
