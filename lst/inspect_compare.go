package lst

import (
	"errors"
	"hash/maphash"
	"sort"
)

// streamScan is what the records and operations of the files say of a stream since it was last deleted.
type streamScan struct {
	last       pos    // of an operation
	live       uint64 // records where the index says they are
	bytes      uint64
	trim       uint64 // highest trim point
	eof        uint64
	topTrimmed uint64 // highest sequence that the index calls trimmed, plus one
	lost       uint64 // records that the index does not know
	lostAt     pos
	lostSeq    uint64
	unsure     bool // a leaf could not be read
	whole      bool // the files hold all that ever happened to it
}

// The argument for comparing a store whose oldest segments are gone: a record that a segment still holds was trimmed,
// replaced or deleted by a later operation, which stands in the same or a later segment. So the files that are left decide
// which of their own records are present. Only what outlives records, trim points, EOF and key-values, can come from a
// dropped segment: there the index may know more than the files.

func (c *scan) stream(id StreamID, at pos) *streamScan {
	st := c.streams[id]
	if st == nil {
		st = &streamScan{whole: c.in.floor <= 1}
		c.streams[id] = st
	}
	st.last = at
	return st
}

func (c *scan) batch(p *piece) {
	sp := &c.rep.Space
	body, at := p.body, p.at+frameHeadBytes
	held, kvs := 0, 0
	compare := c.rep.NotCompared == ""
	err := decodeOps(body, func(op *batchOp) error {
		switch op.code {
		case opPut, opDelete:
			kvs += op.n + op.vn
			if compare {
				c.kvs[string(body[op.off:op.off+op.n])] = kvScan{maphash.Bytes(c.seed, body[op.off+op.n:op.off+op.n+op.vn]), op.code == opDelete}
			}
		case opTrim:
			if compare {
				st := c.stream(op.stream, p.at)
				st.trim, st.eof = max(st.trim, op.seq), max(st.eof, op.seq)
			}
		case opDropStream:
			if compare {
				*c.stream(op.stream, p.at) = streamScan{whole: true, last: p.at}
			}
		default:
			held += op.n
			c.rep.Records++
			if compare {
				c.record(op, body, at+pos(op.off))
			}
		}
		return nil
	})
	if err != nil {
		c.damageAt(p.at, "%v", err)
	}
	c.payload += int64(held)
	sp.KeyValues += int64(kvs)
	sp.RecordHeaders += p.n - int64(held) - int64(kvs)
}

// record asks the index for a record that stands at position at.
func (c *scan) record(op *batchOp, body []byte, at pos) {
	st := c.stream(op.stream, at)
	st.eof = max(st.eof, op.seq+1)
	if s := c.in.segs[at.seg()]; !recordOK(body[op.off-recordCRCBytes:op.off+op.n], at, s.head.salt, op.stream, op.seq) {
		c.damageAt(at, "record %d of stream %v fails its checksum in a sound frame", op.seq, op.stream)
	}
	loc, err := c.view.Locate(op.stream, op.seq)
	var bad *Corruption
	switch there := mkpos(loc.Segment, loc.Offset); {
	case err == nil && there == at && loc.Length == op.n:
		st.live++
		st.bytes += uint64(op.n)
		c.live += int64(op.n)
	case err == nil && there > at:
		// Replaced, or deleted with its stream and written again.
	case err == nil:
		c.damageAt(at, "the index says that record %d of stream %v is at %v with %d bytes", op.seq, op.stream, there, loc.Length)
	case errors.Is(err, ErrTrimmed):
		st.topTrimmed = max(st.topTrimmed, op.seq+1)
	case errors.As(err, &bad):
		st.unsure = true
		c.damage(bad.File, bad.Offset, bad.Reason)
	default:
		// Not lost if the stream is deleted later: that resets the count.
		if st.lost++; st.lost == 1 {
			st.lostAt, st.lostSeq = at, op.seq
		}
	}
}

func (c *scan) compareStreams() {
	c.view.Streams(nil, func(id StreamID) bool {
		if c.streams[id] == nil {
			c.stream(id, c.in.end)
		}
		return true
	})
	if err := c.view.Err(); err != nil {
		c.rep.NotCompared = err.Error()
		return
	}
	for id, st := range c.streams {
		c.rep.Streams++
		if !st.unsure {
			c.compareStream(id, st)
		}
	}
}

func (c *scan) compareStream(id StreamID, st *streamScan) {
	if st.lost > 0 {
		c.damageAt(st.lostAt, "the index does not know %d records of stream %v, the first is %d", st.lost, id, st.lostSeq)
	}
	if st.topTrimmed > st.trim {
		c.damageAt(st.last, "the index calls record %d of stream %v trimmed, its files say trimmed below %d", st.topTrimmed-1, id, st.trim)
	}
	s, ok := c.view.Stat(id)
	if !ok {
		if st.live > 0 || st.eof > 0 {
			c.damageAt(st.last, "the index does not know stream %v", id)
		}
		return
	}
	var n uint64
	first, contiguous := s.EOF, s.EOF
	for k, e := range c.view.Extents(id, nil) {
		if k == 0 {
			first, contiguous = e.From, e.To
		}
		n += e.To - e.From
	}
	if s.Count != st.live || s.Bytes != st.bytes || n != s.Count {
		c.damageAt(st.last, "stream %v has %d records of %d bytes, %d in its runs; a full scan finds %d of %d bytes", id, s.Count, s.Bytes, n, st.live, st.bytes)
	}
	if s.First != first || s.Contiguous != contiguous {
		c.damageAt(st.last, "stream %v is contiguous from %d to %d; its runs say from %d to %d", id, s.First, s.Contiguous, first, contiguous)
	}
	if s.EOF < st.eof || s.Trim < st.trim || st.whole && (s.EOF != st.eof || s.Trim != st.trim) {
		c.damageAt(st.last, "stream %v has EOF %d and trim point %d; a full scan finds %d and %d", id, s.EOF, s.Trim, st.eof, st.trim)
	}
}

func (c *scan) compareKVs() {
	c.view.KVs(nil, func(key, value []byte) bool {
		c.rep.KVs++
		have, ok := c.kvs[string(key)]
		switch {
		case !ok && c.in.floor <= 1:
			c.damageAt(c.in.end, "the index has the key %q, which the files do not", key)
		case !ok: // from a dropped segment
		case have.gone:
			c.damageAt(c.in.end, "the index has the key %q, which was deleted", key)
		default:
			if maphash.Bytes(c.seed, value) != have.sum {
				c.damageAt(c.in.end, "the index has another value of the key %q than the files", key)
			}
		}
		return true
	})
	for key, have := range c.kvs {
		if !have.gone {
			if _, err := c.view.GetKV([]byte(key), nil); err != nil {
				c.damageAt(c.in.end, "the index lacks the key %q: %v", key, err)
			}
		}
	}
}

// findUnreadable names the present records whose bytes are in a damaged place.
func (c *scan) findUnreadable() {
	var buf []byte
	c.view.Streams(nil, func(id StreamID) bool {
		for _, e := range c.view.Extents(id, nil) {
			for seq := e.From; seq < e.To; seq++ {
				loc, err := c.view.Locate(id, seq)
				if err == nil && !c.inGap(mkpos(loc.Segment, loc.Offset), loc.Length) {
					continue
				}
				if buf, err = c.view.Get(id, seq, buf[:0]); err != nil {
					c.unreadable(id, seq)
				}
			}
		}
		return true
	})
}

func (c *scan) inGap(at pos, n int) bool {
	i := sort.Search(len(c.gaps), func(i int) bool { return c.gaps[i].to > at })
	return i < len(c.gaps) && c.gaps[i].from < at+pos(n)
}

func (c *scan) unreadable(id StreamID, seq uint64) {
	c.rep.UnreadableCount++
	u := c.rep.Unreadable
	if k := len(u) - 1; k >= 0 && u[k].Stream == id && u[k].To == seq {
		u[k].To++
	} else if len(u) < maxDamages {
		c.rep.Unreadable = append(u, Unreadable{id, seq, seq + 1})
	}
}
