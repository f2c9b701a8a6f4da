package pgwal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// LSN is a position in a PostgreSQL write-ahead log: a byte offset from the log's
// beginning, page headers and alignment included. It is not the LSN of a BtrLog
// log, which counts records.
type LSN uint64

// String prints the position in the text form of PostgreSQL's pg_lsn type, such as
// 0/16B3748.
func (l LSN) String() string {
	return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l))
}

// ParseLSN reads the form that String prints, and the zero-padded one of pg_waldump.
func ParseLSN(s string) (LSN, error) {
	high, low, ok := strings.Cut(s, "/")
	if ok {
		h, errHigh := strconv.ParseUint(high, 16, 32)
		l, errLow := strconv.ParseUint(low, 16, 32)
		if errHigh == nil && errLow == nil {
			return LSN(h<<32 | l), nil
		}
	}
	return 0, fmt.Errorf("pgwal: %q is not a log position such as 0/16B3748", s)
}

const (
	// RecordHeaderSize is the size in bytes of the header that begins each record,
	// and so the least length of a record.
	RecordHeaderSize = 24
	// MaxRecordSize is the greatest length in bytes of a record, its header
	// included: PostgreSQL's own limit.
	MaxRecordSize = 1020 << 20
)

// Offsets of the fields of a record header (XLogRecord in PostgreSQL's
// access/xlogrecord.h). Two bytes between xl_rmid and xl_crc are unused.
const (
	offTotalLen = 0  // uint32, whole record
	offXID      = 4  // uint32
	offPrev     = 8  // uint64
	offInfo     = 16 // uint8
	offRmgr     = 17 // uint8
	offCRC      = 20 // uint32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header is the decoded header of a record.
type Header struct {
	Length uint32 // bytes of the whole record, this header included
	XID    uint32 // transaction that wrote it; 0 outside of transactions
	Prev   LSN    // where the record before it begins; 0 in the first of a cluster
	Info   uint8  // operation; its high four bits belong to the resource manager
	Rmgr   uint8  // resource manager that wrote it, see RmgrName
}

// Decode checks that raw is exactly one intact record, by its length and its
// CRC-32C, and returns its header. It needs nothing but the record's own bytes, so
// it also checks a record that went through another store: two records of one log
// follow each other if the second's Prev is where the first began. It keeps no
// reference to raw.
func Decode(raw []byte) (Header, error) {
	if len(raw) < RecordHeaderSize {
		return Header{}, fmt.Errorf("pgwal: %d bytes are too few for a record, whose header has %d", len(raw), RecordHeaderSize)
	}
	h := decodeHeader(raw)
	if uint64(h.Length) != uint64(len(raw)) {
		return Header{}, fmt.Errorf("pgwal: the record gives its length as %d bytes, but there are %d", h.Length, len(raw))
	}
	if stored, computed := binary.LittleEndian.Uint32(raw[offCRC:]), recordCRC(raw); stored != computed {
		return Header{}, fmt.Errorf("pgwal: the record's checksum is %08x, its bytes have %08x", stored, computed)
	}
	return h, nil
}

// decodeHeader reads the first RecordHeaderSize bytes of b and checks nothing.
func decodeHeader(b []byte) Header {
	return Header{
		Length: binary.LittleEndian.Uint32(b[offTotalLen:]),
		XID:    binary.LittleEndian.Uint32(b[offXID:]),
		Prev:   LSN(binary.LittleEndian.Uint64(b[offPrev:])),
		Info:   b[offInfo],
		Rmgr:   b[offRmgr],
	}
}

// recordCRC is the checksum PostgreSQL stores in a record. The body comes before the
// header because the server learns xl_prev, in the header, only when it reserves the
// record's place; by then the body has been summed.
func recordCRC(raw []byte) uint32 {
	crc := crc32.Update(0, castagnoli, raw[RecordHeaderSize:])
	return crc32.Update(crc, castagnoli, raw[:offCRC])
}

// IsSwitch tells whether the record is a segment switch: the rest of its segment
// holds nothing.
func (h Header) IsSwitch() bool {
	const rmgrXLOG, infoSwitch = 0, 0x40
	return h.Rmgr == rmgrXLOG && h.Info&0xF0 == infoSwitch
}

// rmgrNames are the built-in resource managers, in the order of PostgreSQL's
// access/rmgrlist.h.
var rmgrNames = [...]string{
	"XLOG", "Transaction", "Storage", "CLOG", "Database", "Tablespace", "MultiXact",
	"RelMap", "Standby", "Heap2", "Heap", "Btree", "Hash", "Gin", "Gist", "Sequence",
	"SPGist", "BRIN", "CommitTs", "ReplicationOrigin", "Generic", "LogicalMessage",
}

// RmgrName is the name pg_waldump prints for the record's resource manager, such as
// Heap; of an extension's manager, custom and its number.
func (h Header) RmgrName() string {
	if int(h.Rmgr) < len(rmgrNames) {
		return rmgrNames[h.Rmgr]
	}
	return fmt.Sprintf("custom%03d", h.Rmgr)
}
