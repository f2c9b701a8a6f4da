//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// A record's bytes follow from its number, so that whoever reads it can say whether each byte is right: the number, the length,
// and bytes drawn from the number.

const recordHeader = 12

func makeRecord(number uint64, size int) []byte {
	b := make([]byte, max(size, recordHeader))
	binary.LittleEndian.PutUint64(b, number)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)))
	fill(b[recordHeader:], number)
	return b
}

func fill(b []byte, number uint64) {
	r := rand.NewPCG(number, 0x746f7274757265)
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.Uint64())
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(r.Uint64())
	}
}

// checkRecord returns a record's number, and what is wrong with its bytes.
func checkRecord(b []byte) (number uint64, bad string) {
	if len(b) < recordHeader {
		return 0, fmt.Sprintf("a record of %d bytes, none is that short", len(b))
	}
	number = binary.LittleEndian.Uint64(b)
	if n := binary.LittleEndian.Uint32(b[8:]); int(n) != len(b) {
		return number, fmt.Sprintf("record %x has %d bytes, it was appended with %d", number, len(b), n)
	}
	want := make([]byte, len(b)-recordHeader)
	fill(want, number)
	for i, c := range want {
		if b[recordHeader+i] != c {
			return number, fmt.Sprintf("record %x, byte %d of %d is not what was appended", number, recordHeader+i, len(b))
		}
	}
	return number, ""
}
