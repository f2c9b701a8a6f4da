package node

import (
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
)

// startPacking is a trio that packs, with a counter of the PUTs of packs.
func startPacking(t *testing.T, set func(*Config)) *trio {
	t.Helper()
	x := &trio{t: t, store: &countingStore{Store: newStore(), part: "/pack/"}}
	for i, id := range []string{"a", "b", "c"} {
		cfg := testConfig(t, id, x.store)
		cfg.FlushGrace, cfg.PackEvery, cfg.CollectEvery, cfg.Shards = 50*time.Millisecond, 250*time.Millisecond, -1, 1+i
		set(&cfg)
		x.nodes[i] = startNode(t, cfg)
		x.clients[i] = dial(t, x.nodes[i])
		x.peers = append(x.peers, x.nodes[i].Incarnation())
	}
	return x
}

// idleLogs begins count logs, and appends one record to each.
func (x *trio) idleLogs(count int, flushAge uint32) []*writer {
	x.t.Helper()
	ws := make([]*writer, count)
	for i := range ws {
		ws[i] = newWriter(protocol.LogID(1000 + i))
		ws[i].set.FlushAgeMS = flushAge
		x.begin(ws[i])
	}
	x.appendEach(ws, 7)
	return ws
}

// appendEach appends a record to each log at the nodes of mask, and says that it is committed.
func (x *trio) appendEach(ws []*writer, mask int) {
	x.t.Helper()
	for _, w := range ws {
		lsn := w.next
		x.send(w.append(1, 100), mask)
		w.cLSN = lsn
		for i, c := range x.clients {
			if mask>>i&1 != 0 {
				c.ack(w.watermark(c.inc, 0), protocol.StatusOK)
			}
		}
	}
}

func segmentPuts(x *trio) (n uint64) {
	for _, node := range x.nodes {
		n += node.archive.Counters().Put.Attempts()
	}
	return n
}

// Very many idle logs cost a few objects, every record of them is archived at all nodes, and each log reads back.
func TestIdleLogsArePacked(t *testing.T) {
	const logs = 200
	x := startPacking(t, func(*Config) {})
	x.store.down.Store(1 << 40) // until all logs have something, however long that takes here
	ws := x.idleLogs(logs, 400)
	x.appendEach(ws, 7)
	before := x.store.puts.Load()
	x.store.down.Store(0)
	for _, w := range ws {
		x.archived(w.log, 2)
	}
	// Each node makes a pack of what is due of its logs; a few wait for the pause behind their last failure.
	if n := x.store.puts.Load() - before; n == 0 || n > logs/5 {
		t.Errorf("%d packs for %d logs", n, logs)
	}
	for _, w := range ws {
		for lsn := protocol.LSN(1); lsn <= 2; lsn++ {
			rec, err := x.nodes[0].archive.Reader(w.log).Read(t.Context(), lsn, archive.Watermark{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if want := payload(w.log, lsn, 100); string(rec.Data) != string(want) {
				t.Fatalf("log %v LSN %d: %q", w.log, lsn, rec.Data)
			}
		}
	}
}

// The node that would pack a log is down: the next one does, and learns of what was packed before from the packs.
func TestPackLeaderIsDown(t *testing.T) {
	x := startPacking(t, func(c *Config) { c.PackEvery = 100 * time.Millisecond })
	ws := x.idleLogs(60, 200)
	for _, w := range ws {
		x.archived(w.log, 1)
	}
	stopNode(t, x.nodes[0])
	x.appendEach(ws, 6)
	for _, w := range ws {
		for _, n := range x.nodes[1:] {
			eventually(t, "archived-through at "+string(n.cfg.Node), func() bool {
				l, _ := logAt(n, w.log)
				return l.ArchivedThrough == 2
			})
		}
	}
	// It comes back and finds what it missed.
	cfg := x.nodes[0].cfg
	x.nodes[0] = startNode(t, cfg)
	x.clients[0] = dial(t, x.nodes[0])
	for _, w := range ws {
		c := x.clients[0]
		c.ack(w.watermark(c.inc, 0), protocol.StatusOK)
	}
	for _, w := range ws {
		x.archived(w.log, 2)
	}
}

// While the store refuses packs nothing is lost, and they are written when it takes them again.
func TestPacksInAnOutage(t *testing.T) {
	x := startPacking(t, func(c *Config) { c.PackEvery = 50 * time.Millisecond })
	x.store.down.Store(30) // PUTs; each is tried six times
	ws := x.idleLogs(50, 100)
	for _, w := range ws {
		x.archived(w.log, 1)
	}
	if x.store.down.Load() > 0 {
		t.Error("there was no outage")
	}
}

// A full segment does not wait for a pack.
func TestFullSegmentsAreNotPacked(t *testing.T) {
	x := startPacking(t, func(c *Config) { c.PackEvery = time.Hour })
	w := newWriter(77)
	w.set.SegmentBytes = protocol.MinSegmentBytes
	x.begin(w)
	for range 3 {
		w.cut()
		x.send(w.append(20, 3000), 7)
		w.cLSN = w.next - 1
	}
	for _, c := range x.clients {
		c.ack(w.watermark(c.inc, w.next-1), protocol.StatusOK)
	}
	x.archived(77, 60)
	if n := x.store.puts.Load(); n != 0 || segmentPuts(x) != 3 {
		t.Errorf("%d packs, %d PUTs in all", n, segmentPuts(x))
	}
}

// One idle log alone has an object of its own.
func TestLoneLogIsNotPacked(t *testing.T) {
	x := startPacking(t, func(c *Config) { c.PackEvery = 300 * time.Millisecond })
	ws := x.idleLogs(1, 100)
	x.archived(ws[0].log, 1)
	if n := x.store.puts.Load(); n != 0 || segmentPuts(x) != 1 {
		t.Errorf("%d packs, %d PUTs in all", n, segmentPuts(x))
	}
}

// Rounds of collection merge packs, and drop what is trimmed.
func TestCollectionMergesPacks(t *testing.T) {
	x := startPacking(t, func(c *Config) { c.PackEvery, c.CollectEvery = 30*time.Millisecond, 100*time.Millisecond })
	ws := x.idleLogs(20, 50)
	for round := range protocol.LSN(12) {
		for _, w := range ws {
			x.archived(w.log, round+1)
		}
		x.appendEach(ws, 7)
	}
	// The store has no clock, so that packs count as settled at once.
	eventually(t, "a merge and its deletions", func() bool {
		var merged, deleted uint64
		for _, n := range x.nodes {
			s := n.Status().Pack
			merged, deleted = merged+s.Merged, deleted+s.Deleted
			if e := n.collector.status().LastError; e != "" {
				t.Fatal(e)
			}
		}
		return merged >= 8 && deleted >= 8
	})
	for _, w := range ws {
		for lsn := protocol.LSN(1); lsn <= 12; lsn++ {
			rec, err := x.nodes[1].archive.Reader(w.log).Read(t.Context(), lsn, archive.Watermark{}, nil)
			if err != nil || string(rec.Data) != string(payload(w.log, lsn, 100)) {
				t.Fatalf("log %v LSN %d: %q, %v", w.log, lsn, rec.Data, err)
			}
		}
	}
}

// A node without room does not wait for the time of its next pack, nor for the age of what could go into it.
func TestFullNodePacksAtOnce(t *testing.T) {
	cfg := testConfig(t, "a", newStore())
	cfg.SegmentBytes, cfg.DiskBudgetBytes, cfg.FlushGrace, cfg.IdleRelease, cfg.PackEvery = 1<<20, 4<<20, 20*time.Millisecond, 100*time.Millisecond, time.Hour
	n := startNode(t, cfg)
	c := dial(t, n)
	log := protocol.LogID(500)
	one := func(flushAge uint32) (w *writer, status protocol.Status) {
		t.Helper()
		log++
		w = newWriter(log)
		w.set.FlushAgeMS, w.set.Qw = flushAge, 1
		c.begin(w)
		a := c.call(to(c.inc, w.append(1, 20_000))).(*protocol.Ack)
		if a.Status == protocol.StatusOK {
			w.cLSN = a.Last
			c.ack(w.watermark(c.inc, 0), protocol.StatusOK)
		}
		return w, a.Status
	}
	first, _ := one(20) // the first pack does not wait, the next one would for an hour
	eventually(t, "the first log to be archived", func() bool { l, _ := logAt(n, first.log); return l.ArchivedThrough == 1 })
	full := false
	for i := 0; i < 400 && !full; i++ {
		_, status := one(3600_000)
		full = status == protocol.StatusNoSpace
	}
	if !full {
		t.Fatal("8 MB went into a budget of 4 MiB")
	}
	eventually(t, "appends to be taken again", func() bool { _, status := one(3600_000); return status == protocol.StatusOK })
}
