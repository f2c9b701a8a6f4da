package sim

import "github.com/btrlog/btrlog/internal/protocol"

// Mutant is a product with one rule broken. The zero value is the product.
type Mutant struct {
	Name string
	// Breaks says which rule and what is lost by it.
	Breaks string
	Rules  protocol.Rules
	// ReplyBeforeCommit sends a batch's answers while its write is in flight (P14).
	ReplyBeforeCommit bool
	// SyncLeftOut makes every sync report success and do nothing (P14).
	SyncLeftOut bool
}

// mutants are all switches.
func mutants() []Mutant {
	r := func(name, breaks string, set func(*protocol.Rules)) Mutant {
		m := Mutant{Name: name, Breaks: breaks}
		set(&m.Rules)
		return m
	}
	return []Mutant{
		{Name: "reply-before-commit", Breaks: "P14: an answer leaves while its write is in flight", ReplyBeforeCommit: true},
		{Name: "sync-left-out", Breaks: "P14: nothing is ever forced", SyncLeftOut: true},
		r("take-appends-below-promise", "P2: a fenced writer's append is stored", func(r *protocol.Rules) { r.TakeAppendsBelowPromise = true }),
		r("fetch-without-promise", "P2: a recovery read is answered without the fence", func(r *protocol.Rules) { r.FetchWithoutPromise = true }),
		r("void-from-start-only", "P7, H8: activation voids only from the new start", func(r *protocol.Rules) { r.VoidFromStartOnly = true }),
		r("watermark-before-activate", "P7, H9: a watermark is taken at a promise", func(r *protocol.Rules) { r.WatermarkBeforeActivate = true }),
		r("blank-nodes-vote", "P4: an incarnation that is not on record counts", func(r *protocol.Rules) { r.BlankNodesVote = true }),
		r("ignore-recorded-start", "P5, H2: B ignores the starts of the record", func(r *protocol.Rules) { r.IgnoreRecordedStart = true }),
		r("activate-before-record", "P7, H1: Activate goes out before the CAS", func(r *protocol.Rules) { r.ActivateBeforeRecord = true }),
		r("no-copy-to-newcomers", "P6, H3: committed records are not copied to a new ensemble", func(r *protocol.Rules) { r.NoCopyToNewcomers = true }),
		r("no-repair", "P6: the tail is not written again", func(r *protocol.Rules) { r.NoRepair = true }),
		r("quorum-of-absents", "P5, X1: Qr absents outvote a copy", func(r *protocol.Rules) { r.QuorumOfAbsents = true }),
		r("commit-out-of-order", "P9: the watermark jumps holes", func(r *protocol.Rules) { r.CommitOutOfOrder = true }),
		r("count-any-incarnation", "I4: acknowledgements are matched without the incarnation", func(r *protocol.Rules) { r.CountAnyIncarnation = true }),
		r("trust-foreign-archive", "P3, H4: archived-through counts above an object's own cLSN", func(r *protocol.Rules) { r.TrustForeignArchive = true }),
		r("drop-before-archived", "P13: local data goes before the object is confirmed", func(r *protocol.Rules) { r.DropBeforeArchived = true }),
	}
}

// Verdict is what became of one mutant.
type Verdict struct {
	Name   string  `json:"name"`
	Breaks string  `json:"breaks"`
	Killed bool    `json:"killed"`
	Seed   uint64  `json:"seed"`  // the first that killed it
	Seeds  int     `json:"seeds"` // how many were tried
	By     string  `json:"by"`    // the rule that was found broken
	How    string  `json:"how"`
	Events int     `json:"events"` // of the run that killed it
	CPU    float64 `json:"-"`
}

// hunt runs a mutant over seeds until one kills it: the first that does.
func hunt(m Mutant, from uint64, n int) Verdict {
	v := Verdict{Name: m.Name, Breaks: m.Breaks}
	inOrder(0, n, func(i int) outcome { return runSeed(from+uint64(i), m, false) }, func(i int, o outcome) bool {
		v.Seeds++
		if o.failure != nil {
			v.Killed, v.Seed, v.By, v.How, v.Events = true, o.failure.Seed, o.failure.Rule, o.failure.Message, o.counters.Events
		}
		return !v.Killed
	})
	return v
}
