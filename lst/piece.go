package lst

import "encoding/binary"

const maxSealsAWrite = 128

const (
	// stepEntries are the entries that a small write encodes, a quarter of them while
	// somebody drives the snapshot, and half of them are encoded in one hold of the lock
	// by who drives it: a few microseconds, which is what a commit beside them waits.
	// More is encoded behind writes that take longer themselves, and when a snapshot lags.
	stepEntries = 8
	lateEntries = 16 * stepEntries
	stepBytes   = 16

	siftsAnEntry = 4 // steps of the heap take about as long as an entry
)

// snapStep does a write's part of a snapshot: it encodes some entries, about as many
// bytes as a quarter of the write, so that the snapshot ends well before the next is
// due, and adds the piece to p once that is whole. A piece lies in memory until then:
// encoding a whole one under the lock would be the longest wait of a commit.
func (s *Store) snapStep(p *pending, limit, userBytes, records int) {
	n := &s.snap
	if !n.running {
		if s.ix.cold.Load() != nil || n.rootFlies() || !s.snapDue() {
			return // C3: the keeper is at it
		}
		s.snapBegin()
	}
	n.late = n.late || s.snapDue()
	bytes, entries := userBytes/4, 0
	target := s.pieceTarget(bytes)
	if userBytes > 0 { // else the caller has encoded what it writes
		if n.drivers > 0 && p.off == int64(p.seg.head.dataStart) {
			return // the first write of a segment: the roll has taken long enough
		}
		entries = max(0, min(s.snapLag(n.part()), records*4*stepEntries))
		switch {
		case n.late:
			entries = max(entries, lateEntries)
		case n.drivers > 0: // it ends all the same if nobody commits
			entries = max(entries, stepEntries/4)
		default:
			entries = max(entries, stepEntries)
		}
	}
	for {
		if n.rootDue > 0 || n.ended && len(n.body) == 0 {
			s.writeRoot(p, limit)
			return
		}
		if n.ended || n.full || len(n.body) >= target {
			if !s.writePiece(p, limit) {
				return
			}
			continue
		}
		if bytes <= 0 && entries <= 0 {
			return
		}
		before := len(n.body)
		s.encodeEntry(target)
		bytes -= max(len(n.body)-before, stepBytes) // a step of the heap takes time, too
		entries--
	}
}

// snapLag is how many entries the snapshot under way lacks, for it to end when a part of
// its interval, 1/part, has gone by.
func (s *Store) snapLag(part float64) int {
	n := &s.snap
	gone := max(float64(s.sinceRecords)/float64(s.opt.SnapshotRecords), float64(s.sinceBytes)/float64(s.opt.SnapshotBytes))
	return int(float64(n.entries)*min(1, part*gone)) - n.encoded
}

// part is in which part of its interval a snapshot ends: by half of it, or, where
// somebody stands by who would write it if commits did not, later, which makes less work
// for each commit.
func (n *snapState) part() float64 {
	if n.drivers > 0 {
		return 1.25
	}
	return 2
}

// pieceTarget is from how many bytes on a piece is whole, for a write that carries
// so many bytes of a snapshot.
func (s *Store) pieceTarget(bytes int) int {
	most := max(pieceLeast, int(min(pieceMost, s.opt.SegmentBytes/8))) // it must fit into a segment
	return min(most, max(pieceLeast, bytes))
}

// encodeStep encodes a few entries for a caller that then writes the piece, and
// reports whether there is something to write.
func (s *Store) encodeStep() bool {
	n := &s.snap
	target := s.pieceTarget(0)
	for range stepEntries / 2 {
		if !n.running || n.rootDue > 0 || n.ended || n.full || len(n.body) >= target {
			return true
		}
		s.encodeEntry(target)
	}
	return false
}

// encodeEntry adds the next entry to the piece that is being made, or finds that
// there is none.
func (s *Store) encodeEntry(target int) {
	n := &s.snap
	n.encoded++
	if !n.heaped() {
		return
	}
	fresh := len(n.body) == 0
	if !fresh && s.opt.SegmentBytes < 4*pieceMost && len(n.body)+s.nextValueBytes() > target {
		n.full = true // both together might not fit into a segment
		return
	}
	if fresh {
		n.bodyKey = n.nextKey()
		n.body = binary.AppendUvarint(n.body, n.number+1)
	}
	n.body, n.ended = s.writeEntry(n.body)
	if fresh && n.ended && len(n.pieces) > 0 {
		n.body = n.body[:0] // the piece before was the last
	}
}

// writePiece adds the piece that was made to p as a table frame; false if p has no
// room for it.
func (s *Store) writePiece(p *pending, limit int) bool {
	n := &s.snap
	if len(p.buf)+frameHeadBytes+len(n.body) > limit {
		return false
	}
	start := len(p.buf)
	at := p.appendFrame(kindTable, s.durable, func(b []byte) []byte { return append(b, n.body...) })
	n.pieces = append(n.pieces, pieceRef{
		at: at, size: uint32(len(n.body)), crc: binary.LittleEndian.Uint32(p.buf[start+16:]), key: n.bodyKey,
	})
	n.bytes += int64(len(n.body) + frameHeadBytes)
	n.body, n.full = n.body[:0], false
	return true
}

// nextValueBytes is about how many bytes the next entry has if it is a key-value.
func (s *Store) nextValueBytes() int {
	n := &s.snap
	if n.inStreams || n.curStream != nil {
		return 0
	}
	var e *kvEntry
	if n.base {
		s.ix.kvs.ascend(n.key, func(v *kvEntry) bool { e = v; return false })
	} else if len(n.kvs) > 0 {
		e = s.ix.kvs.get([]byte(n.kvs[0].key))
	}
	if e == nil {
		return 0
	}
	return len(e.key) + int(e.size.Load())
}

// heaped puts a part of what a delta holds into heap order, and reports whether all
// of it is.
func (n *snapState) heaped() bool {
	for range siftsAnEntry {
		switch {
		case n.siftKVs > 0:
			n.siftKVs--
			siftDown(n.kvs, n.siftKVs, kvBefore)
		case n.sift > 0:
			n.sift--
			siftDown(n.streams, n.sift, streamBefore)
		default:
			return true
		}
	}
	return false
}

// rideAlong adds index frames to a write: a piece of a snapshot, then finished leaves.
// A piece names no leaf but those of earlier writes, so that children always come
// before parents (T3).
func (s *Store) rideAlong(p *pending, userBytes, records int) {
	limit := min(cap(p.buf)-bufferAlign-int(p.seg.head.block), int(s.active.size-p.off-int64(p.seg.head.block)))
	s.snapStep(p, limit, userBytes, records)
	// Each record can fill one leaf: more at a time is only needed to catch up.
	for seals := min(maxSealsAWrite, 8+2*records); len(s.ix.seal) > 0 && seals > 0 && len(p.buf)+frameHeadBytes+leafMaxBytes <= limit; seals-- {
		it := s.ix.seal[0]
		s.ix.seal[0] = sealItem{}
		s.ix.seal = s.ix.seal[1:]
		s.sealInto(p, it)
	}
}

const leafMaxBytes = 16 + 10 + 33 + leafSlots*15

func (s *Store) sealInto(p *pending, it sealItem) {
	l := it.l
	o := l.open.Load()
	var all [leafSlots]slot
	var present, m bitmap
	if o != nil && !it.st.gone {
		present = o.copyTo(&all)
		m = present.minus(bitmap{}.upTo(l.below(it.st.trim.Load())))
	}
	if m == (bitmap{}) {
		l.queued = false
		return
	}
	at := p.appendFrame(kindLeaf, s.durable, func(b []byte) []byte { return appendLeaf(b, it.st.id, l, m, &all) })
	n := int(p.pos()-at) - frameHeadBytes
	l.ref, l.refBytes, l.refDirty = at, uint32(n), true
	l.setClean(it.st.eof.Load())
	l.whole = false
	s.ix.touch(it.st, l.base)
	p.seals = append(p.seals, pendingSeal{it: it, at: at, bytes: n, data: s.ix.slots.compact(o, &all), present: present})
}
