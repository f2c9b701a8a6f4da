package protocol

import (
	"strings"
	"testing"
)

// P14: what must be on the device before a reply leaves, for a log with durable appends and for one in memory.
func TestWhatIsForced(t *testing.T) {
	for _, memory := range []bool{false, true} {
		s := NewShard(5, Rules{})
		var out Out
		step := func(m Message, wantState, wantRecords int, force bool) {
			t.Helper()
			out.Reset()
			s.Step(1, 0, m, &out)
			s.Finish(&out)
			if len(out.State) != wantState || len(out.Records) != wantRecords || out.NeedForce != force {
				t.Errorf("memory %v: %s writes %d states, %d records, forced %v; want %d, %d, %v", memory, describe(m), len(out.State), len(out.Records), out.NeedForce,
					wantState, wantRecords, force)
			}
		}
		block := func(data ...string) (b []byte) {
			for _, d := range data {
				b = AppendRecord(b, []byte(d), false)
			}
			return b
		}
		add := func(first LSN, off uint64, clsn LSN) *Append {
			return &Append{Log: testLog, Epoch: 2, Label: 2, Incarnation: 5, First: first, Count: 1, SegStart: 1, SegOff: off, CLSN: clsn, Block: block("x")}
		}
		step(&Open{Log: testLog, Epoch: 2, Name: "log"}, 1, 0, true)
		step(&Open{Log: testLog, Epoch: 2, Name: "log"}, 0, 0, false) // a repeated promise is on disk already
		step(&Open{Log: testLog, Epoch: 1, Name: "log"}, 0, 0, false)
		act := &Activate{Log: testLog, Epoch: 2, Incarnation: 5, Start: 1, History: History{{2, 1}}, Settings: Settings{Name: "log", Window: 8, Memory: memory}}
		step(act, 1, 0, true)
		step(act, 0, 0, false)
		step(add(1, 0, 0), 0, 1, !memory)
		step(add(1, 0, 0), 0, 0, false)   // a late duplicate
		step(add(2, 5, 1), 0, 1, !memory) // the record carries the watermark
		step(add(2, 5, 2), 1, 0, !memory) // a duplicate with a newer one does not
		step(&Watermark{Log: testLog, Epoch: 2, Incarnation: 5, CLSN: 2}, 0, 0, false)
		step(&Watermark{Log: testLog, Epoch: 2, Incarnation: 5, CLSN: 2, Sealed: 2}, 1, 0, !memory)
		step(&Read{Log: testLog, From: 1, To: 2}, 0, 0, false)
		step(&Fetch{Log: testLog, Epoch: 2, Incarnation: 5, From: 1, To: 2}, 0, 0, false)
		step(&Drop{Log: testLog, Epoch: 3, Incarnation: 5}, 1, 0, true)
	}
}

// P7, R3, R9: one gate for every request that can commit. Each kind, with each thing wrong, is refused and changes nothing.
func TestGate(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(a *Append)
		want   Status
	}{
		{"right", func(a *Append) {}, StatusOK},
		{"another incarnation", func(a *Append) { a.Incarnation = 6 }, StatusWrongIncarnation},
		{"a lower epoch", func(a *Append) { a.Epoch, a.Label = 2, 2 }, StatusFenced},
		{"an epoch that is not activated", func(a *Append) { a.Epoch, a.Label = 4, 4 }, StatusNotActivated},
		{"an unknown log", func(a *Append) { a.Log = 8 }, StatusNotActivated},
		{"another label", func(a *Append) { a.Label = 2 }, StatusBad},
		{"below the start", func(a *Append) { a.First, a.SegStart = 4, 4 }, StatusBad},
		{"LSN zero", func(a *Append) { a.First = 0 }, StatusBad},
		{"a segment behind the record", func(a *Append) { a.SegStart = 6 }, StatusBad},
		{"no segment", func(a *Append) { a.SegStart = 0 }, StatusBad},
		{"no records", func(a *Append) { a.Count = 0 }, StatusBad},
		{"more records than bytes", func(a *Append) { a.Count = 2 }, StatusBad},
		{"more bytes than records", func(a *Append) { a.Block = append(a.Block, 0) }, StatusBad},
		{"a kind from the future", func(a *Append) { a.Kind = 3 }, StatusBad},
		{"a copy of the epoch itself", func(a *Append) { a.Kind = AppendCopy }, StatusBad},
		{"a copy that is void", func(a *Append) { a.Kind, a.Label = AppendCopy, 1 }, StatusBad},
		{"a copy without a label", func(a *Append) { a.Kind, a.Label = AppendCopy, 0 }, StatusBad},
		{"a copy below the start", func(a *Append) { a.Kind, a.Label, a.First, a.SegStart = AppendCopy, 1, 3, 3 }, StatusOK},
		{"a late repair", func(a *Append) { a.Kind = AppendRepair }, StatusOK},
		{"a repair of an epoch not promised", func(a *Append) { a.Kind, a.Epoch, a.Label = AppendRepair, 4, 4 }, StatusNotPromised},
		{"a repair of a lower epoch", func(a *Append) { a.Kind, a.Epoch, a.Label = AppendRepair, 2, 2 }, StatusFenced},
	} {
		s := NewShard(5, Rules{})
		var out Out
		s.Step(0, 0, &Activate{Log: testLog, Epoch: 3, Incarnation: 5, Start: 5, B: 4, History: History{{1, 1}, {3, 5}}}, &out)
		s.Finish(&out)
		before, _ := s.Log(testLog)
		out.Reset()
		a := &Append{Log: testLog, Epoch: 3, Label: 3, Incarnation: 5, First: 5, Count: 1, SegStart: 5, CLSN: 9, Block: AppendRecord(nil, []byte("x"), false)}
		c.change(a)
		s.Step(0, 0, a, &out)
		s.Finish(&out)
		if got := out.Acks[0].Ack.Status; got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		after, _ := s.Log(testLog)
		if c.want != StatusOK && (!out.Empty() || after.CLSN != before.CLSN || after.Highest != before.Highest) {
			t.Errorf("%s: %s, and yet something changed: %+v", c.name, out.Acks[0].Ack.Status, after)
		}
		if a.Kind != AppendNormal && after.CLSN != before.CLSN {
			t.Errorf("%s: the watermark of an opener was taken (H12)", c.name)
		}
	}
}

// R15: a full node refuses data by a refusal that ends by itself, the repairs of openers last, and no promise and no activation.
func TestFullNode(t *testing.T) {
	one := AppendRecord(nil, nil, false)
	for _, c := range []struct {
		space                Space
		append, copy, repair Status
	}{
		{SpaceFree, StatusOK, StatusOK, StatusOK},
		{SpaceRepairs, StatusNoSpace, StatusNoSpace, StatusOK},
		{SpaceNone, StatusNoSpace, StatusNoSpace, StatusNoSpace},
	} {
		s := NewShard(5, Rules{})
		var out Out
		step := func(m Message) Status {
			out.Reset()
			s.Step(0, 0, m, &out)
			s.Finish(&out)
			if len(out.Replies) == 1 {
				return out.Replies[0].Msg.(*OpenReply).Status
			}
			if st := out.Acks[0].Ack.Status; (st == StatusOK) == (len(out.Records) == 0) {
				if _, ok := m.(*Append); ok {
					t.Errorf("space %d: %s, %d records", c.space, st, len(out.Records))
				}
			}
			return out.Acks[0].Ack.Status
		}
		s.SetSpace(c.space)
		for _, x := range []struct {
			what string
			m    Message
			want Status
		}{
			{"activate", &Activate{Log: testLog, Epoch: 3, Incarnation: 5, Start: 4, B: 3, History: History{{1, 1}, {3, 4}}}, StatusOK},
			{"append", &Append{Log: testLog, Epoch: 3, Label: 3, Incarnation: 5, First: 4, Count: 1, SegStart: 4, Block: one}, c.append},
			{"watermark", &Watermark{Log: testLog, Epoch: 3, Incarnation: 5, CLSN: 4}, StatusOK},
			{"open", &Open{Log: testLog, Epoch: 4}, StatusOK},
			{"copy", &Append{Log: testLog, Epoch: 4, Label: 1, Kind: AppendCopy, Incarnation: 5, First: 2, Count: 1, SegStart: 1, SegOff: 9, Block: one}, c.copy},
			{"repair", &Append{Log: testLog, Epoch: 4, Label: 4, Kind: AppendRepair, Incarnation: 5, First: 5, Count: 1, SegStart: 5, Block: one}, c.repair},
			{"activate again", &Activate{Log: testLog, Epoch: 4, Incarnation: 5, Start: 5, B: 4, History: History{{1, 1}, {3, 4}, {4, 5}}}, StatusOK},
		} {
			if got := step(x.m); got != x.want {
				t.Errorf("space %d: %s: %s, want %s", c.space, x.what, got, x.want)
			}
		}
		s.SetSpace(SpaceFree)
		if got := step(&Append{Log: testLog, Epoch: 4, Label: 4, Incarnation: 5, First: 6, Count: 1, SegStart: 6, Block: one}); got != StatusOK {
			t.Errorf("after space %d returned: %s", c.space, got)
		}
	}
}

// A log whose state cannot be read is an error at start, never an empty log (P3, R4).
func TestRestoreRefusesWhatItCannotRead(t *testing.T) {
	s := NewShard(5, Rules{})
	if err := s.Restore(testLog, []byte{stateVersion, 0, 1}); err == nil || !strings.Contains(err.Error(), testLog.String()) {
		t.Errorf("%v", err)
	}
	if _, err := s.RestoreRecord(testLog, 1, 1, appendStoredHead(nil, 1, 1, 0, 0, false), 0); err == nil {
		t.Error("a record without a state value")
	}
}
