package lst

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/btrlog/btrlog/lst/vfs"
)

func cryptoRandom(p []byte) { _, _ = rand.Read(p) }

// fileSet gives readers access to the segment files. The list is immutable and
// replaced as a whole; descriptors are opened when needed, counted while used,
// and closed when dropped or when more than max are open. A reader therefore
// never meets a closed descriptor, and an unlinked file stays readable for the
// reads that have begun.
type fileSet struct {
	fs   vfs.FS
	dir  string
	max  int
	list atomic.Pointer[[]*segFile]
	mu   sync.Mutex
	open []*segFile
	pins atomic.Int64
	shut bool
}

type segFile struct {
	number uint32
	path   string
	header atomic.Pointer[segHeader] // read with the first use of the file
	handle atomic.Pointer[handle]
}

// salt is known once the file was read or written.
func (f *segFile) salt() uint32 {
	if h := f.header.Load(); h != nil {
		return h.salt
	}
	return 0
}

type handle struct {
	f    vfs.File
	refs atomic.Int32
	pins *atomic.Int64 // set when the file was dropped while in use
}

func (h *handle) acquire() bool {
	for {
		n := h.refs.Load()
		if n <= 0 {
			return false
		}
		if h.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (h *handle) release() {
	if h.refs.Add(-1) == 0 {
		h.f.Close()
		if h.pins != nil {
			h.pins.Add(-1)
		}
	}
}

func newFileSet(fsys vfs.FS, dir string, maxOpen int) *fileSet {
	s := &fileSet{fs: fsys, dir: dir, max: maxOpen}
	s.list.Store(&[]*segFile{})
	return s
}

// add makes a segment readable; h may be nil to read its header when needed.
func (s *fileSet) add(number uint32, h *segHeader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.list.Load()
	f := &segFile{number: number, path: segmentPath(s.dir, number)}
	f.header.Store(h)
	list := append(append(make([]*segFile, 0, len(old)+1), old...), f)
	sort.Slice(list, func(a, b int) bool { return list[a].number < list[b].number })
	s.list.Store(&list)
}

// next makes the segment behind all others readable: add without a sort and without
// making its name anew, because a commit waits for it.
func (s *fileSet) next(w *writeSegment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.list.Load()
	f := &segFile{number: w.head.number, path: w.path}
	f.header.Store(&w.head)
	list := make([]*segFile, len(old)+1)
	list[copy(list, old)] = f
	s.list.Store(&list)
}

// addRange makes the segments from and to, and those between, readable.
func (s *fileSet) addRange(from, to uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := append([]*segFile(nil), *s.list.Load()...)
	for n := from; n <= to; n++ {
		if s.get(n) == nil {
			list = append(list, &segFile{number: n, path: segmentPath(s.dir, n)})
		}
	}
	sort.Slice(list, func(a, b int) bool { return list[a].number < list[b].number })
	s.list.Store(&list)
}

func (s *fileSet) drop(number uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.list.Load()
	list := make([]*segFile, 0, len(old))
	for _, f := range old {
		if f.number != number {
			list = append(list, f)
			continue
		}
		if h := f.handle.Load(); h != nil {
			h.pins = &s.pins // the list's own reference is still held
			s.pins.Add(1)
		}
		s.closeLocked(f)
	}
	s.list.Store(&list)
}

// pinned counts the dropped files that readers still have open: their space comes
// back when those reads end (L20).
func (s *fileSet) pinned() int64 { return s.pins.Load() }

func (s *fileSet) closeLocked(f *segFile) {
	if h := f.handle.Swap(nil); h != nil {
		h.release()
	}
	for i, o := range s.open {
		if o == f {
			s.open = append(s.open[:i], s.open[i+1:]...)
			return
		}
	}
}

func (s *fileSet) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.open) > 0 {
		s.closeLocked(s.open[0])
	}
}

// close is closeAll for good: later reads fail with ErrClosed.
func (s *fileSet) close() {
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
	s.closeAll()
}

func (s *fileSet) get(number uint32) *segFile {
	list := *s.list.Load()
	if len(list) == 0 || number < list[0].number {
		return nil
	}
	// Numbers are nearly always consecutive.
	if d := int(number - list[0].number); d < len(list) && list[d].number == number {
		return list[d]
	}
	i := sort.Search(len(list), func(i int) bool { return list[i].number >= number })
	if i < len(list) && list[i].number == number {
		return list[i]
	}
	return nil
}

var errDropped = errors.New("lst: segment was dropped")

func (s *fileSet) acquire(f *segFile) (*handle, error) {
	if h := f.handle.Load(); h != nil && h.acquire() {
		return h, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := f.handle.Load(); h != nil && h.acquire() {
		return h, nil
	}
	if s.shut {
		return nil, ErrClosed
	}
	if s.get(f.number) != f {
		return nil, errDropped
	}
	for len(s.open) >= s.max {
		s.closeLocked(s.open[0])
	}
	file, err := s.fs.Open(f.path, vfs.ReadOnly)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errDropped
		}
		return nil, err
	}
	if f.header.Load() == nil {
		var b [headerBytes]byte
		if _, err := file.ReadAt(b[:], 0); err != nil && !errors.Is(err, io.EOF) {
			file.Close()
			return nil, err
		}
		head, reason := decodeHeader(b[:], f.number)
		if reason != "" {
			file.Close()
			return nil, &Corruption{File: f.path, Reason: reason}
		}
		f.header.Store(&head)
	}
	h := &handle{f: file}
	h.refs.Store(2) // one for the list, one for the caller
	f.handle.Store(h)
	s.open = append(s.open, f)
	return h, nil
}

// head returns a segment's header, read with the first use of the file.
func (s *fileSet) head(f *segFile) (*segHeader, error) {
	if h := f.header.Load(); h != nil {
		return h, nil
	}
	h, err := s.acquire(f)
	if err != nil {
		return nil, err
	}
	h.release()
	return f.header.Load(), nil
}

// read fills p from position at.
func (s *fileSet) read(p []byte, at pos) error {
	f := s.get(at.seg())
	if f == nil {
		return errDropped
	}
	h, err := s.acquire(f)
	if err != nil {
		return err
	}
	n, err := h.f.ReadAt(p, at.off())
	h.release()
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return &Corruption{File: f.path, Offset: at.off(), Reason: fmt.Sprintf("file ends %d bytes early", len(p)-n)}
	}
	return err
}

// leafData returns the slots of a sealed leaf, from memory or the disk.
func (x *index) leafData(id StreamID, base uint64, s *sealedLeaf) (*openSlots, error) {
	if d := s.data.Load(); d != nil {
		return d, nil
	}
	b := make([]byte, frameHeadBytes+int(s.size))
	if err := x.files.read(b, s.at); err != nil {
		return nil, err
	}
	f := x.files.get(s.at.seg())
	if f == nil {
		return nil, errDropped
	}
	h, ok := readFrameHead(b, s.at, f.salt())
	body := b[frameHeadBytes:]
	if !ok || h.kind != kindLeaf || h.length != s.size || !h.bodyOK(body, s.at, f.salt()) {
		return nil, &Corruption{File: f.path, Offset: s.at.off(), Reason: "index leaf fails its checksum"}
	}
	d, err := parseLeaf(body, id, base)
	if err != nil {
		return nil, &Corruption{File: f.path, Offset: s.at.off(), Reason: err.Error()}
	}
	x.loaded.keep(s, d)
	return d, nil
}

// loadedLeaves are the sealed leaves whose slots readers have read back and kept,
// oldest first.
type loadedLeaves struct {
	mu    sync.Mutex
	list  []*sealedLeaf
	bytes int
}

// keep keeps a leaf's slots in memory, and lets go of those read longest ago.
func (c *loadedLeaves) keep(s *sealedLeaf, d *openSlots) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.data.Load() != nil {
		return // another reader was faster
	}
	s.data.Store(d)
	c.list = append(c.list, s)
	c.bytes += d.memory()
	for c.bytes > cachedBytes/2 {
		c.bytes -= c.list[0].data.Swap(nil).memory()
		c.list[0] = nil
		c.list = c.list[1:]
	}
}

// readRecord appends the payload at s to dst after checking it.
func (x *index) readRecord(id StreamID, seq uint64, s slot, dst []byte) ([]byte, error) {
	f := x.files.get(s.at.seg())
	if f == nil {
		return dst, errDropped
	}
	n := int(s.n)
	start := len(dst)
	// Room for the checksum in front of the payload; it is moved away below.
	dst = grow(dst, n+recordCRCBytes)
	raw := dst[start : start+n+recordCRCBytes]
	// Without the header there is no salt: the file read brings it.
	if f.header.Load() == nil || !x.cache.read(raw, s.at-recordCRCBytes) {
		if err := x.files.read(raw, s.at-recordCRCBytes); err != nil {
			return dst[:start], err
		}
	}
	if !recordOK(raw, s.at, f.salt(), id, seq) {
		return dst[:start], &Corruption{File: f.path, Offset: s.at.off(),
			Reason: fmt.Sprintf("record %d of stream %v fails its checksum", seq, id)}
	}
	copy(raw, raw[recordCRCBytes:])
	return dst[:start+n], nil
}

// recordOK checks a checksum followed by its payload.
func recordOK(raw []byte, at pos, salt uint32, id StreamID, seq uint64) bool {
	sum := checksum(raw[recordCRCBytes:]) ^ recordBind(at, salt, id, seq)
	return sum == binary.LittleEndian.Uint32(raw)
}

// grow returns dst with n more bytes of length.
func grow(dst []byte, n int) []byte {
	need := len(dst) + n
	if need <= cap(dst) {
		return dst[:need]
	}
	c := make([]byte, need, max(need, 2*cap(dst)))
	copy(c, dst)
	return c
}

// readSome fills as much of p from at as there is; errors count as nothing, the
// caller then reads exactly what it needs and reports them.
func (s *fileSet) readSome(p []byte, at pos) int {
	f := s.get(at.seg())
	if f == nil {
		return 0
	}
	h, err := s.acquire(f)
	if err != nil {
		return 0
	}
	n, _ := h.f.ReadAt(p, at.off())
	h.release()
	return n
}
