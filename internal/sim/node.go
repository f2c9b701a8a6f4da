package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/shard"
	"github.com/btrlog/btrlog/internal/wire"
	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/lst/vfs"
)

type nodeState uint8

const (
	nodeDown    nodeState = iota
	nodeUp                // serving
	nodeRefused           // its store refused to open: an operator has to replace the disk
)

// node is a log node: the real shard core on the real engine on a simulated disk, driven as the node's thread drives it.
type node struct {
	w    *world
	id   protocol.NodeID
	ep   endpoint
	inc  protocol.Incarnation
	disk *disk
	rng  *rand.Rand

	state     nodeState
	life      int // number of the process; events of an earlier one are void
	core      *shard.Core
	inbox     []packet
	tasks     []func()
	parked    []parkedRead
	busy      bool
	flusher   *proc
	collector *proc
	tidying   bool
	doomed    bool         // power goes in the middle of the next write
	lastWrite lst.Location // where the last commit began
	answers   []outgoing   // of the batch whose write is in flight
	slow      protocol.Time
	noStore   protocol.Time // it does not reach the object store until then
	scrub     string        // where the next look for dead packs begins
	// What it knows of the other nodes, and the failure snapshots that it made of it; of process detectorLife.
	detector     *protocol.Detector
	detectorLife int
	snaps        map[protocol.LogID]*snapped
	damaged      bool // its disk was damaged on purpose: refusing to start and unknown answers are right
}

type packet struct {
	from  endpoint
	bytes []byte
}

type outgoing struct {
	to    endpoint
	class class
	bytes []byte
}

// parkedRead is a long poll: it is answered when the watermark has risen or its time is up.
type parkedRead struct {
	from  endpoint
	read  *protocol.Read
	until protocol.Time
}

const shardDir = "/data/shard-0"

func newNode(w *world, i int) *node {
	n := &node{w: w, id: protocol.NodeID(fmt.Sprintf("n%d", i)), ep: endpoint(i), rng: derive(w.p.seed, fmt.Sprintf("node%d", i))}
	n.format()
	return n
}

// format gives the node an empty disk, and with it a new incarnation.
func (n *node) format() {
	n.inc = protocol.Incarnation(n.w.ids.Uint64() | 1)
	n.disk = &disk{Mem: vfs.NewMem(vfs.MemOptions{Seed: n.rng.Uint64()}), lie: n.w.mutant.SyncLeftOut, early: n.w.mutant.UnlinkBeforeSync}
	n.damaged = false
}

// register writes the node's record, at once: what a node does before it serves.
func (n *node) register() {
	_, err := n.w.newBareCatalog().RegisterNode(context.Background(), meta.Registration{Force: true,
		Node: meta.NodeRecord{ID: n.id, Incarnation: n.inc, UDP: "127.0.0.1:1", Shards: 1, Start: fmt.Sprintf("start-%d", n.life)}})
	if err != nil {
		panic(fmt.Sprintf("register node: %v", err))
	}
}

// boot opens the store and serves.
func (n *node) boot() {
	w := n.w
	n.life++
	core, report, err := shard.Open(shardDir, lst.Options{FS: n.disk, Mode: w.p.mode(), SegmentBytes: w.p.lstSegment, Inline: true,
		SnapshotRecords: w.p.snapshotRecords, SnapshotInterval: 1 << 40, TailCacheBytes: 64 << 10, MaxRecordBytes: 64 << 10, DiskBudgetBytes: w.p.budget, ReserveBytes: w.p.reserve, Now: w.wall, Random: w.random},
		n.inc, w.mutant.Rules, w.now)
	if err == nil {
		err = n.disk.settle()
	}
	w.c.add(&w.c.Boots)
	if err != nil {
		n.refuse(err)
		return
	}
	w.c.Replayed += report.ReplayedRecords
	if report.CutBytes > 0 {
		w.c.add(&w.c.TornWrites)
	}
	w.tracef("%s boots: incarnation %v, replayed %d, cut %d bytes (%s)", n.id, n.inc, report.ReplayedRecords, report.CutBytes, report.CutReason)
	n.core, n.state, n.busy = core, nodeUp, false
	for _, l := range core.Logs() {
		if len(l.Damaged) > 0 {
			w.c.add(&w.c.DamagedSeen)
			w.tracef("%s: log %s damaged %v", n.id, l.Log, l.Damaged)
			if !n.damaged {
				w.fail("recovery", "%s calls %v of log %s damaged, but nothing damaged its disk", n.id, l.Damaged, l.Log)
			}
		}
	}
	w.net.hosts[n.ep] = n.receive
	life := n.life
	n.flusher = w.spawn(string(n.id)+" flusher", func(p *proc) { n.flush(p, life) })
	n.collector = w.spawn(string(n.id)+" collector", func(p *proc) { n.collect(p, life) })
}

// refuse is a start that failed: right if the disk was damaged on purpose, and a lost disk otherwise.
func (n *node) refuse(err error) {
	w := n.w
	w.tracef("%s refuses to start: %v", n.id, err)
	w.c.add(&w.c.RefusedStarts)
	if errors.Is(err, vfs.ErrCrashed) {
		n.state = nodeDown // power went again while it started
		n.loseDisk()
		n.restartIn(between(n.rng, millisecond, second))
		return
	}
	n.state = nodeRefused
	if !n.damaged {
		w.fail("recovery", "%s does not start on a disk that nothing damaged: %v", n.id, err)
	} else if w.healed {
		w.wipe(n) // its operator replaces the disk
	}
}

// stop ends the process: whatever it had in memory is gone.
func (n *node) stop() {
	if n.flusher != nil {
		n.flusher.kill()
		n.collector.kill()
		n.flusher, n.collector = nil, nil
	}
	delete(n.w.net.hosts, n.ep)
	n.life++
	n.core, n.inbox, n.tasks, n.answers, n.parked, n.busy, n.doomed = nil, nil, nil, nil, nil, false, false
	if n.state == nodeUp {
		n.state = nodeDown
	}
}

// loseDisk is what a power cut does to the disk: everything that was synced stays, of the rest a random part.
func (n *node) loseDisk() {
	n.disk = &disk{Mem: n.disk.Mem.Crash(), lie: n.disk.lie, early: n.disk.early}
}

// powerCut stops the node and takes what was not synced.
func (n *node) powerCut() {
	n.w.tracef("%s: power cut", n.id)
	n.w.c.add(&n.w.c.PowerCuts)
	n.stop()
	n.loseDisk()
	n.restartIn(between(n.rng, millisecond, 2*second))
}

// kill ends the process and leaves the page cache alone.
func (n *node) kill() {
	n.w.tracef("%s: killed", n.id)
	n.w.c.add(&n.w.c.Kills)
	if n.state == nodeUp {
		// A write in flight reaches the disk although its process is gone.
		if err := n.disk.settle(); err != nil && !errors.Is(err, vfs.ErrCrashed) {
			panic(err)
		}
	}
	n.stop()
	n.disk.Kill()
}

// restart stops the node in order and starts it again.
func (n *node) restart() {
	n.w.tracef("%s: stopped in order", n.id)
	n.w.c.add(&n.w.c.Restarts)
	core := n.core
	n.stop()
	err := core.Close()
	if err == nil {
		err = n.disk.settle()
	}
	if err != nil && !errors.Is(err, vfs.ErrCrashed) {
		n.w.fail("commit", "%s: close of a store on a healthy disk: %v", n.id, err)
	}
	if err != nil {
		n.loseDisk()
	}
	n.restartIn(between(n.rng, millisecond, 500*millisecond))
}

func (n *node) receive(from endpoint, b []byte) {
	const limit = 2048 // bounded queue: what does not fit is lost, as in a socket's buffer
	if n.state != nodeUp || len(n.inbox) >= limit {
		return
	}
	n.inbox = append(n.inbox, packet{from, b})
	n.schedule()
}

// post runs f on the shard's thread in the next batch.
func (n *node) post(f func()) {
	n.tasks = append(n.tasks, f)
	n.schedule()
}

func (n *node) schedule() {
	if n.busy {
		return
	}
	n.busy = true
	life := n.life
	n.w.after(protocol.Time(n.rng.Int64N(20_000)), func() {
		if n.life == life {
			n.batch()
		}
	})
}

// batch is the node's cycle: receive everything that has arrived, step, commit, and only then answer.
func (n *node) batch() {
	w, life := n.w, n.life
	w.c.add(&w.c.Batches)
	inbox, tasks := n.inbox, n.tasks
	n.inbox, n.tasks = nil, nil
	var r wire.Reader
	for i, p := range inbox {
		if n.core.BatchBytes() >= int(w.p.lstSegment/4) {
			n.inbox = append(n.inbox, inbox[i:]...) // as a node's thread does: a batch goes into one file
			break
		}
		if r.Reset(p.bytes, cluster) != nil {
			continue
		}
		for r.Next() {
			m, err := r.Message()
			if err != nil {
				w.fail("wire", "a node cannot read what a client sent: %v", err)
				return
			}
			n.step(p.from, m)
		}
	}
	for _, f := range tasks {
		f()
	}
	n.polls()
	n.disk.ops = 0
	st := n.core.Store().Stats()
	answers, err := n.core.Commit(w.now)
	if n.disk.ops > 0 {
		n.lastWrite = lst.Location{Segment: st.Active, Offset: st.ActiveOffset}
	}
	if err != nil {
		n.died(err)
		return
	}
	n.answers = n.encode(answers)
	if w.mutant.ReplyBeforeCommit {
		n.reply()
	}
	took := protocol.Time(5_000)
	if n.disk.ops > 0 {
		took += w.p.diskWrite + protocol.Time(n.rng.ExpFloat64()*float64(w.p.diskWrite)/2)
		if w.now < n.slow {
			took *= 20
		}
		if n.doomed {
			w.after(between(n.rng, 0, took), func() {
				if n.life == life {
					n.powerCut()
				}
			})
		}
	}
	w.after(took, func() {
		if n.life == life {
			n.completed()
		}
	})
}

// died is the end of a process whose commit failed: it must not answer again (P14).
func (n *node) died(err error) {
	if errors.Is(err, vfs.ErrCrashed) {
		n.w.tracef("%s: power cut inside a commit", n.id)
		n.w.c.add(&n.w.c.PowerCuts)
		n.stop()
		n.loseDisk()
	} else {
		n.w.fail("commit", "%s: commit failed on a disk without faults: %v", n.id, err)
		n.stop()
	}
	n.restartIn(between(n.rng, millisecond, 2*second))
}

// restartIn boots the node again after a while, unless something else did.
func (n *node) restartIn(d protocol.Time) {
	life := n.life
	n.w.after(d, func() {
		if n.life == life && n.state == nodeDown {
			n.boot()
		}
	})
}

// completed is the end of the batch's forced write.
func (n *node) completed() {
	if err := n.disk.settle(); err != nil {
		n.died(err)
		return
	}
	// The answers leave only now: earlier, a power cut takes what they promise.
	n.reply()
	n.busy = false
	if n.tidying {
		life := n.life
		if n.reclaim(); n.life != life {
			return
		}
	}
	if len(n.inbox) > 0 || len(n.tasks) > 0 || n.due() {
		n.schedule()
	}
}

func (n *node) reply() {
	for _, a := range n.answers {
		n.w.net.send(n.ep, a.to, a.class, a.bytes)
	}
	n.answers = nil
}

func (n *node) step(from endpoint, m protocol.Message) {
	if r, ok := m.(*protocol.Read); ok && r.WaitAbove != 0 {
		if st, ok := n.core.Log(r.Log); ok && st.CLSN <= r.WaitAbove && !st.Deleted {
			n.parked = append(n.parked, parkedRead{from, r, n.w.now + 20*millisecond})
			life := n.life
			n.w.after(20*millisecond, func() {
				if n.life == life {
					n.schedule()
				}
			})
			return
		}
	}
	n.core.Step(n.w.now, protocol.Peer(from), m)
}

// due reports whether a parked read can be answered.
func (n *node) due() bool {
	return slices.ContainsFunc(n.parked, n.ready)
}

func (n *node) ready(p parkedRead) bool {
	st, ok := n.core.Log(p.read.Log)
	return !ok || st.CLSN > p.read.WaitAbove || n.w.now >= p.until
}

func (n *node) polls() {
	kept := n.parked[:0]
	for _, p := range n.parked {
		if n.ready(p) {
			n.w.c.add(&n.w.c.Polls)
			n.core.Step(n.w.now, protocol.Peer(p.from), p.read)
		} else {
			kept = append(kept, p)
		}
	}
	n.parked = kept
}

// encode makes the packets of a batch's answers; acknowledgements to one peer share packets.
func (n *node) encode(a shard.Answers) []outgoing {
	var out []outgoing
	var w wire.Writer
	for i := 0; i < len(a.Acks); {
		to := a.Acks[i].To
		w.Reset(nil, 1400, cluster, 0)
		for ; i < len(a.Acks) && a.Acks[i].To == to; i++ {
			switch a.Acks[i].Ack.Status {
			case protocol.StatusNotActivated:
				n.w.c.add(&n.w.c.StaleReturners)
			case protocol.StatusNoSpace:
				n.w.c.add(&n.w.c.NoSpace)
			}
			err := w.Ack(&a.Acks[i].Ack)
			if !w.Empty() && (errors.Is(err, wire.ErrTooLarge) || errors.Is(err, wire.ErrMixed)) {
				break // the next packet: full, or a refusal that names an incarnation that is gone
			}
			if err != nil {
				n.w.fail("wire", "%s cannot encode an acknowledgement: %v", n.id, err)
				return out
			}
		}
		out = append(out, outgoing{endpoint(to), classAck, w.Finish()})
	}
	for i := range a.Replies {
		r := &a.Replies[i]
		shard.FillReply(n.core.View(), r, 64<<10)
		w.Reset(nil, wire.MaxFrameBytes, cluster, 0)
		if err := w.Message(r.Msg); err != nil {
			n.w.fail("wire", "%s cannot encode a reply: %v", n.id, err)
			return out
		}
		out = append(out, outgoing{endpoint(r.To), classReply, w.Finish()})
	}
	return out
}
