package shard

import (
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/lst/vfs"
)

// TestNoFlippedByteMakesARecordAbsent: whatever byte of the store is damaged, the shard either refuses to start, stops at its
// first commit, or answers present or unknown for what it acknowledged; never absent (P3, R4). The engine loads streams and
// keys on demand here, as in a node: what it cannot list must not be taken for what was never there. The records of the last
// two commits are left out: damage there looks like the torn end of a write that nobody was told of.
func TestNoFlippedByteMakesARecordAbsent(t *testing.T) {
	const logs, perLog, last = 12, 40, 2
	opt := func(fs vfs.FS) lst.Options {
		o := options(fs, lst.Direct)
		o.Inline, o.Now, o.Random = false, nil, nil
		return o
	}
	disk := vfs.NewMem(vfs.MemOptions{Seed: 5})
	c, _, err := Open(testDir, opt(disk), testInc, protocol.Rules{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	var ws []*writer
	for i := range logs {
		w := newWriter(protocol.LogID(100 + i))
		do(t, c, w.open(1), w.activate(1, 1))
		ws = append(ws, w)
	}
	for i := range perLog {
		for _, w := range ws {
			wantAck(t, do(t, c, w.append(1, 1500)), protocol.StatusOK)
		}
		if i%15 == 14 {
			if err := c.Store().Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := disk.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	refused, stopped, told := 0, 0, 0
	for _, name := range names {
		path := testDir + "/" + name
		body, err := disk.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		used := len(body)
		for used > 0 && body[used-1] == 0 {
			used--
		}
		for at := 0; at < used; at += 1709 {
			d := disk.Clone()
			b := append([]byte(nil), body...)
			b[at] ^= 0x20
			d.WriteFile(path, b)
			c, _, err := Open(testDir, opt(d), testInc, protocol.Rules{}, 1)
			if err != nil {
				refused++
				continue
			}
			for _, w := range ws {
				c.Step(1, 1, w.open(2))
			}
			a, err := c.Commit(1)
			if err != nil {
				stopped++
			}
			for _, ro := range a.Replies {
				r := ro.Msg.(*protocol.OpenReply)
				for x := protocol.LSN(1); x <= perLog-last; x++ {
					if !told1(r, x) {
						t.Fatalf("byte %d of %s flipped: log %v calls LSN %d absent, which it acknowledged", at, name, r.Log, x)
					}
				}
				told++
			}
			_ = c.Close() // a stopped store says so again
		}
	}
	t.Logf("flips: %d starts refused, %d stopped at the first commit, %d answers true", refused, stopped, told)
	if refused == 0 || told == 0 {
		t.Fatalf("the flips met nothing: %d refused, %d told", refused, told)
	}
}

// told1 reports whether an answer calls x present, archived or unknown.
func told1(r *protocol.OpenReply, x protocol.LSN) bool {
	if x <= r.ArchivedThrough || x > r.Through {
		return true
	}
	for _, e := range r.Held {
		if e.From <= x && x <= e.To {
			return true
		}
	}
	for _, d := range r.Damaged {
		if d.From <= x && x <= d.To {
			return true
		}
	}
	return false
}
