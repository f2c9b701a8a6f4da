// Package zstd lets a program read and write archived records that are compressed with zstd (RFC 8878). Importing it is all that a
// program does with it:
//
//	import _ "github.com/btrlog/btrlog/compress/zstd"
//
// A client needs it if nodes of its cluster run with --compress zstd; without it, reads of such records fail with an error that
// names this import. It is a module of its own, so that who does not compress does not get the compressor.
package zstd

import (
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/btrlog/btrlog/internal/archive"
)

func init() { archive.RegisterCodec(archive.Zstd, codec{}) }

// codec compresses each group into one frame that stands alone. What it writes may change with the version of the encoder;
// names and checksums of archived objects do not depend on it.
type codec struct{}

// window bounds what an encoder keeps. A group is 64 KiB, or one larger record.
const window = 1 << 20

// encoder and decoder are made when they are needed first, for they keep memory; both may be used by several goroutines at once.
// The frames have no checksum: the index of an object has that of the uncompressed bytes.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(false), zstd.WithWindowSize(window), zstd.WithLowerEncoderMem(true), zstd.WithSingleSegment(true))
		if err != nil {
			panic(err) // an option that the library does not take
		}
		return e
	})
	// No frame gets more room than its caller has made, whatever it says of itself.
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxMemory(archive.MaxContentBytes), zstd.WithDecoderConcurrency(0))
		if err != nil {
			panic(err) // an option that the library does not take
		}
		return d
	})
)

// Compress appends src, compressed, to dst.
func (codec) Compress(dst, src []byte) []byte { return encoder().EncodeAll(src, dst) }

// Decompress appends to dst exactly the n bytes that src was made of.
func (codec) Decompress(dst, src []byte, n int) ([]byte, error) {
	at := len(dst)
	dst = slices.Grow(dst, n)
	out, err := decoder().DecodeAll(src, dst[at:at:at+n])
	if err != nil {
		return dst, fmt.Errorf("zstd: %w", err)
	}
	if len(out) != n {
		return dst, fmt.Errorf("zstd: %d bytes, not %d", len(out), n)
	}
	if n > 0 && &out[0] == &dst[at : at+1][0] {
		return dst[:at+n], nil // as it should be: in place
	}
	return append(dst, out...), nil
}
