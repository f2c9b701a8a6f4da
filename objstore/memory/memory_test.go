package memory_test

import (
	"context"
	"testing"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/memory"
	"github.com/btrlog/btrlog/objstore/objtest"
)

func TestConformance(t *testing.T) {
	objtest.Run(t, func(t *testing.T) objstore.Store { return memory.New(memory.Options{Name: t.Name()}) })
}

func TestOpenNamed(t *testing.T) {
	a, err := objstore.Open(t.Context(), "mem://named")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Put(t.Context(), "k", []byte("v"), nil, objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	defer a.Delete(context.Background(), "k") // the named store outlives the test
	b, err := objstore.Open(t.Context(), "mem://named")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Head(t.Context(), "k"); err != nil {
		t.Fatalf("a second Open of the name is another store: %v", err)
	}
	c, err := objstore.Open(t.Context(), "mem://other")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Head(t.Context(), "k"); err == nil {
		t.Fatal("another name is the same store")
	}
	for _, u := range []string{"mem://", "mem://a/b", "mem://a?x=1", "nosuch://x", "://", "/just/a/path"} {
		if s, err := objstore.Open(t.Context(), u); err == nil {
			t.Errorf("Open(%q) gave %v", u, s)
		}
	}
}

// The memory store restores an earlier ETag with an earlier body, as S3 does: code that lacks
// nonces must fail on it here rather than in production.
func TestETagComesBack(t *testing.T) {
	s := memory.New(memory.Options{})
	a, _ := s.Put(t.Context(), "k", []byte("A"), nil, objstore.Always())
	s.Put(t.Context(), "k", []byte("B"), nil, objstore.Always())
	s.Put(t.Context(), "k", []byte("A"), nil, objstore.Always())
	if _, err := s.Put(t.Context(), "k", []byte("C"), nil, objstore.IfMatch(a.ETag)); err != nil {
		t.Fatalf("the ETag of body A did not come back with it: %v", err)
	}
}
