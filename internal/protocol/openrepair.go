package protocol

import (
	"fmt"
	"sort"
)

// maxUnitsInFlight bounds the repair messages that are sent and not yet on Qw nodes, and maxUnitsHeld those whose bytes
// are kept for slower nodes.
const (
	maxUnitsInFlight = 64
	maxUnitsHeld     = 256
)

// work drives the stages fetch, repair and record as far as the answers allow.
func (o *Opener) work() {
	for o.stage == StageFetch || o.stage == StageRepair {
		if o.stage == StageFetch {
			if !o.fetchTail() {
				return
			}
			for i := range o.contacts {
				o.contacts[i].tail = nil // what was needed of it is taken
			}
			o.cutPartialBatch()
			o.planRepair()
			o.stage = StageRepair
			o.sendFresh()
		}
		if !o.copyBelow() || !o.repairComplete() {
			return
		}
		o.stage = StageInstall
		o.install = &Install{Ensemble: o.cfg.Target, Start: o.r, History: o.history, Lost: o.newLost()}
	}
}

// fetchTail gets the bytes of [R, T], the highest label of each; it reports whether all are here. It asks for what did not come
// with the answers to Open and is not on its way with one.
func (o *Opener) fetchTail() bool {
	if o.fetching == nil {
		o.takeTails()
	}
	if len(o.fetched) == len(o.choices) {
		return true
	}
	if rest := o.choices[len(o.fetched):]; o.fetching == nil && !o.awaits(rest[0]) {
		n := 1
		for n < len(rest) && rest[n].label == rest[0].label {
			n++
		}
		o.ask(rest[0].lsn, rest[n-1].lsn, rest[0].label, false)
	}
	return false
}

// takeTails takes the next records of [R, T] from what came with the answers to Open. A copy is a copy wherever it was read: two
// records of one LSN under one label have the same bytes.
func (o *Opener) takeTails() {
next:
	for _, want := range o.choices[len(o.fetched):] {
		for i := range o.contacts {
			c := &o.contacts[i]
			at := sort.Search(len(c.tail), func(i int) bool { return c.tail[i].LSN >= want.lsn })
			if c.reply != nil && at < len(c.tail) && c.tail[at].LSN == want.lsn && (c.tail[at].Label == want.label || o.cfg.Rules.TailOfAnyLabel) {
				o.fetched = append(o.fetched, c.tail[at])
				continue next
			}
		}
		return
	}
}

// awaits reports whether the bytes of a choice are to be expected with the tail of a node that has answered Open.
func (o *Opener) awaits(want choice) bool {
	for i := range o.contacts {
		if c := &o.contacts[i]; c.awaited && c.reply != nil {
			if _, ok := heldUntil(c.reply.Held, want.lsn, want.label); ok {
				return true
			}
		}
	}
	return false
}

// onTail keeps what a node sent of its tail. Of a refusal, an older node's for instance, nothing comes but the end of the wait.
func (o *Opener) onTail(c *contact, r *FetchReply) {
	c.awaited = false
	if r.Status == StatusOK && c.tail == nil && o.stage <= StageFetch {
		for i := range r.Records {
			rec := r.Records[i]
			if n := len(c.tail); len(rec.Data) > MaxRecordBytes || n > 0 && rec.LSN <= c.tail[n-1].LSN {
				break
			}
			rec.Data = append([]byte(nil), rec.Data...)
			c.tail = append(c.tail, rec)
		}
	}
	if o.stage == StageFetch {
		o.work()
	}
}

// ask sends a recovery read for [from, to]@label to a node that named from, and that was not tried in vain.
func (o *Opener) ask(from, to LSN, label Epoch, copying bool) {
	f := o.fetching
	if f == nil {
		f = &fetchCall{tried: map[Incarnation]bool{}}
	}
	for i := range o.contacts {
		c := &o.contacts[i]
		if c.reply == nil || f.tried[c.member.Incarnation] {
			continue
		}
		end, ok := heldUntil(c.reply.Held, from, label)
		if !ok {
			continue
		}
		o.req++
		*f = fetchCall{from: from, to: min(to, end), label: label, inc: c.member.Incarnation, req: o.req, tried: f.tried, copying: copying}
		o.fetching = f
		fetch := Fetch{Log: o.cfg.Log, Epoch: o.cfg.Epoch, Req: o.req, Incarnation: f.inc, From: f.from, To: f.to, Label: label, MaxBytes: uint32(o.cfg.FetchBytes)}
		if f.inc == archiveIncarnation {
			o.loss.read = &ArchiveRead{Fetch: fetch, B: o.b, History: o.history}
		} else {
			o.out = append(o.out, OpenSend{c.member.Node, &fetch})
		}
		return
	}
	// Every source was asked. The timer begins again with the first; a late answer to Open may bring another one before.
	o.fetching = nil
	o.missing = fmt.Sprintf("LSN %d@%d is held by no node that answered, or cannot be read there", from, label)
}

// heldUntil reports whether held has x under label, and how far the extent goes.
func heldUntil(held []Extent, x LSN, label Epoch) (LSN, bool) {
	for _, e := range held {
		if e.Label == label && e.From <= x && x <= e.To {
			return e.To, true
		}
	}
	return 0, false
}

func (o *Opener) onFetch(r *FetchReply) {
	f := o.fetching
	// The epoch too: requests are numbered within one open, and an answer to an earlier open of the same client may come late.
	if r.Log != o.cfg.Log || r.Epoch != o.cfg.Epoch {
		return
	}
	c := o.contact(r.Incarnation)
	tail := c != nil && c.tailReq != 0 && r.Req == c.tailReq
	if !tail && (f == nil || r.Req != f.req || r.Incarnation != f.inc) {
		return
	}
	if r.Status == StatusFenced {
		o.fail(fmt.Errorf("%w: a node promised epoch %d, this open has %d", ErrFenced, r.Promised, o.cfg.Epoch))
		return
	}
	if tail {
		o.onTail(c, r)
		return
	}
	o.fetching = nil
	next := f.from
	for i := range r.Records {
		rec := &r.Records[i]
		if rec.LSN != next || rec.Label != f.label || next > f.to || len(rec.Data) > MaxRecordBytes {
			break
		}
		cp := *rec
		cp.Data = append([]byte(nil), rec.Data...)
		if f.copying {
			o.planCopy(cp)
		} else {
			o.fetched = append(o.fetched, cp)
		}
		next++
	}
	if next == f.from {
		if r.Status == StatusOK && c.corrected(f.from, f.label, r) {
			if f.copying {
				o.work()
			} else {
				o.redecide()
			}
			return
		}
		// The node named the copy and does not give it. Another source, or wait.
		f.tried[f.inc] = true
		o.missing = fmt.Sprintf("LSN %d@%d cannot be read at the node that named it", f.from, f.label)
		o.fetching = f
		o.ask(f.from, f.to, f.label, f.copying)
		return // not work(): with no source left it would ask the first again at the speed of the network
	}
	o.missing = ""
	o.noteProgress()
	if f.copying {
		o.sendFresh()
	}
	o.work()
}

// corrected takes from an answer the copy x@label that its node turned out not to be able to read: unknown, neither present
// nor absent (P3). Left in, it would hide a lower label's copy of the same bytes at another node, and the open would wait
// for it for ever. It also takes a later archived-through, of a node that dropped the copy meanwhile. It reports whether
// the answer changed.
func (c *contact) corrected(x LSN, label Epoch, r *FetchReply) bool {
	if r.ArchivedThrough > c.reply.ArchivedThrough {
		reply := *c.reply
		reply.ArchivedThrough = r.ArchivedThrough
		c.reply = &reply
		return r.ArchivedThrough >= x
	}
	for _, d := range r.Damaged {
		if x < d.From || x > d.To {
			continue
		}
		reply := *c.reply
		reply.Held = nil
		for _, e := range c.reply.Held {
			if e.Label != label || x < e.From || x > e.To {
				reply.Held = append(reply.Held, e)
				continue
			}
			if e.From < x {
				reply.Held = append(reply.Held, Extent{e.From, x - 1, label})
			}
			if e.To > x {
				reply.Held = append(reply.Held, Extent{x + 1, e.To, label})
			}
		}
		sort.SliceStable(reply.Held, func(i, j int) bool { return reply.Held[i].From < reply.Held[j].From })
		reply.Damaged = append(append([]Range(nil), c.reply.Damaged...), Range{x, x})
		c.reply = &reply
		return true
	}
	return false
}

// redecide begins again with the answers as they are now: nothing has been written yet.
func (o *Opener) redecide() {
	o.stage, o.fetched = StageFence, nil
	o.decide()
}

// cutPartialBatch moves T back to before a batch whose rest is not in the log. A batch reaches a node whole, so a batch
// that was committed is whole at some node of every read quorum; a part of one is what an opener left that died.
func (o *Opener) cutPartialBatch() {
	n := len(o.fetched)
	if n == 0 || !o.fetched[n-1].More || o.cfg.Rules.KeepPartialBatch {
		return
	}
	for n > 0 && o.fetched[n-1].More {
		n--
	}
	o.fetched, o.choices = o.fetched[:n], o.choices[:n]
	o.t = o.r + LSN(n) - 1
}

// planRepair labels [R, T] with our epoch, in segments of its own that begin at R.
func (o *Opener) planRepair() {
	o.segStart, o.segOff = o.r, 0
	if o.cfg.Rules.RepairKeepsLabel {
		copyAt := o.copyAt
		for _, rec := range o.fetched {
			o.planCopy(rec)
		}
		o.copyAt, o.repaired = copyAt, len(o.fetched)
		return
	}
	limit := o.cfg.Settings.SegmentBytes
	for i := 0; i < len(o.fetched); {
		j, size := i, 0
		for {
			size += EncodedSize(len(o.fetched[j].Data))
			if j++; j == len(o.fetched) || !o.fetched[j-1].More {
				break
			}
		}
		lsn := o.r + LSN(i)
		if o.segOff > 0 && o.segOff+uint64(size) > limit {
			o.segStart, o.segOff = lsn, 0
		}
		u := o.lastUnit()
		if u == nil || u.sent || u.kind != AppendRepair || u.segStart != o.segStart || len(u.block)+size > o.cfg.BlockBytes || int(u.count)+j-i > MaxBatchRecords {
			u = o.addUnit(unit{kind: AppendRepair, label: o.cfg.Epoch, first: lsn, segStart: o.segStart, segOff: o.segOff})
		}
		for ; i < j; i++ {
			u.block = AppendRecord(u.block, o.fetched[i].Data, o.fetched[i].More)
			u.count++
		}
		o.segOff += uint64(size)
	}
	o.repaired = len(o.fetched)
	if o.cfg.Rules.NoRepair {
		o.units, o.undone = nil, 0
	}
}

func (o *Opener) lastUnit() *unit {
	if len(o.units) == 0 {
		return nil
	}
	return &o.units[len(o.units)-1]
}

func (o *Opener) addUnit(u unit) *unit {
	u.acked = map[Incarnation]bool{}
	o.unitAt[unitKey{u.kind, u.label, u.first}] = len(o.units)
	o.units = append(o.units, u)
	o.undone++
	if u.kind == AppendCopy {
		o.kept++
	}
	return o.lastUnit()
}

// copyBelow is the second half of P6: when the ensemble or an incarnation changes, every LSN in (archived-through, B] is
// copied under the label it has. It reports whether all of them are read; repairComplete says when they are stored.
func (o *Opener) copyBelow() bool {
	// An answer that came late may know more of the archive than those that decided.
	for i := range o.contacts {
		if c := &o.contacts[i]; o.knows(c) && !o.cfg.Rules.NoCopyToNewcomers {
			o.copyAt = max(o.copyAt, min(c.reply.ArchivedThrough, o.b)+1)
		}
	}
	o.unfound = false
	for o.copyAt <= o.b {
		if o.fetching != nil || o.undone >= maxUnitsInFlight {
			return false
		}
		if to := o.settled(o.copyAt); to >= o.copyAt {
			o.copyAt = to + 1
			continue
		}
		label, ok := o.bestLabel(o.copyAt)
		if !ok {
			o.unfound = true
			o.missing = fmt.Sprintf("LSN %d is committed but neither found nor archived", o.copyAt)
			return false
		}
		if o.heldByTarget(o.copyAt, label) {
			o.copyAt++ // every wanted node has it already
			continue
		}
		end := o.copyAt
		for end < o.b {
			if l, ok := o.bestLabel(end + 1); !ok || l != label || end-o.copyAt >= MaxBatchRecords || o.settled(end+1) > end {
				break
			}
			end++
		}
		o.ask(o.copyAt, end, label, true)
		return false
	}
	return true
}

// bestLabel returns the highest label that is not void under which any answer holds x.
func (o *Opener) bestLabel(x LSN) (Epoch, bool) {
	best, found := Epoch(0), false
	for i := range o.contacts {
		if c := &o.contacts[i]; c.reply != nil {
			if e, a := o.answer(c.reply, x); a == Present && e >= best {
				best, found = e, true
			}
		}
	}
	return best, found
}

// heldByTarget reports whether every target that answered holds x under a label that is not void.
func (o *Opener) heldByTarget(x LSN, _ Epoch) bool {
	for i := range o.contacts {
		if c := &o.contacts[i]; c.target {
			if c.reply == nil {
				return false
			}
			if _, a := o.answer(c.reply, x); a != Present {
				return false
			}
		}
	}
	return true
}

// planCopy queues one committed record under the label it has.
func (o *Opener) planCopy(rec Record) {
	size := EncodedSize(len(rec.Data))
	u := o.lastUnit()
	if u == nil || u.sent || u.kind != AppendCopy || u.label != rec.Label || u.segStart != rec.SegStart || u.first+LSN(u.count) != rec.LSN ||
		u.segOff+uint64(len(u.block)) != rec.SegOff || len(u.block)+size > o.cfg.BlockBytes {
		u = o.addUnit(unit{kind: AppendCopy, label: rec.Label, first: rec.LSN, segStart: rec.SegStart, segOff: rec.SegOff})
		for i := range o.contacts {
			c := &o.contacts[i]
			if c.target && c.reply != nil {
				o.setAcked(u, c, true) // until a record of the unit is found missing there, below
			}
		}
	}
	for i := range o.contacts {
		c := &o.contacts[i]
		if c.target && c.reply != nil {
			if _, a := o.answer(c.reply, rec.LSN); a != Present {
				o.setAcked(u, c, false)
			}
		}
	}
	u.block = AppendRecord(u.block, rec.Data, rec.More)
	u.count++
	o.copied++
	o.copyAt = rec.LSN + 1
}

// setAcked notes whether c holds all of u, and keeps the counts.
func (o *Opener) setAcked(u *unit, c *contact, holds bool) {
	if u.acked[c.member.Incarnation] == holds {
		return
	}
	was := u.holders >= o.cfg.TargetQw
	d := 1
	if holds {
		u.acked[c.member.Incarnation] = true
	} else {
		delete(u.acked, c.member.Incarnation)
		d = -1
	}
	c.acks += d
	if c.target {
		u.holders += d
	}
	switch is := u.holders >= o.cfg.TargetQw; {
	case is && !was:
		o.undone--
	case was && !is:
		o.undone++
	}
}

// freeUnits drops the bytes of copies that Qw nodes hold once too many are kept: a node too slow to have them then never
// counts as full, which costs it its vote in this open and nothing else.
func (o *Opener) freeUnits() {
	for i := o.freeAt; i < len(o.units) && o.kept > maxUnitsHeld; i++ {
		u := &o.units[i]
		if u.kind == AppendCopy && u.block != nil {
			if u.holders < o.cfg.TargetQw {
				continue
			}
			u.block = nil
			o.kept--
		}
		if i == o.freeAt {
			o.freeAt++
		}
	}
}

// repairComplete reports whether Qw nodes of the target have promised and hold everything that was written: the same Qw
// nodes all of it (P6).
func (o *Opener) repairComplete() bool {
	full := 0
	for i := range o.contacts {
		if c := &o.contacts[i]; c.target && c.reply != nil && c.acks == len(o.units) {
			full++
		}
	}
	if full < o.cfg.TargetQw {
		o.missing = fmt.Sprintf("repair of LSNs %d to %d is on %d nodes, need %d", o.r, o.t, full, o.cfg.TargetQw)
		return false
	}
	o.missing = ""
	return true
}

// sendFresh sends what was planned since the last call to every target that has promised.
func (o *Opener) sendFresh() {
	for ; o.sentTo < len(o.units); o.sentTo++ {
		u := &o.units[o.sentTo]
		u.sent = true
		for i := range o.contacts {
			if c := &o.contacts[i]; c.target && c.reply != nil && !u.acked[c.member.Incarnation] {
				o.sendUnit(c, u)
			}
		}
	}
}

// resendUnits sends everything again that is not acknowledged.
func (o *Opener) resendUnits() {
	for i := range o.contacts {
		o.resendUnitsTo(&o.contacts[i])
	}
}

func (o *Opener) sendUnit(c *contact, u *unit) {
	o.out = append(o.out, OpenSend{c.member.Node, &Append{Log: o.cfg.Log, Epoch: o.cfg.Epoch, Label: u.label, Kind: u.kind,
		Incarnation: c.member.Incarnation, First: u.first, Count: u.count, SegStart: u.segStart, SegOff: u.segOff, Block: u.block}})
}

func (o *Opener) resendUnitsTo(c *contact) {
	if !c.target || c.reply == nil {
		return
	}
	sent := 0
	for i := range o.units {
		u := &o.units[i]
		if u.acked[c.member.Incarnation] || u.block == nil {
			continue
		}
		o.sendUnit(c, u)
		if sent++; sent == maxUnitsInFlight {
			return
		}
	}
}

func (o *Opener) onAck(a *Ack) {
	c := o.contact(a.Incarnation)
	if c == nil || a.Log != o.cfg.Log || a.Epoch != o.cfg.Epoch {
		return // acknowledgements count only from the incarnations that the CAS writes (P7, X9)
	}
	switch {
	case a.Status == StatusFenced:
		o.fail(fmt.Errorf("%w: node %s promised epoch %d, this open has %d", ErrFenced, c.member.Node, a.Promised, o.cfg.Epoch))
	case a.Status == StatusDeleted:
		o.fail(ErrDeleted)
	case a.Status != StatusOK:
		c.refused = a.Status
		o.missing = fmt.Sprintf("node %s refuses: %s", c.member.Node, a.Status.Explain())
	case a.Kind == AckAppend && (o.stage == StageFetch || o.stage == StageRepair):
		if i, ok := o.unitAt[unitKey{a.Append, a.Label, a.First}]; ok && o.units[i].first+LSN(o.units[i].count)-1 == a.Last {
			o.setAcked(&o.units[i], c, true)
			o.noteProgress()
		}
		o.freeUnits()
		o.work()
	case a.Kind == AckActivate && c.target:
		c.active = true
		if o.stage == StageActivate {
			o.finish()
		}
	}
}

// Installed tells the outcome of the CAS that PendingInstall asked for: nil, or why the token is lost. Only after it do
// Activates go out (P7, H1).
func (o *Opener) Installed(now Time, err error) {
	if o.over() || o.stage != StageInstall {
		return
	}
	if err != nil {
		o.fail(fmt.Errorf("open of log %s at epoch %d: %w", o.cfg.Log, o.cfg.Epoch, err))
		return
	}
	o.now, o.stage = now, StageActivate
	o.rto, o.resendAt = initialRTO, now+initialRTO
	o.sendActivates()
	o.finish()
}

func (o *Opener) sendActivates() {
	o.missing = fmt.Sprintf("activation needs %d nodes", o.cfg.TargetQw)
	for i := range o.contacts {
		c := &o.contacts[i]
		if c.target && !c.active {
			o.out = append(o.out, OpenSend{c.member.Node, &Activate{Log: o.cfg.Log, Epoch: o.cfg.Epoch, Incarnation: c.member.Incarnation,
				Start: o.r, B: o.b, History: o.history, Lost: o.loss.lost.Ranges(), Settings: o.cfg.Settings}})
		}
	}
}

// finish completes the open when Qw nodes of the new ensemble have activated. [R, T] is committed with that: Qw nodes of
// the recorded ensemble hold it under an epoch that is on record.
func (o *Opener) finish() {
	active := 0
	for i := range o.contacts {
		if o.contacts[i].active {
			active++
		}
	}
	if active < o.cfg.TargetQw {
		return
	}
	o.stage = StageDone
	o.result = &OpenResult{Copied: o.copied, Repaired: o.repaired, Lost: o.newLost(), Config: WriterConfig{
		Log: o.cfg.Log, Epoch: o.cfg.Epoch, Start: o.r, B: o.b, Tail: o.t, Ensemble: o.cfg.Target, Qw: o.cfg.TargetQw, History: o.history, Lost: o.loss.lost.Ranges(),
		Settings: o.cfg.Settings, SegStart: o.segStart, SegOff: o.segOff, BlockBytes: o.cfg.BlockBytes, Rules: o.cfg.Rules,
	}}
}
