package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

var (
	rewrite  = flag.Bool("rewrite", false, "write testdata/*.golden anew")
	seedFlag = flag.Uint64("seed", 0, "seed of the property test; zero draws one")
)

const testCluster ClusterID = 0xc1c2c3c4c5c6c7c8

// samples has one message of each kind, with every field different from zero.
func samples() []protocol.Message {
	block := protocol.AppendRecord(nil, []byte("first"), true)
	block = protocol.AppendRecord(block, []byte("second"), false)
	records := []protocol.Record{
		{LSN: 100, Label: 6, SegStart: 90, SegOff: 1000, More: true, Data: []byte("one")},
		{LSN: 101, Label: 6, SegStart: 90, SegOff: 1007},
		{LSN: 103, Label: 7, SegStart: 103, SegOff: 0, Data: []byte("other segment")},
	}
	extents := []protocol.Extent{{From: 10, To: 20, Label: 5}, {From: 21, To: 30, Label: 6}}
	ranges := []protocol.Range{{From: 11, To: 12}, {From: 15, To: 15}}
	return []protocol.Message{
		&protocol.Open{Log: 1, Epoch: 7, Req: 0x1122334455667788, Name: "orders/wal"},
		&protocol.OpenReply{Log: 2, Epoch: 7, Req: 9, Incarnation: 0xaabb, Status: protocol.StatusFenced, Promised: 8, Activated: 6, Start: 5,
			CLSN: 4, ArchivedThrough: 3, Held: extents, Damaged: ranges, Through: protocol.MaxLSN},
		&protocol.Append{Log: 3, Epoch: 7, Label: 6, Kind: protocol.AppendCopy, Incarnation: 0xaabb, First: 100, Count: 2, SegStart: 90, SegOff: 1000,
			CLSN: 99, Block: block},
		&protocol.Ack{Log: 4, Epoch: 7, Incarnation: 0xaabb, Kind: protocol.AckDrop, Append: protocol.AppendRepair, Status: protocol.StatusNoSpace,
			First: 100, Last: 101, Label: 6, Promised: 7, Activated: 5, CLSN: 98},
		&protocol.Fetch{Log: 5, Epoch: 7, Req: 10, Incarnation: 0xaabb, From: 1, To: 2, Label: 3, MaxBytes: 65536},
		&protocol.FetchReply{Log: 6, Epoch: 7, Req: 11, Incarnation: 0xaabb, Status: protocol.StatusNotPromised, Promised: 8, ArchivedThrough: 9,
			From: 100, Through: 103, Records: records, Damaged: ranges},
		&protocol.Activate{Log: 7, Epoch: 7, Incarnation: 0xaabb, Start: 100, B: 99, History: protocol.History{{Epoch: 3, Start: 1}, {Epoch: 7, Start: 100}},
			Lost: []protocol.Range{{From: 5, To: 9}, {From: 40, To: 40}},
			Settings: protocol.Settings{Name: "orders/wal", Window: 1024, SegmentBytes: 16 << 20, FlushAgeMS: 5000, Memory: true,
				Peers: []protocol.Incarnation{0xaabb, 0xccdd, 0xeeff}, Qw: 2}},
		&protocol.Watermark{Log: 8, Epoch: 7, Incarnation: 0xaabb, CLSN: 100, Sealed: 95},
		&protocol.Read{Log: 9, Req: 12, From: 1, To: 2, MaxBytes: 4096, WaitAbove: 77, Raw: true},
		&protocol.ReadReply{Log: 10, Req: 13, Incarnation: 0xaabb, Status: protocol.StatusOverloaded, Activated: 7, Start: 6, CLSN: 5, ArchivedThrough: 4,
			Highest: 3, HighestLabel: 2, Uncommitted: extents, From: 100, Through: 103, Records: records, Damaged: ranges},
		&protocol.Drop{Log: 11, Epoch: 7, Incarnation: 0xaabb},
	}
}

func encode(t testing.TB, ms ...protocol.Message) []byte {
	t.Helper()
	var w Writer
	w.Reset(nil, MaxFrameBytes, testCluster, 7001)
	for _, m := range ms {
		if err := w.Message(m); err != nil {
			t.Fatalf("%v: %v", KindOf(m), err)
		}
	}
	return w.Finish()
}

func decode(packet []byte) (ms []protocol.Message, h Header, err error) {
	var r Reader
	if err := r.Reset(packet, testCluster); err != nil {
		return nil, h, err
	}
	for r.Next() {
		m, err := r.Message()
		if err != nil {
			return nil, h, err
		}
		ms = append(ms, m)
	}
	return ms, r.Header(), r.Err()
}

func TestSamplesAreComplete(t *testing.T) {
	seen := map[Kind]bool{}
	for _, m := range samples() {
		seen[KindOf(m)] = true
		v := reflect.ValueOf(m).Elem()
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("%v: field %s of the sample is zero, so nothing shows that it is encoded", KindOf(m), v.Type().Field(i).Name)
			}
		}
	}
	for k := KindOpen; k < kindEnd; k++ {
		if !seen[k] {
			t.Errorf("no sample of kind %v", k)
		}
	}
}

func TestGolden(t *testing.T) {
	for _, m := range samples() {
		name := KindOf(m).String()
		if a, ok := m.(*protocol.Activate); ok {
			plain := *a
			plain.Lost = nil
			check(t, name, encode(t, &plain))
			name += "-lost"
		}
		check(t, name, encode(t, m))
	}
	check(t, "notice", AppendNotice(nil, testCluster))
	frame, err := AppendFrame(nil, testCluster, 7001, samples()[2])
	if err != nil {
		t.Fatal(err)
	}
	check(t, "frame", frame)
}

func check(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	text := hex.Dump(got)
	if *rewrite {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s: the bytes changed, which needs a new version\n got\n%s\nwant\n%s", path, text, want)
	}
}

func TestRoundTripOfSeveralMessages(t *testing.T) {
	all := samples()
	got, h, err := decode(encode(t, all...))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, all) {
		t.Errorf("got %+v\nwant %+v", got, all)
	}
	if want := (Header{Cluster: testCluster, Incarnation: 0xaabb, ReplyTo: 7001}); h != want {
		t.Errorf("header %+v, want %+v", h, want)
	}
}

func TestEveryTruncationAndEveryFlippedBitIsRefused(t *testing.T) {
	packet := encode(t, samples()...)
	for n := range packet {
		if _, _, err := decode(packet[:n]); err == nil {
			t.Errorf("cut to %d of %d bytes: accepted", n, len(packet))
		}
	}
	for bit := range len(packet) * 8 {
		packet[bit/8] ^= 1 << (bit % 8)
		if _, _, err := decode(packet); err == nil {
			t.Errorf("bit %d flipped: accepted", bit)
		}
		packet[bit/8] ^= 1 << (bit % 8)
	}
}

// TestTruncatedBodies cuts each message inside a packet that is otherwise sound: the error names the kind.
func TestTruncatedBodies(t *testing.T) {
	for _, m := range samples() {
		whole := encode(t, m)
		for n := HeaderBytes + MessageHeaderBytes; n < len(whole); n++ {
			packet := append([]byte(nil), whole[:n]...)
			setBody(packet, HeaderBytes)
			putHeader(packet, 0, Header{Cluster: testCluster}, BodyCRC(packet[HeaderBytes:]))
			_, _, err := decode(packet)
			var me *MessageError
			if m, is := m.(*protocol.Append); is && n >= len(whole)-len(m.Block) {
				continue // a shorter block is the receiver's to find, by CheckBlock
			}
			if !errors.As(err, &me) || me.Kind != KindOf(m) || me.Field == "" || !errors.Is(err, protocol.ErrBadMessage) {
				t.Fatalf("%v cut to %d of %d bytes: %v", KindOf(m), n, len(whole), err)
			}
		}
	}
}

func TestReasonsToDrop(t *testing.T) {
	good := encode(t, samples()[0])
	edit := func(f func(p []byte)) []byte {
		p := append([]byte(nil), good...)
		f(p)
		return p
	}
	for _, c := range []struct {
		name   string
		packet []byte
		want   error
	}{
		{"empty", nil, ErrNotOurs},
		{"another protocol", edit(func(p []byte) { p[0] = 0 }), ErrNotOurs},
		{"another cluster", edit(func(p []byte) { p[8]++ }), ErrCluster},
		{"another cluster of a newer version", edit(func(p []byte) { p[8]++; p[4]++ }), ErrCluster},
		{"authenticated", edit(func(p []byte) { p[5] = flagAuthenticated }), ErrAuthenticated},
		{"damaged", edit(func(p []byte) { p[len(p)-1]++ }), ErrChecksum},
		{"notice of our version", AppendNotice(nil, testCluster), ErrNotice},
	} {
		_, _, err := decode(c.packet)
		if !errors.Is(err, c.want) || Answerable(err) {
			t.Errorf("%s: %v, answerable %v; want %v and no answer", c.name, err, Answerable(err), c.want)
		}
	}
}

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		version uint8
		newer   bool
	}{{Version + 1, true}, {255, true}, {OldestVersion - 1, false}} {
		packet := encode(t, samples()[0])
		packet[4] = c.version
		_, _, err := decode(packet)
		var v *VersionError
		if !errors.As(err, &v) || v.Version != c.version || v.Newer() != c.newer || !Answerable(err) {
			t.Errorf("version %d: %v, answerable %v", c.version, err, Answerable(err))
		}
		notice := AppendNotice(nil, testCluster)
		if len(notice) > len(packet) {
			t.Errorf("a notice of %d bytes answers a packet of %d: an amplifier", len(notice), len(packet))
		}
		notice[4] = c.version
		_, _, err = decode(notice)
		if !errors.As(err, &v) || v.Version != c.version || Answerable(err) {
			t.Errorf("notice of version %d: %v; a notice must not be answered, two nodes would go on for ever", c.version, err)
		}
	}
}

func TestReaddressEqualsEncodingAnew(t *testing.T) {
	a := samples()[2].(*protocol.Append)
	b := *a
	b.Log++
	var w Writer
	w.Reset(nil, MaxDatagramBytes, testCluster, 1)
	for _, m := range []*protocol.Append{a, &b} {
		if err := w.Append(m); err != nil {
			t.Fatal(err)
		}
	}
	for inc := protocol.Incarnation(1); inc < 4; inc++ {
		a.Incarnation, b.Incarnation = inc, inc
		var fresh Writer
		fresh.Reset(nil, MaxDatagramBytes, testCluster, 1)
		if err := errors.Join(fresh.Append(a), fresh.Append(&b)); err != nil {
			t.Fatal(err)
		}
		head := w.Head(inc)
		if gathered := append(head[:], w.Body()...); !bytes.Equal(gathered, fresh.Finish()) {
			t.Errorf("incarnation %v: head and body differ from the packet", inc)
		}
		if !bytes.Equal(w.Readdress(inc), fresh.Finish()) {
			t.Errorf("incarnation %v: re-addressed packet differs", inc)
		}
	}
}

func TestWriterLimits(t *testing.T) {
	ack := samples()[3].(*protocol.Ack)
	var w Writer
	w.Reset(nil, HeaderBytes+2*AckBytes, testCluster, 0)
	if !w.Empty() {
		t.Error("a new packet is not empty")
	}
	if err := errors.Join(w.Ack(ack), w.Ack(ack)); err != nil {
		t.Fatal(err)
	}
	full := append([]byte(nil), w.Finish()...)
	if err := w.Ack(ack); !errors.Is(err, ErrTooLarge) {
		t.Errorf("third ack: %v", err)
	}
	if err := w.Message(samples()[0]); !errors.Is(err, ErrTooLarge) {
		t.Errorf("open in a full packet: %v", err)
	}
	if !bytes.Equal(w.Finish(), full) {
		t.Error("a refused message changed the packet")
	}
	w.Reset(nil, 1<<16, testCluster, 0)
	other := *ack
	other.Incarnation++
	if err := errors.Join(w.Message(samples()[0]), w.Ack(ack)); err != nil {
		t.Fatalf("a message without incarnation goes with any: %v", err)
	}
	if err := w.Ack(&other); !errors.Is(err, ErrMixed) {
		t.Errorf("second incarnation: %v", err)
	}
	if err := w.Message(&protocol.Drop{Incarnation: 1}); !errors.Is(err, ErrMixed) {
		t.Errorf("second incarnation: %v", err)
	}
	if w.Len() != HeaderBytes+len(encode(t, samples()[0]))-HeaderBytes+AckBytes {
		t.Errorf("length %d", w.Len())
	}
}

func TestWriterRefusesWhatNobodyWouldRead(t *testing.T) {
	long := strings.Repeat("n", protocol.MaxNameBytes+1)
	bad := map[string]protocol.Message{
		"count":          &protocol.Append{First: 1, SegStart: 1},
		"first":          &protocol.Append{First: protocol.MaxLSN, SegStart: 1, Count: 2},
		"segment start":  &protocol.Append{First: 1, SegStart: 2, Count: 1},
		"segment offset": &protocol.Append{First: 1, SegStart: 1, Count: 1, SegOff: 1 << 40},
		"append kind":    &protocol.Append{First: 1, SegStart: 1, Count: 1, Kind: 3},
		"block":          &protocol.Append{First: 1, SegStart: 1, Count: 1, Block: make([]byte, protocol.MaxBlockBytes+1)},
		"ack kind":       &protocol.Ack{Kind: protocol.AckDrop + 1},
		"name":           &protocol.Open{Name: long},
		"held":           &protocol.OpenReply{Held: make([]protocol.Extent, protocol.MaxExtents+1)},
		"damaged":        &protocol.FetchReply{Damaged: make([]protocol.Range, protocol.MaxExtents+1)},
		"records":        &protocol.FetchReply{Records: make([]protocol.Record, MaxReplyRecords+1)},
		"run":            &protocol.ReadReply{Records: make([]protocol.Record, 1)},
		"max bytes":      &protocol.Fetch{MaxBytes: MaxReplyBytes + 1},
		"history":        &protocol.Activate{History: make(protocol.History, protocol.MaxHistory+1)},
		"lost":           &protocol.Activate{Lost: make([]protocol.Range, protocol.MaxLost+1)},
		"peers":          &protocol.Activate{Settings: protocol.Settings{Peers: make([]protocol.Incarnation, protocol.MaxEnsemble+1)}},
	}
	for field, m := range bad {
		var w Writer
		w.Reset(nil, MaxFrameBytes, testCluster, 0)
		err := w.Message(m)
		var me *MessageError
		if !errors.As(err, &me) || me.Field != field || me.Kind != KindOf(m) {
			t.Errorf("%s: %v", field, err)
		}
		if !w.Empty() {
			t.Errorf("%s: the refused message is in the packet", field)
		}
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	a, ack := samples()[2].(*protocol.Append), samples()[3].(*protocol.Ack)
	push := &protocol.Watermark{Log: a.Log, Epoch: a.Epoch, Incarnation: a.Incarnation, CLSN: 7, Sealed: 5}
	var (
		w    Writer
		r    Reader
		gotA protocol.Append
		gotK protocol.Ack
		gotW protocol.Watermark
		head [HeaderBytes]byte
		err  error
		buf  = make([]byte, MaxDatagramBytes)
	)
	n := testing.AllocsPerRun(100, func() {
		w.Reset(buf, MaxDatagramBytes, testCluster, 0)
		err = errors.Join(w.Append(a), w.Append(a), w.Message(push), w.Ack(ack), w.Ack(ack))
		head = w.Head(ack.Incarnation)
		packet := w.Finish()
		if e := r.Reset(packet, testCluster); e != nil {
			err = e
		}
		for r.Next() {
			var e error
			switch r.Kind() {
			case KindAppend:
				e = r.Append(&gotA)
			case KindAck:
				e = r.Ack(&gotK)
			case KindWatermark:
				e = r.Watermark(&gotW)
			}
			if e != nil {
				err = e
			}
		}
	})
	if err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
	if !reflect.DeepEqual(&gotA, a) || gotK != *ack || gotW != *push || !bytes.Equal(head[:], w.Finish()[:HeaderBytes]) {
		t.Errorf("got %+v and %+v", gotA, gotK)
	}
	if &gotA.Block[0] != &buf[HeaderBytes+2*(MessageHeaderBytes+appendBody)+len(a.Block)] {
		t.Error("the block was copied")
	}
}

func TestMessageOwnsItsMemory(t *testing.T) {
	packet := encode(t, samples()...)
	got, _, err := decode(packet)
	if err != nil {
		t.Fatal(err)
	}
	clear(packet)
	if !reflect.DeepEqual(got, samples()) {
		t.Error("a message changed with the packet's buffer")
	}
}

func TestDatagramLimit(t *testing.T) {
	for _, c := range []struct {
		mtu  int
		v6   bool
		want int
	}{{1500, false, 1440}, {1500, true, 1420}, {9001, false, 8941}, {65536, false, MaxDatagramBytes - AuthBytes}, {0, true, 0}} {
		if got := DatagramLimit(c.mtu, c.v6); got != c.want {
			t.Errorf("MTU %d, IPv6 %v: %d bytes, want %d", c.mtu, c.v6, got, c.want)
		}
	}
	if got := BlockLimit(DatagramLimit(1500, false)); got != 1336 {
		t.Errorf("block of %d bytes at MTU 1500, and the format page says 1336", got)
	}
	a := samples()[2].(*protocol.Append)
	if got := len(encode(t, a)) - len(a.Block); got != AppendOverhead {
		t.Errorf("an append takes %d bytes beyond its block, want %d", got, AppendOverhead)
	}
	if got := BlockLimit(len(encode(t, a))); got != len(a.Block) {
		t.Errorf("block limit %d, want %d", got, len(a.Block))
	}
}

func testSeed(t testing.TB) uint64 {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed=%d", seed)
	return seed
}

func TestRandomMessages(t *testing.T) {
	seed := testSeed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range 3000 {
		var ms []protocol.Message
		inc := protocol.Incarnation(rng.Uint64())
		for range 1 + rng.IntN(3) {
			ms = append(ms, randomMessage(rng, inc))
		}
		packet := encode(t, ms...)
		got, _, err := decode(packet)
		if err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
		if !reflect.DeepEqual(got, ms) {
			t.Fatalf("packet %d: got %s\nwant %s", i, show(got), show(ms))
		}
		var stream []byte
		for _, m := range ms {
			if stream, err = AppendFrame(stream, testCluster, 1, m); err != nil {
				t.Fatal(err)
			}
		}
		rd := bytes.NewReader(stream)
		for _, m := range ms {
			h, got, err := ReadMessage(rd, testCluster, 0)
			if err != nil || h.ReplyTo != 1 || !reflect.DeepEqual(got, m) {
				t.Fatalf("packet %d, frame: %v, header %+v, got %+v\nwant %+v", i, err, h, got, m)
			}
		}
	}
}

func show(ms []protocol.Message) string {
	var s strings.Builder
	for _, m := range ms {
		fmt.Fprintf(&s, "%v %+v; ", KindOf(m), m)
	}
	return s.String()
}

func randomMessage(rng *rand.Rand, inc protocol.Incarnation) protocol.Message {
	lsn := func() protocol.LSN { return 1 + protocol.LSN(rng.Uint64()>>uint(2+rng.IntN(62))) }
	epoch := func() protocol.Epoch { return protocol.Epoch(rng.Uint64() >> uint(rng.IntN(64))) }
	data := func() []byte {
		if n := rng.IntN(40); n > 0 {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			return b
		}
		return nil
	}
	log, req, status := protocol.LogID(rng.Uint64()), rng.Uint64(), protocol.Status(rng.IntN(10))
	var extents []protocol.Extent
	for range rng.IntN(4) {
		extents = append(extents, protocol.Extent{From: lsn(), To: lsn(), Label: epoch()})
	}
	var ranges []protocol.Range
	for range rng.IntN(4) {
		ranges = append(ranges, protocol.Range{From: lsn(), To: lsn()})
	}
	var records []protocol.Record
	for range rng.IntN(6) {
		r := protocol.Record{LSN: lsn(), Label: epoch(), SegStart: lsn(), SegOff: uint64(rng.IntN(protocol.MaxSegmentBytes)), More: rng.IntN(2) == 0, Data: data()}
		if n := len(records); n > 0 && rng.IntN(3) > 0 {
			p := records[n-1]
			r.LSN, r.Label, r.SegStart, r.SegOff = p.LSN+1, p.Label, p.SegStart, p.SegOff+uint64(protocol.EncodedSize(len(p.Data)))
		}
		records = append(records, r)
	}
	name := strings.Repeat("x", rng.IntN(protocol.MaxNameBytes+1))
	switch Kind(1 + rng.IntN(int(kindEnd)-1)) {
	case KindOpen:
		return &protocol.Open{Log: log, Epoch: epoch(), Req: req, Name: name}
	case KindOpenReply:
		return &protocol.OpenReply{Log: log, Epoch: epoch(), Req: req, Incarnation: inc, Status: status, Promised: epoch(), Activated: epoch(), Start: lsn(),
			CLSN: lsn(), ArchivedThrough: lsn(), Held: extents, Damaged: ranges, Through: lsn()}
	case KindAppend:
		a := &protocol.Append{Log: log, Epoch: epoch(), Label: epoch(), Kind: protocol.AppendKind(rng.IntN(3)), Incarnation: inc, First: lsn(),
			Count: uint32(1 + rng.IntN(3)), SegOff: uint64(rng.IntN(protocol.MaxSegmentBytes)), CLSN: lsn()}
		a.SegStart = 1 + protocol.LSN(rng.Uint64N(uint64(a.First)))
		for range a.Count {
			a.Block = protocol.AppendRecord(a.Block, data(), rng.IntN(2) == 0)
		}
		return a
	case KindAck:
		return &protocol.Ack{Log: log, Epoch: epoch(), Incarnation: inc, Kind: protocol.AckKind(rng.IntN(4)), Append: protocol.AppendKind(rng.IntN(3)),
			Status: status, First: lsn(), Last: lsn(), Label: epoch(), Promised: epoch(), Activated: epoch(), CLSN: lsn()}
	case KindFetch:
		return &protocol.Fetch{Log: log, Epoch: epoch(), Req: req, Incarnation: inc, From: lsn(), To: lsn(), Label: epoch(), MaxBytes: rng.Uint32N(MaxReplyBytes)}
	case KindFetchReply:
		return &protocol.FetchReply{Log: log, Epoch: epoch(), Req: req, Incarnation: inc, Status: status, Promised: epoch(), ArchivedThrough: lsn(),
			From: lsn(), Through: lsn(), Records: records, Damaged: ranges}
	case KindActivate:
		m := &protocol.Activate{Log: log, Epoch: epoch(), Incarnation: inc, Start: lsn(), B: lsn(), Settings: protocol.Settings{Name: name,
			Window: rng.Uint32(), SegmentBytes: rng.Uint64(), FlushAgeMS: rng.Uint32(), Memory: rng.IntN(2) == 0, Qw: uint8(rng.IntN(16))}}
		for range rng.IntN(5) {
			m.History = append(m.History, protocol.HistoryEntry{Epoch: epoch(), Start: lsn()})
		}
		for range rng.IntN(protocol.MaxEnsemble + 1) {
			m.Settings.Peers = append(m.Settings.Peers, protocol.Incarnation(rng.Uint64()))
		}
		for range rng.IntN(3) {
			m.Lost = append(m.Lost, protocol.Range{From: lsn(), To: lsn()})
		}
		return m
	case KindWatermark:
		return &protocol.Watermark{Log: log, Epoch: epoch(), Incarnation: inc, CLSN: lsn(), Sealed: lsn()}
	case KindRead:
		return &protocol.Read{Log: log, Req: req, From: lsn(), To: lsn(), MaxBytes: rng.Uint32N(MaxReplyBytes), WaitAbove: lsn(), Raw: rng.IntN(2) == 0}
	case KindReadReply:
		return &protocol.ReadReply{Log: log, Req: req, Incarnation: inc, Status: status, Activated: epoch(), Start: lsn(), CLSN: lsn(), ArchivedThrough: lsn(),
			Highest: lsn(), HighestLabel: epoch(), Uncommitted: extents, From: lsn(), Through: lsn(), Records: records, Damaged: ranges}
	}
	return &protocol.Drop{Log: log, Epoch: epoch(), Incarnation: inc}
}
