package lst

import "sync/atomic"

const (
	cacheShift = 18
	cacheChunk = 1 << cacheShift
)

// tailCache holds the bytes written last. Chunks are published before any slot
// that points into them, and their bytes are never changed after that, so that
// readers need no lock; a chunk that falls out stays valid for who holds it.
type tailCache struct {
	perSeg uint64
	mask   uint64 // of the key, if the number of slots is a power of two; else 0
	slots  []atomic.Pointer[cacheSlot]
	cur    *cacheSlot // the writer's last one
}

type cacheSlot struct {
	key  uint64
	from int // bytes before it were written by an earlier process: not here
	buf  []byte
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
	return uint64(at.seg())*c.perSeg + uint64(uint32(at)>>cacheShift), int(at & (cacheChunk - 1))
}

func (c *tailCache) slot(key uint64) *atomic.Pointer[cacheSlot] {
	if c.mask != 0 {
		return &c.slots[key&c.mask]
	}
	return &c.slots[key%uint64(len(c.slots))]
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
				e = &cacheSlot{key: key, from: off, buf: make([]byte, cacheChunk)}
				s.Store(e)
			}
			c.cur = e
		}
		n := copy(e.buf[off:], p)
		p, at = p[n:], at+pos(n)
	}
}

// chunk is what the cache has from at on, nil if nothing.
func (c *tailCache) chunk(at pos) []byte {
	if c == nil || len(c.slots) == 0 {
		return nil
	}
	key, off := c.place(at)
	e := c.slot(key).Load()
	if e == nil || e.key != key || off < e.from {
		return nil
	}
	return e.buf[off:]
}

func (c *tailCache) read(p []byte, at pos) bool {
	for len(p) > 0 {
		b := c.chunk(at)
		if b == nil {
			return false
		}
		n := copy(p, b)
		p, at = p[n:], at+pos(n)
	}
	return true
}

// has reports whether read would succeed, unless the bytes go over the end of a
// chunk.
func (c *tailCache) has(at pos) bool { return c.chunk(at) != nil }
