package shard

import (
	"testing"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/lst/vfs"
)

// waitForRoom has a full shard look at its store until it is full no more, from time at on.
func waitForRoom(t testing.TB, c *Core, at protocol.Time) {
	t.Helper()
	for end := at + 2*roomFor; c.Stats().Full; at += 100 * protocol.Millisecond {
		if at > end {
			t.Fatalf("still full after %v of room", 2*roomFor)
		}
		c.AskForRoom(at)
	}
}

// O3, L11: a shard that has refused a large append refuses small ones too, which would fit, until there has been room for a
// while; and one append that fits into no file is no want of space. It used to be called full and not full by turns.
func TestFullIsAState(t *testing.T) {
	opt := options(vfs.NewMem(vfs.MemOptions{Seed: 4}), lst.Direct)
	opt.DiskBudgetBytes, opt.MaxRecordBytes = 4<<20, 1<<20
	c, _, err := Open(testDir, opt, testInc, protocol.Rules{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, c)
	now := protocol.Time(1)
	try := func(bytes int) protocol.Status {
		t.Helper()
		now += 60 * protocol.Millisecond
		before := *w
		c.Step(now, 5, w.append(1, bytes))
		s := commit(t, c).Acks[0].Ack.Status
		if s != protocol.StatusOK {
			*w = before
		}
		return s
	}
	large := 400_000
	for n := 0; try(large) == protocol.StatusOK; n++ {
		if n > 20 {
			t.Fatal("a budget of 4 MiB is not kept")
		}
	}
	for range 200 {
		if s := try(100); s != protocol.StatusNoSpace {
			t.Fatalf("a small append where a large one was refused: %v", s)
		}
	}
	if s := c.Stats(); !s.Full || s.FullChanges != 1 {
		t.Fatalf("stats of a full shard: %+v", s)
	}
	last := w.next - 1
	c.Archived(now, testLog, []protocol.ArchivedObject{{Label: 1, First: 1, Last: last, CLSN: last}})
	c.Release(now, 1) // the window too
	commit(t, c)
	if _, err := c.Store().Reclaim(); err != nil {
		t.Fatal(err)
	}
	room := now
	for try(100) == protocol.StatusNoSpace {
		if now-room > 2*roomFor {
			t.Fatal("still full")
		}
	}
	if now-room < roomFor {
		t.Fatalf("full no more after %v of room", now-room)
	}
	if s := c.Stats(); s.Full || s.FullChanges != 2 {
		t.Fatalf("stats with room: %+v", s)
	}
	if s := try(large); s != protocol.StatusOK {
		t.Fatalf("a large append with room: %v", s)
	}
	if s := try(1<<20 - 500); s != protocol.StatusNoSpace || c.Stats().Full {
		t.Fatalf("an append that fits into no file: %v, full: %v", s, c.Stats().Full)
	}
	if s := try(100); s != protocol.StatusOK {
		t.Fatalf("an append behind one that fits into no file: %v", s)
	}
}
