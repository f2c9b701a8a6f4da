package shard

import (
	"fmt"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
)

// BenchmarkRestart opens a shard that holds 200,000 records of 200 logs: what a node takes to start after a crash.
func BenchmarkRestart(b *testing.B) {
	const logs, each = 200, 1000
	dir := b.TempDir()
	opt := lst.Options{SegmentBytes: 64 << 20}
	c, _, err := Open(dir, opt, testInc, protocol.Rules{}, 1)
	if err != nil {
		b.Fatal(err)
	}
	for l := range logs {
		w := newWriter(protocol.LogID(l + 1))
		w.set.Name = fmt.Sprint("log-", l)
		c.Step(1, 5, w.open(1))
		c.Step(1, 5, w.activate(1, 1))
		for range each / 100 {
			c.Step(1, 5, w.append(100, 128))
		}
		if _, err := c.Commit(1); err != nil {
			b.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c, _, err := Open(dir, opt, testInc, protocol.Rules{}, 1)
		if err != nil {
			b.Fatal(err)
		}
		if got := c.Store().Stats().Records; got != logs*each {
			b.Fatalf("%d records", got)
		}
		b.StopTimer()
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
