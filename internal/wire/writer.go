package wire

import (
	"encoding/binary"

	"github.com/btrlog/btrlog/internal/protocol"
)

// Sizes of the fixed bodies.
const (
	appendBody = 40 // without the block
	ackBody    = 48
)

// Writer builds one packet after another. Append and Ack do not allocate while the buffer's capacity suffices.
//
// The packet for another node of the same ensemble is had for the price of hashing 32 bytes: either Readdress, which
// patches the packet in place and serves a sender that makes one system call per node, or Head with Body, which leaves
// the shared body alone and serves a gathering sendmmsg to all nodes at once (ring's SendParts). The second is the one to
// use on the append path: one copy of the bytes, one system call.
type Writer struct {
	buf     []byte
	limit   int
	h       Header
	known   bool // an earlier message fixed h.Incarnation
	hashed  bool // bodyCRC is of the body as it stands
	bodyCRC uint32
	head    [HeaderBytes]byte // scratch: the checksum code lets what it is given escape
}

// Reset starts a packet of at most limit bytes in buf, whose capacity it uses and which it may outgrow. The incarnation of
// the header is that of the messages.
func (w *Writer) Reset(buf []byte, limit int, cluster ClusterID, replyTo uint16) {
	*w = Writer{limit: limit, h: Header{Cluster: cluster, ReplyTo: replyTo}}
	w.buf = append(buf[:0], w.head[:]...)
}

// Len returns the size of the packet so far, in bytes.
func (w *Writer) Len() int { return len(w.buf) }

// Empty reports whether no message was added since Reset.
func (w *Writer) Empty() bool { return len(w.buf) <= HeaderBytes }

// admit checks that n more bytes of a message of incarnation inc belong into this packet.
func (w *Writer) admit(n int, inc protocol.Incarnation) error {
	if len(w.buf)+n > w.limit {
		return ErrTooLarge
	}
	if w.known && w.h.Incarnation != inc {
		return ErrMixed
	}
	w.h.Incarnation, w.known, w.hashed = inc, true, false
	return nil
}

// Append adds an Append. It fails with ErrTooLarge, ErrMixed or a *MessageError, and then the packet is as it was.
func (w *Writer) Append(a *protocol.Append) error {
	if err := checkAppend(a); err != nil {
		return err
	}
	if err := w.admit(MessageHeaderBytes+appendBody+len(a.Block), a.Incarnation); err != nil {
		return err
	}
	w.buf = encodeAppend(w.buf, a)
	return nil
}

// Ack adds an Ack. A node sends all that one commit covered in as few packets as fit. Errors are those of Append.
func (w *Writer) Ack(a *protocol.Ack) error {
	if err := checkAck(a); err != nil {
		return err
	}
	if err := w.admit(AckBytes, a.Incarnation); err != nil {
		return err
	}
	w.buf = encodeAck(w.buf, a)
	return nil
}

// Message adds a message of any kind. Errors are those of Append.
func (w *Writer) Message(m protocol.Message) error {
	switch m := m.(type) {
	case *protocol.Append:
		return w.Append(m)
	case *protocol.Ack:
		return w.Ack(m)
	}
	n := len(w.buf)
	buf, err := encodeMessage(w.buf, m)
	if err != nil {
		return err
	}
	if len(buf) > w.limit {
		w.buf = buf[:n] // keep what it grew to: the next message will want it
		return ErrTooLarge
	}
	if inc, has := incarnationOf(m); has {
		if err := w.admit(0, inc); err != nil {
			return err
		}
	}
	w.buf, w.hashed = buf, false
	return nil
}

// Finish completes the packet and returns it. The slice is the Writer's until Reset is given another buffer.
func (w *Writer) Finish() []byte { return w.Readdress(w.h.Incarnation) }

// Readdress completes the packet for the node of incarnation inc, in place, and returns it.
func (w *Writer) Readdress(inc protocol.Incarnation) []byte {
	w.fill(inc)
	copy(w.buf, w.head[:])
	return w.buf
}

// Head returns the packet header for the node of incarnation inc. A datagram of Head and Body is the packet.
func (w *Writer) Head(inc protocol.Incarnation) [HeaderBytes]byte {
	w.fill(inc)
	return w.head
}

func (w *Writer) fill(inc protocol.Incarnation) {
	if !w.hashed {
		w.bodyCRC, w.hashed = BodyCRC(w.buf[HeaderBytes:]), true
	}
	h := w.h
	h.Incarnation = inc
	PutHeader(&w.head, h, w.bodyCRC)
}

// Body returns what follows the header. The slice is the Writer's until Reset is given another buffer.
func (w *Writer) Body() []byte { return w.buf[HeaderBytes:] }

func incarnationOf(m protocol.Message) (inc protocol.Incarnation, has bool) {
	switch m := m.(type) {
	case *protocol.OpenReply:
		return m.Incarnation, true
	case *protocol.Fetch:
		return m.Incarnation, true
	case *protocol.FetchReply:
		return m.Incarnation, true
	case *protocol.Activate:
		return m.Incarnation, true
	case *protocol.Watermark:
		return m.Incarnation, true
	case *protocol.ReadReply:
		return m.Incarnation, true
	case *protocol.Drop:
		return m.Incarnation, true
	}
	return 0, false
}

// appendHead appends a message header whose body length is still to be set.
func appendHead(b []byte, k Kind, sub, status byte, count uint32, log protocol.LogID, epoch protocol.Epoch) []byte {
	b = append(b, byte(k), sub, status, 0)
	b = binary.LittleEndian.AppendUint32(b, 0) // fragment index and count: whole
	b = binary.LittleEndian.AppendUint32(b, 0) // body length
	b = binary.LittleEndian.AppendUint32(b, count)
	b = binary.LittleEndian.AppendUint64(b, uint64(log))
	return binary.LittleEndian.AppendUint64(b, uint64(epoch))
}

// setBody fills in the body length of the message whose header starts at n.
func setBody(b []byte, n int) []byte {
	binary.LittleEndian.PutUint32(b[n+8:], uint32(len(b)-n-MessageHeaderBytes))
	return b
}

func checkAppend(a *protocol.Append) error {
	switch {
	case a.Count == 0 || a.Count > protocol.MaxBatchRecords:
		return badField(KindAppend, "count", "%d records, want 1 to %d", a.Count, protocol.MaxBatchRecords)
	case a.First == 0 || a.First > protocol.MaxLSN-protocol.LSN(a.Count)+1:
		return badField(KindAppend, "first", "LSN %d with %d records is outside 1 to %d", a.First, a.Count, protocol.MaxLSN)
	case a.SegStart == 0 || a.SegStart > a.First:
		return badField(KindAppend, "segment start", "LSN %d for a run that begins at %d", a.SegStart, a.First)
	case a.SegOff > protocol.MaxSegmentBytes+protocol.MaxBlockBytes:
		return badField(KindAppend, "segment offset", "%d bytes, a segment has at most %d", a.SegOff, protocol.MaxSegmentBytes)
	case a.Kind > protocol.AppendCopy:
		return badField(KindAppend, "append kind", "%d is unknown", uint8(a.Kind))
	case len(a.Block) > protocol.MaxBlockBytes:
		return badField(KindAppend, "block", "%d bytes, at most %d", len(a.Block), protocol.MaxBlockBytes)
	}
	return nil
}

func encodeAppend(b []byte, a *protocol.Append) []byte {
	n := len(b)
	b = appendHead(b, KindAppend, byte(a.Kind), 0, a.Count, a.Log, a.Epoch)
	b = binary.LittleEndian.AppendUint64(b, uint64(a.Label))
	b = binary.LittleEndian.AppendUint64(b, uint64(a.First))
	b = binary.LittleEndian.AppendUint64(b, uint64(a.SegStart))
	b = binary.LittleEndian.AppendUint64(b, a.SegOff)
	b = binary.LittleEndian.AppendUint64(b, uint64(a.CLSN))
	b = append(b, a.Block...)
	return setBody(b, n)
}

func checkAck(a *protocol.Ack) error {
	if a.Kind > protocol.AckDrop {
		return badField(KindAck, "ack kind", "%d is unknown", uint8(a.Kind))
	}
	if a.Append > protocol.AppendCopy {
		return badField(KindAck, "append kind", "%d is unknown", uint8(a.Append))
	}
	return nil
}

func encodeAck(b []byte, a *protocol.Ack) []byte {
	n := len(b)
	b = appendHead(b, KindAck, byte(a.Kind)<<4|byte(a.Append), byte(a.Status), 0, a.Log, a.Epoch)
	b = binary.LittleEndian.AppendUint64(b, uint64(a.First))
	b = binary.LittleEndian.AppendUint64(b, uint64(a.Last))
	b = binary.LittleEndian.AppendUint64(b, uint64(a.Label))
	b = binary.LittleEndian.AppendUint64(b, uint64(a.Promised))
	b = binary.LittleEndian.AppendUint64(b, uint64(a.Activated))
	b = binary.LittleEndian.AppendUint64(b, uint64(a.CLSN))
	return setBody(b, n)
}
