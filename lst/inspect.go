package lst

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// FormatVersion is the newest version of the files that this program reads, and the one it writes.
const FormatVersion = formatVersion

// Inspection looks at a store's directory for tools: offline, beside a live writer, on a plain copy, and on a damaged store
// that does not open. It changes nothing in the directory, not one byte, and takes no lock. It belongs to one goroutine;
// its View to any number.
type Inspection struct {
	Segments  []SegmentInfo  // every segment file, ascending
	Foreign   []string       // names in the directory that are not the store's; they do no harm
	Report    RecoveryReport // what an open would find
	Snapshots []SnapshotInfo // what an open would load, newest first, down to a base
	Damage    error          // why the store does not open, nil if it does; most often a *Corruption

	dir   string
	opt   Options
	ix    *index
	segs  map[uint32]*recSegment
	floor uint32 // no segment below it is part of the store
	end   pos    // 0 with Damage
}

// SegmentInfo is one segment file.
type SegmentInfo struct {
	Number    uint32
	File      string       // path
	FileBytes int64        // length of the file
	State     SegmentState // its part in the store
	Format    int          // version in its header, 0 if that cannot be read
	Zeroed    bool         // filled with zeros when it was made: Direct mode
	Block     int          // bytes that writes are padded to
	Created   time.Time
	From, To  int64  // frames are in [From, To)
	Problem   string // what is wrong with the header or the link, empty if nothing
	problemAt int64
	blank     bool // no header, and only zeros
}

// SegmentState is the part that a file has in the store.
type SegmentState string

const (
	SegmentUsed    SegmentState = "used"    // part of the store, and not known to be the last
	SegmentActive  SegmentState = "active"  // the last one in use
	SegmentSpare   SegmentState = "spare"   // made beforehand, never used
	SegmentStale   SegmentState = "stale"   // not needed any more; the next open for writing removes it
	SegmentDamaged SegmentState = "damaged" // see Problem
)

// SnapshotInfo is one snapshot on disk.
type SnapshotInfo struct {
	Number  uint64
	Base    bool     // holds everything; otherwise what changed since the one before
	Root    Location // of its root frame
	Replay  Location // a restart replays from here
	Taken   time.Time
	Records uint64 // in the store when it was taken
	Pieces  int
	Bytes   int64  // of the pieces
	Missing string // why it can no longer be loaded, empty if it is whole; filled by Scan
}

// Inspect looks at the store in dir. Only Options.FS and MaxOpenFiles matter. A store that does not open is no error:
// Damage says why, and Frames and Scan still work. A directory without segment files is one.
func Inspect(dir string, opt Options) (*Inspection, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	in := &Inspection{dir: dir, opt: opt}
	if err := in.load(); err != nil {
		return nil, err
	}
	return in, nil
}

// load reads the state anew.
func (in *Inspection) load() error {
	var err error
	before := ""
	for try := 0; try < readerTries; try++ {
		in.Close()
		if err = in.loadOnce(); err == nil {
			// A writer beside us may look like damage once, not twice in the same place.
			if in.Damage == nil || in.Damage.Error() == before || try == readerTries-1 {
				return nil
			}
			before = in.Damage.Error()
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errDropped) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("lst: inspect %s: %w", in.dir, err)
	}
	return nil
}

func (in *Inspection) loadOnce() error {
	*in = Inspection{dir: in.dir, opt: in.opt, floor: 1}
	names, err := in.opt.FS.List(in.dir)
	if err != nil {
		return err
	}
	var numbers []uint32
	for _, name := range names {
		if n, ok := parseSegmentName(name); ok {
			numbers = append(numbers, n)
		} else if name != lockName {
			in.Foreign = append(in.Foreign, name)
		}
	}
	if len(numbers) == 0 {
		return fmt.Errorf("%w: the directory holds no segment file such as %s", ErrNotFound, segmentName(1))
	}
	in.ix = newIndex(newFileSet(in.opt.FS, in.dir, in.opt.MaxOpenFiles), nil)
	start := in.opt.Now()
	r := &recovery{fs: in.opt.FS, dir: in.dir, ix: in.ix, readOnly: true, rep: &in.Report}
	err = r.run()
	in.Report.Elapsed = in.opt.Now().Sub(start)
	if len(r.numbers) > 0 {
		numbers = r.numbers // a writer beside us may have rolled since the listing above: the index holds what stands in these
	}
	var c *Corruption
	switch {
	case errors.As(err, &c):
		in.Damage, in.end = err, 0
	case err != nil:
		return err
	default:
		in.end = r.end
		in.noteSnapshots(r)
	}
	if r.segs == nil {
		r.segs = map[uint32]*recSegment{}
	}
	in.segs = r.segs
	return in.noteSegments(r, numbers)
}

func (in *Inspection) noteSnapshots(r *recovery) {
	if r.root == nil {
		return
	}
	in.floor = r.root.floor
	for _, root := range r.chain {
		in.Snapshots = append(in.Snapshots, snapshotInfo(root))
	}
}

func snapshotInfo(r *rootInfo) SnapshotInfo {
	return SnapshotInfo{
		Number: r.number, Base: r.base, Root: location(r.at, 0), Replay: location(r.replay, 0), Taken: time.UnixMilli(r.unixMS),
		Records: r.records, Pieces: len(r.pieces), Bytes: r.bytes,
	}
}

func location(p pos, n int) Location { return Location{Segment: p.seg(), Offset: p.off(), Length: n} }

func (in *Inspection) noteSegments(r *recovery, numbers []uint32) error {
	for _, n := range numbers {
		s, err := r.segment(n)
		i := SegmentInfo{Number: n, File: segmentPath(in.dir, n)}
		var c *Corruption
		switch {
		case errors.As(err, &c):
			i.Problem, i.problemAt = c.Reason, c.Offset
			s = r.segs[n]
		case err != nil:
			return err
		default:
			i.Problem, i.blank = s.reason, s.reason != ""
		}
		if s != nil {
			i.FileBytes = s.size
		}
		if s != nil && s.reason == "" {
			h := &s.head
			i.Format, i.Zeroed, i.Block = formatVersion, h.flags&flagZeroed != 0, int(h.block)
			i.Created, i.From, i.To = time.UnixMilli(h.createdMS), int64(h.dataStart), s.size
		}
		in.Segments = append(in.Segments, i)
	}
	used := 0 // files up to the last one that was in use for certain
	for k := range in.Segments {
		if s := in.segs[in.Segments[k].Number]; s != nil && s.link {
			used = k + 1
		}
	}
	for k := range in.Segments {
		in.place(k, k < used)
	}
	return nil
}

// place says what part a segment has, and where its frames end. used says that it, or a later one, was in use.
func (in *Inspection) place(k int, used bool) {
	i := &in.Segments[k]
	s := in.segs[i.Number]
	sound := s != nil && s.reason == "" && i.Problem == ""
	if k+1 < len(in.Segments) {
		// What stands behind the end that the next segment names was cut after a crash.
		if next := in.segs[i.Number+1]; next != nil && next.link && next.prev.seg() == i.Number {
			i.To = min(i.To, next.prev.off())
		}
	}
	switch {
	case i.Number < in.floor:
		i.State = SegmentStale
	case in.end != 0 && i.Number > in.end.seg(), in.end == 0 && in.Damage == nil:
		// The end is known, and it is in front of this one.
		i.State, i.To = SegmentSpare, i.From
		if in.Report.CutFile != "" && !s.blankOrUnusable() {
			i.State = SegmentStale
		}
	case !used && (sound || i.blank):
		i.State, i.To = SegmentSpare, i.From
		if !i.blank {
			i.To = i.FileBytes // nothing vouches for it: whatever it holds is shown
		}
	case !sound:
		i.State = SegmentDamaged
	case in.end != 0 && i.Number == in.end.seg():
		i.State, i.To = SegmentActive, in.end.off()
	default:
		i.State = SegmentUsed
	}
}

// blankOrUnusable reports that nothing of a segment behind the end is worth a word.
func (s *recSegment) blankOrUnusable() bool { return s == nil || s.reason != "" || s.blank }

// View reads the state that an open would find; the error is Damage.
func (in *Inspection) View() (View, error) { return View{in.ix}, in.Damage }

// End is where the store ends: the next write of a store that goes on in the same segment comes here.
func (in *Inspection) End() Location { return location(in.end, 0) }

// Close releases the descriptors.
func (in *Inspection) Close() {
	if in.ix != nil {
		in.ix.files.closeAll()
	}
}

// Frame is one frame of a segment, or what stands where none is.
type Frame struct {
	Location        // of the whole frame
	Kind     string // link, batch, leaf, table, root; padding, damage, unused
	Claim    Location
	Detail   string // what an index frame says, or what is wrong
	Ops      []Op   // of a batch
}

// Op is one operation of a batch. Slices are valid during the call that hands it out.
type Op struct {
	Kind       string // append, replace, put, delete, trim, delete stream
	Stream     StreamID
	Seq        uint64   // or trim point
	Key, Value []byte   // of key-values
	At         Location // of the payload or the key, zero for the others
}

var opNames = [...]string{
	opAppend: "append", opAppendNext: "append", opPut: "put", opDelete: "delete", opTrim: "trim", opDropStream: "delete stream", opReplace: "replace",
}

var kindNames = [...]string{kindLink: "link", kindBatch: "batch", kindLeaf: "leaf", kindTable: "table", kindRoot: "root"}

// Frames calls fn for everything in a segment from offset from to before offset to, whole frames only; to 0 means the end.
// An error of fn ends it. The Frame and what it points to are valid during the call.
func (in *Inspection) Frames(segment uint32, from, to int64, fn func(*Frame) error) error {
	for k := range in.Segments {
		if i := &in.Segments[k]; i.Number == segment {
			return in.walk(i, func(p *piece) error {
				if p.at.off()+p.n <= from || to > 0 && p.at.off() >= to {
					return nil
				}
				return fn(p.frame())
			})
		}
	}
	return fmt.Errorf("%w: no segment file %s in %s", ErrNotFound, segmentName(segment), in.dir)
}

func (p *piece) frame() *Frame {
	f := &Frame{Location: location(p.at, int(p.n)), Kind: p.what, Detail: p.why}
	if p.what != pieceFrame {
		return f
	}
	f.Kind, f.Claim = kindNames[p.head.kind], location(p.head.claim, 0)
	body, at := p.body, p.at+frameHeadBytes
	switch p.head.kind {
	case kindLink:
		f.Detail = fmt.Sprintf("the segment before ends at %s", orNone(linkPrev(body)))
		if len(body) == 16 {
			f.Detail += fmt.Sprintf(", snapshot at %s", orNone(pos(binary.LittleEndian.Uint64(body[8:]))))
		}
	case kindBatch:
		err := decodeOps(body, func(op *batchOp) error {
			f.Ops = append(f.Ops, exportOp(op, body, at))
			return nil
		})
		if err != nil {
			f.Detail = err.Error()
		}
	case kindLeaf:
		f.Detail = leafDetail(body)
	case kindTable:
		r := reader{b: body}
		f.Detail = fmt.Sprintf("piece of snapshot %d", r.uvarint())
	case kindRoot:
		root, err := decodeRoot(body, p.at)
		if err != nil {
			f.Detail = err.Error()
			break
		}
		f.Detail = fmt.Sprintf("snapshot %d, delta to the one at %s", root.number, root.prev)
		if root.base {
			f.Detail = fmt.Sprintf("snapshot %d, base", root.number)
		}
		f.Detail += fmt.Sprintf(", %d pieces, replay from %s, no segment below %s needed", len(root.pieces), root.replay, segmentName(root.floor))
	}
	return f
}

// linkPrev is where the segment before ends, by the body of a link frame; 0 for none.
func linkPrev(body []byte) pos {
	if len(body) < 8 {
		return 0
	}
	return pos(binary.LittleEndian.Uint64(body))
}

func orNone(p pos) string {
	if p == 0 {
		return "none"
	}
	return p.String()
}

func exportOp(op *batchOp, body []byte, at pos) Op {
	o := Op{Kind: opNames[op.code], Stream: op.stream, Seq: op.seq}
	switch op.code {
	case opPut, opDelete:
		o.Key, o.Value = body[op.off:op.off+op.n], body[op.off+op.n:op.off+op.n+op.vn]
		o.At = location(at+pos(op.off), op.n+op.vn)
	case opTrim, opDropStream:
	default:
		o.At = location(at+pos(op.off), op.n)
	}
	return o
}

// leafDetail says what a leaf frame covers, after parsing all of it.
func leafDetail(body []byte) string {
	id, number := leafName(body)
	d, err := parseLeaf(body, id, number<<leafShift)
	if err != nil {
		return err.Error()
	}
	from, have := d.next(0), d.present(leafSlots)
	if from == leafSlots {
		return fmt.Sprintf("stream %v, no records", id)
	}
	return fmt.Sprintf("stream %v, %d records from %d", id, have.count(), number<<leafShift+uint64(from))
}

func leafName(body []byte) (id StreamID, number uint64) {
	r := reader{b: body}
	r.copy(id[:])
	return id, r.uvarint()
}
