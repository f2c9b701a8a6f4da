package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/collect"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// Trims, retention, deletion of logs, and the collection of what they leave in the archive (A4, A5).

// The rounds of a simulated node are as far apart as its parameters say; a run has far fewer of them than a day.
const (
	thoroughRounds = 5
	orphanRounds   = 8
	// collectWithin is how long what is trimmed or deleted may stay in the archive of a healed world.
	collectWithin = 60 * second
)

// trimmer moves the trim point of a log. Below what is archived, that changes the record under the openers' feet (X4); below what is
// committed, it also lets nodes forget what no object will ever hold.
func (w *world) trimmer(l *simLog) {
	w.newClient("trimmer", func(c *client) {
		for !l.deleted {
			c.p.sleep(between(c.rng, 50*millisecond, 500*millisecond))
			before := w.archivedThrough(l) + 1
			if w.p.trimAll && c.rng.IntN(2) == 0 {
				before = max(before, w.check.log(l.id).acked+1)
			}
			if c.rng.IntN(2) == 0 {
				before -= protocol.LSN(c.rng.Int64N(int64(min(before, 20))))
			} else {
				before = protocol.LSN(1 + c.rng.Int64N(int64(before)))
			}
			w.check.trimming(l.id, before)
			rec, err := c.cat.Trim(c.context(3*second), l.name, l.id, before)
			if err == nil {
				w.c.add(&w.c.Trims)
				w.tracef("%s: log %s trimmed before %d", c.name, l.name, rec.Record.TrimBefore)
			}
		}
	})
}

// deleter deletes a log once, as a client does, and makes another of its name.
func (w *world) deleter(l *simLog) {
	w.newClient("deleter", func(c *client) {
		c.p.sleep(between(c.rng, w.p.chaos/4, w.p.chaos))
		for !w.healed {
			if c.delete(l) {
				break
			}
			c.p.sleep(between(c.rng, 10*millisecond, 500*millisecond))
		}
		unknown := false // whether an earlier try may have made the log: each draws an id of its own
		for !w.healed {
			rec, err := c.cat.Create(c.context(3*second), l.name, w.logOptions())
			if errors.Is(err, meta.ErrExists) {
				if rec, err = c.cat.Load(c.context(3*second), l.name); err == nil && (!unknown || rec.Record.ID == l.id) {
					w.fail("A5", "log %s (%s) is deleted, and its name is taken by log %s, which nobody made", l.name, l.id, rec.Record.ID)
				}
			}
			unknown = unknown || errors.Is(err, meta.ErrUnknown)
			if err == nil {
				w.c.add(&w.c.LogsDeleted)
				w.inhabit(w.addLog(rec.Record.ID, l.name))
				return
			}
			c.p.sleep(between(c.rng, 10*millisecond, 500*millisecond))
		}
	})
}

// delete takes the token, fences a read quorum, writes the tombstone, and only then lets the nodes drop their copies.
func (c *client) delete(l *simLog) bool {
	w := c.w
	raised, err := c.cat.RaiseEpoch(c.context(3*second), l.name, meta.Raise{Nonce: c.cat.Nonce(), Opener: c.name})
	if errors.Is(err, meta.ErrNotFound) {
		// Of an earlier try, of whose outcome it was not told.
		l.deleted = true
		w.check.deleted(l.id)
		return true
	}
	if err != nil {
		return false
	}
	rec := &raised.Record
	var e protocol.Ensemble
	if rec.Ensemble != "" {
		if e, err = c.cat.LoadEnsemble(c.context(3*second), rec.Ensemble); err != nil || !c.fence(rec, e) {
			return false
		}
	}
	if c.rng.IntN(2) == 0 {
		c.p.sleep(between(c.rng, millisecond, 500*millisecond)) // a client may be stopped anywhere
	}
	// The fence comes before the tombstone, and that before Drop. Reversed, an append could be acknowledged after the log was deleted, and
	// a crash in between would leave a log whose copies are gone.
	owner := rec.Owner()
	if w.mutant.DeleteUnchecked {
		owner = meta.Owner{ID: l.id}
	}
	if err := c.cat.Delete(c.context(3*second), l.name, owner); err != nil && !errors.Is(err, meta.ErrNotFound) {
		return false
	}
	w.tracef("%s: log %s (%s) is deleted", c.name, l.name, l.id)
	l.deleted = true
	w.check.deleted(l.id)
	for _, m := range e {
		c.send(m.Node, &protocol.Drop{Log: l.id, Epoch: rec.Epoch, Incarnation: m.Incarnation})
	}
	return true
}

// fence waits until a read quorum of the recorded nodes has promised.
func (c *client) fence(rec *meta.LogRecord, e protocol.Ensemble) bool {
	promised := map[protocol.Incarnation]bool{}
	for end := c.w.now + 2*second; c.w.now < end; {
		for _, m := range e {
			if !promised[m.Incarnation] {
				c.send(m.Node, &protocol.Open{Log: rec.ID, Epoch: rec.Epoch, Req: uint64(rec.Epoch), Name: rec.Name})
			}
		}
		for round := c.w.now + 50*millisecond; c.w.now < round; {
			c.idle(round)
			for m := c.take(); m != nil; m = c.take() {
				r, ok := m.(*protocol.OpenReply)
				if !ok || r.Epoch != rec.Epoch || e.Index(r.Incarnation) < 0 {
					continue
				}
				if r.Status == protocol.StatusFenced {
					return false
				}
				if r.Status == protocol.StatusOK || r.Status == protocol.StatusDeleted {
					promised[r.Incarnation] = true
				}
			}
			if len(promised) >= rec.Options.Qr() {
				return true
			}
		}
	}
	return false
}

// collect is the goroutine of a node that collects.
func (n *node) collect(p *proc, life int) {
	w := n.w
	cat, arch := w.newCatalog(), w.newArchive(false, n.rng)
	col := collect.New(collect.Config{Incarnation: n.inc, Catalog: cat, Archive: arch,
		Clock: n.storeTime,
		Bound: func(context.Context) (context.Context, context.CancelFunc) {
			return p.context(w.now + 20*second), func() {}
		},
		Forget:   func(l collect.Known) { n.post(func() { n.core.Forget(l.ID, l.Promised) }) },
		Deleted:  func(l collect.Known) { n.post(func() { n.core.Deleted(l.ID) }) },
		Failed:   func(id protocol.LogID, err error) { w.tracef("%s: log %s is not collected: %v", n.id, id, err) },
		Thorough: thoroughRounds, Orphans: orphanRounds, Rules: w.mutant.Collect,
	})
	var was collect.Counts
	for round := uint64(w.now / w.p.collectEvery); n.life == life; {
		p.wait(max(protocol.Time(round+1)*w.p.collectEvery, w.now+1))
		round = max(round+1, uint64(w.now/w.p.collectEvery))
		if w.now < n.noStore || n.life != life {
			continue
		}
		var known []collect.Known
		for _, l := range n.core.Logs() {
			known = append(known, collect.Known{ID: l.Log, Name: l.Settings.Name, Peers: l.Settings.Peers, Promised: l.Promised, Deleted: l.Deleted,
				Blank: l.Activated == 0 && l.Highest == 0 && !l.Deleted})
		}
		if err := col.Round(p.context(w.now+60*second), round, known); err != nil {
			w.tracef("%s: round %d of collection ended early: %v", n.id, round, err)
		}
		if w.p.packs > 0 {
			n.merged(col.MergePacks(p.context(w.now+60*second), 2*time.Duration(staleFor)))
		}
		now := col.Counts()
		w.c.Expired += int(now.Expired - was.Expired)
		w.c.Collected += int(now.Deleted - was.Deleted)
		was = now
	}
}

// storeTime asks the store for its time, as internal/node does.
func (n *node) storeTime(ctx context.Context) (time.Time, error) {
	key := "sim/clock/" + string(n.id)
	_, putErr := n.w.store.Put(ctx, key, []byte("now"), nil, objstore.Condition{})
	info, err := n.w.store.Head(ctx, key)
	if err != nil {
		return time.Time{}, errors.Join(err, putErr)
	}
	return info.Modified, nil
}

// The judges of A4 and A5 see every write that the store applies, at the instant at which it does: nothing is deleted that is not
// trimmed or of a deleted log, and nothing is trimmed but what somebody asked for or what the retention says.

const archPrefix, logPrefix = "sim/arch/", "sim/logs/"

// stored is called behind every write that was applied.
func (w *world) stored(key string, created bool) {
	if created && strings.HasPrefix(key, archPrefix) {
		w.broughtBack(key)
	}
	name, ok := strings.CutPrefix(key, logPrefix)
	if !ok {
		return
	}
	rec, err := w.newBareCatalog().Load(context.Background(), strings.TrimSuffix(name, ".json"))
	if err != nil {
		return // a tombstone
	}
	r := &rec.Record
	h := w.check.log(r.ID)
	h.recorded(r.Epoch, r.LostRanges())
	if r.TrimBefore <= max(h.trimAsked, h.expired, 1) {
		return
	}
	if why := w.mayExpire(r, max(h.trimAsked, h.expired, 1)); why != "" {
		w.fail("A5", "log %s is trimmed before LSN %d by its retention (%d bytes, %v): %s", r.Name, r.TrimBefore, r.Options.Retention.Bytes, r.Options.Retention.Age, why)
	}
	h.expired = r.TrimBefore
}

// mayExpire says why a retention must not move the trim point from before to where the record has it. Where there are packs, objects are
// neither weighed nor asked for their age: what goes must be archived, that is all.
func (w *world) mayExpire(r *meta.LogRecord, before protocol.LSN) string {
	keep := r.Options.Retention
	if keep == (meta.Retention{}) {
		return "there is none"
	}
	kept := int64(0)
	var proof []protocol.ArchivedObject
	for o, err := range w.objects(r.ID) {
		if err != nil {
			return err.Error()
		}
		k := o.key
		if k.Kind != archive.Committed {
			continue
		}
		if k.Last >= r.TrimBefore {
			kept += o.size
		}
		// A younger copy of what an old one has may come at any time, also after somebody has looked what there is.
		if keep.Age == 0 || w.wall().Sub(o.modified) >= keep.Age {
			proof = append(proof, protocol.ArchivedObject{First: k.First, Last: k.Last, CLSN: k.Last})
		}
	}
	if w.p.packs > 0 {
		all, err := w.newArchive(true, w.ids).Look(context.Background(), r.ID, before-1)
		if err != nil {
			return err.Error()
		}
		kept, proof = keep.Bytes, all
	}
	if proven := provenThrough(before-1, proof, w.check.log(r.ID).lost); proven < r.TrimBefore-1 {
		return fmt.Sprintf("only what is up to LSN %d was archived for so long", proven)
	}
	if keep.Bytes > 0 && kept < keep.Bytes {
		return fmt.Sprintf("%d bytes are kept", kept)
	}
	return ""
}

// removed is called behind every delete that was applied.
func (w *world) removed(key string) {
	if !strings.HasPrefix(key, archPrefix) {
		return
	}
	k, err := w.newArchive(true, w.ids).ParseKey(key)
	if err != nil {
		w.fail("A4", "object %s is deleted, whatever it was: %v", key, err)
		return
	}
	w.gone[key] = true
	rec, err := w.newBareCatalog().LoadByID(context.Background(), k.Log)
	switch {
	case errors.Is(err, meta.ErrDeleted):
	case err != nil:
		w.fail("A4", "object %s is deleted, and its log is %v", key, err)
	case k.Last >= rec.Record.TrimBefore:
		w.fail("A4", "object %s is deleted, and its log is trimmed before LSN %d", key, rec.Record.TrimBefore)
	}
}

// broughtBack counts objects that a stalled creator makes again after their deletion.
func (w *world) broughtBack(key string) {
	if w.gone[key] {
		w.c.add(&w.c.BroughtBack)
		w.tracef("object %s is there again", key)
	}
}

// uncollected says what is in the archive and should not be: below a trim point, or of a deleted log.
func (w *world) uncollected() string {
	for _, l := range w.logs {
		below := protocol.MaxLSN + 1
		if !l.deleted {
			rec, err := w.newBareCatalog().Load(context.Background(), l.name)
			if err != nil {
				return err.Error()
			}
			below = rec.Record.TrimBefore
		}
		for o, err := range w.objects(l.id) {
			if err != nil {
				return err.Error()
			}
			if o.key.Last < below {
				return fmt.Sprintf("log %s (%s): LSNs [%d,%d] are archived, and below the trim point %d", l.name, l.id, o.key.First, o.key.Last, below)
			}
		}
	}
	return ""
}
