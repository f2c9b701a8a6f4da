package protocol

// Rules are the switches that break one rule each, so that the simulator and the scripts can prove that they would
// notice (DESIGN section 8, mutants). The zero value is the protocol. Only tests and `btrlog sim` set them; production
// code passes Rules{}.
type Rules struct {
	// TakeAppendsBelowPromise breaks P2: a fenced writer's append is still stored.
	TakeAppendsBelowPromise bool
	// FetchWithoutPromise breaks P2: recovery reads are answered by a node that did not promise.
	FetchWithoutPromise bool
	// VoidFromStartOnly breaks P7 as in H8: activation voids only from the new start upward.
	VoidFromStartOnly bool
	// WatermarkBeforeActivate breaks P7 as in H9: a watermark is taken at a promise.
	WatermarkBeforeActivate bool
	// BlankNodesVote breaks P4: an incarnation that is not on record counts as absent.
	BlankNodesVote bool
	// IgnoreRecordedStart breaks P5 as in H2: B ignores the starts of the record.
	IgnoreRecordedStart bool
	// ActivateBeforeRecord breaks P7 as in H1: Activate goes out before the CAS.
	ActivateBeforeRecord bool
	// NoCopyToNewcomers breaks P6 as in H3: committed records are not copied when the ensemble changes.
	NoCopyToNewcomers bool
	// NoRepair breaks P6: the tail is not written again before the writer opens.
	NoRepair bool
	// QuorumOfAbsents breaks P5 (X1): Qr absents outvote a copy.
	QuorumOfAbsents bool
	// CommitOutOfOrder breaks P9: the watermark jumps holes.
	CommitOutOfOrder bool
	// CountAnyIncarnation breaks I4 at the writer: an acknowledgement is matched to a member without its incarnation.
	CountAnyIncarnation bool
	// TrustForeignArchive breaks P3 as in H4: archived-through counts what an object holds above its own cLSN.
	TrustForeignArchive bool
	// DropBeforeArchived breaks P13: local data goes when the flush starts, not when the object is confirmed.
	DropBeforeArchived bool
}
