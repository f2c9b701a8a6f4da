package meta

import (
	"fmt"
	"slices"

	"github.com/btrlog/btrlog/internal/protocol"
)

// The predicates of a log's record: what every version must be, and what may follow what. They run before each write, in
// swap, and validate also after each read. A violation before a write is a bug of this program; one after a read is damage.

func (r *LogRecord) validate() error {
	if err := CheckName(r.Name); err != nil {
		return err
	}
	if err := r.Options.Check(); err != nil {
		return err
	}
	if err := r.History.Validate(); err != nil {
		return err
	}
	if err := r.LostRanges().Validate(); err != nil {
		return err
	}
	last := r.History.Last()
	switch {
	case r.ID == 0:
		return fmt.Errorf("log id is zero")
	case r.State != Live && r.State != Deleted:
		return fmt.Errorf("state is %q", r.State)
	case (r.Epoch == 0) != (r.OpenNonce == ""):
		return fmt.Errorf("epoch %d with open nonce %q", r.Epoch, r.OpenNonce)
	case len(r.OpenNonce) > 128 || len(r.Opener) > 256:
		return fmt.Errorf("open nonce of %d or opener of %d bytes; 128 and 256 are allowed", len(r.OpenNonce), len(r.Opener))
	case last.Epoch > r.Epoch:
		return fmt.Errorf("history ends with epoch %d, above the record's epoch %d", last.Epoch, r.Epoch)
	case (len(r.History) == 0) != (r.Ensemble == ""):
		return fmt.Errorf("ensemble %q with a history of %d entries: they are written together", r.Ensemble, len(r.History))
	case len(r.History) > protocol.MaxHistory:
		return fmt.Errorf("history has %d entries, the limit is %d: trim the log", len(r.History), protocol.MaxHistory)
	case len(r.Lost) > 0 && r.Lost[len(r.Lost)-1].To >= last.Start:
		return fmt.Errorf("LSN %d is lost, and the epoch that was opened last began at %d", r.Lost[len(r.Lost)-1].To, last.Start)
	case slices.ContainsFunc(r.Lost, func(l LostRange) bool { return l.Epoch > last.Epoch }):
		return fmt.Errorf("a loss was accepted at an epoch above %d, which was opened last", last.Epoch)
	case r.TrimBefore < 1 || r.TrimBefore > protocol.MaxLSN:
		return fmt.Errorf("trim point is %d", r.TrimBefore)
	case r.Revision < 1 || r.Write == "":
		return fmt.Errorf("revision %d with write nonce %q", r.Revision, r.Write)
	}
	return nil
}

func (r *LogRecord) follows(old *LogRecord) error {
	if err := r.validate(); err != nil {
		return err
	}
	if old == nil {
		return r.isNew()
	}
	if r.Name != old.Name {
		return fmt.Errorf("name changes from %q to %q", old.Name, r.Name)
	}
	if r.Revision != old.Revision+1 || r.Write == old.Write {
		return fmt.Errorf("revision %d with write nonce %q after revision %d with %q", r.Revision, r.Write, old.Revision, old.Write)
	}
	if old.State == Deleted {
		if r.ID == old.ID {
			return fmt.Errorf("log id %v would return from deletion", r.ID)
		}
		return r.isNew()
	}
	if r.ID != old.ID {
		return fmt.Errorf("log id changes from %v to %v", old.ID, r.ID)
	}
	if !r.Created.Equal(old.Created) {
		return fmt.Errorf("time of creation changes")
	}
	if r.State == Deleted {
		return r.onlyStateChanges(old)
	}
	if err := r.followsEpoch(old); err != nil {
		return err
	}
	if err := r.followsLost(old); err != nil {
		return err
	}
	if r.TrimBefore < old.TrimBefore {
		return fmt.Errorf("trim point falls from %d to %d", old.TrimBefore, r.TrimBefore)
	}
	return nil
}

func (r *LogRecord) isNew() error {
	if r.State != Live || r.Epoch != 0 || r.Ensemble != "" || len(r.History) != 0 || r.TrimBefore != 1 || len(r.Lost) != 0 {
		return fmt.Errorf("a new log has a state %q, epoch %d, ensemble %q, history of %d entries, trim point %d",
			r.State, r.Epoch, r.Ensemble, len(r.History), r.TrimBefore)
	}
	return nil
}

func (r *LogRecord) onlyStateChanges(old *LogRecord) error {
	if r.Epoch != old.Epoch || r.OpenNonce != old.OpenNonce || r.Ensemble != old.Ensemble || !slices.Equal(r.History, old.History) ||
		r.TrimBefore != old.TrimBefore || !sameLost(r.Lost, old.Lost) || r.Options != old.Options {
		return fmt.Errorf("a deletion changes more than the state")
	}
	return nil
}

// followsEpoch checks epoch, history, ensemble and options together, since P7 ties them.
func (r *LogRecord) followsEpoch(old *LogRecord) error {
	switch {
	case r.Epoch < old.Epoch:
		return fmt.Errorf("epoch falls from %d to %d", old.Epoch, r.Epoch)
	case r.Epoch == old.Epoch && (r.OpenNonce != old.OpenNonce || r.Opener != old.Opener):
		return fmt.Errorf("epoch %d changes its owner", r.Epoch)
	case r.Epoch > old.Epoch && r.OpenNonce == old.OpenNonce:
		return fmt.Errorf("epoch rises from %d to %d without a new nonce", old.Epoch, r.Epoch)
	}
	installs := r.History.Last() != old.History.Last()
	if installs {
		last := r.History.Last()
		want, err := old.History.Add(last.Epoch, last.Start)
		switch {
		case err != nil:
			return err
		case !slices.Equal(r.History, want):
			return fmt.Errorf("history is rewritten")
		case r.Epoch != old.Epoch || last.Epoch != r.Epoch:
			// The install must be by the owner of the epoch that stands; together with a raise nobody could
			// have promised that epoch, let alone repaired under it.
			return fmt.Errorf("history gains epoch %d while the epoch goes from %d to %d", last.Epoch, old.Epoch, r.Epoch)
		}
	} else if !slices.Equal(r.History, old.History) && !slices.Equal(r.History, prunedHistory(old.History, r.TrimBefore)) {
		return fmt.Errorf("history is rewritten")
	}
	o, p := r.Options, old.Options
	if !installs {
		if r.Ensemble != old.Ensemble {
			return fmt.Errorf("ensemble changes from %q to %q without a history entry", old.Ensemble, r.Ensemble)
		}
		if o.N != p.N || o.Qw != p.Qw || o.Zones != p.Zones {
			return fmt.Errorf("N, Qw or zones change without a new ensemble")
		}
	}
	if o.SegmentBytes != p.SegmentBytes || o.Window != p.Window || o.Durability != p.Durability {
		return fmt.Errorf("segment size, window or durability of an existing log changes")
	}
	return nil
}

// prunedHistory drops the entries that no record at or above trim needs: of the entries that start at or below trim the youngest
// voids, from trim upward, whatever the older ones void.
func prunedHistory(h protocol.History, trim protocol.LSN) protocol.History {
	keep := 0
	for i := range h {
		if h[i].Start <= trim {
			keep = i
		}
	}
	return h[keep:]
}

// followsLost: what was lost stays lost until it is trimmed, and only an install accepts a loss, in its own epoch.
func (r *LogRecord) followsLost(old *LogRecord) error {
	installed := protocol.Epoch(0)
	if last := r.History.Last(); last != old.History.Last() {
		installed = last.Epoch
	}
	rest := slices.DeleteFunc(slices.Clone(r.Lost), func(l LostRange) bool { return installed != 0 && l.Epoch == installed })
	if !sameLost(rest, old.Lost) && (installed != 0 || !sameLost(rest, prunedLost(old.Lost, r.TrimBefore))) {
		return fmt.Errorf("lost ranges change otherwise than by an open's own or by a trim")
	}
	return nil
}

func sameLost(a, b []LostRange) bool {
	return slices.EqualFunc(a, b, func(x, y LostRange) bool { return x.Lost == y.Lost && x.At.Equal(y.At) })
}

// prunedLost drops the ranges below a trim point: what is trimmed needs no other reason to be gone.
func prunedLost(l []LostRange, trim protocol.LSN) []LostRange {
	return slices.DeleteFunc(slices.Clone(l), func(l LostRange) bool { return l.To < trim })
}
