package sim

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/wire"
	"github.com/btrlog/btrlog/objstore"
)

const cluster wire.ClusterID = 0x51b

// world is one run: everything that exists, and the one seed from which all of it follows.
type world struct {
	*scheduler
	p      *params
	mutant Mutant
	c      counters

	net   *network
	store *store
	cat   *meta.Catalog
	nodes []*node
	byID  map[protocol.NodeID]*node
	logs  []*simLog
	check *checker

	load    *rand.Rand // workload
	chance  *rand.Rand // faults
	ids     *rand.Rand // ids, nonces, salts
	clients endpoint   // last client endpoint given out
	actors  []*client  // live clients that the nemesis may kill or pause
	healed  bool
	opening map[protocol.LogID]int // opens that hold a token and are not finished
	targets map[*client]protocol.Ensemble
	openers map[*client]protocol.Ensemble // recorded and wanted members of the opens under way
	wipeAt  protocol.Stage                // when the next opener gets to that stage, a disk under it is replaced; StageFence: none
	armed   protocol.Stage                // the stage in which the next opener dies; StageFence: none

	gone    map[string]bool // objects that were deleted
	halfWay int             // the next opener that repairs dies when it has sent so many messages of it; 0: none
	source  *node           // which is out of reach then

	failure *Failure
	trace   *bytes.Buffer // nil unless asked for
	sum     digest        // of every packet with its time: two runs of a seed must agree
}

// simLog is one log of the world.
type simLog struct {
	name string
	id   protocol.LogID
	// deleted: its tombstone is on record. Another log may have the name.
	deleted bool
}

func newWorld(seed uint64, m Mutant, verbose bool) *world {
	p := draw(seed)
	w := &world{scheduler: newScheduler(), p: p, mutant: m, byID: map[protocol.NodeID]*node{}, clients: 1000,
		load: derive(seed, "load"), chance: derive(seed, "faults"), ids: derive(seed, "ids"), opening: map[protocol.LogID]int{},
		targets: map[*client]protocol.Ensemble{}, openers: map[*client]protocol.Ensemble{}, gone: map[string]bool{}}
	if verbose {
		w.trace = &bytes.Buffer{}
	}
	w.now = 1 // zero means "never" to the protocol
	w.net = newNetwork(w.scheduler, derive(seed, "net"), p, &w.c)
	w.net.trace = w.tracePacket
	w.store = newStore(w.scheduler, derive(seed, "store"), seed, p, &w.c)
	w.store.strike = func(p *proc) {
		for _, n := range w.nodes {
			if (n.flusher == p || n.collector == p) && n.state == nodeUp {
				w.c.add(&w.c.KillsAtStore)
				n.kill()
				n.restartIn(between(w.store.kills, millisecond, 2*second))
			}
		}
	}
	w.check = newChecker(&w.c, w.fail)
	w.cat = w.newCatalog()
	w.store.puts.stored, w.store.puts.removed = w.stored, w.removed
	w.check.record = w.onRecord
	for i := range p.nodes {
		n := newNode(w, i)
		w.nodes = append(w.nodes, n)
		w.byID[n.id] = n
		n.register()
		n.boot()
	}
	for i := range p.logs {
		name := fmt.Sprintf("log%d", i)
		rec, err := w.newBareCatalog().Create(context.Background(), name, w.logOptions())
		if err != nil {
			panic(fmt.Sprintf("create of a log on a healthy store: %v", err))
		}
		w.addLog(rec.Record.ID, name)
	}
	return w
}

func (w *world) logOptions() meta.Options {
	p, o := w.p, meta.DefaultOptions()
	o.N, o.Qw, o.Window, o.SegmentBytes = p.n, p.qw, p.window, p.segment
	o.FlushAge = time.Duration(p.flushAge / millisecond * millisecond)
	o.Retention = meta.Retention{Age: time.Duration(p.keepFor), Bytes: p.keepBytes}
	return o
}

// addLog adds a log that was created.
func (w *world) addLog(id protocol.LogID, name string) *simLog {
	l := &simLog{name: name, id: id}
	w.logs = append(w.logs, l)
	w.check.log(id).name = name
	return l
}

// inhabit lets writers and readers loose on a log.
func (w *world) inhabit(l *simLog) {
	for range w.p.writers {
		w.writerLife(l)
	}
	if w.p.trims {
		w.trimmer(l)
	}
	for range w.p.readers {
		w.hotReader(l, false)
		w.hotReader(l, true)
		w.coldReader(l)
		w.mergeReader(l)
	}
}

// onRecord is what the record of a log says past all faults.
func (w *world) onRecord(id protocol.LogID) (trimBefore protocol.LSN, lost protocol.LostRanges) {
	rec, err := w.newBareCatalog().LoadByID(context.Background(), id)
	if err != nil {
		return 1, nil
	}
	return rec.Record.TrimBefore, rec.Record.LostRanges()
}

// newCatalog returns a catalog as one process has it, on the store with its delays and faults.
func (w *world) newCatalog() *meta.Catalog { return w.catalogOn(w.store) }

func (w *world) catalogOn(s objstore.Store) *meta.Catalog {
	cat, err := meta.New(s, meta.Config{Root: "sim", Random: w.ids.Uint64, Now: w.wall, Sleep: sleepSeam})
	if err != nil {
		panic(err)
	}
	return cat
}

// newBareCatalog looks at the metadata past all delays and faults; checkers and the nemesis use it.
func (w *world) newBareCatalog() *meta.Catalog {
	cat, err := meta.New(w.store.inner, meta.Config{Root: "sim", Random: w.ids.Uint64, Now: w.wall, Sleep: sleepSeam})
	if err != nil {
		panic(err)
	}
	return cat
}

func (w *world) newArchive(bare bool, r *rand.Rand) *archive.Archive {
	o := archive.Options{Root: "sim", Sleep: sleepSeam, Rand: r.Float64, Attempts: 4}
	a, err := archive.New(w.store, o)
	if bare {
		a, err = archive.New(w.store.inner, o)
	}
	if err != nil {
		panic(err)
	}
	return a
}

// wall is the wall clock of the simulation.
func (w *world) wall() time.Time { return wallAt(w.now) }

func wallAt(t protocol.Time) time.Time {
	return time.Unix(1_700_000_000, 0).Add(time.Duration(t)).UTC()
}

func (w *world) random(p []byte) {
	for i := range p {
		p[i] = byte(w.ids.Uint32())
	}
}

// fail records the first violation; the run stops there.
func (w *world) fail(rule, format string, args ...any) {
	if w.failure == nil {
		w.failure = &Failure{Seed: w.p.seed, Rule: rule, Message: fmt.Sprintf(format, args...), At: time.Duration(w.now), Params: w.p.String()}
		w.tracef("VIOLATION %s: %s", rule, w.failure.Message)
	}
}

func (w *world) tracef(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%12.6f ", float64(w.now)/1e9)
		fmt.Fprintf(w.trace, format, args...)
		w.trace.WriteByte('\n')
	}
}

// tracePacket adds every packet to the sum and, when a trace is kept, its messages to the trace.
func (w *world) tracePacket(from, to endpoint, what string, packet []byte) {
	w.sum.word(uint64(w.now))
	w.sum.word(uint64(from))
	w.sum.word(uint64(to))
	w.sum.bytes(packet)
	if w.trace == nil {
		return
	}
	var r wire.Reader
	if err := r.Reset(packet, cluster); err != nil {
		w.tracef("%s → %s: %v", w.hostName(from), w.hostName(to), err)
		return
	}
	for r.Next() {
		m, err := r.Message()
		if err != nil {
			w.tracef("%s → %s: %v", w.hostName(from), w.hostName(to), err)
			return
		}
		w.tracef("%s → %s: %s", w.hostName(from), w.hostName(to), brief(m))
	}
}

func (w *world) hostName(e endpoint) string {
	if int(e) < len(w.nodes) {
		return string(w.nodes[e].id)
	}
	return fmt.Sprintf("client%d", e)
}

// brief is one line about a message.
func brief(m protocol.Message) string {
	switch m := m.(type) {
	case *protocol.Append:
		return fmt.Sprintf("append %s log %s e%d label %d [%d,%d] seg %d+%d cLSN %d", m.Kind, m.Log, m.Epoch, m.Label, m.First, m.Last(), m.SegStart, m.SegOff, m.CLSN)
	case *protocol.Ack:
		return fmt.Sprintf("ack %s log %s e%d %s [%d,%d] label %d promised %d activated %d cLSN %d", m.Kind, m.Log, m.Epoch, m.Status, m.First, m.Last, m.Label, m.Promised, m.Activated, m.CLSN)
	case *protocol.OpenReply:
		return fmt.Sprintf("open-reply log %s e%d %s promised %d activated %d start %d cLSN %d archived %d held %v damaged %v", m.Log, m.Epoch, m.Status, m.Promised, m.Activated,
			m.Start, m.CLSN, m.ArchivedThrough, m.Held, m.Damaged)
	case *protocol.FetchReply:
		return fmt.Sprintf("fetch-reply log %s e%d %s [%d,%d] %d records damaged %v", m.Log, m.Epoch, m.Status, m.From, m.Through, len(m.Records), m.Damaged)
	case *protocol.ReadReply:
		return fmt.Sprintf("read-reply log %s %s activated %d cLSN %d archived %d [%d,%d] %d records", m.Log, m.Status, m.Activated, m.CLSN, m.ArchivedThrough, m.From, m.Through, len(m.Records))
	}
	return fmt.Sprintf("%T %+v", m, m)
}
