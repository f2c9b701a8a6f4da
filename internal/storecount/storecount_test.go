package storecount

import (
	"context"
	"errors"
	"testing"

	"github.com/btrlog/btrlog/metrics"
	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/memory"
	"github.com/btrlog/btrlog/objstore/objtest"
)

// The wrapper is a store like the one in it.
func TestConformance(t *testing.T) {
	objtest.Run(t, func(*testing.T) objstore.Store { return New("test", new(Health)).Wrap(memory.New(memory.Options{})) })
}

// failing is a store whose every Put fails with err, while that is set.
type failing struct {
	objstore.Store
	err error
}

func (s *failing) Put(ctx context.Context, key string, body []byte, meta map[string]string, cond objstore.Condition) (objstore.Info, error) {
	if s.err != nil {
		return objstore.Info{}, &objstore.Error{Op: "put", Key: key, Kind: s.err}
	}
	return s.Store.Put(ctx, key, body, meta, cond)
}

func TestEveryRequestCountsOnce(t *testing.T) {
	h := new(Health)
	c := New("test", h)
	back := &failing{Store: memory.New(memory.Options{})}
	s := c.Wrap(back)
	ctx := t.Context()
	put := func(cond objstore.Condition) {
		_, _ = s.Put(ctx, "a", []byte("12345"), nil, cond) // the outcome is what is counted
	}
	put(objstore.IfAbsent())
	put(objstore.IfAbsent())
	for _, err := range []error{objstore.ErrConflict, objstore.ErrUnavailable, objstore.ErrUnknown, objstore.ErrDenied, errors.New("else")} {
		back.err = err
		put(objstore.Always())
	}
	back.err = nil
	if _, _, err := objstore.ReadAll(ctx, s, "a", 10); err != nil {
		t.Fatal(err)
	}
	_, _ = s.Head(ctx, "b")
	_, _ = s.List(ctx, "", "", 0)
	_ = s.Delete(ctx, "a")

	want := map[[3]string]float64{
		{"test", "put", "ok"}: 1, {"test", "put", "precondition"}: 1, {"test", "put", "conflict"}: 1, {"test", "put", "unavailable"}: 1,
		{"test", "put", "unknown"}: 1, {"test", "put", "denied"}: 1, {"test", "put", "other"}: 1,
		{"test", "get", "ok"}: 1, {"test", "head", "ok"}: 0, {"test", "head", "not_found"}: 1, {"test", "list", "ok"}: 1, {"test", "delete", "ok"}: 1,
	}
	var l metrics.List
	c.Collect(&l)
	for _, f := range l.Families() {
		for _, s := range f.Samples {
			switch f.Desc {
			case Requests:
				key := [3]string(s.Labels)
				if s.Value != want[key] {
					t.Errorf("%v: %v requests, want %v", key, s.Value, want[key])
				}
				delete(want, key)
			case Bytes:
				if s.Value != 5 {
					t.Errorf("%v: %v bytes, want 5", s.Labels, s.Value)
				}
			}
		}
	}
	if len(want) != 0 {
		t.Errorf("not collected: %v", want)
	}
	if c.Requests("put", "precondition") != 1 || c.Requests("put", "nonsense") != 0 {
		t.Error("Requests and Collect differ")
	}
}

func TestHealth(t *testing.T) {
	h := new(Health)
	back := &failing{Store: memory.New(memory.Options{})}
	s := New("test", h).Wrap(back)
	put := func(err error) {
		back.err = err
		_, _ = s.Put(t.Context(), "a", nil, nil, objstore.IfAbsent())
	}
	failing := func() bool { _, err := h.Failing(); return err != nil }
	for _, c := range []struct {
		err  error
		want bool
	}{{nil, false}, {objstore.ErrUnavailable, true}, {objstore.ErrUnknown, true}, {nil, false}, {objstore.ErrDenied, true}, {objstore.ErrConflict, false}} {
		if put(c.err); failing() != c.want {
			t.Errorf("after %v: failing %v, want %v", c.err, failing(), c.want)
		}
	}
	first, _ := h.Failing()
	if first != 0 {
		t.Errorf("failing for %v while it answers", first)
	}
	put(objstore.ErrUnavailable)
	d1, _ := h.Failing()
	put(objstore.ErrUnknown)
	d2, err := h.Failing()
	if d2 < d1 || !errors.Is(err, objstore.ErrUnknown) {
		t.Errorf("the first failure was %v ago, then %v; the latest is %v", d1, d2, err)
	}
	// A caller who gives up says nothing about the store.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	fresh := new(Health)
	_, _, _ = New("test", fresh).Wrap(memory.New(memory.Options{})).Get(ctx, "a", objstore.Whole)
	if d, err := fresh.Failing(); d != 0 || err != nil {
		t.Errorf("a request that was given up made the store fail: %v, %v", d, err)
	}
}
