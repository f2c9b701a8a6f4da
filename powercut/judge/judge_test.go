package judge

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/powercut/guest"
)

// written is a log of ten records, the last four of them a batch, acknowledged up to acked.
func written(t *testing.T, acked uint64) (*Log, [][]byte) {
	t.Helper()
	l := NewLog("log", 7)
	var data [][]byte
	for range 6 {
		data = append(data, l.Next(1)...)
		if err := l.Appended(uint64(len(data)), uint64(len(data))); err != nil {
			t.Fatal(err)
		}
	}
	data = append(data, l.Next(4)...)
	if err := l.Appended(7, 10); err != nil {
		t.Fatal(err)
	}
	l.Acknowledged(acked)
	return l, data
}

func reading(data [][]byte) func(func(uint64, []byte)) error {
	return func(f func(uint64, []byte)) error {
		for i, d := range data {
			f(uint64(i)+1, d)
		}
		return nil
	}
}

func TestLog(t *testing.T) {
	for _, c := range []struct {
		what    string
		acked   uint64
		tail    uint64
		change  func([][]byte) [][]byte
		lost    uint64
		kept    uint64
		problem string // "" if there must be none
	}{
		{"all there", 10, 10, nil, 0, 0, ""},
		{"unknown ones gone", 6, 6, nil, 0, 0, ""},
		{"unknown ones kept", 6, 10, nil, 0, 4, ""},
		{"acknowledged ones gone", 10, 6, nil, 4, 0, "acknowledged is up to 10"},
		{"a part of a batch", 6, 8, nil, 0, 2, "in the middle of the batch 7 to 10"},
		{"more than was appended", 10, 11, func(d [][]byte) [][]byte { return append(d, guest.Payload(7, 11)) }, 0, 1, "only 10 were ever appended"},
		{"another log's record", 10, 10, func(d [][]byte) [][]byte { d[3] = guest.Payload(8, 4); return d }, 1, 0, "LSN 4 is"},
		{"another record of the log", 6, 10, func(d [][]byte) [][]byte { d[8] = d[7]; return d }, 0, 4, "LSN 9 is"},
		{"a changed byte", 10, 10, func(d [][]byte) [][]byte { d[0] = slices.Clone(d[0]); d[0][15] ^= 1; return d }, 1, 0, "damaged"},
		{"a hole", 10, 10, func(d [][]byte) [][]byte { return d[:5] }, 5, 0, "the records end at LSN 5"},
	} {
		l, data := written(t, c.acked)
		if c.change != nil {
			data = c.change(data)
		} else {
			data = data[:c.tail]
		}
		v := l.Recovered(c.tail, 1, reading(data))
		if v.Lost != c.lost || v.Kept != c.kept || v.OK() != (c.problem == "") || c.problem != "" && !strings.Contains(strings.Join(v.Problems, "\n"), c.problem) {
			t.Errorf("%s: %+v", c.what, v)
		}
	}
}

// What was read after a takeover counts as acknowledged, and what was not there is forgotten: its LSNs come again.
func TestLogGoesOn(t *testing.T) {
	l, data := written(t, 4)
	if v := l.Recovered(6, 1, reading(data[:6])); !v.OK() || l.Acked() != 6 {
		t.Fatalf("%+v, acknowledged up to %d", v, l.Acked())
	}
	next := l.Next(1)
	if err := l.Appended(7, 7); err != nil {
		t.Fatal(err)
	}
	if err := l.Appended(7, 7); err == nil {
		t.Fatal("an LSN was taken twice")
	}
	if slices.Equal(next[0], data[6]) {
		t.Fatal("a number was used twice")
	}
	if v := l.Recovered(7, 1, reading(data[:7])); v.OK() {
		t.Fatal("a record that was not there after a takeover came back in the place of another, and nobody saw it")
	}
}

// told is a store with three acknowledged batches of two records of stream 1, one second apart, the last of them a second before
// the cut.
func told(forced bool) (s *Store, cut time.Time, found []guest.Event) {
	s = NewStore("store")
	run := s.Run()
	begin := time.Unix(1000, 0)
	for i := range uint64(3) {
		e := guest.Event{Kind: "ack", Stream: 1, From: 1 + 2*i, To: 3 + 2*i, Forced: forced, Segment: 1, Offset: int64(4096 * (i + 1))}
		s.Event(&e, begin.Add(time.Duration(i)*time.Second))
		for seq := e.From; seq < e.To; seq++ {
			found = append(found, guest.Event{Kind: "record", Stream: 1, From: seq, Data: guest.Payload(guest.Tag(run, 1, e.From, e.To), seq)})
		}
	}
	return s, begin.Add(3 * time.Second), found
}

func (s *Store) judgeAll(cut time.Time, eof uint64, found []guest.Event) Verdict {
	var v Verdict
	for i := range found {
		s.Found(&found[i], &v)
	}
	s.Found(&guest.Event{Kind: "stream", Stream: 1, From: 1, To: eof}, &v)
	s.Finish(cut, &v)
	return v
}

func TestStore(t *testing.T) {
	for _, c := range []struct {
		what    string
		forced  bool
		eof     uint64
		change  func([]guest.Event) []guest.Event
		late    time.Duration // of the cut
		lost    uint64
		soft    uint64
		problem string
	}{
		{"all there", true, 7, nil, 0, 0, 0, ""},
		{"forced ones gone", true, 5, func(f []guest.Event) []guest.Event { return f[:4] }, 0, 2, 0, "sequence 5 is lost"},
		{"unforced ones gone", false, 5, func(f []guest.Event) []guest.Event { return f[:4] }, 0, 0, 2, ""},
		{"unforced ones of long ago gone", false, 5, func(f []guest.Event) []guest.Event { return f[:4] }, time.Minute, 0, 2, "unforced"},
		{"a part of a batch", true, 6, func(f []guest.Event) []guest.Event { return f[:5] }, 0, 1, 0, "in the middle of the batch"},
		{"a hole", false, 7, func(f []guest.Event) []guest.Event { return append(f[:2:2], f[4:]...) }, 0, 0, 2, "has no sequence 3"},
		{"no suffix", false, 7, func(f []guest.Event) []guest.Event { return append(f[:2:2], f[4:]...) }, 0, 0, 2, "the later one at 1:12288 is there"},
		{"a changed byte", true, 7, func(f []guest.Event) []guest.Event { f[0].Data[15] ^= 1; return f }, 0, 1, 0, "damaged"},
		{"another stream's", true, 7, func(f []guest.Event) []guest.Event {
			f[0].Data = guest.Payload(guest.Tag(1, 2, 1, 3), 1)
			return f
		}, 0, 1, 0, "sequence 1 is"},
		{"of a run that is over", true, 8, func(f []guest.Event) []guest.Event {
			return append(f, guest.Event{Kind: "record", Stream: 1, From: 7, Data: guest.Payload(guest.Tag(0, 1, 7, 8), 7)})
		}, 0, 0, 0, "of run 0 and was not there after it"},
		{"kept without having been acknowledged", true, 8, func(f []guest.Event) []guest.Event {
			return append(f, guest.Event{Kind: "record", Stream: 1, From: 7, Data: guest.Payload(guest.Tag(1, 1, 7, 8), 7)})
		}, 0, 0, 0, ""},
	} {
		s, cut, found := told(c.forced)
		if c.change != nil {
			found = c.change(found)
		}
		v := s.judgeAll(cut.Add(c.late), c.eof, found)
		if v.Lost != c.lost || v.SoftLost != c.soft || v.OK() != (c.problem == "") || c.problem != "" && !strings.Contains(strings.Join(v.Problems, "\n"), c.problem) {
			t.Errorf("%s: %+v", c.what, v)
		}
	}
}

// What was there after a cut, forced or not, must be there after the next one; what was trimmed need not.
func TestStoreGoesOn(t *testing.T) {
	s, cut, found := told(false)
	if v := s.judgeAll(cut, 7, found); !v.OK() {
		t.Fatalf("%+v", v)
	}
	s.Run()
	s.Event(&guest.Event{Kind: "trim", Stream: 1, From: 3}, cut)
	if v := s.judgeAll(cut, 7, found[2:]); !v.OK() {
		t.Fatalf("trimmed: %+v", v)
	}
	if v := s.judgeAll(cut, 5, found[2:4]); v.Lost != 2 {
		t.Fatalf("two records that had survived a cut are gone: %+v", v)
	}
}
