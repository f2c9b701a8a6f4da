//go:build amd64 || arm64

package lst

import "unsafe"

// prefetch asks the processor for the cache line at p and does not wait for it. With
// ten thousand streams each line of their state is a miss of a tenth of a microsecond;
// asked for before the system call it is there after it.
//
//go:noescape
func prefetch(p unsafe.Pointer)

// pause lets some tens of nanoseconds pass, as a loop that waits for another processor
// should.
func pause()
