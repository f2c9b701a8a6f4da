package shard

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/lst/vfs"
)

const (
	testDir = "/n/shard-0"
	testInc = protocol.Incarnation(0xabc)
	testLog = protocol.LogID(7)
)

func options(fs vfs.FS, mode lst.Mode) lst.Options {
	return lst.Options{FS: fs, Mode: mode, SegmentBytes: 1 << 20, Inline: true, TailCacheBytes: 256 << 10,
		Now: func() time.Time { return time.Unix(1000, 0) }, Random: func(p []byte) {
			for i := range p {
				p[i] = byte(i*37 + 11)
			}
		}}
}

func open(t testing.TB, fs vfs.FS, mode lst.Mode) *Core {
	t.Helper()
	c, _, err := Open(testDir, options(fs, mode), testInc, protocol.Rules{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func commit(t testing.TB, c *Core) Answers {
	t.Helper()
	a, err := c.Commit(1)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// payload is what the tests store under an LSN, so that a reader can tell what belongs there.
func payload(log protocol.LogID, e protocol.Epoch, lsn protocol.LSN, size int) []byte {
	b := fmt.Appendf(nil, "log %v epoch %d lsn %d ", log, e, lsn)
	for len(b) < size {
		b = append(b, byte(lsn))
	}
	return b
}

// writer makes the messages of one writer whose log is one endless segment.
type writer struct {
	log   protocol.LogID
	epoch protocol.Epoch
	next  protocol.LSN
	seg   protocol.LSN
	off   uint64
	hist  protocol.History
	set   protocol.Settings
}

func newWriter(log protocol.LogID) *writer {
	return &writer{log: log, next: 1, set: protocol.Settings{Name: "orders", Window: 16, SegmentBytes: 1 << 20, Qw: 2}}
}

func (w *writer) open(e protocol.Epoch) *protocol.Open {
	return &protocol.Open{Log: w.log, Epoch: e, Req: uint64(e), Name: w.set.Name}
}

func (w *writer) activate(e protocol.Epoch, start protocol.LSN) *protocol.Activate {
	h, err := w.hist.Add(e, start)
	if err != nil {
		panic(err)
	}
	w.hist, w.epoch, w.next, w.seg, w.off = h, e, start, start, 0
	return &protocol.Activate{Log: w.log, Epoch: e, Incarnation: testInc, Start: start, B: start - 1, History: h, Settings: w.set}
}

func (w *writer) append(n int, size int) *protocol.Append {
	a := &protocol.Append{Log: w.log, Epoch: w.epoch, Label: w.epoch, Incarnation: testInc, First: w.next, Count: uint32(n), SegStart: w.seg, SegOff: w.off}
	for range n {
		p := payload(w.log, w.epoch, w.next, size)
		a.Block = protocol.AppendRecord(a.Block, p, false)
		w.off += uint64(protocol.EncodedSize(len(p)))
		w.next++
	}
	return a
}

func do(t testing.TB, c *Core, ms ...protocol.Message) Answers {
	t.Helper()
	for _, m := range ms {
		c.Step(1, 5, m)
	}
	return commit(t, c)
}

func wantAck(t testing.TB, a Answers, s protocol.Status) protocol.Ack {
	t.Helper()
	if len(a.Acks) == 0 {
		t.Fatalf("no acknowledgement, want %v", s)
	}
	got := a.Acks[len(a.Acks)-1].Ack
	if got.Status != s {
		t.Fatalf("acknowledgement %+v, want status %v", got, s)
	}
	return got
}

func start(t testing.TB, c *Core) *writer {
	t.Helper()
	w := newWriter(testLog)
	a := do(t, c, w.open(1))
	if len(a.Replies) != 1 || a.Replies[0].Msg.(*protocol.OpenReply).Status != protocol.StatusOK {
		t.Fatalf("open: %+v", a.Replies)
	}
	wantAck(t, do(t, c, w.activate(1, 1)), protocol.StatusOK)
	return w
}

// read returns what a hot read of [from, to] finds.
func read(t testing.TB, c *Core, log protocol.LogID, from, to protocol.LSN, maxBytes int) *protocol.ReadReply {
	t.Helper()
	a := do(t, c, &protocol.Read{Log: log, Req: 1, From: from, To: to, Raw: true})
	if len(a.Replies) != 1 {
		t.Fatalf("read: %d replies", len(a.Replies))
	}
	FillReply(c.View(), &a.Replies[0], maxBytes)
	return a.Replies[0].Msg.(*protocol.ReadReply)
}

func TestAppendReadRestart(t *testing.T) {
	disk := vfs.NewMem(vfs.MemOptions{Seed: 1})
	c := open(t, disk, lst.Direct)
	w := start(t, c)
	for range 10 {
		wantAck(t, do(t, c, w.append(3, 50)), protocol.StatusOK)
	}
	check := func(c *Core) {
		t.Helper()
		r := read(t, c, testLog, 1, protocol.MaxLSN, 1<<20)
		if len(r.Records) != 30 || len(r.Damaged) != 0 || r.Activated != 1 {
			t.Fatalf("read %d records, damaged %v, activated %d", len(r.Records), r.Damaged, r.Activated)
		}
		for i, rec := range r.Records {
			if lsn := protocol.LSN(i + 1); rec.LSN != lsn || !bytes.Equal(rec.Data, payload(testLog, 1, lsn, 50)) || rec.Label != 1 || rec.SegStart != 1 {
				t.Fatalf("record %d is %+v", lsn, rec)
			}
		}
	}
	check(c)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = open(t, disk, lst.Direct)
	check(c)
	st, ok := c.Log(testLog)
	if !ok || st.Promised != 1 || st.Activated != 1 || st.Highest != 30 || st.Settings.Name != "orders" {
		t.Fatalf("status after restart: %+v", st)
	}
	// The writer goes on behind what is there, and what is there again changes nothing.
	wantAck(t, do(t, c, w.append(1, 50)), protocol.StatusOK)
	again := newWriter(testLog)
	again.activate(1, 1)
	wantAck(t, do(t, c, again.append(5, 50)), protocol.StatusOK)
	if got := len(read(t, c, testLog, 1, protocol.MaxLSN, 1<<20).Records); got != 31 {
		t.Fatalf("%d records after a repeated append, want 31", got)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// promiseOf is what a shard has acknowledged of one log.
type acked struct {
	promised, activated protocol.Epoch
	records             map[protocol.LSN]protocol.Epoch
}

// crashRun drives random writers of several logs against a disk that crashes, and returns the first broken promise.
func crashRun(seed uint64, lie bool) error {
	rnd := rand.New(rand.NewPCG(seed, 1))
	mode := lst.Mode(rnd.IntN(2))
	disk := vfs.NewMem(vfs.MemOptions{Seed: seed, LieAboutSync: lie})
	logs := []*writer{newWriter(1), newWriter(2), newWriter(0xfffffffffffffff0)}
	known := map[protocol.LogID]*acked{}
	for _, w := range logs {
		known[w.log] = &acked{records: map[protocol.LSN]protocol.Epoch{}}
	}
	for range 4 {
		c, _, err := Open(testDir, options(disk, mode), testInc, protocol.Rules{}, 1)
		if err != nil {
			return fmt.Errorf("open: %w", err)
		}
		for _, w := range logs {
			if err := verify(c, w.log, known[w.log]); err != nil {
				return err
			}
			// What the shard holds without having said so is true as well; the writer goes on behind it.
			if st, ok := c.Log(w.log); ok && st.Promised > w.epoch {
				w.epoch = st.Promised
			}
		}
		disk.CrashAfter(int64(rnd.IntN(60)))
		for !crashed(c, rnd, logs, known) {
		}
		disk = disk.Crash()
	}
	return nil
}

// crashed commits one random batch and notes what it acknowledged; true when the disk is gone.
func crashed(c *Core, rnd *rand.Rand, logs []*writer, known map[protocol.LogID]*acked) bool {
	for range 1 + rnd.IntN(4) {
		w := logs[rnd.IntN(len(logs))]
		st, _ := c.Log(w.log)
		switch n := rnd.IntN(8); {
		case n == 0 || st.Promised == 0:
			w.epoch = st.Promised + 1
			c.Step(1, 5, w.open(w.epoch))
		case n == 1 || st.Activated != st.Promised:
			w.hist = nil
			c.Step(1, 5, w.activate(st.Promised, max(st.Highest, st.CLSN)+1))
		default:
			w.epoch = st.Activated
			if w.next <= st.Highest {
				w.next, w.seg, w.off = st.Highest+1, st.Highest+1, 0
			}
			c.Step(1, 5, w.append(1+rnd.IntN(5), 20+rnd.IntN(400)))
		}
	}
	a, err := c.Commit(1)
	if err != nil {
		return true
	}
	for _, r := range a.Replies {
		if m, ok := r.Msg.(*protocol.OpenReply); ok && m.Status == protocol.StatusOK {
			known[m.Log].promised = m.Epoch
		}
	}
	for _, o := range a.Acks {
		k := known[o.Ack.Log]
		if o.Ack.Status != protocol.StatusOK {
			continue
		}
		switch o.Ack.Kind {
		case protocol.AckActivate:
			k.activated, k.promised = o.Ack.Epoch, max(k.promised, o.Ack.Epoch)
		case protocol.AckAppend:
			for lsn := o.Ack.First; lsn <= o.Ack.Last; lsn++ {
				k.records[lsn] = o.Ack.Label
			}
		}
	}
	return false
}

func verify(c *Core, log protocol.LogID, k *acked) error {
	st, ok := c.Log(log)
	if !ok && k.promised != 0 {
		return fmt.Errorf("log %v: forgotten, promised %d", log, k.promised)
	}
	if st.Promised < k.promised || st.Activated < k.activated {
		return fmt.Errorf("log %v: promised %d activated %d, said %d and %d", log, st.Promised, st.Activated, k.promised, k.activated)
	}
	v := c.View()
	for lsn, label := range k.records {
		value, err := v.Get(streamID(log, label), uint64(lsn), nil)
		if err != nil {
			return fmt.Errorf("log %v: acknowledged record %d@%d: %w", log, lsn, label, err)
		}
		s, err := protocol.DecodeStored(lsn, label, value)
		if err != nil || !bytes.HasPrefix(s.Data, payload(log, label, lsn, 0)) {
			return fmt.Errorf("log %v: acknowledged record %d@%d reads %q, %v", log, lsn, label, s.Data, err)
		}
	}
	return nil
}

func TestEverythingAcknowledgedSurvivesCrashes(t *testing.T) {
	for seed := uint64(1); seed <= 100; seed++ {
		if err := crashRun(seed, false); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// Without it the test above could pass because nothing is ever lost.
func TestCrashTestNoticesAMissingSync(t *testing.T) {
	noticed := 0
	for seed := uint64(1); seed <= 30; seed++ {
		if crashRun(seed, true) != nil {
			noticed++
		}
	}
	if noticed < 10 {
		t.Fatalf("a disk that lies about syncs was noticed in %d of 30 runs", noticed)
	}
}

func TestFailedCommitIsFinal(t *testing.T) {
	disk := vfs.NewMem(vfs.MemOptions{Seed: 3})
	c := open(t, disk, lst.Direct)
	w := start(t, c)
	disk.Inject(vfs.Fault{Ops: vfs.OpWrite | vfs.OpSync, Times: 1, Err: syscall.EIO})
	c.Step(1, 5, w.append(1, 100))
	a, err := c.Commit(1)
	if !errors.Is(err, ErrStopped) || !errors.Is(err, syscall.EIO) || len(a.Acks) != 0 {
		t.Fatalf("commit on a failing disk: %d acknowledgements, %v", len(a.Acks), err)
	}
	if !strings.Contains(err.Error(), testDir) {
		t.Fatalf("error does not name the shard: %v", err)
	}
	// The disk works again, but what it holds is unknown.
	c.Step(1, 5, w.append(1, 100))
	if a, err := c.Commit(1); !errors.Is(err, ErrStopped) || len(a.Acks) != 0 || c.Err() == nil {
		t.Fatalf("commit after a failed one: %d acknowledgements, %v", len(a.Acks), err)
	}
}

func TestFullDiskRefusesAppendsAndNothingElse(t *testing.T) {
	disk := vfs.NewMem(vfs.MemOptions{Seed: 4})
	opt := options(disk, lst.Direct)
	opt.DiskBudgetBytes = 3 << 20
	c, _, err := Open(testDir, opt, testInc, protocol.Rules{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, c)
	var last protocol.LSN
	for now := protocol.Time(1); ; now += protocol.Millisecond {
		c.Step(now, 5, w.append(1, 10_000))
		a, err := c.Commit(now)
		if err != nil {
			t.Fatal(err)
		}
		if a.Acks[0].Ack.Status == protocol.StatusNoSpace {
			break
		}
		if last = wantAck(t, a, protocol.StatusOK).Last; last > 400 {
			t.Fatal("a budget of 3 MiB took 4 MB")
		}
	}
	if last < 150 {
		t.Fatalf("no space after %d records of 10 kB in a budget of 3 MiB", last)
	}
	if s := c.Stats(); !s.Full || s.RefusedNoSpace == 0 || s.Rebuilds != 0 {
		t.Fatalf("stats of a full shard: %+v", s)
	}
	// Fencing and reading go on (R15).
	w2 := newWriter(testLog)
	w2.hist = w.hist
	for e := protocol.Epoch(2); e < 40; e++ {
		if r := do(t, c, w2.open(e)).Replies[0].Msg.(*protocol.OpenReply); r.Status != protocol.StatusOK || r.Promised != e {
			t.Fatalf("open at epoch %d of a full shard: %+v", e, r)
		}
	}
	wantAck(t, do(t, c, w2.activate(39, last+1)), protocol.StatusOK)
	if r := read(t, c, testLog, 1, last, 100_000); len(r.Records) != 10 || r.Through != 10 {
		t.Fatalf("read of a full shard: %d records, through %d", len(r.Records), r.Through)
	}
	// Space comes back by archiving, and appends are taken again.
	c.Archived(2, testLog, []protocol.ArchivedObject{{Label: 1, First: 1, Last: last, CLSN: last}})
	commit(t, c)
	if _, err := c.Store().Reclaim(); err != nil {
		t.Fatal(err)
	}
	waitForRoom(t, c, 1000*protocol.Millisecond)
	c.Step(4000*protocol.Millisecond, 5, w2.append(1, 10_000))
	wantAck(t, commit(t, c), protocol.StatusOK)
	if c.Stats().Full {
		t.Fatal("still full")
	}
}

func TestUnexpectedNoSpaceReadsTheMachineAgain(t *testing.T) {
	disk := vfs.NewMem(vfs.MemOptions{Seed: 5})
	opt := options(disk, lst.Direct)
	opt.DiskBudgetBytes = 2 << 20
	c, _, err := Open(testDir, opt, testInc, protocol.Rules{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, c)
	// One batch that is larger than what is left: each append by itself has room, but not the batch, because the test fills the
	// store behind the shard's back.
	var b lst.Batch
	for i := uint64(0); c.Store().HasRoom(300 << 10); i++ {
		b.Reset()
		b.Append(lst.StreamID{15: 1}, i, make([]byte, 100<<10))
		if _, err := c.Store().Commit(&b, lst.Forced); err != nil {
			t.Fatal(err)
		}
	}
	a := w.append(1, 50<<10)
	c.Step(1, 5, a)
	for i := uint64(1000); ; i++ {
		b.Reset()
		b.Append(lst.StreamID{15: 1}, i, make([]byte, 30<<10))
		if _, err := c.Store().Commit(&b, lst.Forced); errors.Is(err, lst.ErrNoSpace) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	b.Reset()
	b.DeleteStream(lst.StreamID{15: 1}) // it is no stream of a log
	if _, err := c.Store().Commit(&b, lst.Forced); err != nil {
		t.Fatal(err)
	}
	if got := commit(t, c); len(got.Acks) != 0 {
		t.Fatalf("an append that found no space was answered: %+v", got.Acks)
	}
	if s := c.Stats(); s.Rebuilds != 1 || !s.Full {
		t.Fatalf("stats: %+v", s)
	}
	if st, ok := c.Log(testLog); !ok || st.Highest != 0 || st.Activated != 1 {
		t.Fatalf("the machine is not what the disk says: %+v", st)
	}
	if _, err := c.Store().Reclaim(); err != nil {
		t.Fatal(err)
	}
	waitForRoom(t, c, 1000*protocol.Millisecond)
	c.Step(4000*protocol.Millisecond, 5, a)
	wantAck(t, commit(t, c), protocol.StatusOK)
	if got := read(t, c, testLog, 1, 10, 1<<20); len(got.Records) != 1 {
		t.Fatalf("%d records after the append was sent again", len(got.Records))
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	opt := lst.Options{Mode: lst.Direct, SegmentBytes: 64 << 20}
	c, _, err := Open(filepath.Join(t.TempDir(), "s"), opt, testInc, protocol.Rules{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w := start(t, c)
	a := w.append(1, 128)
	block := a.Block
	runs := 0
	one := func() {
		runs++
		*a = protocol.Append{Log: w.log, Epoch: 1, Label: 1, Incarnation: testInc, First: protocol.LSN(runs), Count: 1, SegStart: 1,
			SegOff: uint64(runs-1) * uint64(len(block)), Block: block}
		c.Step(protocol.Time(runs), 5, a)
		got, err := c.Commit(protocol.Time(runs))
		if err != nil || len(got.Acks) != 1 || got.Acks[0].Ack.Status != protocol.StatusOK {
			t.Fatalf("append %d: %+v, %v", runs, got.Acks, err)
		}
	}
	for range 1000 {
		one()
	}
	// The store keeps an index that grows: a leaf for every 256 records. A tenth of an allocation per append is that.
	if n := testing.AllocsPerRun(2000, one); n > 0 {
		t.Fatalf("%v allocations per append", n)
	}
}
