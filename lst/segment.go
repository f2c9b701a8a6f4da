package lst

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/btrlog/btrlog/lst/vfs"
)

// writeSegment is a segment file as the writer has it.
type writeSegment struct {
	head segHeader
	file vfs.File // nil until it is, or soon will be, the active one: one write descriptor is enough
	// cached is the way through the page cache, for what is not forced in Direct mode; nil until there is such a write.
	cached vfs.File
	path   string
	run    vfs.Flag // how it is opened for appending
	size   int64    // frames must end at or before it
	soon   bool     // the keeper was told to open it

	// Of a file in use, see readyFor. Under the store's mu but for unit, which never changes.
	unit  int64 // what is made ready at a time, 0: nothing
	ready int64 // the bytes before it were written, are about to be, or were made ready
}

const bufferAlign = 4096

// alignedBuffer returns an empty buffer with capacity n whose memory is aligned
// for direct I/O.
func alignedBuffer(n int) []byte {
	b := make([]byte, n+bufferAlign)
	skip := 0
	if r := int(uintptr(unsafe.Pointer(&b[0])) & (bufferAlign - 1)); r != 0 {
		skip = bufferAlign - r
	}
	return b[skip : skip : skip+n]
}

func alignUp(n, block int64) int64 { return (n + block - 1) &^ (block - 1) }

// directSupport is what the file system turned out to offer.
type directSupport uint8

const (
	directUnknown directSupport = iota
	directYes
	directNo
)

// directState is learned by whoever opens a file first, maybe in the background.
type directState struct {
	mu      sync.Mutex
	support directSupport
	why     string
}

func (d *directState) get() (directSupport, string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.support, d.why
}

func (d *directState) is(want directSupport) bool {
	got, _ := d.get()
	return got == want
}

func (d *directState) set(support directSupport, why string) {
	d.mu.Lock()
	d.support, d.why = support, why
	d.mu.Unlock()
}

// createSegment makes segment number ready for use: space reserved (zeroed in
// Direct mode), header written, file and directory entry synced. Whatever stood
// under that name was never in use and is removed. A full disk leaves nothing
// behind.
func (s *Store) createSegment(number uint32, size int64) (*writeSegment, error) {
	path := segmentPath(s.dir, number)
	if err := s.opt.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	w, err := s.buildSegment(path, number, size)
	if err != nil {
		// Half a file would look like a segment lost in a crash (and L23: leak).
		if rerr := s.opt.FS.Remove(path); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		return nil, err
	}
	return w, nil
}

func (s *Store) buildSegment(path string, number uint32, size int64) (*writeSegment, error) {
	var fill, run vfs.Flag
	if s.opt.Mode == Direct {
		run = vfs.DSync
		if !s.direct.is(directNo) {
			fill, run = vfs.Direct, vfs.DSync|vfs.Direct
		}
	}
	f, err := s.opt.FS.Create(path, fill)
	if errors.Is(err, vfs.ErrNoDirect) {
		s.direct.set(directNo, err.Error())
		fill, run = 0, vfs.DSync
		f, err = s.opt.FS.Create(path, fill)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	block := int64(1)
	if s.opt.Mode == Direct && !s.direct.is(directNo) {
		s.direct.set(directYes, "")
		block = int64(max(f.BlockSize(), s.opt.BlockBytes))
	}
	size = size &^ (block - 1)
	if err := f.Allocate(size); err != nil && !errors.Is(err, vfs.ErrNotSupported) {
		return nil, err
	}
	h := segHeader{
		storeID: s.storeID, number: number, salt: s.random32(), block: uint32(block),
		dataStart: uint32(alignUp(headerBytes, block)), size: uint32(size), createdMS: s.opt.Now().UnixMilli(),
	}
	if s.opt.Mode == Direct {
		h.flags = flagZeroed
		// Overwriting zeros is what makes a synced write cheap later: no block
		// allocation, no change of the file's metadata.
		if err := s.zeroFill(f, size); err != nil {
			return nil, err
		}
		// The header goes in after the zeros are down: a header on disk means
		// that everything behind it is zero, not some deleted file's bytes.
		if err := f.Sync(); err != nil {
			return nil, err
		}
	}
	head := alignedBuffer(int(h.dataStart))
	head = append(head, h.encode()...)[:h.dataStart]
	if _, err := f.WriteAt(head, 0); err != nil {
		return nil, err
	}
	// The header and the directory entry are durable before any frame is written:
	// a file that is missing or has no header therefore never held anything (L6).
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if err := s.opt.FS.SyncDir(s.dir); err != nil {
		return nil, err
	}
	return &writeSegment{head: h, path: path, run: run, size: int64(h.size)}, nil
}

// openSegment opens a segment for appending.
func (s *Store) openSegment(w *writeSegment) error {
	f, err := s.opt.FS.Open(w.path, w.run)
	if errors.Is(err, vfs.ErrNoDirect) {
		s.direct.set(directNo, err.Error())
		f, err = s.opt.FS.Open(w.path, w.run&^vfs.Direct)
	}
	w.file = f
	if r, ok := f.(vfs.Readier); ok && err == nil {
		w.unit = int64(r.ReadyBytes())
	}
	return err
}

// close closes what is open.
func (w *writeSegment) close() error {
	err := w.file.Close()
	if w.cached != nil {
		err = errors.Join(err, w.cached.Close())
	}
	return err
}

// spareSoon reports, once for each segment, that the active one is so full that the
// keeper may open the next: to open a file takes longer than all else that a roll does
// in a commit. Under mu.
func (s *Store) spareSoon() bool {
	if s.spare == nil || s.spare.soon || s.opt.Inline || s.room() > s.active.size/8 {
		return false
	}
	s.spare.soon = true
	return true
}

// openSpare opens the next segment for appending if spareSoon said so. An error is
// left to roll, which tries again.
func (s *Store) openSpare() {
	s.mu.Lock()
	sp := s.spare
	if sp == nil || !sp.soon || sp.file != nil || s.err != nil || s.closed {
		s.mu.Unlock()
		return
	}
	w := *sp
	s.mu.Unlock()
	if s.openSegment(&w) != nil {
		return
	}
	s.mu.Lock()
	kept := sp.file == nil && s.spare == sp && !s.closed
	if kept {
		sp.file, sp.unit = w.file, w.unit
	}
	s.mu.Unlock()
	if !kept {
		w.file.Close() // a commit was faster; nothing was written through it
	}
}

// zeroFill takes the device for half of the time at most, so that commits beside
// it keep theirs, unless somebody waits for the segment, or soon will: the active
// segment fills faster than this one.
func (s *Store) zeroFill(f vfs.File, size int64) error {
	zeros := fillZeros()
	begin, from := time.Now(), s.writtenBytes()
	for off := int64(0); off < size; {
		n := min(size-off, int64(len(zeros)))
		start := time.Now()
		if _, err := f.WriteAt(zeros[:n], off); err != nil {
			return err
		}
		off += n
		if s.opt.Inline {
			continue
		}
		now := time.Now()
		pause := min(now.Sub(start), maxPause)
		// What commits are likely to add meanwhile: a small segment can be full by then.
		more := float64(s.writtenBytes()-from) / float64(max(now.Sub(begin), 1)) * float64(pause+lateTimer)
		if s.ahead(off, size, int64(more)) {
			s.rest(pause)
		}
	}
	return nil
}

func (s *Store) writtenBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written
}

// fillZeros is what zeroFill writes. Made once: to make it takes as long as to write it.
var fillZeros = sync.OnceValue(func() []byte {
	const n = 256 << 10
	return alignedBuffer(n)[:n]
})

// ahead reports whether at least twice as large a part of the next segment is made as of
// the active one is used, once more bytes are added to it.
func (s *Store) ahead(done, size, more int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active == nil || float64(done)*float64(s.active.size) >= 2*float64(s.nextOff+more)*float64(size)
}

const (
	maxPause  = 5 * time.Millisecond
	lateTimer = time.Millisecond // by which a rest can be longer than it should
)

// rest pauses background work, unless somebody waits for space or for Close. The
// clock is the real one: nothing in a simulation rests.
func (s *Store) rest(d time.Duration) {
	s.mu.Lock()
	hurry := s.urgent > 0 || s.active == nil || s.closed || s.opt.Inline
	s.mu.Unlock()
	if hurry {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.stop:
	}
}

// pace rests between the writes of a snapshot that the store writes for itself.
func (s *Store) pace() { s.rest(200 * time.Microsecond) }

func (s *Store) random32() uint32 {
	var b [4]byte
	s.opt.Random(b[:])
	return binary.LittleEndian.Uint32(b[:])
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isScarce reports that the process or the host had no descriptor or memory left
// to make a file. Nothing was written, and it ends by itself: it is no more final
// than a full disk.
func isScarce(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// fewCommits fill a segment: each of them that waits is more than 1 in 1000.
const fewCommits = 1024

// ensureSpare makes the next segment if there is none. It is called without the
// lock by the keeper, or by the call that needs it in Inline mode.
func (s *Store) ensureSpare() {
	s.mu.Lock()
	if s.spare != nil || s.making || s.err != nil || s.closed {
		s.mu.Unlock()
		return
	}
	number, from, ticket := s.active.head.number+1, s.nextOff, s.ticket
	cut := s.cutEnd != 0
	class := s.mostUrgent()
	s.reserveAsked = false
	if over := s.overBudget(s.opt.SegmentBytes, class); over != nil {
		s.spareErr = over
		s.cond.Broadcast()
		s.mu.Unlock()
		return
	}
	s.making = true
	s.mu.Unlock()

	size := s.opt.SegmentBytes
	w, err := s.createSegment(number, size)
	for err != nil && isNoSpace(err) && cut && size > minSegmentBytes {
		// Behind a tear there is no reserve: a small segment, too small for much
		// data, lets a full store record its trims and free itself.
		size /= 2
		w, err = s.createSegment(number, size)
	}

	s.mu.Lock()
	s.making = false
	switch {
	case err == nil:
		// Where the active one fills so fast, and by so few commits, the keeper opens this
		// one while it is awake: a commit that woke it once more would wait for that longer
		// than for its write. Where a segment takes more commits, few of them wait, and one
		// write descriptor is enough.
		w.soon = !s.opt.Inline && s.nextOff-from > s.active.size/8 && s.ticket-ticket < fewCommits/8
		s.spare, s.spareErr = w, nil
	case isNoSpace(err) || isScarce(err):
		s.spareErr = fmt.Errorf("%w: %w", ErrNoSpace, err)
	default:
		s.latch(err)
	}
	s.cond.Broadcast()
	s.mu.Unlock()
}

// mostUrgent is what the next segment is for: the most urgent of the calls that wait
// for room, or records. Under mu.
func (s *Store) mostUrgent() roomClass {
	for class := roomFree; class < roomRecords; class++ {
		if s.asking[class] > 0 {
			return class
		}
	}
	if s.reserveAsked {
		return roomReserve
	}
	return roomRecords
}

// overBudget says why more bytes of a class do not fit into the disk budget. Under
// mu. What may use the reserve goes above the budget by that, and trims, snapshots
// and key-values by one more segment: a store that could not even write what frees
// its space would be full for ever (T6).
func (s *Store) overBudget(more int64, class roomClass) error {
	if s.opt.DiskBudgetBytes == 0 || s.cutEnd != 0 {
		return nil
	}
	limit := s.opt.DiskBudgetBytes
	if class <= roomReserve {
		limit += s.opt.ReserveBytes
	}
	if class < roomReserve && !s.opt.DropOldest {
		limit += s.opt.SegmentBytes
	}
	n := int64(len(*s.ix.files.list.Load()))
	if used := n * s.opt.SegmentBytes; used+more > limit {
		return fmt.Errorf("%w: %d segments of %d bytes use the disk budget of %d bytes; trim streams and reclaim",
			ErrNoSpace, n, s.opt.SegmentBytes, s.opt.DiskBudgetBytes)
	}
	return nil
}
