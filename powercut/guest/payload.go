package guest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// Payload returns the bytes of a record that tag and number alone determine: two records that differ in either differ in content.
// The number is in front in the clear. At most 4 KiB, at least 16 bytes.
func Payload(tag, number uint64) []byte {
	r := rand.New(rand.NewPCG(tag, number))
	n := 16 + r.IntN(500)
	if r.IntN(8) == 0 {
		n += r.IntN(3500)
	}
	p := make([]byte, 16, n+8)
	binary.LittleEndian.PutUint64(p, number)
	binary.LittleEndian.PutUint64(p[8:], tag)
	for len(p) < n {
		p = binary.LittleEndian.AppendUint64(p, r.Uint64())
	}
	return p[:n]
}

// Describe says for an error what a payload claims to be.
func Describe(p []byte) string {
	if len(p) < 16 {
		return fmt.Sprintf("%d bytes: %x", len(p), p)
	}
	number, tag := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
	sound := "sound"
	if string(Payload(tag, number)) != string(p) {
		sound = "damaged"
	}
	return fmt.Sprintf("%d bytes that claim to be number %d of %d, %s", len(p), number, tag, sound)
}
