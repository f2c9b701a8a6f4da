package sim

import (
	"github.com/btrlog/btrlog/internal/collect"
	"github.com/btrlog/btrlog/internal/protocol"
)

// Mutant is a product with one rule broken. The zero value is the product.
type Mutant struct {
	Name string
	// Breaks says which rule and what is lost by it.
	Breaks string
	Rules  protocol.Rules
	// World, if not nil, is for a mutant that the workload of the seeds hardly reaches: the explorer finds it there.
	World *Exploration
	// ReplyBeforeCommit sends a batch's answers while its write is in flight (P14).
	ReplyBeforeCommit bool
	// SyncLeftOut makes every sync report success and do nothing (P14).
	SyncLeftOut bool
	// UnlinkBeforeSync removes files while the write before is in flight (T6).
	UnlinkBeforeSync bool
	// StampLate stamps an object with the watermark of the moment of the PUT (A3, H11).
	StampLate bool
	// FlushEarly archives a segment before the watermark covers it, and not again (A2, H13).
	FlushEarly bool
	// ReuseAfterCancel gives the LSNs of appends that were given up out again (P10).
	ReuseAfterCancel bool
	// LostRace takes a 412 for a lost race although the write that it met was the client's own (P1, X3).
	LostRace bool
	// InstallUnchecked goes on to Activate whatever the compare-and-swap said (P7).
	InstallUnchecked bool
	// Collect breaks rules of what may be deleted.
	Collect collect.Rules
	// DeleteUnchecked puts a tombstone over the reign of a later opener.
	DeleteUnchecked bool
	// ForgetLoss leaves out of an install what the open gave up (P5).
	ForgetLoss bool
}

// mutants are all switches.
func mutants() []Mutant {
	r := func(name, breaks string, set func(*protocol.Rules)) Mutant {
		m := Mutant{Name: name, Breaks: breaks}
		set(&m.Rules)
		return m
	}
	explored := func(o Exploration, m Mutant) Mutant {
		m.World = &o
		return m
	}
	late := Mutant{Name: "stamp-late", Breaks: "A3, H11: an object is stamped with a later watermark than its records", StampLate: true}
	late.Rules.FlushUncommitted = true
	return []Mutant{
		{Name: "lost-race-412", Breaks: "P1, X3: a 412 after a time-out is taken for a lost race", LostRace: true},
		r("read-without-fence", "P2: recovery reads without the fence", func(r *protocol.Rules) { r.ReadWithoutFence = true }),
		r("take-appends-below-promise", "P2: a fenced writer's append is stored", func(r *protocol.Rules) { r.TakeAppendsBelowPromise = true }),
		r("decide-early", "P2, X2: an open decides with fewer than Qr knowing nodes", func(r *protocol.Rules) { r.DecideEarly = true }),
		explored(Exploration{Nodes: 3, Qw: 2, Writers: 2, Records: 1, Damages: 1},
			r("damaged-is-absent", "P3: what a node cannot read any more counts as absent", func(r *protocol.Rules) { r.DamagedIsAbsent = true })),
		r("trust-foreign-archive", "P3, H4: archived-through counts above an object's own cLSN", func(r *protocol.Rules) {
			r.TrustForeignArchive, r.FlushUncommitted = true, true
		}),
		r("blank-nodes-vote", "P4: an incarnation that is not on record counts", func(r *protocol.Rules) { r.BlankNodesVote = true }),
		explored(Exploration{Nodes: 3, Qw: 2, Writers: 3, Records: 1, Wipes: 1, Opened: true},
			r("answer-for-another", "P4, X9: a node takes what was meant for another incarnation of it, and answers for that", func(r *protocol.Rules) {
				r.WrongIncarnationAnswers = true
			})),
		explored(Exploration{Nodes: 3, Qw: 2, Writers: 3, Records: 1, Opened: true},
			r("ignore-recorded-start", "P5, H2: B ignores the starts of the record", func(r *protocol.Rules) { r.IgnoreRecordedStart = true })),
		r("lose-unasked", "P5: what nobody was asked for is given up", func(r *protocol.Rules) { r.LoseUnasked = true }),
		r("no-loss-skip", "P5: an accepted loss gives LSNs again that may have been given out", func(r *protocol.Rules) { r.NoLossSkip = true }),
		{Name: "forget-loss", Breaks: "P5: what was given up is not recorded", ForgetLoss: true},
		r("no-repair", "P6: the tail is not written again", func(r *protocol.Rules) { r.NoRepair = true }),
		r("repair-keeps-label", "P6: the tail is written again under the labels it had", func(r *protocol.Rules) { r.RepairKeepsLabel = true }),
		r("no-copy-to-newcomers", "P6, H3: committed records are not copied to a new ensemble", func(r *protocol.Rules) { r.NoCopyToNewcomers = true }),
		r("activate-before-record", "P7, H1: Activate goes out before the CAS", func(r *protocol.Rules) { r.ActivateBeforeRecord = true }),
		{Name: "install-unchecked", Breaks: "P7: Activate goes out although the CAS failed", InstallUnchecked: true},
		r("void-from-start-only", "P7, H8: activation voids only from the new start", func(r *protocol.Rules) { r.VoidFromStartOnly = true }),
		explored(Exploration{Nodes: 3, Qw: 2, Writers: 2, Records: 2, Opened: true},
			r("watermark-before-activate", "P7, H9: a watermark is taken at a promise", func(r *protocol.Rules) { r.WatermarkBeforeActivate = true })),
		r("label-is-owner", "P8, H6: copies are void unless their label is the epoch that owns the LSN", func(r *protocol.Rules) { r.LabelIsOwner = true }),
		r("commit-out-of-order", "P9: the watermark jumps holes", func(r *protocol.Rules) { r.CommitOutOfOrder = true }),
		r("commit-below-quorum", "P9: one copy fewer than Qw commits", func(r *protocol.Rules) { r.CommitBelowQuorum = true }),
		r("watermark-falls", "P9: the watermark of a reader may fall", func(r *protocol.Rules) { r.WatermarkFalls = true }),
		{Name: "reuse-after-cancel", Breaks: "P10: the LSN of an append that was given up is given out again", ReuseAfterCancel: true},
		r("drop-before-archived", "P13: local data goes before the object is confirmed", func(r *protocol.Rules) { r.DropBeforeArchived = true }),
		{Name: "reply-before-commit", Breaks: "P14: an answer leaves while its write is in flight", ReplyBeforeCommit: true},
		{Name: "sync-left-out", Breaks: "P14: nothing is ever forced", SyncLeftOut: true},
		r("promise-not-durable", "P14: a promise is answered and not written", func(r *protocol.Rules) { r.PromiseNotDurable = true }),
		r("archived-not-durable", "P14, H5: archived-through is not written", func(r *protocol.Rules) { r.ArchivedNotDurable = true }),
		{Name: "flush-early", Breaks: "A2, H13: a segment is archived before the watermark covers it, and not again", FlushEarly: true},
		r("never-seal-cut", "A2, H14: a segment that a takeover cut short waits to be filled", func(r *protocol.Rules) { r.NeverSealCut = true }),
		late,
		{Name: "delete-unchecked", Breaks: "A5: a log is deleted by one whose token does not stand any more", DeleteUnchecked: true},
		{Name: "delete-first", Breaks: "A4: objects go before the trim point that the retention asks for is on record", Collect: collect.Rules{DeleteFirst: true}},
		{Name: "collect-once", Breaks: "A4: what a stalled creator brings back after its deletion is never looked for", Collect: collect.Rules{NeverAgain: true}},
		{Name: "unlink-before-sync", Breaks: "T6: a file goes before the snapshot that replaces it is forced", UnlinkBeforeSync: true},
	}
}

// mutantNamed finds a mutant.
func mutantNamed(name string) (Mutant, bool) {
	for _, m := range mutants() {
		if m.Name == name {
			return m, true
		}
	}
	return Mutant{}, false
}

// Verdict is what became of one mutant.
type Verdict struct {
	Name   string `json:"name"`
	Breaks string `json:"breaks"`
	Killed bool   `json:"killed"`
	Seed   uint64 `json:"seed"`  // the first that killed it
	Seeds  int    `json:"seeds"` // how many were tried
	By     string `json:"by"`    // the rule that was found broken
	How    string `json:"how"`
	Events int    `json:"events"` // of the run that killed it
	// Explorer: it was not a seed but the explorer, in so many steps.
	Explorer bool     `json:"explorer"`
	Steps    int      `json:"steps,omitempty"`
	Trace    []string `json:"trace,omitempty"`
	CPU      float64  `json:"-"`
}

// seedsBesideWorld is how many seeds a mutant with a world of its own survives before the explorer takes it.
const seedsBesideWorld = 20

// hunt runs a mutant over seeds until one kills it: the first that does. What survives them the explorer looks for.
func hunt(m Mutant, from uint64, n int) Verdict {
	v := Verdict{Name: m.Name, Breaks: m.Breaks}
	if m.World != nil {
		n = min(n, seedsBesideWorld)
	}
	inOrder(0, n, func(i int) outcome { return runSeed(from+uint64(i), m, false) }, func(i int, o outcome) bool {
		v.Seeds++
		if o.failure != nil {
			v.Killed, v.Seed, v.By, v.How, v.Events = true, o.failure.Seed, o.failure.Rule, o.failure.Message, o.counters.Events
		}
		return !v.Killed
	})
	if !v.Killed && m.World != nil {
		o := *m.World
		o.Rules = m.Rules
		f := Explore(o)
		v.Killed, v.Explorer, v.By, v.How, v.Steps, v.Events, v.Trace = f.Rule != "", true, f.Rule, f.Message, len(f.Trace), f.States, f.Trace
	}
	return v
}
