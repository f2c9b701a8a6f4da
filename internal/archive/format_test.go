package archive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"os"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/memory"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden file")

// small makes an object of three groups.
func small(t testing.TB) (Key, []byte) {
	p := plan(3, 40, 41, 190, 200, 0)
	body, k, err := Build(nil, p, sourceOf(p))
	if err != nil {
		t.Fatal(err)
	}
	return k, body
}

// The bytes of format version 1 never change: what was archived must be readable for ever, and nodes of all builds must
// agree on names. A new version adds a file.
func TestGolden(t *testing.T) {
	const file = "testdata/segment-v1.golden"
	k, body := small(t)
	got := append([]byte(k.name()+"\n"), body...)
	if *rewrite {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("format version 1 has changed")
	}
	next := k.First
	err = Decode(k, want[nameBytes+1:], func(r Record) bool {
		checkRecord(t, r, 3, next)
		next++
		return true
	})
	if err != nil || next != k.Last+1 {
		t.Fatal(next, err)
	}
}

// Every truncation and every flipped bit of an object is detected by the whole check, and by a ranged reader unless the
// damage lies in bytes that it does not read: then what it serves is right.
func TestEveryTruncationAndBitFlip(t *testing.T) {
	k, body := small(t)
	if err := Decode(k, body, nil); err != nil {
		t.Fatal(err)
	}
	check := func(what string, at int, b []byte) {
		t.Helper()
		if err := Decode(k, b, nil); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrTooNew) {
			t.Fatalf("%s at %d: %v", what, at, err)
		}
	}
	for n := range body {
		check("truncation", n, body[:n])
	}
	check("extension", len(body), append(bytes.Clone(body), 0))
	for i := range body {
		for bit := range 8 {
			b := bytes.Clone(body)
			b[i] ^= 1 << bit
			check("flip", i, b)
		}
	}
	// The same through the reader, one flip per byte.
	p := plan(3, 40, 41, 190, 200, 0)
	for i := range len(body) * 2 {
		store := memory.New(memory.Options{})
		a := newArchive(t, store, Options{Attempts: 1})
		b := bytes.Clone(body)
		if i < len(body) {
			b[i] ^= 1 << (i % 8)
		} else {
			b = b[:i-len(body)]
		}
		if _, err := store.Put(t.Context(), a.KeyString(k), b, metadata(p, NoCompression), objstore.Always()); err != nil {
			t.Fatal(err)
		}
		r := a.Reader(testLog)
		labels, err := scanAll(t, r, 41, 190, Watermark{}) // checks each record
		var nf *NotFoundError
		switch {
		case err == nil && i >= len(body):
			t.Fatalf("object cut to %d bytes was read whole", len(b))
		case err == nil && i >= headBytes && (i < len(b)-tailBytes+32 || i >= len(b)-tailBytes+36):
			t.Fatalf("flip at %d was not noticed", i)
		case err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrTooNew) && !errors.As(err, &nf):
			t.Fatalf("byte %d: %v after %d records", i, err, len(labels))
		}
	}
}

func TestNewerVersionIsToldFromDamage(t *testing.T) {
	k, body := small(t)
	b := bytes.Clone(body)
	binary.LittleEndian.PutUint16(b[8:], newestFormat+1)
	if err := Decode(k, b, nil); !errors.Is(err, ErrTooNew) {
		t.Fatal(err)
	}
	b = bytes.Clone(body)
	binary.LittleEndian.PutUint16(b[len(b)-tailBytes+36:], newestFormat+1)
	if _, err := tailSize(b, int64(len(b))); !errors.Is(err, ErrTooNew) {
		t.Fatal(err)
	}
}

// An object under another object's name is damaged, even if it is whole.
func TestBodyUnderAnotherName(t *testing.T) {
	k, body := small(t)
	for _, edit := range []func(*Key){
		func(k *Key) { k.Log++ }, func(k *Key) { k.Label++ }, func(k *Key) { k.First-- }, func(k *Key) { k.Last++ }, func(k *Key) { k.Hash[3] ^= 1 },
	} {
		other := k
		edit(&other)
		if err := Decode(other, body, nil); !errors.Is(err, ErrDamaged) {
			t.Fatalf("%+v: %v", other, err)
		}
	}
}

func TestGroupLimits(t *testing.T) {
	// Records of every kind of size: empty, larger than a group, the largest.
	sizes := map[protocol.LSN]int{1: 0, 2: groupBytes, 3: groupBytes - 1, 4: protocol.MaxRecordBytes, 5: 1, 200: groupBytes - 4}
	p := plan(1, 1, 1, 300, 300, 0)
	src := func(yield func(Record, error) bool) {
		for lsn := p.First; lsn <= p.Last; lsn++ {
			if !yield(Record{LSN: lsn, Label: 1, Data: bytes.Repeat([]byte{byte(lsn)}, sizes[lsn])}, nil) {
				return
			}
		}
	}
	body, k, err := Build(nil, p, src)
	if err != nil {
		t.Fatal(err)
	}
	next := p.First
	visit := func(r Record) bool {
		if r.LSN != next || len(r.Data) != sizes[next] || bytes.Count(r.Data, []byte{byte(next)}) != len(r.Data) {
			t.Fatalf("LSN %d: record %d of %d bytes", next, r.LSN, len(r.Data))
		}
		next++
		return true
	}
	if err := Decode(k, body, visit); err != nil || next != 301 {
		t.Fatal(next, err)
	}
	store := memory.New(memory.Options{})
	a := newArchive(t, store, Options{ReadBytes: 10})
	if _, err := a.Flush(t.Context(), p, src); err != nil {
		t.Fatal(err)
	}
	next = 1
	for r, err := range a.Reader(testLog).Scan(t.Context(), 1, 300, Watermark{}) {
		if err != nil {
			t.Fatal(err)
		}
		visit(r)
	}
	if next != 301 {
		t.Fatal(next)
	}
}

func TestKeysParseStrictly(t *testing.T) {
	a := newArchive(t, memory.New(memory.Options{}), Options{})
	k := Key{Log: 0xabc, Label: 7, First: 1, Last: 0x1ff, Kind: Committed, Hash: [16]byte{1, 2, 255}}
	s := a.KeyString(k)
	const want = "cluster/one/arch/0000000000000abc/0000000000000007/0000000000000001-00000000000001ff-c-0102ff00000000000000000000000000"
	if s != want {
		t.Fatal(s)
	}
	if err := objstore.CheckKey(s); err != nil {
		t.Fatal(err)
	}
	if got, err := a.ParseKey(s); err != nil || got != k {
		t.Fatal(got, err)
	}
	// Every change of one character makes another key or none, never the same.
	for i := range s {
		for _, c := range []byte("0Ff-/gpc+ x_") {
			b := []byte(s)
			if b[i] == c {
				continue
			}
			b[i] = c
			if got, err := a.ParseKey(string(b)); err == nil && (a.KeyString(got) != string(b) || got == k) {
				t.Fatalf("%q parsed as %+v", b, got)
			}
		}
		if _, err := a.ParseKey(s[:i]); err == nil {
			t.Fatalf("%q was parsed", s[:i])
		}
	}
	for _, bad := range []string{s + "0", s + "/x", "x" + s, ""} {
		if _, err := a.ParseKey(bad); err == nil {
			t.Fatalf("%q was parsed", bad)
		}
	}
	for _, edit := range []func(*Key){func(k *Key) { k.Log = 0 }, func(k *Key) { k.Label = 0 }, func(k *Key) { k.First = 0 },
		func(k *Key) { k.First = 0x200 }, func(k *Key) { k.Last = 1 << 63 }, func(k *Key) { k.Kind = 'x' }} {
		other := k
		edit(&other)
		if _, err := a.ParseKey(a.KeyString(other)); err == nil {
			t.Fatalf("%+v was parsed", other)
		}
	}
}

func FuzzDecode(f *testing.F) {
	k, body := small(f)
	f.Add(body)
	_, compressed := smallCompressed(f)
	f.Add(compressed)
	f.Add(body[:headBytes])
	f.Add(body[len(body)-tailBytes:])
	f.Fuzz(func(t *testing.T, b []byte) {
		key := k
		// Follow the header, so that the checks behind it are reached.
		if h, err := parseHead(b); err == nil {
			key = Key{Log: h.log, Label: h.label, First: h.first, Last: h.last, Kind: Committed, Hash: k.Hash}
		}
		if len(b) >= tailBytes {
			copy(key.Hash[:], b[len(b)-tailBytes:])
		}
		if err := Decode(key, b, nil); err == nil && !bytes.Equal(b, body) && !bytes.Equal(b, compressed) {
			// A whole object that is not the seed must rebuild to itself.
			var recs []Record
			Decode(key, b, func(r Record) bool { recs = append(recs, r); return true })
			h, _ := parseHead(b)
			p := protocol.Segment{Log: h.log, Label: h.label, SegStart: h.segStart, First: h.first, Last: h.last, CLSN: h.last}
			_, again, err := Build(nil, p, func(yield func(Record, error) bool) {
				for _, r := range recs {
					if !yield(r, nil) {
						return
					}
				}
			})
			if err != nil || again.Hash != key.Hash {
				t.Fatalf("accepted an object that is not what its hash says: %v", err)
			}
		}
		if n, err := tailSize(b, int64(len(b))); err == nil {
			if tl, err := parseTail(b[int64(len(b))-n:], 1000); err == nil && len(tl.groups) == 0 {
				t.Fatal("accepted an index without groups")
			}
		}
	})
}

func FuzzParseName(f *testing.F) {
	k, _ := small(f)
	f.Add(k.name())
	f.Fuzz(func(t *testing.T, s string) {
		if k, err := parseName(s); err == nil && k.name() != s {
			t.Fatalf("%q parsed as %q", s, k.name())
		}
	})
}
