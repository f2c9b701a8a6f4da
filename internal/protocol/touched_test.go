package protocol

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// What Flushable and Behind tell of a log changes only if Touched names the log: a driver that looks at no other log loses no
// flush. Random requests, good and bad, with a fixed seed.
func TestTouchedNamesWhatChanged(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 4))
	for round := range 40 {
		s := NewShard(7, Rules{})
		var out Out
		picture := func() map[LogID]string {
			m := make(map[LogID]string)
			s.Flushable(1, func(g Segment) { g.Age, g.CLSN = 0, 0; m[g.Log] += fmt.Sprintf("%+v ", g) })
			s.Behind(func(log LogID, archived LSN, blank bool) { m[log] += fmt.Sprintf("behind %d %v ", archived, blank) })
			return m
		}
		touched := make(map[LogID]bool)
		drain := func() {
			clear(touched)
			s.Touched(func(log LogID) { touched[log] = true })
		}
		next := [4]LSN{1, 1, 1, 1}
		epoch := [4]Epoch{}
		hist := [4]History{}
		seg := [4]LSN{1, 1, 1, 1}
		seen, quiet := 0, 0
		before := picture()
		for range 400 {
			out.Reset()
			i := rng.IntN(3) + 1
			log := LogID(i)
			record := func(kind AppendKind, e, label Epoch, x LSN) *Append {
				b := AppendRecord(nil, []byte("r"), false)
				return &Append{Log: log, Epoch: e, Label: label, Kind: kind, Incarnation: 7, First: x, Count: 1, SegStart: min(seg[i], x), SegOff: uint64(x-min(seg[i], x)) * uint64(len(b)),
					CLSN: x - min(x, LSN(rng.IntN(4))), Block: b}
			}
			switch rng.IntN(12) {
			case 0:
				s.Step(1, 1, &Open{Log: log, Epoch: epoch[i] + Epoch(rng.IntN(3)), Name: "x"}, &out)
			case 1:
				h, err := hist[i].Add(epoch[i]+2, next[i])
				if err != nil {
					t.Fatal(err)
				}
				epoch[i], hist[i], seg[i] = epoch[i]+2, h, next[i]
				s.Step(1, 1, &Activate{Log: log, Epoch: epoch[i], Incarnation: 7, Start: next[i], B: next[i] - 1, History: h,
					Settings: Settings{Name: "x", Window: 2, SegmentBytes: MinSegmentBytes, Qw: 2, Peers: []Incarnation{7, 8, 9}}}, &out)
			case 2, 3, 4, 5:
				s.Step(1, 1, record(AppendNormal, epoch[i], epoch[i], next[i]), &out)
				next[i]++
			case 6:
				next[i]++ // a hole
			case 7:
				s.Step(1, 1, &Watermark{Log: log, Epoch: epoch[i], Incarnation: 7, CLSN: LSN(rng.IntN(int(next[i]))), Sealed: LSN(rng.IntN(int(next[i])))}, &out)
			case 8:
				seg[i] = next[i]
			case 9:
				x := LSN(rng.IntN(int(next[i]))) + 1
				s.Step(1, 1, record(AppendRepair, epoch[i]+1, epoch[i]+1, x), &out)
			case 10:
				from := LSN(rng.IntN(int(next[i]))) + 1
				s.Archived(1, log, []ArchivedObject{{Label: epoch[i], First: from, Last: from + 3, CLSN: from + LSN(rng.IntN(4))}}, &out)
			case 11:
				if rng.IntN(20) == 0 {
					s.Step(1, 1, &Drop{Log: log, Epoch: epoch[i] + 1, Incarnation: 7}, &out)
				} else {
					s.Release(1, 0, &out)
				}
			}
			s.Finish(&out)
			drain()
			after := picture()
			for log := LogID(1); log <= 3; log++ {
				if before[log] == after[log] {
					continue
				}
				if seen++; !touched[log] {
					t.Fatalf("round %d: of log %v was told\n%q, now\n%q, and nobody is told to look", round, log, before[log], after[log])
				}
			}
			if len(touched) == 0 {
				quiet++
			}
			before = after
		}
		if seen < 20 || quiet < 20 {
			t.Fatalf("round %d: %d changes, %d steps without any: this proves little", round, seen, quiet)
		}
	}
}

// A watcher that was stopped hears old answers when it goes on: nobody is down for that.
func TestDetectorWasDeaf(t *testing.T) {
	d := NewDetector(10)
	d.Heard(1, 5)
	d.Heard(2, 100)
	d.Deaf(90, 100)
	for inc := Incarnation(1); inc <= 2; inc++ {
		if down, known := d.Living(101).Down(inc); down || !known {
			t.Errorf("node %d: down %v, known %v after the watcher was deaf", inc, down, known)
		}
	}
	if down, _ := d.Living(106).Down(1); !down {
		t.Error("node 1 is not down after its time")
	}
	if down, _ := d.Living(110).Down(2); down {
		t.Error("node 2 is down before its time")
	}
	if down, _ := d.Living(111).Down(2); !down {
		t.Error("node 2 is not down after its time")
	}
}
