package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/btrlog/btrlog/internal/protocol"
)

// checker knows what clients were told and nothing of how it came about: not the nodes, not the protocol, not the
// metadata. It judges by the contents of records alone.
//
//	S1  a record that was acknowledged keeps its bytes at its LSN for ever (until trimmed)
//	S2  no LSN has two committed contents
//	S3  what a completed open reported is a prefix of every later one
//	S4  no reader returns a record that is not of the log: what one reader saw, all see, and the end of the run too
//	S5  an acknowledged append belongs to the epoch that holds the log
//	S6  all of it under the wipes of the failure model; nothing acknowledged is missing at the end
//
// and with them that a batch is in the log whole or not at all.
type checker struct {
	logs  map[protocol.LogID]*logHistory
	fail  func(rule string, format string, args ...any)
	count *counters
}

// logHistory is what is known of one log.
type logHistory struct {
	name  string
	known map[protocol.LSN]fact
	given map[protocol.LSN][]given // every record that a writer gave an LSN to, by LSN
	opens []openFact
	top   protocol.LSN // highest LSN that is known to be committed
	acked protocol.LSN // highest LSN that a writer was told is committed
	tails []openFact   // what readers were told is the tail, and the epoch of the record they went by
}

// fact is a record that somebody was told is in the log.
type fact struct {
	data  []byte
	who   string
	epoch protocol.Epoch // of the writer that acknowledged it, or that gave it out if only a reader saw it
	acked bool
}

// given is a record that was given out.
type given struct {
	data  []byte
	epoch protocol.Epoch
}

// openFact is a completed open.
type openFact struct {
	epoch       protocol.Epoch
	start, tail protocol.LSN
	who         string
}

func newChecker(count *counters, fail func(rule, format string, args ...any)) *checker {
	return &checker{logs: map[protocol.LogID]*logHistory{}, fail: fail, count: count}
}

func (c *checker) log(id protocol.LogID) *logHistory {
	h := c.logs[id]
	if h == nil {
		h = &logHistory{known: map[protocol.LSN]fact{}, given: map[protocol.LSN][]given{}}
		c.logs[id] = h
	}
	return h
}

// gave notes that a writer gave lsn to data.
func (c *checker) gave(log protocol.LogID, epoch protocol.Epoch, lsn protocol.LSN, data []byte) {
	h := c.log(log)
	h.given[lsn] = append(h.given[lsn], given{bytes.Clone(data), epoch})
}

// acked notes that a writer was told that lsn is committed.
func (c *checker) acked(log protocol.LogID, epoch protocol.Epoch, lsn protocol.LSN, data []byte, who string) {
	h := c.log(log)
	c.count.add(&c.count.Commits)
	for _, o := range h.opens {
		if o.epoch > epoch && lsn > o.tail {
			c.fail("S5", "log %s: %s acknowledged LSN %d at epoch %d, but %s opened epoch %d with tail %d before", h.name, who, lsn, epoch, o.who, o.epoch, o.tail)
		}
	}
	h.acked = max(h.acked, lsn)
	c.learn(h, lsn, fact{data: data, who: who, epoch: epoch, acked: true})
}

// read notes that a reader returned a record.
func (c *checker) read(log protocol.LogID, lsn protocol.LSN, data []byte, who string) {
	h := c.log(log)
	epoch := protocol.Epoch(0)
	for _, g := range h.given[lsn] {
		if bytes.Equal(g.data, data) {
			epoch = g.epoch
			break
		}
	}
	if epoch == 0 {
		c.fail("S4", "log %s: %s returned %s at LSN %d, which no writer ever gave out there", h.name, who, describe(data), lsn)
	}
	c.learn(h, lsn, fact{data: data, who: who, epoch: epoch})
}

func (c *checker) learn(h *logHistory, lsn protocol.LSN, f fact) {
	old, ok := h.known[lsn]
	if ok && !bytes.Equal(old.data, f.data) {
		rule := "S4"
		if old.acked {
			rule = "S1"
		}
		if old.acked && f.acked {
			rule = "S2"
		}
		c.fail(rule, "log %s: LSN %d is %s by %s and %s by %s", h.name, lsn, describe(old.data), old.who, describe(f.data), f.who)
		return
	}
	if !ok {
		f.data = bytes.Clone(f.data)
		h.known[lsn] = f
	} else if f.acked && !old.acked {
		old.acked, old.epoch, old.who = true, f.epoch, f.who
		h.known[lsn] = old
	}
	h.top = max(h.top, lsn)
}

// opened notes a completed open: everything at or below tail is committed and nothing older will appear behind it.
func (c *checker) opened(log protocol.LogID, epoch protocol.Epoch, start, tail protocol.LSN, who string) {
	h := c.log(log)
	for lsn := tail + 1; lsn <= h.top; lsn++ {
		// A record acknowledged or read before must be in the log that this open found. Records of this or a younger epoch
		// are another matter: the open may have completed late.
		if f, ok := h.known[lsn]; ok && f.epoch < epoch {
			c.fail("S1", "log %s: %s opened epoch %d with tail %d, but LSN %d of epoch %d was known before (acknowledged: %v, to %s)",
				h.name, who, epoch, tail, lsn, f.epoch, f.acked, f.who)
		}
	}
	for _, o := range h.opens {
		if o.epoch < epoch && o.tail > tail || o.epoch > epoch && o.tail < tail {
			c.fail("S3", "log %s: %s opened epoch %d with tail %d, %s epoch %d with tail %d", h.name, who, epoch, tail, o.who, o.epoch, o.tail)
		}
		if o.epoch == epoch {
			c.fail("S5", "log %s: epoch %d was opened by %s and by %s", h.name, epoch, o.who, who)
		}
	}
	for _, t := range h.tails {
		if t.epoch < epoch && t.tail > tail {
			c.fail("S4", "log %s: %s was told the tail %d at epoch %d, but %s opened epoch %d with tail %d", h.name, t.who, t.tail, t.epoch, who, epoch, tail)
		}
	}
	h.opens = append(h.opens, openFact{epoch, start, tail, who})
}

// tailRead notes that a reader was told the tail, by the record of an epoch; before is what was acknowledged when it asked:
// a linearizable tail is not below that.
func (c *checker) tailRead(log protocol.LogID, epoch protocol.Epoch, before, tail protocol.LSN, who string) {
	h := c.log(log)
	if tail < before {
		c.fail("S4", "log %s: %s was told the tail %d, but %d was acknowledged before it asked", h.name, who, tail, before)
	}
	for _, o := range h.opens {
		if o.epoch > epoch && o.tail < tail {
			c.fail("S4", "log %s: %s was told the tail %d at epoch %d, but %s opened epoch %d with tail %d", h.name, who, tail, epoch, o.who, o.epoch, o.tail)
		}
	}
	h.tails = append(h.tails, openFact{epoch: epoch, tail: tail, who: who})
}

// final compares a whole log, read after everything has healed, with all that was ever told.
func (c *checker) final(log protocol.LogID, tail protocol.LSN, got map[protocol.LSN][]byte, who string) {
	h := c.log(log)
	for lsn := protocol.LSN(1); lsn <= tail; lsn++ {
		data, ok := got[lsn]
		if !ok {
			f := h.known[lsn]
			c.fail("S6", "log %s: %s does not find LSN %d of %d (acknowledged: %v, to %s)", h.name, who, lsn, tail, f.acked, f.who)
			return
		}
		c.count.add(&c.count.FinalRecords)
		c.read(log, lsn, data, who)
	}
	for lsn := tail + 1; lsn <= h.top; lsn++ {
		if f, ok := h.known[lsn]; ok {
			c.fail("S6", "log %s: the log ends at %d, but LSN %d was known (acknowledged: %v, to %s)", h.name, tail, lsn, f.acked, f.who)
			return
		}
	}
	c.batches(h, tail, got, who)
}

// batches checks that every batch of which one record is in the log is there whole, in order.
func (c *checker) batches(h *logHistory, tail protocol.LSN, got map[protocol.LSN][]byte, who string) {
	for lsn := protocol.LSN(1); lsn <= tail; lsn++ {
		p, ok := parsePayload(got[lsn])
		if !ok {
			c.fail("S4", "log %s: %s found %d bytes at LSN %d that no workload wrote", h.name, who, len(got[lsn]), lsn)
			return
		}
		for i := uint32(0); i < p.count; i++ {
			at := lsn + protocol.LSN(i) - protocol.LSN(p.pos)
			q, ok := parsePayload(got[at])
			if !ok || q.id != p.id || q.pos != i {
				c.fail("S1", "log %s: %s found record %d of %d of batch %016x at LSN %d, but not record %d", h.name, who, p.pos, p.count, p.id, lsn, i)
				return
			}
		}
	}
}

// payload is what every record says of itself: which append it belongs to and its place in the batch.
type payload struct {
	id         uint64
	pos, count uint32
}

const payloadHead = 16

// makePayload writes a record of at least payloadHead bytes whose every byte depends on its identity.
func makePayload(id uint64, pos, count uint32, size int) []byte {
	b := make([]byte, max(size, payloadHead))
	binary.LittleEndian.PutUint64(b, id)
	binary.LittleEndian.PutUint32(b[8:], pos)
	binary.LittleEndian.PutUint32(b[12:], count)
	x := id*0x9e3779b97f4a7c15 + uint64(pos)
	for i := payloadHead; i < len(b); i++ {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
	return b
}

func parsePayload(b []byte) (payload, bool) {
	if len(b) < payloadHead {
		return payload{}, false
	}
	return payload{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}, true
}

func describe(b []byte) string {
	p, ok := parsePayload(b)
	if !ok {
		return fmt.Sprintf("%d bytes", len(b))
	}
	return fmt.Sprintf("record %016x.%d/%d", p.id, p.pos, p.count)
}
