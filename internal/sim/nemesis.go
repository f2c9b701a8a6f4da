package sim

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
)

// nemesis draws faults until the world heals.
func (w *world) nemesis() {
	total := 0
	for _, f := range w.p.faults {
		total += f.weight
	}
	w.spawn("nemesis", func(p *proc) {
		for {
			p.sleep(between(w.chance, w.p.faultEvery/4, 2*w.p.faultEvery))
			if w.healed {
				return
			}
			r := w.chance.IntN(total)
			for _, f := range w.p.faults {
				if r -= f.weight; r < 0 {
					w.fault(f.name)
					break
				}
			}
		}
	})
}

func (w *world) fault(name string) {
	n := w.nodes[w.chance.IntN(len(w.nodes))]
	for i := 0; i < 3 && n.state != nodeUp; i++ {
		n = w.nodes[w.chance.IntN(len(w.nodes))]
	}
	if n.state == nodeRefused {
		// Its operator replaces the disk; the model has counted it as lost since it was damaged.
		w.wipe(n)
		return
	}
	length := between(w.chance, 50*millisecond, 3*second)
	w.tracef("fault: %s (%s)", name, n.id)
	switch name {
	case "power":
		if n.state == nodeUp {
			n.doomed = true // in the middle of its next write, or now if there is none
			life := n.life
			w.after(200*millisecond, func() {
				if n.life == life {
					n.powerCut()
				}
			})
		}
	case "tear":
		if n.state == nodeUp {
			n.disk.CrashAfter(w.chance.Int64N(8))
		}
	case "kill":
		if n.state == nodeUp {
			n.kill()
			n.restartIn(between(w.chance, millisecond, 2*second))
		}
	case "partition":
		for _, c := range w.actors {
			switch w.chance.IntN(4) {
			case 0:
				w.c.add(&w.c.OneWayPartitions)
				w.net.block(c.ep, n.ep, w.now+length)
			case 1:
				w.c.add(&w.c.OneWayPartitions)
				w.net.block(n.ep, c.ep, w.now+length)
			}
		}
	case "cutOff":
		// Every client with as many nodes out of reach as still leave it a read quorum, each with others.
		for _, c := range w.actors {
			for range w.p.qw - 1 {
				o := w.nodes[w.chance.IntN(len(w.nodes))]
				w.net.block(c.ep, o.ep, w.now+length)
				if w.chance.IntN(2) == 0 {
					w.net.block(o.ep, c.ep, w.now+length)
				}
			}
		}
	case "starve":
		w.net.starved = slices.DeleteFunc(w.net.starved, func(s starvation) bool { return s.until <= w.now })
		s := starvation{0, n.ep, w.now + 2*length, between(w.chance, 20*millisecond, 2*second)}
		names := ""
		for c := range classes {
			if w.chance.IntN(3) == 0 {
				s.classes |= 1 << c
				names += " " + c.String()
			}
		}
		w.tracef("messages at %s take %s longer for %s:%s", n.id, ms(s.delay), ms(2*length), names)
		w.net.starved = append(w.net.starved, s)
	case "wipeOpening":
		w.wipeAt = pick(w.chance, protocol.StageFetch, protocol.StageRepair, protocol.StageInstall, protocol.StageActivate)
	case "isolate":
		for _, c := range w.actors {
			w.net.block(c.ep, n.ep, w.now+length)
			w.net.block(n.ep, c.ep, w.now+length)
		}
	case "powerAll":
		w.powerCutOfAll()
	case "wipe":
		if w.mayLose(n) {
			w.wipe(n)
		}
	case "damage":
		if n.state == nodeUp && w.mayLose(n) {
			w.damage(n)
		}
	case "slowDisk":
		n.slow = w.now + length
	case "storeDown":
		w.store.down = w.now + length
	case "storeSlow":
		w.store.slow = w.now + length
	case "killOpener":
		// The next open that gets there dies at the start of that stage, before it has sent anything.
		w.armed = pick(w.chance, protocol.StageFetch, protocol.StageRepair, protocol.StageInstall, protocol.StageActivate, protocol.StageActivate)
	case "killRepairing":
		// What the next opener repairs was on one node alone; it dies when it has sent a part of that, and the node is out of reach then.
		w.heardAlone(n, length, func() { w.halfWay, w.source = 1+w.chance.IntN(8), n })
	case "leaveBehind":
		w.leaveBehind(n, length)
	case "disaster":
		w.disaster()
	case "noStore":
		n.noStore = w.now + length
	case "restart":
		if n.state == nodeUp && !n.busy {
			n.restart()
		}
	case "killClient":
		if c := w.victim(); c != nil {
			w.c.add(&w.c.ClientCrashes)
			w.tracef("%s is killed", c.name)
			again := c.again
			c.p.kill()
			w.after(between(w.chance, millisecond, second), func() {
				if !w.healed {
					again()
				}
			})
		}
	case "pauseClient":
		if c := w.victim(); c != nil {
			w.c.add(&w.c.Zombies)
			w.tracef("%s is stopped for %s", c.name, ms(length))
			c.paused = w.now + length
		}
	default:
		panic("no such fault: " + name)
	}
}

// heardAlone makes a node the only one that hears a writer, for a moment; then the writer dies, and what it has sent last is on that node's
// disk alone.
func (w *world) heardAlone(n *node, length protocol.Time, then func()) {
	var writers []*client
	for _, c := range w.actors {
		if c.again != nil && w.targets[c] == nil {
			writers = append(writers, c)
		}
	}
	if len(writers) == 0 || n.state != nodeUp {
		return
	}
	c, alone := writers[w.chance.IntN(len(writers))], between(w.chance, 2*millisecond, 60*millisecond)
	for _, o := range w.nodes {
		if o != n {
			w.net.block(c.ep, o.ep, w.now+length)
		}
	}
	w.after(alone, func() {
		if w.healed {
			return
		}
		if !c.p.dead && slices.Contains(w.actors, c) {
			w.c.add(&w.c.ClientCrashes)
			w.tracef("%s is killed, heard by %s alone since %s", c.name, n.id, ms(alone))
			c.p.kill()
			w.after(between(w.chance, millisecond, 200*millisecond), func() {
				if !w.healed {
					c.again()
				}
			})
		}
		then()
	})
}

// leaveBehind makes a node that was the only one to hear a writer miss what comes: the next open reaches it when others have decided
// already, and what that writes reaches it much later. Readers and the archive do not know of that.
func (w *world) leaveBehind(n *node, length protocol.Time) {
	w.heardAlone(n, length, func() {
		w.c.add(&w.c.LeftBehind)
		w.net.starved = append(w.net.starved, starvation{1 << classOpen, n.ep, w.now + 2*length, between(w.chance, 100*millisecond, 500*millisecond)},
			starvation{1<<classRepair | 1<<classFetch | 1<<classActivate | 1<<classWatermark | 1<<classAppend, n.ep, w.now + 2*length, 2 * length})
		for _, l := range w.logs {
			if !l.deleted {
				w.nearReader(l, n, w.now+2*length)
			}
		}
	})
}

// victim picks a writer, rather one that is opening: what it leaves half done is what the protocol is about.
func (w *world) victim() *client {
	var all, opening []*client
	for _, c := range w.actors {
		if c.again == nil {
			continue
		}
		all = append(all, c)
		if w.targets[c] != nil {
			opening = append(opening, c)
		}
	}
	if len(opening) > 0 && w.chance.IntN(2) == 0 {
		all = opening
	}
	if len(all) == 0 {
		return nil
	}
	return all[w.chance.IntN(len(all))]
}

func (w *world) powerCutOfAll() {
	w.c.add(&w.c.PowerCutsOfAll)
	w.tracef("power cut of all nodes")
	for _, n := range w.nodes {
		if n.state == nodeUp {
			n.powerCut()
		}
	}
}

// wipe replaces a node's disk by an empty one: another incarnation of the same name and address.
func (w *world) wipe(n *node) {
	w.c.add(&w.c.Wipes)
	w.tracef("%s: disk replaced", n.id)
	n.stop()
	n.state = nodeDown
	n.format()
	n.register()
	n.restartIn(between(w.chance, millisecond, 500*millisecond))
}

// wipeMember replaces the disk of one of the members, if the failure model allows it.
func (w *world) wipeMember(e protocol.Ensemble) {
	for _, i := range w.chance.Perm(len(e)) {
		n := w.byID[e[i].Node]
		if n.inc == e[i].Incarnation && w.mayLose(n) {
			w.c.add(&w.c.WipesInTakeover)
			w.wipe(n)
			return
		}
	}
}

// mayLose reports whether the failure model allows the loss of n's disk now: of no ensemble that is recorded, or that an
// open is about to record, may more than Qw − 1 disks be gone at once (S6).
func (w *world) mayLose(n *node) bool {
	ok := func(e protocol.Ensemble) bool {
		gone, hit := 0, false
		for _, m := range e {
			o := w.byID[m.Node]
			switch {
			case o.inc != m.Incarnation:
				gone++
			case o == n: // a disk that is damaged is half lost; the other half counts when another one is gone already
				hit = true
			case o.damaged:
				gone++
			}
		}
		return !hit || gone+1 <= w.p.qw-1
	}
	for _, l := range w.logs {
		if l.deleted {
			continue
		}
		e, _, err := w.recorded(l)
		if err != nil || !ok(e) {
			return false
		}
	}
	for _, c := range w.actors {
		if e := w.targets[c]; e != nil && !ok(e) {
			return false
		}
	}
	return true
}

// recorded reads a log's ensemble and history past all faults.
func (w *world) recorded(l *simLog) (protocol.Ensemble, protocol.History, error) {
	cat := w.newBareCatalog()
	rec, err := cat.Load(context.Background(), l.name)
	if err != nil || rec.Record.Ensemble == "" {
		return nil, nil, err
	}
	e, err := cat.LoadEnsemble(context.Background(), rec.Record.Ensemble)
	return e, rec.Record.History, err
}

// damage flips one byte of a stored record behind the node's back and restarts it. The last writes are spared: damage
// there cannot be told from a write that power cut short.
func (w *world) damage(n *node) {
	if w.chance.IntN(2) == 0 {
		// A snapshot behind the record makes the difference between a start that walks over it and one that reads it.
		if err := n.core.Store().Snapshot(); err != nil {
			n.died(err)
			return
		}
		st := n.core.Store().Stats()
		n.lastWrite = lst.Location{Segment: st.Active, Offset: st.ActiveOffset}
	}
	v := n.core.View()
	var places []lst.Location
	young := w.chance.IntN(2) == 0 // of each stream the last records only: those that an open asks for
	v.Streams(nil, func(id lst.StreamID) bool {
		for _, e := range v.Extents(id, nil) {
			if young && e.To > 3 {
				e.From = max(e.From, e.To-3)
			}
			for x := e.From; x < e.To; x++ {
				at, err := v.Locate(id, x)
				if err == nil && at.Length > payloadHead && (at.Segment < n.lastWrite.Segment || at.Segment == n.lastWrite.Segment && at.Offset+int64(at.Length) <= n.lastWrite.Offset) {
					places = append(places, at)
				}
			}
		}
		return true
	})
	if len(places) == 0 {
		return
	}
	at := places[w.chance.IntN(len(places))]
	n.kill()
	file := filepath.Join(shardDir, fmt.Sprintf("%08x.lst", at.Segment))
	b, err := n.disk.ReadFile(file)
	if err != nil {
		panic(err)
	}
	b[at.Offset+int64(w.chance.IntN(at.Length))] ^= byte(1 + w.chance.IntN(255))
	n.disk.WriteFile(file, b)
	n.damaged = true
	w.c.add(&w.c.Damages)
	w.tracef("%s: %s damaged at %d", n.id, file, at.Offset)
	if w.chance.IntN(2) == 0 {
		// And another one out of reach: then the damaged copy may be the one that matters.
		o, length := w.nodes[w.chance.IntN(len(w.nodes))], between(w.chance, second, 4*second)
		for _, c := range w.actors {
			w.net.block(c.ep, o.ep, w.now+length)
			w.net.block(o.ep, c.ep, w.now+length)
		}
	}
	n.restartIn(between(w.chance, millisecond, 500*millisecond))
}
