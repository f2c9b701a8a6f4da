package lst

import (
	"encoding/binary"
	"fmt"
)

// Snapshots (T3, T4, T5).
//
// A snapshot is a set of table frames and one root frame that names them all. A
// delta holds what has changed since the snapshot before it, a base holds
// everything; a root names its predecessor, down to a base.
//
// A snapshot is taken while commits go on: it notes where it begins and then
// writes entries piece by piece, riding along with commits. An entry may
// therefore already hold the effect of a commit after the beginning. Recovery
// replays from the beginning, and every operation gives the same end state when
// it is applied again in order: appends name their place, trims never go back,
// and of puts, deletes and stream deletes the last one decides.
//
// Order: leaf frames, then the table frames that name them, then the root. If a
// root could come first, a restart might trust an index with holes in it.

// Table entries.
const (
	entryKV         = 1 // klen vlen key value
	entryKVGone     = 2 // klen key
	entryStream     = 3 // id[16] trim eof leaves..., may be split over several entries
	entryStreamGone = 4 // id[16]

	leafEnd  = 0 // end of an entry's leaves
	leafRef  = 1 // number presence seg off size segs(n, {seg n bytes}...)
	leafOpen = 2 // number presence slots: more slots
	leafAll  = 3 // the same, replaces what older snapshots say of this leaf
)

const (
	pieceLeast      = 4 << 10  // bytes of a piece, unless it is the last
	pieceMost       = 32 << 10 // the same, behind a large write
	entryRoom       = leafMaxBytes + 128
	maxPieceSegs    = leafSlots
	snapshotDelta   = 1
	snapshotBase    = 2
	baseEvery       = 16
	baseAtMostEvery = 128
)

type pieceRef struct {
	at   pos
	size uint32
	crc  uint32
	key  []byte // first key of a base's piece, tagged
}

// rootInfo describes a snapshot.
type rootInfo struct {
	at      pos // of the root frame
	length  int // of the root frame
	claim   pos // everything before it was durable when the frame was written
	number  uint64
	base    bool
	replay  pos    // replay starts here
	floor   uint32 // no segment below it is needed
	prev    pos    // root of the predecessor, 0 for a base
	oldest  uint32 // lowest segment with a piece of this snapshot or its predecessors
	bytes   int64
	pieces  []pieceRef
	records uint64
	unixMS  int64
}

// snapState is the writer's side of snapshots. Under mu.
type snapState struct {
	running   bool
	base      bool
	replay    pos
	streams   []dirtyStream
	ahead     []*stream // the next of them, in order, taken out to be fetched from memory together
	aheadMem  [8]*stream
	kvs       []*kvEntry
	curStream *stream // being written, from leaf curBase on
	curBase   uint64
	key       []byte // base: next key to visit
	inStreams bool   // base: key-values are done
	body      []byte // of the piece that is being made
	bodyKey   []byte // its first key
	full      bool   // it ends here, whatever its size
	sift      int    // streams before it are not in heap order yet
	siftKVs   int    // likewise of kvs
	ended     bool   // nothing is left to be encoded
	entries   int    // there are about so many, what orders them counted in
	encoded   int    // of them
	drivers   int    // calls of snapshotNow
	late      bool   // the next snapshot is due
	pieces    []pieceRef
	bytes     int64

	number     uint64
	last       rootInfo // newest complete one
	synced     rootInfo // newest one known to be durable
	deltas     int
	deltaBytes int64
	baseBytes  int64
	wantBase   bool
	lastMS     int64
	taken      uint64
	needSync   bool
	rootDue    int // bytes that the root needs in the next write
}

// snapDue decides whether a snapshot begins. Under mu.
func (s *Store) snapDue() bool {
	if s.sinceRecords >= s.opt.SnapshotRecords || s.sinceBytes >= s.opt.SnapshotBytes {
		return true
	}
	// A look at the clock costs as much as the rest of an append: every 16th write.
	if !s.opt.Inline && s.ticket%16 != 0 {
		return false
	}
	now := s.opt.Now().UnixMilli()
	if now < s.snap.lastMS {
		s.snap.lastMS = now // the clock was set back: count from here (L19)
	}
	return now-s.snap.lastMS >= s.opt.SnapshotInterval.Milliseconds()
}

// rootFlies reports whether the last root is in a write that is not complete. The
// next snapshot must not begin before: it would name the root in front of that one
// as its predecessor, and what that one holds would be lost.
func (n *snapState) rootFlies() bool { return n.number != n.last.number }

func (s *Store) snapBegin() {
	n := &s.snap
	n.running, n.pieces, n.bytes = true, nil, 0
	n.replay = s.applied
	n.lastMS = s.opt.Now().UnixMilli()
	s.sinceRecords, s.sinceBytes = 0, 0
	n.base = n.last.at == 0 || n.wantBase || n.deltas >= baseAtMostEvery || n.deltaBytes >= 4*n.baseBytes+(64<<10) ||
		n.deltas >= baseEvery && n.deltaBytes >= n.baseBytes/2
	n.streams, s.ix.dirtyStreams, n.ahead = s.ix.dirtyStreams, n.streams[:0], n.ahead[:0]
	n.kvs, s.ix.dirtyKVs = s.ix.dirtyKVs, n.kvs[:0]
	n.curStream, n.key, n.inStreams = nil, nil, false
	n.body, n.full, n.ended, n.late = n.body[:0], false, false, false
	n.entries, n.encoded = len(n.streams)+len(n.kvs), 0
	if n.base {
		// A base visits everything; the lists only have to be marked clean, which
		// visiting does. What is deleted is not visited and needs no entry.
		n.wantBase = false
		clear(n.streams)
		n.streams, n.kvs = n.streams[:0], n.kvs[:0]
		n.entries = s.ix.streams.len() + s.ix.kvs.len()
	}
	n.sift, n.siftKVs = len(n.streams)/2, len(n.kvs)/2
	n.entries += (n.sift + n.siftKVs) / siftsAnEntry
}

// nextKey is the key that the next entry has or comes after: tag 0 for
// key-values, 1 for streams.
func (n *snapState) nextKey() []byte {
	if n.inStreams {
		return append([]byte{1}, n.key...)
	}
	return append([]byte{0}, n.key...)
}

// writeEntry appends the next entry; true if there was none left.
func (s *Store) writeEntry(b []byte) ([]byte, bool) {
	n := &s.snap
	if n.curStream != nil {
		return s.writeStream(b, n.curStream), false
	}
	if n.base {
		return s.writeBaseEntry(b)
	}
	for len(n.kvs) > 0 {
		e := heapPop(&n.kvs, kvBefore)
		if !e.dirty {
			continue
		}
		e.dirty = false
		n.key = append(append(n.key[:0], e.key...), 0)
		if now := s.ix.kvs.get([]byte(e.key)); e.gone && now != nil {
			e = now // a base may have written the newer value already: it must not be undone
		}
		if e.gone {
			b = append(b, entryKVGone)
			b = binary.AppendUvarint(b, uint64(len(e.key)))
			return append(b, e.key...), false
		}
		return appendKV(b, e), false
	}
	if !n.inStreams {
		n.inStreams, n.key = true, n.key[:0]
	}
	for {
		st := n.nextStream()
		if st == nil {
			return b, true
		}
		if !st.dirty {
			continue
		}
		st.dirty = false
		n.key = append(append(n.key[:0], st.id[:]...), 0)
		if st.gone {
			n.again(s.ix.streams.get(st.id[:]))
			return append(append(b, entryStreamGone), st.id[:]...), false
		}
		n.curBase = st.dirtyFrom
		return s.writeStream(b, st), false
	}
}

// again makes this snapshot write the whole of a stream that was created under
// the id of a deleted one: an older snapshot may hold a part of the new one
// already, which the entry for the deletion wipes out.
func (n *snapState) again(st *stream) {
	if st == nil {
		return
	}
	for _, l := range st.list() {
		if l.ref != 0 {
			l.refDirty = true
		} else {
			l.whole = true
		}
	}
	st.dirty = false
	n.curStream, n.curBase = st, 0 // the next entry
}

func (s *Store) writeBaseEntry(b []byte) ([]byte, bool) {
	n := &s.snap
	if !n.inStreams {
		var e *kvEntry
		s.ix.kvs.ascend(n.key, func(v *kvEntry) bool { e = v; return false })
		if e != nil {
			e.dirty = false
			n.key = append(append(n.key[:0], e.key...), 0)
			return appendKV(b, e), false
		}
		n.inStreams, n.key = true, n.key[:0]
	}
	for {
		st := s.nextOfAll()
		if st == nil {
			return b, true
		}
		n.key = append(append(n.key[:0], st.id[:]...), 0)
		if st.gone {
			continue // since it was taken ahead: the deletion is replayed
		}
		n.curBase = 0
		st.dirty = false
		return s.writeStream(b, st), false
	}
}

func appendKV(b []byte, e *kvEntry) []byte {
	b = append(b, entryKV)
	b = binary.AppendUvarint(b, uint64(len(e.key)))
	b = binary.AppendUvarint(b, uint64(e.size.Load()))
	b = append(b, e.key...)
	return e.get(b)
}

// writeStream appends an entry with leaves of st from n.curBase on: one entry
// holds at most one page of them, the rest follows in further entries.
func (s *Store) writeStream(b []byte, st *stream) []byte {
	n := &s.snap
	n.curStream = nil
	if st.gone {
		// Deleted while it was being written: the deletion is replayed.
		return append(append(b, entryStreamGone), st.id[:]...)
	}
	b = append(append(b, entryStream), st.id[:]...)
	trim := st.trim.Load()
	b = binary.AppendUvarint(b, trim)
	eof := st.eof.Load()
	b = binary.AppendUvarint(b, eof)
	ls := st.list()
	_, i := findLeaf(ls, n.curBase)
	start := len(b)
	for ; i < len(ls); i++ {
		if len(b)-start > leafMaxBytes/4 {
			n.curStream, n.curBase = st, ls[i].base
			break
		}
		b = s.writeLeafEntry(b, st, ls[i], trim, eof, i == len(ls)-1)
	}
	return append(b, leafEnd)
}

func (s *Store) writeLeafEntry(b []byte, st *stream, l *leaf, trim, eof uint64, last bool) []byte {
	if l.ref != 0 {
		if !s.snap.base && !l.refDirty {
			return b
		}
		l.refDirty = false
		b = append(b, leafRef)
		b = binary.AppendUvarint(b, l.base>>leafShift)
		b = appendPresence(b, l.presentMap())
		b = binary.AppendUvarint(b, uint64(l.ref.seg()))
		b = binary.AppendUvarint(b, uint64(l.ref.off()))
		b = binary.AppendUvarint(b, uint64(l.refBytes))
		return appendSegs(b, l.liveSegs(trim))
	}
	m, kind := bitmap{}, byte(leafOpen)
	if s.snap.base || l.whole {
		m, kind = l.open.Load().presentIn(l.below(trim), l.below(eof)), leafAll
	} else {
		m = l.dirtyMap(l.below(trim), l.below(eof))
	}
	l.setClean(eof)
	l.whole = false
	if !last && !l.queued && l.live(trim) > 0 {
		s.ix.queueSeal(st, l) // left behind by the stream: settle it
	}
	if m == (bitmap{}) && (kind == leafOpen || s.snap.base) {
		return b // of an emptied stream a base keeps the ends, there is nothing to replace
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, l.base>>leafShift)
	b = appendPresence(b, m)
	return appendSlots(b, m, l.open.Load())
}

// liveSegs is the live records of a leaf per segment.
func (l *leaf) liveSegs(trim uint64) []segCount {
	o := l.open.Load()
	if o == nil {
		return l.segs
	}
	return o.segs(l.below(trim), nil)
}

func appendSegs(b []byte, segs []segCount) []byte {
	n := 0
	for _, c := range segs {
		if c.n > 0 {
			n++
		}
	}
	b = binary.AppendUvarint(b, uint64(n))
	for _, c := range segs {
		if c.n > 0 {
			b = binary.AppendUvarint(b, uint64(c.seg))
			b = binary.AppendUvarint(b, uint64(c.n))
			b = binary.AppendUvarint(b, c.bytes)
		}
	}
	return b
}

// writeRoot ends the snapshot. If the write has no room, the next one does it.
func (s *Store) writeRoot(p *pending, limit int) {
	n := &s.snap
	need := frameHeadBytes + 128
	for i := range n.pieces {
		need += 32 + len(n.pieces[i].key)
	}
	if len(p.buf)+need > limit {
		// Too many pieces for what rides along: give the root a write of its own.
		n.rootDue = need
		return
	}
	n.rootDue = 0
	r := &rootInfo{
		number: n.number + 1, base: n.base, replay: n.replay, pieces: n.pieces, bytes: n.bytes,
		records: uint64(max(s.ix.records, 0)), unixMS: n.lastMS, oldest: n.pieces[0].at.seg(),
	}
	if !n.base {
		r.prev = n.last.at
		r.oldest = min(r.oldest, n.last.oldest)
	}
	r.floor = min(s.lowestLive(), r.oldest, n.replay.seg())
	r.at = p.appendFrame(kindRoot, s.durable, r.encode)
	n.number++
	n.running = false
	p.root = r
}

func (r *rootInfo) encode(b []byte) []byte {
	kind := byte(snapshotDelta)
	if r.base {
		kind = snapshotBase
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, r.number)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.replay))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.prev))
	b = binary.LittleEndian.AppendUint32(b, r.floor)
	b = binary.LittleEndian.AppendUint32(b, r.oldest)
	b = binary.AppendUvarint(b, uint64(r.unixMS))
	b = binary.AppendUvarint(b, r.records)
	b = binary.AppendUvarint(b, uint64(len(r.pieces)))
	for i := range r.pieces {
		p := &r.pieces[i]
		b = binary.AppendUvarint(b, uint64(p.at.seg()))
		b = binary.AppendUvarint(b, uint64(p.at.off()))
		b = binary.AppendUvarint(b, uint64(p.size))
		b = binary.LittleEndian.AppendUint32(b, p.crc)
		b = binary.AppendUvarint(b, uint64(len(p.key)))
		b = append(b, p.key...)
	}
	return b
}

func decodeRoot(body []byte, at pos) (*rootInfo, error) {
	r := reader{b: body}
	o := &rootInfo{at: at}
	switch r.byte() {
	case snapshotBase:
		o.base = true
	case snapshotDelta:
	default:
		r.bad = true
	}
	u64 := func() pos {
		if b := r.bytes(8); b != nil {
			return pos(binary.LittleEndian.Uint64(b))
		}
		return 0
	}
	u32 := func() uint32 {
		if b := r.bytes(4); b != nil {
			return binary.LittleEndian.Uint32(b)
		}
		return 0
	}
	o.number = r.uvarint()
	o.replay, o.prev, o.floor, o.oldest = u64(), u64(), u32(), u32()
	o.unixMS = int64(r.uvarint())
	o.records = r.uvarint()
	n := r.length(1 << 24)
	for i := 0; i < n && !r.bad; i++ {
		p := pieceRef{at: mkpos(uint32(r.uvarint()), int64(r.uvarint()))}
		p.size = uint32(r.uvarint())
		p.crc = u32()
		p.key = r.bytes(r.length(maxKeyBytes + 2))
		o.bytes += int64(p.size) + frameHeadBytes
		o.pieces = append(o.pieces, p)
	}
	if r.bad || r.left() != 0 || o.base != (o.prev == 0) || len(o.pieces) == 0 {
		return nil, fmt.Errorf("snapshot root does not parse")
	}
	return o, nil
}

// snapDone notes a snapshot whose root is written. Under mu.
func (s *Store) snapDone(r *rootInfo) {
	n := &s.snap
	n.last = *r
	n.last.pieces = nil
	n.taken++
	if r.base {
		n.baseBytes, n.deltaBytes, n.deltas = r.bytes, 0, 0
	} else {
		n.deltaBytes += r.bytes
		n.deltas++
	}
	if s.durable == s.applied {
		n.synced = n.last
	} else {
		n.needSync = true
	}
}

// snapSynced notes that the device holds everything up to root r. Under mu.
func (s *Store) snapSynced(r rootInfo) {
	if r.at > s.snap.synced.at {
		s.snap.synced = r
	}
	if s.snap.last.at == r.at {
		s.snap.needSync = false
	}
}

// lowestLive is the lowest segment that holds a live record, or the active one.
// A segment of a write in flight counts: its records are not in the index yet.
func (s *Store) lowestLive() uint32 {
	if list := *s.ix.files.list.Load(); s.ix.cold.Load() != nil && len(list) > 0 {
		return list[0].number // C3: not everything was counted yet
	}
	low := s.active.head.number
	if len(s.inflight) > 0 {
		low = min(low, s.inflight[0].seg.head.number)
	}
	low = min(low, s.applied.seg())
	for seg, v := range s.ix.live {
		if v.records > 0 {
			low = min(low, seg)
		} else if v.records == 0 && seg < low {
			s.ix.liveDrop(seg)
		}
	}
	return low
}
