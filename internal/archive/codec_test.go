package archive

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/memory"
)

// deflate is a codec of the standard library under a number that no program writes, so that the format can be tested without the
// module that brings the real one; compress/zstd has the same tests of that.
const deflate Compression = 0xfd

type deflateCodec struct{}

func init() { RegisterCodec(deflate, deflateCodec{}) }

func (deflateCodec) Compress(dst, src []byte) []byte {
	b := bytes.NewBuffer(dst)
	w, err := flate.NewWriter(b, flate.BestSpeed)
	if err == nil {
		_, err = w.Write(src)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err)
	}
	return b.Bytes()
}

func (deflateCodec) Decompress(dst, src []byte, n int) ([]byte, error) {
	at := len(dst)
	dst = slices.Grow(dst, n)[:at+n]
	r := flate.NewReader(bytes.NewReader(src))
	if _, err := io.ReadFull(r, dst[at:]); err != nil {
		return dst[:at], err
	}
	if k, err := r.Read(make([]byte, 1)); k != 0 || err != io.EOF {
		return dst[:at], errors.New("longer than it should be")
	}
	return dst, nil
}

// smallCompressed makes an object of three compressed groups.
func smallCompressed(t testing.TB) (Key, []byte) {
	p := plan(3, 40, 41, 190, 200, 0)
	body, k, s, err := build(nil, p, sourceOf(p), deflate)
	if err != nil {
		t.Fatal(err)
	}
	_, plain := small(t)
	if s.compression != deflate || len(body) >= len(plain) || s.plainSize != int64(len(plain)) {
		t.Fatalf("%+v: %d bytes, %d without compression", s, len(body), len(plain))
	}
	return k, body
}

// A compressed object has the name and the records of the plain one.
func TestCompressedObjectHasTheSameName(t *testing.T) {
	k, body := smallCompressed(t)
	if plain, _ := small(t); k != plain {
		t.Fatalf("%+v, not %+v", k, plain)
	}
	next := k.First
	err := Decode(k, body, func(r Record) bool {
		checkRecord(t, r, 3, next)
		next++
		return true
	})
	if err != nil || next != k.Last+1 {
		t.Fatal(next, err)
	}
}

// noise yields records of which some shrink and some do not: a group of each, and both in one object.
func noise(p protocol.Segment) RecordSource {
	return func(yield func(Record, error) bool) {
		for lsn := p.First; lsn <= p.Last; lsn++ {
			data := bytes.Repeat([]byte{byte(lsn)}, 700)
			if lsn/64%2 == 0 {
				x := uint64(lsn)*0x9e3779b97f4a7c15 + 1
				for i := range data {
					x ^= x << 13
					x ^= x >> 7
					x ^= x << 17
					data[i] = byte(x >> 32)
				}
			}
			if !yield(Record{LSN: lsn, Label: p.Label, Data: data}, nil) {
				return
			}
		}
	}
}

// Groups that do not shrink are stored as they are; if none shrinks, the object is the one of version 1, byte for byte.
func TestWhatDoesNotShrink(t *testing.T) {
	p := plan(1, 1, 1, 63, 63, 0) // one group, all noise
	plain, k, err := Build(nil, p, noise(p))
	if err != nil {
		t.Fatal(err)
	}
	body, k2, s, err := build(nil, p, noise(p), deflate)
	if err != nil || k2 != k || !bytes.Equal(body, plain) || s.compression != NoCompression {
		t.Fatalf("%v: %+v, %d bytes and %d", err, s, len(body), len(plain))
	}
	p = plan(1, 1, 1, 400, 400, 0)
	want := make(map[protocol.LSN][]byte)
	for r := range noise(p) {
		want[r.LSN] = bytes.Clone(r.Data)
	}
	store := memory.New(memory.Options{})
	a := newArchive(t, store, Options{Compression: deflate, ReadBytes: 70000})
	if _, err := a.Flush(t.Context(), p, noise(p)); err != nil {
		t.Fatal(err)
	}
	r := newArchive(t, store, Options{ReadBytes: 70000}).Reader(testLog)
	next := protocol.LSN(1)
	for rec, err := range r.Scan(t.Context(), 1, 400, Watermark{}) {
		if err != nil || rec.LSN != next || !bytes.Equal(rec.Data, want[next]) {
			t.Fatal(next, rec.LSN, err)
		}
		next++
	}
	if next != 401 {
		t.Fatal(next)
	}
	stored, shrunk := 0, 0
	for _, tail := range r.footers.tails {
		for i, g := range tail.groups {
			end, _ := tail.groupEnd(i, 400)
			switch n := tail.storedEnd(i) - uint64(g.stored); {
			case n == end-uint64(g.offset):
				stored++
			case n < end-uint64(g.offset):
				shrunk++
			}
		}
	}
	if stored == 0 || shrunk == 0 {
		t.Fatalf("%d groups as they are, %d compressed", stored, shrunk)
	}
	for _, lsn := range []protocol.LSN{1, 63, 64, 127, 128, 200, 400} {
		if rec, err := r.Read(t.Context(), lsn, Watermark{}, nil); err != nil || !bytes.Equal(rec.Data, want[lsn]) {
			t.Fatal(lsn, err)
		}
	}
}

// Nodes with and without compression make one object, whoever is first, and believe each other's.
func TestNodesWithAndWithoutCompression(t *testing.T) {
	for _, clsn := range []protocol.LSN{300, 250} { // committed, and a failure snapshot, whose size is looked at
		for _, first := range []Compression{NoCompression, deflate} {
			s := newFaulty()
			for _, c := range []Compression{first, deflate - first} {
				p := plan(2, 1, 1, 300, clsn, 0)
				if objs := flush(t, newArchive(t, s, Options{Compression: c}), p); len(objs) != 1 || objs[0].CLSN != clsn {
					t.Fatalf("%v first, then %v: %v", first, c, objs)
				}
			}
			a := newArchive(t, s, Options{})
			if k := keys(t, a); len(k) != 1 {
				t.Fatalf("%v first: %d objects", first, len(k))
			}
			if _, err := scanAll(t, a.Reader(testLog), 1, clsn, Watermark{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A record of a compressed object is one ranged read of less than its group has.
func TestCompressedPointRead(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{Compression: deflate})
	flush(t, a, plan(1, 1, 1, 20000, 20000, 0))
	r := a.Reader(testLog)
	for _, lsn := range []protocol.LSN{1, 64, 65, 9999, 20000} {
		rec, err := r.Read(t.Context(), lsn, Watermark{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		checkRecord(t, rec, 1, lsn)
	}
	before := a.Counters().Get
	if _, err := r.Read(t.Context(), 4444, Watermark{}, nil); err != nil {
		t.Fatal(err)
	}
	after := a.Counters().Get
	var plain uint64
	for lsn := protocol.LSN(4417); lsn <= 4480; lsn++ {
		plain += uint64(protocol.EncodedSize(len(payload(1, lsn))))
	}
	if after.OK != before.OK+1 || after.Bytes-before.Bytes >= plain {
		t.Fatalf("%d requests, %d bytes; the group has %d", after.OK-before.OK, after.Bytes-before.Bytes, plain)
	}
}

// Of a compressed object every cut and every flip is found by the whole check; a ranged reader serves the right record or fails
// with an error that names the object.
func TestDamageOfACompressedObject(t *testing.T) {
	k, body := smallCompressed(t)
	p := plan(3, 40, 41, 190, 200, 0)
	for i := range 2 * len(body) {
		b := bytes.Clone(body)
		if i < len(body) {
			b[i] ^= 1 << (i % 8)
		} else {
			b = b[:i-len(body)]
		}
		if err := Decode(k, b, nil); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrTooNew) {
			t.Fatalf("byte %d: %v", i, err)
		}
		store := memory.New(memory.Options{})
		a := newArchive(t, store, Options{Attempts: 1})
		if _, err := store.Put(t.Context(), a.KeyString(k), b, metadata(p, deflate), objstore.Always()); err != nil {
			t.Fatal(err)
		}
		labels, err := scanAll(t, a.Reader(testLog), 41, 190, Watermark{}) // checks each record
		var nf *NotFoundError
		switch {
		case err == nil && i >= len(body):
			t.Fatalf("object cut to %d bytes was read whole", len(b))
		case err == nil || errors.As(err, &nf):
		case !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrTooNew), !strings.Contains(err.Error(), a.KeyString(k)):
			t.Fatalf("byte %d: %v after %d records", i, err, len(labels))
		}
	}
}

// A group that claims to be longer than it is, or shorter, is damage, and gives no record.
func TestGroupOfAnotherLength(t *testing.T) {
	p := plan(1, 1, 1, 500, 500, 0)
	body, _, _, err := build(nil, p, sourceOf(p), deflate)
	if err != nil {
		t.Fatal(err)
	}
	for _, by := range []int{-1, 1, 1 << 20} {
		n, err := tailSize(body, int64(len(body)))
		if err != nil {
			t.Fatal(err)
		}
		tl, err := parseTail(body[int64(len(body))-n:], 500)
		if err != nil {
			t.Fatal(err)
		}
		tl.groups[1].offset = uint32(int(tl.groups[1].offset) + by)
		if _, err := tl.plain(nil, 0, 0, body[headBytes:headBytes+tl.groups[1].stored]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("by %d: %v", by, err)
		}
	}
}

// Without the codec the error says what to import, and is no damage.
func TestWithoutTheCodec(t *testing.T) {
	const file = "testdata/segment-v2-zstd.golden"
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	k, err := parseName(string(golden[:nameBytes]))
	if err != nil {
		t.Fatal(err)
	}
	store := memory.New(memory.Options{})
	a := newArchive(t, store, Options{})
	if _, err := store.Put(t.Context(), a.KeyString(k), golden[nameBytes+1:], nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	_, scan := scanAll(t, a.Reader(k.Log), k.First, k.Last, Watermark{})
	_, read := a.Reader(k.Log).Read(t.Context(), k.First, Watermark{}, nil)
	_, setting := New(store, Options{Compression: Zstd})
	_, parse := ParseCompression("zstd")
	c, err := a.Contents(t.Context(), k.Log)
	if err != nil || len(c.Stored) != 1 {
		t.Fatal(c, err)
	}
	for what, err := range map[string]error{"decode": Decode(k, golden[nameBytes+1:], nil), "scan": scan, "read": read, "setting": setting, "parse": parse, "verify": a.Verify(t.Context(), &c.Stored[0])} {
		if !errors.Is(err, ErrTooNew) || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), `import _ "github.com/btrlog/btrlog/compress/zstd"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := (&CodecError{9}); !strings.Contains(err.Error(), "upgrade") {
		t.Error(err)
	}
	if _, err := ParseCompression("lz4"); err == nil || errors.Is(err, ErrTooNew) {
		t.Error(err)
	}
}

// Packs with compressed members, without, and with both are merged into stretches that are whole, and stay compressed.
func TestMergeOfMixedPacks(t *testing.T) {
	s := newFaulty()
	plain, squeezed := newArchive(t, s, Options{}), newArchive(t, s, Options{Compression: deflate})
	const each = 40
	for i := range protocol.LSN(mergeFan) {
		a := plain
		if i%2 == 1 {
			a = squeezed
		}
		first := i*each + 1
		flushPack(t, a, stretch(testLog, 1, first, first+each-1), stretch(testLog+1, 1, first, first+each-1))
	}
	// One record is too short to shrink: version 1, whoever wrote it.
	flushPack(t, squeezed, stretch(testLog, 1, mergeFan*each+1, mergeFan*each+1))
	versions := make(map[uint16]int)
	packs, err := plain.allPacks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packs {
		tl, err := plain.packTail(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		versions[tl.version]++
	}
	if versions[packFormatV1] != mergeFan/2+1 || versions[packFormatV2] != mergeFan/2 {
		t.Fatalf("versions %v", versions)
	}
	r, err := plain.MergePacks(t.Context(), inFuture, keepAll) // of a node that does not compress
	if err != nil || r.Merged < mergeFan {
		t.Fatalf("%+v, %v", r, err)
	}
	c, err := plain.Contents(t.Context(), testLog)
	if err != nil {
		t.Fatal(err)
	}
	merged := 0
	for i := range c.Stored {
		x := &c.Stored[i]
		if err := plain.Verify(t.Context(), x); err != nil {
			t.Error(err)
		}
		if !x.Replaced {
			merged++
			if x.Compression != deflate || x.Content <= x.Size {
				t.Errorf("%+v", x)
			}
		}
	}
	if merged == 0 {
		t.Error("nothing was merged")
	}
	for range 2 { // what was merged, and then without the sources
		for log := range protocol.LogID(2) {
			n := protocol.LSN(0)
			for rec, err := range newArchive(t, s, Options{}).Reader(testLog+log).Scan(t.Context(), 1, mergeFan*each, Watermark{}) {
				if n++; err != nil || rec.LSN != n || !bytes.Equal(rec.Data, payload(1, n)) {
					t.Fatal(log, n, rec.LSN, err)
				}
			}
			if n != mergeFan*each {
				t.Fatal(log, n)
			}
		}
		if _, err := squeezed.MergePacks(t.Context(), inFuture, keepAll); err != nil {
			t.Fatal(err)
		}
	}
}

// Every flip in a pack of compressed members gives the records that were written, or an error.
func TestDamageOfACompressedPack(t *testing.T) {
	s := memory.New(memory.Options{})
	a := newArchive(t, s, Options{Compression: deflate})
	flushPack(t, a, stretch(testLog, 1, 1, 40), stretch(testLog+1, 1, 1, 40))
	name := packNames(t, a)[0]
	body := readAll(t, s, name)
	for i := range body {
		b := bytes.Clone(body)
		b[i] ^= 1 << (i % 8)
		if _, err := s.Put(t.Context(), name, b, nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		for log := range protocol.LogID(2) {
			n := protocol.LSN(0)
			for rec, err := range newArchive(t, s, Options{Attempts: 1}).Reader(testLog+log).Scan(t.Context(), 1, 40, Watermark{}) {
				if err != nil {
					var nf *NotFoundError
					if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrTooNew) && !errors.As(err, &nf) {
						t.Fatalf("byte %d: %v", i, err)
					}
					break
				}
				if n++; rec.LSN != n || !bytes.Equal(rec.Data, payload(1, n)) {
					t.Fatalf("byte %d: LSN %d of log %v is another record", i, n, testLog+log)
				}
			}
		}
	}
}

// Members that compress very well are not joined beyond what uncompressed members would be.
func TestRunsAreCutByPlainBytes(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{Compression: deflate})
	big := make([]byte, 600<<10)
	for i := range protocol.LSN(mergeFan) {
		p := plan(1, 1, i+1, i+1, i+1, 0)
		r := a.FlushPack(t.Context(), []PackPlan{{p, func(yield func(Record, error) bool) { yield(Record{LSN: p.First, Label: 1, Data: big}, nil) }}})
		if r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
	}
	r, err := a.MergePacks(t.Context(), inFuture, keepAll)
	if err != nil || r.Merged != mergeFan || r.Members != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
}

func readAll(t *testing.T, s objstore.Store, key string) []byte {
	t.Helper()
	r, _, err := s.Get(t.Context(), key, objstore.Range{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", key, err))
	}
	return b
}

// Retention by size counts what the store has, not what the records would take.
func TestRetentionCountsStoredBytes(t *testing.T) {
	s := newFaulty()
	a := newArchive(t, s, Options{Compression: deflate})
	const each = 2000
	for i := range protocol.LSN(4) {
		flush(t, a, plan(1, i*each+1, i*each+1, (i+1)*each, 4*each, 0))
	}
	c, err := a.Contents(t.Context(), testLog)
	if err != nil || len(c.Stored) != 4 {
		t.Fatal(c, err)
	}
	two := c.Stored[2].Size + c.Stored[3].Size
	if err := a.Verify(t.Context(), &c.Stored[0]); err != nil || c.Stored[0].Content < 2*c.Stored[0].Size {
		t.Fatal(c.Stored[0], err)
	}
	for bytes, want := range map[int64]protocol.LSN{two: 2*each + 1, two + 1: each + 1} {
		if point, err := a.Expired(t.Context(), testLog, 1, Retention{Bytes: bytes}); err != nil || point != want {
			t.Errorf("%d bytes: %d, %v; want %d", bytes, point, err, want)
		}
	}
}
