package lst

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"sync/atomic"
	"unsafe"
)

// streamTable finds a stream by its id: the way of all appends and point reads, one
// cache line to the stream, where the trie, which keeps the streams in order, takes
// several. It has one writer and any number of lock-free readers.
//
// Probing is linear. A slot's hash is set once, after its stream; a stream that is
// removed leaves the hash behind. The writer makes a larger table, without what was
// removed, when half of the slots are taken.
type streamTable struct {
	mem  atomic.Pointer[tableMem]
	used int // slots with a hash
	live int
}

type tableMem struct {
	seed  uint64
	mask  uint64
	slots []tableSlot
}

type tableSlot struct {
	hash atomic.Uint64 // 0: free
	st   atomic.Pointer[stream]
}

func (m *tableMem) hash(id *StreamID) uint64 {
	hi, lo := bits.Mul64(binary.LittleEndian.Uint64(id[:8])^m.seed, binary.LittleEndian.Uint64(id[8:])^0x9e3779b97f4a7c15^m.seed>>32)
	return max(hi^lo, 1)
}

func (t *streamTable) get(id *StreamID) *stream {
	m := t.mem.Load()
	if m == nil {
		return nil
	}
	h := m.hash(id)
	for i := h & m.mask; ; i = (i + 1) & m.mask {
		s := &m.slots[i]
		switch s.hash.Load() {
		case 0:
			return nil
		case h:
			if st := s.st.Load(); st != nil && st.id == *id {
				return st
			}
		}
	}
}

// prefetch asks for what get will look at first.
func (t *streamTable) prefetch(id *StreamID) {
	if m := t.mem.Load(); m != nil {
		prefetch(unsafe.Pointer(&m.slots[m.hash(id)&m.mask]))
	}
}

// prefetchStream asks for the stream that get will most probably find.
func (t *streamTable) prefetchStream(id *StreamID) {
	m := t.mem.Load()
	if m == nil {
		return
	}
	h := m.hash(id)
	for i := h & m.mask; ; i = (i + 1) & m.mask {
		switch s := &m.slots[i]; s.hash.Load() {
		case h:
			prefetch(unsafe.Pointer(s.st.Load()))
			return
		case 0:
			return
		}
	}
}

// put adds a stream, or takes the place of the one with its id. Writer only.
func (t *streamTable) put(st *stream) {
	m := t.mem.Load()
	if m == nil || 2*t.used >= len(m.slots) {
		m = t.grow(m)
	}
	h := m.hash(&st.id)
	var left *tableSlot // by a stream of the same hash
	for i := h & m.mask; ; i = (i + 1) & m.mask {
		s := &m.slots[i]
		switch s.hash.Load() {
		case 0:
			t.live++
			if left != nil {
				left.st.Store(st)
				return
			}
			t.used++
			s.st.Store(st) // before the slot can be found
			s.hash.Store(h)
			return
		case h:
			if old := s.st.Load(); old == nil {
				left = s // not yet: the stream itself may stand behind it
			} else if old.id == st.id {
				s.st.Store(st)
				return
			}
		}
	}
}

// del removes the stream with this id. Writer only.
func (t *streamTable) del(id *StreamID) {
	m := t.mem.Load()
	if m == nil {
		return
	}
	h := m.hash(id)
	for i := h & m.mask; ; i = (i + 1) & m.mask {
		s := &m.slots[i]
		switch s.hash.Load() {
		case 0:
			return
		case h:
			if st := s.st.Load(); st != nil && st.id == *id {
				s.st.Store(nil)
				t.live--
				return
			}
		}
	}
}

func (t *streamTable) grow(old *tableMem) *tableMem {
	n := 16
	for n < 4*(t.live+1) {
		n *= 2
	}
	m := &tableMem{seed: rand.Uint64(), mask: uint64(n - 1), slots: make([]tableSlot, n)}
	t.used = 0
	if old != nil {
		m.seed = old.seed
		for k := range old.slots {
			s := &old.slots[k]
			st := s.st.Load()
			if st == nil {
				continue
			}
			i := s.hash.Load() & m.mask
			for m.slots[i].hash.Load() != 0 {
				i = (i + 1) & m.mask
			}
			m.slots[i].st.Store(st)
			m.slots[i].hash.Store(s.hash.Load())
			t.used++
		}
	}
	t.mem.Store(m)
	return m
}
