package lst

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/lst/vfs"
)

// The space that the index takes, exactly counted: file bytes that are neither
// batch frames nor padding.
func TestIndexBytesPerMessage(t *testing.T) {
	for _, c := range []struct {
		streams, messages int
		limit             float64
	}{{1, 200_000, 4}, {10_000, 400_000, 25}} {
		d := vfs.NewMem(vfs.MemOptions{})
		opt := Options{FS: d, SegmentBytes: 16 << 20, SnapshotRecords: 100_000, SnapshotBytes: 1 << 40, SnapshotInterval: time.Hour, Inline: true}
		s := mustOpen(t, "/db", opt)
		var b Batch
		batchBytes := 0
		msg := make([]byte, 150)
		for i := 0; i < c.messages; {
			b.Reset()
			for k := 0; k < 20; k++ {
				var id StreamID
				h := sha256.Sum256(fmt.Append(nil, i%c.streams))
				copy(id[:], h[:])
				b.Append(id, uint64(i/c.streams), msg)
				i++
			}
			batchBytes += b.Bytes()
			if _, err := s.Commit(&b, Acknowledged); err != nil {
				t.Fatal(err)
			}
		}
		per := float64(s.Stats().WrittenBytes-int64(batchBytes)) / float64(c.messages)
		t.Logf("%d streams: %.2f index bytes per message", c.streams, per)
		if per > c.limit || per <= 0 {
			t.Fatalf("%d streams: %.2f index bytes per message, limit %.1f", c.streams, per, c.limit)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	_, opt := memStore(12, Buffered)
	opt.SegmentBytes, opt.SnapshotRecords, opt.TailCacheBytes = 64<<20, 1<<30, -1
	opt.SnapshotBytes, opt.SnapshotInterval = 1<<40, time.Hour
	s := mustOpen(t, "/db", opt)
	var b Batch
	msg := make([]byte, 100)
	seq := uint64(0)
	one := func() {
		b.Reset()
		b.Append(sid(1), seq, msg)
		b.Put([]byte("state"), msg[:40])
		if _, err := s.Commit(&b, Acknowledged); err != nil {
			t.Fatal(err)
		}
		seq++
	}
	for i := 0; i < 2000; i++ {
		one()
	}
	// The disk in memory allocates as its file grows: a handful of times.
	limit := 0.5
	if underRace {
		limit = 2 // its instruments allocate
	}
	if n := testing.AllocsPerRun(20_000, one); n > limit {
		t.Fatalf("%.2f allocations per append", n)
	}
}

var rewriteGolden = flag.Bool("lst.rewrite", false, "rewrite the golden file of the format")

// The bytes of format version 1 do not change.
func TestGoldenFormat(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		s := buildSmallAt(t, mode)
		data, err := s.disk.ReadFile("/db/" + segmentName(1))
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join("testdata", fmt.Sprintf("segment-v1-mode%d.hex", mode))
		got := hex.Dump(bytes.TrimRight(data, "\x00"))
		if *rewriteGolden {
			if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Fatalf("mode %d: the format's bytes have changed: that takes a version step, docs/FORMAT-LST.md and a new golden file", mode)
		}
		if _, _, err := Open("/db", s.opt); err != nil {
			t.Fatal(err)
		}
	}
}

func buildSmallAt(t *testing.T, mode Mode) *smallStore {
	d := vfs.NewMem(vfs.MemOptions{})
	s := &smallStore{disk: d, opt: Options{FS: d, Mode: mode, SegmentBytes: 32 << 10, SnapshotRecords: 100, Inline: true, Random: counter(9),
		Now: func() time.Time { return time.Unix(1_700_000_000, 0) }}}
	st := mustOpen(t, "/db", s.opt)
	var b Batch
	for k := uint64(0); k < 12; k++ {
		b.Reset()
		for i := uint64(0); i < 25; i++ {
			b.Append(sid(1), k*25+i, []byte{byte(k), byte(i)})
		}
		b.Append(sid(2), 100-k, []byte("descending"))
		b.Replace(sid(2), 100, []byte("replaced"))
		b.Put([]byte("key"), fmt.Append(nil, "value ", k))
		b.Delete([]byte("absent"))
		if k == 9 {
			b.Trim(sid(2), 95)
			b.DeleteStream(sid(3))
		}
		if k < 6 || k > 9 {
			b.Append(sid(4), 1000+k, nil)
		}
		if _, err := st.Commit(&b, Forced); err != nil && !errors.Is(err, ErrTrimmed) {
			t.Fatal(err)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	return s
}

// Stores written before deltas were in key order open as well: their pieces have no
// first key.
func TestUnkeyedDeltasOpen(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		dump, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("segment-v1-mode%d-unkeyed.hex", mode)))
		if err != nil {
			t.Fatal(err)
		}
		var data []byte
		for _, line := range strings.Split(strings.TrimSpace(string(dump)), "\n") {
			if line == "*" {
				t.Fatal("the dump leaves lines out")
			}
			line, _, _ = strings.Cut(line[10:], "|")
			raw, err := hex.DecodeString(strings.ReplaceAll(line, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			data = append(data, raw...)
		}
		want := buildSmallAt(t, mode)
		size := 32 << 10
		if mode == Buffered {
			size = len(data)
		}
		d := vfs.NewMem(vfs.MemOptions{})
		if err := d.MkdirAll("/db"); err != nil {
			t.Fatal(err)
		}
		f, err := d.Create("/db/"+segmentName(1), 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(append(data, make([]byte, size-len(data))...), 0); err != nil {
			t.Fatal(err)
		}
		opt := want.opt
		opt.FS, opt.lazyInline = d, true
		old := mustOpen(t, "/db", opt)
		now := mustOpen(t, "/db", want.opt)
		if old.ix.cold.Load() == nil {
			t.Fatal("no snapshot to be read when asked for")
		}
		for n := 1; n < 6; n++ {
			a, okA := old.View().Stat(sid(n))
			b, okB := now.View().Stat(sid(n))
			if a != b || okA != okB || n < 3 && a.Count == 0 {
				t.Fatalf("mode %d stream %d: %+v %v, want %+v %v", mode, n, a, okA, b, okB)
			}
		}
		got, err := old.View().GetKV([]byte("key"), nil)
		if want, werr := now.View().GetKV([]byte("key"), nil); err != nil || werr != nil || string(got) != string(want) {
			t.Fatalf("mode %d: %q %v, want %q %v", mode, got, err, want, werr)
		}
	}
}
