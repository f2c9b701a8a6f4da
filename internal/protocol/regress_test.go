package protocol

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// One test for every fault that was found in the machines; each failed before its fix. Those that the scripts or the
// simulation show best live there.

// newScript runs commands and returns the script, with the test failed on any violation.
func newScript(t *testing.T, cmds ...string) *script {
	t.Helper()
	s := &script{w: newWorld()}
	s.do(t, cmds...)
	return s
}

func (s *script) do(t *testing.T, cmds ...string) string {
	t.Helper()
	out := ""
	for _, c := range cmds {
		out += s.command(c) + "\n"
	}
	for _, b := range s.w.oracle.bad {
		t.Error(b)
	}
	return out
}

// A node that learns from the archive that LSN 1 is committed must not serve its own stale copy of it as committed: it
// missed the epoch that voids the copy, as in H8 and H9, with the archive in the watermark's part.
func TestArchiveIsNoWatermarkForStaleCopies(t *testing.T) {
	for _, restart := range []bool{false, true} {
		s := newScript(t, "nodes a b c", "open w1", "run", "cut w1->a w1->b", "append w1 y", "run", // y@1 on c only
			"cut w2->c", "open w2", "run 100ms", "append w2 z", "run 100ms", "flush a", "look c")
		if restart {
			s.do(t, "crash c", "restart c")
		}
		if l, _ := s.w.node("c").shard.Log(testLog); l.ArchivedThrough != 1 {
			t.Fatalf("c has archived-through %d, want 1: the scenario is not what it says", l.ArchivedThrough)
		}
		if got := s.do(t, "read c 1-1"); strings.Contains(got, "=y") {
			t.Errorf("restart %v: %s", restart, got)
		}
		r := s.w.hotRead(s.w.node("c"), 1, 1)
		if r.CLSN != 0 || r.ArchivedThrough != 1 {
			t.Errorf("restart %v: c reports cLSN %d, archived-through %d, want 0 and 1", restart, r.CLSN, r.ArchivedThrough)
		}
		// A reader that has only this answer and the record of before must not serve y under the archive's word either.
		var m Merge
		m.SetView(ReadView{Ensemble: s.w.reg.ensemble, Qw: 2, History: History{{1, 1}}})
		m.Observe(r)
		raw := &ReadReply{Incarnation: r.Incarnation, Through: 1, Records: []Record{{LSN: 1, Label: 1, Data: []byte("y")}}}
		if rec := m.Raw(1, []*ReadReply{nil, nil, raw}); rec != nil {
			t.Errorf("restart %v: a raw read serves %q", restart, rec.Data)
		}
		if tail, ok, why := m.Tail(1, make([]*ReadReply, 3)); tail != 1 || !ok {
			t.Errorf("restart %v: tail %d %v %s below what is archived", restart, tail, ok, why)
		}
	}
}

// A watermark that an acknowledgement calls durable survives a restart, also when it came with a record at or below it,
// whose stored head has no room for it (R10, Ack.CLSN).
func TestAcknowledgedWatermarkIsDurable(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "hold w1->c append 1", "append w1 x y z", "run", "append w1 v", "run", "drop ->c 1")
	c := s.w.node("c")
	var out Out
	inc := c.inc
	// The writer sends LSN 1 again, with the watermark it has by now.
	m := &Append{Log: testLog, Epoch: 1, Label: 1, Incarnation: inc, First: 1, Count: 1, SegStart: 1, CLSN: 4, Block: AppendRecord(nil, []byte("x"), false)}
	c.shard.Step(0, 0, m, &out)
	if a := out.Acks[0].Ack; a.Status != StatusOK || a.CLSN != 4 {
		t.Fatalf("ack %+v", a)
	}
	s.w.out = out
	s.w.commit(c)
	s.do(t, "crash c", "restart c")
	if l, _ := c.shard.Log(testLog); l.CLSN != 4 {
		t.Errorf("cLSN after the restart is %d, the acknowledgement said 4", l.CLSN)
	}
}

// A source that falls silent after it answered Open is not asked for ever: another one has the record.
func TestRecoveryReadTriesAnotherSource(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "cut w1->c", "append w1 x", "run", "kill w1", "cut w2->c")
	s.do(t, "open w2", "deliver w2->a open", "deliver w2->b open", "deliver a->w2 open-reply", "deliver b->w2 open-reply", "crash a")
	s.do(t, "heal w2->c", "run 2s")
	if c := s.w.client("w2"); c.writer == nil {
		t.Errorf("the open does not complete: %s", s.w.status())
	}
}

// A record that its only holder cannot read is asked for at the pace of the timer, not of the network.
func TestDamagedSourceIsNotAskedInALoop(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "cut w1->b w1->c", "append w1 x", "run", "kill w1", "unread a 1@1", "cut w2->c", "open w2", "run")
	sent := s.w.nextPkt
	s.w.run(1000 * Millisecond)
	if n := s.w.nextPkt - sent; n > 60 {
		t.Errorf("%d messages in a second of waiting", n)
	}
	if c := s.w.client("w2"); c.opener == nil || !strings.Contains(c.opener.lacks(), "LSN 1") {
		t.Errorf("the open should wait and name LSN 1: %s", s.w.status())
	}
}

// A re-labelled copy that cannot be read must not hide a good copy of the same record under a lower label: w2 repaired x on a
// and died, a cannot read its repair, b has x as w1 wrote it.
func TestUnreadableRepairDoesNotHideACopy(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "cut w1->c", "append w1 x y", "run", "kill w1", "hold w2->b repair", "hold w2->c repair",
		"open w2 hold-cas", "run", "kill w2", "unread a 1@2", "unread a 2@2", "cut w3->c", "open w3", "run 2s")
	if c := s.w.client("w3"); c.writer == nil || c.writer.cfg.Tail != 2 {
		t.Errorf("w3 is not open with tail 2: %s", s.w.status())
	}
}

// A copy that cannot be read, and that a read quorum calls absent, was not committed: unknown is not present (P5).
func TestUnreadableCopyAgainstAbsents(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "append w1 x", "run", "cut w1->b w1->c", "append w1 y", "run", "kill w1", "unread a 2@1", "open w2", "run 2s",
		"append w2 z", "run 1s")
	if c := s.w.client("w2"); c.writer == nil || c.writer.cfg.Tail != 1 || s.w.oracle.committed[2] != "z" {
		t.Errorf("w2 is not open with tail 1: %s", s.w.status())
	}
}

// A block of tiny records is bounded by its count too, in copies as in repairs; a node refuses more for good.
func TestCopyUnitsAreBoundedInRecords(t *testing.T) {
	w := newWorld()
	w.settings.Window, w.block = MaxWindow, 60<<10
	for _, n := range []string{"a", "b", "c", "d"} {
		w.addNode(n)
	}
	w.reg.ensemble, w.reg.qw = w.members("a", "b", "c"), 2
	c1 := &client{name: "w1", given: map[LSN]string{}}
	c2 := &client{name: "w2", given: map[LSN]string{}}
	w.clients = append(w.clients, c1, c2)
	w.open(c1, nil, 0, nil)
	w.run(0)
	for range 3 * MaxBatchRecords {
		if _, err := w.append(c1, ""); err != nil {
			t.Fatal(err)
		}
		w.run(0)
	}
	w.run(100 * Millisecond)
	c1.dead = true
	w.open(c2, w.members("a", "b", "d"), 2, nil)
	for i := range w.clients {
		if o := w.clients[i].opener; o != nil {
			o.cfg.FetchBytes = 1 << 20
		}
	}
	w.run(4000 * Millisecond)
	if c2.writer == nil || len(w.oracle.bad) > 0 {
		t.Fatalf("%v %v\n%s", c2.lastErr, w.oracle.bad, w.status())
	}
}

// More damage than a reply can list is still damage: unknown, never absent (P3).
func TestDamageBeyondTheListIsUnknown(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "append w1 x", "run", "crash a", "restart a")
	a := s.w.node("a")
	const n = MaxExtents + 100
	for round := range 2 { // the same damage is found again at each start
		for i := LSN(0); i < n; i++ {
			a.shard.RestoreDamage(testLog, Range{2 + 2*i, 2 + 2*i})
		}
		if got := len(a.shard.logs[testLog].damaged); got > MaxExtents {
			t.Fatalf("round %d: %d ranges", round, got)
		}
	}
	var out Out
	a.shard.Step(0, 0, &Open{Log: testLog, Epoch: 9}, &out)
	r := out.Replies[0].Msg.(*OpenReply)
	o := &Opener{cfg: OpenerConfig{Log: testLog}}
	for i := LSN(0); i < n; i++ {
		if _, got := o.answer(r, 2+2*i); got != Unknown {
			t.Fatalf("LSN %d is damaged and called %s", 2+2*i, got)
		}
	}
}

// The same damage found at every start is noted once.
func TestDamageIsNotedOnce(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "append w1 x y z v", "run", "damage a 2@1", "damage a 4@1")
	for range 3 {
		s.do(t, "crash a", "restart a")
		s.w.out.Reset() // the state value is written once more, damage included
		a := s.w.node("a")
		a.shard.mark(a.shard.logs[testLog], &s.w.out)
		s.w.commit(a)
	}
	if got := s.w.node("a").shard.logs[testLog].damaged; len(got) != 2 {
		t.Errorf("damaged %v after three restarts, want two ranges", got)
	}
}

// A copy that is void was never wanted again: its damage is no reason to call the LSN unknown.
func TestDamageOfAVoidCopyDoesNotMatter(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "cut w1->a w1->b", "append w1 y", "run", "kill w1")
	c := s.w.node("c")
	old := c.recs[recKey{1, 1}]
	s.do(t, "cut w2->c", "open w2", "run 100ms", "heal w2->c", "append w2 z", "run 1s")
	c.recs[recKey{1, 1}] = append([]byte{0}, old...) // the trim left it, and it rotted
	s.do(t, "crash c", "restart c")
	if got := c.shard.logs[testLog].damaged; len(got) != 0 {
		t.Errorf("damaged %v for a void copy", got)
	}
}

// Raising the write quorum of the same nodes puts the committed tail on as many nodes as the new quorum promises (P6, S6).
func TestRaisedWriteQuorumCopiesTheTail(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "cut w1->c", "append w1 x", "run 100ms", "kill w1", "open w2 a b c qw=3", "run 1s")
	if s.w.client("w2").writer == nil {
		t.Fatal(s.w.status())
	}
	if n := s.w.copies(1, "x"); n < 3 {
		t.Errorf("LSN 1 is on %d nodes with write quorum 3: two lost disks lose it", n)
	}
}

// A history that could not be read back at the next start must not be stored.
func TestActivateRefusesTooLongHistory(t *testing.T) {
	s := NewShard(1, Rules{})
	h := make(History, MaxHistory+1)
	for i := range h {
		h[i] = HistoryEntry{Epoch(i + 1), LSN(i + 1)}
	}
	var out Out
	s.Step(0, 0, &Activate{Log: testLog, Epoch: h.Last().Epoch, Incarnation: 1, Start: h.Last().Start, B: h.Last().Start - 1, History: h}, &out)
	if got := out.Acks[0].Ack.Status; got != StatusBad {
		t.Errorf("status %s", got)
	}
}

// A node that answers late and knows more of the archive spares the open what it cannot find.
func TestLateAnswerRaisesArchivedThrough(t *testing.T) {
	s := newScript(t, "nodes a b c d e qw=3", "node f", "set window=1", "open w1", "run", "cut w1->d w1->e", "append w1 x", "run", "append w1 y", "run",
		"run 100ms", "kill w1", "flush b", "look b", "look c", "idle b", "idle c",
		"cut w2->b w2->c", "hold w2-> fetch", "open w2 b c d e f", "run", "crash a", "release w2-> fetch", "heal w2->b w2->c", "run 2s")
	if s.w.client("w2").writer == nil {
		t.Errorf("all of the tail is archived and the open waits: %s", s.w.status())
	}
}

// A live re-open while another client held the log in between would take the other's records for its own (P10).
func TestReopenAfterForeignEpochStops(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "cut w1->b w1->c", "append w1 x1 x2", "run", // given out, on a only
		"cut w2->a", "open w2", "run 100ms", "append w2 y1", "run 100ms", "kill w2", "heal w1->b w1->c", "open w1", "run 3s")
	w1 := s.w.client("w1")
	if !errors.Is(w1.writer.Err(), ErrFenced) {
		t.Errorf("w1: %v", w1.writer.Err())
	}
	if got := s.w.oracle.committed[1]; got != "y1" {
		t.Errorf("LSN 1 is %q", got)
	}
}

// A live re-open fences the writer's own appends in flight; that is not the loss of the log (P10, P11).
func TestOwnReopenIsNotALoss(t *testing.T) {
	s := newScript(t, "nodes a b c d", "open w1", "run", "append w1 x y", "hold append", "run", "open w1 a b d", "run", "append w1 z", "release append", "run 2s")
	c := s.w.client("w1")
	if c.writer.Err() != nil || c.writer.Committed() != 3 || c.reopened != 1 {
		t.Errorf("%v, committed %d, re-opened %d times\n%s", c.writer.Err(), c.writer.Committed(), c.reopened, s.w.status())
	}
	for x, want := range []string{1: "x", 2: "y", 3: "z"} {
		if x > 0 && s.w.oracle.committed[LSN(x)] != want {
			t.Errorf("LSN %d is %q, want %q", x, s.w.oracle.committed[LSN(x)], want)
		}
	}
}

// Fill after an acknowledgement has let the ring forget the send must not put other bytes under its LSN.
func TestFillOfAForgottenSendIsRefused(t *testing.T) {
	e := Ensemble{{Node: "a", Incarnation: 1}}
	w, err := NewWriter(WriterConfig{Log: testLog, Epoch: 1, Start: 1, Ensemble: e, Qw: 1, Settings: Settings{Window: 4, SegmentBytes: MinSegmentBytes}, Retain: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var late []Send
	for i := LSN(1); i <= 64; i++ {
		if _, err := w.Append(0, []byte(fmt.Sprint("r", i))); err != nil {
			t.Fatal(err)
		}
		sends := w.TakeSends(nil)
		if i == 1 {
			late = append(late, sends...)
		}
		w.HandleAck(0, &Ack{Log: testLog, Epoch: 1, Incarnation: 1, Kind: AckAppend, First: i, Last: i})
	}
	var m Append
	w.Fill(late[0], &m, nil)
	if data, _, _, err := NextRecord(m.Block); m.Count != 0 && (err != nil || string(data) != "r1") {
		t.Errorf("LSN %d is sent as %q", m.First, data)
	}
}

// Of a damaged LSN a node says unknown to readers too, also when they ask for its state alone.
func TestTailDoesNotCountDamageAsAbsent(t *testing.T) {
	s := newScript(t, "nodes a b", "open w1", "run", "append w1 x", "run", "damage b 1@1", "crash b", "restart b")
	var out Out
	s.w.node("b").shard.Step(0, 0, &Read{Log: testLog}, &out)
	r := out.Replies[0].Msg.(*ReadReply)
	var m Merge
	m.SetView(ReadView{Ensemble: s.w.reg.ensemble, Qw: 2, History: s.w.reg.history})
	if m.Observe(r) != 1 {
		t.Fatal("the answer is not b's")
	}
	replies := []*ReadReply{nil, r}
	if got := m.Highest(replies); got != 1 {
		t.Errorf("highest is %d: the damaged LSN 1 is left out", got)
	}
	if tail, decided, _ := m.Tail(1, replies); decided {
		t.Errorf("tail %d is decided by a damaged copy; LSN 1 is committed", tail)
	}
}

// A node that activated an epoch which the reader's view lacks has voided by a history that the reader does not know: that it
// has no copy says nothing under this view (P8, X11). Found by the simulation: LSN 1 was committed under epoch 3.
func TestTailDoesNotCountAbsentsOfANewerReign(t *testing.T) {
	var m Merge
	m.SetView(ReadView{Ensemble: testEnsemble(3), Qw: 3, History: History{{3, 1}}})
	r := &ReadReply{Incarnation: 2, Activated: 8, Start: 1}
	m.Observe(r)
	for highest := LSN(0); highest <= 1; highest++ { // its own answer may be all that says how far to look
		if tail, decided, _ := m.Tail(highest, []*ReadReply{nil, r, nil}); decided {
			t.Errorf("tail %d is decided by a node of a newer reign", tail)
		}
	}
	m.SetView(ReadView{Ensemble: testEnsemble(3), Qw: 3, History: History{{8, 1}}})
	if tail, decided, why := m.Tail(1, []*ReadReply{nil, r, nil}); !decided || tail != 0 {
		t.Errorf("tail %d, decided %v (%s) with the record of that reign", tail, decided, why)
	}
}

// LSN arithmetic does not wrap: a run that ends beyond the last LSN begins beyond it too.
func TestAppendRefusesWrappedLSNs(t *testing.T) {
	for _, first := range []LSN{1<<64 - 1, 1<<64 - 2, MaxLSN, MaxLSN + 1, 0} {
		for _, kind := range []AppendKind{AppendNormal, AppendRepair, AppendCopy} {
			s := NewShard(5, Rules{})
			var out Out
			s.Step(0, 0, &Activate{Log: testLog, Epoch: 2, Incarnation: 5, Start: 1, History: History{{2, 1}}}, &out)
			s.Finish(&out)
			out.Reset()
			label := Epoch(2)
			if kind == AppendCopy {
				label = 1
			}
			s.Step(0, 0, &Append{Log: testLog, Epoch: 2, Label: label, Kind: kind, Incarnation: 5, First: first, Count: 3, SegStart: 1,
				Block: AppendRecord(AppendRecord(AppendRecord(nil, nil, false), nil, false), nil, false)}, &out)
			if a := out.Acks[0].Ack; a.Status != StatusBad || !out.Empty() {
				t.Errorf("%s of three records from LSN %d: %s, %d records stored", kind, first, a.Status, len(out.Records))
			}
		}
	}
}

// Requests are numbered within one open. An answer to a recovery read of an earlier open of the same client, which came late, was taken
// for that of this one: the open failed as fenced by its own promise. Found by the simulator (P1: told that it lost the log while its
// token was on record).
func TestLateAnswerToAnEarlierOpenIsIgnored(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "cut w1->b w1->c", "append w1 x", "run", "hold fetch")
	s.w.cuts = map[string]bool{}
	if err := s.w.open(s.w.client("w1"), nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	s.w.run(0)
	o := s.w.client("w1").opener
	if o == nil || o.fetching == nil {
		t.Fatal("the open does not wait for a recovery read: the scenario is not what it says")
	}
	late := &FetchReply{Log: testLog, Epoch: o.cfg.Epoch - 1, Req: o.fetching.req, Incarnation: o.fetching.inc, Status: StatusFenced, Promised: o.cfg.Epoch,
		From: 1, Through: 1}
	o.Handle(s.w.now, late)
	if o.Err() != nil || o.fetching == nil {
		t.Fatalf("the late answer counts: %v", o.Err())
	}
}
