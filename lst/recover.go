package lst

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/btrlog/btrlog/lst/vfs"
)

// Recovery.
//
//	1 The newest segment with a link frame is the last one in use. Its link says
//	  up to where the store was durable when it began (claim) and names a durable
//	  snapshot. The newest root frame in the segment, looked for from its end
//	  backwards, has a claim too, and is at most one interval away.
//	2 Walk all frames from that claim, or from where the snapshot's replay begins,
//	  to the first place that holds none: the end. The batches are kept.
//	  If only zeros follow, the end is clean. Otherwise it is a tear, and every
//	  frame found behind it is asked for its claim: one above the tear proves that
//	  durable data is damaged, which is an error. Else the tail is cut. If the
//	  root found backwards lies behind the tear, it is not part of the store: walk
//	  again from the claim of the one in front of the tear, or else the link's. The
//	  link's alone would not do: with the newer one durable, the segments of the
//	  snapshot that the link names may have been dropped.
//	3 The newest root frame on the walk, or the one the link names, is the
//	  snapshot. Everything in front of the claim is durable, everything behind it
//	  was just checked: the snapshot is whole (T4).
//	4 Take the batches from where the snapshot began to the end; its own pieces
//	  are read at once, or when they are asked for (coldState).
//	5 Sync what was walked; only then remove files below the snapshot's floor,
//	  segments behind a tear, and files that were never in use. The other order
//	  could leave, after a power loss, neither the old index nor the new.
//	6 Behind a tear nothing is ever appended: the next segment takes over and its
//	  link says where the torn one ends (L1).
type recovery struct {
	fs       vfs.FS
	dir      string
	ix       *index
	readOnly bool
	rep      *RecoveryReport

	numbers []uint32
	segs    map[uint32]*recSegment
	last    *recSegment // newest segment with a link
	end     pos         // end of the store
	torn    bool
	root    *rootInfo // the snapshot
	rootAt  pos       // newest root seen on the walk
	from    pos       // the walk began here
	ops     recOps    // of the batches on the walk
	chain   []*rootInfo
	buf     []byte
	lazy    bool // leave the snapshot to be read when it is asked for
	// deferZeros leaves the rest of a preallocated file, behind zeroWindow, to be
	// checked later; unchecked says where it begins, by segment.
	deferZeros bool
	unchecked  map[uint32]int64
}

type recSegment struct {
	number uint32
	path   string
	head   segHeader
	reason string // why the header is no good
	link   bool
	prev   pos
	root   pos
	claim  pos
	size   int64
	blank  bool // sound header, and only zeros behind it
}

// open reads the directory and each segment's header and link, from the newest
// down to the first in use. Older ones are not touched.
func (r *recovery) open() error {
	if err := r.list(); err != nil {
		return err
	}
	for i := len(r.numbers) - 1; i >= 0 && r.last == nil; i-- {
		s, err := r.segment(r.numbers[i])
		if err != nil {
			return err
		}
		if s.link {
			r.last = s
		}
	}
	return nil
}

// list reads the directory.
func (r *recovery) list() error {
	names, err := r.fs.List(r.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if n, ok := parseSegmentName(name); ok {
			r.numbers = append(r.numbers, n)
		}
	}
	r.segs = map[uint32]*recSegment{}
	return nil
}

func (r *recovery) exists(n uint32) bool {
	i := sort.Search(len(r.numbers), func(i int) bool { return r.numbers[i] >= n })
	return i < len(r.numbers) && r.numbers[i] == n
}

// segment reads a segment's header and link frame.
func (r *recovery) segment(n uint32) (*recSegment, error) {
	if s := r.segs[n]; s != nil {
		return s, nil
	}
	s := &recSegment{number: n, path: segmentPath(r.dir, n)}
	f, err := r.fs.Open(s.path, vfs.ReadOnly)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if s.size, err = f.Size(); err != nil {
		return nil, err
	}
	var b [headerBytes]byte
	got, err := f.ReadAt(b[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	s.head, s.reason = decodeHeader(b[:got], n)
	r.segs[n] = s
	if s.reason != "" {
		return s, r.neverUsed(s, f)
	}
	var lb [frameHeadBytes + 16]byte
	at := mkpos(n, int64(s.head.dataStart))
	if got, err = f.ReadAt(lb[:], at.off()); got < len(lb) {
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return s, nil
	}
	h, ok := readFrameHead(lb[:], at, s.head.salt)
	if short := s.head.flags&flagZeroed != 0 && s.size < int64(s.head.size); ok && short {
		// The length was durable before the file was used.
		return nil, &Corruption{File: s.path, Offset: s.size, Reason: fmt.Sprintf("file is cut off, it was made with %d bytes", s.head.size)}
	}
	if ok && h.kind == kindLink && h.length == 16 && h.bodyOK(lb[frameHeadBytes:], at, s.head.salt) {
		s.link, s.claim = true, h.claim
		s.prev = pos(binary.LittleEndian.Uint64(lb[frameHeadBytes:]))
		s.root = pos(binary.LittleEndian.Uint64(lb[frameHeadBytes+8:]))
	}
	return s, nil
}

// neverUsed accepts a segment without a sound header only if nothing but zeros
// follows: the header is durable before any frame is written (L5, L6).
func (r *recovery) neverUsed(s *recSegment, f vfs.File) error {
	off, zero, err := r.zeros(f, headerBytes, s.size)
	if err != nil {
		return err
	}
	if !zero {
		return &Corruption{File: s.path, Offset: 0, Reason: fmt.Sprintf("%s, but there is data at offset %d", s.reason, off)}
	}
	return nil
}

// zeros reports whether the file holds only zeros in [from, to), and where not.
func (r *recovery) zeros(f vfs.File, from, to int64) (int64, bool, error) {
	b := make([]byte, min(256<<10, max(0, to-from)))
	for from < to {
		n, err := f.ReadAt(b[:min(int64(len(b)), to-from)], from)
		if err != nil && !errors.Is(err, io.EOF) {
			return from, false, err
		}
		for i, c := range b[:n] {
			if c != 0 {
				return from + int64(i), false, nil
			}
		}
		if n == 0 {
			return from, true, nil
		}
		from += int64(n)
	}
	return from, true, nil
}

// frameReader reads a segment in windows.
type frameReader struct {
	f    vfs.File
	size int64
	win  []byte
	at   int64
}

// bytes returns n bytes at off, fewer at the end of the file.
func (w *frameReader) bytes(off int64, n int) ([]byte, error) {
	if off >= w.at && off+int64(n) <= w.at+int64(len(w.win)) {
		return w.win[off-w.at:][:n], nil
	}
	n = int(min(int64(n), w.size-off))
	if n <= 0 {
		return nil, nil
	}
	want := int(min(int64(max(n, 1<<20)), w.size-off))
	if cap(w.win) < want {
		w.win = make([]byte, want)
	}
	w.win = w.win[:want]
	got, err := w.f.ReadAt(w.win, off)
	if err != nil && !errors.Is(err, io.EOF) {
		w.win = w.win[:0]
		return nil, err
	}
	w.win, w.at = w.win[:got], off
	return w.win[:min(n, got)], nil
}

// frame returns the frame at off; ok is false if there is none.
func (w *frameReader) frame(off, limit int64, seg uint32, salt uint32) (h frameHead, body []byte, ok bool, err error) {
	if off+frameHeadBytes > limit {
		return h, nil, false, nil
	}
	b, err := w.bytes(off, frameHeadBytes)
	if err != nil || len(b) < frameHeadBytes {
		return h, nil, false, err
	}
	at := mkpos(seg, off)
	if h, ok = readFrameHead(b, at, salt); !ok {
		return h, nil, false, nil
	}
	total := frameHeadBytes + int64(h.length)
	if off+total > limit {
		return h, nil, false, nil // the bound comes before the allocation (L21)
	}
	if b, err = w.bytes(off, int(total)); err != nil || int64(len(b)) < total {
		return h, nil, false, err
	}
	body = b[frameHeadBytes:]
	return h, body, h.bodyOK(body, at, salt), nil
}

// walk visits the frames of s from off to the first place below limit that holds
// none, and returns that place. Zeros up to the next block are skipped.
func (r *recovery) walk(s *recSegment, off, limit int64, fn func(h frameHead, body []byte, at pos) error) (int64, error) {
	f, err := r.fs.Open(s.path, vfs.ReadOnly)
	if err != nil {
		return off, err
	}
	defer f.Close()
	limit = min(limit, s.size)
	w := &frameReader{f: f, size: limit, win: r.buf[:0]}
	defer func() { r.buf = w.win }()
	block := int64(s.head.block)
	for off < limit {
		h, body, ok, err := w.frame(off, limit, s.number, s.head.salt)
		if err != nil {
			return off, err
		}
		if ok {
			r.rep.ReplayedBytes += frameHeadBytes + int64(len(body))
			if err := fn(h, body, mkpos(s.number, off)); err != nil {
				return off, err
			}
			off += frameHeadBytes + int64(h.length)
			continue
		}
		next := min(alignUp(off, block), limit)
		if next == off {
			return off, nil
		}
		pad, err := w.bytes(off, int(next-off))
		if err != nil {
			return off, err
		}
		for _, c := range pad {
			if c != 0 {
				return off, nil
			}
		}
		off = next
	}
	return off, nil
}

// findEnd does steps 2 and 3, from root on if it is not nil.
func (r *recovery) findEnd(root *rootInfo) error {
	start := r.last.claim
	first := r.numbers[0]
	r.rootAt = r.last.root
	if root == nil && r.rootAt != 0 {
		var err error
		if root, err = r.readRoot(r.rootAt); err != nil {
			return err
		}
		start = min(start, root.replay)
	} else if root != nil {
		start, r.rootAt = min(root.claim, root.replay), root.at
	} else {
		start = mkpos(first, 0)
	}
	if start.seg() < first {
		start = mkpos(first, 0)
	}
	r.from = start
	r.ops.reset()
	note := func(h frameHead, body []byte, at pos) error {
		switch h.kind {
		case kindRoot:
			r.rootAt = max(r.rootAt, at)
		case kindBatch:
			if err := r.ops.batch(body, at+frameHeadBytes); err != nil {
				return r.corrupt(at, err.Error())
			}
		}
		return nil
	}
	for n := start.seg(); ; n++ {
		if !r.exists(n) {
			return &Corruption{File: segmentPath(r.dir, n), Reason: "segment file is missing"}
		}
		s, err := r.segment(n)
		if err != nil {
			return err
		}
		if s.reason != "" {
			// Nothing was ever written here, although later segments are in use.
			return &Corruption{File: s.path, Reason: s.reason}
		}
		off := int64(s.head.dataStart)
		if n == start.seg() {
			off = max(off, start.off())
		}
		var next *recSegment
		limit := s.size
		if r.exists(n + 1) {
			if next, err = r.segment(n + 1); err != nil {
				return err
			}
			if next.link {
				if next.prev.seg() != n {
					return &Corruption{File: next.path, Offset: int64(next.head.dataStart), Reason: fmt.Sprintf("segment follows %s, not segment %d", next.prev, n)}
				}
				limit = next.prev.off()
			}
		}
		end, err := r.walk(s, off, limit, note)
		if err != nil {
			return err
		}
		if next == nil && n < r.last.number {
			// Its directory entry was durable before the first byte was written.
			return &Corruption{File: segmentPath(r.dir, n+1), Reason: "segment file is missing"}
		}
		if next != nil && next.link && end == limit {
			continue
		}
		return r.judgeEnd(s, end, next)
	}
}

// judgeEnd decides whether the walk ended at the end, at a tear, or at damage.
func (r *recovery) judgeEnd(s *recSegment, end int64, next *recSegment) error {
	r.end = mkpos(s.number, end)
	f, err := r.fs.Open(s.path, vfs.ReadOnly)
	if err != nil {
		return err
	}
	defer f.Close()
	at, clean, err := r.zeros(f, end, r.checkTo(s, end))
	if err != nil {
		return err
	}
	cut := s.size - end
	claim, claimAt := pos(0), pos(0)
	see := func(p, at pos) {
		if p > claim {
			claim, claimAt = p, at
		}
	}
	if !clean {
		if err := r.claims(s, f, at, see); err != nil {
			return err
		}
	}
	for n := s.number + 1; r.exists(n); n++ {
		later, err := r.segment(n)
		if err != nil {
			return err
		}
		if later.reason != "" {
			continue // never in use
		}
		lf, err := r.fs.Open(later.path, vfs.ReadOnly)
		if err != nil {
			return err
		}
		_, empty, err := r.zeros(lf, int64(later.head.dataStart), r.checkTo(later, int64(later.head.dataStart)))
		later.blank = err == nil && empty && (later.head.flags&flagZeroed == 0 || later.size >= int64(later.head.size))
		if err == nil && !empty {
			clean = false
			cut += later.size - int64(later.head.dataStart)
			err = r.claims(later, lf, int64(later.head.dataStart), see)
		}
		lf.Close()
		if err != nil {
			return err
		}
	}
	if clean {
		return nil
	}
	if claim > r.end {
		return &Corruption{File: s.path, Offset: end,
			Reason: fmt.Sprintf("no valid frame here, but the frame at %v was written when everything below %v was durable", claimAt, claim)}
	}
	r.torn = true
	r.rep.CutFile, r.rep.CutOffset, r.rep.CutBytes = s.path, end, cut
	r.rep.CutReason = "the last writes before a crash did not reach the disk whole"
	return nil
}

// claims looks at every byte from off on for frames and reports what they claim.
func (r *recovery) claims(s *recSegment, f vfs.File, off int64, see func(claim, at pos)) error {
	w := &frameReader{f: f, size: s.size}
	for off+frameHeadBytes <= s.size {
		b, err := w.bytes(off, int(min(1<<16, s.size-off)))
		if err != nil {
			return err
		}
		if len(b) < frameHeadBytes {
			return nil
		}
		base, step := off, len(b)-frameHeadBytes+1
		off += int64(step)
		for i := 0; i < step; i++ {
			at := mkpos(s.number, base+int64(i))
			if _, ok := readFrameHead(b[i:], at, s.head.salt); !ok {
				continue
			}
			h, body, ok, err := w.frame(at.off(), s.size, s.number, s.head.salt)
			if err != nil {
				return err
			}
			if ok {
				see(h.claim, at)
				off = at.off() + frameHeadBytes + int64(len(body))
				break
			}
			// The window may have moved: look at the rest anew.
			off = at.off() + 1
			break
		}
	}
	return nil
}

// zeroWindow is how far behind the end a restart looks for bytes at once, when it
// may leave the rest for later: far more than writes in flight take.
const zeroWindow = 4 << 20

// checkTo is where the search for bytes behind from ends.
func (r *recovery) checkTo(s *recSegment, from int64) int64 {
	if !r.deferZeros || s.size-from <= zeroWindow {
		return s.size
	}
	if r.unchecked == nil {
		r.unchecked = map[uint32]int64{}
	}
	r.unchecked[s.number] = from + zeroWindow
	return from + zeroWindow
}

// take does step 4.
func (r *recovery) take() error {
	from, floor := mkpos(r.numbers[0], 0), uint32(1)
	if r.rootAt != 0 {
		root, err := r.readRoot(r.rootAt)
		if err != nil {
			return err
		}
		r.root, r.rep.Snapshot = root, root.number
		from, floor = root.replay, root.floor
	}
	for n := floor; n <= r.end.seg(); n++ {
		if !r.exists(n) {
			return &Corruption{File: segmentPath(r.dir, n), Reason: "segment file is missing"}
		}
	}
	r.ix.files.addRange(floor, r.end.seg())
	r.rep.ReplayedRecords = r.ops.since(from)
	if r.root != nil && r.lazy {
		c := newColdState(r.ix, r)
		r.ix.cold.Store(c)
		for i := range r.ops.ops {
			if op := &r.ops.ops[i]; op.isKV() {
				r.ops.applyKV(r.ix, op)
			}
		}
		return nil
	}
	if r.root != nil {
		if err := r.loadSnapshot(); err != nil {
			return err
		}
	}
	r.ops.apply(r.ix)
	r.ops.reset()
	if r.ix.broken != nil {
		return r.ix.broken
	}
	return r.ix.damage
}

// run does everything that changes nothing on disk.
func (r *recovery) run() error {
	if err := r.open(); err != nil {
		return err
	}
	if r.last == nil {
		return r.unused()
	}
	root, err := r.newestRoot(r.last.size)
	if err != nil {
		return err
	}
	if err := r.findEnd(root); err != nil {
		return err
	}
	for root != nil && r.end <= root.at {
		// The one in front of the tear first: what the link names may be dropped since.
		before := int64(0)
		if r.end.seg() == r.last.number {
			before = r.end.off()
		}
		if root, err = r.newestRoot(before); err != nil {
			return err
		}
		r.torn, r.unchecked = false, nil
		r.rep.CutFile, r.rep.CutOffset, r.rep.CutBytes, r.rep.CutReason = "", 0, 0, ""
		if err := r.findEnd(root); err != nil {
			return err
		}
	}
	if err := r.take(); err != nil {
		return err
	}
	r.rep.Segments = len(*r.ix.files.list.Load())
	return nil
}

// unused handles a directory in which no segment was ever in use for certain: a
// crash in the first moments of a store.
func (r *recovery) unused() error {
	for _, n := range r.numbers {
		s := r.segs[n]
		if s.reason != "" {
			continue
		}
		f, err := r.fs.Open(s.path, vfs.ReadOnly)
		if err != nil {
			return err
		}
		err = r.claims(s, f, int64(s.head.dataStart), func(claim, at pos) {
			if claim > mkpos(n, int64(s.head.dataStart)) {
				r.rep.CutReason = fmt.Sprintf("link frame is damaged: the frame at %v was written when everything below %v was durable", at, claim)
			}
		})
		f.Close()
		if err != nil {
			return err
		}
		if r.rep.CutReason != "" {
			return &Corruption{File: s.path, Offset: int64(s.head.dataStart), Reason: r.rep.CutReason}
		}
	}
	return nil
}
