package meta

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// Log is a log's record with its version.
type Log = Versioned[LogRecord]

const (
	logDir     = "logs/"
	idDir      = "ids/"
	deletedDir = "deleted/"
	jsonSuffix = ".json"
)

func (c *Catalog) logKey(name string) string { return c.cfg.Root + logDir + name + jsonSuffix }

func logWhat(op, name string) what { return what{op: op, object: fmt.Sprintf("log %q", name)} }

// Create makes a log and returns its record. Errors: ErrExists if a live log has the name; ErrInvalid; ErrUnavailable;
// ErrUnknown: the log may have been made, Load says so.
func (c *Catalog) Create(ctx context.Context, name string, o Options) (Log, error) {
	w := logWhat("create", name)
	if err := errors.Join(CheckName(name), o.Check()); err != nil {
		return Log{}, w.err(ErrInvalid, err)
	}
	// A name that is taken is told without spending an id.
	cur, ok, err := load[LogRecord](ctx, c, w, c.logKey(name))
	if err != nil {
		return Log{}, err
	}
	if ok && cur.Record.State == Live {
		return Log{}, w.err(ErrExists, nil)
	}
	// The id is claimed before a record names it; reversed, two creators could draw one id, and records of the one log
	// would be taken for the other's.
	id, err := c.claimID(ctx, w, name)
	if err != nil {
		return Log{}, err
	}
	first := &cur
	if !ok {
		first = nil // swap would take a given version for an existing one
	}
	now := c.cfg.Now().UTC()
	return swap(ctx, c, w, c.logKey(name), first, func(old *LogRecord) (*LogRecord, error) {
		switch {
		case old == nil:
		case old.ID == id:
			return nil, nil // an earlier try of mine; only this call knows the id
		case old.State == Live:
			return nil, w.err(ErrExists, nil)
		default:
			// The tombstone is the only trace that its id is deleted. The trace is copied before it is overwritten; reversed, a
			// crash leaves data in the archive of which nobody can tell whether it may be removed.
			if err := c.markDeleted(ctx, w, old); err != nil {
				return nil, err
			}
		}
		return &LogRecord{Name: name, ID: id, State: Live, Options: o, TrimBefore: 1, Created: now}, nil
	})
}

// createOnce creates an immutable object. It returns nil also if the object exists already: the caller has a name that
// only equal contents can have, or reads what is there.
func (c *Catalog) createOnce(ctx context.Context, w what, key string, v any) (created bool, err error) {
	body, err := json.Marshal(v)
	if err != nil {
		return false, w.err(ErrInvalid, err)
	}
	for try := 1; ; try++ {
		c.creates.Add(1)
		_, err := c.store.Put(ctx, key, body, nil, objstore.IfAbsent())
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, objstore.ErrPrecondition):
			return false, nil
		case !objstore.Retryable(err) && !errors.Is(err, objstore.ErrUnknown), ctx.Err() != nil, try == maxAttempts:
			return false, w.err(ErrUnavailable, err)
		}
		if c.pause(ctx, try) != nil {
			return false, w.err(ErrUnavailable, err)
		}
	}
}

// claimJSON is the body of an id's claim and of a deletion mark. The nonce makes claims of one name distinct.
type claimJSON struct {
	Format int       `json:"format"`
	ID     hex64     `json:"id"`
	Name   string    `json:"name"`
	Nonce  string    `json:"nonce"`
	At     time.Time `json:"at"`
}

func (*claimJSON) limit() int64 { return maxSmallBytes }
func (j *claimJSON) decode(body []byte) error {
	if err := strict(body, j, &j.Format, firstVersion); err != nil {
		return err
	}
	return CheckName(j.Name)
}
func (*claimJSON) encode() ([]byte, error)            { return nil, fmt.Errorf("a claim is never replaced") }
func (*claimJSON) follows(*claimJSON) error           { return fmt.Errorf("a claim is never replaced") }
func (*claimJSON) stamp(string, *Catalog, *claimJSON) {}

func (c *Catalog) idKey(id protocol.LogID) string {
	return c.cfg.Root + idDir + id.String() + jsonSuffix
}
func (c *Catalog) deletedKey(id protocol.LogID) string {
	return c.cfg.Root + deletedDir + id.String() + jsonSuffix
}

// claimID draws an id that no log ever had. A claim whose outcome is unclear is left behind and another id is drawn:
// a claim without a log is a small object and does no harm; a claim taken for mine on a guess would.
func (c *Catalog) claimID(ctx context.Context, w what, name string) (protocol.LogID, error) {
	for range maxAttempts {
		id := protocol.LogID(c.random())
		if id == 0 {
			continue
		}
		created, err := c.createOnce(ctx, w, c.idKey(id), claimJSON{firstVersion, hex64(id), name, c.Nonce(), c.cfg.Now().UTC()})
		if err != nil {
			return 0, err
		}
		if created {
			return id, nil
		}
	}
	return 0, w.err(ErrUnavailable, fmt.Errorf("no free log id found: is the random source broken?"))
}

func (c *Catalog) markDeleted(ctx context.Context, w what, old *LogRecord) error {
	_, err := c.createOnce(ctx, w, c.deletedKey(old.ID), claimJSON{firstVersion, hex64(old.ID), old.Name, c.Nonce(), c.cfg.Now().UTC()})
	return err
}

// Load reads the record of a live log. Errors: ErrNotFound (also for a deleted log), ErrCorrupt, ErrNewer, ErrUnavailable.
func (c *Catalog) Load(ctx context.Context, name string) (Log, error) {
	w := logWhat("load", name)
	if err := CheckName(name); err != nil {
		return Log{}, w.err(ErrInvalid, err)
	}
	v, ok, err := load[LogRecord](ctx, c, w, c.logKey(name))
	if err != nil {
		return Log{}, err
	}
	if !ok || v.Record.State == Deleted {
		return Log{}, w.err(ErrNotFound, nil)
	}
	if v.Record.Name != name {
		return Log{}, w.err(ErrCorrupt, fmt.Errorf("object %s holds the record of log %q", c.logKey(name), v.Record.Name))
	}
	return v, nil
}

// LoadByID reads the record of the log with an id, from two objects. Errors: ErrDeleted if that log was deleted: then nobody
// writes to it again and its data may be removed. ErrNotFound if no log has the id now, which says nothing about later: its creator may be on
// his way. Others as Load.
func (c *Catalog) LoadByID(ctx context.Context, id protocol.LogID) (Log, error) {
	w := what{op: "load", object: "log id " + id.String()}
	claim, ok, err := load[claimJSON](ctx, c, w, c.idKey(id))
	if err != nil {
		return Log{}, err
	}
	if !ok {
		return Log{}, w.err(ErrNotFound, nil)
	}
	v, ok, err := load[LogRecord](ctx, c, w, c.logKey(claim.Record.Name))
	if err != nil {
		return Log{}, err
	}
	if ok && v.Record.ID == id {
		if v.Record.State == Deleted {
			return v, w.err(ErrDeleted, nil)
		}
		return v, nil
	}
	_, marked, err := load[claimJSON](ctx, c, w, c.deletedKey(id))
	switch {
	case err != nil:
		return Log{}, err
	case marked:
		return Log{}, w.err(ErrDeleted, nil)
	}
	return Log{}, w.err(ErrNotFound, nil)
}

// Logs iterates over the live logs whose name starts with prefix, in the order of their objects' keys. It reads each record. A record
// that cannot be read (ErrCorrupt, ErrNewer) is yielded as an error, with only Record.Name set, and the iteration
// goes on; it ends after ErrUnavailable.
func (c *Catalog) Logs(ctx context.Context, prefix string) iter.Seq2[Log, error] {
	return func(yield func(Log, error) bool) {
		for name, err := range c.names(ctx, what{op: "list", object: "logs"}, logDir, prefix) {
			if err != nil {
				yield(Log{}, err)
				return
			}
			v, err := c.Load(ctx, name)
			if errors.Is(err, ErrNotFound) {
				continue
			}
			v.Record.Name = name
			if !yield(v, err) || errors.Is(err, ErrUnavailable) {
				return
			}
		}
	}
}

// names iterates over the names of the records in a directory.
func (c *Catalog) names(ctx context.Context, w what, dir, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		base := c.cfg.Root + dir
		after := ""
		for try := 1; ; {
			c.lists.Add(1)
			page, err := c.store.List(ctx, base+prefix, after, 0)
			if err != nil {
				if objstore.Retryable(err) && ctx.Err() == nil && try < maxAttempts && c.pause(ctx, try) == nil {
					try++
					continue
				}
				yield("", w.err(ErrUnavailable, err))
				return
			}
			try = 1
			for _, o := range page.Objects {
				after = o.Key
				name, isRecord := strings.CutSuffix(strings.TrimPrefix(o.Key, base), jsonSuffix)
				if !isRecord || CheckName(name) != nil || !strings.HasPrefix(name, prefix) {
					continue // not ours, or the prefix ran into the suffix
				}
				if !yield(name, nil) {
					return
				}
			}
			if !page.More || len(page.Objects) == 0 {
				return
			}
		}
	}
}

// Delete turns the log's record into a tombstone. The owner's ID guards against deleting a log that was made under the name meanwhile; zero
// means whatever log has it now. If its epoch is not zero, the owner must still stand: one who has fenced the log's nodes and then writes a
// tombstone over the reign of a later opener would leave a writer whose appends go on being acknowledged. Errors: ErrNotFound if there
// is no such log, also because it is deleted already; ErrFenced; ErrUnavailable; ErrUnknown.
func (c *Catalog) Delete(ctx context.Context, name string, o Owner) error {
	w := logWhat("delete", name)
	if err := CheckName(name); err != nil {
		return w.err(ErrInvalid, err)
	}
	tried := protocol.LogID(0) // the log that an earlier try of this call may have deleted
	_, err := swap(ctx, c, w, c.logKey(name), nil, func(old *LogRecord) (*LogRecord, error) {
		switch {
		case tried != 0 && (old == nil || old.ID != tried || old.State == Deleted):
			return nil, nil
		case old == nil || old.State == Deleted || (o.ID != 0 && old.ID != o.ID):
			return nil, w.err(ErrNotFound, nil)
		case o.Epoch != 0 && old.Owner() != o:
			return nil, fenced(w, old)
		}
		tried = old.ID
		next := old.clone()
		next.State = Deleted
		return next, nil
	})
	return err
}

// Raise is the argument of RaiseEpoch.
type Raise struct {
	// Nonce of this open, from Catalog.Nonce. A call that is repeated after ErrUnknown uses the same.
	Nonce string
	// Opener says who opens, for people: host, process. At most 256 bytes.
	Opener string
	// From, if not zero, is the owner that must still stand: a writer that re-opens its own log (P10, P11) uses it, and gets
	// ErrFenced if somebody else has opened since.
	From Owner
	// Known, if not nil, is a version of the record that was read before; it saves a request if it is still current.
	Known *Log
}

// RaiseEpoch makes the caller the owner of the log's next epoch (P1). One compare-and-swap if nobody interferes. The record that it returns
// holds the recorded ensemble and history that recovery starts from; its Owner is the caller. Whoever loses a race for an epoch takes a later one.
// Errors: ErrNotFound, ErrFenced (only with From), ErrInvalid, ErrCorrupt, ErrNewer, ErrUnavailable, ErrUnknown.
func (c *Catalog) RaiseEpoch(ctx context.Context, name string, r Raise) (Log, error) {
	w := logWhat("raise epoch of", name)
	if err := CheckName(name); err != nil {
		return Log{}, w.err(ErrInvalid, err)
	}
	if r.Nonce == "" {
		return Log{}, w.err(ErrInvalid, fmt.Errorf("nonce is empty"))
	}
	w.replaces = true
	return swap(ctx, c, w, c.logKey(name), r.Known, func(old *LogRecord) (*LogRecord, error) {
		switch {
		case old == nil || old.State == Deleted:
			return nil, w.err(ErrNotFound, nil)
		case old.OpenNonce == r.Nonce:
			return nil, nil // an earlier try of mine was applied (R13, X3)
		case r.From != Owner{} && old.Owner() != r.From:
			return nil, fenced(w, old)
		case old.Epoch == ^protocol.Epoch(0):
			return nil, w.err(ErrInvalid, fmt.Errorf("epochs are used up"))
		}
		next := old.clone()
		next.Epoch++
		next.OpenNonce, next.Opener = r.Nonce, r.Opener
		return next, nil
	})
}

func fenced(w what, r *LogRecord) error {
	e := w.err(ErrFenced, nil)
	e.Epoch = r.Epoch
	if r.Opener != "" {
		e.Err = fmt.Errorf("opened by %s", r.Opener)
	}
	return e
}

// Install is the argument of Catalog.Install.
type Install struct {
	Owner    Owner        // from RaiseEpoch
	Ensemble string       // id, from PutEnsemble
	Start    protocol.LSN // R: the first LSN of the owner's epoch
	// Lost is what the open gave up (P5): of the owner's epoch, below Start. It joins the record's lost ranges.
	Lost protocol.LostRanges
	// N, Qw and Zones of the new ensemble; zero N leaves all three as they are (P11).
	N, Qw, Zones int
	// Known, if not nil, is a version of the record that was read or written before.
	Known *Log
}

// Install records that the owner's repair is complete: ensemble, history entry and what was lost in one compare-and-swap (P7). Only when it has returned nil may
// Activate go out; earlier, a crash leaves nodes that void records by a history that nobody can look up (trace H1).
// Errors: ErrFenced if the owner does not stand any more; ErrNotFound if the log is deleted; ErrInvalid; ErrCorrupt; ErrUnavailable;
// ErrUnknown.
func (c *Catalog) Install(ctx context.Context, name string, in Install) (Log, error) {
	w := logWhat("install ensemble of", name)
	if err := CheckName(name); err != nil {
		return Log{}, w.err(ErrInvalid, err)
	}
	if in.Owner.Epoch == 0 || in.Owner.Nonce == "" || !isEnsembleID(in.Ensemble) {
		return Log{}, w.err(ErrInvalid, fmt.Errorf("owner %+v, ensemble %q", in.Owner, in.Ensemble))
	}
	return swap(ctx, c, w, c.logKey(name), in.Known, func(old *LogRecord) (*LogRecord, error) {
		switch {
		case old == nil || old.State == Deleted || old.ID != in.Owner.ID:
			return nil, w.err(ErrNotFound, nil)
		case old.Owner() != in.Owner:
			return nil, fenced(w, old)
		}
		if last := old.History.Last(); last.Epoch == in.Owner.Epoch {
			if last.Start == in.Start && old.Ensemble == in.Ensemble {
				return nil, nil // an earlier try of mine
			}
			return nil, w.err(ErrInvalid, fmt.Errorf("epoch %d was installed with start %d and ensemble %s already, not start %d and %s",
				last.Epoch, last.Start, old.Ensemble, in.Start, in.Ensemble))
		}
		next := old.clone()
		var err error
		if next.History, err = old.History.Add(in.Owner.Epoch, in.Start); err != nil {
			return nil, w.err(ErrInvalid, err)
		}
		if next.Lost, err = old.withLost(in.Lost, c.cfg.Now().UTC()); err != nil {
			return nil, w.err(ErrInvalid, err)
		}
		next.Ensemble = in.Ensemble
		if in.N != 0 {
			next.Options.N, next.Options.Qw, next.Options.Zones = in.N, in.Qw, in.Zones
		}
		return next, nil
	})
}

// Trim moves the trim point up to before: LSNs below it are trimmed. It never moves it down; a lower argument changes nothing. The caller sees
// to it that before is at most one above the committed tail. id as in Delete. Trim first, then delete objects (A4): reversed, a reader meets
// a hole that nobody explains, ErrDataLoss. Errors: ErrNotFound, ErrInvalid, ErrCorrupt, ErrUnavailable, ErrUnknown.
func (c *Catalog) Trim(ctx context.Context, name string, id protocol.LogID, before protocol.LSN) (Log, error) {
	return c.change(ctx, logWhat("trim", name), name, id, func(next *LogRecord) bool {
		if before <= next.TrimBefore {
			return false
		}
		next.TrimBefore = before
		if len(next.History) > pruneHistoryAbove {
			next.History = prunedHistory(next.History, before)
		}
		next.Lost = prunedLost(next.Lost, before)
		return true
	})
}

// SetRetention replaces the log's retention and flush age. id as in Delete. Errors as Trim.
func (c *Catalog) SetRetention(ctx context.Context, name string, id protocol.LogID, r Retention, flushAge time.Duration) (Log, error) {
	return c.change(ctx, logWhat("set retention of", name), name, id, func(next *LogRecord) bool {
		if next.Options.Retention == r && next.Options.FlushAge == flushAge {
			return false
		}
		next.Options.Retention, next.Options.FlushAge = r, flushAge
		return true
	})
}

// change makes an idempotent change that needs no ownership.
func (c *Catalog) change(ctx context.Context, w what, name string, id protocol.LogID, apply func(next *LogRecord) bool) (Log, error) {
	if err := CheckName(name); err != nil {
		return Log{}, w.err(ErrInvalid, err)
	}
	return swap(ctx, c, w, c.logKey(name), nil, func(old *LogRecord) (*LogRecord, error) {
		if old == nil || old.State == Deleted || (id != 0 && old.ID != id) {
			return nil, w.err(ErrNotFound, nil)
		}
		next := old.clone()
		if !apply(next) {
			return nil, nil
		}
		return next, nil
	})
}
