package lst

import "encoding/binary"

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
