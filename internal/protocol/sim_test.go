package protocol

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// A first randomized simulation of the machines alone: 3 to 5 nodes, several clients that open, append, re-open and die,
// a network that drops, doubles and reorders, crashes before and after the commit, wiped disks within the failure model,
// ensemble changes, an archive. The oracle checks S1–S6 on record contents. One seed decides everything.
var (
	simSeed  = flag.Uint64("seed", 0, "run only this seed of the simulation, with its events printed")
	simCount = flag.Int("seeds", 400, "how many seeds the simulation runs")
)

type sim struct {
	*world
	rng   *rand.Rand
	steps int
	tag   int
	trace bool
	log   []string
	// drawn parameters
	n, qw              int
	drop, dup          int // per cent of deliveries
	crashes, wipes     int // budget left
	batches, archiving bool
	bias               int // per cent of deliveries taken in order
	// blocked: the node hears nothing from this client for a while, and then all of it, late.
	blocked map[string]string
	reader  simReader
	losses  int           // accept-loss opens that completed
	asked   []Incarnation // recorded or wanted at the last of them
	rotten  *wnode        // in some seeds no disk is lost, but one node's copies rot or cannot be read
}

func newSim(seed uint64, rules Rules) *sim {
	s := &sim{world: newWorld(), blocked: map[string]string{}, rng: rand.New(rand.NewPCG(seed, 0x62747231))}
	s.rules = rules
	shapes := [][2]int{{3, 2}, {3, 2}, {3, 2}, {4, 3}, {5, 3}, {3, 3}, {4, 2}, {2, 2}}
	sh := shapes[s.rng.IntN(len(shapes))]
	s.n, s.qw = sh[0], sh[1]
	s.drop, s.dup = s.rng.IntN(25), s.rng.IntN(15)
	s.crashes, s.wipes = s.rng.IntN(8), s.rng.IntN(5)
	s.batches, s.archiving = s.rng.IntN(2) == 0, s.rng.IntN(2) == 0
	s.bias = s.rng.IntN(101)
	s.steps = 300 + s.rng.IntN(900)
	s.settings.Window = uint32(2 + s.rng.IntN(14))
	s.block = 16 + s.rng.IntN(100)
	if s.tail = []int{0, 24, 1 << 10}[seed%3]; s.tail > 0 {
		s.steps += s.steps / 3 // there are more messages to be delivered
	}
	s.deadline = Time(500+s.rng.IntN(4000)) * Millisecond
	var names []string
	for i := range s.n + 1 + s.rng.IntN(2) { // one or two spare nodes
		names = append(names, string(rune('a'+i)))
		s.addNode(names[i])
	}
	s.reg.ensemble, s.reg.qw = s.members(names[:s.n]...), s.qw
	if s.rng.IntN(4) == 0 {
		s.wipes, s.rotten = 0, s.randomNode()
	}
	return s
}

func (s *sim) say(format string, args ...any) {
	if s.trace {
		s.log = append(s.log, fmt.Sprintf(format, args...))
	}
}

// gone counts the members of an ensemble whose disk is gone for good.
func (s *sim) gone(e Ensemble) int {
	k := 0
	for _, m := range e {
		if s.byInc(m.Incarnation) == nil {
			k++
		}
	}
	return k
}

// mayWipe keeps to the failure model (S6): in no ensemble that is or may become the recorded one are more than Qw − 1
// disks gone at once, this one included.
func (s *sim) mayWipe(n *wnode) bool {
	ok := func(e Ensemble, qw int) bool { return e.Index(n.inc) < 0 || s.gone(e)+1 <= qw-1 }
	if !ok(s.reg.ensemble, s.reg.qw) {
		return false
	}
	for _, c := range s.clients {
		if !c.dead && c.opener != nil && !ok(c.opener.cfg.Target, c.opener.cfg.TargetQw) {
			return false
		}
	}
	return true
}

// target draws the ensemble of an open: mostly the recorded nodes at the incarnations they have now, sometimes others.
func (s *sim) target() (Ensemble, int) {
	if s.rng.IntN(3) > 0 && s.gone(s.reg.ensemble) == 0 {
		return nil, 0
	}
	var names []string
	for _, m := range s.reg.ensemble {
		names = append(names, string(m.Node))
	}
	qw := s.reg.qw
	switch s.rng.IntN(4) {
	case 0: // swap one
		n := s.nodes[s.rng.IntN(len(s.nodes))]
		if !strings.Contains(strings.Join(names, ","), n.name) {
			names[s.rng.IntN(len(names))] = n.name
		}
	case 1: // any subset
		k := 2 + s.rng.IntN(len(s.nodes)-1)
		perm := s.rng.Perm(len(s.nodes))
		names = names[:0]
		for _, i := range perm[:k] {
			names = append(names, s.nodes[i].name)
		}
		qw = k/2 + 1
	}
	return s.members(names...), qw
}

func (s *sim) randomClient() *client {
	var live []*client
	for _, c := range s.clients {
		if !c.dead {
			live = append(live, c)
		}
	}
	if len(live) == 0 {
		return nil
	}
	return live[s.rng.IntN(len(live))]
}

func (s *sim) randomNode() *wnode {
	return s.nodes[s.rng.IntN(len(s.nodes))]
}

func (s *sim) newOpen() {
	c := s.randomClient()
	if c == nil || c.opener != nil || s.rng.IntN(3) > 0 {
		c = &client{name: fmt.Sprintf("w%d", len(s.clients)+1), given: map[LSN]string{}}
		s.clients = append(s.clients, c)
	}
	c.holdCAS = s.rng.IntN(3) == 0
	target, qw := s.target()
	s.say("open %s target=%v qw=%d", c.name, target, qw)
	if err := s.open(c, target, qw, nil); err != nil {
		s.oracle.violate("open: %v", err)
	}
}

func (s *sim) stepNet() {
	if len(s.net) == 0 {
		s.now += Time(s.rng.IntN(40)) * Millisecond
		s.tick()
		return
	}
	i := 0
	if s.rng.IntN(100) >= s.bias {
		i = s.rng.IntN(len(s.net))
	}
	p := s.net[i]
	if s.blocked[p.to] == p.from {
		return // late, not lost
	}
	switch r := s.rng.IntN(100); {
	case r < s.drop:
		s.remove(p)
	case r < s.drop+s.dup:
		s.say("dup %s", p)
		cp := *p
		s.net = append(s.net, &cp)
	default:
		if s.node(p.to) == nil || s.node(p.to).shard != nil {
			s.say("%s", p)
		}
		crash := s.crashes > 0 && s.node(p.to) != nil && s.rng.IntN(200) == 0
		if crash {
			s.crashes--
			s.say("crash %s before its commit", p.to)
		}
		if n := s.node(p.to); n != nil && n.shard != nil && s.rng.IntN(4) == 0 {
			s.deliverBatch(n, p, crash)
		} else {
			s.deliver(p, crash)
		}
		// What may change what a node serves is looked at at once: the wrong record is often there for a moment only.
		n := s.node(p.to)
		switch p.msg.(type) {
		case *Watermark, *Activate, *Append:
			if n != nil && n.shard != nil && s.rng.IntN(4) == 0 {
				s.hotRead(n, 1, s.oracle.high+10)
			}
		}
	}
	if len(s.net) > 400 {
		s.net = s.net[len(s.net)-400:]
	}
}

// deliverBatch gives a node several requests in one batch: one commit for all of them, or none.
func (s *sim) deliverBatch(n *wnode, p *packet, crash bool) {
	batch := []*packet{p}
	s.remove(p)
	for _, q := range append([]*packet(nil), s.net...) {
		if q.to == n.name && s.blocked[q.to] != q.from && s.rng.IntN(2) == 0 && len(batch) < 6 {
			s.say("  with %s", q)
			s.remove(q)
			batch = append(batch, q)
		}
	}
	if s.rng.IntN(2) == 0 {
		s.rng.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
	}
	s.world.step(n, crash, batch...)
}

func (s *sim) step() {
	switch r := s.rng.IntN(1000); {
	case r < 820:
		s.stepNet()
	case r < 870:
		if c := s.randomClient(); c != nil && c.writer != nil && c.writer.Err() == nil {
			if s.batches && s.rng.IntN(3) == 0 {
				var recs []string
				for range 1 + s.rng.IntN(4) {
					s.tag++
					recs = append(recs, fmt.Sprintf("%s.%d", c.name, s.tag))
				}
				s.say("batch %s %v: %v", c.name, recs, s.batch(c, recs...))
			} else {
				s.tag++
				x, err := s.append(c, fmt.Sprintf("%s.%d", c.name, s.tag))
				s.say("append %s %d: %v", c.name, x, err)
			}
		}
	case r < 882:
		s.newOpen()
	case r < 900:
		if c := s.randomClient(); c != nil && c.install != nil {
			s.say("cas %s", c.name)
			s.cas(c)
		}
	case r < 903:
		if c := s.randomClient(); c != nil {
			s.say("kill %s", c.name)
			c.dead = true
		}
	case r < 908:
		if n := s.randomNode(); s.crashes > 0 && n.shard != nil {
			s.crashes--
			s.say("crash %s", n.name)
			s.crash(n)
		}
	case r < 930:
		if n := s.randomNode(); n.shard == nil {
			s.say("restart %s", n.name)
			if err := s.restart(n); err != nil {
				s.oracle.violate("restart: %v", err)
			}
		}
	case r < 934:
		if n := s.randomNode(); s.wipes > 0 && s.mayWipe(n) {
			s.wipes--
			s.say("wipe %s", n.name)
			s.wipe(n)
			s.checkDurable("wipe of " + n.name)
		}
	case r < 938:
		if n, c := s.randomNode(), s.randomClient(); c != nil && s.blocked[n.name] == "" {
			s.blocked[n.name] = c.name
		} else {
			delete(s.blocked, n.name)
		}
	case r < 954:
		s.archiveStep()
	case r < 955:
		s.trim()
	case r < 958:
		if s.rotten != nil {
			s.rot(s.rotten)
		}
	case r < 975:
		if n := s.randomNode(); n.shard != nil {
			s.hotRead(n, 1, s.oracle.high+10)
			s.coldRead(n)
		}
		s.readerStep()
	default:
		s.now += Time(s.rng.IntN(30)) * Millisecond
		s.tick()
	}
}

// trim moves the trim point in the record, then deletes objects (A4).
func (s *sim) trim() {
	if !s.archiving || s.oracle.high == 0 || s.rng.IntN(3) > 0 {
		return
	}
	s.reg.trimmed = max(s.reg.trimmed, LSN(s.rng.IntN(int(s.oracle.high)+1)))
	s.say("trim through %d", s.reg.trimmed)
	kept := s.archive[:0]
	for _, o := range s.archive {
		if o.last > s.reg.trimmed {
			kept = append(kept, o)
		}
	}
	s.archive = kept
}

// rot damages one copy: on the disk of a node that is down, or for the reads of one that runs.
func (s *sim) rot(n *wnode) {
	keys := n.sortedRecs()
	if len(keys) == 0 {
		return
	}
	k := keys[s.rng.IntN(len(keys))]
	s.say("%s: copy %d@%d rots", n.name, k.lsn, k.label)
	if n.shard == nil {
		n.recs[k][0] ^= 0xff
	} else {
		n.unread[k] = true
	}
}

func (s *sim) archiveStep() {
	n := s.randomNode()
	if !s.archiving || n.shard == nil {
		return
	}
	switch s.rng.IntN(4) {
	case 0:
		s.say("flush %s all", n.name)
		s.put(s.snapshot(n, true))
	case 1:
		s.say("flush %s", n.name)
		s.put(s.snapshot(n, false))
	case 2:
		s.say("look %s", n.name)
		s.look(n)
	case 3:
		s.say("idle %s", n.name)
		s.out.Reset()
		n.shard.Release(s.now, 0, &s.out)
		s.commit(n)
	}
}

// heal brings every node back, kills the clients and demands an open and a commit (L1, L2), with everything readable.
func (s *sim) heal() {
	for _, c := range s.clients {
		c.dead = true
	}
	for _, n := range s.nodes {
		if n.shard == nil {
			if err := s.restart(n); err != nil {
				s.oracle.violate("restart: %v", err)
			}
		}
	}
	s.net = nil
	for _, n := range s.nodes {
		s.look(n) // a node that lacks the oldest records learns that they are archived
	}
	c := &client{name: "last", given: map[LSN]string{}}
	s.clients = append(s.clients, c)
	var names []string
	for _, m := range s.reg.ensemble {
		names = append(names, string(m.Node))
	}
	s.deadline = 20000 * Millisecond
	s.say("heal: record %v history %s", s.reg.ensemble, historyString(s.reg.history))
	if err := s.open(c, s.members(names...), s.reg.qw, nil); err != nil {
		s.oracle.violate("open: %v", err)
		return
	}
	s.run(3000 * Millisecond)
	if c.writer == nil {
		why := c.lastErr
		if c.opener != nil {
			why = fmt.Errorf("stage %s: %s", c.opener.Stage(), c.opener.lacks())
		}
		s.oracle.violate("L1: the open after the faults does not complete: %v", why)
		return
	}
	for range 3 {
		s.tag++
		if _, err := s.append(c, fmt.Sprintf("last.%d", s.tag)); err != nil {
			s.oracle.violate("L2: %v", err)
		}
		s.run(0)
	}
	s.run(2000 * Millisecond)
	if c.writer.Committed() != c.writer.Next()-1 || !c.writer.Settled() {
		s.oracle.violate("L2: committed %d, next %d, settled %v", c.writer.Committed(), c.writer.Next(), c.writer.Settled())
	}
	s.checkDurable("end")
	// All nodes together with the proven part of the archive serve the whole log.
	served := map[LSN]bool{}
	for _, n := range s.nodes {
		for _, rec := range s.hotRead(n, 1, s.oracle.high).Records {
			served[rec.LSN] = true
		}
		s.coldRead(n)
	}
	for x := s.reg.trimmed + 1; x <= s.oracle.high; x++ {
		if l, lost := s.reg.lost.At(x); lost {
			x = l.To
			continue
		}
		if !served[x] && !s.archivedProof(x) {
			s.oracle.violate("S1: LSN %d is served by no node and not archived", x)
		}
	}
}

// runSim runs one seed; it returns the first violations, if any, and the committed length.
func runSim(seed uint64, rules Rules, trace bool) *sim {
	s := newSim(seed, rules)
	s.trace = trace
	for i := 0; i < s.steps && len(s.oracle.bad) == 0; i++ {
		s.step()
		for _, e := range s.events {
			s.say("   %s", e)
		}
		s.events = s.events[:0]
	}
	if len(s.oracle.bad) == 0 {
		s.heal()
		for _, e := range s.events {
			s.say("   %s", e)
		}
	}
	return s
}

func (s *sim) params() string {
	return fmt.Sprintf("n=%d qw=%d drop=%d dup=%d bias=%d steps=%d batches=%v archiving=%v window=%d block=%d", s.n, s.qw, s.drop, s.dup, s.bias, s.steps,
		s.batches, s.archiving, s.settings.Window, s.block)
}

func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		s := runSim(*simSeed, Rules{}, true)
		t.Logf("seed %d: %s\n%s\nviolations: %v", *simSeed, s.params(), strings.Join(s.log, "\n"), s.oracle.bad)
		if len(s.oracle.bad) > 0 {
			t.Fail()
		}
		return
	}
	opens, commits, reopens, tails := 0, 0, 0, 0
	failures := 0
	for seed := uint64(1); seed <= uint64(*simCount); seed++ {
		s := runSim(seed, Rules{}, false)
		opens += len(s.oracle.opens)
		commits += len(s.oracle.committed)
		tails += s.reader.tails
		for _, c := range s.clients {
			reopens += c.reopened
		}
		if len(s.oracle.bad) > 0 {
			t.Errorf("seed %d (%s): %v\nrepeat with: go test ./internal/protocol -run TestSimulation -v -seed %d", seed, s.params(), s.oracle.bad, seed)
			if failures++; failures == 10 {
				t.FailNow()
			}
		}
	}
	t.Logf("%d seeds: %d opens, %d records committed, %d live re-opens, %d tails read", *simCount, opens, commits, reopens, tails)
	if opens < *simCount || commits < *simCount || reopens < *simCount/10 || tails < *simCount/3 {
		t.Errorf("the simulation does too little: %d opens, %d commits, %d live re-opens, %d tails in %d seeds", opens, commits, reopens, tails, *simCount)
	}
}
