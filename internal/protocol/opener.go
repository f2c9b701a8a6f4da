package protocol

import (
	"errors"
	"fmt"
	"sort"
	"strings"
)

// ErrUnavailable: an open cannot be decided or completed with the nodes that answered; nothing was guessed.
var ErrUnavailable = errors.New("not enough log nodes")

// OpenerConfig is what an open starts from. The token is already taken: the log's record shows Epoch with our nonce (P1).
type OpenerConfig struct {
	Log      LogID
	Epoch    Epoch
	Recorded Ensemble // the ensemble of the record: only these incarnations know (P2, P4)
	Qw       int      // write quorum of the recorded ensemble
	History  History  // of the record
	Trimmed  LSN      // everything at or below is trimmed
	Target   Ensemble // the ensemble to install; equal to Recorded when membership does not change (P11)
	TargetQw int
	Settings Settings
	// BlockBytes bounds the block of one repair message; a larger record or batch travels alone.
	BlockBytes int
	// FetchBytes bounds one recovery read; 0 means 1 MiB.
	FetchBytes int
	// TailBytes bounds what each recorded node sends of its tail beside its answer to Open; 0: none of them is asked to.
	TailBytes int
	// Lost are the LSNs that the record calls lost: there is nothing of them, and nothing to wait for.
	Lost LostRanges
	// Loss, if not nil, is the owner's consent to give up what cannot be had.
	Loss *AcceptLoss
	// Deadline is when the open gives up, with an error that names what is missing.
	Deadline Time
	Rules    Rules
}

// OpenResult is a completed open.
type OpenResult struct {
	Config WriterConfig
	// Copied and Repaired count LSNs that were written again, below R and from R upward.
	Copied, Repaired int
	// Lost is what was given up by this open.
	Lost LostRanges
}

// Install asks the driver for P7's compare-and-swap: write the ensemble with its incarnations, and add (Epoch, Start) to
// the history and what is lost to the lost ranges, epoch and nonce still ours. The driver answers with Installed.
type Install struct {
	Ensemble Ensemble
	Start    LSN
	History  History    // with the new entry
	Lost     LostRanges // what this open gave up: joins the record in the same write
}

// OpenSend is one message of an open to one node.
type OpenSend struct {
	To  NodeID
	Msg Message
}

// Stage names where an open is, for errors and for timing.
type Stage uint8

const (
	StageFence Stage = iota
	StageFetch
	StageRepair
	StageInstall
	StageActivate
	StageDone
	StageFailed
)

func (s Stage) String() string {
	return [...]string{"fence", "fetch", "repair", "record", "activate", "done", "failed"}[s]
}

// contact is one incarnation that takes part in an open.
type contact struct {
	member   Member
	recorded bool // it knows: its "absent" counts, its promise fences
	target   bool
	reply    *OpenReply // its answer to Open at our epoch
	active   bool       // it acknowledged Activate
	acks     int        // units that it holds
	refused  Status
	tailReq  uint64   // the read of its tail that went out with Open; 0: none
	awaited  bool     // and its answer is not here
	tail     []Record // what it brought, ascending, payloads owned
}

// Opener is a takeover: fence, find the tail, repair, record, activate (paper 4.2; P2–P8). Drive it with Start, Handle,
// Installed and Tick; after each call take Sends and look at PendingInstall, Result and Err.
//
// Order, and what is lost if it is reversed: Qr promises before any LSN is decided (R1: an append behind the recovery
// read would commit and be cut); repair on Qw before the CAS (a record of which only a void copy is left); the CAS
// before any Activate (H1); Activate on Qw before the first append.
type Opener struct {
	cfg      OpenerConfig
	stage    Stage
	failedIn Stage // with stage failed: the one before
	contacts []contact
	nodes    []NodeID // distinct, for Open
	out      []OpenSend
	err      error
	install  *Install
	history  History // with our entry, once R is known

	b, r, t  LSN
	archived LSN
	choices  []choice   // what has to be fetched, ascending
	fetching *fetchCall // the one recovery read under way
	fetched  []Record   // [R, T] so far, payloads owned
	copyAt   LSN        // next LSN below R to be copied
	units    []unit     // repair messages
	unitAt   map[unitKey]int
	undone   int // units that fewer than Qw targets hold
	sentTo   int // units[:sentTo] are sent
	kept     int // copies whose bytes are kept
	freeAt   int // the bytes of the copies in units[:freeAt] are freed
	segStart LSN
	segOff   uint64
	copied   int
	repaired int
	req      uint64
	rto      Time
	resendAt Time
	result   *OpenResult
	missing  string // why it waits, in words
	now      Time
	loss     lossState
	unfound  bool // it waits for committed LSNs that no answer holds and no answer calls archived
}

type fetchCall struct {
	from, to LSN
	label    Epoch
	inc      Incarnation
	req      uint64
	tried    map[Incarnation]bool // sources that failed for this range
	copying  bool
}

// unit is one repair message and who holds its records durably.
type unit struct {
	kind     AppendKind
	label    Epoch
	first    LSN
	count    uint32
	segStart LSN
	segOff   uint64
	block    []byte // nil once freed
	sent     bool   // it takes no more records
	acked    map[Incarnation]bool
	holders  int // targets among acked
}

// unitKey finds the unit of an acknowledgement: a tail of two segments is ten thousands of units, and none of what is done
// for each acknowledgement may look at all of them.
type unitKey struct {
	kind  AppendKind
	label Epoch
	first LSN
}

// NewOpener prepares an open.
func NewOpener(cfg OpenerConfig) (*Opener, error) {
	if cfg.Log == 0 || cfg.Epoch == 0 || len(cfg.Recorded) == 0 || len(cfg.Target) == 0 || cfg.Qw < 1 || cfg.Qw > len(cfg.Recorded) ||
		cfg.TargetQw < 1 || cfg.TargetQw > len(cfg.Target) || len(cfg.Recorded) > MaxEnsemble || len(cfg.Target) > MaxEnsemble {
		return nil, fmt.Errorf("open of log %s at epoch %d: %d recorded nodes, quorum %d; %d target nodes, quorum %d",
			cfg.Log, cfg.Epoch, len(cfg.Recorded), cfg.Qw, len(cfg.Target), cfg.TargetQw)
	}
	if err := errors.Join(cfg.History.Validate(), cfg.Lost.Validate()); err != nil {
		return nil, fmt.Errorf("open of log %s: %w", cfg.Log, err)
	}
	if cfg.Loss != nil {
		for _, gone := range cfg.Loss.Gone {
			if cfg.Target.Index(gone) >= 0 {
				return nil, fmt.Errorf("open of log %s: incarnation %v is given up as gone and is to hold the log", cfg.Log, gone)
			}
		}
	}
	if cfg.FetchBytes == 0 {
		cfg.FetchBytes = 1 << 20
	}
	if cfg.BlockBytes == 0 {
		cfg.BlockBytes = 1200
	}
	cfg.Settings.Qw = uint8(cfg.TargetQw)
	cfg.Settings.Peers = cfg.Settings.Peers[:0:0]
	for _, m := range cfg.Target {
		cfg.Settings.Peers = append(cfg.Settings.Peers, m.Incarnation)
	}
	o := &Opener{cfg: cfg, rto: initialRTO, unitAt: map[unitKey]int{}, loss: lossState{lost: cfg.Lost}}
	for _, m := range cfg.Recorded {
		o.contacts = append(o.contacts, contact{member: m, recorded: true, target: cfg.Target.Index(m.Incarnation) >= 0})
	}
	for _, m := range cfg.Target {
		if cfg.Recorded.Index(m.Incarnation) < 0 {
			o.contacts = append(o.contacts, contact{member: m, target: true})
		}
	}
	seen := map[NodeID]bool{}
	for _, c := range o.contacts {
		if !seen[c.member.Node] {
			seen[c.member.Node] = true
			o.nodes = append(o.nodes, c.member.Node)
		}
	}
	return o, nil
}

// Sends takes the messages to send now.
func (o *Opener) Sends(dst []OpenSend) []OpenSend {
	dst = append(dst, o.out...)
	o.out = o.out[:0]
	return dst
}

// PendingInstall takes the CAS that the driver must do now, once.
func (o *Opener) PendingInstall() *Install {
	i := o.install
	o.install = nil
	return i
}

// Result is not nil when the log is open; Err when the open has failed for good. Both nil: it goes on.
func (o *Opener) Result() *OpenResult { return o.result }
func (o *Opener) Err() error          { return o.err }

// Stage returns where the open is.
func (o *Opener) Stage() Stage { return o.stage }

// FailedIn returns the stage in which a failed open was.
func (o *Opener) FailedIn() Stage { return o.failedIn }

// Start begins with Open to every node that is or shall be of the ensemble.
func (o *Opener) Start(now Time) {
	o.now, o.loss.begun, o.loss.progress = now, now, now
	o.resendAt = now + o.rto
	for _, n := range o.nodes {
		o.sendOpen(n)
	}
}

// sendOpen sends Open, and behind it to a recorded node the read of its tail: a recovery read like every other, refused
// unless the promise was made before it. A driver that puts both into one packet saves the round trip of that read.
func (o *Opener) sendOpen(n NodeID) {
	o.out = append(o.out, OpenSend{n, &Open{Log: o.cfg.Log, Epoch: o.cfg.Epoch, Req: uint64(o.cfg.Epoch), Name: o.cfg.Settings.Name}})
	for i := range o.contacts {
		c := &o.contacts[i]
		if o.cfg.TailBytes == 0 || c.member.Node != n || !c.recorded || c.reply != nil {
			continue
		}
		if c.tailReq == 0 {
			o.req++
			c.tailReq = o.req
		}
		c.awaited = true
		o.out = append(o.out, OpenSend{n, &Fetch{Log: o.cfg.Log, Epoch: o.cfg.Epoch, Req: c.tailReq, Incarnation: c.member.Incarnation, To: MaxLSN,
			MaxBytes: uint32(o.cfg.TailBytes)}})
	}
}

func (o *Opener) contact(inc Incarnation) *contact {
	for i := range o.contacts {
		if o.contacts[i].member.Incarnation == inc {
			return &o.contacts[i]
		}
	}
	return nil
}

func (o *Opener) fail(err error) {
	if o.err == nil && o.result == nil {
		o.err, o.failedIn, o.stage = err, o.stage, StageFailed
	}
}

func (o *Opener) over() bool { return o.err != nil || o.result != nil }

// Tick sends again what was not answered, and fails at the deadline with what is missing.
func (o *Opener) Tick(now Time) {
	if o.over() {
		return
	}
	o.now = now
	if now >= o.cfg.Deadline {
		o.fail(fmt.Errorf("%w: open of log %s at epoch %d ended by its deadline in stage %q: %s", ErrUnavailable, o.cfg.Log, o.cfg.Epoch, o.stage, o.lacks()))
		return
	}
	if now < o.resendAt {
		return
	}
	o.rto = min(maxRTO, o.rto+o.rto/2)
	o.resendAt = now + o.rto
	for i := range o.contacts {
		o.contacts[i].awaited = false // lost on the way
	}
	for _, n := range o.nodes {
		// A node that answered is asked again when committed LSNs are neither found nor archived: it may have looked at the
		// store since.
		if (!o.answered(n) || o.unfound) && o.stage != StageActivate {
			o.sendOpen(n)
		}
	}
	switch o.stage {
	case StageFence:
		o.loss.late = o.cfg.Loss != nil && now-o.loss.begun >= o.cfg.Loss.Wait
		o.decide()
	case StageFetch, StageRepair:
		if f := o.fetching; f != nil && f.inc != archiveIncarnation { // its driver always answers
			f.tried[f.inc] = true // silent: ask another source, and this one again when all were asked
			o.ask(f.from, f.to, f.label, f.copying)
		}
		o.resendUnits()
		o.work()
	case StageActivate:
		o.sendActivates()
	}
	o.considerLoss()
}

// NextTick returns when Tick must be called at the latest.
func (o *Opener) NextTick() Time {
	if o.over() {
		return never
	}
	return min(o.resendAt, o.cfg.Deadline)
}

func (o *Opener) answered(n NodeID) bool {
	for _, c := range o.contacts {
		if c.member.Node == n && c.reply != nil {
			return true
		}
	}
	return false
}

// Lacks says in words what the open waits for, without the names of those that have not answered at all.
func (o *Opener) Lacks() string {
	out := o.missing
	if out == "" {
		out = fmt.Sprintf("%d of %d recorded nodes answered, need %d", o.knowing(), len(o.cfg.Recorded), o.qr())
	}
	for _, c := range o.contacts {
		if c.reply == nil && c.refused != StatusOK {
			out += fmt.Sprintf("; %s says %s", c.member.Node, c.refused.Explain())
		}
	}
	if o.loss.why != "" {
		out += "; " + o.loss.why
	}
	return out
}

// lacks is Lacks with the names.
func (o *Opener) lacks() string {
	out := o.Lacks()
	var silent []string
	for _, c := range o.contacts {
		if c.reply == nil && c.refused == StatusOK {
			silent = append(silent, fmt.Sprintf("%s (no answer)", c.member.Node))
		}
	}
	if len(silent) > 0 {
		out += "; missing: " + strings.Join(silent, ", ")
	}
	return out
}

func (o *Opener) qr() int {
	if o.cfg.Rules.DecideEarly {
		return max(1, len(o.cfg.Recorded)-o.cfg.Qw)
	}
	return len(o.cfg.Recorded) - o.cfg.Qw + 1
}

// knowing counts the recorded incarnations that have promised and answered.
func (o *Opener) knowing() int {
	n := 0
	for i := range o.contacts {
		if o.knows(&o.contacts[i]) {
			n++
		}
	}
	return n
}

func (o *Opener) knows(c *contact) bool {
	return c.reply != nil && (c.recorded || o.cfg.Rules.BlankNodesVote)
}

// Handle applies a reply. Late and foreign ones are harmless.
func (o *Opener) Handle(now Time, m Message) {
	if o.over() {
		return
	}
	o.now = now
	switch m := m.(type) {
	case *OpenReply:
		o.onOpen(m)
	case *FetchReply:
		o.onFetch(m)
	case *Ack:
		o.onAck(m)
	}
}

func (o *Opener) onOpen(r *OpenReply) {
	if r.Log != o.cfg.Log || r.Epoch != o.cfg.Epoch {
		return
	}
	c := o.contact(r.Incarnation)
	if c == nil && o.cfg.Rules.BlankNodesVote && o.stage == StageFence && r.Status == StatusOK {
		o.contacts = append(o.contacts, contact{member: Member{Incarnation: r.Incarnation}, reply: r})
		o.decide()
		return
	}
	switch {
	case c == nil:
		return // an incarnation that is not on record and not wanted: it knows nothing and fences nobody (P4, X8)
	case r.Status == StatusFenced:
		// A promise comes after its CAS, so the record shows that epoch: our own CAS cannot succeed any more.
		o.fail(fmt.Errorf("%w: node %s promised epoch %d, this open has %d", ErrFenced, c.member.Node, r.Promised, o.cfg.Epoch))
		return
	case r.Status == StatusDeleted:
		o.fail(ErrDeleted)
		return
	case r.Status != StatusOK:
		c.refused = r.Status
		return
	case c.reply != nil:
		// What it holds was told and has been used; only what the archive holds is news.
		if o.unfound && r.ArchivedThrough > c.reply.ArchivedThrough {
			c.reply.ArchivedThrough = r.ArchivedThrough
			o.noteProgress()
			o.work()
		}
		return
	}
	c.reply, c.refused = r, StatusOK
	o.noteProgress()
	switch o.stage {
	case StageFence:
		o.decide()
	case StageFetch, StageRepair:
		if c.recorded || len(r.Held) > 0 {
			o.undoLoss()
		}
		o.resendUnitsTo(c) // a late promise joins the repair
		o.work()
	}
}

// choice is one LSN of [R, T] with the label under which its bytes are taken.
type choice struct {
	lsn   LSN
	label Epoch
}

// decide is P5: B, R and T from the answers of at least Qr knowing nodes.
func (o *Opener) decide() {
	if o.knowing() < o.qr() || !o.hearsEveryone() {
		return
	}
	o.floor()
	o.r, o.choices = o.b+1, o.choices[:0]
	for x := o.r; ; x++ {
		label, copies, absent := o.survey(x)
		if o.cfg.Rules.QuorumOfAbsents && absent >= o.qr() {
			copies = 0
		}
		if copies > 0 {
			o.choices = append(o.choices, choice{x, label})
			continue
		}
		if absent >= o.qr() {
			o.t = x - 1
			break
		}
		o.missing = fmt.Sprintf("LSN %d: no copy, %d nodes call it absent, need %d", x, absent, o.qr())
		return // wait for more nodes; never guess
	}
	o.missing = ""
	history, err := o.cfg.History.Add(o.cfg.Epoch, o.r)
	if err != nil {
		o.fail(fmt.Errorf("open of log %s: %w", o.cfg.Log, err))
		return
	}
	o.history = history
	o.stage = StageFetch
	o.copyAt = o.copyFrom()
	if o.cfg.Rules.ActivateBeforeRecord {
		o.sendActivates()
	}
	o.work()
}

// floor is what the answers say is committed, B, and archived.
func (o *Opener) floor() {
	o.b, o.archived = 0, o.cfg.Trimmed
	if !o.cfg.Rules.IgnoreRecordedStart {
		for _, h := range o.cfg.History {
			o.b = max(o.b, h.Start-1)
		}
	}
	for i := range o.contacts {
		if c := &o.contacts[i]; o.knows(c) {
			o.b = max(o.b, c.reply.CLSN, c.reply.ArchivedThrough)
			if c.reply.Start > 0 && !o.cfg.Rules.IgnoreRecordedStart {
				o.b = max(o.b, c.reply.Start-1)
			}
			o.archived = max(o.archived, c.reply.ArchivedThrough)
		}
	}
	o.b = max(o.b, o.archived)
}

// survey asks the knowing nodes' answers about x: the highest label of a copy that is not void by the record's history,
// how many hold a copy, and how many call it absent.
func (o *Opener) survey(x LSN) (label Epoch, copies, absent int) {
	for i := range o.contacts {
		c := &o.contacts[i]
		if !o.knows(c) {
			continue
		}
		switch e, a := o.answer(c.reply, x); a {
		case Present:
			copies++
			label = max(label, e)
		case Absent:
			absent++
		}
	}
	return label, copies, absent
}

// answer is what one reply says about x (P3), under the record's history.
func (o *Opener) answer(r *OpenReply, x LSN) (Epoch, Answer) {
	best, found := Epoch(0), false
	i := sort.Search(len(r.Held), func(i int) bool { return r.Held[i].From > x })
	for _, e := range r.Held[:i] {
		if e.To >= x && e.Label >= best && !o.cfg.History.Void(e.Label, x) &&
			!(o.cfg.Rules.LabelIsOwner && x <= o.b && e.Label != o.cfg.History.owner(x)) {
			best, found = e.Label, true
		}
	}
	if found {
		return best, Present
	}
	if x <= r.ArchivedThrough {
		return 0, Archived
	}
	if x > r.Through {
		return 0, Unknown
	}
	for _, d := range r.Damaged {
		if x >= d.From && x <= d.To && !o.cfg.Rules.DamagedIsAbsent {
			return 0, Unknown
		}
	}
	return 0, Absent
}

// holdsTail reports whether the target holds (archived-through, B] as safely as it must by being what it is: the recorded
// nodes, and no higher write quorum. A higher one promises to survive more lost disks than the copies there can (S6).
func (o *Opener) holdsTail() bool {
	return o.cfg.Recorded.Equal(o.cfg.Target) && o.cfg.TargetQw <= o.cfg.Qw
}

// copyFrom is the first LSN that is to be copied. An open that may lose records and has heard everybody looks at what is not
// archived although its nodes hold it: what none of them can read is only then settled, and archiving goes on behind it.
func (o *Opener) copyFrom() LSN {
	if o.cfg.Rules.NoCopyToNewcomers || o.holdsTail() && (o.cfg.Loss == nil || len(o.silent()) > 0) {
		return o.b + 1
	}
	return o.archived + 1
}
