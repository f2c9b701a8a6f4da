// Package stagetrace picks which appends are traced, and keeps the latest traces. A writer and the nodes of its log pick the same
// LSNs without a word between them, so that what each of them noted of an append can be put together afterwards. No clock of one host is ever
// compared with another's: every time is a difference on one host.
package stagetrace

import (
	"math/bits"
	"sync"

	"github.com/btrlog/btrlog/internal/protocol"
)

// Every is how many LSNs apart the traced ones of a log are by default.
const Every = 1024

// Interval returns what Pick takes for a configured distance: 0 is Every, negative is none, others are rounded up to a power of two.
func Interval(n int) uint64 {
	switch {
	case n == 0:
		n = Every
	case n < 0:
		return 0
	}
	return 1 << bits.Len64(uint64(n)-1)
}

// Pick returns the lowest LSN in [first, last] that is traced, 0 if none is. every is a power of two; 0 traces none. Logs differ in which
// LSNs are theirs, or the thousandth append of all logs would be traced at once.
func Pick(log protocol.LogID, first, last protocol.LSN, every uint64) protocol.LSN {
	if every == 0 {
		return 0
	}
	mask := protocol.LSN(every - 1)
	rest := protocol.LSN(log) & mask
	x := (first-rest+mask)&^mask + rest // the lowest from first on that is rest modulo every
	if x > last {
		return 0
	}
	return x
}

// Node is what a node notes of an append, in nanoseconds.
type Node struct {
	Log   string       `json:"log"` // id
	Epoch uint64       `json:"epoch"`
	LSN   protocol.LSN `json:"lsn"`
	// Appends is how many append requests the batch had.
	Appends int `json:"appends"`
	// Apply is from when the shard's thread came to the append until the batch was whole, Write the batch's commit, and Reply
	// until the call that sent the answers, or handed them to the ring, returned: an answer may have arrived before that.
	Apply int64 `json:"apply_ns"`
	Write int64 `json:"write_ns"`
	Reply int64 `json:"reply_ns"`
}

// Ring keeps the latest values. All methods may be called concurrently.
type Ring[T any] struct {
	mu     sync.Mutex
	values []T
	next   int
}

// Size is how many values a Ring keeps.
const Size = 512

// Add keeps v in the place of the oldest value.
func (r *Ring[T]) Add(v *T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values == nil {
		r.values = make([]T, 0, Size)
	}
	if len(r.values) < Size {
		r.values = append(r.values, *v)
		return
	}
	r.values[r.next] = *v
	r.next = (r.next + 1) % Size
}

// All returns a copy of what is kept, the oldest first.
func (r *Ring[T]) All() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(append([]T(nil), r.values[r.next:]...), r.values[:r.next]...)
}
