package wire

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/btrlog/btrlog/internal/protocol"
)

// Reader iterates over the messages of a packet:
//
//	if err := r.Reset(data, cluster); err != nil { count it; if wire.Answerable(err) { send AppendNotice } }
//	for r.Next() {
//		switch r.Kind() {
//		case wire.KindAppend:
//			err = r.Append(&a)      // nothing is allocated; a.Block aliases data
//		default:
//			m, err = r.Message()    // owns its memory
//		}
//	}
//	err := r.Err()
//
// Reset, Next, Append and Ack allocate nothing unless they fail.
type Reader struct {
	h     Header
	rest  []byte // from the header of the next message on
	msg   []byte // header and body of the current message
	err   error
	owned bool // the packet's memory may be kept by the messages
}

// Reset begins with a packet, which it borrows until the next Reset. It verifies everything that concerns the packet as
// a whole; the errors are ErrNotOurs, ErrCluster, *VersionError, ErrAuthenticated, ErrChecksum and ErrNotice.
func (r *Reader) Reset(packet []byte, cluster ClusterID) error {
	*r = Reader{}
	if len(packet) < HeaderBytes || binary.LittleEndian.Uint32(packet) != magic {
		return ErrNotOurs
	}
	// The cluster comes before the version: a stranger of whatever version is not answered.
	if ClusterID(binary.LittleEndian.Uint64(packet[8:])) != cluster {
		return ErrCluster
	}
	version, flags := packet[4], packet[5]
	if version < OldestVersion || version > Version {
		return &VersionError{Version: version, Notice: flags&flagNotice != 0}
	}
	if flags&flagAuthenticated != 0 {
		return ErrAuthenticated
	}
	crc := crc32.Update(BodyCRC(packet[HeaderBytes:]), castagnoli, packet[:28])
	if crc != binary.LittleEndian.Uint32(packet[28:]) {
		return ErrChecksum
	}
	if flags&^flagsKnown != 0 || binary.LittleEndian.Uint32(packet[24:]) != HeaderBytes {
		return ErrNotOurs
	}
	if flags&flagNotice != 0 {
		return ErrNotice
	}
	r.h = Header{
		Cluster:     cluster,
		Incarnation: protocol.Incarnation(binary.LittleEndian.Uint64(packet[16:])),
		ReplyTo:     binary.LittleEndian.Uint16(packet[6:]),
	}
	r.rest = packet[HeaderBytes:]
	return nil
}

// Header returns what the packet says of itself.
func (r *Reader) Header() Header { return r.h }

// Next moves to the next message. It returns false at the end of the packet and at a message whose extent cannot be
// trusted; Err tells which.
func (r *Reader) Next() bool {
	r.msg = nil
	if r.err != nil || len(r.rest) == 0 {
		return false
	}
	if len(r.rest) < MessageHeaderBytes {
		r.err = badField(0, "header", "cut after %d bytes", len(r.rest))
		return false
	}
	k := Kind(r.rest[0])
	if k == 0 || k >= kindEnd {
		r.err = badField(k, "kind", "unknown in version %d", Version)
		return false
	}
	if r.rest[3] != 0 || binary.LittleEndian.Uint32(r.rest[4:]) != 0 {
		r.err = badField(k, "fragment", "flags %#x, fragment %d of %d; only whole messages are read", r.rest[3],
			binary.LittleEndian.Uint16(r.rest[4:]), binary.LittleEndian.Uint16(r.rest[6:]))
		return false
	}
	n := binary.LittleEndian.Uint32(r.rest[8:])
	if uint64(n) > uint64(len(r.rest)-MessageHeaderBytes) {
		r.err = badField(k, "body length", "%d bytes with %d left in the packet", n, len(r.rest)-MessageHeaderBytes)
		return false
	}
	end := MessageHeaderBytes + int(n)
	r.msg, r.rest = r.rest[:end:end], r.rest[end:]
	return true
}

// Err returns why Next stopped before the end of the packet, or nil. Messages returned before it are whole.
func (r *Reader) Err() error { return r.err }

// Kind returns the kind of the current message.
func (r *Reader) Kind() Kind { return Kind(r.msg[0]) }

// Log returns the log of the current message, so that a packet can be routed without decoding it.
func (r *Reader) Log() protocol.LogID {
	return protocol.LogID(binary.LittleEndian.Uint64(r.msg[16:]))
}

// Epoch returns the epoch of the current message; zero for Read and ReadReply.
func (r *Reader) Epoch() protocol.Epoch {
	return protocol.Epoch(binary.LittleEndian.Uint64(r.msg[24:]))
}

func (r *Reader) count() uint32 { return binary.LittleEndian.Uint32(r.msg[12:]) }
func (r *Reader) u64(off int) uint64 {
	return binary.LittleEndian.Uint64(r.msg[MessageHeaderBytes+off:])
}

// Append decodes the current message into a. Block aliases the packet. The records inside the block are not checked:
// protocol.CheckBlock is the receiver's step.
func (r *Reader) Append(a *protocol.Append) error {
	switch {
	case r.Kind() != KindAppend:
		return badField(r.Kind(), "kind", "read as an append")
	case len(r.msg) < MessageHeaderBytes+appendBody:
		return badField(KindAppend, "body length", "%d bytes, at least %d", len(r.msg)-MessageHeaderBytes, appendBody)
	case r.msg[2] != 0:
		return badField(KindAppend, "status", "%d in a request", r.msg[2])
	}
	*a = protocol.Append{
		Log: r.Log(), Epoch: r.Epoch(), Kind: protocol.AppendKind(r.msg[1]), Incarnation: r.h.Incarnation, Count: r.count(),
		Label: protocol.Epoch(r.u64(0)), First: protocol.LSN(r.u64(8)), SegStart: protocol.LSN(r.u64(16)), SegOff: r.u64(24),
		CLSN: protocol.LSN(r.u64(32)), Block: r.msg[MessageHeaderBytes+appendBody:],
	}
	return checkAppend(a)
}

// Ack decodes the current message into a.
func (r *Reader) Ack(a *protocol.Ack) error {
	switch {
	case r.Kind() != KindAck:
		return badField(r.Kind(), "kind", "read as an ack")
	case len(r.msg) != MessageHeaderBytes+ackBody:
		return badField(KindAck, "body length", "%d bytes, want %d", len(r.msg)-MessageHeaderBytes, ackBody)
	case r.count() != 0:
		return badField(KindAck, "count", "%d, must be zero", r.count())
	}
	*a = protocol.Ack{
		Log: r.Log(), Epoch: r.Epoch(), Incarnation: r.h.Incarnation, Kind: protocol.AckKind(r.msg[1] >> 4),
		Append: protocol.AppendKind(r.msg[1] & 15), Status: protocol.Status(r.msg[2]),
		First: protocol.LSN(r.u64(0)), Last: protocol.LSN(r.u64(8)), Label: protocol.Epoch(r.u64(16)),
		Promised: protocol.Epoch(r.u64(24)), Activated: protocol.Epoch(r.u64(32)), CLSN: protocol.LSN(r.u64(40)),
	}
	return checkAck(a)
}

// Watermark decodes the current message into m.
func (r *Reader) Watermark(m *protocol.Watermark) error {
	if r.Kind() != KindWatermark {
		return badField(r.Kind(), "kind", "read as a watermark")
	}
	d := decoder{kind: KindWatermark, body: r.msg[MessageHeaderBytes:]}
	d.watermark(r, m)
	if d.err == nil && len(d.body) != 0 {
		d.fail("body length", "%d bytes behind the last field", len(d.body))
	}
	return d.err
}

// Message decodes the current message, whatever its kind. The result owns its memory.
func (r *Reader) Message() (protocol.Message, error) {
	switch r.Kind() {
	case KindAppend:
		a := new(protocol.Append)
		if err := r.Append(a); err != nil {
			return nil, err
		}
		if !r.owned {
			a.Block = append([]byte(nil), a.Block...)
		}
		return a, nil
	case KindAck:
		a := new(protocol.Ack)
		if err := r.Ack(a); err != nil {
			return nil, err
		}
		return a, nil
	}
	d := decoder{kind: r.Kind(), body: r.msg[MessageHeaderBytes:], owned: r.owned}
	m := d.message(r)
	if d.err == nil && len(d.body) != 0 {
		d.fail("body length", "%d bytes behind the last field", len(d.body))
	}
	if d.err != nil {
		return nil, d.err
	}
	return m, nil
}
