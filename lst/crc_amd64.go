package lst

import "hash/crc32"

// hasCRC32C reports whether the processor has the instruction crc32 (SSE 4.2), as all
// of the last fifteen years have.
func hasCRC32C() bool

// crc32c3 computes three checksums of n bytes each side by side.
//
//go:noescape
func crc32c3(a, b, c *byte, n int) (x, y, z uint32)

var threeAtOnce = hasCRC32C()

// checksum3 is the checksum of each of three slices of one length. A step of the
// instruction waits for the step before it: three chains keep the unit busy.
func checksum3(a, b, c []byte) (x, y, z uint32) {
	if n := len(a); threeAtOnce && n > 0 && n <= 1024 && len(b) == n && len(c) == n {
		return crc32c3(&a[0], &b[0], &c[0], n) // hash/crc32 is as fast above that
	}
	return crc32.Checksum(a, castagnoli), crc32.Checksum(b, castagnoli), crc32.Checksum(c, castagnoli)
}
