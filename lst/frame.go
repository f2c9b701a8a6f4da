package lst

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strconv"
	"strings"
)

// On-disk format (drawn in docs/FORMAT-LST.md). All integers little-endian.
//
// F1 Every checksum covers the segment number, the offset and the file's random
//    salt, so neither bytes of another file, of another place, nor a caller's
//    payload that happens to hold a whole segment can pass for a frame (T2).
// F2 Frames follow each other without gaps, except that in a direct-mode
//    segment a zero run may fill the rest of a block.
// F3 The first frame of a segment in use is a link to where its predecessor
//    ends. A segment without one has never been used.
// F4 Every frame says up to where the store was durable when it was written:
//    damage below such a claim is damage, damage above it is a torn tail.

const (
	formatVersion   = 1
	headerBytes     = 64 // segment header
	frameHeadBytes  = 24
	recordCRCBytes  = 4
	maxKeyBytes     = 1 << 10
	maxValueBytes   = 32 << 10
	maxFrameBody    = 1<<31 - 1
	segmentSuffix   = ".lst"
	segmentNameHex  = 8
	lockName        = "LOCK"
	minSegmentBytes = 32 << 10
	maxSegmentBytes = 1<<32 - 4096
)

var segmentMagic = [8]byte{'b', 't', 'r', 'l', 's', 't', 'S', 'G'}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type frameKind uint8

const (
	kindLink  frameKind = 1 // first frame of a segment: where the one before ends
	kindBatch frameKind = 2 // one atomic batch
	kindLeaf  frameKind = 3 // index: one finished leaf of a stream
	kindTable frameKind = 4 // index: one piece of a snapshot
	kindRoot  frameKind = 5 // index: a snapshot is complete
)

// pos is a byte position in the store: segment number and offset.
type pos uint64

func mkpos(seg uint32, off int64) pos { return pos(seg)<<32 | pos(uint32(off)) }
func (p pos) seg() uint32             { return uint32(p >> 32) }
func (p pos) off() int64              { return int64(uint32(p)) }
func (p pos) String() string          { return fmt.Sprintf("%s:%d", segmentName(p.seg()), p.off()) }

func segmentName(n uint32) string { return fmt.Sprintf("%08x%s", n, segmentSuffix) }

func segmentPath(dir string, n uint32) string { return filepath.Join(dir, segmentName(n)) }

func parseSegmentName(name string) (uint32, bool) {
	base, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(base) != segmentNameHex {
		return 0, false
	}
	n, err := strconv.ParseUint(base, 16, 32)
	if err != nil || n == 0 || segmentName(uint32(n)) != name {
		return 0, false
	}
	return uint32(n), true
}

// segHeader is the first 64 bytes of a segment file. It is synced before any
// frame is written behind it, so it is whole whenever the segment is in use.
type segHeader struct {
	storeID   [16]byte
	number    uint32
	salt      uint32
	block     uint32 // writes are padded to this; 1 in buffered mode
	dataStart uint32
	size      uint32 // bytes preallocated
	createdMS int64
	flags     uint8
}

// flagZeroed marks a segment that was zero-filled when it was made (Direct mode).
const flagZeroed = 1

func (h *segHeader) encode() []byte {
	b := make([]byte, headerBytes)
	copy(b, segmentMagic[:])
	b[8], b[9] = formatVersion, h.flags
	copy(b[12:], h.storeID[:])
	binary.LittleEndian.PutUint32(b[28:], h.number)
	binary.LittleEndian.PutUint32(b[32:], h.salt)
	binary.LittleEndian.PutUint32(b[36:], h.block)
	binary.LittleEndian.PutUint32(b[40:], h.dataStart)
	binary.LittleEndian.PutUint32(b[44:], h.size)
	binary.LittleEndian.PutUint64(b[48:], uint64(h.createdMS))
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}

// decodeHeader parses a segment header; the reason is empty if it is sound.
func decodeHeader(b []byte, number uint32) (h segHeader, reason string) {
	if len(b) < headerBytes || [8]byte(b[:8]) != segmentMagic {
		return h, "segment header is missing"
	}
	if crc32.Checksum(b[:60], castagnoli) != binary.LittleEndian.Uint32(b[60:]) {
		return h, "segment header fails its checksum"
	}
	if b[8] != formatVersion {
		return h, fmt.Sprintf("segment has format version %d, this program reads %d", b[8], formatVersion)
	}
	h.flags = b[9]
	copy(h.storeID[:], b[12:])
	h.number = binary.LittleEndian.Uint32(b[28:])
	h.salt = binary.LittleEndian.Uint32(b[32:])
	h.block = binary.LittleEndian.Uint32(b[36:])
	h.dataStart = binary.LittleEndian.Uint32(b[40:])
	h.size = binary.LittleEndian.Uint32(b[44:])
	h.createdMS = int64(binary.LittleEndian.Uint64(b[48:]))
	if h.number != number {
		return h, fmt.Sprintf("file is named segment %d but is segment %d", number, h.number)
	}
	if h.block == 0 || h.block > 65536 || h.block&(h.block-1) != 0 || h.dataStart < headerBytes || h.dataStart%h.block != 0 {
		return h, "segment header has impossible sizes"
	}
	return h, ""
}

// frameHead precedes every frame body:
//
//	0 kind u8 | 1 version u8 | 2 zero u16 | 4 body length u32 | 8 claim u64 | 16 body crc u32 | 20 head crc u32
type frameHead struct {
	kind   frameKind
	length uint32
	claim  pos // everything before it was durable when the frame was written
	crc    uint32
}

func putFrameHead(b []byte, kind frameKind, claim pos, at pos, salt uint32) {
	body := b[frameHeadBytes:]
	b[0], b[1], b[2], b[3] = byte(kind), formatVersion, 0, 0
	binary.LittleEndian.PutUint32(b[4:], uint32(len(body)))
	binary.LittleEndian.PutUint64(b[8:], uint64(claim))
	bound := bind(at, salt)
	binary.LittleEndian.PutUint32(b[16:], checksum(body)^bound)
	binary.LittleEndian.PutUint32(b[20:], checksum(b[:20])^bound)
}

// readFrameHead parses a frame head found at position at; ok is false for
// anything that was not written there.
func readFrameHead(b []byte, at pos, salt uint32) (h frameHead, ok bool) {
	_ = b[frameHeadBytes-1]
	if b[0] < byte(kindLink) || b[0] > byte(kindRoot) || b[1] != formatVersion || b[2] != 0 || b[3] != 0 {
		return h, false
	}
	if crc32.Checksum(b[:20], castagnoli)^bind(at, salt) != binary.LittleEndian.Uint32(b[20:]) {
		return h, false
	}
	return frameHead{
		kind: frameKind(b[0]), length: binary.LittleEndian.Uint32(b[4:]),
		claim: pos(binary.LittleEndian.Uint64(b[8:])), crc: binary.LittleEndian.Uint32(b[16:]),
	}, true
}

func (h frameHead) bodyOK(body []byte, at pos, salt uint32) bool {
	return crc32.Checksum(body, castagnoli)^bind(at, salt) == h.crc
}

// bind mixes a position and a file's salt into 32 bits (finalizer of
// splitmix64). XORed into a CRC it makes the CRC wrong everywhere else.
func bind(at pos, salt uint32) uint32 {
	x := uint64(at)*0x9e3779b97f4a7c15 + uint64(salt)<<16 + uint64(salt)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return uint32(x ^ x>>31)
}

// recordBind binds a record's checksum to its place and its name as well, so
// that an index entry that points at another record is found out.
func recordBind(at pos, salt uint32, stream StreamID, seq uint64) uint32 {
	return recordBindIn(at, salt, bindStream(&stream), seq)
}

// bindStream is the part of recordBind that all records of a stream share.
func bindStream(stream *StreamID) uint64 {
	x := binary.LittleEndian.Uint64(stream[:8])*0xff51afd7ed558ccd ^ binary.LittleEndian.Uint64(stream[8:])
	return (x ^ x>>33) * 0xc4ceb9fe1a85ec53
}

func recordBindIn(at pos, salt uint32, stream, seq uint64) uint32 {
	x := stream ^ seq
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return bind(at, salt) ^ uint32(x^x>>32)
}
