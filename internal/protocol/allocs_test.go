package protocol

import "testing"

// The hot path allocates nothing in steady state, at the node and at the writer (DESIGN section 7).

func TestShardAppendAllocatesNothing(t *testing.T) {
	s := NewShard(5, Rules{})
	var out Out
	s.Step(0, 0, &Activate{Log: testLog, Epoch: 2, Incarnation: 5, Start: 1, History: History{{2, 1}}, Settings: Settings{Window: 64, SegmentBytes: MinSegmentBytes}}, &out)
	m := &Append{Log: testLog, Epoch: 2, Label: 2, Incarnation: 5, First: 1, Count: 1, SegStart: 1, Block: AppendRecord(nil, make([]byte, 128), false)}
	step := func() {
		out.Reset()
		s.Step(1, 0, m, &out)
		s.Finish(&out)
		if len(out.Records) != 1 || out.Acks[0].Ack.Status != StatusOK {
			t.Fatalf("%+v", out.Acks)
		}
		m.First++
		m.CLSN = m.First - 2
		m.SegOff += uint64(len(m.Block))
		if m.SegOff > MinSegmentBytes {
			m.SegStart, m.SegOff = m.First, 0
		}
	}
	step()
	// One segment in some hundred appends begins a run, whose slice grows now and then: amortised to nothing.
	if n := testing.AllocsPerRun(2000, step); n != 0 {
		t.Errorf("%v allocations per append", n)
	}
}

func TestWriterCycleAllocatesNothing(t *testing.T) {
	w := testWriter(t, 3, 2, nil)
	data := make([]byte, 128)
	var sends []Send
	var msg Append
	var buf []byte
	acks := [3]*Ack{okAck(1, 0, 0), okAck(2, 0, 0), okAck(3, 0, 0)}
	now := Time(0)
	step := func() {
		now += 100000
		x, err := w.Append(now, data)
		if err != nil {
			t.Fatal(err)
		}
		sends = w.TakeSends(sends[:0])
		if len(sends) != 3 {
			t.Fatalf("%d sends", len(sends))
		}
		for _, s := range sends {
			buf = w.Fill(s, &msg, buf[:0])
		}
		for _, a := range acks {
			a.First, a.Last = x, x
			w.HandleAck(now, a)
		}
		w.Tick(now)
		if w.Committed() != x {
			t.Fatalf("committed %d of %d", w.Committed(), x)
		}
	}
	for range 200 {
		step()
	}
	if n := testing.AllocsPerRun(2000, step); n != 0 {
		t.Errorf("%v allocations per append", n)
	}
}
