package protocol

import (
	"flag"
	"reflect"
	"testing"
)

var mutantSeeds = flag.Int("mutant-seeds", 4000, "how many seeds the search for a mutant's violation tries")

// simKills lists the mutants that the simulation must find by search over seeds. The others need a test that aims:
//
//	FetchWithoutPromise      an Opener never asks a node that did not promise   TestFetchNeedsPromise
//	WatermarkBeforeActivate  one seed in some 30,000                            script h09
//	QuorumOfAbsents          drops only what was not committed                  script x01, TestPaperOneCopyIsEnough
//	CountAnyIncarnation      a Shard never acknowledges for another             TestAckOfForeignIncarnation
//	DamagedIsAbsent, KeepPartialBatch, LabelIsOwner, ArchivedNotDurable,        internal/sim, whose readers, disks and flushers are
//	FlushUncommitted, NeverSealCut, WatermarkFalls                              those of the product
//	NoLossSkip, KeepLostCopies, LoseUnasked                                     TestLossSimulationKillsMutants
var simKills = map[string]bool{
	"ReadWithoutFence": true, "PromiseNotDurable": true, "DecideEarly": true, "DamagedIsAbsent": false, "RepairKeepsLabel": true, "KeepPartialBatch": false,
	"LabelIsOwner": false, "CommitBelowQuorum": true, "WrongIncarnationAnswers": true, "ArchivedNotDurable": false, "ArchivedIsWatermark": true,
	"FlushUncommitted": false, "NeverSealCut": false, "WatermarkFalls": false, "NoLossSkip": false, "KeepLostCopies": false, "LoseUnasked": false,
	"TakeAppendsBelowPromise": true, "FetchWithoutPromise": false, "VoidFromStartOnly": true, "WatermarkBeforeActivate": false,
	"BlankNodesVote": true, "IgnoreRecordedStart": true, "ActivateBeforeRecord": true, "NoCopyToNewcomers": true, "NoRepair": true,
	"QuorumOfAbsents": false, "TailOfAnyLabel": true, "CommitOutOfOrder": true, "CountAnyIncarnation": false, "TrustForeignArchive": true, "DropBeforeArchived": true,
}

// TestSimulationKillsMutants: a check that cannot fail is no check.
func TestSimulationKillsMutants(t *testing.T) {
	rt := reflect.TypeOf(Rules{})
	for i := range rt.NumField() {
		name := rt.Field(i).Name
		kill, known := simKills[name]
		if !known {
			t.Errorf("rule %s is not in simKills: is it found by the simulation?", name)
		}
		t.Run(name, func(t *testing.T) {
			var rules Rules
			reflect.ValueOf(&rules).Elem().Field(i).SetBool(true)
			seeds := *mutantSeeds
			if !kill {
				seeds /= 20
			}
			for seed := uint64(1); seed <= uint64(seeds); seed++ {
				if s := runSim(seed, rules, false); len(s.oracle.bad) > 0 {
					t.Logf("seed %d: %s", seed, s.oracle.bad[0])
					return
				}
			}
			if kill {
				t.Errorf("no violation in %d seeds", *mutantSeeds)
			}
		})
	}
}

// The same for accepted losses.
func TestLossSimulationKillsMutants(t *testing.T) {
	for name, rules := range map[string]Rules{
		"NoLossSkip": {NoLossSkip: true}, "KeepLostCopies": {KeepLostCopies: true}, "LoseUnasked": {LoseUnasked: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= uint64(*mutantSeeds); seed++ {
				if s := runLossSim(seed, rules, false); len(s.oracle.bad) > 0 {
					t.Logf("seed %d: %s", seed, s.oracle.bad[0])
					return
				}
			}
			t.Errorf("no violation in %d seeds", *mutantSeeds)
		})
	}
}
