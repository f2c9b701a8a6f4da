package protocol

import "testing"

func TestDetector(t *testing.T) {
	const after = 5 * Time(1e9)
	d := NewDetector(after)
	at := Time(0)
	is := func(what string, inc Incarnation, wantDown, wantKnown bool) {
		t.Helper()
		if down, known := d.Living(at).Down(inc); down != wantDown || known != wantKnown {
			t.Errorf("%s: node %d down=%v known=%v, want %v %v", what, inc, down, known, wantDown, wantKnown)
		}
	}
	is("at the start", 1, false, false)
	if down, known := (*Living)(nil).Down(1); down || known {
		t.Error("nobody was asked yet, and a node is down")
	}
	d.Heard(1, at)
	if !d.Sought(2, at) || d.Sought(2, at) || d.Sought(1, at) {
		t.Error("only the first mention of a node is news")
	}
	before := d.Living(at)
	at = after
	is("heard as long ago as is allowed", 1, false, true)
	is("sought as long ago as is allowed", 2, false, true)
	if d.Living(at) != before {
		t.Error("nothing changed, and the picture is another one")
	}
	at++
	is("unheard for longer", 1, true, true)
	is("never heard", 2, true, true)
	if down, _ := before.Down(1); down {
		t.Error("a picture changed after it was taken")
	}
	if d.Sought(2, at); true {
		is("asked for again: that is no sign of life", 2, true, true)
	}
	d.Heard(1, at)
	is("back", 1, false, true)
}

// Which logs need a snapshot: N − Qw others down, at least one; and who writes first among those that live.
func TestEndangered(t *testing.T) {
	for _, c := range []struct {
		n, qw, down int
		want        bool
	}{{3, 2, 0, false}, {3, 2, 1, true}, {3, 2, 2, true}, {3, 3, 0, false}, {3, 3, 1, true}, {5, 3, 1, false}, {5, 3, 2, true}, {6, 4, 1, false}, {6, 4, 2, true}, {1, 1, 0, false}} {
		ranks := map[int]bool{}
		for me := range c.n - c.down {
			d := NewDetector(1)
			var peers []Incarnation
			for i := range c.n {
				peers = append(peers, Incarnation(i+1))
				if i < c.n-c.down {
					d.Heard(Incarnation(i+1), 10)
				} else {
					d.Heard(Incarnation(i+1), 1)
				}
			}
			s := NewShard(peers[me], Rules{})
			l := &nodeLog{id: testLog, settings: Settings{Peers: peers, Qw: uint8(c.qw)}}
			l.held.ensure(1).add(1, 1, 0, 1)
			s.logs[testLog] = l
			s.depend(l)
			n := 0
			s.Endangered(d.Living(10), func(inc Incarnation) { t.Errorf("node %d is not known", inc) }, func(log LogID, rank int, limit LSN, absent uint64) {
				n++
				ranks[rank] = true
				if log != testLog || limit != 1 || absent == 0 {
					t.Errorf("log %v up to %d, absent %x", log, limit, absent)
				}
			})
			if (n == 1) != c.want {
				t.Errorf("%d/%d with %d down: %d logs at node %d, want %v", c.n, c.qw, c.down, n, me, c.want)
			}
		}
		for r := range len(ranks) {
			if !ranks[r] || len(ranks) != c.n-c.down {
				t.Errorf("%d/%d with %d down: ranks %v", c.n, c.qw, c.down, ranks)
			}
		}
	}
}
