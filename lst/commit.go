package lst

import (
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"

	"github.com/btrlog/btrlog/lst/vfs"
)

// Order of a commit, and what is lost otherwise:
//
//	1 reserve the place, encode            (mu)
//	2 write, and in Direct mode it is down (no lock)
//	3 only then index the records          (mu): a reader must never be shown
//	  bytes that the file refused
//	4 only then answer: an answer before 2 could be for a lost record
//
// Several writes may be in flight. Step 3 happens in their order even if they
// end out of order, because recovery stops at the first gap: a write behind a
// gap is not durable yet, whatever the device said.

const (
	indexRoomBytes = 64 << 10 // buffer space for index frames that ride along
	longestWait    = 30 * time.Second
)

// Write is a prepared write of the split-phase commit. Whoever prepared it
// writes Buffer at Offset of the file, whole, and then calls Complete. The
// fields are read-only and valid until Complete.
type Write struct {
	// Ticket numbers prepared writes in order, from 1.
	Ticket uint64
	// File is where to write; File.Fd() is the descriptor for raw system calls.
	File vfs.File
	// Offset is the file offset in bytes, a multiple of the block in Direct mode.
	Offset int64
	// Buffer is what to write, aligned for direct I/O.
	Buffer []byte
	// Location is where the batch is.
	Location Location
	p        *pending
}

// Execute does the write with a plain positional write.
func (w Write) Execute() error {
	n, err := w.File.WriteAt(w.Buffer, w.Offset)
	if err == nil && n != len(w.Buffer) {
		err = shortWrite(n, len(w.Buffer))
	}
	return err
}

func shortWrite(n, want int) error { return fmt.Errorf("lst: short write of %d of %d bytes", n, want) }

type pendingBatch struct {
	b  *Batch
	at pos // of the frame
}

type pendingSeal struct {
	it    sealItem
	at    pos
	bytes int // body length
	// What the leaf is kept as, unless it has changed by the time it is written.
	data    *openSlots
	present bitmap
}

// pending is a write between Prepare and Complete.
type pending struct {
	seg     *writeSegment
	off     int64
	buf     []byte
	ticket  uint64
	batches []pendingBatch
	seals   []pendingSeal
	root    *rootInfo
	through bool // written so that it is down when the write returns
	done    bool
}

func (p *pending) pos() pos { return mkpos(p.seg.head.number, p.off+int64(len(p.buf))) }

// appendFrame encodes a frame whose body fill appends; the buffer never grows
// beyond its capacity (callers check), so its alignment is kept.
func (p *pending) appendFrame(kind frameKind, claim pos, fill func(b []byte) []byte) pos {
	at := p.pos()
	start := len(p.buf)
	var head [frameHeadBytes]byte
	p.buf = append(p.buf, head[:]...)
	p.buf = fill(p.buf)
	putFrameHead(p.buf[start:], kind, claim, at, p.seg.head.salt)
	return at
}

// appendBatch copies a batch's frame and binds its checksums to the place.
func (p *pending) appendBatch(b *Batch, claim pos) pos {
	at := p.pos()
	start := len(p.buf)
	p.buf = append(p.buf, b.frame...)
	b.bind(p.buf[start:], claim, at, p.seg.head.salt)
	return at
}

// bind completes frame, which holds the batch, for the place at.
func (b *Batch) bind(frame []byte, claim, at pos, salt uint32) {
	body := frame[frameHeadBytes:]
	var stream uint64
	for i := range b.ops {
		op := &b.ops[i]
		if op.isRecord() {
			if op.code != opAppendNext {
				stream = bindStream(&op.stream)
			}
			sum := op.crc ^ recordBindIn(at+frameHeadBytes+pos(op.off), salt, stream, op.seq)
			binary.LittleEndian.PutUint32(body[op.off-recordCRCBytes:], sum)
		}
	}
	putFrameHead(frame, kindBatch, claim, at, salt)
}

// check refuses a batch that cannot be committed, before anything is written.
func (s *Store) check(b *Batch) error {
	if b.err != nil {
		return b.err
	}
	if len(b.ops) == 0 {
		return fmt.Errorf("%w: empty batch", ErrInvalid)
	}
	// In rounds: what the next one looks at is on its way from memory meanwhile.
	if len(b.ops) > 1 {
		for i := range b.ops {
			if op := &b.ops[i]; op.isRecord() && op.code != opAppendNext {
				s.ix.byID.prefetch(&op.stream)
			}
		}
	}
	for i := range b.ops {
		op := &b.ops[i]
		switch {
		case !op.isRecord():
			continue
		case op.n > s.opt.MaxRecordBytes:
			return fmt.Errorf("%w: record %d of stream %v has %d bytes, the limit is %d", ErrTooLarge, op.seq, op.stream, op.n, s.opt.MaxRecordBytes)
		case op.code == opAppendNext:
			op.st = b.ops[i-1].st
		default:
			// Kept for apply, unless the stream goes meanwhile.
			if op.st = s.ix.byID.get(&op.stream); op.st != nil && len(b.ops) > 1 {
				prefetch(unsafe.Pointer(op.st))
			}
		}
	}
	for i := 0; i < len(b.ops); i++ {
		op := &b.ops[i]
		st := op.st
		if st == nil || !op.isRecord() {
			continue
		}
		eof := st.eof.Load()
		if op.seq >= eof {
			for i+1 < len(b.ops) && b.ops[i+1].code == opAppendNext {
				i++ // further behind the end
			}
			if st.run != nil && op.code == opAppend {
				prefetch(unsafe.Pointer(&st.run[op.seq&(leafSlots-1)]))
			}
			continue
		}
		if op.seq < st.trim.Load() {
			return fmt.Errorf("%w: append of %d to stream %v, trimmed below %d", ErrTrimmed, op.seq, op.stream, st.trim.Load())
		}
		if op.code != opReplace && st.has(op.seq) {
			return &Exists{Stream: op.stream, Seq: op.seq, EOF: eof}
		}
	}
	return nil
}

// Prepare reserves the place of a batch and encodes it. The caller writes it
// (Write.Execute, or its own I/O) and calls Complete; the batch belongs to the
// store until then. One goroutine owns the cycle; several writes may be in
// flight, from the lowest offset up. Records of writes in flight are not seen
// by the check for ErrExists: of two, the first stays.
//
// Errors are definite: nothing was written. ErrNoSpace ends by itself.
func (s *Store) Prepare(b *Batch) (Write, error) {
	b.sum()
	if err := s.preload(b); err != nil {
		return Write{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(b); err != nil {
		return Write{}, err
	}
	p, err := s.prepare([]*Batch{b}, true)
	if err != nil {
		return Write{}, err
	}
	at := p.batches[0].at
	return Write{
		Ticket: p.ticket, File: s.writeTo(p), Offset: p.off, Buffer: p.buf, p: p,
		Location: Location{Segment: at.seg(), Offset: at.off(), Length: b.Bytes()},
	}, nil
}

// prepare encodes checked batches into one write, which is to be down when it
// returns if through is set. Under mu.
func (s *Store) prepare(batches []*Batch, through bool) (*pending, error) {
	if s.closed {
		return nil, ErrClosed
	}
	if s.err != nil {
		return nil, s.err
	}
	need, class, records := int64(0), roomFree, 0
	for _, b := range batches {
		need += int64(b.Bytes())
		records += b.adds
		class = max(class, b.room())
	}
	for {
		if err := s.makeRoom(need, class); err != nil {
			return nil, err
		}
		if !s.readying {
			break
		}
		if err := s.waitReady(); err != nil {
			return nil, err
		}
		if s.err != nil || s.closed {
			return s.prepare(batches, through) // says so
		}
	}
	p := s.takePending(int(need) + indexRoomBytes + s.snap.rootDue)
	claim := s.durable
	if s.fresh {
		p.appendFrame(kindLink, claim, s.appendLink)
		s.fresh = false
	}
	for _, b := range batches {
		p.batches = append(p.batches, pendingBatch{b, p.appendBatch(b, claim)})
		s.note(b)
	}
	s.rideAlong(p, int(need), records)
	s.pad(p)
	p.through = through && s.dsync
	s.launch(p)
	return p, nil
}

// note counts a batch that is about to be written.
func (s *Store) note(b *Batch) {
	s.sinceRecords += b.adds
	s.sinceBytes += int64(b.Bytes())
	if b.adds > 0 && s.opt.RetainAge > 0 {
		s.lastAppendMS = s.nowMS()
	}
}

// launch gives an encoded write its number.
func (s *Store) launch(p *pending) {
	s.nextOff = p.off + int64(len(p.buf))
	s.ticket++
	p.ticket = s.ticket
	s.inflight = append(s.inflight, p)
}

// pad fills the write up to the device's block with zeros.
func (s *Store) pad(p *pending) {
	n := int(alignUp(int64(len(p.buf)), int64(p.seg.head.block)))
	from := len(p.buf)
	p.buf = p.buf[:n]
	clear(p.buf[from:])
}

const linkRoom = frameHeadBytes + 64

func (s *Store) takePending(room int) *pending {
	var p *pending
	if k := len(s.pool); k > 0 {
		p, s.pool = s.pool[k-1], s.pool[:k-1]
	} else {
		p = new(pending)
	}
	size := int(alignUp(int64(room+linkRoom), bufferAlign)) + 65536
	if s.active.head.block <= bufferAlign {
		size -= 65536 - bufferAlign
	}
	buf := p.buf
	if cap(buf) < size {
		buf = alignedBuffer(size)
	}
	*p = pending{seg: s.active, off: s.nextOff, buf: buf[:0], batches: p.batches[:0], seals: p.seals[:0]}
	return p
}

// room is what is left in the active segment, for frames that must be padded.
func (s *Store) room() int64 { return s.active.size - s.nextOff }

// makeRoom rolls to the next segment if the active one cannot take need bytes.
// While there is no spare, batches leave room free by what they are for: trims,
// deletes and snapshots must still fit, or a full disk could never free itself
// (T6).
func (s *Store) makeRoom(need int64, class roomClass) error {
	if need+linkRoom > s.opt.SegmentBytes-2*int64(max(s.active.head.block, headerBytes)) {
		return fmt.Errorf("%w: batch of %d bytes does not fit into a segment of %d", ErrTooLarge, need, s.opt.SegmentBytes)
	}
	if class >= roomReserve {
		if err := s.overBudget(0, class); err != nil {
			return err // the active segment is one above what these may use
		}
	}
	s.asking[class]++
	defer func() { s.asking[class]-- }()
	want := need + linkRoom + int64(s.active.head.block)
	if want <= s.room() {
		if s.spare != nil || want+s.keepFree(class) <= s.room() {
			return nil
		}
	}
	if s.spare == nil {
		if err := s.waitSpare(class != roomFree); err != nil {
			return err
		}
		if want <= s.room() {
			return nil
		}
	}
	if class >= roomReserve {
		if err := s.overBudget(s.opt.SegmentBytes, class); err != nil {
			return err // the spare is one above what these may use
		}
	}
	if err := s.roll(); err != nil {
		return err
	}
	if want > s.room() {
		return s.makeRoom(need, class) // behind a tear on a full disk it may be a small one
	}
	return nil
}

// roomClass is what a batch is for, from what frees space to what fills it.
type roomClass uint8

const (
	roomFree    roomClass = iota // trims, deletes and snapshots: down to the last byte
	roomPut                      // key-values alone: without a limit they would eat what the trims need
	roomReserve                  // records that may use the reserve
	roomRecords                  // records
	roomClasses
)

// room is the batch's class.
func (b *Batch) room() roomClass {
	switch {
	case b.adds > 0 && b.reserve:
		return roomReserve
	case b.adds > 0:
		return roomRecords
	}
	for i := range b.ops {
		switch b.ops[i].code {
		case opTrim, opDropStream, opDelete:
			return roomFree // a key-value that goes with a trim says what was trimmed
		}
	}
	if len(b.ops) == 0 {
		return roomFree
	}
	return roomPut
}

// keepFree is the room that batches of a class leave in the last segment.
func (s *Store) keepFree(class roomClass) int64 {
	// A base snapshot must still fit behind key-values, or nothing could be dropped any more.
	put := max(s.reserve()/2, min(s.opt.SegmentBytes/2, s.snap.baseBytes+s.snap.baseBytes/4+16<<10))
	switch class {
	case roomRecords:
		return max(s.reserve(), put)
	case roomReserve:
		return (max(s.reserve(), put) + put) / 2
	case roomPut:
		return put
	}
	return 0
}

// reserve is the room kept for freeing space: the size of a base snapshot and
// a part of the segment.
func (s *Store) reserve() int64 {
	if s.ix.cold.Load() != nil {
		return s.opt.SegmentBytes / 2 // the size of a base is not known yet
	}
	return min(s.opt.SegmentBytes/2, max(s.opt.SegmentBytes/8, 12<<10)+2*s.snap.baseBytes)
}

// waitSpare waits for the next segment if it is being made, and makes it if
// nobody does: no caller, the keeper included, waits for the keeper to come round.
func (s *Store) waitSpare(records bool) error {
	s.urgent++
	defer func() { s.urgent-- }()
	// What frees space must not wait for itself.
	if records && s.reclaiming && !s.opt.Inline && !s.waitUntil(func() bool { return !s.reclaiming && !s.making || s.spare != nil }) {
		return fmt.Errorf("%w: waited %v for the oldest segments to be dropped in %s", ErrNoSpace, longestWait, s.dir)
	}
	if s.making && !s.waitUntil(func() bool { return !s.making }) {
		return fmt.Errorf("lst: waited %v for segment %s to be preallocated in %s", longestWait, segmentName(s.active.head.number+1), s.dir)
	}
	if s.spare == nil {
		// Also after a failed attempt of somebody else: space may have returned.
		s.mu.Unlock()
		s.ensureSpare()
		s.mu.Lock()
	}
	switch {
	case s.err != nil:
		return s.err
	case s.closed:
		return ErrClosed
	case s.spare == nil && s.spareErr != nil:
		return s.spareErr
	case s.spare == nil:
		return fmt.Errorf("%w: no spare segment", ErrNoSpace)
	}
	return nil
}

// waitUntil waits for a condition under mu, false if it took too long. It ends
// early when the store stops. The deadline is one of the real world: nothing in a
// simulation waits.
func (s *Store) waitUntil(ok func() bool) bool {
	deadline := time.AfterFunc(longestWait, s.cond.Broadcast)
	defer deadline.Stop()
	s.waiting++
	defer func() { s.waiting-- }()
	for start := time.Now(); !ok() && s.err == nil && !s.closed; {
		if time.Since(start) >= longestWait {
			return false
		}
		s.cond.Wait()
	}
	return true
}

// waitCompleted waits until the write ticket and all before it are complete. If
// an owner leaves a prepared write open, the outcome of the later ones is
// unknown, and the store stops. Under mu.
func (s *Store) waitCompleted(ticket uint64) error {
	if s.err == nil && s.completed < ticket && !s.waitUntil(func() bool { return s.completed >= ticket }) {
		s.latch(fmt.Errorf("lst: write %d waited %v for prepared write %d to be completed", ticket, longestWait, s.completed+1))
	}
	if s.err == nil && s.completed < ticket {
		return ErrClosed
	}
	return s.err
}

// roll makes the spare segment the active one. Writes to the old one may still
// be in flight: the claim in the link frame says up to where it was durable, so
// recovery can tell a torn end from damage (L22).
func (s *Store) roll() error {
	if s.spare.file != nil {
		// The keeper was here before.
	} else if err := s.openSegment(s.spare); err != nil {
		if isScarce(err) {
			return fmt.Errorf("%w: open %s for appending: %w", ErrNoSpace, s.spare.path, err)
		}
		s.latch(fmt.Errorf("open %s for appending: %w", s.spare.path, err))
		return s.err
	}
	old := s.active
	s.linkPrev = mkpos(old.head.number, s.nextOff)
	if s.cutEnd != 0 {
		s.linkPrev, s.cutEnd = s.cutEnd, 0
	}
	s.active, s.spare = s.spare, nil
	s.nextOff = int64(s.active.head.dataStart)
	s.fresh = true
	s.ix.files.next(s.active)
	s.retired = append(s.retired, old)
	if s.opt.Inline {
		s.wantSpare = true
	} else {
		// The keeper is woken behind the commit's last lock, unless others may wait for it.
		s.reclaiming = s.opt.DropOldest && s.overBudget(s.opt.SegmentBytes, roomRecords) != nil
		if s.wantSpare = !s.reclaiming; s.reclaiming {
			s.kick()
		}
	}
	return nil
}

func (s *Store) appendLink(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(s.linkPrev))
	return binary.LittleEndian.AppendUint64(b, uint64(s.snap.synced.at))
}

// Complete reports the end of a prepared write. Records become visible, and may
// be acknowledged, once their write and all before it are complete: Complete
// returns nil as soon as the report is taken, so an owner with several writes in
// flight acknowledges up to the ticket that Completed returns. In Buffered mode, and
// in Direct mode behind a commit that was not forced, the records are then
// Acknowledged; call Sync to force them.
//
// A failed write latches the store: this and every later call fails with the
// first error, and what the write held is unknown until the store is reopened.
func (s *Store) Complete(w Write, err error) error {
	s.mu.Lock()
	if w.p == nil || w.p.ticket != w.Ticket || w.p.done {
		s.mu.Unlock()
		return fmt.Errorf("%w: write %d is not in flight", ErrInvalid, w.Ticket)
	}
	s.finish(w.p, err)
	err = s.err
	s.cond.Broadcast()
	due := s.upkeepDue()
	s.mu.Unlock()
	if err == nil && due {
		s.keep()
	}
	return err
}

// Completed is the highest ticket up to which all writes are complete.
func (s *Store) Completed() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.completed
}

// finish takes the end of a write and applies what is complete in order. Under mu.
func (s *Store) finish(p *pending, err error) {
	p.done = true
	if err != nil {
		s.latch(fmt.Errorf("write of %d bytes at offset %d of %s: %w", len(p.buf), p.off, p.seg.path, err))
		return
	}
	for s.err == nil && len(s.inflight) > 0 && s.inflight[0].done {
		head := s.inflight[0]
		copy(s.inflight, s.inflight[1:])
		s.inflight = s.inflight[:len(s.inflight)-1]
		s.applyWrite(head)
	}
	if p.ticket > s.completed {
		p.detach()
	}
}

func (s *Store) applyWrite(p *pending) {
	// The cache before the slots: a reader that finds a slot must find its bytes. Only
	// the batches, behind each other: nobody reads padding or index frames from it.
	if n := len(p.batches); n > 0 {
		at, last := p.batches[0].at, p.batches[n-1]
		s.ix.cache.write(p.buf[at.off()-p.off:last.at.off()-p.off+int64(len(last.b.frame))], at)
	}
	for _, pb := range p.batches {
		s.ix.applyBatch(pb.b.ops, pb.b.body(), pb.at+frameHeadBytes)
	}
	if s.ix.broken != nil {
		// The batch is on disk but cannot be shown: better no answer than "absent".
		s.latch(s.ix.broken)
		return
	}
	for i := range p.seals {
		s.ix.sealDone(&p.seals[i])
	}
	// A synced write says nothing of those before it that were not synced: if one of
	// them is lost, recovery ends there and never comes to this one. So durable moves
	// with it only if nothing in front is open, and else with the next Sync.
	whole := p.through && s.durable == s.applied
	s.applied = p.pos()
	if whole {
		s.durable = s.applied
	}
	s.completed = p.ticket
	if p.root != nil {
		s.snapDone(p.root)
	}
	s.written += int64(len(p.buf))
	if p != &s.alone && len(s.pool) < 4 && cap(p.buf) <= 4<<20 {
		clear(p.batches)
		clear(p.seals)
		p.root = nil
		s.pool = append(s.pool, p)
	}
}

// latch stops the store for good (P14). Under mu.
func (s *Store) latch(err error) {
	if s.err == nil {
		s.err = &failedStore{err}
		s.cond.Broadcast()
	}
}
