package objstore_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/objstore"
	"github.com/btrlog/btrlog/objstore/faulty"
	"github.com/btrlog/btrlog/objstore/memory"
)

// R14, R21: the start-up self-test must not take 409 or 503 or a lost reply for a broken condition.
func TestProbeToleratesFaults(t *testing.T) {
	for _, f := range []faulty.Fault{faulty.Conflict, faulty.Unavailable, faulty.LostReply, faulty.LostRequest, faulty.HiddenRetry} {
		for seed := range uint64(4) {
			s := faulty.New(memory.New(memory.Options{}), faulty.Config{Seed: seed})
			s.Add(faulty.Rule{Ops: faulty.Puts, Fault: f, Probability: 0.2})
			if err := objstore.Probe(t.Context(), s, ""); err != nil {
				t.Errorf("fault %d, seed %d: %v", f, seed, err)
			}
		}
	}
}

func TestProbeReportsUnreachableStore(t *testing.T) {
	s := faulty.New(memory.New(memory.Options{}), faulty.Config{})
	s.Add(faulty.Rule{Fault: faulty.Denied})
	err := objstore.Probe(t.Context(), s, "x")
	if !errors.Is(err, objstore.ErrDenied) {
		t.Fatalf("Probe of a store that denies access: %v", err)
	}
	if strings.Contains(err.Error(), "broken") {
		t.Fatalf("access is denied, and the blame is on the conditions: %v", err)
	}
}

func TestErrorText(t *testing.T) {
	err := &objstore.Error{Store: "mem://x", Op: "put", Key: "a/b", Kind: objstore.ErrUnknown, Err: errors.New("reply lost")}
	if got, want := err.Error(), `objstore mem://x: put "a/b": outcome unknown: reply lost`; got != want {
		t.Fatalf("%s\nwant %s", got, want)
	}
	if objstore.Retryable(err) {
		t.Fatal("an unknown outcome must not be retried blindly")
	}
}
