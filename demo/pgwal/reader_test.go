package pgwal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/iotest"
)

// readAll reads a log to its end and returns the records, with bytes of their own,
// and the error that ended it.
func readAll(log io.Reader) ([]Record, error) {
	r, err := Open(log)
	if err != nil {
		return nil, err
	}
	var recs []Record
	for {
		rec, err := r.Next()
		if err != nil {
			if _, again := r.Next(); again != err {
				return recs, fmt.Errorf("error %v, and when called again %v", err, again)
			}
			return recs, err
		}
		rec.Raw = bytes.Clone(rec.Raw)
		recs = append(recs, rec)
	}
}

// sameRecords reports the first difference between what was read and a beginning of
// what was written.
func sameRecords(got []Record, want []wanted) error {
	if len(got) > len(want) {
		return fmt.Errorf("%d records read, %d written", len(got), len(want))
	}
	for i, g := range got {
		w := want[i]
		if g.LSN != w.lsn || g.End != w.end || g.Prev != w.prev || g.Abandoned != w.abandoned || !bytes.Equal(g.Raw, w.raw) {
			return fmt.Errorf("record %d: read %v–%v prev %v abandoned %v, %d bytes; written %v–%v prev %v abandoned %v, %d bytes",
				i, g.LSN, g.End, g.Prev, g.Abandoned, len(g.Raw), w.lsn, w.end, w.prev, w.abandoned, len(w.raw))
		}
	}
	return nil
}

// someBytes never makes a zero byte, so that a test can flip any byte to zero.
func someBytes(rnd *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(1 + rnd.IntN(255))
	}
	return b
}

// randomLog writes about n records of all the kinds that a log has.
func randomLog(rnd *rand.Rand, n int) *builder {
	pageSize := minPageSize << rnd.IntN(7)
	b := newBuilder(pageSize, LSN(1+rnd.IntN(5))<<32+LSN(rnd.IntN(9))<<20)
	for range n {
		switch k := rnd.IntN(1000); {
		case k < 5:
			b.switchSegment(byte(rnd.IntN(2)))
		case k < 15:
			if b.room() >= 8 {
				b.abandon(someBytes(rnd, b.room()+rnd.IntN(3*pageSize)))
			}
		case k < 25:
			b.record(rnd.Uint32(), 0, 10, someBytes(rnd, rnd.IntN(5*pageSize)))
		case k < 27:
			b.record(rnd.Uint32(), 0xB0, 0, someBytes(rnd, 1<<20+rnd.IntN(1<<20)))
		case k < 127: // to the very end of the page, or nearly
			b.record(rnd.Uint32(), 0, 11, someBytes(rnd, max(0, b.room()-24-rnd.IntN(17)+8)))
		case k < 132:
			b.timeline++
		default:
			b.record(rnd.Uint32(), byte(rnd.IntN(4))<<4, 10, someBytes(rnd, rnd.IntN(200)))
		}
	}
	return b
}

func TestRandomLogs(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b := randomLog(rnd, 800)
		var log io.Reader = bytes.NewReader(b.out)
		if seed%4 == 1 {
			log = iotest.HalfReader(log)
		}
		if seed%4 == 2 { // the rest of the last segment, never written
			b.out = append(b.out, make([]byte, b.segmentSize-len(b.out)%b.segmentSize)...)
			log = iotest.DataErrReader(bytes.NewReader(b.out))
		}
		got, err := readAll(log)
		if err != io.EOF {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := sameRecords(got, b.want); err != nil || len(got) != len(b.want) {
			t.Fatalf("seed %d: %d records of %d: %v", seed, len(got), len(b.want), err)
		}
	}
}

// A log may begin with any of its segments, also with one that begins in the middle
// of a record, or that lies inside one altogether.
func TestBeginWithAnySegment(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 2))
	b := newBuilder(8192, 1<<32)
	for i := range 30 {
		b.record(5, 0, 10, someBytes(rnd, rnd.IntN(400_000)))
		if i == 14 {
			b.record(5, 0, 10, someBytes(rnd, 3_500_000))
		}
	}
	partial := 0
	for off := 0; off < len(b.out); off += b.segmentSize {
		got, err := readAll(bytes.NewReader(b.out[off:]))
		if err != io.EOF {
			t.Fatalf("from segment at %v: %v", b.start+LSN(off), err)
		}
		want := b.want
		for len(want) > 0 && want[0].lsn < b.start+LSN(off) {
			want = want[1:]
		}
		if err := sameRecords(got, want); err != nil || len(got) != len(want) {
			t.Fatalf("from segment at %v: %d records of %d: %v", b.start+LSN(off), len(got), len(want), err)
		}
		if binary.LittleEndian.Uint16(b.out[off+2:])&flagContinues != 0 {
			partial++
		}
	}
	if partial < 3 {
		t.Fatalf("only %d segments begin inside a record; the test covers nothing", partial)
	}
}

// smallLog has a record of each kind within a few pages: inside a page, across one
// boundary, across several, abandoned, and a switch at the end.
func smallLog() *builder {
	rnd := rand.New(rand.NewPCG(3, 3))
	b := newBuilder(minPageSize, 1<<32)
	for i := range 12 {
		b.record(uint32(100+i), 0x10, 10, someBytes(rnd, 30+i))
	}
	b.record(200, 0, 10, someBytes(rnd, 2500))
	b.record(201, 0, 1, someBytes(rnd, 10))
	b.abandon(someBytes(rnd, 1500))
	b.record(202, 0, 1, someBytes(rnd, 700))
	b.record(203, 0, 1, someBytes(rnd, 700))
	b.switchSegment(0)
	b.record(204, 0, 1, someBytes(rnd, 1200))
	return b
}

// Cutting a log anywhere leaves a beginning of its records, then either a clean end,
// if no byte of a further record or page header is there, or ErrTruncated.
func TestEveryTruncation(t *testing.T) {
	b := smallLog()
	switchRec := b.want[len(b.want)-2]
	skipped := int(switchRec.lsn-b.start) + 24 // from here to the segment's end nothing counts
	for cut := 0; cut < len(b.out); cut++ {
		if cut == skipped+1 {
			cut = b.segmentSize
		}
		got, err := readAll(bytes.NewReader(b.out[:cut]))
		if e := sameRecords(got, b.want); e != nil {
			t.Fatalf("cut at %d: %v", cut, e)
		}
		whole := 0 // records of which all bytes are left
		for _, w := range b.want {
			if w.lsn == switchRec.lsn {
				w.end = w.lsn + 24
			}
			pad := align(len(w.raw)) - len(w.raw)
			if int(w.end-b.start)-pad <= cut {
				whole++
			}
		}
		if len(got) != whole {
			t.Fatalf("cut at %d: %d records read, %d are complete: %v", cut, len(got), whole, err)
		}
		// Clean: behind a record and its padding, or behind the header of a page on
		// which nothing has begun.
		header := shortHeaderSize
		if cut/b.pageSize*b.pageSize%b.segmentSize == 0 {
			header = longHeaderSize
		}
		clean := cut > 0 && (cut%b.pageSize == 0 || cut%b.pageSize == header)
		clean = clean && !insideRecord(b, cut)
		for _, w := range b.want {
			pad := align(len(w.raw)) - len(w.raw)
			end := int(w.end - b.start)
			clean = clean || cut >= end-pad && cut <= end
		}
		clean = clean || cut == skipped
		if clean && err != io.EOF {
			t.Fatalf("cut at %d, behind a record: %v", cut, err)
		}
		if !clean && !errors.Is(err, ErrTruncated) {
			t.Fatalf("cut at %d: error %v, want ErrTruncated", cut, err)
		}
	}
}

// insideRecord tells whether the log cut there ends inside a record, or behind a
// record that was abandoned and before the page that says so.
func insideRecord(b *builder, cut int) bool {
	at := b.start + LSN(cut)
	for _, w := range b.want {
		begin := w.lsn
		if w.abandoned != 0 && at <= w.lsn-shortHeaderSize {
			begin = w.abandoned
		}
		if at > begin && at < w.end {
			return true
		}
	}
	return false
}

// A flipped bit in a record is always found, and what was returned before it is
// right. Elsewhere it is found or makes no difference.
func TestEveryFlippedByte(t *testing.T) {
	b := smallLog()
	inRecord := make([]bool, len(b.out))
	for _, w := range b.want {
		for i, rest := int(w.lsn-b.start), len(w.raw); rest > 0; i++ {
			if i%b.pageSize == 0 {
				i += shortHeaderSize
			}
			inRecord[i] = true
			rest--
		}
	}
	switchEnd := int(b.want[len(b.want)-2].lsn-b.start) + 24
	for i := range b.out {
		if i > switchEnd && i < b.segmentSize && i%977 != 0 {
			continue
		}
		for _, flip := range []byte{0x01, 0x80, 0xFF} {
			b.out[i] ^= flip
			got, err := readAll(bytes.NewReader(b.out))
			b.out[i] ^= flip
			// The first page alone says where the log begins; only the second page can
			// contradict it.
			if e := sameRecords(got, b.want); e != nil && (i < 8 || i >= 16) {
				t.Fatalf("byte %d xor %02x: %v", i, flip, e)
			}
			found := errors.Is(err, ErrCorrupt) || errors.Is(err, ErrTruncated)
			if !found && err != io.EOF {
				t.Fatalf("byte %d xor %02x: %v is no FormatError", i, flip, err)
			}
			if !found && (inRecord[i] || i >= 8 && i < 16 || len(got) != len(b.want)) {
				t.Fatalf("byte %d xor %02x: not noticed, %d of %d records", i, flip, len(got), len(b.want))
			}
		}
	}
}

// The length of a record is believed only as far as the log delivers its bytes.
func TestHugeLengthAllocatesLittle(t *testing.T) {
	b := newBuilder(8192, 1<<32)
	b.record(1, 0, 10, make([]byte, 100_000))
	le := binary.LittleEndian
	le.PutUint32(b.out[longHeaderSize:], MaxRecordSize)
	rest := uint32(MaxRecordSize - (b.pageSize - longHeaderSize))
	for page := b.pageSize; page < len(b.out); page += b.pageSize {
		le.PutUint32(b.out[page+16:], rest)
		rest -= uint32(b.pageSize - shortHeaderSize)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := readAll(bytes.NewReader(b.out))
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrTruncated) {
		t.Fatalf("error %v, want ErrTruncated", err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 2<<20 {
		t.Fatalf("%d bytes allocated for a log of %d", used, len(b.out))
	}
}

func TestDamage(t *testing.T) {
	le := binary.LittleEndian
	seg := 1 << 20
	for _, c := range []struct {
		name   string
		damage func(log []byte) []byte
		kind   error
		offset int64 // of the error in the input
	}{
		{"empty", func(l []byte) []byte { return nil }, ErrTruncated, 0},
		{"other magic", func(l []byte) []byte { l[1] = 0xD0; return l }, ErrCorrupt, 0},
		{"begins inside a segment", func(l []byte) []byte { return l[8192:] }, ErrCorrupt, 0},
		{"page size", func(l []byte) []byte { le.PutUint32(l[36:], 1<<30); return l }, ErrCorrupt, 0},
		{"segment size", func(l []byte) []byte { le.PutUint32(l[32:], 3<<20); return l }, ErrCorrupt, 0},
		{"page missing", func(l []byte) []byte { return append(l[:8192:8192], l[2*8192:]...) }, ErrCorrupt, 8192},
		{"segment missing", func(l []byte) []byte { return append(l[:seg:seg], l[2*seg:]...) }, ErrCorrupt, int64(seg)},
		{"other cluster", func(l []byte) []byte { l[seg+24]++; return l }, ErrCorrupt, int64(seg)},
		{"other segment size", func(l []byte) []byte { le.PutUint32(l[seg+32:], 2<<20); return l }, ErrCorrupt, int64(seg)},
		{"older timeline", func(l []byte) []byte { l[seg+4] = 0; return l }, ErrCorrupt, int64(seg)},
		{"unknown flag", func(l []byte) []byte { l[8192+3] = 1; return l }, ErrCorrupt, 8192},
		{"continuation denied", func(l []byte) []byte { l[8192+2] = 0; le.PutUint32(l[8192+16:], 0); return l }, ErrCorrupt, 8192},
		{"record too short", func(l []byte) []byte { le.PutUint32(l[40:], 23); return l }, ErrCorrupt, 40},
		{"record too long", func(l []byte) []byte { le.PutUint32(l[40:], MaxRecordSize+1); return l }, ErrCorrupt, 40},
		{"page of zeros", func(l []byte) []byte { clear(l[8192 : 2*8192]); return l }, ErrTruncated, 8192},
		{"body changed", func(l []byte) []byte { l[40+30] ^= 4; return l }, ErrCorrupt, 40},
	} {
		b := newBuilder(8192, 1<<32)
		for i := range 300 {
			b.record(uint32(i), 0, 10, bytes.Repeat([]byte{byte(i)}, 11_000))
		}
		_, err := readAll(bytes.NewReader(c.damage(b.out)))
		var fe *FormatError
		if !errors.As(err, &fe) || !errors.Is(err, c.kind) || fe.Offset != c.offset {
			t.Errorf("%s: error %v, want %v at byte %d", c.name, err, c.kind, c.offset)
		}
	}
}

// Behind the last record there may be zeros, but nothing else.
func TestDataAfterEnd(t *testing.T) {
	b := newBuilder(8192, 1<<32)
	b.record(1, 0, 10, []byte("body"))
	end := len(b.out)
	b.out = append(b.out, make([]byte, 5*8192)...)
	if got, err := readAll(bytes.NewReader(b.out)); err != io.EOF || len(got) != 1 {
		t.Fatalf("zeros behind the record: %d records, %v", len(got), err)
	}
	for _, i := range []int{end + 4, 8191, 8192, 3*8192 + 100, len(b.out) - 1} {
		b.out[i] = 1
		if got, err := readAll(bytes.NewReader(b.out)); !errors.Is(err, ErrCorrupt) || len(got) != 1 {
			t.Errorf("byte %d is not zero: %d records, error %v, want ErrCorrupt", i, len(got), err)
		}
		b.out[i] = 0
	}
}

// A record that does not follow the one before it is refused although it is intact.
func TestMissingRecordBreaksTheChain(t *testing.T) {
	b := newBuilder(8192, 1<<32)
	b.record(1, 0, 10, []byte("first"))
	b.record(2, 0, 10, []byte("second"))
	b.prev = b.want[0].lsn // as if "second" had never been
	b.record(3, 0, 10, []byte("third"))
	got, err := readAll(bytes.NewReader(b.out))
	var fe *FormatError
	if len(got) != 2 || !errors.As(err, &fe) || fe.Kind != ErrCorrupt || fe.At != b.want[2].lsn {
		t.Fatalf("%d records, error %v, want ErrCorrupt at %v", len(got), err, b.want[2].lsn)
	}
}

func TestInputErrorIsPassedOn(t *testing.T) {
	b := smallLog()
	broken := errors.New("cable pulled")
	for _, n := range []int{0, 20, 500, 1024, 3000, len(b.out) - b.pageSize - 100} {
		got, err := readAll(io.MultiReader(bytes.NewReader(b.out[:n]), iotest.ErrReader(broken)))
		if !errors.Is(err, broken) {
			t.Errorf("input fails after %d bytes: error %v", n, err)
		}
		if e := sameRecords(got, b.want); e != nil {
			t.Errorf("input fails after %d bytes: %v", n, e)
		}
	}
}

func TestLSNText(t *testing.T) {
	for text, want := range map[string]LSN{"0/16B3748": 0x16B3748, "A/0": 0xA << 32, "FFFFFFFF/FFFFFFFF": 1<<64 - 1} {
		got, err := ParseLSN(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: parsed as %v (%x), %v", text, got, uint64(got), err)
		}
	}
	if got, err := ParseLSN("0/02000028"); err != nil || got != 0x2000028 {
		t.Errorf("padded form: %v, %v", got, err)
	}
	for _, text := range []string{"", "0", "0/", "/0", "0/100000000", "x/0", "-1/0", "0/0/0"} {
		if got, err := ParseLSN(text); err == nil {
			t.Errorf("%q: parsed as %v", text, got)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	b := newBuilder(8192, 1<<32)
	b.record(7, 0x20, 10, []byte("some bytes"))
	raw := b.want[0].raw
	h, err := Decode(raw)
	if err != nil || h.XID != 7 || h.Info != 0x20 || h.RmgrName() != "Heap" || h.Prev != b.want[0].prev || int(h.Length) != len(raw) {
		t.Fatalf("intact record: %+v, %v", h, err)
	}
	if _, err := Decode(append(raw, 0)); err == nil {
		t.Error("accepted with a byte too many")
	}
	for n := range raw {
		if _, err := Decode(raw[:n]); err == nil {
			t.Errorf("accepted with %d bytes of %d", n, len(raw))
		}
	}
	for i := range raw {
		raw[i] ^= 0x10
		if _, err := Decode(raw); err == nil {
			t.Errorf("accepted with byte %d changed", i)
		}
		raw[i] ^= 0x10
	}
}

func FuzzReader(f *testing.F) {
	b := smallLog()
	f.Add(b.out[:b.segmentSize/64])
	f.Add(b.out[:6000])
	rnd := rand.New(rand.NewPCG(1, 1))
	c := newBuilder(minPageSize, 1<<32)
	c.record(1, 0, 10, someBytes(rnd, 100))
	c.record(1, 0, 10, someBytes(rnd, 3000))
	f.Add(c.out)
	f.Fuzz(func(t *testing.T, log []byte) {
		recs, err := readAll(bytes.NewReader(log))
		var fe *FormatError
		if err != io.EOF && !errors.As(err, &fe) {
			t.Fatalf("error %v is neither io.EOF nor a FormatError", err)
		}
		total := 0
		for i, rec := range recs {
			total += len(rec.Raw)
			if _, err := Decode(rec.Raw); err != nil {
				t.Fatalf("record at %v: %v", rec.LSN, err)
			}
			if rec.End < rec.LSN+LSN(len(rec.Raw)) || i > 0 && (rec.LSN < recs[i-1].End || rec.Prev != recs[i-1].LSN) {
				t.Fatalf("record at %v–%v of %d bytes does not follow its predecessor", rec.LSN, rec.End, len(rec.Raw))
			}
		}
		if total > len(log) {
			t.Fatalf("%d bytes of records from a log of %d", total, len(log))
		}
	})
}
