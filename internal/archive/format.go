package archive

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/btrlog/btrlog/internal/protocol"
)

// The format ladder. A reader accepts every version up to the newest it knows and refuses higher ones with ErrTooNew;
// a writer writes the lowest that can say what it has to. Keys do not change with the version (the hash covers the
// uncompressed content), so nodes of two versions still make one object per stretch.
const (
	formatV1     = 1 // header, record block, group index, trailer; no compression
	formatV2     = 2 // each group compressed by itself, or stored as it is if it does not shrink; one at least did
	newestFormat = formatV2
)

const (
	headMagic  = "BTRLGSEG"
	tailMagic  = "BTRLGEND"
	headBytes  = 72
	entryBytes = 12
	// entryBytes2 has the offset of the group as it is stored besides.
	entryBytes2 = 16
	tailBytes   = 48

	// minObjectBytes is the size of an object of one empty record.
	minObjectBytes = headBytes + protocol.RecordOverhead + entryBytes + tailBytes

	// A group is what one index entry points to and one checksum covers: a run of whole records, cut before the record
	// that finds it with groupRecords records or groupBytes bytes.
	groupRecords = 64
	groupBytes   = 64 << 10
	// maxGroupBytes is the largest group: all but full, and then the largest record.
	maxGroupBytes = groupBytes + protocol.RecordOverhead + protocol.MaxRecordBytes
)

// relation of the limits: offsets in the index are 32 bits wide, and the object fits the store.
const _ = uint32(MaxContentBytes)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crc(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// head is the fixed header of a body.
type head struct {
	log         protocol.LogID
	label       protocol.Epoch
	segStart    protocol.LSN
	first, last protocol.LSN
	content     uint64 // bytes of the uncompressed record block
	stored      uint64 // of the block as it is stored; less, if compression is not none
	compression Compression
}

// version is the lowest that can say what h says.
func (h *head) version() uint16 {
	if h.compression == NoCompression {
		return formatV1
	}
	return formatV2
}

func (h head) count() uint64 { return uint64(h.last-h.first) + 1 }

func putHead(b []byte, h head) {
	le := binary.LittleEndian
	copy(b, headMagic)
	le.PutUint16(b[8:], h.version())
	b[10], b[11] = byte(h.compression), 0
	le.PutUint32(b[12:], uint32(h.count()))
	le.PutUint64(b[16:], uint64(h.log))
	le.PutUint64(b[24:], uint64(h.label))
	le.PutUint64(b[32:], uint64(h.segStart))
	le.PutUint64(b[40:], uint64(h.first))
	le.PutUint64(b[48:], uint64(h.last))
	le.PutUint64(b[56:], h.content)
	le.PutUint32(b[64:], 0)
	if h.compression != NoCompression {
		le.PutUint32(b[64:], uint32(h.stored))
	}
	le.PutUint32(b[68:], crc(b[:68]))
}

func parseHead(b []byte) (head, error) {
	le := binary.LittleEndian
	if len(b) < headBytes || string(b[:8]) != headMagic {
		return head{}, damage("header", "no segment header")
	}
	v := le.Uint16(b[8:])
	if v != formatV1 && v != formatV2 {
		return head{}, versionError(v)
	}
	if le.Uint32(b[68:]) != crc(b[:68]) {
		return head{}, damage("header", "checksum")
	}
	h := head{log: protocol.LogID(le.Uint64(b[16:])), label: protocol.Epoch(le.Uint64(b[24:])), segStart: protocol.LSN(le.Uint64(b[32:])),
		first: protocol.LSN(le.Uint64(b[40:])), last: protocol.LSN(le.Uint64(b[48:])), content: le.Uint64(b[56:]), compression: Compression(b[10])}
	stored := le.Uint32(b[64:])
	if v != h.version() || b[11] != 0 || v == formatV1 && stored != 0 {
		return head{}, damage("header", "reserved fields are set")
	}
	if h.stored = h.content; v != formatV1 {
		h.stored = uint64(stored)
		if h.stored == 0 || h.stored >= h.content {
			return head{}, damage("header", "compressed, and not smaller")
		}
	}
	if h.log == 0 || h.label == 0 || h.segStart == 0 || h.segStart > h.first || h.first > h.last || h.last > protocol.MaxLSN ||
		h.content > MaxContentBytes || h.count() > h.content/protocol.RecordOverhead || h.count() != uint64(le.Uint32(b[12:])) {
		return head{}, damage("header", "fields out of range")
	}
	return h, nil
}

// tail is the trailer of a body with the group index before it.
type tail struct {
	hash    [HashBytes]byte
	content uint64
	stored  uint64 // bytes of the record block as it is stored
	groups  []group
	fileCRC uint32
	// compression is none, and codec nil, if all groups are stored as they are.
	compression Compression
	codec       Codec
}

// group is one index entry: a run of whole records, [lsn, next group's lsn).
type group struct {
	delta  uint32 // its first LSN − the object's first LSN
	offset uint32 // of its first byte in the record block
	stored uint32 // the same in the block as it is stored
	crc    uint32 // CRC32C of its uncompressed bytes
}

// entrySize is the size of an index entry under a compression.
func entrySize(c Compression) int64 {
	if c == NoCompression {
		return entryBytes
	}
	return entryBytes2
}

// appendTail appends the index and the trailer to a body, from start on, whose header and block are complete.
func appendTail(body []byte, start int, t tail) []byte {
	le := binary.LittleEndian
	from := len(body)
	for _, g := range t.groups {
		body = le.AppendUint32(body, g.delta)
		body = le.AppendUint32(body, g.offset)
		if t.compression != NoCompression {
			body = le.AppendUint32(body, g.stored)
		}
		body = le.AppendUint32(body, g.crc)
	}
	body = append(body, t.hash[:]...)
	body = le.AppendUint32(body, uint32(t.content))
	if t.compression == NoCompression {
		body = le.AppendUint32(body, 0) // the upper half of content in version 1
	} else {
		body = le.AppendUint32(body, uint32(t.stored))
	}
	body = le.AppendUint32(body, uint32(len(t.groups)))
	body = le.AppendUint32(body, crc(body[from:]))
	body = le.AppendUint32(body, crc(body[start:]))
	h := head{compression: t.compression}
	body = le.AppendUint16(body, h.version())
	body = append(body, byte(t.compression), 0)
	return append(body, tailMagic...)
}

// tailSize returns how many bytes at the end of a body of size bytes are index and trailer, from its last tailBytes
// bytes. It bounds what a reader allocates by the object's own size.
func tailSize(b []byte, size int64) (int64, error) {
	le := binary.LittleEndian
	if len(b) < tailBytes {
		return 0, damage("trailer", "object is cut short")
	}
	b = b[len(b)-tailBytes:]
	if string(b[40:]) != tailMagic {
		return 0, damage("trailer", "no segment trailer")
	}
	v := le.Uint16(b[36:])
	if v != formatV1 && v != formatV2 {
		return 0, versionError(v)
	}
	h := head{compression: Compression(b[38])}
	if v != h.version() || b[39] != 0 {
		return 0, damage("trailer", "reserved fields are set")
	}
	content, stored, n := storedIn(b)
	if content > MaxContentBytes || headBytes+int64(stored)+int64(n)*entrySize(h.compression)+tailBytes != size || (v != formatV1 && stored >= content) {
		return 0, damage("trailer", "lengths do not add up to the size of the object")
	}
	return int64(n)*entrySize(h.compression) + tailBytes, nil
}

// storedIn reads the lengths of a trailer whose version and compression fit each other.
func storedIn(end []byte) (content, stored uint64, groups uint32) {
	le := binary.LittleEndian
	groups = le.Uint32(end[24:])
	if Compression(end[38]) == NoCompression {
		content = le.Uint64(end[16:])
		return content, content, groups
	}
	return uint64(le.Uint32(end[16:])), uint64(le.Uint32(end[20:])), groups
}

// parseTail parses the index and trailer of an object that holds count records. b is exactly tailSize bytes.
func parseTail(b []byte, count uint64) (tail, error) {
	le := binary.LittleEndian
	end := b[len(b)-tailBytes:]
	if crc(b[:len(b)-tailBytes+28]) != le.Uint32(end[28:]) {
		return tail{}, damage("index", "checksum")
	}
	t := tail{fileCRC: le.Uint32(end[32:]), compression: Compression(end[38])}
	t.content, t.stored, _ = storedIn(end)
	if t.compression != NoCompression {
		var err error
		if t.codec, err = t.compression.codec(); err != nil {
			return tail{}, err
		}
	}
	size := int(entrySize(t.compression))
	t.groups = make([]group, 0, (len(b)-tailBytes)/size)
	copy(t.hash[:], end)
	for e := b[:len(b)-tailBytes]; len(e) > 0; e = e[size:] {
		g := group{delta: le.Uint32(e), offset: le.Uint32(e[4:])}
		if g.stored = g.offset; size == entryBytes2 {
			g.stored = le.Uint32(e[8:])
		}
		g.crc = le.Uint32(e[size-4:])
		if n := len(t.groups); n == 0 {
			if g.delta != 0 || g.offset != 0 || g.stored != 0 {
				return tail{}, damage("index", "does not begin at the first record")
			}
		} else if p := t.groups[n-1]; g.delta <= p.delta || g.offset <= p.offset || g.offset-p.offset > maxGroupBytes || g.stored <= p.stored || g.stored-p.stored > g.offset-p.offset {
			return tail{}, damage("index", "entries out of order")
		}
		t.groups = append(t.groups, g)
	}
	n := len(t.groups)
	if n == 0 {
		return tail{}, damage("index", "has no entries")
	}
	g := t.groups[n-1]
	if uint64(g.delta) >= count || uint64(g.offset) >= t.content || t.content-uint64(g.offset) > maxGroupBytes ||
		uint64(g.stored) >= t.stored || t.stored-uint64(g.stored) > t.content-uint64(g.offset) {
		return tail{}, damage("index", "entries do not fit the object")
	}
	return t, nil
}

// storedEnd returns the offset behind the last byte of group i in the block as it is stored.
func (t *tail) storedEnd(i int) uint64 {
	if i+1 < len(t.groups) {
		return uint64(t.groups[i+1].stored)
	}
	return t.stored
}

// plain appends to dst the groups [first, last] uncompressed. b is their bytes as they are stored. What it appends is not
// checked, and never longer than the index says.
func (t *tail) plain(dst []byte, first, last int, b []byte) ([]byte, error) {
	from := uint64(t.groups[first].stored)
	for i := first; i <= last; i++ {
		g := t.groups[i]
		end, _ := t.groupEnd(i, 0)
		n := int(end - uint64(g.offset))
		s := b[uint64(g.stored)-from : t.storedEnd(i)-from]
		if len(s) == n {
			dst = append(dst, s...) // it did not shrink
			continue
		}
		at := len(dst)
		var err error
		dst, err = t.codec.Decompress(dst, s, n)
		if err != nil || len(dst) != at+n {
			return dst, damage("records", fmt.Sprintf("group at offset %d, compressed with %v: %v", g.offset, t.compression, err))
		}
	}
	return dst, nil
}

// groupEnd returns the end of group i: the offset behind its last byte, and the count of records up to there.
func (t *tail) groupEnd(i int, count uint64) (offset uint64, records uint64) {
	if i+1 < len(t.groups) {
		return uint64(t.groups[i+1].offset), uint64(t.groups[i+1].delta)
	}
	return t.content, count
}

// checkGroup verifies the bytes of group i and calls visit for each of its records; Data aliases b.
func (t *tail) checkGroup(i int, k Key, b []byte, visit func(Record) bool) (more bool, err error) {
	count := uint64(k.Last-k.First) + 1
	end, records := t.groupEnd(i, count)
	g := t.groups[i]
	if uint64(len(b)) != end-uint64(g.offset) || crc(b) != g.crc {
		return false, damage("records", fmt.Sprintf("checksum of the group at offset %d", g.offset))
	}
	lsn := k.First + protocol.LSN(g.delta)
	for range records - uint64(g.delta) {
		data, batch, rest, err := protocol.NextRecord(b)
		if err != nil {
			return false, damage("records", fmt.Sprintf("group at offset %d: %v", g.offset, err))
		}
		if visit != nil && !visit(Record{LSN: lsn, Label: k.Label, More: batch, Data: data}) {
			return false, nil
		}
		b = rest
		lsn++
	}
	if len(b) != 0 {
		return false, damage("records", fmt.Sprintf("group at offset %d holds more than its records", g.offset))
	}
	return true, nil
}

func damage(part, what string) error { return fmt.Errorf("%w: %s: %s", ErrDamaged, part, what) }

func versionError(v uint16) error {
	if v == 0 {
		return damage("version", "zero")
	}
	return fmt.Errorf("%w: format version %d, this program reads up to %d", ErrTooNew, v, newestFormat)
}
