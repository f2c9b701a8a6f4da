package lst

import (
	"fmt"

	"github.com/btrlog/btrlog/lst/vfs"
)

// Memory for what is appended next, in Buffered mode (vfs.Readier).
//
// Most of what a small write(2) into the page cache takes is the memory for a page that
// is not there yet. So a commit writes zeros over the next unit of its segment first,
// whose pages the file system then takes in one step, and the commits behind it find
// them. What stands there afterwards is what stands behind the end of a segment anyway:
// zeros (docs/FORMAT-LST.md, "zeros or EOF").
//
// Why zeros never come over a record:
//
//	Z1 They are written by the commit itself, in front of its own write, and cover
//	   nothing below the offset of that write. It is the last that was given a place:
//	   all that is acknowledged or in flight lies below.
//	Z2 No other write is given a place until they are written: whoever prepares one
//	   waits for readying (prepare). Were it let in between, the zeros could come after
//	   it, and an acknowledged record would be gone.
//	Z3 A place is made ready once: ready only grows, and begins behind what was written.
//
// How much: at most one unit ahead, and only when a unit was written since the last
// sync. A store that hardly writes, or forces every commit, makes nothing ready, and a
// sync finds at most one unit of zeros.

// readyFor decides what is made ready for p, which was given its place and is not
// written yet: n zeros at off, n is 0 for nothing. Whoever gets another answer calls
// makeReady and, under mu, readyDone. Under mu.
func (s *Store) readyFor(p *pending) (off int64, n int) {
	w := p.seg
	end := p.off + int64(len(p.buf))
	if end <= w.ready || w.unit == 0 || s.dsync {
		return 0, 0
	}
	off = max(w.ready, p.off)
	w.ready = end
	// A long write is many pages by itself.
	if int64(len(p.buf)) > w.unit/4 || s.written-s.forced < w.unit {
		return 0, 0
	}
	to := min(alignUp(end, w.unit), w.size)
	if to <= end {
		return 0, 0
	}
	off = max(off, to-w.unit)
	w.ready, s.readying = to, true
	return off, int(to - off)
}

// makeReady writes the zeros. An error is nobody's: nothing was promised about them, and
// if the disk is bad the writes behind will say so.
func makeReady(f vfs.File, off int64, n int) {
	_ = f.(vfs.Readier).Ready(off, n)
}

// readyDone lets the next write get its place. The caller wakes those who wait. Under mu.
func (s *Store) readyDone() { s.readying = false }

// waitReady waits until no zeros are being written, so that the next write may have its
// place (Z2). Under mu, which it lets go of meanwhile.
func (s *Store) waitReady() error {
	if !s.readying || s.waitUntil(func() bool { return !s.readying }) {
		return nil
	}
	return fmt.Errorf("lst: waited %v for %s to be made ready for the next commits", longestWait, s.active.path)
}
