package archive

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/btrlog/btrlog/internal/protocol"
)

// The format ladder. A reader accepts every version up to the newest it knows and refuses higher ones with ErrTooNew;
// a writer writes newestFormat. Keys do not change with the version (the hash covers the uncompressed content), so nodes
// of two versions still make one object per stretch.
const (
	formatV1     = 1 // header, record block, group index, trailer; no compression
	newestFormat = formatV1
)

// Compression of the record block. Only none is defined; another one is a version step.
const compressionNone = 0

const (
	headMagic  = "BTRLGSEG"
	tailMagic  = "BTRLGEND"
	headBytes  = 72
	entryBytes = 12
	tailBytes  = 48

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
}

func (h head) count() uint64 { return uint64(h.last-h.first) + 1 }

func putHead(b []byte, h head) {
	le := binary.LittleEndian
	copy(b, headMagic)
	le.PutUint16(b[8:], formatV1)
	b[10], b[11] = compressionNone, 0
	le.PutUint32(b[12:], uint32(h.count()))
	le.PutUint64(b[16:], uint64(h.log))
	le.PutUint64(b[24:], uint64(h.label))
	le.PutUint64(b[32:], uint64(h.segStart))
	le.PutUint64(b[40:], uint64(h.first))
	le.PutUint64(b[48:], uint64(h.last))
	le.PutUint64(b[56:], h.content)
	le.PutUint32(b[64:], 0)
	le.PutUint32(b[68:], crc(b[:68]))
}

func parseHead(b []byte) (head, error) {
	le := binary.LittleEndian
	if len(b) < headBytes || string(b[:8]) != headMagic {
		return head{}, damage("header", "no segment header")
	}
	if v := le.Uint16(b[8:]); v != formatV1 {
		return head{}, versionError(v)
	}
	if le.Uint32(b[68:]) != crc(b[:68]) {
		return head{}, damage("header", "checksum")
	}
	h := head{log: protocol.LogID(le.Uint64(b[16:])), label: protocol.Epoch(le.Uint64(b[24:])), segStart: protocol.LSN(le.Uint64(b[32:])),
		first: protocol.LSN(le.Uint64(b[40:])), last: protocol.LSN(le.Uint64(b[48:])), content: le.Uint64(b[56:])}
	if b[10] != compressionNone || b[11] != 0 || le.Uint32(b[64:]) != 0 {
		return head{}, damage("header", "reserved fields are set")
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
	groups  []group
	fileCRC uint32
}

// group is one index entry: a run of whole records, [lsn, next group's lsn).
type group struct {
	delta  uint32 // its first LSN − the object's first LSN
	offset uint32 // of its first byte in the record block
	crc    uint32 // CRC32C of its bytes
}

// appendTail appends the index and the trailer to a body, from start on, whose header and block are complete.
func appendTail(body []byte, start int, t tail) []byte {
	le := binary.LittleEndian
	from := len(body)
	for _, g := range t.groups {
		body = le.AppendUint32(body, g.delta)
		body = le.AppendUint32(body, g.offset)
		body = le.AppendUint32(body, g.crc)
	}
	body = append(body, t.hash[:]...)
	body = le.AppendUint64(body, t.content)
	body = le.AppendUint32(body, uint32(len(t.groups)))
	body = le.AppendUint32(body, crc(body[from:]))
	body = le.AppendUint32(body, crc(body[start:]))
	body = le.AppendUint16(body, formatV1)
	body = append(body, compressionNone, 0)
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
	if v := le.Uint16(b[36:]); v != formatV1 {
		return 0, versionError(v)
	}
	if b[38] != compressionNone || b[39] != 0 {
		return 0, damage("trailer", "reserved fields are set")
	}
	content, n := le.Uint64(b[16:]), int64(le.Uint32(b[24:]))
	if content > MaxContentBytes || headBytes+int64(content)+n*entryBytes+tailBytes != size {
		return 0, damage("trailer", "lengths do not add up to the size of the object")
	}
	return n*entryBytes + tailBytes, nil
}

// parseTail parses the index and trailer of an object that holds count records. b is exactly tailSize bytes.
func parseTail(b []byte, count uint64) (tail, error) {
	le := binary.LittleEndian
	end := b[len(b)-tailBytes:]
	if crc(b[:len(b)-tailBytes+28]) != le.Uint32(end[28:]) {
		return tail{}, damage("index", "checksum")
	}
	t := tail{content: le.Uint64(end[16:]), fileCRC: le.Uint32(end[32:]), groups: make([]group, 0, (len(b)-tailBytes)/entryBytes)}
	copy(t.hash[:], end)
	for e := b[:len(b)-tailBytes]; len(e) > 0; e = e[entryBytes:] {
		g := group{le.Uint32(e), le.Uint32(e[4:]), le.Uint32(e[8:])}
		if n := len(t.groups); n == 0 {
			if g.delta != 0 || g.offset != 0 {
				return tail{}, damage("index", "does not begin at the first record")
			}
		} else if p := t.groups[n-1]; g.delta <= p.delta || g.offset <= p.offset || g.offset-p.offset > maxGroupBytes {
			return tail{}, damage("index", "entries out of order")
		}
		t.groups = append(t.groups, g)
	}
	n := len(t.groups)
	if n == 0 || uint64(t.groups[n-1].delta) >= count || uint64(t.groups[n-1].offset) >= t.content || t.content-uint64(t.groups[n-1].offset) > maxGroupBytes {
		return tail{}, damage("index", "entries do not fit the object")
	}
	return t, nil
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
