package protocol

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
)

var lossCount = flag.Int("loss-seeds", 300, "how many seeds the simulation with accepted losses runs")

// disaster takes more nodes from a log than it survives, some for good, some only from the next opener, which calls them gone
// all the same: their old writer may go on. Then an open that may lose records must complete, whatever is left.
func (s *sim) disaster() {
	for _, c := range s.clients {
		c.dead = c.dead || c.opener != nil
	}
	var spare []string
	taken := map[string]bool{}
	c := &client{name: fmt.Sprintf("w%d", len(s.clients)+1), given: map[LSN]string{}}
	loss := &AcceptLoss{Wait: Time(50+s.rng.IntN(300)) * Millisecond}
	for _, m := range s.reg.ensemble {
		if s.byInc(m.Incarnation) == nil {
			loss.Gone = append(loss.Gone, m.Incarnation) // lost before
		} else if s.rng.IntN(4) > 0 {
			taken[string(m.Node)] = true
			loss.Gone = append(loss.Gone, m.Incarnation)
		}
	}
	cut := map[string]bool{}
	for _, n := range s.nodes {
		switch {
		case !taken[n.name]:
		case s.rng.IntN(3) > 0:
			s.say("%s is lost", n.name)
			s.wipe(n)
		default:
			cut[n.name] = true
		}
		if !cut[n.name] {
			spare = append(spare, n.name)
		}
	}
	if len(spare) < 2 {
		return // what is wiped has to wait for the next one
	}
	for n := range cut {
		s.say("%s is called gone", n)
		s.cuts[c.name+"->"+n], s.cuts[n+"->"+c.name] = true, true
	}
	for _, n := range s.nodes {
		if n.shard == nil && !cut[n.name] {
			if err := s.restart(n); err != nil {
				s.oracle.violate("restart: %v", err)
			}
		}
	}
	s.rng.Shuffle(len(spare), func(i, j int) { spare[i], spare[j] = spare[j], spare[i] })
	spare = spare[:min(len(spare), 2+s.rng.IntN(3))]
	s.clients = append(s.clients, c)
	deadline := s.deadline
	s.deadline = 10_000 * Millisecond
	s.say("accept-loss open on %v, gone %d of %d", spare, len(loss.Gone), len(s.reg.ensemble))
	s.asked = s.asked[:0]
	for _, m := range append(slices.Clone(s.reg.ensemble), s.members(spare...)...) {
		s.asked = append(s.asked, m.Incarnation)
	}
	if err := s.open(c, s.members(spare...), len(spare)/2+1, loss); err != nil {
		s.oracle.violate("open: %v", err)
		return
	}
	s.run(4000 * Millisecond)
	s.deadline = deadline
	if c.opened == 0 {
		why := c.lastErr
		if c.opener != nil {
			why = fmt.Errorf("stage %s: %s", c.opener.Stage(), c.opener.lacks())
		}
		s.oracle.violate("L1: an open that may lose everything does not complete: %v", why)
	}
	s.needless(c)
	for k := range s.cuts {
		delete(s.cuts, k)
	}
	s.losses++
}

// needless: what an open has given up was nowhere to be had.
func (s *sim) needless(c *client) {
	for _, l := range s.reg.lost {
		if l.Epoch != c.epoch || l.Skipped {
			continue
		}
		for x := l.From; x <= l.To; x++ {
			if s.archivedProof(x) {
				s.oracle.violate("LSN %d was given up, and is in the archive", x)
			}
			for _, n := range s.nodes {
				if n.shard == nil || s.cuts[c.name+"->"+n.name] || !slices.Contains(s.asked, n.inc) {
					continue
				}
				for label := Epoch(1); label < c.epoch; label++ {
					if n.recs[recKey{label, x}] != nil && !s.reg.history.Void(label, x) {
						s.oracle.violate("LSN %d was given up, and %s has it", x, n.name)
					}
				}
			}
		}
	}
}

func runLossSim(seed uint64, rules Rules, trace bool) *sim {
	s := newSim(seed^0x6c6f7373, rules)
	s.trace = trace
	s.rotten = nil
	at := []int{100 + s.rng.IntN(300), 500 + s.rng.IntN(300)}
	for i := 0; i < s.steps && len(s.oracle.bad) == 0; i++ {
		if slices.Contains(at, i) {
			s.disaster()
		} else {
			s.step()
		}
		for _, e := range s.events {
			s.say("   %s", e)
		}
		s.events = s.events[:0]
	}
	if len(s.oracle.bad) == 0 && s.losses > 0 && s.gone(s.reg.ensemble) < s.reg.qw {
		s.heal()
		for _, e := range s.events {
			s.say("   %s", e)
		}
	}
	return s
}

// TestLossSimulation: an accepted loss loses what it records and nothing else, forges nothing, and gives no LSN twice, though the
// nodes that were called gone and their writer go on; and the log is a log again after it.
func TestLossSimulation(t *testing.T) {
	if *simSeed != 0 {
		s := runLossSim(*simSeed, Rules{}, true)
		t.Logf("seed %d: %s\n%s\nviolations: %v", *simSeed, s.params(), strings.Join(s.log, "\n"), s.oracle.bad)
		if len(s.oracle.bad) > 0 {
			t.Fail()
		}
		return
	}
	losses, holes, skips, forks, failures := 0, 0, 0, 0, 0
	for seed := uint64(1); seed <= uint64(*lossCount); seed++ {
		s := runLossSim(seed, Rules{}, false)
		losses += s.losses
		forks += s.oracle.forked
		for _, l := range s.reg.lost {
			if l.Skipped {
				skips++
			} else {
				holes++
			}
		}
		if len(s.oracle.bad) > 0 {
			t.Errorf("seed %d (%s): %v\nrepeat with: go test ./internal/protocol -run TestLossSimulation -v -seed %d", seed, s.params(), s.oracle.bad, seed)
			if failures++; failures == 10 {
				t.FailNow()
			}
		}
	}
	t.Logf("%d seeds: %d disasters survived, %d lost ranges, %d skips, %d commits of writers that were not fenced", *lossCount, losses, holes, skips, forks)
	if n := *lossCount; losses < n/2 || holes < n/20 || skips < n/2 || forks < max(1, n/150) {
		t.Errorf("the simulation does too little: %d disasters, %d lost ranges, %d skips, %d unfenced commits in %d seeds", losses, holes, skips, forks, n)
	}
}
