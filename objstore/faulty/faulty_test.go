package faulty_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/memory"
	"github.com/btrlog/btrlog/objstore/objtest"
)

func newStore(seed uint64) *faulty.Store {
	return faulty.New(memory.New(memory.Options{}), faulty.Config{Seed: seed})
}

func TestConformanceWithoutFaults(t *testing.T) {
	objtest.Run(t, func(t *testing.T) objstore.Store { return newStore(1) })
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		fault   faulty.Fault
		kind    error
		applied bool
	}{
		{faulty.Unavailable, objstore.ErrUnavailable, false},
		{faulty.Conflict, objstore.ErrConflict, false},
		{faulty.Denied, objstore.ErrDenied, false},
		{faulty.LostRequest, objstore.ErrUnknown, false},
		{faulty.LostReply, objstore.ErrUnknown, true},
		{faulty.HiddenRetry, objstore.ErrPrecondition, true},
		{faulty.Late, objstore.ErrUnknown, false},
	} {
		s := newStore(1)
		s.Add(faulty.Rule{Ops: faulty.PutIfAbsent, Prefix: "a/", Fault: c.fault, Count: 1, Skip: 1})
		ctx := t.Context()
		for _, k := range []string{"b/k", "a/first"} {
			if _, err := s.Put(ctx, k, nil, nil, objstore.IfAbsent()); err != nil {
				t.Fatalf("fault %d hit %q, which the rule spares: %v", c.fault, k, err)
			}
		}
		_, err := s.Put(ctx, "a/second", []byte("x"), nil, objstore.IfAbsent())
		if !errors.Is(err, c.kind) {
			t.Fatalf("fault %d: %v, want %v", c.fault, err, c.kind)
		}
		_, err = s.Head(ctx, "a/second")
		if (err == nil) != c.applied {
			t.Fatalf("fault %d: applied %v, want %v", c.fault, err == nil, c.applied)
		}
		if _, err := s.Put(ctx, "a/third", nil, nil, objstore.IfAbsent()); err != nil {
			t.Fatalf("fault %d outlived its count: %v", c.fault, err)
		}
		if n := s.Counts()[faulty.Count{Op: faulty.PutIfAbsent, Outcome: c.kind.Error()}]; n != 1 || s.Requests(faulty.PutIfAbsent) != 4 {
			t.Fatalf("fault %d: counts %v", c.fault, s.Counts())
		}
	}
}

func TestLate(t *testing.T) {
	s := newStore(1)
	s.Add(faulty.Rule{Ops: faulty.Writes, Fault: faulty.Late, Count: 2})
	body := []byte("late")
	s.Put(t.Context(), "k", body, nil, objstore.IfAbsent())
	body[0] = 'X' // the caller's again
	s.Put(t.Context(), "k", []byte("later"), nil, objstore.IfAbsent())
	out := s.Release(t.Context())
	if len(out) != 2 || out[0] != nil || !errors.Is(out[1], objstore.ErrPrecondition) {
		t.Fatalf("Release: %v, want success and a failed condition", out)
	}
	if b, _, err := objstore.ReadAll(t.Context(), s, "k", 10); err != nil || string(b) != "late" {
		t.Fatalf("%q, %v", b, err)
	}
}

func TestCutBody(t *testing.T) {
	s := newStore(1)
	s.Put(t.Context(), "k", make([]byte, 1000), nil, objstore.Always())
	s.Add(faulty.Rule{Fault: faulty.CutBody, Count: 1})
	if b, _, err := objstore.ReadAll(t.Context(), s, "k", 1000); !errors.Is(err, objstore.ErrUnavailable) || b != nil {
		t.Fatalf("a cut body was read as %d bytes, %v", len(b), err)
	}
	if _, _, err := objstore.ReadAll(t.Context(), s, "k", 1000); err != nil {
		t.Fatal(err)
	}
}

func TestSameSeedSameFaults(t *testing.T) {
	run := func(seed uint64) string {
		s := newStore(seed)
		s.Add(faulty.Rule{Ops: faulty.Puts, Fault: faulty.Conflict, Probability: 0.5})
		out := ""
		for i := range 64 {
			_, err := s.Put(t.Context(), fmt.Sprint(i), nil, nil, objstore.Always())
			out += fmt.Sprint(err == nil)[:1]
		}
		return out
	}
	if run(7) != run(7) {
		t.Fatal("one seed, two runs, different faults")
	}
	if run(7) == run(8) {
		t.Fatal("the seed changes nothing")
	}
}

func TestDelayAndHeal(t *testing.T) {
	var seen []string
	inner := memory.New(memory.Options{})
	s := faulty.New(inner, faulty.Config{Delay: func(ctx context.Context, op faulty.Op, key string) error {
		seen = append(seen, op.String()+" "+key)
		return ctx.Err()
	}})
	s.Add(faulty.Rule{Fault: faulty.Unavailable})
	if _, err := s.List(t.Context(), "p", "", 0); !errors.Is(err, objstore.ErrUnavailable) {
		t.Fatal(err)
	}
	s.Heal()
	if _, err := s.List(t.Context(), "p", "", 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Delete(ctx, "k"); !errors.Is(err, context.Canceled) || !errors.Is(err, objstore.ErrUnavailable) {
		t.Fatal(err)
	}
	if want := []string{"list p", "list p", "delete k"}; fmt.Sprint(seen) != fmt.Sprint(want) {
		t.Fatalf("delays asked for %v, want %v", seen, want)
	}
	s.ResetCounts()
	if len(maps.Clone(s.Counts())) != 0 {
		t.Fatal("counters survive ResetCounts")
	}
}
