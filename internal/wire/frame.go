package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/btrlog/btrlog/internal/protocol"
)

// FrameMediaType is the content type of HTTP bodies that hold frames.
const FrameMediaType = "application/vnd.btrlog.frame"

// frameStep is how much a reader trusts a length before bytes arrive: memory grows with what was received, not with what
// was announced.
const frameStep = 64 << 10

// AppendFrame appends a frame with one message: the packet's length (u32) and the packet. It returns ErrTooLarge above
// MaxFrameBytes. dst may be nil; what it holds stays in front of the frame.
func AppendFrame(dst []byte, cluster ClusterID, replyTo uint16, m protocol.Message) ([]byte, error) {
	n := len(dst)
	dst = slices.Grow(dst, 4+HeaderBytes+sizeHint(m))
	w := Writer{}
	w.Reset(dst[n+4:n+4], MaxFrameBytes, cluster, replyTo) // the packet grows where it belongs, behind its length
	if err := w.Message(m); err != nil {
		return nil, err
	}
	packet := w.Finish()
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(packet)))
	return append(dst, packet...), nil // a copy onto itself, unless the hint was too small
}

// sizeHint returns about the size of m in a packet, and at least it for messages with records.
func sizeHint(m protocol.Message) int {
	n := MessageHeaderBytes + 256
	var rs []protocol.Record
	switch m := m.(type) {
	case *protocol.Append:
		return n + len(m.Block)
	case *protocol.FetchReply:
		rs = m.Records
	case *protocol.ReadReply:
		rs = m.Records
	}
	for i := range rs {
		n += protocol.EncodedSize(len(rs[i].Data))
		if i == 0 || !follows(&rs[i-1], &rs[i]) {
			n += RunBytes
		}
	}
	return n
}

// WriteMessage writes one frame in one Write.
func WriteMessage(w io.Writer, cluster ClusterID, replyTo uint16, m protocol.Message) error {
	frame, err := AppendFrame(nil, cluster, replyTo, m)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

// ReadMessage reads one frame of at most limit bytes (MaxFrameBytes when limit is zero or above it). The message owns its
// memory. At the end of the stream it returns io.EOF, inside a frame io.ErrUnexpectedEOF; after any other error the stream cannot be continued,
// except that a *VersionError may be answered with WriteNotice (see Answerable).
func ReadMessage(r io.Reader, cluster ClusterID, limit int) (Header, protocol.Message, error) {
	if limit <= 0 || limit > MaxFrameBytes {
		limit = MaxFrameBytes
	}
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return Header{}, nil, err
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n < HeaderBytes || uint64(n) > uint64(limit) {
		return Header{}, nil, fmt.Errorf("%w: frame of %d bytes, want %d to %d", ErrNotOurs, n, HeaderBytes, limit)
	}
	packet := make([]byte, 0, min(int(n), frameStep))
	for len(packet) < int(n) {
		if len(packet) == cap(packet) {
			packet = append(make([]byte, 0, min(int(n), 2*cap(packet))), packet...)
		}
		got, err := io.ReadFull(r, packet[len(packet):cap(packet)])
		packet = packet[:len(packet)+got]
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return Header{}, nil, err
		}
	}
	rd := Reader{}
	if err := rd.Reset(packet, cluster); err != nil {
		return Header{}, nil, err
	}
	rd.owned = true
	if !rd.Next() {
		if rd.Err() == nil {
			return Header{}, nil, fmt.Errorf("%w: frame without a message", ErrNotOurs)
		}
		return Header{}, nil, rd.Err()
	}
	m, err := rd.Message()
	if err != nil {
		return Header{}, nil, err
	}
	if len(rd.rest) != 0 {
		return Header{}, nil, badField(rd.Kind(), "frame", "%d bytes behind its one message", len(rd.rest))
	}
	return rd.h, m, nil
}

// WriteNotice writes a version notice as a frame.
func WriteNotice(w io.Writer, cluster ClusterID) error {
	frame := AppendNotice(binary.LittleEndian.AppendUint32(nil, HeaderBytes), cluster)
	_, err := w.Write(frame)
	return err
}
