package lst

import (
	"sync/atomic"
	"unsafe"
)

const (
	cacheShift = 18
	cacheChunk = 1 << cacheShift
)

// tailCache holds the bytes written last. Chunks are published before any slot
// that points into them, and what was written into one is not changed as long as
// anybody may read it, so that readers need no lock. A chunk that falls out is used
// again unless somebody reads it just then: an append makes no garbage.
//
// A reader counts itself in and then looks whether the chunk is still the one in its
// place; the writer takes it out of its place and then looks whether anybody is
// counted. One of the two sees the other.
type tailCache struct {
	perSeg uint64
	mask   uint64 // of the place, if the number of slots is a power of two; else 0
	slots  []atomic.Pointer[cacheSlot]
	cur    *cacheSlot // the writer's last one
}

type cacheSlot struct {
	key     uint64
	from    int // bytes before it were written by an earlier process: not here
	buf     []byte
	readers [8]cacheReaders
}

// cacheReaders counts a part of the readers: those of one chunk should not all wait
// for one cache line.
type cacheReaders struct {
	n atomic.Int32
	_ [60]byte
}

func (e *cacheSlot) unread() bool {
	for i := range e.readers {
		if e.readers[i].n.Load() != 0 {
			return false
		}
	}
	return true
}

func newTailCache(bytes int, segmentBytes int64) *tailCache {
	c := &tailCache{perSeg: uint64((segmentBytes + cacheChunk - 1) / cacheChunk)}
	if bytes > 0 {
		n := max(2, bytes/cacheChunk)
		c.slots = make([]atomic.Pointer[cacheSlot], n)
		if n&(n-1) == 0 {
			c.mask = uint64(n - 1)
		}
	}
	return c
}

// place is the chunk of a position, and the offset in it.
func (c *tailCache) place(at pos) (key uint64, off int) {
	return uint64(at >> cacheShift), int(at & (cacheChunk - 1))
}

// slot is the place of a chunk. Segments follow each other in it; one that was made
// with another size overlaps with the next, so that the key, not the place, names it.
func (c *tailCache) slot(key uint64) *atomic.Pointer[cacheSlot] {
	i := key>>(32-cacheShift)*c.perSeg + key&(1<<(32-cacheShift)-1)
	if c.mask != 0 {
		return &c.slots[i&c.mask]
	}
	return &c.slots[i%uint64(len(c.slots))]
}

func (c *tailCache) write(p []byte, at pos) {
	if len(c.slots) == 0 {
		return
	}
	for len(p) > 0 {
		key, off := c.place(at)
		e := c.cur
		if e == nil || e.key != key {
			s := c.slot(key)
			if e = s.Load(); e == nil || e.key != key {
				s.Store(nil)
				if e == nil || !e.unread() {
					e = &cacheSlot{buf: make([]byte, cacheChunk)}
				}
				e.key, e.from = key, off
				s.Store(e)
			}
			c.cur = e
		}
		n := copy(e.buf[off:], p)
		p, at = p[n:], at+pos(n)
	}
}

// prefetch asks for the memory that a write of n bytes at at will copy to.
func (c *tailCache) prefetch(n int, at pos) {
	e := c.cur
	if key, off := c.place(at); e != nil && e.key == key {
		for end := min(off+n, len(e.buf), off+prefetchMost); off < end; off += cacheLine {
			prefetch(unsafe.Pointer(&e.buf[off]))
		}
	}
}

const (
	cacheLine    = 64
	prefetchMost = 4096
)

// copy copies what the cache has from at on to p and returns how much that is, 0 for
// nothing or if p is empty.
func (c *tailCache) copy(p []byte, at pos) (n int) {
	key, off := c.place(at)
	s := c.slot(key)
	e := s.Load()
	if e == nil || len(p) == 0 {
		return 0
	}
	// Who reads at the same time has another buffer.
	r := &e.readers[uintptr(unsafe.Pointer(&p[0]))>>7%uintptr(len(e.readers))]
	r.n.Add(1)
	if s.Load() == e && e.key == key && off >= e.from {
		n = copy(p, e.buf[off:])
	}
	r.n.Add(-1)
	return n
}

func (c *tailCache) read(p []byte, at pos) bool {
	if c == nil || len(c.slots) == 0 {
		return false
	}
	for len(p) > 0 {
		n := c.copy(p, at)
		if n == 0 {
			return false
		}
		p, at = p[n:], at+pos(n)
	}
	return true
}

// has reports whether read would succeed, unless the bytes go over the end of a
// chunk.
func (c *tailCache) has(at pos) bool {
	var p [1]byte
	return c.read(p[:], at)
}
