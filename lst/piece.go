package lst

import "encoding/binary"

const maxSealsAWrite = 128

const (
	// stepEntries are the entries that a small write encodes, and those of one hold
	// of the lock by a caller that writes snapshots only: a few microseconds, which
	// is what a commit beside them waits. More is encoded behind writes that take
	// longer themselves, and when a snapshot is late.
	stepEntries = 8
	lateEntries = 16 * stepEntries
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
	switch {
	case userBytes == 0: // the caller has encoded what it writes
	case n.late:
		entries = max(lateEntries, records*n.share)
	default:
		entries = max(stepEntries, records*n.share)
	}
	target := s.pieceTarget(bytes)
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
		bytes -= len(n.body) - before
		entries--
	}
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
	for range 16 {
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
