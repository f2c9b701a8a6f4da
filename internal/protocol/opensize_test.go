package protocol

import (
	"syscall"
	"testing"
	"time"
)

// cpuTime is the processor time that this process has used: a busy machine makes it no longer.
func cpuTime(t testing.TB) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano())
}

// openSize drives an open that replaces a node over a tail of n committed, unarchived records, with nodes that answer at
// once, and returns the processor time that it took.
func openSize(t testing.TB, n LSN, blockBytes int) time.Duration {
	data := make([]byte, 128)
	ens := testEnsemble(3)
	shards := map[Incarnation]*wnode{}
	var out Out
	for _, m := range append(append(Ensemble(nil), ens...), Member{Node: "new", Incarnation: 9}) {
		node := &wnode{name: string(m.Node), inc: m.Incarnation, shard: NewShard(m.Incarnation, Rules{}), recs: map[recKey][]byte{}}
		shards[m.Incarnation] = node
		if m.Incarnation == 9 {
			continue
		}
		out.Reset()
		node.shard.Step(0, 0, &Activate{Log: testLog, Epoch: 1, Incarnation: m.Incarnation, Start: 1, History: History{{1, 1}}, Settings: Settings{Window: 16}}, &out)
		off, seg := uint64(0), LSN(1)
		for x := LSN(1); x <= n; x++ {
			out.Reset()
			node.shard.Step(0, 0, &Append{Log: testLog, Epoch: 1, Label: 1, Incarnation: m.Incarnation, First: x, Count: 1, SegStart: seg, SegOff: off, CLSN: x,
				Block: AppendRecord(nil, data, false)}, &out)
			r := out.Records[0]
			node.recs[recKey{1, x}] = append(append([]byte(nil), r.Head...), r.Data...)
			if off += uint64(EncodedSize(len(data))); off > DefaultSegmentBytes {
				off, seg = 0, x+1
			}
		}
	}
	target := Ensemble{ens[0], ens[1], {Node: "new", Incarnation: 9}}
	o, err := NewOpener(OpenerConfig{Log: testLog, Epoch: 2, Recorded: ens, Qw: 2, History: History{{1, 1}}, Target: target, TargetQw: 2,
		Settings: Settings{Window: 16, SegmentBytes: DefaultSegmentBytes}, BlockBytes: blockBytes, Deadline: never})
	if err != nil {
		t.Fatal(err)
	}
	begin := cpuTime(t)
	o.Start(0)
	for o.Result() == nil && o.Err() == nil {
		sends := o.Sends(nil)
		if len(sends) == 0 {
			t.Fatalf("the open stands still: %s", o.lacks())
		}
		for _, s := range sends {
			for _, node := range shards {
				if node.name != string(s.To) {
					continue
				}
				out.Reset()
				node.shard.Step(0, 0, s.Msg, &out)
				for _, r := range out.Records {
					node.recs[recKey{r.Label, r.LSN}] = append(append([]byte(nil), r.Head...), r.Data...)
				}
				for i := range out.Acks {
					o.Handle(0, &out.Acks[i].Ack)
				}
				for i := range out.Replies {
					node.fill(&out.Replies[i])
					o.Handle(0, out.Replies[i].Msg)
				}
			}
		}
		if i := o.PendingInstall(); i != nil {
			o.Installed(0, nil)
		}
	}
	took := cpuTime(t) - begin
	if o.Err() != nil || o.Result().Copied != int(n) {
		t.Fatalf("%v, copied %d of %d", o.Err(), o.copied, n)
	}
	for x := LSN(1); x <= n; x++ {
		if shards[9].recs[recKey{1, x}] == nil {
			t.Fatalf("the newcomer lacks LSN %d", x)
		}
	}
	return took
}

// A node is replaced in time that grows with the tail, not with its square: two segments of small records are a quarter of
// a million. The bound is loose; the square is beyond it by far.
func TestReplacingANodeIsLinear(t *testing.T) {
	small := openSize(t, 5000, 300)
	large := openSize(t, 40000, 300)
	t.Logf("5,000 records: %v, 40,000: %v", small, large)
	if large > 24*small && large > 500*time.Millisecond {
		t.Errorf("8 times the records take %.1f times as long: %v against %v", float64(large)/float64(small), large, small)
	}
}
