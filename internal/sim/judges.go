package sim

import (
	"bytes"
	"iter"
	"maps"
	"slices"

	"github.com/btrlog/btrlog/internal/protocol"
)

// stays judges S1: a record that was acknowledged keeps its bytes at its LSN for ever (until trimmed).
type stays map[protocol.LSN]told

func (j stays) acked(lsn protocol.LSN, t told) complaint {
	old, ok := j[lsn]
	if !ok || old.epoch > t.epoch {
		j[lsn] = t
	}
	return "" // two acknowledgements that differ are S2's
}

func (j stays) read(lsn protocol.LSN, data []byte, who string) complaint {
	if a, ok := j[lsn]; ok && !bytes.Equal(a.data, data) {
		return complain("LSN %d was acknowledged to %s as %s, and is %s to %s", lsn, a.who, describe(a.data), describe(data), who)
	}
	return ""
}

// opened: a record that was acknowledged before must be in the log that an open of a later epoch found. Records of this or a
// later epoch are another matter: the open may have been told late.
func (j stays) opened(o openFact) complaint {
	var worst protocol.LSN
	for lsn, a := range j {
		if lsn > o.tail && a.epoch < o.epoch && (worst == 0 || lsn < worst) {
			worst = lsn
		}
	}
	if worst != 0 {
		return complain("%s opened epoch %d with tail %d, but LSN %d of epoch %d was acknowledged to %s before", o.who, o.epoch, o.tail, worst, j[worst].epoch, j[worst].who)
	}
	return ""
}

// unique judges S2: two acknowledged records never share an LSN.
type unique map[protocol.LSN]told

func (j unique) acked(lsn protocol.LSN, t told) complaint {
	old, ok := j[lsn]
	if ok && !bytes.Equal(old.data, t.data) {
		return complain("LSN %d was acknowledged to %s as %s and to %s as %s", lsn, old.who, describe(old.data), t.who, describe(t.data))
	}
	j[lsn] = t
	return ""
}

// prefix judges S3: what a completed open reported is a prefix of every later one, and nothing older appears behind it.
type prefix struct {
	opens []openFact
	given map[protocol.LSN][]told
}

func (j *prefix) gave(lsn protocol.LSN, t told) { j.given[lsn] = append(j.given[lsn], t) }

func (j *prefix) opened(o openFact) complaint {
	for _, p := range j.opens {
		if p.epoch < o.epoch && p.tail > o.tail || p.epoch > o.epoch && p.tail < o.tail {
			return complain("%s opened epoch %d with tail %d, %s epoch %d with tail %d", o.who, o.epoch, o.tail, p.who, p.epoch, p.tail)
		}
	}
	j.opens = append(j.opens, o)
	return ""
}

// read: a record behind the tail of a completed open is of that epoch or of a later one.
func (j *prefix) read(lsn protocol.LSN, data []byte, who string) complaint {
	youngest := protocol.Epoch(0) // under which the record was given out: a live writer gives out again after a re-open
	for _, g := range j.given[lsn] {
		if bytes.Equal(g.data, data) {
			youngest = max(youngest, g.epoch)
		}
	}
	for _, o := range j.opens {
		if youngest != 0 && youngest < o.epoch && lsn > o.tail {
			return complain("%s returned %s of epoch %d at LSN %d, behind the tail %d with which %s opened epoch %d", who, describe(data), youngest, lsn, o.tail, o.who, o.epoch)
		}
	}
	return ""
}

// onlyCommitted judges S4: no reader returns a record that is not of the log. What one reader saw, all see, and every later
// open and the end of the run too.
type onlyCommitted struct {
	given map[protocol.LSN][]told
	seen  map[protocol.LSN]told
	top   protocol.LSN
	tails []openFact
	opens []openFact
	marks map[string]protocol.LSN // by reader
}

// watermark: what one reader was told is committed stays so (P9).
func (j *onlyCommitted) watermark(lsn protocol.LSN, who string) complaint {
	if old := j.marks[who]; lsn < old {
		return complain("%s was told that %d is committed, and then that %d is the watermark", who, old, lsn)
	}
	j.marks[who] = lsn
	return ""
}

func (j *onlyCommitted) gave(lsn protocol.LSN, t told) { j.given[lsn] = append(j.given[lsn], t) }

func (j *onlyCommitted) acked(lsn protocol.LSN, t told) complaint {
	if old, ok := j.seen[lsn]; ok && !bytes.Equal(old.data, t.data) {
		return complain("LSN %d was %s to %s, and is acknowledged to %s as %s", lsn, describe(old.data), old.who, t.who, describe(t.data))
	}
	return ""
}

func (j *onlyCommitted) read(lsn protocol.LSN, data []byte, who string) complaint {
	if old, ok := j.seen[lsn]; ok {
		if !bytes.Equal(old.data, data) {
			return complain("LSN %d is %s to %s and %s to %s", lsn, describe(old.data), old.who, describe(data), who)
		}
		return ""
	}
	epoch := protocol.Epoch(0)
	for _, g := range j.given[lsn] {
		if bytes.Equal(g.data, data) {
			epoch = g.epoch
			break
		}
	}
	if epoch == 0 {
		return complain("%s returned %s at LSN %d, which no writer ever gave out there", who, describe(data), lsn)
	}
	j.seen[lsn] = told{bytes.Clone(data), who, epoch}
	j.top = max(j.top, lsn)
	return ""
}

func (j *onlyCommitted) opened(o openFact) complaint {
	for lsn, s := range j.above(o.tail) {
		if s.epoch < o.epoch {
			return complain("%s opened epoch %d with tail %d, but %s was told LSN %d of epoch %d before", o.who, o.epoch, o.tail, s.who, lsn, s.epoch)
		}
	}
	for _, t := range j.tails {
		if t.epoch < o.epoch && t.tail > o.tail {
			return complain("%s was told the tail %d at epoch %d, but %s opened epoch %d with tail %d", t.who, t.tail, t.epoch, o.who, o.epoch, o.tail)
		}
	}
	j.opens = append(j.opens, o)
	return ""
}

// above yields what was seen above a tail, upwards. An accepted loss can skip 10^12 LSNs: then what was seen is gone through, and not the LSNs.
func (j *onlyCommitted) above(tail protocol.LSN) iter.Seq2[protocol.LSN, told] {
	return func(yield func(protocol.LSN, told) bool) {
		if j.top > tail && j.top-tail > protocol.LSN(len(j.seen)) {
			for _, lsn := range slices.Sorted(maps.Keys(j.seen)) {
				if lsn > tail && !yield(lsn, j.seen[lsn]) {
					return
				}
			}
			return
		}
		for lsn := tail + 1; lsn <= j.top; lsn++ {
			if s, ok := j.seen[lsn]; ok && !yield(lsn, s) {
				return
			}
		}
	}
}

func (j *onlyCommitted) tailRead(before protocol.LSN, t openFact) complaint {
	if t.tail < before {
		return complain("%s was told the tail %d, but %d was acknowledged before it asked", t.who, t.tail, before)
	}
	for _, o := range j.opens {
		if o.epoch > t.epoch && o.tail < t.tail {
			return complain("%s was told the tail %d at epoch %d, but %s opened epoch %d with tail %d", t.who, t.tail, t.epoch, o.who, o.epoch, o.tail)
		}
	}
	j.tails = append(j.tails, t)
	return ""
}

func (j *onlyCommitted) final(tail protocol.LSN, who string) complaint {
	for lsn, s := range j.above(tail) {
		return complain("%s finds that the log ends at %d, but %s was told LSN %d", who, tail, s.who, lsn)
	}
	return ""
}

// oneReign judges S5: an acknowledged append belongs to the epoch that holds the log.
type oneReign struct{ opens []openFact }

func (j *oneReign) acked(lsn protocol.LSN, t told) complaint {
	for _, o := range j.opens {
		if o.epoch > t.epoch && lsn > o.tail {
			return complain("%s acknowledged LSN %d at epoch %d, but %s opened epoch %d with tail %d before", t.who, lsn, t.epoch, o.who, o.epoch, o.tail)
		}
	}
	return ""
}

func (j *oneReign) opened(o openFact) complaint {
	for _, p := range j.opens {
		if p.epoch == o.epoch {
			return complain("epoch %d was opened by %s and by %s", o.epoch, p.who, o.who)
		}
	}
	j.opens = append(j.opens, o)
	return ""
}

// nothingLost judges S6: under the wipes of the failure model nothing acknowledged is missing, in the end or before.
type nothingLost map[protocol.LSN]told

func (j nothingLost) acked(lsn protocol.LSN, t told) { j[lsn] = t }

func (j nothingLost) lost(lsn protocol.LSN, who string) complaint {
	return complain("LSN %d is committed, and %s finds that it is lost (acknowledged to %q)", lsn, who, j[lsn].who)
}

func (j nothingLost) final(left []protocol.Range, tail protocol.LSN, got map[protocol.LSN][]byte, who string) complaint {
	for _, r := range left {
		for lsn := r.From; lsn <= r.To; lsn++ {
			if got[lsn] == nil {
				return complain("%s does not find LSN %d of %d (acknowledged to %q)", who, lsn, tail, j[lsn].who)
			}
		}
	}
	var worst protocol.LSN
	for lsn := range j {
		if lsn > tail && (worst == 0 || lsn < worst) {
			worst = lsn
		}
	}
	if worst != 0 {
		return complain("%s finds that the log ends at %d, but LSN %d was acknowledged to %s", who, tail, worst, j[worst].who)
	}
	return ""
}

// wholeBatches checks that every batch of which one record is in the log is there whole, in order. One that reaches out of what is
// kept has been trimmed in part, or lost.
func wholeBatches(left []protocol.Range, tail protocol.LSN, got map[protocol.LSN][]byte, who string) complaint {
	for _, r := range left {
		for lsn := r.From; lsn <= r.To; lsn++ {
			p, ok := parsePayload(got[lsn])
			if !ok {
				return complain("%s found %d bytes at LSN %d that no workload wrote", who, len(got[lsn]), lsn)
			}
			first := lsn - protocol.LSN(p.pos)
			if first == 0 || first > lsn {
				return complain("%s found record %d of %d of batch %016x at LSN %d", who, p.pos, p.count, p.id, lsn)
			}
			for at := max(first, r.From); at < first+protocol.LSN(p.count); at++ {
				if at > r.To && r.To < tail {
					break
				}
				q, ok := parsePayload(got[at])
				if !ok || q.id != p.id || q.pos != uint32(at-first) {
					return complain("%s found record %d of %d of batch %016x at LSN %d, but not record %d", who, p.pos, p.count, p.id, lsn, at-first)
				}
			}
		}
	}
	return ""
}
