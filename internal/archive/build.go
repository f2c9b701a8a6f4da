package archive

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"iter"

	"github.com/btrlog/btrlog/internal/protocol"
)

// RecordSource yields the records of a plan, First to Last, in order, each with the plan's label; or an error, which ends
// it. Record.Data stays the source's and need only be valid until its next step. It may be run more than once.
type RecordSource = iter.Seq2[Record, error]

// checkPlan says what is wrong with a plan.
func checkPlan(p protocol.Segment) error {
	if p.Log == 0 || p.Label == 0 || p.SegStart == 0 || p.SegStart > p.First || p.First > p.Last || p.Last > protocol.MaxLSN ||
		uint64(p.Last-p.First) >= MaxContentBytes/protocol.RecordOverhead {
		return fmt.Errorf("%w: log %v label %d: plan of LSNs %d to %d in the segment from %d", ErrSource, p.Log, p.Label, p.First, p.Last, p.SegStart)
	}
	return nil
}

func newHash(h head) hash.Hash {
	var b [40]byte
	for i, v := range [...]uint64{uint64(h.log), uint64(h.label), uint64(h.segStart), uint64(h.first), uint64(h.last)} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
	s := sha256.New()
	s.Write(b[:])
	return s
}

// Build makes the object of a plan from its records, in the capacity of buf if that suffices. Only the plan's identity
// (log, label, segment, first, last) and the records go into the body (AR2); its CLSN decides the kind in the key.
// The caller owns the body, and buf is used up. Errors: ErrSource, or the source's own.
func Build(buf []byte, plan protocol.Segment, source RecordSource) (body []byte, key Key, err error) {
	body, key, _, err = build(buf[:0], plan, source, NoCompression)
	return body, key, err
}

// shape is what of an object the records do not determine, and how long it would be without compression.
type shape struct {
	compression Compression
	content     int64 // bytes of the uncompressed record block
	plainSize   int64 // of the whole object in version 1
}

// build appends the object to b, compressed if a group gets smaller. After an error what was appended is of no use.
func build(b []byte, plan protocol.Segment, source RecordSource, compression Compression) (body []byte, key Key, s shape, err error) {
	if err := checkPlan(plan); err != nil {
		return b, Key{}, shape{}, err
	}
	var codec Codec
	var small *[]byte
	if compression != NoCompression {
		if codec, err = compression.codec(); err != nil {
			return b, Key{}, shape{}, err
		}
		small = getBuffer()
		defer buffers.Put(small)
	}
	h := head{log: plan.Log, label: plan.Label, segStart: plan.SegStart, first: plan.First, last: plan.Last}
	bad := func(lsn protocol.LSN, what string) error {
		return fmt.Errorf("%w: log %v label %d LSNs %d to %d: at LSN %d: %s", ErrSource, plan.Log, plan.Label, plan.First, plan.Last, lsn, what)
	}
	sum := newHash(h)
	var space [headBytes]byte // filled in at the end, when the length of the block is known
	start := len(b)
	body = append(b, space[:]...)
	blockAt := start + headBytes
	var t tail
	next, inGroup, groupAt := plan.First, 0, blockAt
	saved := 0 // bytes, by compression, of the groups that are closed
	closeGroup := func() {
		n := len(t.groups)
		if n == 0 {
			return
		}
		t.groups[n-1].crc = crc(body[groupAt:])
		sum.Write(body[groupAt:])
		if codec == nil {
			return
		}
		*small = codec.Compress((*small)[:0], body[groupAt:])
		if less := len(body) - groupAt - len(*small); less > 0 {
			saved += less
			body = append(body[:groupAt], *small...)
		}
	}
	for r, err := range source {
		if err != nil {
			return body, Key{}, shape{}, fmt.Errorf("archive: log %v label %d: reading LSN %d to flush it: %w", plan.Log, plan.Label, next, err)
		}
		switch {
		case r.LSN != next || r.LSN > plan.Last:
			return body, Key{}, shape{}, bad(next, fmt.Sprintf("the source gave LSN %d", r.LSN))
		case r.Label != plan.Label:
			return body, Key{}, shape{}, bad(next, fmt.Sprintf("the source gave a copy labelled %d", r.Label))
		case len(r.Data) > protocol.MaxRecordBytes:
			return body, Key{}, shape{}, bad(next, fmt.Sprintf("record of %d bytes", len(r.Data)))
		case len(body)+saved-blockAt+protocol.EncodedSize(len(r.Data)) > MaxContentBytes:
			return body, Key{}, shape{}, bad(next, fmt.Sprintf("more than %d bytes in one object", MaxContentBytes))
		}
		if len(t.groups) == 0 || inGroup == groupRecords || len(body)-groupAt >= groupBytes {
			closeGroup()
			groupAt, inGroup = len(body), 0
			t.groups = append(t.groups, group{delta: uint32(r.LSN - plan.First), offset: uint32(len(body) + saved - blockAt), stored: uint32(len(body) - blockAt)})
		}
		body = protocol.AppendRecord(body, r.Data, r.More)
		inGroup++
		next++
	}
	if next != plan.Last+1 {
		return body, Key{}, shape{}, bad(next, "the source ended")
	}
	closeGroup()
	h.stored = uint64(len(body) - blockAt)
	h.content = h.stored + uint64(saved)
	if saved > 0 { // otherwise it is an object of version 1, byte for byte
		h.compression = compression
	}
	t.content, t.stored, t.compression = h.content, h.stored, h.compression
	putHead(body[start:], h)
	copy(t.hash[:], sum.Sum(nil))
	body = appendTail(body, start, t)
	key = Key{Log: plan.Log, Label: plan.Label, First: plan.First, Last: plan.Last, Kind: Partly, Hash: t.hash}
	if plan.CLSN >= plan.Last {
		key.Kind = Committed
	}
	return body, key, shape{h.compression, int64(h.content), headBytes + int64(h.content) + int64(len(t.groups))*entryBytes + tailBytes}, nil
}

// Decode verifies a whole body against its key, every checksum and the hash, and calls visit for each record in order;
// Record.Data aliases body or, of a compressed one, memory that nobody else has. visit may be nil, or return false to end early
// (after everything was verified). Errors: ErrDamaged, ErrTooNew, which a *CodecError is too; they do not name the key, which the caller knows.
func Decode(key Key, body []byte, visit func(Record) bool) error {
	h, err := parseHead(body)
	if err != nil {
		return err
	}
	if h.log != key.Log || h.label != key.Label || h.first != key.First || h.last != key.Last {
		return damage("header", "belongs to another object")
	}
	n, err := tailSize(body, int64(len(body)))
	if err != nil {
		return err
	}
	t, err := parseTail(body[int64(len(body))-n:], h.count())
	if err != nil {
		return err
	}
	if t.hash != key.Hash || t.content != h.content || t.stored != h.stored || t.compression != h.compression {
		return damage("trailer", "belongs to another object")
	}
	if crc(body[:len(body)-tailBytes+32]) != t.fileCRC {
		return damage("object", "checksum")
	}
	block := body[headBytes : headBytes+h.stored]
	if t.compression != NoCompression {
		// It grows with what is really there, so that nobody allocates on a number's word alone.
		if block, err = t.plain(nil, 0, len(t.groups)-1, block); err != nil {
			return err
		}
	}
	sum := newHash(h)
	sum.Write(block)
	if [HashBytes]byte(sum.Sum(nil)[:HashBytes]) != key.Hash {
		return damage("records", "hash")
	}
	// Two passes, so that no record is handed out before all are known to be whole.
	for _, v := range []func(Record) bool{nil, visit} {
		for i := range t.groups {
			end, _ := t.groupEnd(i, h.count())
			more, err := t.checkGroup(i, key, block[t.groups[i].offset:end], v)
			if err != nil {
				return err
			}
			if !more {
				return nil
			}
		}
		if visit == nil {
			break
		}
	}
	return nil
}
