package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

func randomState(rng *rand.Rand) *nodeLog {
	l := &nodeLog{id: testLog, promised: Epoch(5 + rng.IntN(9)), activated: Epoch(rng.IntN(5)), start: LSN(rng.IntN(100)), clsn: LSN(rng.IntN(100)),
		archived: LSN(rng.IntN(100)), sealed: LSN(rng.IntN(100)), dropped: LSN(rng.IntN(100)), deleted: rng.IntN(2) == 0,
		settings: Settings{Name: strings.Repeat("n", rng.IntN(MaxNameBytes+1)), Window: rng.Uint32(), SegmentBytes: rng.Uint64(), FlushAgeMS: rng.Uint32(),
			Memory: rng.IntN(2) == 0, Qw: uint8(rng.IntN(16))}}
	for range rng.IntN(MaxEnsemble + 1) {
		l.settings.Peers = append(l.settings.Peers, Incarnation(rng.Uint64()))
	}
	l.history = randomHistory(rng, rng.IntN(8), 50)
	for i := range LSN(rng.IntN(5)) {
		l.damaged = append(l.damaged, Range{20 * i, 20*i + LSN(rng.IntN(9))})
	}
	if rng.IntN(3) == 0 {
		l.start += 100
		for i := range LSN(1 + rng.IntN(4)) {
			l.lost = append(l.lost, Range{1 + 20*i, 1 + 20*i + LSN(rng.IntN(9))})
		}
	}
	return l
}

func TestStateRoundTrip(t *testing.T) {
	for seed := uint64(1); seed <= 500; seed++ {
		want := randomState(rand.New(rand.NewPCG(seed, 7)))
		b := want.encodeState([]byte("before"))[len("before"):]
		got, err := decodeState(testLog, b)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d:\ngot  %+v\nwant %+v", seed, got, want)
		}
		for n := range b {
			if _, err := decodeState(testLog, b[:n]); !errors.Is(err, ErrBadMessage) {
				t.Fatalf("seed %d: cut to %d of %d bytes: %v", seed, n, len(b), err)
			}
		}
		if _, err := decodeState(testLog, append(b, 0)); !errors.Is(err, ErrBadMessage) {
			t.Fatalf("seed %d: with a byte more: %v", seed, err)
		}
	}
}

// What programs of before wrote is read: version 1, and version 2 of a log with lost ranges.
func TestStateOfEarlierVersions(t *testing.T) {
	u32, u64 := binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	l := &nodeLog{id: testLog, promised: 9, activated: 7, start: 50, clsn: 60, archived: 20, sealed: 55, dropped: 10,
		settings: Settings{Name: "orders", Window: 8, SegmentBytes: 1 << 20, FlushAgeMS: 300, Qw: 2, Peers: []Incarnation{11, 12}},
		history:  History{{2, 1}, {5, 30}, {7, 50}}, damaged: []Range{{21, 22}}}
	for version, lost := range map[byte][]Range{stateVersionPlain: nil, stateVersionLost: {{31, 33}, {40, 49}}} {
		l.lost = lost
		b := []byte{version, 0}
		for _, v := range []uint64{9, 7, 50, 60, 20, 55, 10} {
			b = u64(b, v)
		}
		b = append(u32(u64(u32(b, 8), 1<<20), 300), 2, 6)
		b = u64(u64(append(append(b, "orders"...), 2), 11), 12)
		b = u32(b, 3)
		for _, v := range []uint64{2, 1, 5, 30, 7, 50} {
			b = u64(b, v)
		}
		b = u64(u64(u32(b, 1), 21), 22)
		if lost != nil {
			b = u64(u64(u64(u64(u32(b, 2), 31), 33), 40), 49)
		}
		got, err := decodeState(testLog, b)
		if err != nil || !reflect.DeepEqual(got, l) {
			t.Errorf("version %d: %+v, %v; want %+v", version, got, err, l)
		}
	}
}

// A promise writes the whole history: after a thousand takeovers that must be little.
func TestLongHistoryIsShort(t *testing.T) {
	l := &nodeLog{id: testLog, promised: 1000, activated: 1000, start: 4000}
	for e := range Epoch(1000) {
		l.history = append(l.history, HistoryEntry{e + 1, LSN(4*e + 1)})
	}
	b := l.encodeState(nil)
	got, err := decodeState(testLog, b)
	if err != nil || !reflect.DeepEqual(got.history, l.history) {
		t.Fatalf("read back with %v", err)
	}
	if len(b) > 2500 {
		t.Errorf("%d bytes for a history of %d entries", len(b), len(l.history))
	}
}

func TestStateContradictions(t *testing.T) {
	for name, change := range map[string]func(l *nodeLog){
		"activated above promised": func(l *nodeLog) { l.activated = l.promised + 1 },
		"start out of range":       func(l *nodeLog) { l.start = MaxLSN + 1 },
		"cLSN out of range":        func(l *nodeLog) { l.clsn = MaxLSN + 1 },
		"archived out of range":    func(l *nodeLog) { l.archived = MaxLSN + 1 },
		"sealed out of range":      func(l *nodeLog) { l.sealed = MaxLSN + 1 },
		"dropped out of range":     func(l *nodeLog) { l.dropped = MaxLSN + 1 },
		"damage in disorder":       func(l *nodeLog) { l.damaged = []Range{{5, 6}, {6, 9}} },
		"damage backwards":         func(l *nodeLog) { l.damaged = []Range{{5, 4}} },
		"lost in disorder":         func(l *nodeLog) { l.start, l.lost = 50, []Range{{5, 9}, {7, 11}} },
		"lost backwards":           func(l *nodeLog) { l.start, l.lost = 50, []Range{{9, 5}} },
		"lost at the start":        func(l *nodeLog) { l.start, l.lost = 50, []Range{{5, 50}} },
		"history in disorder":      func(l *nodeLog) { l.history = History{{2, 5}, {3, 4}} },
	} {
		l := &nodeLog{id: testLog, promised: 3, activated: 3, start: 1}
		change(l)
		if _, err := decodeState(testLog, l.encodeState(nil)); !errors.Is(err, ErrBadMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := (&nodeLog{id: testLog}).encodeState(nil)
	b[0] = stateVersionLost
	if _, err := decodeState(testLog, b); !errors.Is(err, ErrBadMessage) {
		t.Errorf("version %d without a lost range: %v", stateVersionLost, err)
	}
	b[0] = stateVersion + 1
	if _, err := decodeState(testLog, b); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("a later version: %v", err)
	}
}

// Lengths are bounded before anything is allocated for them.
func TestStateClaimsAreBounded(t *testing.T) {
	b := (&nodeLog{id: testLog}).encodeState(nil)
	for i := len(b) - 12; i < len(b); i++ { // the three counts at the end
		b := bytes.Clone(b)
		b[i] = 0xff
		n := testing.AllocsPerRun(1, func() { decodeState(testLog, b) })
		if _, err := decodeState(testLog, b); err == nil || n > 50 {
			t.Errorf("byte %d: %v, %v allocations", i, err, n)
		}
	}
}

func TestStoredRoundTrip(t *testing.T) {
	for seed := uint64(1); seed <= 3000; seed++ {
		rng := rand.New(rand.NewPCG(seed, 8))
		lsn := LSN(1 + rng.Uint64N(1<<uint(1+rng.IntN(62))))
		start := lsn - LSN(rng.Uint64N(uint64(lsn)))
		if rng.IntN(3) == 0 {
			start = lsn
		}
		off := rng.Uint64N(MaxSegmentBytes)
		clsn := LSN(rng.Uint64N(uint64(lsn) + 3))
		more := rng.IntN(2) == 0
		data := bytes.Repeat([]byte{byte(seed)}, rng.IntN(30))
		head := appendStoredHead(nil, lsn, start, off, clsn, more)
		if len(head) > maxStoredHead {
			t.Fatalf("head of %d bytes, limit %d", len(head), maxStoredHead)
		}
		st, err := DecodeStored(lsn, 4, append(bytes.Clone(head), data...))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		wantCLSN := clsn
		if clsn >= lsn {
			wantCLSN = 0 // no room for it: the node writes its state instead
		}
		want := Stored{Record{lsn, 4, more, start, off, data}, wantCLSN}
		if st.CLSN != want.CLSN || st.LSN != lsn || st.Label != 4 || st.More != more || st.SegStart != start || st.SegOff != off || !bytes.Equal(st.Data, data) {
			t.Fatalf("seed %d: got %+v, want %+v", seed, st, want)
		}
		for n := range head {
			if _, err := DecodeStored(lsn, 4, head[:n]); !errors.Is(err, ErrBadMessage) {
				t.Fatalf("seed %d: head cut to %d of %d bytes: %v", seed, n, len(head), err)
			}
		}
	}
}

func TestBlockRoundTrip(t *testing.T) {
	for seed := uint64(1); seed <= 500; seed++ {
		rng := rand.New(rand.NewPCG(seed, 9))
		var block []byte
		var want []Record
		size := 0
		for range 1 + rng.IntN(10) {
			r := Record{Data: bytes.Repeat([]byte{7}, rng.IntN(50)), More: rng.IntN(2) == 0}
			block = AppendRecord(block, r.Data, r.More)
			size += EncodedSize(len(r.Data))
			want = append(want, r)
		}
		if len(block) != size {
			t.Fatalf("block of %d bytes, EncodedSize says %d", len(block), size)
		}
		if err := CheckBlock(block, uint32(len(want))); err != nil {
			t.Fatal(err)
		}
		rest := block
		for i, r := range want {
			data, more, tail, err := NextRecord(rest)
			if err != nil || more != r.More || !bytes.Equal(data, r.Data) {
				t.Fatalf("record %d: %v", i, err)
			}
			rest = tail
		}
		for _, n := range []uint32{0, uint32(len(want)) - 1, uint32(len(want)) + 1, MaxBatchRecords + 1} {
			if CheckBlock(block, n) == nil {
				t.Fatalf("a block of %d records passes for %d", len(want), n)
			}
		}
		for n := range block {
			if CheckBlock(block[:n], uint32(len(want))) == nil {
				t.Fatalf("cut to %d of %d bytes", n, len(block))
			}
		}
	}
}

func FuzzDecodeState(f *testing.F) {
	for seed := uint64(1); seed <= 5; seed++ {
		f.Add(randomState(rand.New(rand.NewPCG(seed, 7))).encodeState(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decodeState(testLog, b)
		if err != nil {
			if !errors.Is(err, ErrBadMessage) {
				t.Fatalf("error of no kind: %v", err)
			}
			return
		}
		again, err := decodeState(testLog, l.encodeState(nil))
		if err != nil || !reflect.DeepEqual(l, again) {
			t.Fatalf("%v: %+v became %+v", err, l, again)
		}
	})
}

func FuzzDecodeStored(f *testing.F) {
	f.Add(uint64(9), append(appendStoredHead(nil, 9, 3, 77, 5, true), "data"...))
	f.Add(uint64(1), appendStoredHead(nil, 1, 1, 0, 0, false))
	f.Fuzz(func(t *testing.T, lsn uint64, b []byte) {
		x := LSN(lsn%uint64(MaxLSN)) + 1
		st, err := DecodeStored(x, 1, b)
		if err != nil {
			if !errors.Is(err, ErrBadMessage) {
				t.Fatalf("error of no kind: %v", err)
			}
			return
		}
		if st.SegStart == 0 || st.SegStart > x || st.CLSN >= x || len(st.Data) > len(b) {
			t.Fatalf("LSN %d: %+v", x, st)
		}
		again, err := DecodeStored(x, 1, append(appendStoredHead(nil, x, st.SegStart, st.SegOff, st.CLSN, st.More), st.Data...))
		if err != nil || !bytes.Equal(again.Data, st.Data) || again.SegStart != st.SegStart || again.SegOff != st.SegOff || again.CLSN != st.CLSN {
			t.Fatalf("%v: %+v became %+v", err, st, again)
		}
	})
}

func FuzzCheckBlock(f *testing.F) {
	f.Add(uint32(2), AppendRecord(AppendRecord(nil, []byte("a"), true), nil, false))
	f.Fuzz(func(t *testing.T, count uint32, b []byte) {
		if CheckBlock(b, count) != nil {
			return
		}
		var again []byte
		for rest := b; len(rest) > 0; {
			data, more, tail, err := NextRecord(rest)
			if err != nil {
				t.Fatal(err)
			}
			again, rest = AppendRecord(again, data, more), tail
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}

// FuzzShardStep: no bytes in an Append, however wrong, make a node store part of a run or hold what it cannot read back.
func FuzzShardStep(f *testing.F) {
	f.Add(uint64(1), uint32(1), uint64(1), uint64(0), uint64(0), uint8(0), uint64(2), AppendRecord(nil, []byte("x"), false))
	f.Add(uint64(3), uint32(2), uint64(2), uint64(9), uint64(7), uint8(1), uint64(2), AppendRecord(AppendRecord(nil, nil, true), nil, false))
	f.Add(uint64(1<<64-1), uint32(2), uint64(1), uint64(0), uint64(0), uint8(0), uint64(2), AppendRecord(AppendRecord(nil, nil, true), nil, false))
	f.Fuzz(func(t *testing.T, first uint64, count uint32, segStart, segOff, clsn uint64, kind uint8, label uint64, b []byte) {
		s := NewShard(5, Rules{})
		var out Out
		s.Step(0, 0, &Activate{Log: testLog, Epoch: 2, Incarnation: 5, Start: 1, History: History{{2, 1}}}, &out)
		s.Finish(&out)
		out.Reset()
		s.Step(0, 0, &Append{Log: testLog, Epoch: 2, Label: Epoch(label), Kind: AppendKind(kind), Incarnation: 5, First: LSN(first), Count: count,
			SegStart: LSN(segStart), SegOff: segOff, CLSN: LSN(clsn), Block: b}, &out)
		s.Finish(&out)
		a := out.Acks[0].Ack
		if a.Status != StatusOK {
			if len(out.Records) != 0 || !out.Empty() {
				t.Fatalf("%s, and yet %d records and %d states are written", a.Status, len(out.Records), len(out.State))
			}
			return
		}
		if len(out.Records) != int(count) {
			t.Fatalf("%d of %d records stored", len(out.Records), count)
		}
		for _, r := range out.Records {
			st, err := DecodeStored(r.LSN, r.Label, append(bytes.Clone(r.Head), r.Data...))
			if err != nil || st.SegStart != LSN(segStart) {
				t.Fatalf("LSN %d cannot be read back: %v", r.LSN, err)
			}
		}
	})
}
