package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"runtime"
	"strconv"
	"testing"
	"testing/iotest"

	"github.com/btrlog/btrlog/internal/protocol"
)

func TestFramesOnAStream(t *testing.T) {
	var stream bytes.Buffer
	for _, m := range samples() {
		if err := WriteMessage(&stream, testCluster, 7001, m); err != nil {
			t.Fatal(err)
		}
	}
	r := iotest.OneByteReader(&stream)
	for _, want := range samples() {
		h, got, err := ReadMessage(r, testCluster, 0)
		if err != nil || h.ReplyTo != 7001 || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v, header %+v\n got %+v\nwant %+v", err, h, got, want)
		}
	}
	if _, _, err := ReadMessage(r, testCluster, 0); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

// TestLargestRecord: what no datagram carries goes over the stream, with the bytes that a datagram would have.
func TestLargestRecord(t *testing.T) {
	data := bytes.Repeat([]byte("8MiB"), protocol.MaxRecordBytes/4)
	a := &protocol.Append{Log: 1, Epoch: 2, Label: 2, Incarnation: 3, First: 4, Count: 1, SegStart: 4, Block: protocol.AppendRecord(nil, data, false)}
	var w Writer
	w.Reset(nil, MaxDatagramBytes, testCluster, 0)
	if err := w.Append(a); !errors.Is(err, ErrTooLarge) {
		t.Errorf("in a datagram: %v", err)
	}
	reply := &protocol.FetchReply{Log: 1, Epoch: 2, Incarnation: 3, From: 4, Through: 5, Records: []protocol.Record{
		{LSN: 4, Label: 2, SegStart: 4, Data: data[:len(data)-1]}, {LSN: 5, Label: 2, SegStart: 5, Data: data}}}
	for _, m := range []protocol.Message{a, reply} {
		frame, err := AppendFrame([]byte("before"), testCluster, 0, m)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(frame[10:], encode0(t, m)) || string(frame[:6]) != "before" {
			t.Errorf("%v: the packet in a frame differs from the packet alone", KindOf(m))
		}
		_, got, err := ReadMessage(bytes.NewReader(frame[6:]), testCluster, 0)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%v: %v", KindOf(m), err)
		}
	}
}

func encode0(t *testing.T, m protocol.Message) []byte {
	var w Writer
	w.Reset(nil, MaxFrameBytes, testCluster, 0)
	if err := w.Message(m); err != nil {
		t.Fatal(err)
	}
	return w.Finish()
}

func TestFullestMessagesFitAFrame(t *testing.T) {
	extents, ranges := make([]protocol.Extent, protocol.MaxExtents), make([]protocol.Range, protocol.MaxExtents)
	// The node stops after the record that reaches MaxReplyBytes: one byte short of it, and then a largest record. Every
	// record is a run by itself, the worst case of RunBytes.
	var records []protocol.Record
	for i := range MaxReplyRecords {
		records = append(records, protocol.Record{LSN: protocol.LSN(2*i + 1), SegStart: 1})
	}
	data := make([]byte, protocol.MaxRecordBytes)
	records[0].Data = data[:MaxReplyBytes-1-len(records)*protocol.RecordOverhead]
	records[1].Data = data
	for _, m := range []protocol.Message{
		&protocol.OpenReply{Held: extents, Damaged: ranges},
		&protocol.Activate{History: make(protocol.History, protocol.MaxHistory), Lost: make([]protocol.Range, protocol.MaxLost)},
		&protocol.ReadReply{Uncommitted: extents, Damaged: ranges, Records: records},
	} {
		frame, err := AppendFrame(nil, testCluster, 0, m)
		if err != nil {
			t.Fatal(err)
		}
		if _, got, err := ReadMessage(bytes.NewReader(frame), testCluster, 0); err != nil || KindOf(got) != KindOf(m) {
			t.Errorf("%v of %d bytes: %v", KindOf(m), len(frame), err)
		}
	}
}

func TestDamagedFrames(t *testing.T) {
	frame, err := AppendFrame(nil, testCluster, 0, samples()[2])
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < len(frame); n++ {
		if _, _, err := ReadMessage(bytes.NewReader(frame[:n]), testCluster, 0); err != io.ErrUnexpectedEOF {
			t.Errorf("cut to %d of %d bytes: %v", n, len(frame), err)
		}
	}
	relength := func(p []byte) []byte { return append(binary.LittleEndian.AppendUint32(nil, uint32(len(p))), p...) }
	for _, c := range []struct {
		name  string
		frame []byte
		limit int
		want  error
	}{
		{"above the caller's limit", frame, len(frame) - 5, ErrNotOurs},
		{"above every limit", []byte{0xff, 0xff, 0xff, 0xff}, 1 << 40, ErrNotOurs},
		{"shorter than a header", []byte{31, 0, 0, 0}, 0, ErrNotOurs},
		{"without a message", relength(encode(t)), 0, ErrNotOurs},
		{"two messages", relength(encode(t, samples()[2:4]...)), 0, protocol.ErrBadMessage},
		{"another cluster", relength(AppendNotice(nil, testCluster+1)), 0, ErrCluster},
	} {
		if _, _, err := ReadMessage(bytes.NewReader(c.frame), testCluster, c.limit); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	var b bytes.Buffer
	if err := WriteNotice(&b, testCluster); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadMessage(&b, testCluster, 0); !errors.Is(err, ErrNotice) {
		t.Errorf("notice: %v", err)
	}
}

// TestAnnouncedLengthTakesNoMemory: a peer that announces a large frame and sends little gets little.
func TestAnnouncedLengthTakesNoMemory(t *testing.T) {
	liar := append(binary.LittleEndian.AppendUint32(nil, MaxFrameBytes), make([]byte, 100)...)
	if n := allocated(func() { _, _, _ = ReadMessage(bytes.NewReader(liar), testCluster, 0) }); n > 2*frameStep {
		t.Errorf("%d bytes allocated for 100 received", n)
	}
}

// TestCountsTakeNoMemory: a small message that claims long lists is refused before they are allocated.
func TestCountsTakeNoMemory(t *testing.T) {
	for _, m := range samples() {
		packet := encode(t, m)
		for off := HeaderBytes; off+4 <= len(packet); off++ {
			p := bytes.Clone(packet)
			binary.LittleEndian.PutUint32(p[off:], 0x0000ffff)
			putHeader(p, 0, Header{Cluster: testCluster}, BodyCRC(p[HeaderBytes:]))
			if n := allocated(func() { _, _, _ = decode(p) }); n > 16<<10 {
				t.Errorf("%v with a large number at %d: %d bytes allocated for a packet of %d", KindOf(m), off, n, len(p))
			}
		}
	}
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// FuzzDecode: whatever the bytes are, nothing panics, memory stays in proportion, and what decodes survives a round trip.
// The input is tried as a packet, which a checksum guards, and as the body of a valid one, which nothing guards.
func FuzzDecode(f *testing.F) {
	for _, m := range samples() {
		f.Add(encode(f, m)[HeaderBytes:])
	}
	f.Add(encode(f, samples()...)[HeaderBytes:])
	f.Fuzz(func(t *testing.T, body []byte) {
		var raw Reader
		if raw.Reset(body, testCluster) != nil && raw.Next() {
			t.Error("a refused packet has messages")
		}
		packet := append(make([]byte, HeaderBytes), body...)
		putHeader(packet, 0, Header{Cluster: testCluster, Incarnation: 5}, BodyCRC(body))
		var ms []protocol.Message
		var err error
		if n, limit := allocated(func() { ms, _, err = decode(packet) }), uint64(64<<10+40*len(packet)); n > limit {
			t.Errorf("%d bytes allocated for a packet of %d", n, len(packet))
		}
		if err != nil {
			if !errors.Is(err, protocol.ErrBadMessage) {
				t.Errorf("%v does not wrap ErrBadMessage", err)
			}
			return
		}
		again, _, err := decode(encode(t, ms...))
		if err != nil || !reflect.DeepEqual(again, ms) {
			t.Errorf("%v\n got %s\nwant %s", err, show(again), show(ms))
		}
	})
}

func BenchmarkAppendToThreeNodes(b *testing.B) {
	for _, size := range []int{100, 1300, 60000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			a := *samples()[2].(*protocol.Append)
			a.Count, a.Block = 1, protocol.AppendRecord(nil, make([]byte, size), false)
			var w Writer
			buf := make([]byte, MaxDatagramBytes)
			b.ReportAllocs()
			for b.Loop() {
				w.Reset(buf, MaxDatagramBytes, testCluster, 0)
				if err := w.Append(&a); err != nil {
					b.Fatal(err)
				}
				for inc := protocol.Incarnation(1); inc <= 3; inc++ {
					w.Head(inc)
				}
			}
		})
	}
}

func BenchmarkDecodeAppend(b *testing.B) {
	packet := encode(b, samples()[2])
	var r Reader
	var a protocol.Append
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Reset(packet, testCluster); err != nil || !r.Next() {
			b.Fatal(err)
		}
		if err := r.Append(&a); err != nil {
			b.Fatal(err)
		}
	}
}
