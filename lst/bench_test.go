package lst

import (
	"fmt"
	"os"
	"testing"

	"github.com/btrlog/btrlog/lst/vfs"
)

// BenchmarkAppend measures Commit of one batch; the bytes per second are payload.
func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct {
		name    string
		opt     Options
		d       Durability
		batch   int
		streams int
	}{
		{"buffered-1", Options{}, Acknowledged, 1, 1},
		{"buffered-16", Options{}, Acknowledged, 16, 1},
		{"buffered-1-10000streams", Options{}, Acknowledged, 1, 10000},
		{"buffered-forced-1", Options{}, Forced, 1, 1},
		{"direct-512-forced-1", Options{Mode: Direct, BlockBytes: 512}, Forced, 1, 1},
		{"direct-4096-forced-1", Options{Mode: Direct, BlockBytes: 4096}, Forced, 1, 1},
		{"direct-512-forced-16", Options{Mode: Direct, BlockBytes: 512}, Forced, 16, 1},
		{"direct-4096-forced-16", Options{Mode: Direct, BlockBytes: 4096}, Forced, 16, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			dir := b.TempDir()
			s, _, err := Open(dir, c.opt)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			var batch Batch
			msg := make([]byte, 128)
			seq := make([]uint64, c.streams)
			b.SetBytes(int64(128 * c.batch))
			b.ReportAllocs()
			k := 0
			for b.Loop() {
				batch.Reset()
				for i := 0; i < c.batch; i++ {
					k = (k + 7919) % c.streams
					var id StreamID
					id[0], id[1], id[9] = byte(k>>8), byte(k), byte(k*31)
					batch.Append(id, seq[k], msg)
					seq[k]++
				}
				if _, err := s.Commit(&batch, c.d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRawDirectWrite is the floor: one synced direct write of a block into
// a zeroed file.
func BenchmarkRawDirectWrite(b *testing.B) {
	for _, block := range []int{512, 4096} {
		b.Run(fmt.Sprint(block), func(b *testing.B) {
			path := b.TempDir() + "/raw"
			f, err := vfs.OS.Create(path, vfs.Direct)
			if err != nil {
				b.Fatal(err)
			}
			const size = 64 << 20
			if err := (&Store{opt: Options{Inline: true}}).zeroFill(f, size); err != nil {
				b.Fatal(err)
			}
			if err := f.Sync(); err != nil {
				b.Fatal(err)
			}
			f.Close()
			if f, err = vfs.OS.Open(path, vfs.Direct|vfs.DSync); err != nil {
				b.Fatal(err)
			}
			defer os.Remove(path)
			defer f.Close()
			buf := alignedBuffer(block)[:block]
			off := int64(0)
			for b.Loop() {
				buf[0]++
				if _, err := f.WriteAt(buf, off); err != nil {
					b.Fatal(err)
				}
				off = (off + int64(block)) % size
			}
		})
	}
}

// BenchmarkGet measures point reads from the tail cache.
func BenchmarkGet(b *testing.B) {
	for _, cached := range []bool{true, false} {
		b.Run(fmt.Sprintf("tailcache-%v", cached), func(b *testing.B) {
			opt := Options{}
			if !cached {
				opt.TailCacheBytes = -1
			}
			s, _, err := Open(b.TempDir(), opt)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			var batch Batch
			const n = 50_000
			for seq := 0; seq < n; seq += 100 {
				batch.Reset()
				for i := 0; i < 100; i++ {
					batch.Append(sid(1), uint64(seq+i), make([]byte, 128))
				}
				if _, err := s.Commit(&batch, Acknowledged); err != nil {
					b.Fatal(err)
				}
			}
			v := s.View()
			var dst []byte
			b.ReportAllocs()
			i := uint64(0)
			for b.Loop() {
				i = (i + 7919) % n
				if dst, err = v.Get(sid(1), i, dst[:0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
