package lst

import (
	"runtime"
	"sync/atomic"
)

// kvEntry is one key-value. Its value is rewritten in place: ver is odd
// meanwhile, readers copy the words and try again if it changed. Words are
// atomic so that a torn copy is discarded rather than a data race.
type kvEntry struct {
	key  string
	ver  atomic.Uint32
	size atomic.Uint32
	word atomic.Pointer[[]atomic.Uint64]

	dirty bool
	gone  bool
}

func (e *kvEntry) set(v []byte) {
	w := e.word.Load()
	need := (len(v) + 7) / 8
	if w == nil || len(*w) < need {
		n := make([]atomic.Uint64, need, need)
		putWords(n, v)
		e.ver.Add(1)
		e.word.Store(&n)
		e.size.Store(uint32(len(v)))
		e.ver.Add(1)
		return
	}
	e.ver.Add(1)
	putWords(*w, v)
	e.size.Store(uint32(len(v)))
	e.ver.Add(1)
}

func putWords(w []atomic.Uint64, v []byte) {
	for i := 0; len(v) > 0; i++ {
		var x uint64
		n := min(8, len(v))
		for k := 0; k < n; k++ {
			x |= uint64(v[k]) << (8 * k)
		}
		w[i].Store(x)
		v = v[n:]
	}
}

// get appends the value to dst.
func (e *kvEntry) get(dst []byte) []byte {
	for {
		v := e.ver.Load()
		if v&1 != 0 {
			runtime.Gosched()
			continue
		}
		w, size, out := e.word.Load(), int(e.size.Load()), dst
		if w != nil && size <= 8*len(*w) {
			for i := 0; i*8 < size; i++ {
				x := (*w)[i].Load()
				for k := 0; k < min(8, size-i*8); k++ {
					out = append(out, byte(x>>(8*k)))
				}
			}
		}
		if e.ver.Load() == v {
			return out
		}
	}
}
