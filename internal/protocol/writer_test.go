package protocol

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func testEnsemble(n int) Ensemble {
	var e Ensemble
	for i := range n {
		e = append(e, Member{Node: NodeID(fmt.Sprint("n", i)), Incarnation: Incarnation(i + 1)})
	}
	return e
}

func testWriter(t testing.TB, n, qw int, change func(*WriterConfig)) *Writer {
	t.Helper()
	cfg := WriterConfig{Log: testLog, Epoch: 3, Start: 1, Ensemble: testEnsemble(n), Qw: qw, History: History{{3, 1}},
		Settings: Settings{Window: 16, SegmentBytes: MinSegmentBytes}}
	if change != nil {
		change(&cfg)
	}
	w, err := NewWriter(cfg, 0)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func okAck(inc Incarnation, from, to LSN) *Ack {
	return &Ack{Log: testLog, Epoch: 3, Incarnation: inc, Kind: AckAppend, First: from, Last: to, Label: 3}
}

// writerModel is the dumb second implementation: every record that was ever given out, and who acknowledged it.
type writerModel struct {
	data    []string // LSN x at x − 1
	batchTo []LSN    // last LSN of the batch of x
	first   []LSN
	acks    []map[Incarnation]bool
}

func (m *writerModel) committed(qw int) LSN {
	for i, a := range m.acks {
		if len(a) < qw {
			return LSN(i)
		}
	}
	return LSN(len(m.acks))
}

func TestWriterAgainstModel(t *testing.T) {
	for seed := uint64(1); seed <= 400; seed++ {
		rng := rand.New(rand.NewPCG(seed, 6))
		n := 1 + rng.IntN(5)
		qw := 1 + rng.IntN(n)
		window := 1 + rng.IntN(20)
		dead := -1
		if rng.IntN(2) == 0 && qw < n {
			dead = rng.IntN(n)
		}
		w := testWriter(t, n, qw, func(c *WriterConfig) {
			c.Settings.Window, c.Retain, c.RetainBytes, c.BlockBytes = uint32(window), 1+rng.IntN(20), 1+rng.IntN(4000), 20+rng.IntN(200)
			c.Tail, c.Start = LSN(rng.IntN(50)), 1
		})
		base := w.cfg.Tail
		m := &writerModel{}
		place := map[LSN][2]uint64{}
		now := Time(0)
		var net []*Append
		for step := range 500 {
			now += Time(rng.IntN(8)) * Millisecond
			switch rng.IntN(6) {
			case 0, 1:
				k := 1
				if rng.IntN(3) == 0 {
					k = 1 + rng.IntN(5)
				}
				var recs [][]byte
				for j := range k {
					recs = append(recs, []byte(strings.Repeat(string(rune('a'+len(m.data)%26)), rng.IntN(40))+fmt.Sprint(".", len(m.data)+j)))
				}
				var first, last LSN
				var err error
				if k == 1 {
					first, err = w.Append(now, recs[0])
					last = first
				} else {
					first, last, err = w.AppendBatch(now, recs)
				}
				free := int(m.committed(qw)) + window - len(m.data)
				if err != nil {
					if k <= free && k <= window {
						t.Fatalf("seed %d step %d: append of %d with room for %d: %v", seed, step, k, free, err)
					}
					break
				}
				if k > free {
					t.Fatalf("seed %d step %d: %d LSNs given out beyond the window, room was %d", seed, step, k, free)
				}
				if first != base+LSN(len(m.data))+1 || last != first+LSN(k)-1 {
					t.Fatalf("seed %d step %d: LSNs %d to %d after %d", seed, step, first, last, base+LSN(len(m.data)))
				}
				for j := range k {
					m.data, m.first, m.batchTo = append(m.data, string(recs[j])), append(m.first, first), append(m.batchTo, last)
					m.acks = append(m.acks, map[Incarnation]bool{})
				}
			case 2:
				w.Tick(now)
			default:
				if len(net) == 0 {
					break
				}
				i := rng.IntN(len(net))
				a := net[i]
				if rng.IntN(4) > 0 {
					net = append(net[:i], net[i+1:]...) // else it is there twice
				}
				if rng.IntN(4) == 0 || dead >= 0 && a.Incarnation == Incarnation(dead+1) {
					break // lost
				}
				for x := a.First; x <= a.Last(); x++ {
					m.acks[x-base-1][a.Incarnation] = true
				}
				w.HandleAck(now, okAck(a.Incarnation, a.First, a.Last()))
				// None of these is an acknowledgement of ours.
				w.HandleAck(now, okAck(77, 1, MaxLSN))
				other := okAck(a.Incarnation, 1, w.Next()+5)
				other.Epoch = 2
				w.HandleAck(now, other)
				repair := okAck(a.Incarnation, 1, w.Next()+5)
				repair.Append = AppendRepair
				w.HandleAck(now, repair)
			}
			for _, s := range w.TakeSends(nil) {
				if s.Kind != SendAppend {
					continue
				}
				a := &Append{}
				w.Fill(s, a, nil)
				checkAppend(t, seed, m, base, a, place)
				net = append(net, a)
			}
			if len(net) > 300 {
				net = net[200:]
			}
			if got := w.Committed() - base; got != m.committed(qw) {
				t.Fatalf("seed %d step %d: committed %d, model %d", seed, step, got, m.committed(qw))
			}
			if w.Err() != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, w.Err())
			}
			// Memory: the window and what is retained, rounded up to a power of two, dead node or not.
			if limit := 2 * max(16, window+w.cfg.Retain); len(w.ring) > limit {
				t.Fatalf("seed %d step %d: ring of %d slots for window %d, retain %d", seed, step, len(w.ring), window, w.cfg.Retain)
			}
			if w.kept > w.cfg.RetainBytes {
				t.Fatalf("seed %d step %d: %d bytes retained, limit %d", seed, step, w.kept, w.cfg.RetainBytes)
			}
			kept, unack := 0, 0
			for x := w.low; x < w.next; x++ {
				d, ok := w.Cached(x)
				if !ok || string(d) != m.data[x-base-1] {
					t.Fatalf("seed %d step %d: LSN %d is kept as %q, was given out as %q", seed, step, x, d, m.data[x-base-1])
				}
				if x <= w.clsn {
					kept += len(d)
				} else {
					unack += len(d)
				}
			}
			if kept != w.kept || unack != w.unack {
				t.Fatalf("seed %d step %d: kept %d, unack %d; counted %d, %d", seed, step, w.kept, w.unack, kept, unack)
			}
		}
	}
}

// checkAppend: same bytes under the same LSN for ever (I6), whole batches only, and the place that the sizes say (A1).
func checkAppend(t *testing.T, seed uint64, m *writerModel, base LSN, a *Append, place map[LSN][2]uint64) {
	t.Helper()
	if err := CheckBlock(a.Block, a.Count); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if m.first[a.First-base-1] != a.First || m.batchTo[a.Last()-base-1] != a.Last() {
		t.Fatalf("seed %d: append %d to %d cuts a batch", seed, a.First, a.Last())
	}
	rest, off := a.Block, a.SegOff
	for x := a.First; x <= a.Last(); x++ {
		data, more, tail, _ := NextRecord(rest)
		rest = tail
		if string(data) != m.data[x-base-1] || more != (x < m.batchTo[x-base-1]) {
			t.Fatalf("seed %d: LSN %d is sent as %q (more %v), was given out as %q", seed, x, data, more, m.data[x-base-1])
		}
		at := [2]uint64{uint64(a.SegStart), off}
		if old, ok := place[x]; ok && old != at {
			t.Fatalf("seed %d: LSN %d at %v, was at %v", seed, x, at, old)
		}
		place[x] = at
		if prev, ok := place[x-1]; ok && prev[0] == at[0] && prev[1]+uint64(EncodedSize(len(m.data[x-base-2]))) != off {
			t.Fatalf("seed %d: LSN %d at offset %d, its predecessor of %d bytes at %d", seed, x, off, len(m.data[x-base-2]), prev[1])
		}
		off += uint64(EncodedSize(len(data)))
	}
}

// The mutant CountAnyIncarnation: an acknowledgement of an incarnation that is not on record counts for nobody (I4, X9).
func TestAckOfForeignIncarnation(t *testing.T) {
	commit := func(rules Rules) LSN {
		w := testWriter(t, 3, 2, func(c *WriterConfig) { c.Rules = rules })
		if _, err := w.Append(0, []byte("x")); err != nil {
			t.Fatal(err)
		}
		w.HandleAck(0, okAck(1, 1, 1))
		w.HandleAck(0, okAck(101, 1, 1)) // member 1 again, with its disk wiped
		w.HandleAck(0, okAck(103, 1, 1))
		return w.Committed()
	}
	if got := commit(Rules{}); got != 0 {
		t.Errorf("committed %d on one disk of the ensemble", got)
	}
	if got := commit(Rules{CountAnyIncarnation: true}); got != 1 {
		t.Errorf("the mutant commits %d: this test would not see it", got)
	}
}

// P15, R16: one dead node costs bounded memory, however long; the others go on.
func TestDeadNodeCostsBoundedMemory(t *testing.T) {
	w := testWriter(t, 3, 2, func(c *WriterConfig) { c.Settings.Window, c.Retain, c.RetainBytes = 64, 64, 1<<16 })
	data := make([]byte, 1000)
	var sends []Send
	most := 0
	for i := LSN(1); i <= 20000; i++ {
		now := Time(i) * Millisecond / 2
		if _, err := w.Append(now, data); err != nil {
			t.Fatal(err)
		}
		w.HandleAck(now, okAck(1, i, i))
		w.HandleAck(now, okAck(2, i, i))
		w.Tick(now)
		sends = w.TakeSends(sends[:0])
		most = max(most, len(sends))
		if len(w.ring) > 256 || w.kept > 1<<16 {
			t.Fatalf("LSN %d: ring of %d slots, %d bytes retained", i, len(w.ring), w.kept)
		}
	}
	if w.Committed() != 20000 {
		t.Errorf("committed %d", w.Committed())
	}
	if most > 3+2*resendBurst {
		t.Errorf("%d messages in one step", most)
	}
	// It comes back, and its backlog is what is still kept, not what it missed.
	if n := w.nodes[2]; n.lo < w.low {
		t.Errorf("node 3 is owed LSN %d, the ring begins at %d", n.lo, w.low)
	}
	w.HandleAck(11000*Millisecond, okAck(3, w.low, w.low))
	w.Tick(12000 * Millisecond)
	for _, s := range w.TakeSends(nil) {
		var a Append
		w.Fill(s, &a, nil)
		if s.Kind == SendAppend && (a.Count == 0 || s.From < w.low) {
			t.Errorf("resend of %d to %d, the ring begins at %d", s.From, s.To, w.low)
		}
	}
}

// The window in bytes, and records too large, are refused without an LSN given out.
func TestWriterRefusals(t *testing.T) {
	w := testWriter(t, 3, 2, func(c *WriterConfig) { c.WindowBytes = 100 })
	if _, err := w.Append(0, make([]byte, 90)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Append(0, make([]byte, 20)); !errors.Is(err, ErrWindowFull) {
		t.Errorf("beyond the window's bytes: %v", err)
	}
	if _, err := w.Append(0, make([]byte, MaxRecordBytes+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("beyond the largest record: %v", err)
	}
	if _, _, err := w.AppendBatch(0, make([][]byte, 17)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("batch beyond the window: %v", err)
	}
	if _, _, err := w.AppendBatch(0, nil); !errors.Is(err, ErrTooLarge) {
		t.Errorf("empty batch: %v", err)
	}
	if w.Next() != 2 {
		t.Errorf("refusals gave out LSNs: next is %d", w.Next())
	}
	// One record larger than the window's bytes goes when nothing else is out (else it never could).
	w.HandleAck(0, okAck(1, 1, 1))
	w.HandleAck(0, okAck(2, 1, 1))
	if _, err := w.Append(0, make([]byte, 200)); err != nil {
		t.Errorf("a large record alone: %v", err)
	}
	w.HandleAck(0, &Ack{Log: testLog, Epoch: 3, Incarnation: 1, Status: StatusDeleted})
	if _, err := w.Append(0, nil); !errors.Is(err, ErrDeleted) {
		t.Errorf("after the deletion: %v", err)
	}
}
