package lst

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"sort"
	"time"
)

// Space says what the bytes of a store's files are. The parts add up to FileBytes exactly.
type Space struct {
	FileBytes      int64
	LivePayload    int64 // of records that are present; all payload if Compared is empty
	DeadPayload    int64 // of trimmed, replaced and deleted records
	KeyValues      int64 // keys and values in batches, old ones too
	RecordHeaders  int64 // batch frames without payload, keys and values
	Index          int64 // link, leaf, table and root frames
	Padding        int64 // zeros up to the block
	SegmentHeaders int64
	Unused         int64 // preallocated and not written, or left over at the end of a full segment
	Damaged        int64 // without a valid frame
	Cut            int64 // a torn tail, and files that the next open for writing removes
}

// ScanReport is what Scan found.
type ScanReport struct {
	Space       Space
	Frames      map[string]int64 // by kind
	Records     int64            // in sound batch frames, dead ones too
	Snapshots   []SnapshotInfo   // every one on disk, oldest first
	Damages     []*Corruption    // the first ones, in the order of the files
	DamageCount int              // all of them
	NotCompared string           // why the index was not compared with the records; empty if it was
	Streams     int              // compared
	KVs         int              // compared
	BytesRead   int64
	Elapsed     time.Duration

	Unreadable      []Unreadable // present records that a damage took, the first ones
	UnreadableCount int
}

// Unreadable is a run of records [From, To) that the index has and the files have no more.
type Unreadable struct {
	Stream   StreamID
	From, To uint64
}

const maxDamages = 100

// errMoved says that the writer beside dropped segments while they were scanned.
var errMoved = errors.New("the writer dropped segments while they were read; try again, or scan a copy")

// TotalBytes is how much Scan will read, about.
func (in *Inspection) TotalBytes() int64 {
	n := int64(0)
	for k := range in.Segments {
		if i := &in.Segments[k]; i.State != SegmentStale {
			n += i.To - i.From
		}
	}
	return n
}

// Scan reads every frame of the store: checksums, the wholeness of every snapshot that is still needed, and, if the store
// opens, the index by descent against all records and key-values of the files: places, counts, bytes, the contiguous end and
// EOF. What it holds in memory grows with the streams and keys, not with the records. progress, if not nil, is called after
// each frame with the records and bytes so far; its error ends the scan. Damage is in the report, not an error.
func (in *Inspection) Scan(progress func(records, bytes int64) error) (*ScanReport, error) {
	for try := 0; ; try++ {
		c := &scan{in: in, rep: &ScanReport{Frames: map[string]int64{}}, progress: progress}
		start := in.opt.Now()
		err := c.run()
		if err == nil && len(c.gaps)+c.rep.DamageCount > 0 && in.moved() {
			err = errMoved
		}
		if err == nil {
			c.rep.Elapsed = in.opt.Now().Sub(start)
			return c.rep, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errMoved) {
			return nil, err
		}
		if try == 4 {
			return nil, fmt.Errorf("lst: scan %s: %w", in.dir, errMoved)
		}
		if err := in.load(); err != nil {
			return nil, err
		}
	}
}

// moved reports whether a file of the store has gone since it was looked at.
func (in *Inspection) moved() bool {
	names, err := in.opt.FS.List(in.dir)
	if err != nil {
		return false
	}
	have := map[string]bool{}
	for _, n := range names {
		have[n] = true
	}
	for k := range in.Segments {
		if i := &in.Segments[k]; i.State != SegmentStale && !have[segmentName(i.Number)] {
			return true
		}
	}
	return false
}

type span struct{ from, to pos }

type tableSeen struct{ size, crc uint32 }

type scan struct {
	in       *Inspection
	rep      *ScanReport
	progress func(records, bytes int64) error
	view     View
	payload  int64
	live     int64

	gaps    []span // without a valid frame, ascending
	tables  map[pos]tableSeen
	roots   map[pos]*rootInfo
	streams map[StreamID]*streamScan
	kvs     map[string]kvScan
	seed    maphash.Seed
}

type kvScan struct {
	sum  uint64
	gone bool
}

func (c *scan) run() error {
	c.tables, c.roots = map[pos]tableSeen{}, map[pos]*rootInfo{}
	c.streams, c.kvs, c.seed = map[StreamID]*streamScan{}, map[string]kvScan{}, maphash.MakeSeed()
	in := c.in
	if in.Damage != nil {
		c.rep.NotCompared = "the store does not open"
	}
	c.view = View{in.ix}
	for k := range in.Segments {
		if err := c.segment(&in.Segments[k]); err != nil {
			return err
		}
	}
	if len(c.gaps) > 0 && c.rep.NotCompared == "" {
		c.rep.NotCompared = "damaged frames may hold records"
	}
	c.checkRoots()
	switch {
	case c.rep.NotCompared == "":
		c.compareStreams()
		c.compareKVs()
	case in.Damage == nil:
		c.findUnreadable()
	}
	sp := &c.rep.Space
	sp.LivePayload, sp.DeadPayload = c.payload, 0
	if in.Damage == nil {
		sp.LivePayload, sp.DeadPayload = c.live, c.payload-c.live
	}
	var d *Corruption
	if errors.As(in.Damage, &d) && !c.named(d.File) {
		c.damage(d.File, d.Offset, d.Reason) // a file is missing, or sound frames do not fit together
	}
	sort.SliceStable(c.rep.Damages, func(a, b int) bool {
		x, y := c.rep.Damages[a], c.rep.Damages[b]
		return x.File < y.File || x.File == y.File && x.Offset < y.Offset
	})
	return nil
}

func (c *scan) damage(file string, off int64, reason string) {
	for _, d := range c.rep.Damages {
		if d.File == file && d.Offset == off {
			return // one leaf is asked for by many records
		}
	}
	c.rep.DamageCount++
	if len(c.rep.Damages) < maxDamages {
		c.rep.Damages = append(c.rep.Damages, &Corruption{File: file, Offset: off, Reason: reason})
	}
}

func (c *scan) named(file string) bool {
	for _, d := range c.rep.Damages {
		if d.File == file {
			return true
		}
	}
	return false
}

func (c *scan) damageAt(at pos, format string, args ...any) {
	c.damage(segmentPath(c.in.dir, at.seg()), at.off(), fmt.Sprintf(format, args...))
}

func (c *scan) segment(i *SegmentInfo) error {
	sp := &c.rep.Space
	sp.FileBytes += i.FileBytes
	if i.State == SegmentStale {
		sp.Cut += i.FileBytes
		return nil
	}
	if i.State == SegmentDamaged {
		c.damage(i.File, i.problemAt, i.Problem)
		if i.Format == 0 {
			sp.Damaged += i.FileBytes
			c.gaps = append(c.gaps, span{mkpos(i.Number, 0), mkpos(i.Number+1, 0)})
			return nil
		}
	}
	head := min(i.From, i.FileBytes)
	sp.SegmentHeaders += head
	rest := i.FileBytes - max(i.To, head)
	if rest < 0 {
		rest = 0
	}
	if i.File == c.in.Report.CutFile {
		sp.Cut += rest
	} else {
		sp.Unused += rest
	}
	return c.in.walk(i, func(p *piece) error { return c.piece(i, p) })
}

func (c *scan) piece(i *SegmentInfo, p *piece) error {
	sp := &c.rep.Space
	c.rep.BytesRead += p.n
	there := max(0, min(p.n, i.FileBytes-p.at.off())) // of a file that was cut off
	switch p.what {
	case piecePadding:
		sp.Padding += there
	case pieceUnused:
		sp.Unused += there
	case pieceDamage:
		sp.Damaged += there
		c.rep.Frames[pieceDamage]++
		c.gaps = append(c.gaps, span{p.at, p.at + pos(p.n)})
		c.damageAt(p.at, "%s", p.why)
	default:
		c.rep.Frames[kindNames[p.head.kind]]++
		c.frame(p)
	}
	if c.progress == nil {
		return nil
	}
	return c.progress(c.rep.Records, c.rep.BytesRead)
}

func (c *scan) frame(p *piece) {
	if p.head.kind == kindBatch {
		c.batch(p)
		return
	}
	c.rep.Space.Index += p.n
	switch p.head.kind {
	case kindLink:
		if prev, n := linkPrev(p.body), p.at.seg(); prev.seg() != n-1 {
			c.damageAt(p.at, "segment follows %v, not segment %d", prev, n-1)
		}
	case kindLeaf:
		id, number := leafName(p.body)
		if _, err := parseLeaf(p.body, id, number<<leafShift); err != nil {
			c.damageAt(p.at, "%v", err)
		}
	case kindTable:
		c.tables[p.at] = tableSeen{p.head.length, p.head.crc}
		r := reader{b: p.body}
		if err := newIndex(c.in.ix.files, nil).loadTable(p.body, r.uvarint()); err != nil {
			c.damageAt(p.at, "%v", err)
		}
	case kindRoot:
		root, err := decodeRoot(append([]byte(nil), p.body...), p.at)
		if err != nil {
			c.damageAt(p.at, "%v", err)
			return
		}
		c.addRoot(root)
	}
}

// addRoot checks a snapshot. Its pieces and predecessors are in front of it.
func (c *scan) addRoot(root *rootInfo) {
	info := snapshotInfo(root)
	for k := range root.pieces {
		p := &root.pieces[k]
		if seen, ok := c.tables[p.at]; !ok || seen != (tableSeen{p.size, p.crc}) {
			info.Missing = c.missing(p.at, "a piece")
			break
		}
	}
	if prev := c.roots[root.prev]; root.prev != 0 && info.Missing == "" {
		switch {
		case prev == nil:
			info.Missing = c.missing(root.prev, "the snapshot before it")
		case prev.number+1 != root.number:
			info.Missing = fmt.Sprintf("it follows snapshot %d", prev.number)
		case c.rep.Snapshots[prev.bytes].Missing != "":
			info.Missing = "the snapshot before it is not whole"
		}
	}
	// From here on bytes is the place in the report: nothing else of it is needed.
	keep := &rootInfo{at: root.at, number: root.number, floor: root.floor, bytes: int64(len(c.rep.Snapshots))}
	c.roots[root.at] = keep
	c.rep.Snapshots = append(c.rep.Snapshots, info)
}

// missing says why something that a snapshot needs is not there.
func (c *scan) missing(at pos, what string) string {
	if at.seg() < c.in.Segments[0].Number || at.seg() < c.in.floor {
		return fmt.Sprintf("%s was in %s, which was dropped", what, segmentName(at.seg()))
	}
	return fmt.Sprintf("%s at %v is damaged or absent", what, at)
}

// checkRoots reports the snapshots that should be whole and are not. Older ones lose their pieces with dropped segments.
func (c *scan) checkRoots() {
	for _, info := range c.rep.Snapshots {
		at := mkpos(info.Root.Segment, info.Root.Offset)
		r := c.roots[at]
		if info.Missing == "" || c.in.Segments[0].Number > r.floor || c.in.floor > r.floor {
			continue
		}
		if len(c.gaps) == 0 && c.in.Damage == nil {
			// Otherwise the damage itself is in the list, and this only follows from it.
			c.damageAt(at, "snapshot %d is not whole: %s", info.Number, info.Missing)
		}
	}
}
