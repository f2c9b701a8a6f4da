package archive

import (
	"fmt"
	"sync"
)

// Compression numbers how the groups of a record block are stored. The number stands in header and trailer, and never gets
// another meaning.
type Compression uint8

// The compressions that have a number. A program knows those whose codecs it links.
const (
	NoCompression Compression = 0
	Zstd          Compression = 1 // RFC 8878, one frame for each group
)

// compressions says of each number what it is called and which package brings its codec.
var compressions = map[Compression]struct{ name, pkg string }{
	Zstd: {"zstd", "github.com/btrlog/btrlog/compress/zstd"},
}

// Codec compresses single groups: runs of whole records, of at most maxGroupBytes bytes. It is used by several goroutines at once.
type Codec interface {
	// Compress appends src, compressed, to dst. It may make more of it; then the group is stored as it is. It keeps neither.
	Compress(dst, src []byte) []byte
	// Decompress appends to dst exactly n bytes that src was made of, or fails. src may be anything: it must not allocate more
	// than a small multiple of n, whatever src says, and must not panic. It keeps neither.
	Decompress(dst, src []byte, n int) ([]byte, error)
}

var codecs struct {
	sync.RWMutex
	of map[Compression]Codec
}

// RegisterCodec makes a codec known; packages that bring one call it from init. It panics if the number has one.
func RegisterCodec(id Compression, c Codec) {
	codecs.Lock()
	defer codecs.Unlock()
	if codecs.of == nil {
		codecs.of = make(map[Compression]Codec)
	}
	if codecs.of[id] != nil || id == NoCompression {
		panic(fmt.Sprintf("archive: compression %d registered twice", id))
	}
	codecs.of[id] = c
}

// codec returns the codec of a compression, or a *CodecError.
func (c Compression) codec() (Codec, error) {
	codecs.RLock()
	defer codecs.RUnlock()
	if k := codecs.of[c]; k != nil {
		return k, nil
	}
	return nil, &CodecError{c}
}

// String returns the name, as ParseCompression takes it.
func (c Compression) String() string {
	if c == NoCompression {
		return "none"
	}
	if n := compressions[c].name; n != "" {
		return n
	}
	return fmt.Sprintf("compression %d", uint8(c))
}

// ParseCompression returns what a setting names: none, or one whose codec this program has; the empty name is none.
func ParseCompression(name string) (Compression, error) {
	if name == "" || name == "none" {
		return NoCompression, nil
	}
	for c, what := range compressions {
		if what.name == name {
			_, err := c.codec()
			return c, err
		}
	}
	return 0, fmt.Errorf("archive: compression %q is not known; there are none and zstd", name)
}

// CodecError says that an object is compressed in a way that this program has not linked, or does not know. It is an ErrTooNew:
// the object may be whole, and a program that has the codec reads it.
type CodecError struct{ Compression Compression }

func (e *CodecError) Error() string {
	if what, ok := compressions[e.Compression]; ok {
		return fmt.Sprintf("archive: compressed with %s, which this program cannot read or write; link it: import _ %q", what.name, what.pkg)
	}
	return fmt.Sprintf("archive: compressed in a way of number %d, which this version does not know; upgrade this program", e.Compression)
}

// Is makes it an ErrTooNew.
func (e *CodecError) Is(target error) bool { return target == ErrTooNew }
