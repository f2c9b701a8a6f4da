// Package wire gives the messages of package protocol their bytes. docs/FORMAT-WIRE.md draws them.
//
// A packet is one header and one or more messages, all of them to or from one node. It is a UDP datagram as it stands;
// on a TCP connection or in an HTTP body the identical packet follows its length (frame.go), which is how a record that
// is larger than a datagram travels. Fragments have fields but are not sent: reassembly would need memory per sender and
// a timer on the hot path, and TCP has both already.
//
// Invariants:
//
//	W1  Every length and count is compared with its limit and with the bytes that are there before memory is taken for it.
//	W2  The first 16 bytes of a packet mean the same in every version, so that any two versions can tell each other apart.
//	W3  A packet that is authenticated, of another cluster, damaged or a notice is never answered (Answerable).
//	W4  The incarnation stands once, in the packet header, which is hashed last: everything behind the header is the same
//	    for all nodes of an ensemble and is encoded and hashed once.
//
// Concurrency: a Writer or Reader belongs to one goroutine at a time; the functions are pure.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/btrlog/btrlog/internal/protocol"
)

// ClusterID is the random number drawn when a cluster is made. Nodes and clients of different clusters ignore each other.
type ClusterID uint64

func (c ClusterID) String() string { return fmt.Sprintf("%016x", uint64(c)) }

const (
	// Version is the version of the packets that this package writes; OldestVersion is the oldest that it reads.
	Version       = 1
	OldestVersion = 1

	// HeaderBytes is the size of a packet header, MessageHeaderBytes that of the header of each message in it.
	HeaderBytes        = 32
	MessageHeaderBytes = 32

	// AuthBytes is what an authenticated packet will carry beyond a plain one: session id, packet counter and key
	// generation behind the header (16 bytes, in clear) and a tag at the end (16 bytes). DatagramLimit leaves room for it
	// already, so that switching authentication on changes no limit.
	AuthBytes = 32

	// AppendOverhead is what a packet with one Append takes beyond its record block; AckBytes is one Ack in a packet.
	AppendOverhead = HeaderBytes + MessageHeaderBytes + appendBody
	AckBytes       = MessageHeaderBytes + ackBody

	// MaxDatagramBytes is the largest payload of a UDP datagram (over IPv4; IPv6 would allow 20 more).
	MaxDatagramBytes = 65507

	// MaxFrameBytes bounds a packet on the TCP path: a FetchReply that stopped after the record that reached
	// MaxReplyBytes, and all lists of a message at their limits.
	MaxFrameBytes = 32 << 20
	// MaxReplyBytes is the most that a MaxBytes of Fetch or Read may ask for, counted in protocol.EncodedSize.
	MaxReplyBytes = protocol.MaxBlockBytes
	// MaxReplyRecords bounds the records of one FetchReply or ReadReply.
	MaxReplyRecords = protocol.MaxWindow
)

const magic = 0x4c525442 // "BTRL" in the byte order of the wire

// Flags of a packet.
const (
	flagAuthenticated = 1 << 0 // sealed with AES-GCM; not in use yet, so refused
	flagNotice        = 1 << 1 // a version notice: no messages, never answered
	flagsKnown        = flagAuthenticated | flagNotice
)

// Kind tells the messages apart on the wire. Numbers are never reused.
type Kind uint8

const (
	KindOpen Kind = 1 + iota
	KindOpenReply
	KindAppend
	KindAck
	KindFetch
	KindFetchReply
	KindActivate
	KindWatermark
	KindRead
	KindReadReply
	KindDrop
	kindEnd
)

var kindNames = [kindEnd]string{"none", "open", "open-reply", "append", "ack", "fetch", "fetch-reply", "activate", "watermark", "read", "read-reply", "drop"}

func (k Kind) String() string {
	if k < kindEnd {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// KindOf returns the kind under which m travels.
func KindOf(m protocol.Message) Kind {
	switch m.(type) {
	case *protocol.Open:
		return KindOpen
	case *protocol.OpenReply:
		return KindOpenReply
	case *protocol.Append:
		return KindAppend
	case *protocol.Ack:
		return KindAck
	case *protocol.Fetch:
		return KindFetch
	case *protocol.FetchReply:
		return KindFetchReply
	case *protocol.Activate:
		return KindActivate
	case *protocol.Watermark:
		return KindWatermark
	case *protocol.Read:
		return KindRead
	case *protocol.ReadReply:
		return KindReadReply
	case *protocol.Drop:
		return KindDrop
	}
	return 0
}

// Header is what a packet says of itself.
type Header struct {
	Cluster ClusterID
	// Incarnation is the addressed node's in requests and the answering node's in replies; zero when no message of the
	// packet has one (Open, Read).
	Incarnation protocol.Incarnation
	// ReplyTo is a UDP port at the address that the packet came from: the shard that wants what is sent next about the
	// logs of this packet. Zero means the well-known port of a node and the source port of a client. It is never an
	// address, so a forged packet cannot turn a node's answers against a third host.
	ReplyTo uint16
}

// Reasons to drop a packet. Count them; only *VersionError may be answered, and only when Answerable says so.
var (
	// ErrNotOurs: too short, or no packet of this protocol.
	ErrNotOurs = errors.New("wire: not a packet of this protocol")
	// ErrCluster: the packet belongs to another cluster.
	ErrCluster = errors.New("wire: packet of another cluster")
	// ErrAuthenticated: the packet is sealed and this version holds no keys.
	ErrAuthenticated = errors.New("wire: authenticated packet, and no keys are configured")
	// ErrChecksum: the packet was damaged on its way.
	ErrChecksum = errors.New("wire: packet checksum does not match")
	// ErrNotice: a version notice of a peer that speaks this version; nothing to do.
	ErrNotice = errors.New("wire: version notice")
)

// Errors of a Writer.
var (
	// ErrTooLarge: the message does not fit the packet. Start another one, or send it over TCP when it is alone.
	ErrTooLarge = errors.New("wire: message does not fit the packet")
	// ErrMixed: the message names another incarnation than those before it in the packet.
	ErrMixed = errors.New("wire: messages of two incarnations in one packet")
)

// VersionError reports a packet whose version this package does not read.
type VersionError struct {
	Version uint8 // of the packet
	Notice  bool  // the packet is a notice: the peer refused ours
}

// Newer reports whether the peer is newer than we are: then it is we who must be upgraded.
func (e *VersionError) Newer() bool { return e.Version > Version }

func (e *VersionError) Error() string {
	side := "older: upgrade the peer"
	if e.Newer() {
		side = "newer: upgrade this side"
	}
	return fmt.Sprintf("wire: peer speaks version %d, this side reads %d to %d; the peer is %s", e.Version, OldestVersion, Version, side)
}

// Answerable reports whether the packet that Reader.Reset refused with err should be answered with AppendNotice.
func Answerable(err error) bool {
	var v *VersionError
	return errors.As(err, &v) && !v.Notice
}

// AppendNotice appends a whole packet that tells a peer which version is spoken here. It is never larger than the packet
// that it answers.
func AppendNotice(dst []byte, cluster ClusterID) []byte {
	n := len(dst)
	dst = append(dst, make([]byte, HeaderBytes)...)
	putHeader(dst[n:], flagNotice, Header{Cluster: cluster}, BodyCRC(nil))
	return dst
}

// MessageError reports a message that breaks the format or a limit. It wraps protocol.ErrBadMessage.
type MessageError struct {
	Kind   Kind
	Field  string
	Detail string
}

func (e *MessageError) Error() string {
	return fmt.Sprintf("wire: %v: %s: %s", e.Kind, e.Field, e.Detail)
}

// Unwrap returns protocol.ErrBadMessage.
func (e *MessageError) Unwrap() error { return protocol.ErrBadMessage }

func badField(k Kind, field, format string, args ...any) error {
	return &MessageError{k, field, fmt.Sprintf(format, args...)}
}

// DatagramLimit returns the largest packet, in bytes, that crosses a path of the given MTU in one piece: without the IP
// and UDP headers and without the room for authentication. One lost IP fragment loses the whole datagram, so a packet
// never asks for fragmentation; what does not fit goes over TCP.
func DatagramLimit(mtu int, ipv6 bool) int {
	ip := 20
	if ipv6 {
		ip = 40
	}
	return max(0, min(mtu-ip-8, MaxDatagramBytes)-AuthBytes)
}

// BlockLimit returns the largest record block, in bytes, of a packet that carries one Append within limit bytes.
func BlockLimit(limit int) int { return max(0, limit-AppendOverhead) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// BodyCRC hashes what follows a packet header, for PutHeader.
func BodyCRC(body []byte) uint32 { return crc32.Update(0, castagnoli, body) }

// PutHeader writes a packet header in front of a body whose BodyCRC is known. The header is hashed behind the body, so
// that the body, which is the same for every node, is hashed once however many nodes it goes to.
func PutHeader(dst *[HeaderBytes]byte, h Header, bodyCRC uint32) { putHeader(dst[:], 0, h, bodyCRC) }

func putHeader(dst []byte, flags byte, h Header, bodyCRC uint32) {
	_ = dst[HeaderBytes-1]
	binary.LittleEndian.PutUint32(dst[0:], magic)
	dst[4], dst[5] = Version, flags
	binary.LittleEndian.PutUint16(dst[6:], h.ReplyTo)
	binary.LittleEndian.PutUint64(dst[8:], uint64(h.Cluster))
	binary.LittleEndian.PutUint64(dst[16:], uint64(h.Incarnation))
	binary.LittleEndian.PutUint16(dst[24:], HeaderBytes)
	binary.LittleEndian.PutUint16(dst[26:], 0)
	binary.LittleEndian.PutUint32(dst[28:], crc32.Update(bodyCRC, castagnoli, dst[:28]))
}
