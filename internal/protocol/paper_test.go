package protocol

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// One test for each promise of the paper's sections 4.1, 4.2 and 4.4 that these machines cover (and of 4.3, what they have a
// part in). The sentence stands above its test. Where DESIGN goes further or another way, the comment says so.

// messages returns the descriptions of what is under way.
func (s *script) messages() []string {
	var out []string
	for _, p := range s.w.net {
		out = append(out, p.String())
	}
	return out
}

func mustContain(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%q is not in:\n%s", w, got)
		}
	}
}

// 4.1: "To open a log for writing, the client acquires a write token (wtoken) from the metadata store and sends an open
// request to all log nodes to install that token. Before issuing append requests, the client waits for acknowledgments from
// a quorum of log nodes."
func TestPaperOpenWaitsForAQuorum(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w")
	if got := s.messages(); !slices.Equal(got, []string{"w->a open e1", "w->b open e1", "w->c open e1"}) {
		t.Errorf("%v", got)
	}
	s.do(t, "hold b->w", "hold c->w", "run 200ms")
	if s.w.client("w").writer != nil {
		t.Error("open with one node's answer")
	}
	s.do(t, "release b->w", "run")
	if s.w.client("w").writer == nil {
		t.Errorf("not open with two of three: %s", s.w.status())
	}
}

// 4.1: "The BtrLog client sends append requests to all log nodes and commits after replies from a write quorum."
func TestPaperCommitAfterWriteQuorum(t *testing.T) {
	for _, c := range []struct{ nodes, qw string }{{"a b c", "2"}, {"a b c", "3"}, {"a b c d e f", "4"}} {
		s := newScript(t, "nodes "+c.nodes+" qw="+c.qw, "open w", "run", "run 50ms", "append w x")
		for _, n := range strings.Fields(c.nodes) {
			if !slices.Contains(s.messages(), "w->"+n+" append 1 e1 @1 clsn=0") {
				t.Errorf("%v: no append to %s", c, n)
			}
		}
		acks := 0
		for _, n := range strings.Fields(c.nodes) {
			want := LSN(0)
			s.do(t, "deliver w->"+n+" append", "deliver "+n+"->w ack")
			if acks++; fmt.Sprint(acks) >= c.qw {
				want = 1
			}
			if got := s.w.client("w").writer.Committed(); got != want {
				t.Errorf("%v: committed %d after %d acknowledgements", c, got, acks)
			}
		}
	}
}

// 4.1: "In addition to the payload, each append request includes three fields: (1) the record's log sequence number (nLSN),
// (2) the last committed LSN (cLSN, a commit watermark for readers), and (3) the record's byte offset within the current
// segment, computed as the prefix sum of payload sizes of preceding records in the segment." (Ours counts the framing too.)
func TestPaperAppendFields(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w", "run", "append w one", "run", "append w three", "run", "append w x")
	var last *Append
	for _, p := range s.w.net {
		if m, ok := p.msg.(*Append); ok {
			last = m
		}
	}
	if last == nil || last.First != 3 || last.CLSN != 2 || last.SegStart != 1 || last.SegOff != uint64(EncodedSize(3)+EncodedSize(5)) {
		t.Errorf("%+v", last)
	}
}

// 4.1: "The prefix sum allows log nodes to place each record at a deterministic offset within a segment", "BtrLog uses the
// prefix sum of record sizes to construct byte-by-byte identical segments across all nodes."
func TestPaperSegmentsAreIdenticalOnAllNodes(t *testing.T) {
	for seed := uint64(1); seed <= 30; seed++ {
		rng := rand.New(rand.NewPCG(seed, 10))
		s := newScript(t, "nodes a b c", "set window=1024 block=4000", "open w", "run")
		w := s.w.client("w")
		for range 60 {
			s.w.append(w, strings.Repeat("d", rng.IntN(6000)))
			for range rng.IntN(5) { // any order, with some lost
				if len(s.w.net) > 0 {
					p := s.w.net[rng.IntN(len(s.w.net))]
					if rng.IntN(5) == 0 {
						s.w.remove(p)
					} else {
						s.w.deliver(p, false)
					}
				}
			}
		}
		s.w.run(3000 * Millisecond)
		var bodies []string
		segments := map[LSN]bool{}
		for _, n := range s.w.nodes {
			body := ""
			for _, k := range n.sortedRecs() {
				st, err := DecodeStored(k.lsn, k.label, n.recs[k])
				if err != nil {
					t.Fatal(err)
				}
				segments[st.SegStart] = true
				body += fmt.Sprintf("%d/%d:%d %s\n", st.SegStart, st.SegOff, k.lsn, st.Data)
			}
			bodies = append(bodies, body)
		}
		if bodies[0] != bodies[1] || bodies[1] != bodies[2] || w.writer.Committed() != 60 {
			t.Fatalf("seed %d: the nodes differ, or only %d of 60 are committed", seed, w.writer.Committed())
		}
		if len(segments) < 2 {
			t.Fatalf("seed %d: one segment only", seed)
		}
	}
}

// 3.1: "Only after the SSD write and fsync complete, the node acknowledges the append to the client."
func TestPaperDurableBeforeAcknowledged(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w", "run", "run 50ms", "append w x", "deliver w->a append crash")
	for _, m := range s.messages() {
		if strings.HasPrefix(m, "a->w") {
			t.Errorf("%s, and the write was lost", m)
		}
	}
	s.do(t, "restart a")
	if len(s.w.node("a").recs) != 0 {
		t.Error("the scenario is not what it says")
	}
	s.do(t, "run 1s")
	if got := s.w.client("w").writer.Committed(); got != 1 || s.w.copies(1, "x") != 3 {
		t.Errorf("committed %d, %d copies", got, s.w.copies(1, "x"))
	}
}

// 3.1: "If multiple appends are in flight, the client library ensures that appends are acknowledged in LSN order."
func TestPaperAcknowledgedInOrder(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w", "run", "append w x y z", "deliver w-> append 3 all", "deliver ->w 3 all", "deliver w-> append 2 all", "deliver ->w 2 all")
	if got := s.w.client("w").writer.Committed(); got != 0 {
		t.Fatalf("committed %d before LSN 1", got)
	}
	mustContain(t, s.do(t, "run"), "w: committed 3")
}

// 4.2: "client C2 atomically increments the log's write token from 1 to 2", "A log node accepts requests only for the
// highest token it has observed; if it has already seen a higher token, it rejects open and returns the higher value."
func TestPaperHighestTokenOnly(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "append w1 x", "run", "open w2", "deliver w2->a open")
	var out Out
	a := s.w.node("a")
	for _, m := range []Message{
		&Open{Log: testLog, Epoch: 1},
		&Append{Log: testLog, Epoch: 1, Label: 1, Incarnation: a.inc, First: 2, Count: 1, SegStart: 1, SegOff: 5, Block: AppendRecord(nil, []byte("y"), false)},
		&Watermark{Log: testLog, Epoch: 1, Incarnation: a.inc, CLSN: 1},
		&Activate{Log: testLog, Epoch: 1, Incarnation: a.inc, Start: 1, History: History{{1, 1}}},
		&Fetch{Log: testLog, Epoch: 1, Incarnation: a.inc, From: 1, To: 1},
		&Drop{Log: testLog, Epoch: 1, Incarnation: a.inc},
	} {
		out.Reset()
		a.shard.Step(0, 0, m, &out)
		a.shard.Finish(&out)
		status, promised := StatusOK, Epoch(0)
		switch {
		case len(out.Acks) == 1:
			status, promised = out.Acks[0].Ack.Status, out.Acks[0].Ack.Promised
		default:
			switch r := out.Replies[0].Msg.(type) {
			case *OpenReply:
				status, promised = r.Status, r.Promised
			case *FetchReply:
				status, promised = r.Status, r.Promised
			}
		}
		if status != StatusFenced || promised != 2 || !out.Empty() {
			t.Errorf("%s at token 1: %s, promised %d, something written: %v", describe(m), status, promised, !out.Empty())
		}
	}
}

// 4.2: "If the client cannot obtain a quorum of acknowledgments, it aborts the takeover and reports failure to the
// application (which may retry)."
func TestPaperTakeoverWithoutQuorumFails(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "append w1 x", "run", "kill w1", "crash a", "crash b", "open w2", "run 6s")
	c := s.w.client("w2")
	if !errors.Is(c.lastErr, ErrUnavailable) {
		t.Fatalf("%v", c.lastErr)
	}
	mustContain(t, c.lastErr.Error(), "a (no answer)", "b (no answer)", "1 of 3", "need 2")
	s.do(t, "restart a", "open w3", "run 1s")
	if s.w.client("w3").writer == nil {
		t.Error("the retry does not open")
	}
}

// figure4 is the running example: C1 keeps only L1; LSN 2 is on L1 and L3, LSN 3 on L1 and L2 (committed, C1 told its user),
// LSN 4 on L1 alone, and L1 has flushed it.
func figure4(t *testing.T) *script {
	s := newScript(t, "nodes L1 L2 L3", "open C1", "run", "append C1 r1", "run 50ms", "cut C1->L2", "append C1 r2", "run", "heal C1->L2",
		"hold C1->L3 watermark", "cut C1->L3", "hold C1->L2 2", "append C1 r3", "run", "cut C1->L2", "append C1 r4", "run", "flush L1 all")
	for x, n := range map[LSN]int{1: 3, 2: 2, 3: 2, 4: 1} {
		if got := s.w.copies(x, fmt.Sprint("r", x)); got != n {
			t.Fatalf("LSN %d is on %d nodes, want %d: the scenario is not what it says\n%s", x, got, n, s.w.status())
		}
	}
	if got := s.w.client("C1").writer.Committed(); got != 3 {
		t.Fatalf("C1 committed %d", got)
	}
	return s
}

// 4.2: "the new writer determines the largest contiguous recoverable LSN prefix supported by a read quorum of log nodes",
// "they include every consecutive LSN present on at least one node in the quorum. Only LSNs that a quorum of log nodes
// confirms as absent could not have been committed. In the example, although LSN 4 is durably stored in object storage, C2
// can infer it was not committed because a read quorum confirms it absent."
func TestPaperFigure4(t *testing.T) {
	s := figure4(t)
	out := s.do(t, "cut C2->L1", "open C2", "run")
	mustContain(t, out, "C2: open at epoch 2:", "T=3")
	// "Once fencing and repair are complete, the new client continues appending to the same log."
	mustContain(t, s.do(t, "append C2 other4", "run"), "C2: committed 4")
	// "In this example, client C1 is isolated and retains connectivity only to log node L1": it commits nothing more.
	s.do(t, "append C1 r5", "run 300ms")
	if got := s.w.client("C1").writer.Committed(); got != 3 {
		t.Errorf("C1 committed %d", got)
	}
	if got := s.w.oracle.committed[4]; got != "other4" {
		t.Errorf("LSN 4 is %q", got)
	}
	// 4.4: "Once the new log segment is flushed to object storage, readers would observe multiple different copies of LSN4 …
	// clients use this information [the epoch] to ignore outdated data from prior epochs."
	s.do(t, "run 50ms", "flush L2 all")
	four := map[string]bool{}
	for _, o := range s.w.archive {
		if d, ok := o.recs[4]; ok {
			four[fmt.Sprintf("%s void=%v", d, s.w.reg.history.Void(o.label, 4))] = true
		}
	}
	if len(four) != 2 || !four["r4 void=true"] || !four["other4 void=false"] {
		t.Errorf("LSN 4 in the archive: %v", four)
	}
	s.do(t, "cold L2", "look L2", "look L3")
	if l, _ := s.w.node("L3").shard.Log(testLog); l.ArchivedThrough > 4 {
		t.Errorf("archived-through %d", l.ArchivedThrough)
	}
}

// 4.2: "A stricter setting that requires the writer to observe a quorum of copies might cause data loss." One copy is enough,
// whichever two nodes answer.
func TestPaperOneCopyIsEnough(t *testing.T) {
	for _, silent := range []string{"L1", "L2", "L3"} {
		s := figure4(t)
		out := s.do(t, "cut C2->"+silent, "open C2", "run")
		want := "T=3"
		if silent != "L1" {
			want = "T=4" // L1 answers: LSN 4 is not known to be absent, and is kept
		}
		mustContain(t, out, want)
	}
}

// 4.2: "log nodes piggyback their last committed LSN watermark when acknowledging the installation of the client's write
// token. The client then starts reading log records sequentially, starting from the highest watermark it observed."
func TestPaperReadsFromTheWatermark(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w1", "run", "append w1 x y", "run 50ms", "cut w1->c", "append w1 z", "run", "kill w1", "cut w2->c", "open w2",
		"deliver w2-> open all", "deliver ->w2 open-reply", "deliver ->w2 open-reply")
	if got := s.messages(); !slices.Contains(got, "w2->a fetch 3 e2 @1") {
		t.Errorf("%v", got)
	}
}

// 4.2: "To improve durability of under-replicated records, the new client re-replicates such records to all nodes using the
// new write token." (P6: those at or below the watermark only when the ensemble changes; they are on a write quorum then.)
func TestPaperUnderReplicatedRecordsAreRepaired(t *testing.T) {
	s := figure4(t)
	s.do(t, "cut C2->L1", "open C2", "run", "kill C1", "heal C2->L1", "run 1s")
	for _, name := range []string{"L2", "L3"} {
		if _, ok := s.w.node(name).recs[recKey{2, 3}]; !ok {
			t.Errorf("%s has no copy of LSN 3 with the new token", name)
		}
	}
	// "the only accessible copy of LSN 2 is lost when node L3 fails": not if L1, which has the other, is replaced in order.
	s.do(t, "kill C2", "wipe L1", "open C3 L1 L2 L3", "run 1s", "wipe L3", "check")
}

// 4.2: "These repair writes may fail if the new client is also fenced, in which case it stops the failover process and informs
// the application to handle retries. Writer fencing can happen at any stage, but the protocol guarantees that concurrent
// repairs will recover the same or a higher log tail."
func TestPaperRepairIsFencedAtAnyStage(t *testing.T) {
	fencedAt := map[Stage]int{}
	for steps := range 40 {
		s := figure4(t)
		s.do(t, "kill C1", "cut C2->L1", "open C2 hold-cas")
		c2 := s.w.client("C2")
		for range steps {
			for _, p := range s.w.net {
				if p.to == "C2" || p.from == "C2" {
					s.w.deliver(p, false)
					break
				}
			}
			if c2.install != nil && steps%2 == 0 {
				s.w.cas(c2)
			}
		}
		stage := StageDone
		if c2.opener != nil {
			stage = c2.opener.Stage()
		}
		s.do(t, "cut C3->L1", "open C3", "run 1s")
		c3 := s.w.client("C3")
		if c3.writer == nil {
			t.Fatalf("after %d steps: %s", steps, s.w.status())
		}
		if c3.writer.cfg.Tail < 3 {
			t.Errorf("after %d steps, in stage %s: tail %d", steps, stage, c3.writer.cfg.Tail)
		}
		s.w.cas(c2)
		s.do(t, "run 1s")
		if c2.opener != nil || c2.writer == nil && !errors.Is(c2.lastErr, ErrFenced) {
			t.Errorf("after %d steps, in stage %s: C2 %v", steps, stage, c2.lastErr)
		}
		fencedAt[stage]++
	}
	for _, stage := range []Stage{StageFence, StageFetch, StageRepair, StageInstall, StageActivate, StageDone} {
		if fencedAt[stage] == 0 {
			t.Errorf("never fenced in stage %q: %v", stage, fencedAt)
		}
	}
}

// 4.2: "During tail recovery, the writer also retrieves each record's byte offset from log nodes. This information is used to
// reconstruct the segment prefix sum for idempotent object storage flushes." (The tail is written again in segments of its
// own, which begin at R; the writer goes on where the repair ended.)
func TestPaperPrefixSumGoesOn(t *testing.T) {
	s := figure4(t)
	s.do(t, "cut C2->L1", "open C2", "run")
	cfg := s.w.client("C2").writer.cfg
	want := uint64(0)
	for x := cfg.Start; x <= cfg.Tail; x++ {
		want += uint64(EncodedSize(2))
	}
	if cfg.SegStart != cfg.Start || cfg.SegOff != want || want == 0 {
		t.Errorf("segment of LSN %d, %d bytes; R = %d, want %d bytes", cfg.SegStart, cfg.SegOff, cfg.Start, want)
	}
	s.do(t, "append C2 more", "run")
	st, err := DecodeStored(4, 2, s.w.node("L2").recs[recKey{2, 4}])
	if err != nil || st.SegStart != cfg.SegStart || st.SegOff != want {
		t.Errorf("%+v %v", st, err)
	}
}

// 4.3: "we deterministically assign a per-log flush leader: the leader flushes immediately, while other nodes first check."
func TestPaperFlushLeaderIsOne(t *testing.T) {
	leads := map[Incarnation]int{}
	for id := LogID(1); id <= 300; id++ {
		ranks := map[int]bool{}
		peers := []Incarnation{11, 22, 33}
		for _, inc := range peers {
			l := &nodeLog{id: id, settings: Settings{Peers: peers}}
			r := l.rank(inc, LSN(id))
			ranks[r] = true
			if r == 0 {
				leads[inc]++
			}
		}
		if !ranks[0] || !ranks[1] || !ranks[2] {
			t.Fatalf("log %s: ranks %v", id, ranks)
		}
	}
	for inc, n := range leads {
		if n < 60 || n > 140 {
			t.Errorf("node %s leads %d of 300 segments", inc, n)
		}
	}
}

// 4.4: "append requests may get reordered or dropped entirely. Network issues can introduce gaps in node-local segments and
// delay the propagation of the committed watermark." What the others commit goes on; the gap closes.
func TestPaperGapsAndLateWatermarks(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w", "run", "append w x y z", "drop w->c append 2", "hold w->c append 1", "run")
	r := s.w.hotRead(s.w.node("c"), 1, 9)
	if got := s.w.client("w").writer.Committed(); got != 3 || len(r.Records) != 0 || r.Highest != 3 {
		t.Errorf("committed %d, c serves %d records, has %d", got, len(r.Records), r.Highest)
	}
	s.do(t, "release w->c append 1", "run 1s")
	if r := s.w.hotRead(s.w.node("c"), 1, 9); len(r.Records) != 3 || r.CLSN != 3 {
		t.Errorf("c serves %d records, cLSN %d", len(r.Records), r.CLSN)
	}
}

// 4.4: "when clients retrieve data with the read API, nodes return both the requested data and the committed LSN they
// observed. This mechanism enables readers to distinguish committed data from merely durable data."
func TestPaperReadsCarryTheWatermark(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w", "run", "append w x", "run", "append w y", "run")
	n := s.w.node("a")
	if r := s.w.hotRead(n, 1, 9); r.CLSN != 1 || r.Through != 1 || len(r.Records) != 1 {
		t.Errorf("cLSN %d, through %d, %d records", r.CLSN, r.Through, len(r.Records))
	}
	var out Out
	n.shard.Step(0, 0, &Read{Log: testLog, From: 1, To: 9, Raw: true, MaxBytes: 1000}, &out)
	n.fill(&out.Replies[0])
	r := out.Replies[0].Msg.(*ReadReply)
	if r.CLSN != 1 || len(r.Records) != 2 || r.Highest != 2 || !slices.Equal(r.Uncommitted, []Extent{{2, 2, 1}}) {
		t.Errorf("raw: cLSN %d, %d records, %+v", r.CLSN, len(r.Records), r.Uncommitted)
	}
}

// 4.4: "some nodes might observe LSN1 and LSN3, while others receive LSN2 and LSN4. When such overlapping log segments are
// flushed to object storage … clients may observe overlapping copies." Archived-through joins what the objects prove.
func TestPaperOverlappingObjectsJoin(t *testing.T) {
	s := NewShard(5, Rules{})
	var out Out
	s.Step(0, 0, &Activate{Log: testLog, Epoch: 1, Incarnation: 5, Start: 1, History: History{{1, 1}}, Settings: Settings{Window: 4}}, &out)
	objs := []ArchivedObject{{1, 4, 4, 4}, {1, 2, 2, 4}, {1, 1, 1, 4}, {1, 6, 9, 7}, {1, 3, 3, 4}, {1, 2, 3, 4}}
	through := func(objs ...ArchivedObject) LSN {
		s.Archived(0, testLog, objs, &out)
		l, _ := s.Log(testLog)
		return l.ArchivedThrough
	}
	for i, want := range []LSN{0, 0, 2, 2, 4, 4} {
		if got := through(objs[:i+1]...); got != want {
			t.Errorf("after %d objects: archived-through %d, want %d", i+1, got, want)
		}
	}
	if got := through(ArchivedObject{1, 5, 5, 5}, objs[3]); got != 7 {
		t.Errorf("archived-through %d, want 7: the object's own cLSN", got)
	}
}

// 4.4: "A key invariant for the read path is that data in object storage is only durable, not necessarily committed." A failure
// snapshot that holds more than its cLSN proves no more than its cLSN.
func TestPaperObjectsProveNoMoreThanTheirWatermark(t *testing.T) {
	s := newScript(t, "nodes a b c", "open w", "run", "append w x", "run", "append w y", "run", "cut w->b w->c", "append w z", "run", "flush a all", "look a", "look b")
	for _, n := range []string{"a", "b"} {
		if l, _ := s.w.node(n).shard.Log(testLog); l.ArchivedThrough != 2 {
			t.Errorf("%s: archived-through %d, want 2", n, l.ArchivedThrough)
		}
	}
}

// P2 and the mutant FetchWithoutPromise: a recovery read is refused by a node that has not promised the reader's epoch.
func TestFetchNeedsPromise(t *testing.T) {
	status := func(rules Rules, e Epoch) Status {
		s := NewShard(5, rules)
		var out Out
		s.Step(0, 0, &Activate{Log: testLog, Epoch: 2, Incarnation: 5, Start: 1, History: History{{2, 1}}}, &out)
		out.Reset()
		s.Step(0, 0, &Fetch{Log: testLog, Epoch: e, Incarnation: 5, From: 1, To: 1}, &out)
		return out.Replies[0].Msg.(*FetchReply).Status
	}
	for _, c := range []struct {
		rules Rules
		e     Epoch
		want  Status
	}{{Rules{}, 3, StatusNotPromised}, {Rules{}, 2, StatusOK}, {Rules{}, 1, StatusFenced}, {Rules{FetchWithoutPromise: true}, 3, StatusOK}} {
		if got := status(c.rules, c.e); got != c.want {
			t.Errorf("fetch at epoch %d with %+v: %s, want %s", c.e, c.rules, got, c.want)
		}
	}
}
