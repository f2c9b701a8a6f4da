package lst

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Operation codes inside a batch frame.
const (
	opAppend     = 1 // stream[16] seq len crc[4] payload
	opAppendNext = 2 // len crc[4] payload: same stream, next sequence
	opPut        = 3 // klen vlen key value
	opDelete     = 4 // klen key
	opTrim       = 5 // stream[16] before
	opDropStream = 6 // stream[16]
	opReplace    = 7 // as opAppend, replaces a record that is present
)

type batchOp struct {
	code   uint8
	stream StreamID
	seq    uint64  // or trim point
	off    int     // of payload or key in the body
	n      int     // payload or key length in bytes
	vn     int     // value length in bytes
	crc    uint32  // of the payload, not bound yet
	st     *stream // of a record, found by check; before that it may be an older batch's
}

// recordHeadMost is the most that stands in front of a payload.
const recordHeadMost = 1 + len(StreamID{}) + 2*binary.MaxVarintLen64 + recordCRCBytes

func (o *batchOp) isRecord() bool { return o.code <= opAppendNext || o.code == opReplace }

// Batch collects operations that take effect together: after any crash all of
// them are there or none is. The zero value is ready for use; Reset keeps its
// memory. A Batch must not be touched from Commit or Prepare until Commit or
// Complete has returned, and is not safe for concurrent use.
type Batch struct {
	frame []byte // room for the frame's head, and its body, whose checksums are bound when it is written
	ops   []batchOp
	adds  int
	err   error
	done  chan commitResult
	force bool
	loc   Location

	summed   int // the checksums of the operations before it are known
	unsummed int // bytes of the payloads behind that

	reserve bool // see UseReserve
}

type commitResult struct {
	err  error
	lead bool
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	b.frame, b.ops, b.adds, b.err, b.reserve = b.frame[:0], b.ops[:0], 0, nil, false
	b.summed, b.unsummed = 0, 0
}

// UseReserve lets the batch's records into the store's reserve when there is no
// other space (Options.ReserveBytes), until the next Reset.
func (b *Batch) UseReserve() { b.reserve = true }

// Len is the number of operations in the batch.
func (b *Batch) Len() int { return len(b.ops) }

// Bytes is the size in bytes that the batch takes in the store.
func (b *Batch) Bytes() int { return max(len(b.frame), frameHeadBytes) }

// body is the frame body.
func (b *Batch) body() []byte { return b.frame[frameHeadBytes:] }

// detach lets go of the batches of a write that is complete and waits for an earlier one: their owner may use them again, and
// what becomes visible later is what was written.
func (p *pending) detach() {
	for i := range p.batches {
		b := p.batches[i].b
		p.batches[i].b = &Batch{frame: slices.Clone(b.frame), ops: slices.Clone(b.ops)}
	}
}

// open returns the frame so far with room for n more bytes, to be appended to.
func (b *Batch) open(n int) []byte {
	f := b.frame
	if len(f) == 0 {
		n += frameHeadBytes
	}
	if cap(f)-len(f) < n {
		f = append(make([]byte, 0, max(2*cap(f), len(f)+n, 256)), f...)
	}
	if len(f) == 0 {
		f = f[:frameHeadBytes]
	}
	return f
}

// Append adds the record seq of stream; its payload is the concatenation of
// parts, copied before return. If the record is present when the batch is
// committed the whole batch is refused with ErrExists; if it is below the trim
// point, with ErrTrimmed. Sequences may start anywhere, come in any order and
// leave holes. The largest sequence is 2^63-1.
func (b *Batch) Append(stream StreamID, seq uint64, parts ...[]byte) {
	b.record(opAppend, stream, seq, parts)
}

// Replace is Append that takes the place of a record that is present, for
// example one whose bytes are damaged on disk.
func (b *Batch) Replace(stream StreamID, seq uint64, parts ...[]byte) {
	b.record(opReplace, stream, seq, parts)
}

func (b *Batch) record(code uint8, stream StreamID, seq uint64, parts [][]byte) {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if seq > 1<<63-1 {
		b.fail(fmt.Errorf("%w: sequence %d is above 2^63-1", ErrInvalid, seq))
		return
	}
	if n > maxRecordLimit {
		b.fail(fmt.Errorf("%w: record %d of stream %v has %d bytes", ErrTooLarge, seq, stream, n))
		return
	}
	f := b.open(recordHeadMost + n)
	head := f[len(f) : len(f)+recordHeadMost]
	k, h := len(b.ops), 0
	if code == opAppend && k > 0 && b.ops[k-1].code <= opAppendNext && b.ops[k-1].seq+1 == seq && b.ops[k-1].stream == stream {
		code = opAppendNext
		head[0], h = code, 1
	} else {
		head[0] = code
		*(*StreamID)(head[1:]) = stream
		h = 1 + len(stream)
		h += binary.PutUvarint(head[h:], seq)
	}
	h += binary.PutUvarint(head[h:], uint64(n))
	off := len(f) + h + recordCRCBytes // the checksum is filled in by bind
	f = f[:off]
	for _, p := range parts {
		f = append(f, p...)
	}
	b.frame = f
	// In place: what a commit sets in an operation need not be cleared here.
	if k == cap(b.ops) {
		b.ops = append(b.ops, batchOp{})
	}
	b.ops = b.ops[:k+1]
	op := &b.ops[k]
	op.code, op.stream, op.seq, op.off, op.n, op.vn = code, stream, seq, off-frameHeadBytes, n, 0
	b.adds++
	if b.unsummed += n; b.unsummed >= sumAtOnce {
		b.sum()
	}
}

// sumAtOnce is how many bytes of payloads are left to be summed together: the
// processor's cache still has them.
const sumAtOnce = 64 << 10

// sum computes the checksums of the payloads added since the last call. Those of
// records of one length are computed three at a time: one waits for itself, three
// take hardly longer.
func (b *Batch) sum() {
	body, ops := b.frame[min(frameHeadBytes, len(b.frame)):], b.ops[b.summed:]
	b.summed, b.unsummed = len(b.ops), 0
	for len(ops) > 0 {
		if len(ops) >= 3 && ops[0].isRecord() && ops[1].isRecord() && ops[2].isRecord() && ops[0].n == ops[1].n && ops[0].n == ops[2].n {
			n := ops[0].n
			ops[0].crc, ops[1].crc, ops[2].crc = checksum3(body[ops[0].off:][:n], body[ops[1].off:][:n], body[ops[2].off:][:n])
			ops = ops[3:]
			continue
		}
		if op := &ops[0]; op.isRecord() {
			op.crc = checksum(body[op.off:][:op.n])
		}
		ops = ops[1:]
	}
}

// Put sets key to value, both copied. Keys are 1 to 1024 bytes, values at most
// 32 KiB: they live in the index, in memory and in every base snapshot.
func (b *Batch) Put(key, value []byte) {
	if len(key) == 0 || len(key) > maxKeyBytes || len(value) > maxValueBytes {
		b.fail(fmt.Errorf("%w: key of %d bytes with a value of %d bytes; keys have 1 to %d bytes, values at most %d, larger ones belong into a stream",
			ErrTooLarge, len(key), len(value), maxKeyBytes, maxValueBytes))
		return
	}
	f := append(b.open(0), opPut)
	f = binary.AppendUvarint(f, uint64(len(key)))
	f = binary.AppendUvarint(f, uint64(len(value)))
	off := len(f)
	b.frame = append(append(f, key...), value...)
	b.ops = append(b.ops, batchOp{code: opPut, off: off - frameHeadBytes, n: len(key), vn: len(value)})
}

// Delete removes key; a key that is absent stays absent.
func (b *Batch) Delete(key []byte) {
	if len(key) == 0 || len(key) > maxKeyBytes {
		b.fail(fmt.Errorf("%w: key of %d bytes", ErrTooLarge, len(key)))
		return
	}
	f := append(b.open(0), opDelete)
	f = binary.AppendUvarint(f, uint64(len(key)))
	off := len(f)
	b.frame = append(f, key...)
	b.ops = append(b.ops, batchOp{code: opDelete, off: off - frameHeadBytes, n: len(key)})
}

// Trim drops the records of stream below the sequence before. The trim point
// never goes back. An emptied stream keeps its EOF; trimming above EOF raises it.
func (b *Batch) Trim(stream StreamID, before uint64) {
	if before > 1<<63 {
		b.fail(fmt.Errorf("%w: trim point %d is above 2^63", ErrInvalid, before))
		return
	}
	f := append(append(b.open(0), opTrim), stream[:]...)
	b.frame = binary.AppendUvarint(f, before)
	b.ops = append(b.ops, batchOp{code: opTrim, stream: stream, seq: before})
}

// DeleteStream forgets stream wholly: its records, trim point and EOF.
func (b *Batch) DeleteStream(stream StreamID) {
	b.frame = append(append(b.open(0), opDropStream), stream[:]...)
	b.ops = append(b.ops, batchOp{code: opDropStream, stream: stream})
}

func (b *Batch) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// decodeOps parses a batch frame's body, as recovery finds it, and calls fn for
// each operation. It never reads beyond body, whatever body holds.
func decodeOps(body []byte, fn func(op *batchOp) error) error {
	r := reader{b: body}
	var op batchOp
	for r.off < len(body) {
		last := op
		op = batchOp{code: r.byte()}
		switch op.code {
		case opAppend, opReplace:
			r.copy(op.stream[:])
			op.seq = r.uvarint()
			op.n = r.length(maxRecordLimit)
			r.skip(recordCRCBytes)
			op.off = r.off
			r.skip(op.n)
		case opAppendNext:
			if last.code != opAppend && last.code != opAppendNext {
				return fmt.Errorf("operation %d has no record before it", op.code)
			}
			op.stream, op.seq = last.stream, last.seq+1
			op.n = r.length(maxRecordLimit)
			r.skip(recordCRCBytes)
			op.off = r.off
			r.skip(op.n)
		case opPut:
			op.n, op.vn = r.length(maxKeyBytes), r.length(maxValueBytes)
			op.off = r.off
			r.skip(op.n + op.vn)
		case opDelete:
			op.n = r.length(maxKeyBytes)
			op.off = r.off
			r.skip(op.n)
		case opTrim:
			r.copy(op.stream[:])
			op.seq = r.uvarint()
		case opDropStream:
			r.copy(op.stream[:])
		default:
			return fmt.Errorf("unknown operation %d in a batch", op.code)
		}
		if r.bad {
			return fmt.Errorf("batch ends inside operation %d", op.code)
		}
		if err := fn(&op); err != nil {
			return err
		}
	}
	return nil
}

// reader parses bounded bytes; after the first violation bad stays set and all
// results are zero.
type reader struct {
	b   []byte
	off int
	bad bool
}

func (r *reader) left() int { return len(r.b) - r.off }

func (r *reader) byte() byte {
	if r.bad || r.left() < 1 {
		r.bad = true
		return 0
	}
	r.off++
	return r.b[r.off-1]
}

func (r *reader) uvarint() uint64 {
	if r.bad {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.off:])
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.off += n
	return v
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// length reads a count that is followed by at least as many bytes as it says,
// and is at most limit: a damaged length never leads to an allocation.
func (r *reader) length(limit int) int {
	v := r.uvarint()
	if v > uint64(limit) || v > uint64(r.left()) {
		r.bad = true
		return 0
	}
	return int(v)
}

func (r *reader) skip(n int) {
	if r.bad || n > r.left() {
		r.bad = true
		return
	}
	r.off += n
}

func (r *reader) copy(dst []byte) {
	if r.bad || len(dst) > r.left() {
		r.bad = true
		return
	}
	r.off += copy(dst, r.b[r.off:])
}

func (r *reader) bytes(n int) []byte {
	if r.bad || n > r.left() {
		r.bad = true
		return nil
	}
	r.off += n
	return r.b[r.off-n : r.off : r.off]
}

func appendVarint(b []byte, v int64) []byte {
	return binary.AppendUvarint(b, uint64(v)<<1^uint64(v>>63))
}
