package disk

// chunkBytes is the unit in which an image is stored: what was never written takes no memory.
const chunkBytes = 64 << 10

// image is the content of a device: sparse, zeros where nothing was written.
type image map[int64]*[chunkBytes]byte

func (m image) read(p []byte, off int64) {
	for len(p) > 0 {
		at := off % chunkBytes
		n := min(int64(len(p)), chunkBytes-at)
		if c := m[off/chunkBytes]; c != nil {
			copy(p[:n], c[at:])
		} else {
			clear(p[:n])
		}
		p, off = p[n:], off+n
	}
}

func (m image) write(p []byte, off int64) {
	for len(p) > 0 {
		at := off % chunkBytes
		n := min(int64(len(p)), chunkBytes-at)
		c := m[off/chunkBytes]
		if c == nil {
			c = new([chunkBytes]byte)
			m[off/chunkBytes] = c
		}
		copy(c[at:], p[:n])
		p, off = p[n:], off+n
	}
}

// copyChunk makes chunk k of m what it is in from.
func (m image) copyChunk(k int64, from image) {
	src := from[k]
	if src == nil {
		delete(m, k)
		return
	}
	c := *src
	m[k] = &c
}
