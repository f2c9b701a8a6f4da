package lst

import "hash/crc32"

// hasCRC32C reports whether the processor has the instruction crc32 (SSE 4.2), as all
// of the last fifteen years have.
func hasCRC32C() bool

// crc32c1 computes the checksum of n bytes.
//
//go:noescape
func crc32c1(p *byte, n int) uint32

// crc32c3 computes three checksums of n bytes each side by side.
//
//go:noescape
func crc32c3(a, b, c *byte, n int) (x, y, z uint32)

var withCRC32C = hasCRC32C()

// checksum is the CRC32C of p. What hash/crc32 does before its first step, among it up to
// seven steps of a byte each to an even address, takes as long as a short record.
func checksum(p []byte) uint32 {
	if n := len(p); withCRC32C && n > 0 && n <= 512 {
		return crc32c1(&p[0], n)
	}
	return crc32.Checksum(p, castagnoli)
}

// checksum3 is the checksum of each of three slices of one length. A step of the
// instruction waits for the step before it: three chains keep the unit busy.
func checksum3(a, b, c []byte) (x, y, z uint32) {
	if n := len(a); withCRC32C && n > 0 && n <= 1024 && len(b) == n && len(c) == n {
		return crc32c3(&a[0], &b[0], &c[0], n) // hash/crc32 is as fast above that
	}
	return crc32.Checksum(a, castagnoli), crc32.Checksum(b, castagnoli), crc32.Checksum(c, castagnoli)
}
