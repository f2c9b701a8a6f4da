package protocol

import (
	"encoding/binary"
	"fmt"
)

// A record block is the encoded run of records inside an Append and, with the same framing, the body of a segment
// object, so that the segment offset of a record is the prefix sum of EncodedSize over its predecessors (A1; paper 4.1:
// "computed as the prefix sum of payload sizes of preceding records").
//
//	+----------------+------------------+
//	| u32 len | more | payload          |     more is bit 31: the record's batch goes on with the next LSN
//	+----------------+------------------+

// RecordOverhead is the framing of one record in a block and in a segment body, in bytes.
const RecordOverhead = 4

const moreBit = 1 << 31

// EncodedSize returns the bytes that a record with an n-byte payload takes in a block.
func EncodedSize(n int) int { return RecordOverhead + n }

// AppendRecord appends one record to a block and returns the extended block.
func AppendRecord(block, data []byte, more bool) []byte {
	n := uint32(len(data))
	if more {
		n |= moreBit
	}
	block = binary.LittleEndian.AppendUint32(block, n)
	return append(block, data...)
}

// NextRecord splits the first record off a block. The payload aliases the block.
func NextRecord(block []byte) (data []byte, more bool, rest []byte, err error) {
	if len(block) < RecordOverhead {
		return nil, false, nil, fmt.Errorf("%w: record header cut after %d bytes", ErrBadMessage, len(block))
	}
	n := binary.LittleEndian.Uint32(block)
	more = n&moreBit != 0
	n &^= moreBit
	if n > MaxRecordBytes || int(n) > len(block)-RecordOverhead {
		return nil, false, nil, fmt.Errorf("%w: record of %d bytes in a block with %d left", ErrBadMessage, n, len(block)-RecordOverhead)
	}
	return block[RecordOverhead : RecordOverhead+n], more, block[RecordOverhead+n:], nil
}

// CheckBlock verifies that block holds exactly count records, so that a node stores all of a run or nothing.
func CheckBlock(block []byte, count uint32) error {
	if count == 0 || count > MaxBatchRecords {
		return fmt.Errorf("%w: run of %d records", ErrBadMessage, count)
	}
	rest := block
	for range count {
		var err error
		if _, _, rest, err = NextRecord(rest); err != nil {
			return err
		}
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %d bytes behind the last record of a run", ErrBadMessage, len(rest))
	}
	return nil
}

// storedHead is what a node stores in front of each payload: flags, the record's place in its segment, and the watermark
// that travelled with it, so that the watermark is durable in the same commit as the data it speaks of (R10).
//
//	| flags u8 | uvarint lsn−segStart | uvarint segOff | uvarint max(0, lsn−cLSN) |      0 in the last field: no watermark
const maxStoredHead = 1 + 3*binary.MaxVarintLen64

const (
	storedMore = 1 << 0
	// storedVersion sits in the high bits of the flags, so that a later layout is told from this one.
	storedVersion     = 1 << 4
	storedVersionMask = 0xf0
)

func appendStoredHead(dst []byte, lsn, segStart LSN, segOff uint64, clsn LSN, more bool) []byte {
	flags := byte(storedVersion)
	if more {
		flags |= storedMore
	}
	dst = append(dst, flags)
	dst = binary.AppendUvarint(dst, uint64(lsn-segStart))
	dst = binary.AppendUvarint(dst, segOff)
	var behind uint64
	if clsn < lsn {
		behind = uint64(lsn - clsn)
	}
	return binary.AppendUvarint(dst, behind)
}

// Stored is the decoded form of a stored record.
type Stored struct {
	Record
	CLSN LSN // the watermark that travelled with the record; zero if it carried none of use
}

// DecodeStored decodes the value under which a node stores LSN lsn of label. Data aliases value.
func DecodeStored(lsn LSN, label Epoch, value []byte) (Stored, error) {
	bad := func(what string) (Stored, error) {
		return Stored{}, fmt.Errorf("%w: stored record %d@%d: %s", ErrBadMessage, lsn, label, what)
	}
	if len(value) < 1 || value[0]&storedVersionMask != storedVersion {
		return bad("unknown layout")
	}
	flags, rest := value[0], value[1:]
	var f [3]uint64
	for i := range f {
		v, n := binary.Uvarint(rest)
		if n <= 0 {
			return bad("head cut short")
		}
		f[i], rest = v, rest[n:]
	}
	if f[0] >= uint64(lsn) || f[2] > uint64(lsn) || f[1] > MaxSegmentBytes+MaxBlockBytes {
		return bad("head out of bounds")
	}
	s := Stored{Record: Record{LSN: lsn, Label: label, More: flags&storedMore != 0, SegStart: lsn - LSN(f[0]), SegOff: f[1], Data: rest}}
	if f[2] != 0 {
		s.CLSN = lsn - LSN(f[2])
	}
	return s, nil
}
