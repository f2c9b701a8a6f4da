package sim

import (
	"encoding/binary"
	"fmt"
)

// payload is what every record says of itself: which append it belongs to and its place in the batch.
type payload struct {
	id         uint64
	pos, count uint32
}

const payloadHead = 16

// makePayload writes a record of at least payloadHead bytes whose every byte depends on its identity.
func makePayload(id uint64, pos, count uint32, size int) []byte {
	b := make([]byte, max(size, payloadHead))
	binary.LittleEndian.PutUint64(b, id)
	binary.LittleEndian.PutUint32(b[8:], pos)
	binary.LittleEndian.PutUint32(b[12:], count)
	x := id*0x9e3779b97f4a7c15 + uint64(pos)
	for i := payloadHead; i < len(b); i++ {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
	return b
}

func parsePayload(b []byte) (payload, bool) {
	if len(b) < payloadHead {
		return payload{}, false
	}
	return payload{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}, true
}

func describe(b []byte) string {
	p, ok := parsePayload(b)
	if !ok {
		return fmt.Sprintf("%d bytes", len(b))
	}
	return fmt.Sprintf("record %016x.%d/%d", p.id, p.pos, p.count)
}
