package protocol

// Rules are the switches that break one rule each, so that the simulator and the scripts can prove that they would
// notice (DESIGN section 8, mutants). The zero value is the protocol. Only tests and `btrlog sim` set them; production
// code passes Rules{}.
type Rules struct {
	// ReadWithoutFence breaks P2: a node answers Open without keeping the promise.
	ReadWithoutFence bool
	// PromiseNotDurable breaks P14: a promise is answered and not written.
	PromiseNotDurable bool
	// DecideEarly breaks P2 (X2): an open decides with one knowing node fewer than Qr.
	DecideEarly bool
	// DamagedIsAbsent breaks P3: what a node cannot read any more counts as absent.
	DamagedIsAbsent bool
	// RepairKeepsLabel breaks P6: the tail is written again under the labels it had.
	RepairKeepsLabel bool
	// KeepPartialBatch breaks P5: a tail may end inside a batch.
	KeepPartialBatch bool
	// LabelIsOwner breaks P8 as in H6: a copy is void unless its label is the epoch that the history gives the LSN to.
	LabelIsOwner bool
	// CommitBelowQuorum breaks P9: one copy fewer than Qw commits.
	CommitBelowQuorum bool
	// WrongIncarnationAnswers breaks P4 (X9, R3): a node takes what was meant for another incarnation of it, and answers for that.
	WrongIncarnationAnswers bool
	// ArchivedNotDurable breaks P14 as in H5: neither archived-through nor the watermark is written. (The watermark alone may be lost, P9.)
	ArchivedNotDurable bool
	// ArchivedIsWatermark breaks P3: a node that missed an epoch takes archived-through for a proof of its own copies.
	ArchivedIsWatermark bool
	// FlushUncommitted makes what a node holds above its watermark flushable too, which is right only if the object is stamped with
	// the watermark of the plan (A3, H11).
	FlushUncommitted bool
	// NeverSealCut breaks A2 as in H14: a segment that a takeover cut short waits to be filled.
	NeverSealCut bool
	// WatermarkFalls breaks P9 at a reader: the last answer counts, not the highest.
	WatermarkFalls bool
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
	// TailOfAnyLabel breaks P5: what came with the answers to Open counts as the copy that was chosen, whatever its label.
	TailOfAnyLabel bool
	// QuorumOfAbsents breaks P5 (X1): Qr absents outvote a copy.
	QuorumOfAbsents bool
	// CommitOutOfOrder breaks P9: the watermark jumps holes.
	CommitOutOfOrder bool
	// CountAnyIncarnation breaks I4 at the writer: an acknowledgement is matched to a member without its incarnation.
	CountAnyIncarnation bool
	// TrustForeignArchive breaks P3 as in H4: archived-through counts what an object holds above its own cLSN.
	TrustForeignArchive bool
	// NoLossSkip breaks P5's accepted loss: LSNs behind the last one found are given again.
	NoLossSkip bool
	// KeepLostCopies breaks P5's accepted loss: nodes keep and serve copies of what is recorded as lost.
	KeepLostCopies bool
	// LoseUnasked breaks P5's accepted loss: nodes that may answer, and the archive, are not waited for.
	LoseUnasked bool
	// DropBeforeArchived breaks P13: local data goes when the flush starts, not when the object is confirmed.
	DropBeforeArchived bool
}

// owner is H6's wrong reading of P8: the youngest epoch that starts at or below lsn.
func (h History) owner(lsn LSN) Epoch {
	for i := len(h) - 1; i >= 0; i-- {
		if h[i].Start <= lsn {
			return h[i].Epoch
		}
	}
	return 0
}

// keepOwned forgets what the history gives to another label, but for what the epoch now activated has repaired (H6).
func (h *held) keepOwned(hist History, activated Epoch) {
	for i := range *h {
		lr := &(*h)[i]
		if lr.label == activated {
			continue
		}
		var kept []run
		for _, r := range lr.runs {
			for x := r.From; x <= r.To; x++ {
				if hist.owner(x) == lr.label {
					kept = append(kept, run{x, x, r.SegStart, unknownOff, unknownOff})
				}
			}
		}
		lr.runs = kept
	}
}
