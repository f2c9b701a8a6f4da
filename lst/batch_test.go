package lst

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// The checksums that a batch computes together are those of its payloads one by one,
// in batches of any mixture of lengths and operations.
func TestBatchSums(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	data := make([]byte, 3*5000)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	for n := range 1200 {
		a, b, c := data[n%7:][:n], data[5001:][:n], data[9998:][:n]
		x, y, z := checksum3(a, b, c)
		for i, p := range [][]byte{a, b, c} {
			if got, want := [...]uint32{x, y, z}[i], crc32.Checksum(p, castagnoli); got != want {
				t.Fatalf("%d bytes, slice %d: %08x, want %08x", n, i, got, want)
			}
			if got, want := checksum(p), crc32.Checksum(p, castagnoli); got != want {
				t.Fatalf("%d bytes alone: %08x, want %08x", n, got, want)
			}
		}
	}
	var b Batch
	for round := range 300 {
		b.Reset()
		same := rnd.IntN(300)
		for i := range rnd.IntN(40) {
			switch n := same; rnd.IntN(12) {
			case 0:
				b.Put([]byte("key"), data[:n])
			case 1:
				b.Trim(sid(1), 1)
			case 2:
				b.sum() // a commit that was refused, and then more is added
			case 3:
				n = rnd.IntN(sumAtOnce / 10)
				fallthrough
			default:
				b.Append(sid(rnd.IntN(3)), uint64(i), data[:n/2], data[n/2:n])
			}
		}
		b.sum()
		for i := range b.ops {
			op := &b.ops[i]
			if !op.isRecord() {
				continue
			}
			if want := crc32.Checksum(b.body()[op.off:][:op.n], castagnoli); op.crc != want {
				t.Fatalf("round %d, operation %d of %d: %08x, want %08x", round, i, len(b.ops), op.crc, want)
			}
		}
	}
}
