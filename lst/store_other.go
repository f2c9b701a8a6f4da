//go:build !amd64 || race

package lst

import "sync/atomic"

// storeRelease stores v so that whoever sees it with an atomic load also sees what was
// stored before.
func storeRelease(p *atomic.Uint64, v uint64) { p.Store(v) }
