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
