package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/wire"
)

// client is one process that uses logs: its proc, its address and what has arrived for it.
type client struct {
	w      *world
	name   string
	ep     endpoint
	p      *proc
	rng    *rand.Rand
	cat    *meta.Catalog
	inbox  []protocol.Message
	paused protocol.Time            // stopped until then (SIGSTOP): what arrives waits
	aside  func(m protocol.Message) // what arrives during an open and is not for it
	raced  *raceStore               // a mutant
	// lookedAt is when an open of this client that may lose records last looked at the archive.
	lookedAt time.Time
	again    func() // starts another process of the kind, after this one was killed
}

// newClient starts a process that runs fn.
func (w *world) newClient(kind string, fn func(c *client)) *client {
	w.clients++
	c := &client{w: w, name: fmt.Sprintf("%s%d", kind, w.clients), ep: w.clients, rng: derive(w.p.seed, fmt.Sprintf("client%d", w.clients)), cat: w.newCatalog()}
	if w.mutant.LostRace {
		c.raced = &raceStore{store: w.store}
		c.cat = w.catalogOn(c.raced)
	}
	w.net.hosts[c.ep] = c.receive
	w.actors = append(w.actors, c)
	c.p = w.spawn(c.name, func(p *proc) {
		c.p = p
		fn(c)
	})
	c.p.atEnd = func() {
		delete(w.net.hosts, c.ep)
		delete(w.targets, c)
		w.actors = slices.DeleteFunc(w.actors, func(o *client) bool { return o == c })
	}
	return c
}

func (c *client) receive(_ endpoint, b []byte) {
	const limit = 4096 // what does not fit is lost, as in a socket's buffer
	var r wire.Reader
	if err := r.Reset(b, cluster); err != nil || len(c.inbox) >= limit {
		return
	}
	for r.Next() {
		m, err := r.Message()
		if err != nil {
			c.w.fail("wire", "%s cannot read what a node sent: %v", c.name, err)
			return
		}
		c.inbox = append(c.inbox, m)
	}
	if c.w.now >= c.paused {
		c.p.wake()
	}
}

// idle waits for a message or the deadline. A paused process does neither until its pause is over.
func (c *client) idle(deadline protocol.Time) {
	if len(c.inbox) == 0 && c.w.now < deadline {
		c.p.wait(deadline)
	}
	for c.w.now < c.paused {
		c.p.wait(c.paused)
	}
}

// take returns the oldest message that has arrived, or nil.
func (c *client) take() protocol.Message {
	if len(c.inbox) == 0 {
		return nil
	}
	m := c.inbox[0]
	c.inbox = c.inbox[1:]
	return m
}

func (c *client) send(to protocol.NodeID, m protocol.Message) {
	n := c.w.byID[to]
	if n == nil {
		return
	}
	var w wire.Writer
	w.Reset(nil, wire.MaxFrameBytes, cluster, 0)
	if err := w.Message(m); err != nil {
		c.w.fail("wire", "%s cannot encode %s: %v", c.name, brief(m), err)
		return
	}
	c.w.net.send(c.ep, n.ep, classOf(m), w.Finish())
}

func (c *client) context(d protocol.Time) context.Context { return c.p.context(c.w.now + d) }

// load reads a log's record with its ensemble.
func (c *client) load(l *simLog) (meta.LogRecord, protocol.Ensemble, error) {
	rec, err := c.cat.Load(c.context(3*second), l.name)
	if err != nil {
		return meta.LogRecord{}, nil, err
	}
	if rec.Record.ID != l.id {
		return meta.LogRecord{}, nil, errNameTaken
	}
	if rec.Record.Ensemble == "" {
		return rec.Record, nil, nil
	}
	e, err := c.cat.LoadEnsemble(c.context(3*second), rec.Record.Ensemble)
	return rec.Record, e, err
}

// choose picks the ensemble to install: the recorded one with the members that are gone replaced, and sometimes another
// one for no reason at all.
func (c *client) choose(recorded protocol.Ensemble, change bool, gone []protocol.Incarnation) (protocol.Ensemble, error) {
	n := c.w.p.n
	alive := map[protocol.NodeID]protocol.Member{}
	var all []protocol.Member
	for rec, err := range c.cat.Nodes(c.context(3 * second)) {
		if err != nil {
			return nil, err
		}
		m := protocol.Member{Node: rec.Record.ID, Incarnation: rec.Record.Incarnation}
		if slices.Contains(gone, m.Incarnation) {
			continue // its old disk must not hold the log
		}
		alive[m.Node] = m
		all = append(all, m)
	}
	var e protocol.Ensemble
	for _, m := range recorded {
		// The same node at another incarnation is a blank newcomer of that name.
		if a, ok := alive[m.Node]; ok && a.Incarnation == m.Incarnation {
			e = append(e, m)
		}
	}
	if change && len(e) > 0 {
		i := c.rng.IntN(len(e))
		e = slices.Delete(e, i, i+1)
	}
	c.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, m := range all {
		// A damaged disk may be lost at any start: to bring another one into an ensemble is beyond the failure model (S6).
		if len(e) < n && e.Index(m.Incarnation) < 0 && (c.w.healed || !c.w.byID[m.Node].damaged) {
			e = append(e, m)
		}
	}
	if len(e) != n {
		return nil, fmt.Errorf("%w: %d, need %d", errFewNodes, len(all), n)
	}
	return e, nil
}

// openOptions say how a log is opened.
type openOptions struct {
	from    meta.Owner // not zero: a live re-open of this owner's log
	change  bool       // install another ensemble
	survey  bool       // look which nodes are gone, and replace them
	consent bool       // the owner accepts that what is missing is lost
	timeout protocol.Time
}

// opened is a completed open with what a writer needs to know besides.
type opened struct {
	res   *protocol.OpenResult
	owner meta.Owner
}

// open is a takeover: token, fence, tail, repair, record, activate, with the real opener and the real catalog.
func (c *client) open(l *simLog, o openOptions) (*opened, error) {
	w := c.w
	w.c.add(&w.c.Opens)
	deadline := w.now + o.timeout
	nonce := c.cat.Nonce()
	var loss *protocol.AcceptLoss
	if o.consent {
		var err error
		if loss, o.from, err = c.consent(l); err != nil {
			return nil, err
		}
	}
	raised, err := c.cat.RaiseEpoch(c.p.context(deadline), l.name, meta.Raise{Nonce: nonce, Opener: c.name, From: o.from})
	if c.raced.takeLost() {
		err = meta.ErrFenced
	}
	if lostTheRace(err) {
		c.fenced(l, meta.Owner{Nonce: nonce})
	}
	if err != nil {
		return nil, err
	}
	rec := raised.Record
	if rec.ID != l.id {
		return nil, errNameTaken // as one who dies with the token: the next open of that log raises it again
	}
	if loss != nil {
		w.check.consented(l.id, rec.Epoch)
		w.tracef("%s: log %s: its owner calls %v gone", c.name, l.name, loss.Gone)
	}
	w.tracef("%s: log %s: token for epoch %d, history %v", c.name, l.name, rec.Epoch, rec.History)
	w.opening[l.id]++
	if w.opening[l.id] > 1 {
		w.c.add(&w.c.OverlappingTakeovers)
	}
	stage := protocol.StageFence
	over := false
	defer func() {
		// Also when the process is killed, which unwinds it.
		w.opening[l.id]--
		delete(w.targets, c)
		delete(w.openers, c)
		if !over {
			w.c.add(&w.c.OpensKilled)
			if stage == protocol.StageActivate {
				w.c.add(&w.c.PartialActivations)
			}
			w.tracef("%s: died in stage %s of opening epoch %d of log %s", c.name, stage, rec.Epoch, l.name)
		}
	}()
	res, err := c.drive(l, rec, o, loss, deadline, &stage)
	over = true
	if lostTheRace(err) {
		c.fenced(l, rec.Owner())
	}
	if contradicts(err) {
		w.fail("S3", "log %s: what %s found contradicts the record: %v", l.name, c.name, err)
	}
	if err != nil {
		w.c.add(&w.c.OpensFailed)
		if stage == protocol.StageActivate {
			w.c.add(&w.c.PartialActivations)
		}
		w.tracef("%s: open of log %s at epoch %d failed in stage %s: %v", c.name, l.name, rec.Epoch, stage, err)
		return nil, err
	}
	w.c.add(&w.c.OpensDone)
	if rec.Epoch > 1 {
		w.c.add(&w.c.Takeovers)
	}
	w.c.Repaired += res.Repaired
	w.c.Copied += res.Copied
	if loss != nil {
		w.c.add(&w.c.LossesAccepted)
	}
	w.tracef("%s: log %s opened: epoch %d start %d B %d tail %d ensemble %v", c.name, l.name, rec.Epoch, res.Config.Start, res.Config.B, res.Config.Tail, res.Config.Ensemble)
	w.check.opened(l.id, rec.Epoch, res.Config.Start, res.Config.Tail, c.name)
	return &opened{res, rec.Owner()}, nil
}

// drive prepares the opener and runs it to its end.
func (c *client) drive(l *simLog, rec meta.LogRecord, o openOptions, loss *protocol.AcceptLoss, deadline protocol.Time, stage *protocol.Stage) (*protocol.OpenResult, error) {
	w := c.w
	var recorded protocol.Ensemble
	var err error
	if rec.Ensemble != "" {
		if recorded, err = c.cat.LoadEnsemble(c.p.context(deadline), rec.Ensemble); err != nil {
			return nil, err
		}
	}
	target := recorded
	if recorded == nil || o.change || o.survey {
		var gone []protocol.Incarnation
		if loss != nil {
			gone = loss.Gone
		}
		if target, err = c.choose(recorded, o.change, gone); err != nil {
			return nil, err
		}
	}
	id, target, err := c.cat.PutEnsemble(c.p.context(deadline), target)
	if err != nil {
		return nil, err
	}
	if recorded == nil {
		recorded = target // nothing was ever installed, so nothing was ever acknowledged
	}
	w.targets[c] = target
	w.openers[c] = slices.Concat(recorded, target)
	if !recorded.Equal(target) {
		w.c.add(&w.c.EnsembleChanges)
	}
	op, err := protocol.NewOpener(protocol.OpenerConfig{
		Log: rec.ID, Epoch: rec.Epoch, Recorded: recorded, Qw: rec.Options.Qw, History: rec.History, Trimmed: rec.TrimBefore - 1, Lost: rec.LostRanges(), Loss: loss,
		Target: target, TargetQw: rec.Options.Qw, BlockBytes: w.p.blockBytes, FetchBytes: 16 << 10, TailBytes: []int{0, 256, 16 << 10}[rec.Epoch%3], Deadline: deadline, Rules: w.mutant.Rules,
		Settings: protocol.Settings{Name: l.name, Window: uint32(rec.Options.Window), SegmentBytes: uint64(rec.Options.SegmentBytes),
			FlushAgeMS: uint32(rec.Options.FlushAge.Milliseconds())},
	})
	if err != nil {
		w.fail("open", "%s: %v", c.name, err)
		return nil, err
	}
	op.Start(w.now)
	var sends []protocol.OpenSend
	for {
		if op.Err() == nil {
			if s := op.Stage(); s != *stage && s == w.armed && c.again != nil && !w.healed {
				w.armed = protocol.StageFence
				w.c.add(&w.c.OpenersKilled)
				*stage = s
				c.die()
			} else if s != *stage && s == w.wipeAt && !w.healed {
				w.wipeAt = protocol.StageFence
				w.wipeMember(w.openers[c])
			}
			*stage = op.Stage() // where it was, if it fails
		}
		sends = op.Sends(sends[:0])
		for _, s := range sends {
			c.send(s.To, s.Msg)
			c.dieRepairing(op.Stage())
		}
		if loss != nil {
			c.lookForLoss(op, l, rec.Epoch, deadline)
		}
		if in := op.PendingInstall(); in != nil {
			lost := in.Lost
			if w.mutant.ForgetLoss {
				lost = nil
			}
			_, err := c.cat.Install(c.p.context(deadline), l.name, meta.Install{Owner: rec.Owner(), Ensemble: id, Start: in.Start, Lost: lost})
			if err == nil && loss != nil {
				c.gaveUp(l, rec.Epoch, loss, recorded, rec.History, in.Lost)
			}
			if c.raced.takeLost() || w.mutant.InstallUnchecked && lostTheRace(err) {
				err = nil
				if !w.mutant.InstallUnchecked {
					err = meta.ErrFenced
				}
			}
			op.Installed(w.now, err)
			continue
		}
		if op.Result() != nil {
			return op.Result(), nil
		}
		if op.Err() != nil {
			return nil, op.Err()
		}
		c.idle(op.NextTick())
		for m := c.take(); m != nil; m = c.take() {
			if c.aside != nil {
				c.aside(m)
			}
			op.Handle(w.now, m)
		}
		op.Tick(w.now)
	}
}

// die ends the process from within, and starts another one a while later.
func (c *client) die() {
	w, again := c.w, c.again
	w.after(between(c.rng, millisecond, second), func() {
		if !w.healed {
			again()
		}
	})
	c.p.kill()
}

// dieRepairing ends an opener in the middle of its repair, when the nemesis has asked for it: some nodes have some of what it sent. The
// node that the nemesis has named is out of everybody's reach for a while then.
func (c *client) dieRepairing(stage protocol.Stage) {
	w := c.w
	if w.halfWay == 0 || stage != protocol.StageRepair || c.again == nil || w.healed {
		return
	}
	if w.halfWay--; w.halfWay > 0 {
		return
	}
	w.c.add(&w.c.RepairsCutShort)
	w.net.dark[w.source.ep] = w.now + between(w.chance, second, 4*second)
	c.die()
}

// fenced checks what a client was told: that it lost the log. Then the record shows somebody else's token (P1, P10); one who
// believes the refusal of his own write, or a single refusal, gives up a log that is his.
func (c *client) fenced(l *simLog, mine meta.Owner) {
	rec, err := c.w.newBareCatalog().Load(context.Background(), l.name)
	if err == nil && rec.Record.ID == l.id && rec.Record.OpenNonce == mine.Nonce {
		c.w.fail("P1", "log %s: %s was told that it lost the log, and its token for epoch %d is on record", l.name, c.name, rec.Record.Epoch)
	}
}

// contradicts reports whether an open failed for a reason that is none: neither were nodes or the store out of reach, nor has somebody
// else the log. Then what it found and what is on record exclude each other.
func contradicts(err error) bool {
	if err == nil || lostTheRace(err) {
		return false
	}
	var outside *meta.Error
	return !errors.Is(err, protocol.ErrUnavailable) && !errors.Is(err, protocol.ErrDeleted) && !errors.As(err, &outside) && !errors.Is(err, errFewNodes) && !errors.Is(err, errNameTaken)
}

// errFewNodes: fewer nodes are registered, as far as a listing shows, than the log needs.
var errFewNodes = errors.New("not enough nodes registered")

// errNameTaken: the log was deleted, and another one has its name.
var errNameTaken = errors.New("the log was deleted, its name was taken again")

// lostTheRace reports whether an error means that somebody else has the log now.
func lostTheRace(err error) bool {
	return errors.Is(err, meta.ErrFenced) || errors.Is(err, protocol.ErrFenced)
}
