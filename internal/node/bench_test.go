package node

import (
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/wire"
)

// BenchmarkAppend is one writer with one append of 128 bytes at a time, to one node with direct I/O over the loopback: the
// time from the send to the acknowledgement, of which the disk's write is the largest part.
func BenchmarkAppend(b *testing.B) {
	cfg := testConfig(b, "a", newStore())
	cfg.Buffered, cfg.SegmentBytes = false, 64<<20
	n := startNode(b, cfg)
	c, w := dial(b, n), newWriter(1)
	c.begin(w)
	var p wire.Writer
	var r wire.Reader
	var ack protocol.Ack
	buf := make([]byte, 2048)
	c.conn.SetReadDeadline(time.Time{}) // the benchmark runs as long as it is asked to
	b.ResetTimer()
	for b.Loop() {
		a := to(c.inc, w.append(1, 128))
		p.Reset(buf, 2048, c.cluster, 0)
		if err := p.Append(a); err != nil {
			b.Fatal(err)
		}
		if _, err := c.conn.WriteToUDP(p.Finish(), c.to); err != nil {
			b.Fatal(err)
		}
		got, _, err := c.conn.ReadFromUDPAddrPort(c.buf)
		if err != nil {
			b.Fatal(err)
		}
		if err := r.Reset(c.buf[:got], c.cluster); err != nil || !r.Next() || r.Ack(&ack) != nil || ack.Status != protocol.StatusOK {
			b.Fatalf("%v %+v", err, ack)
		}
	}
}
