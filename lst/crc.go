//go:build !amd64

package lst

import "hash/crc32"

func checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// checksum3 is the checksum of each of three slices of one length.
func checksum3(a, b, c []byte) (x, y, z uint32) {
	return crc32.Checksum(a, castagnoli), crc32.Checksum(b, castagnoli), crc32.Checksum(c, castagnoli)
}
