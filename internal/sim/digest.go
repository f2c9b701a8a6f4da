package sim

import (
	"encoding/binary"
	"math/bits"
)

// digest is a checksum that two runs of a seed are compared by. It is not cryptographic: nobody tries to fool it.
type digest uint64

func (d *digest) word(v uint64) {
	hi, lo := bits.Mul64(uint64(*d)^v^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	*d = digest(hi ^ lo + 0x632be59bd9b4e019)
}

func (d *digest) bytes(b []byte) {
	d.word(uint64(len(b)))
	for ; len(b) >= 8; b = b[8:] {
		d.word(binary.LittleEndian.Uint64(b))
	}
	var last uint64
	for i, c := range b {
		last |= uint64(c) << (8 * i)
	}
	d.word(last)
}
