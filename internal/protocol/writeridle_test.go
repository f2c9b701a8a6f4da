package protocol

import (
	"fmt"
	"testing"
)

// ackAll acknowledges everything that is to be sent, by the members in mask, until nothing is left.
func ackAll(w *Writer, now Time, mask int) {
	for sends := w.TakeSends(nil); len(sends) > 0; sends = w.TakeSends(nil) {
		for _, s := range sends {
			if mask>>s.Node&1 == 0 {
				continue
			}
			a := &Ack{Log: w.cfg.Log, Epoch: w.cfg.Epoch, Incarnation: w.cfg.Ensemble[s.Node].Incarnation, CLSN: w.clsn}
			if s.Kind == SendAppend {
				a.Kind, a.First, a.Last, a.Label = AckAppend, s.From, s.To, w.cfg.Epoch
			} else {
				a.Kind = AckWatermark
			}
			w.HandleAck(now, a)
		}
		w.Tick(now)
	}
}

// capacity is the memory of the records in the ring, used or not.
func capacity(w *Writer) (bytes int) {
	for i := range w.ring {
		bytes += cap(w.ring[i].data)
	}
	return bytes
}

// A writer that has been idle gives back the memory of its window, keeps its newest records for reads, and goes on as if nothing
// had been.
func TestIdleWriterGoesToRest(t *testing.T) {
	w := testWriter(t, 3, 2, func(c *WriterConfig) { c.Settings.Window = 1000 })
	now := Time(Millisecond)
	base := w.cfg.Tail
	rec := func(x LSN) []byte { return append(fmt.Appendf(nil, "%d ", x), make([]byte, 2000)...) }
	for x := base + 1; x <= base+900; x++ {
		if got, err := w.Append(now, rec(x)); err != nil || got != x {
			t.Fatal(got, err)
		}
	}
	ackAll(w, now, 7)
	last := now
	now += 100 * Millisecond
	w.Tick(now)
	ackAll(w, now, 7) // the watermark
	if records, bytes := w.Retained(); w.Committed() != base+900 || records != 900 || bytes < 900*2000 || len(w.ring) != 1024 {
		t.Fatalf("committed %d, %d records of %d bytes are kept, ring of %d", w.Committed(), records, bytes, len(w.ring))
	}
	if at := w.NextTick(); at != last+idleAfter {
		t.Fatalf("the next tick is due at %d, want %d", at, last+idleAfter)
	}
	w.Tick(last + idleAfter - 1)
	if w.Resting() {
		t.Fatal("resting too early")
	}
	now = last + idleAfter
	w.Tick(now)
	records, bytes := w.Retained()
	if !w.Resting() || records != 8 || bytes > idleBytes || len(w.ring) != idleRecords || capacity(w) > idleBytes+idleRecords*64 {
		t.Fatalf("resting %v: %d records of %d bytes, ring of %d with %d bytes", w.Resting(), records, bytes, len(w.ring), capacity(w))
	}
	if at := w.NextTick(); at != never {
		t.Errorf("a resting writer wants a tick at %d", at)
	}
	for x := base + 893; x <= base+900; x++ {
		if got, ok := w.Cached(x); !ok || string(got) != string(rec(x)) {
			t.Fatalf("LSN %d: %.20q, %v", x, got, ok)
		}
	}
	if _, ok := w.Cached(base + 892); ok {
		t.Error("more is kept than counted")
	}
	if len(w.TakeSends(nil)) != 0 {
		t.Error("going to rest sends something")
	}
	for x := base + 901; x <= base+1900; x++ { // the whole window, once more
		if got, err := w.Append(now, rec(x)); err != nil || got != x {
			t.Fatal(got, err)
		}
	}
	if w.Resting() {
		t.Error("resting while it appends")
	}
	if _, err := w.Append(now, nil); err != ErrWindowFull {
		t.Errorf("beyond the window: %v", err)
	}
	ackAll(w, now, 7)
	if w.Committed() != base+1900 {
		t.Errorf("committed %d", w.Committed())
	}
}

// While a member lacks something it is kept for it, for ten minutes; what is not committed is kept for ever.
func TestIdleWriterKeepsWhatAMemberLacks(t *testing.T) {
	for _, c := range []struct {
		mask int
		rest Time
	}{{7, idleAfter}, {3, idleAnyway}, {1, never}} {
		w := testWriter(t, 3, 2, func(c *WriterConfig) { c.Settings.Window = 100 })
		now := Time(Millisecond)
		for range 50 {
			if _, err := w.Append(now, make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
		}
		ackAll(w, now, c.mask)
		if at := w.restAt(); at != c.rest && at != now+c.rest {
			t.Errorf("acknowledged by %03b: rest at %d, want %d", c.mask, at, now+c.rest)
		}
		for _, at := range []Time{now + idleAfter, now + idleAnyway} {
			w.Tick(at)
			if want := c.rest != never && at >= now+c.rest; w.Resting() != want {
				t.Errorf("acknowledged by %03b: resting %v at %d", c.mask, w.Resting(), at)
			}
		}
	}
}

func TestFreshWriterWantsNoTick(t *testing.T) {
	w := testWriter(t, 3, 2, nil)
	w.Tick(0)
	ackAll(w, 0, 7)
	w.Tick(10 * Millisecond)
	ackAll(w, 10*Millisecond, 7)
	if at := w.NextTick(); at != never {
		t.Errorf("an open log without an append wants a tick at %d", at)
	}
}
