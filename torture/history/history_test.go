//go:build linux

package history

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// script builds the events of one client. Times are the positions of the events.
type script struct {
	events []Event
	ids    uint64
}

func (s *script) call(op Op, lsn, v uint64) uint64 {
	s.ids++
	s.events = append(s.events, Event{T: int64(len(s.events)+1) * 10, ID: s.ids, Op: op, Log: "l", LSN: lsn, Val: v})
	return s.ids
}

func (s *script) ret(id uint64, op Op, out Outcome, lsn, v uint64) {
	s.events = append(s.events, Event{T: int64(len(s.events)+1) * 10, ID: id, Op: op, Log: "l", LSN: lsn, Val: v, Out: out})
}

func (s *script) do(op Op, out Outcome, lsn, v uint64) { s.ret(s.call(op, lsn, v), op, out, lsn, v) }

func (s *script) final(values ...uint64) {
	for _, reader := range []string{"c1", "c2"} {
		for i, v := range values {
			s.events = append(s.events, Event{Op: Final, Log: "l", LSN: uint64(i + 1), Val: v, Reader: reader})
		}
		s.events = append(s.events, Event{T: 5000, Op: Final, Log: "l", LSN: uint64(len(values)), Out: OK, Reader: reader})
	}
}

func judge(t *testing.T, s *script) (porcupine.CheckResult, []string) {
	t.Helper()
	logs := Merge([][]Event{s.events})
	if len(logs) != 1 {
		t.Fatalf("%d logs", len(logs))
	}
	result, _ := logs[0].Linearizable(time.Minute)
	return result, logs[0].Check()
}

func TestGoodHistory(t *testing.T) {
	s := new(script)
	s.do(Open, OK, 0, 0)
	s.do(Append, OK, 1, 11)
	unknown := s.call(Append, 0, 12)
	late := s.call(Append, 0, 13)
	s.do(Read, Absent, 3, 0)
	s.do(Read, OK, 1, 11)
	s.ret(unknown, Append, Unknown, 2, 12)
	s.ret(late, Append, Unknown, 3, 13)
	s.do(Tail, OK, 1, 0)
	s.do(Open, OK, 2, 0) // the unknown one turned out to be in, the later one did not
	s.do(Append, OK, 3, 14)
	s.call(Append, 0, 15) // of a process that was killed
	s.do(Append, Failed, 0, 16)
	s.do(Read, OK, 2, 12)
	s.do(Tail, OK, 4, 0)
	s.events = append(s.events, Event{T: 1000, Op: Follow, Log: "l", LSN: 1, Val: 11, Reader: "f"}, Event{T: 1001, Op: Follow, Log: "l", LSN: 2, Val: 12, Reader: "f"})
	s.final(11, 12, 14, 15)
	if result, problems := judge(t, s); result != porcupine.Ok || problems != nil {
		t.Fatalf("%v %q", result, problems)
	}
}

// Planted bad histories: each must be rejected, by porcupine, by the direct check, or by both.
func TestPlantedBadHistories(t *testing.T) {
	for name, c := range map[string]struct {
		plant  func(s *script)
		linear bool   // porcupine lets it pass: it is no matter of order
		direct string // what the direct check says; empty: it lets it pass
	}{
		"an acknowledged record is lost": {func(s *script) { s.final(11, 12) }, false, "LOST"},
		"a record that nobody appended":  {func(s *script) { s.final(11, 12, 13, 99) }, false, "FORGED"},
		"a record twice":                 {func(s *script) { s.final(11, 12, 13, 12) }, false, "is at LSN"},
		"a failed append is in the log":  {func(s *script) { s.do(Append, Failed, 0, 14); s.final(11, 12, 13, 14) }, false, "failed for certain"},
		"a stale tail":                   {func(s *script) { s.do(Tail, OK, 2, 0); s.final(11, 12, 13) }, false, ""},
		"a tail that goes back": {func(s *script) {
			id := s.call(Append, 0, 14)
			s.do(Tail, OK, 4, 0)
			s.do(Tail, OK, 3, 0)
			s.ret(id, Append, OK, 4, 14)
			s.final(11, 12, 13, 14)
		}, false, ""},
		"an acknowledged record is not found": {func(s *script) { s.do(Read, Absent, 3, 0); s.final(11, 12, 13) }, false, ""},
		"another value is read":               {func(s *script) { s.do(Read, OK, 3, 12); s.final(11, 12, 13) }, false, "not there in the end"},
		"a record is read that vanishes": {func(s *script) {
			id := s.call(Append, 0, 14)
			s.do(Read, OK, 4, 14)
			s.ret(id, Append, Unknown, 4, 14)
			s.final(11, 12, 13)
		}, false, "not there in the end"},
		"a takeover that misses the tail": {func(s *script) { s.do(Open, OK, 2, 0); s.final(11, 12, 13) }, false, ""},
		"one LSN for two records": {func(s *script) {
			s.do(Append, OK, 3, 14)
			s.final(11, 12, 14)
		}, false, "LOST"},
		"a follower skips a record": {func(s *script) {
			for _, lsn := range []uint64{1, 3} {
				s.events = append(s.events, Event{T: 1000, Op: Follow, Log: "l", LSN: lsn, Val: 10 + lsn, Reader: "f"})
			}
			s.final(11, 12, 13)
		}, true, "where 2 was next"},
		"damaged bytes": {func(s *script) {
			s.ret(s.call(Read, 2, 0), Read, OK, 2, 12)
			s.events[len(s.events)-1].Bad = "other bytes"
			s.final(11, 12, 13)
		}, true, "other bytes"},
		"final scans differ": {func(s *script) { s.final(11, 12, 13); s.events[len(s.events)-2].Val = 14 }, true, "final scans differ"},
		"no final scan":      {func(*script) {}, true, "no final scan"},
	} {
		t.Run(name, func(t *testing.T) {
			s := new(script)
			s.do(Open, OK, 0, 0)
			for v := uint64(1); v <= 3; v++ {
				s.do(Append, OK, v, 10+v)
			}
			c.plant(s)
			result, problems := judge(t, s)
			if (result == porcupine.Ok) != c.linear {
				t.Errorf("porcupine says %v", result)
			}
			if c.direct == "" && problems != nil || !strings.Contains(strings.Join(problems, "\n"), c.direct) {
				t.Errorf("the direct check says %q", problems)
			}
		})
	}
}

// A history of the size of a run's logs, with a pipelined writer, is checked in little time.
func TestLargeHistory(t *testing.T) {
	s := new(script)
	s.do(Open, OK, 0, 0)
	var values []uint64
	var ids []uint64
	for v := uint64(1); v <= 6000; v++ {
		ids = append(ids, s.call(Append, 0, v))
		values = append(values, v)
		if v > 4 {
			s.ret(ids[v-5], Append, OK, v-4, v-4)
		}
		if v > 5 && v%4 == 0 {
			s.do(Read, OK, v/2, v/2)
			s.do(Tail, OK, v-4, 0)
		}
	}
	for v := uint64(5997); v <= 6000; v++ {
		s.ret(ids[v-1], Append, OK, v, v)
	}
	s.final(values...)
	for i := range s.events {
		if s.events[i].Op == Final {
			s.events[i].T = int64(len(s.events)) * 10
		}
	}
	began := time.Now()
	if result, problems := judge(t, s); result != porcupine.Ok || problems != nil {
		t.Fatalf("%v %q", result, problems)
	}
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestFileSurvivesKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h")
	r, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	id := r.Call(Event{Op: Append, Log: "l", Val: 7})
	r.Return(Event{ID: id, Op: Append, Log: "l", LSN: 1, Out: OK})
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"t":12,"op":"app`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	events, err := Load(path)
	if err != nil || len(events) != 2 {
		t.Fatalf("%v %v", events, err)
	}
	if !slices.IsSortedFunc(events, func(a, b Event) int { return int(a.T - b.T) }) || events[0].T <= 0 {
		t.Errorf("times %d, %d", events[0].T, events[1].T)
	}
	ops := Merge([][]Event{events})[0].Ops
	if len(ops) != 1 || ops[0].Out != OK || ops[0].LSN != 1 || ops[0].Val != 7 || ops[0].Ret < ops[0].Call {
		t.Errorf("%+v", ops)
	}
}
