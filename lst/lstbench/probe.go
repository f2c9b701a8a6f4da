package lstbench

import (
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/btrlog/btrlog/lst/vfs"
)

// probeFS looks at everything that an engine asks of the file system.
type probeFS struct {
	vfs.FS
	mu sync.Mutex
	c  probeCounts
	// writes are the places that bytes were written to, in order, if keepWrites.
	keepWrites bool
	writes     []place
	writable   int // segment files open for writing now
}

// probeCounts is what was asked.
type probeCounts struct {
	calls    int // system calls: each method is one or, for List and Open of a directory, three
	reads    int
	bytes    int64          // read
	kinds    map[byte]int64 // bytes read from places that begin with a frame of this kind; 0: from elsewhere
	frames   map[byte]int   // reads of that kind
	written  int64
	readied  int // runs of zeros written ahead, not in written
	syncs    int
	mostOpen int // segment files open for writing at a time
}

type place struct {
	segment uint32
	offset  int64
	bytes   int
}

// Frame kinds and sizes of docs/FORMAT-LST.md.
const (
	frameBatch, frameLeaf, frameTable, frameRoot = 2, 3, 4, 5
	frameHeadBytes                               = 24
	segmentHeaderBytes                           = 64
)

func newProbe() *probeFS {
	p := &probeFS{FS: vfs.OS}
	p.reset()
	return p
}

// reset forgets the counts, not what is open.
func (p *probeFS) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.c = probeCounts{kinds: map[byte]int64{}, frames: map[byte]int{}, mostOpen: p.writable}
	p.writes = nil
}

func (p *probeFS) counts() probeCounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.c
	c.kinds, c.frames = map[byte]int64{}, map[byte]int{}
	for k, v := range p.c.kinds {
		c.kinds[k] = v
	}
	for k, v := range p.c.frames {
		c.frames[k] = v
	}
	return c
}

func (p *probeFS) written() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.c.written
}

func (p *probeFS) call(n int) {
	p.mu.Lock()
	p.c.calls += n
	p.mu.Unlock()
}

func (p *probeFS) file(f vfs.File, name string, flag vfs.Flag) vfs.File {
	q := &probeFile{File: f, p: p, writable: flag&vfs.ReadOnly == 0}
	if n, ok := strings.CutSuffix(filepath.Base(name), ".lst"); ok {
		v, err := strconv.ParseUint(n, 16, 32)
		q.segment, q.known = uint32(v), err == nil
	}
	if q.writable && q.known {
		p.mu.Lock()
		p.writable++
		p.c.mostOpen = max(p.c.mostOpen, p.writable)
		p.mu.Unlock()
	}
	return q
}

func (p *probeFS) Create(name string, flag vfs.Flag) (vfs.File, error) {
	p.call(1)
	f, err := p.FS.Create(name, flag)
	if err != nil {
		return nil, err
	}
	return p.file(f, name, flag), nil
}

func (p *probeFS) Open(name string, flag vfs.Flag) (vfs.File, error) {
	p.call(1)
	f, err := p.FS.Open(name, flag)
	if err != nil {
		return nil, err
	}
	return p.file(f, name, flag), nil
}

func (p *probeFS) Remove(name string) error { p.call(1); return p.FS.Remove(name) }

func (p *probeFS) List(dir string) ([]string, error) { p.call(3); return p.FS.List(dir) }

func (p *probeFS) SyncDir(dir string) error { p.call(3); return p.FS.SyncDir(dir) }

func (p *probeFS) Lock(name string) (io.Closer, error) { p.call(2); return p.FS.Lock(name) }

type probeFile struct {
	vfs.File
	p        *probeFS
	segment  uint32
	known    bool // the name is that of a segment
	writable bool
}

func (f *probeFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(b, off)
	kind := byte(0)
	if n >= frameHeadBytes && b[0] >= 1 && b[0] <= frameRoot && b[1] == 1 && b[2] == 0 && b[3] == 0 {
		kind = b[0]
	}
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	c := &f.p.c
	c.calls++
	c.reads++
	c.bytes += int64(n)
	c.kinds[kind] += int64(n)
	c.frames[kind]++
	return n, err
}

func (f *probeFile) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(b, off)
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	f.p.c.calls++
	f.p.c.written += int64(n)
	if f.p.keepWrites && f.known {
		f.p.writes = append(f.p.writes, place{f.segment, off, n})
	}
	return n, err
}

// ReadyBytes implements vfs.Readier.
func (f *probeFile) ReadyBytes() int {
	if r, ok := f.File.(vfs.Readier); ok {
		return r.ReadyBytes()
	}
	return 0
}

// Ready implements vfs.Readier.
func (f *probeFile) Ready(off int64, n int) error {
	f.p.mu.Lock()
	f.p.c.calls++
	f.p.c.readied++
	f.p.mu.Unlock()
	return f.File.(vfs.Readier).Ready(off, n)
}

func (f *probeFile) Size() (int64, error) { f.p.call(1); return f.File.Size() }

func (f *probeFile) Sync() error {
	f.p.mu.Lock()
	f.p.c.calls++
	f.p.c.syncs++
	f.p.mu.Unlock()
	return f.File.Sync()
}

func (f *probeFile) Allocate(size int64) error { f.p.call(1); return f.File.Allocate(size) }

func (f *probeFile) Close() error {
	f.p.mu.Lock()
	f.p.c.calls++
	if f.writable && f.known {
		f.p.writable--
	}
	f.p.mu.Unlock()
	return f.File.Close()
}
