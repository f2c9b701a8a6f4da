package shard

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/lst/vfs"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew; review the difference as a change of the format")

// dump lists everything that a shard's store holds, in hexadecimal; long values by their first bytes and length.
func dump(t *testing.T, v lst.View) []byte {
	t.Helper()
	var b bytes.Buffer
	short := func(p []byte) string {
		if len(p) > 200 {
			return fmt.Sprintf("%x… %d bytes", p[:32], len(p))
		}
		return fmt.Sprintf("%x", p)
	}
	v.KVs(nil, func(key, value []byte) bool {
		fmt.Fprintf(&b, "key %x\n  %s\n", key, short(value))
		return true
	})
	v.Streams(nil, func(id lst.StreamID) bool {
		st, _ := v.Stat(id)
		fmt.Fprintf(&b, "stream %v trim %d\n", id, st.Trim)
		it := v.Range(id, 0, st.EOF)
		for it.Next() {
			fmt.Fprintf(&b, "  %d %s\n", it.Seq(), short(it.Value()))
		}
		if it.Err() != nil {
			t.Fatal(it.Err())
		}
		return true
	})
	return b.Bytes()
}

// What a store of this version holds must stay readable: a difference here is a new version of the format.
func TestLayout(t *testing.T) {
	disk := vfs.NewMem(vfs.MemOptions{Seed: 15})
	opt := options(disk, lst.Direct)
	opt.SegmentBytes = 4 << 20
	c, _, err := Open(testDir, opt, testInc, protocol.Rules{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	w := newWriter(0x0102030405060708)
	w.set.FlushAgeMS, w.set.Peers = 300_000, []protocol.Incarnation{testInc, 0xdef}
	batch := func(a *protocol.Append) *protocol.Append {
		a.Block = a.Block[:0]
		a.Block = protocol.AppendRecord(a.Block, []byte("one"), true)
		a.Block = protocol.AppendRecord(a.Block, []byte("two"), false)
		a.CLSN = 1
		return a
	}
	do(t, c, w.open(3), w.activate(3, 1), w.append(1, 0), batch(w.append(2, 0)))
	c.Archived(1, w.log, []protocol.ArchivedObject{{Label: 3, First: 1, Last: 1, CLSN: 1}})
	c.Release(1, 0)
	commit(t, c)
	do(t, c, w.open(4), w.activate(4, 3), w.append(1, 0))
	long := newWriter(0xff00000000000001)
	for e := protocol.Epoch(1); e < 6000; e++ {
		long.hist = append(long.hist, protocol.HistoryEntry{Epoch: e, Start: protocol.LSN(e) << 34})
	}
	do(t, c, long.activate(6000, 6000<<34))
	got := dump(t, c.View())
	path := filepath.Join("testdata", "layout.golden")
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("the layout changed; got:\n%s\nwant:\n%s", got, want)
	}
}
