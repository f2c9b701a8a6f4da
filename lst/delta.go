package lst

import (
	"bytes"
	"unsafe"
)

// nextStream is the next stream of a delta, nil at the end. Some are taken at a time,
// and what writing them looks at is asked for in rounds.
func (n *snapState) nextStream() *stream {
	if len(n.ahead) == 0 {
		n.ahead = n.aheadMem[:0]
		for len(n.streams) > 0 && len(n.ahead) < cap(n.ahead) {
			n.ahead = append(n.ahead, heapPop(&n.streams, streamBefore).st)
		}
		n.fetchAhead()
	}
	return n.popAhead()
}

// nextOfAll is the next stream of a base, nil at the end. Some are taken at a time: one
// way down the trie for each would be most of the work. A stream that is created between
// two of them meanwhile is replayed, and in the next delta.
func (s *Store) nextOfAll() *stream {
	n := &s.snap
	if len(n.ahead) == 0 {
		n.ahead = n.aheadMem[:0]
		s.ix.streams.ascend(n.key, func(st *stream) bool {
			n.ahead = append(n.ahead, st)
			return len(n.ahead) < cap(n.ahead)
		})
		n.fetchAhead()
	}
	return n.popAhead()
}

// fetchAhead asks for the memory of the streams that come next.
func (n *snapState) fetchAhead() {
	for _, st := range n.ahead {
		prefetch(unsafe.Pointer(st))
		prefetch(unsafe.Pointer(&st.trim))
	}
	for _, st := range n.ahead {
		if st.tail != nil {
			prefetch(unsafe.Pointer(st.tail))
			prefetch(unsafe.Pointer(&st.tail.clean))
		}
		if st.run != nil {
			prefetch(unsafe.Pointer(&st.run[(st.eof.Load()-1)&(leafSlots-1)]))
		}
	}
}

func (n *snapState) popAhead() *stream {
	if len(n.ahead) == 0 {
		return nil
	}
	st := n.ahead[0]
	n.ahead[0] = nil
	n.ahead = n.ahead[1:]
	return st
}

// dirtyStream is a stream and the beginning of its id: comparing ids in memory would
// be a cache miss each.
type dirtyStream struct {
	key uint64
	st  *stream
}

// Deltas are written in key order, so that a restart finds an entry without
// reading all pieces. A heap spreads the sorting over the writes that carry them.
func streamBefore(a, b dirtyStream) bool {
	if a.key != b.key {
		return a.key < b.key
	}
	return bytes.Compare(a.st.id[:], b.st.id[:]) < 0
}
func kvBefore(a, b *kvEntry) bool { return a.key < b.key }

func siftDown[T any](h []T, i int, before func(a, b T) bool) {
	for {
		k := 2*i + 1
		if k >= len(h) {
			return
		}
		if k+1 < len(h) && before(h[k+1], h[k]) {
			k++
		}
		if !before(h[k], h[i]) {
			return
		}
		h[i], h[k] = h[k], h[i]
		i = k
	}
}

func heapPop[T any](h *[]T, before func(a, b T) bool) T {
	old := *h
	top, n := old[0], len(old)-1
	old[0] = old[n]
	clear(old[n:])
	*h = old[:n]
	siftDown(*h, 0, before)
	return top
}
