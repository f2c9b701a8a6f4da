package lst

import (
	"fmt"
	"slices"
)

// recOp is one operation found on the walk over the log's end. Records are kept as
// places, not bytes, so that an interval of millions of records stays small.
type recOp struct {
	seq  uint64 // or trim point
	at   pos    // of the payload, or of the batch's body
	n    uint32
	who  int32 // index in recOps.ids, or in recOps.kvs
	code uint8
}

// recOps collects the operations of a walk in their order.
type recOps struct {
	ops  []recOp
	ids  []StreamID
	who  map[StreamID]int32
	kvs  []recKV
	last int32
}

type recKV struct{ key, value []byte }

func (c *recOps) reset() { *c = recOps{who: map[StreamID]int32{}, last: -1} }

func (c *recOps) idOf(id *StreamID) int32 {
	if c.last >= 0 && c.ids[c.last] == *id {
		return c.last
	}
	n, ok := c.who[*id]
	if !ok {
		n = int32(len(c.ids))
		c.ids = append(c.ids, *id)
		c.who[*id] = n
	}
	c.last = n
	return n
}

// batch takes the operations of the batch frame whose body is at position at.
func (c *recOps) batch(body []byte, at pos) error {
	return decodeOps(body, func(op *batchOp) error {
		o := recOp{seq: op.seq, at: at + pos(op.off), n: uint32(op.n), code: op.code}
		switch op.code {
		case opPut, opDelete:
			raw := append([]byte(nil), body[op.off:op.off+op.n+op.vn]...)
			c.kvs = append(c.kvs, recKV{raw[:op.n:op.n], raw[op.n:]})
			o.who = int32(len(c.kvs) - 1)
		default:
			o.who = c.idOf(&op.stream)
		}
		if o.seq > 1<<63 {
			return fmt.Errorf("sequence %d is above 2^63", o.seq)
		}
		if len(c.ops) == cap(c.ops) {
			c.ops = slices.Grow(c.ops, max(1024, len(c.ops))) // append alone would copy millions of them five times
		}
		c.ops = append(c.ops, o)
		return nil
	})
}

// since drops the operations in front of position at and returns how many
// records are left.
func (c *recOps) since(at pos) int {
	i := 0
	for i < len(c.ops) && c.ops[i].at < at {
		i++
	}
	c.ops = c.ops[i:]
	n := 0
	for k := range c.ops {
		if c.ops[k].isRecord() {
			n++
		}
	}
	return n
}

// apply makes the operations visible in an index that holds all it ought to.
func (c *recOps) apply(x *index) {
	known := make([]*stream, len(c.ids))
	for i := range c.ops {
		op := &c.ops[i]
		if op.isKV() {
			c.applyKV(x, op)
			continue
		}
		st := known[op.who]
		if st == nil {
			if st = x.byID.get(&c.ids[op.who]); st == nil && op.code != opDropStream {
				st = x.stream(c.ids[op.who])
			}
		}
		known[op.who] = x.applyTo(st, op)
	}
}

func (c *recOps) applyKV(x *index, op *recOp) {
	kv := &c.kvs[op.who]
	if op.code == opPut {
		x.put(kv.key, kv.value)
	} else {
		x.delete(kv.key)
	}
}

// applyTo applies one operation to its stream, which may be nil, and returns the
// stream that is there afterwards.
func (x *index) applyTo(st *stream, op *recOp) *stream {
	switch op.code {
	case opTrim:
		x.trimTo(st, op.seq)
	case opDropStream:
		if st != nil {
			x.dropStream(st)
		}
		return nil
	default:
		x.add(st, op.seq, slot{op.at, op.n}, op.code == opReplace)
	}
	return st
}

func (o *recOp) isKV() bool { return o.code == opPut || o.code == opDelete }
func (o *recOp) isRecord() bool {
	return o.code == opAppend || o.code == opAppendNext || o.code == opReplace
}
