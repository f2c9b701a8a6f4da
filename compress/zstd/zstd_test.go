package zstd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/memory"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

const testLog protocol.LogID = 0xabc

// payload is what LSN lsn of a log holds: its bytes name both, and its length varies.
func payload(log protocol.LogID, lsn protocol.LSN) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(log))
	b = binary.BigEndian.AppendUint64(b, uint64(lsn))
	return append(b, bytes.Repeat([]byte{byte(lsn)}, int(lsn*7)%50)...)
}

func plan(log protocol.LogID, first, last protocol.LSN) protocol.Segment {
	return protocol.Segment{Log: log, Label: 3, SegStart: first, First: first, Last: last, CLSN: last, Complete: true}
}

func source(p protocol.Segment) archive.RecordSource {
	return func(yield func(archive.Record, error) bool) {
		for lsn := p.First; lsn <= p.Last; lsn++ {
			if !yield(archive.Record{LSN: lsn, Label: p.Label, Data: payload(p.Log, lsn)}, nil) {
				return
			}
		}
	}
}

func open(t testing.TB, s objstore.Store, c archive.Compression) *archive.Archive {
	t.Helper()
	a, err := archive.New(s, archive.Options{Compression: c, Attempts: 1, ReadBytes: 4000})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// only returns the one object that the store has.
func only(t testing.TB, s objstore.Store) (key string, body []byte) {
	t.Helper()
	for o, err := range objstore.All(t.Context(), s, "") {
		if err != nil || key != "" {
			t.Fatal(o.Key, key, err)
		}
		key = o.Key
	}
	r, _, err := s.Get(t.Context(), key, objstore.Whole)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if body, err = io.ReadAll(r); err != nil {
		t.Fatal(err)
	}
	return key, body
}

// readBack reads [1, last] of a log, and returns how many records came before the error; each is compared.
func readBack(t testing.TB, a *archive.Archive, log protocol.LogID, last protocol.LSN) (protocol.LSN, error) {
	t.Helper()
	n := protocol.LSN(0)
	for r, err := range a.Reader(log).Scan(t.Context(), 1, last, archive.Watermark{}) {
		if err != nil {
			return n, err
		}
		if n++; r.LSN != n || !bytes.Equal(r.Data, payload(log, n)) {
			t.Fatalf("log %v LSN %d: LSN %d, %x", log, n, r.LSN, r.Data)
		}
	}
	return n, nil
}

func segment(t testing.TB, s objstore.Store) {
	t.Helper()
	p := plan(testLog, 1, 200)
	if _, err := open(t, s, archive.Zstd).Flush(t.Context(), p, source(p)); err != nil {
		t.Fatal(err)
	}
}

func pack(t testing.TB, s objstore.Store) {
	t.Helper()
	var plans []archive.PackPlan
	for _, p := range []protocol.Segment{plan(testLog, 1, 80), plan(testLog+1, 1, 1), plan(testLog+2, 1, 80)} { // the second does not shrink
		plans = append(plans, archive.PackPlan{Plan: p, Source: source(p)})
	}
	for _, r := range open(t, s, archive.Zstd).FlushPack(t.Context(), plans) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}

// What was archived is readable for ever, whatever later encoders make of the same records.
func TestGolden(t *testing.T) {
	for _, g := range []struct {
		file string
		make func(testing.TB, objstore.Store)
		logs map[protocol.LogID]protocol.LSN
	}{
		{"segment-v2-zstd", segment, map[protocol.LogID]protocol.LSN{testLog: 200}},
		{"pack-v2-zstd", pack, map[protocol.LogID]protocol.LSN{testLog: 80, testLog + 1: 1, testLog + 2: 80}},
	} {
		file := "../../internal/archive/testdata/" + g.file + ".golden"
		if *rewrite {
			s := memory.New(memory.Options{})
			g.make(t, s)
			key, body := only(t, s)
			if err := os.WriteFile(file, append([]byte(strings.TrimPrefix(key, "arch/")+"\n"), body...), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name, body, _ := bytes.Cut(b, []byte("\n"))
		key := string(name)
		if !strings.HasPrefix(key, "pack/") {
			key = "arch/" + key
		}
		s := memory.New(memory.Options{})
		if _, err := s.Put(t.Context(), key, body, nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		a := open(t, s, archive.NoCompression)
		for log, last := range g.logs {
			if n, err := readBack(t, a, log, last); err != nil || n != last {
				t.Fatalf("%s: log %v: %d records, %v", g.file, log, n, err)
			}
			c, err := a.Contents(t.Context(), log)
			if err != nil || len(c.Stored) != 1 {
				t.Fatal(c, err)
			}
			if err := a.Verify(t.Context(), &c.Stored[0]); err != nil || (c.Stored[0].Compression == archive.Zstd) != (last > 1) {
				t.Fatalf("%s: %+v, %v", g.file, c.Stored[0], err)
			}
		}
	}
}

// Every flip and every cut of a compressed object or pack gives the records that were written or an error that names the object.
func TestDamage(t *testing.T) {
	for _, of := range []struct {
		make func(testing.TB, objstore.Store)
		logs map[protocol.LogID]protocol.LSN
	}{
		{segment, map[protocol.LogID]protocol.LSN{testLog: 200}},
		{pack, map[protocol.LogID]protocol.LSN{testLog: 80, testLog + 2: 80}},
	} {
		s := memory.New(memory.Options{})
		of.make(t, s)
		key, body := only(t, s)
		failed := 0
		for i := range 2 * len(body) {
			b := bytes.Clone(body)
			if i < len(body) {
				b[i] ^= 1 << (i % 8)
			} else {
				b = b[:i-len(body)]
			}
			if _, err := s.Put(t.Context(), key, b, nil, objstore.Always()); err != nil {
				t.Fatal(err)
			}
			a := open(t, s, archive.NoCompression)
			for log, last := range of.logs {
				_, err := readBack(t, a, log, last)
				var missing *archive.NotFoundError
				switch {
				case err == nil && i >= len(body):
					t.Fatalf("%s cut to %d bytes was read", key, len(b))
				case err == nil:
				case errors.As(err, &missing):
					failed++
				case !errors.Is(err, archive.ErrDamaged) && !errors.Is(err, archive.ErrTooNew), !strings.Contains(err.Error(), key):
					t.Fatalf("%s, byte %d: %v", key, i, err)
				default:
					failed++
				}
			}
		}
		if failed < len(body) {
			t.Errorf("%s: %d errors of %d changes", key, failed, 2*len(body))
		}
	}
}

// Merging what nodes with and without compression packed gives stretches that are whole and compressed.
func TestMerge(t *testing.T) {
	s := memory.New(memory.Options{})
	const each, packs = 50, 8
	for i := range protocol.LSN(packs) {
		p := plan(testLog, i*each+1, (i+1)*each)
		a := open(t, s, archive.Compression(i%2))
		if r := a.FlushPack(t.Context(), []archive.PackPlan{{Plan: p, Source: source(p)}}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
	}
	a := open(t, s, archive.NoCompression)
	later := time.Now().Add(1000 * time.Hour)
	keepAll := func(context.Context, protocol.LogID) (protocol.LSN, error) { return 0, nil }
	for range 2 { // the second removes what the first merged
		if _, err := a.MergePacks(t.Context(), later, keepAll); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := readBack(t, a, testLog, packs*each); err != nil || n != packs*each {
		t.Fatal(n, err)
	}
	c, err := a.Contents(t.Context(), testLog)
	if err != nil || len(c.Stored) != 1 || c.Stored[0].Compression != archive.Zstd || c.Stored[0].Content <= c.Stored[0].Size {
		t.Fatalf("%+v, %v", c, err)
	}
}

// A group of any length comes back, and none gets more room than it is said to need.
func TestCodec(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var c codec
	for _, n := range []int{1, 4, 5, 100, 255, 256, 4096, 65535, 65536, 65537, 131072, 131073, 1 << 20, 8<<20 + 65536} {
		for _, noisy := range []int{0, 2, 50} { // percent
			if n > 1<<20 && noisy != 2 {
				continue // one of the largest will do
			}
			src := make([]byte, n)
			for i := range src {
				src[i] = byte(i / 1000)
				if rnd.IntN(100) < noisy {
					src[i] = byte(rnd.Uint32())
				}
			}
			b := c.Compress([]byte("before"), src)[len("before"):]
			got, err := c.Decompress([]byte("before"), b, n)
			if err != nil || !bytes.Equal(got[len("before"):], src) || string(got[:len("before")]) != "before" {
				t.Fatalf("%d bytes, %d %% noise: %v", n, noisy, err)
			}
			for _, wrong := range []int{0, n - 1, n + 1} {
				got, err := c.Decompress(nil, b, wrong)
				if err == nil {
					t.Fatalf("%d bytes were uncompressed to %d", n, wrong)
				}
				if cap(got) > 2*wrong+64 {
					t.Fatalf("room for %d bytes was made, %d were allowed", cap(got), wrong)
				}
			}
		}
	}
}

// FuzzDecompress: whatever the input, the output has the length that was asked for, or there is an error.
func FuzzDecompress(f *testing.F) {
	var c codec
	f.Add(c.Compress(nil, bytes.Repeat([]byte("record "), 100)), uint16(700))
	f.Add(c.Compress(nil, []byte{}), uint16(1))
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xa4, 0xff, 0xff, 0xff, 0x7f}, uint16(9))
	f.Fuzz(func(t *testing.T, b []byte, n uint16) {
		got, err := c.Decompress(nil, b, int(n))
		if err == nil && len(got) != int(n) || cap(got) > 2*int(n)+64 {
			t.Fatalf("%d bytes of room, %d bytes, %d asked for: %v", cap(got), len(got), n, err)
		}
	})
}
