package archive

import (
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore/memory"
)

func benchPlan() (protocol.Segment, RecordSource, int64) {
	const size, count = 128, 100000
	p := plan(1, 1, 1, count, count, 0)
	data := make([]byte, size)
	return p, func(yield func(Record, error) bool) {
		for lsn := protocol.LSN(1); lsn <= count; lsn++ {
			if !yield(Record{LSN: lsn, Label: 1, Data: data}, nil) {
				return
			}
		}
	}, size * count
}

// BenchmarkBuild makes one object of 100,000 records of 128 bytes; MB/s is payload.
func BenchmarkBuild(b *testing.B) {
	p, src, n := benchPlan()
	b.SetBytes(n)
	var body []byte
	for b.Loop() {
		var err error
		if body, _, err = Build(body, p, src); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkScan reads that object back from memory, all checksums included; MB/s is payload.
func BenchmarkScan(b *testing.B) {
	p, src, n := benchPlan()
	a := newArchive(b, memory.New(memory.Options{}), Options{})
	if _, err := a.Flush(b.Context(), p, src); err != nil {
		b.Fatal(err)
	}
	r := a.Reader(testLog)
	b.SetBytes(n)
	for b.Loop() {
		for _, err := range r.Scan(b.Context(), p.First, p.Last, Watermark{}) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}
