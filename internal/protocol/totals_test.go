package protocol

import "testing"

// The totals of a shard follow what is done to its logs, one for one.
func TestTotals(t *testing.T) {
	const inc = Incarnation(7)
	s := NewShard(inc, Rules{})
	var out Out
	now := Time(1000)
	step := func(ms ...Message) {
		t.Helper()
		out.Reset()
		for _, m := range ms {
			s.Step(now, 1, m, &out)
		}
		s.Finish(&out)
	}
	check := func(what string, want Totals) {
		t.Helper()
		if got := s.Totals(now); got != want {
			t.Fatalf("%s: %+v\nwant %+v", what, got, want)
		}
	}
	counted := func(what string, promises, fencings, activations int) {
		t.Helper()
		if out.Promises != promises || out.Fencings != fencings || out.Activations != activations {
			t.Fatalf("%s: %d promises, %d fencings, %d activations, want %d, %d, %d", what, out.Promises, out.Fencings, out.Activations, promises, fencings, activations)
		}
	}
	activate := func(log LogID, e Epoch, start LSN, h History) *Activate {
		return &Activate{Log: log, Epoch: e, Incarnation: inc, Start: start, B: start - 1, History: h,
			Settings: Settings{Window: 4, SegmentBytes: 1 << 20, Qw: 2}}
	}
	step(&Open{Log: 1, Epoch: 1}, &Open{Log: 2, Epoch: 1})
	counted("two opens", 2, 0, 0)
	check("two opens", Totals{Promised: 2, NeverActivated: 2})
	step(&Open{Log: 1, Epoch: 1})
	counted("a repeated open", 0, 0, 0)
	step(activate(1, 1, 1, History{{1, 1}}))
	counted("activation", 0, 0, 1)
	check("activation", Totals{Active: 1, Promised: 1, NeverActivated: 1})

	var block []byte
	for range 10 {
		block = AppendRecord(block, make([]byte, 96), false)
	}
	step(&Append{Log: 1, Epoch: 1, Label: 1, Incarnation: inc, First: 1, Count: 10, SegStart: 1, CLSN: 0, Block: block})
	now += 500
	check("ten records", Totals{Active: 1, Promised: 1, NeverActivated: 1, Held: 10, Unarchived: 10, UnarchivedBytes: 1000, Uncommitted: 10, MaxUncommitted: 10,
		OldestAge: 500})
	step(&Watermark{Log: 1, Epoch: 1, Incarnation: inc, CLSN: 8})
	check("watermark", Totals{Active: 1, Promised: 1, NeverActivated: 1, Held: 10, Unarchived: 10, UnarchivedBytes: 1000, Uncommitted: 2, MaxUncommitted: 2,
		OldestAge: 500})
	out.Reset()
	s.Archived(now, 1, []ArchivedObject{{Label: 1, First: 1, Last: 4, CLSN: 4}}, &out)
	check("archived to 4, window of 4", Totals{Active: 1, Promised: 1, NeverActivated: 1, Held: 6, Unarchived: 6, UnarchivedBytes: 600, Uncommitted: 2, MaxUncommitted: 2})

	step(&Open{Log: 1, Epoch: 2})
	counted("an open that fences", 1, 1, 0)
	check("fenced", Totals{Promised: 2, NeverActivated: 1, Held: 6, Unarchived: 6, UnarchivedBytes: 600, Uncommitted: 2, MaxUncommitted: 2})
	step(&Open{Log: 1, Epoch: 3})
	counted("another open before it activated", 1, 0, 0)
	step(&Drop{Log: 2, Epoch: 2, Incarnation: inc})
	check("deleted", Totals{Promised: 1, Deleted: 1, Held: 6, Unarchived: 6, UnarchivedBytes: 600, Uncommitted: 2, MaxUncommitted: 2})
}

// Opens and deletes of logs that nobody knows take room for good, so there is an end to them. A log that has had a writer does
// not count, and what is known is served as ever.
func TestUnknownLogsAreBounded(t *testing.T) {
	const inc = Incarnation(7)
	s := NewShard(inc, Rules{})
	var out Out
	step := func(m Message) *Out {
		out.Reset()
		s.Step(1, 1, m, &out)
		s.Finish(&out)
		return &out
	}
	status := func(o *Out) Status {
		if len(o.Acks) == 1 {
			return o.Acks[0].Ack.Status
		}
		return o.Replies[0].Msg.(*OpenReply).Status
	}
	activate := func(log LogID) *Activate {
		return &Activate{Log: log, Epoch: 1, Incarnation: inc, Start: 1, History: History{{1, 1}}, Settings: Settings{Window: 4, SegmentBytes: 1 << 20, Qw: 2}}
	}
	var states [][]byte
	for i := range LogID(MaxBlankLogs) {
		m := Message(&Open{Log: 1 + i, Epoch: 1})
		if i%2 == 1 {
			m = &Drop{Log: 1 + i, Epoch: 1, Incarnation: inc}
		}
		o := step(m)
		if status(o) != StatusOK {
			t.Fatalf("log %d: %v", i, status(o))
		}
		if i < 4 {
			states = append(states, append([]byte(nil), o.State[0].Value...))
		}
	}
	const next = LogID(1 << 40)
	for _, m := range []Message{&Open{Log: next, Epoch: 1}, &Drop{Log: next, Epoch: 1, Incarnation: inc}} {
		if o := step(m); status(o) != StatusOverloaded || !o.Empty() {
			t.Errorf("%T past the bound: %v, writes %v", m, status(o), !o.Empty())
		}
	}
	if _, known := s.Log(next); known || len(s.logs) != MaxBlankLogs {
		t.Errorf("%d logs", len(s.logs))
	}
	if o := step(&Open{Log: 1, Epoch: 2}); status(o) != StatusOK || o.Promises != 1 {
		t.Errorf("an open of a known log: %v", status(o))
	}
	// A log with a writer makes room, and one that comes with its writer needs none.
	if o := step(&Activate{Log: 1, Epoch: 2, Incarnation: inc, Start: 1, History: History{{2, 1}}, Settings: Settings{Window: 4, SegmentBytes: 1 << 20, Qw: 2}}); status(o) != StatusOK {
		t.Fatal(status(o))
	}
	if o := step(activate(next + 1)); status(o) != StatusOK {
		t.Error(status(o))
	}
	for i, want := range []Status{StatusOK, StatusOverloaded} {
		if o := step(&Open{Log: next + 2 + LogID(i), Epoch: 1}); status(o) != want {
			t.Errorf("open %d after one log was activated: %v, want %v", i, status(o), want)
		}
	}
	// A restart counts the same.
	s = NewShard(inc, Rules{})
	for i, st := range states {
		if err := s.Restore(1+LogID(i), st); err != nil {
			t.Fatal(err)
		}
	}
	if s.blank != len(states) {
		t.Errorf("%d blank logs after a restart, want %d", s.blank, len(states))
	}
}

// Only a log that never had anything is forgotten, and only by the promise that was looked for.
func TestForget(t *testing.T) {
	const inc = Incarnation(7)
	s := NewShard(inc, Rules{})
	var out Out
	batch := func(f func()) {
		out.Reset()
		f()
		s.Finish(&out)
	}
	batch(func() {
		s.Step(1, 1, &Open{Log: 1, Epoch: 3}, &out)
		if s.Forget(1, 3, &out) {
			t.Error("forgotten in the batch that writes its promise")
		}
		s.Step(1, 1, &Open{Log: 2, Epoch: 1}, &out)
		s.Step(1, 1, &Activate{Log: 2, Epoch: 1, Incarnation: inc, Start: 1, History: History{{1, 1}}, Settings: Settings{Window: 4, SegmentBytes: 1 << 20, Qw: 2}}, &out)
		s.Step(1, 1, &Drop{Log: 3, Epoch: 1, Incarnation: inc}, &out)
		// A repair before its activation: the node holds something.
		s.Step(1, 1, &Open{Log: 4, Epoch: 1}, &out)
		s.Step(1, 1, &Append{Log: 4, Epoch: 1, Label: 1, Kind: AppendRepair, Incarnation: inc, First: 1, Count: 1, SegStart: 1,
			Block: AppendRecord(nil, []byte("x"), false)}, &out)
	})
	batch(func() {
		for _, c := range []struct {
			log      LogID
			promised Epoch
			want     bool
		}{{1, 2, false}, {2, 1, false}, {3, 1, false}, {4, 1, false}, {5, 1, false}, {1, 3, true}, {1, 3, false}} {
			if got := s.Forget(c.log, c.promised, &out); got != c.want {
				t.Errorf("forget log %d promised %d: %v", c.log, c.promised, got)
			}
		}
	})
	if len(out.Forgotten) != 1 || out.Forgotten[0] != 1 || out.Empty() || s.blank != 2 {
		t.Errorf("forgotten %v, %d blank", out.Forgotten, s.blank)
	}
	batch(func() { s.Step(1, 1, &Open{Log: 1, Epoch: 1}, &out) })
	if r := out.Replies[0].Msg.(*OpenReply); r.Status != StatusOK || r.Promised != 1 {
		t.Errorf("an open of a forgotten log: %+v", r)
	}
}
