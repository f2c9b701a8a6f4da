//go:build amd64 && !race

package lst

import (
	"sync/atomic"
	"unsafe"
)

// storeRelease stores v so that whoever sees it with an atomic load also sees what was
// stored before. On amd64 every store does that: a plain one does not wait, as
// atomic.Uint64.Store does, until all stores before it have left the processor, which
// after a copy to the tail cache takes as long as the rest of an append in memory.
func storeRelease(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }
