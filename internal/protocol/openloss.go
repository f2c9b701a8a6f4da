package protocol

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// AcceptLoss is the owner's consent to an open that goes on without what cannot be had any more (P5). The open runs as ever
// first. It gives something up only when every recorded node that is not Gone has answered, nobody has said anything new for
// Wait, and the archive, looked at after that, does not have it either.
//
// What is given up, and nothing else:
//
//   - committed LSNs above archived-through that no answer holds and the archive lacks: they become Lost ranges of the record;
//   - the decision of the tail by a read quorum. Then everything found anywhere, at nodes or in the archive, up to the last LSN T
//     that anybody names, is taken for committed and copied to the new nodes under the label that it has; what is missing below T is
//     lost. If fewer than Qr knowing nodes have promised, LossSkip LSNs behind T are skipped as well and recorded: an earlier
//     writer may have given them out, may have had them acknowledged, and may not be fenced.
//
// So R is above every LSN that may have been given out, and nothing is renumbered. What is not promised any more: the records of
// the ranges that are recorded; and S5, to a writer that was not fenced: if it reaches Qw of the nodes that were given up, it goes
// on acknowledging what is not in the log. Its acknowledgements count for nobody else: the ensemble that the CAS installs has none of
// these nodes, and of the others every one that knows the log has promised.
type AcceptLoss struct {
	// Gone are the recorded incarnations that are not waited for.
	Gone []Incarnation
	// Wait is how long nobody must have said anything new.
	Wait Time
}

// ArchiveNode is the name under which an open that may lose records asks the archive for copies, as it asks nodes.
const ArchiveNode NodeID = ""

// archiveIncarnation stands for the archive among the contacts. It knows nothing in the sense of P4 and holds what unproven copies
// of objects there are.
const archiveIncarnation = ^Incarnation(0)

// ArchiveRead asks the driver for records of the archive: it answers with a FetchReply of the Fetch's Req and Incarnation, with records
// served under the watermark B and the history, as to a cold reader (P8), in segments of its own making; what cannot be read is Damaged.
type ArchiveRead struct {
	Fetch   Fetch
	B       LSN
	History History
}

// lossState is what an open that may lose records keeps beyond the others.
type lossState struct {
	begun, progress Time
	late            bool // it has waited for everybody for long enough to begin with
	look            bool // the driver must look at the archive
	looking         bool
	lookSince       Time       // progress when it was asked to
	looked          bool       // since the last progress
	proven          []Range    // what objects prove, ascending and disjoint
	committed       LSN        // highest LSN that objects know committed
	tail            bool       // the tail was given up
	lost            LostRanges // those of the record, and what was given up
	why             string     // why nothing is given up yet
	read            *ArchiveRead
}

// PendingLook takes the question what the archive holds above an LSN; the driver answers with Looked.
func (o *Opener) PendingLook() (after LSN, ok bool) {
	ok, o.loss.look = o.loss.look, false
	return o.archived, ok
}

// PendingRead takes a read of the archive, or nil.
func (o *Opener) PendingRead() *ArchiveRead {
	r := o.loss.read
	o.loss.read = nil
	return r
}

// Looked tells what the archive holds: every object that ends above the LSN that PendingLook named. An err other than nil says
// that it could not be looked at: then nothing is given up, and it is asked for again.
func (o *Opener) Looked(now Time, objects []ArchivedObject, err error) {
	if o.over() {
		return
	}
	o.now, o.loss.looking = now, false
	if err != nil {
		o.loss.why = fmt.Sprintf("the archive cannot be looked at: %v", err)
		return
	}
	o.loss.looked, o.loss.proven, o.loss.committed = o.loss.lookSince == o.loss.progress, nil, 0
	held := &OpenReply{Log: o.cfg.Log, Epoch: o.cfg.Epoch, Incarnation: archiveIncarnation}
	for _, a := range objects {
		end := min(a.Last, a.CLSN)
		o.loss.committed = max(o.loss.committed, a.CLSN)
		if end >= a.First {
			o.loss.proven = append(o.loss.proven, Range{a.First, end})
		}
		if a.Last > end {
			held.Held = append(held.Held, Extent{max(a.First, end+1), a.Last, a.Label})
		}
	}
	o.loss.proven = joined(o.loss.proven)
	sort.SliceStable(held.Held, func(i, j int) bool {
		a, b := &held.Held[i], &held.Held[j]
		return a.From < b.From || a.From == b.From && a.Label < b.Label
	})
	if c := o.contact(archiveIncarnation); c != nil {
		c.reply = held
	} else {
		o.contacts = append(o.contacts, contact{member: Member{Node: ArchiveNode, Incarnation: archiveIncarnation}, reply: held})
	}
	o.considerLoss()
}

// noteProgress: somebody has said something new.
func (o *Opener) noteProgress() { o.loss.progress, o.loss.looked, o.loss.why = o.now, false, "" }

// hearsEveryone reports whether an open that may lose records may decide: all that are not gone have answered, or have had the
// time to.
func (o *Opener) hearsEveryone() bool {
	return o.cfg.Loss == nil || o.loss.late || len(o.silent()) == 0
}

// silent lists the recorded nodes that have not answered and are not given up as gone.
func (o *Opener) silent() []string {
	var out []string
	for i := range o.contacts {
		if c := &o.contacts[i]; c.recorded && c.reply == nil && !slices.Contains(o.cfg.Loss.Gone, c.member.Incarnation) {
			out = append(out, string(c.member.Node))
		}
	}
	return out
}

// considerLoss gives up what cannot be had, if it is time to.
func (o *Opener) considerLoss() {
	if o.cfg.Loss == nil || o.over() || o.now-o.loss.progress < o.cfg.Loss.Wait || o.stage != StageFence && !(o.stage == StageRepair && o.unfound) {
		return
	}
	if s := o.silent(); len(s) > 0 && !o.cfg.Rules.LoseUnasked {
		o.loss.why = fmt.Sprintf("nothing is given up while %s may answer", strings.Join(s, ", "))
		return
	}
	for i := range o.contacts {
		if c := &o.contacts[i]; c.reply != nil && c.member.Incarnation != archiveIncarnation && c.reply.Through < MaxLSN {
			o.loss.why = fmt.Sprintf("nothing is given up: %s holds more than it can list", c.member.Node)
			return
		}
	}
	if !o.loss.looked && !o.cfg.Rules.LoseUnasked {
		if o.stage == StageFence {
			o.floor()
		}
		if !o.loss.looking {
			o.loss.look, o.loss.looking, o.loss.lookSince = true, true, o.loss.progress
		}
		return
	}
	var err error
	if o.stage == StageFence {
		err = o.giveUpTail()
	} else {
		err = o.giveUp(o.copyAt, o.b)
	}
	if err != nil {
		o.fail(fmt.Errorf("open of log %s: %w", o.cfg.Log, err))
		return
	}
	o.noteProgress()
	o.work()
}

// giveUpTail decides B, R and T without a read quorum that says where the log ends, or behind LSNs that nobody can read.
func (o *Opener) giveUpTail() error {
	o.floor()
	o.b = max(o.b, o.loss.committed)
	t := o.b
	for i := range o.contacts {
		c := &o.contacts[i]
		if c.reply == nil {
			continue
		}
		for _, e := range c.reply.Held {
			if end := min(e.To, o.cfg.History.VoidFrom(e.Label)-1); end >= e.From {
				t = max(t, end)
			}
		}
		for _, d := range c.reply.Damaged {
			t = max(t, d.To)
		}
	}
	decided := o.knowing() >= o.qr()
	for x := o.b + 1; decided && x <= t; x++ {
		if _, copies, absent := o.survey(x); copies == 0 && absent >= o.qr() {
			t = x - 1 // what is behind cannot have been committed
		}
	}
	o.loss.tail, o.copyAt = true, o.archived+1
	if err := o.giveUp(o.archived+1, t); err != nil {
		return err
	}
	o.b = t
	if !decided && !o.cfg.Rules.NoLossSkip {
		if t > MaxLSN/2 {
			return fmt.Errorf("LSN %d leaves no room to skip %d", t, LossSkip)
		}
		o.b = t + LossSkip
		lost, err := o.loss.lost.With(LostRanges{{From: t + 1, To: o.b, Epoch: o.cfg.Epoch, Skipped: true}})
		if err != nil {
			return err
		}
		o.loss.lost = lost
	}
	// Everything found is copied under the label that it has and nothing repaired: no hole may be left in [R, T].
	o.r, o.t, o.choices, o.fetched = o.b+1, o.b, nil, nil
	history, err := o.cfg.History.Add(o.cfg.Epoch, o.r)
	if err != nil {
		return err
	}
	o.history, o.stage, o.missing = history, StageFetch, ""
	return nil
}

// giveUp notes as lost what of [from, to] no answer holds and the archive does not prove.
func (o *Opener) giveUp(from, to LSN) error {
	missing := o.notFound(from, to)
	if len(missing) == 0 {
		return nil
	}
	budget := MaxLost - len(o.loss.lost) - 1 // one for what is skipped
	missing, ok := fewer(missing, o.loss.lost, max(budget, 0))
	if !ok {
		return fmt.Errorf("the log would have more than %d lost ranges: trim it", MaxLost)
	}
	var more LostRanges
	for _, m := range missing {
		more = append(more, Lost{From: m.From, To: m.To, Epoch: o.cfg.Epoch})
	}
	lost, err := o.loss.lost.With(more)
	o.loss.lost = lost
	return err
}

// newLost is what this open has given up.
func (o *Opener) newLost() LostRanges {
	var out LostRanges
	for _, l := range o.loss.lost {
		if l.Epoch == o.cfg.Epoch {
			out = append(out, l)
		}
	}
	return out
}

// notFound returns what of [from, to] no answer holds, the archive does not prove, and is not lost already.
func (o *Opener) notFound(from, to LSN) []Range {
	have := slices.Clone(o.loss.proven)
	for i := range o.contacts {
		c := &o.contacts[i]
		if c.reply == nil {
			continue
		}
		for _, e := range c.reply.Held {
			if end := min(e.To, o.cfg.History.VoidFrom(e.Label)-1); end >= e.From {
				have = append(have, Range{e.From, end})
			}
		}
	}
	for _, l := range o.loss.lost {
		have = append(have, Range{l.From, l.To})
	}
	return uncovered(from, to, have)
}

// settled returns the LSN up to which nothing has to be copied from x on, because it is lost or in the archive; below x if x is
// neither.
func (o *Opener) settled(x LSN) LSN {
	if l, ok := o.loss.lost.At(x); ok {
		return l.To
	}
	p := o.loss.proven
	if i := sort.Search(len(p), func(i int) bool { return p[i].To >= x }); i < len(p) && p[i].From <= x {
		return p[i].To
	}
	return x - 1
}

// undoLoss begins again with an answer that came after something was given up and before it was recorded: what that node holds
// need not be lost. What was sent to the new nodes is of the log whatever is decided now, and is sent again.
func (o *Opener) undoLoss() {
	if len(o.newLost()) == 0 && !o.loss.tail {
		return
	}
	o.loss.lost = o.cfg.Lost
	o.fetching, o.units, o.undone, o.sentTo, o.kept, o.freeAt, o.copied, o.unfound = nil, nil, 0, 0, 0, 0, 0, false
	clear(o.unitAt)
	for i := range o.contacts {
		o.contacts[i].acks = 0
	}
	if o.loss.tail {
		o.loss.tail = false
		o.redecide()
		return
	}
	o.stage, o.copyAt = StageFetch, o.copyFrom()
}
