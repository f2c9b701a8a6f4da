package protocol

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// nodeWords is what one node says, LSN by LSN, as plain facts; the reply is made from it.
type nodeWords struct {
	start, clsn, archived, through LSN
	activated                      Epoch
	copies                         map[recKey]bool
	damaged                        map[LSN]bool
}

const decideMax = 14

func randomWords(rng *rand.Rand) nodeWords {
	n := nodeWords{copies: map[recKey]bool{}, damaged: map[LSN]bool{}, through: MaxLSN}
	n.clsn, n.archived = LSN(rng.IntN(5)), LSN(max(0, rng.IntN(8)-4))
	if rng.IntN(2) == 0 {
		n.activated, n.start = Epoch(1+rng.IntN(4)), LSN(1+rng.IntN(5))
	}
	for range rng.IntN(12) {
		n.copies[recKey{Epoch(1 + rng.IntN(5)), LSN(1 + rng.IntN(decideMax-3))}] = true
	}
	for range max(0, rng.IntN(5)-2) {
		n.damaged[LSN(1+rng.IntN(decideMax))] = true
	}
	if rng.IntN(8) == 0 {
		n.through = LSN(rng.IntN(decideMax))
	}
	return n
}

func (n *nodeWords) reply(inc Incarnation, e Epoch) *OpenReply {
	r := &OpenReply{Log: testLog, Epoch: e, Incarnation: inc, Promised: e, Activated: n.activated, Start: n.start, CLSN: n.clsn, ArchivedThrough: n.archived, Through: n.through}
	m := heldModel{}
	for k := range n.copies {
		if k.lsn <= n.through {
			m[k] = place{}
		}
	}
	r.Held = m.extents(n.archived)
	for x := n.archived + 1; x <= decideMax; x++ {
		if n.damaged[x] {
			r.Damaged = append(r.Damaged, Range{x, x})
		}
	}
	return r
}

// says is P3 under the record's history.
func (n *nodeWords) says(x LSN, h History) (Epoch, Answer) {
	if x <= n.archived {
		return 0, Archived
	}
	if x > n.through {
		return 0, Unknown
	}
	for e := Epoch(9); e > 0; e-- {
		if n.copies[recKey{e, x}] && !voidByDefinition(h, e, x) {
			return e, Present
		}
	}
	if n.damaged[x] {
		return 0, Unknown
	}
	return 0, Absent
}

// bruteDecide is P5 word for word. It returns B, the labels of [R, T] and whether the answers decide it.
func bruteDecide(h History, trimmed LSN, qr int, answers []nodeWords) (b LSN, labels []Epoch, ok bool) {
	if len(answers) < qr {
		return 0, nil, false
	}
	b = trimmed
	for _, e := range h {
		b = max(b, e.Start-1)
	}
	for _, n := range answers {
		b = max(b, n.clsn, n.archived)
		if n.start > 0 {
			b = max(b, n.start-1)
		}
	}
	for x := b + 1; ; x++ {
		absent, label := 0, Epoch(0)
		for i := range answers {
			switch e, a := answers[i].says(x, h); a {
			case Present:
				label = max(label, e)
			case Absent:
				absent++
			}
		}
		switch {
		case label > 0:
			labels = append(labels, label)
		case absent >= qr:
			return b, labels, true
		default:
			return b, nil, false
		}
	}
}

func TestDecideAgainstBruteForce(t *testing.T) {
	decided, waited := 0, 0
	for seed := uint64(1); seed <= 20000; seed++ {
		rng := rand.New(rand.NewPCG(seed, 5))
		n := 1 + rng.IntN(6)
		qw := 1 + rng.IntN(n)
		var ens Ensemble
		for i := range n {
			ens = append(ens, Member{Node: NodeID(fmt.Sprint("n", i)), Incarnation: Incarnation(i + 1)})
		}
		h := randomHistory(rng, 4, 12)
		trimmed := LSN(max(0, rng.IntN(6)-4))
		o, err := NewOpener(OpenerConfig{Log: testLog, Epoch: 9, Recorded: ens, Qw: qw, History: h, Trimmed: trimmed, Target: ens, TargetQw: qw,
			Settings: Settings{Window: 16, SegmentBytes: MinSegmentBytes}, Deadline: never})
		if err != nil {
			t.Fatal(err)
		}
		o.Start(0)
		qr := n - qw + 1
		var answers []nodeWords
		for _, i := range rng.Perm(n) {
			w := randomWords(rng)
			// A wiped node under the same name, which says that it has nothing, counts for nothing.
			o.Handle(0, &OpenReply{Log: testLog, Epoch: 9, Incarnation: 1000, Promised: 9, Through: MaxLSN})
			o.Handle(0, w.reply(Incarnation(i+1), 9))
			answers = append(answers, w)
			b, labels, ok := bruteDecide(h, trimmed, qr, answers)
			if !ok {
				waited++
				if o.stage != StageFence || o.Err() != nil {
					t.Fatalf("seed %d: %d answers decide nothing, the opener is in stage %s, %v", seed, len(answers), o.stage, o.Err())
				}
				continue
			}
			decided++
			var got []Epoch
			for j, c := range o.choices {
				if c.lsn != o.r+LSN(j) {
					t.Fatalf("seed %d: choices %v from R = %d", seed, o.choices, o.r)
				}
				got = append(got, c.label)
			}
			if o.stage == StageFence || o.b != b || o.r != b+1 || o.t != b+LSN(len(labels)) || !slices.Equal(got, labels) {
				t.Fatalf("seed %d: stage %s B=%d R=%d T=%d labels %v, want B=%d labels %v (%v)", seed, o.stage, o.b, o.r, o.t, got, b, labels, o.Err())
			}
			break
		}
	}
	if decided < 5000 || waited < 5000 {
		t.Errorf("%d decided, %d waited: the draw is too narrow", decided, waited)
	}
}
