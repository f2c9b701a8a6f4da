package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
)

const (
	millisecond = protocol.Millisecond
	second      = 1000 * protocol.Millisecond
)

// params is everything that a seed draws before the run begins. It is printed first when a run fails.
type params struct {
	seed uint64

	nodes, n, qw int
	logs         int
	writers      int // per log, competing
	readers      int // per log and kind
	chaos        protocol.Time

	netDelay, netJitter       protocol.Time
	netLoss, netDup, netStall float64
	netStallMax               protocol.Time
	diskWrite                 protocol.Time
	direct                    bool
	lstSegment                int64
	snapshotRecords           int
	storeDelay                protocol.Time
	storeUnavailable          float64
	storeConflict             float64
	storeLost, storeLate      float64
	storeStale                float64 // of lists
	storeKill                 float64 // a node dies with its request, be it applied or not
	window                    int
	segment                   int64
	flushAge                  protocol.Time
	segmentAge                protocol.Time
	maxRecord                 int
	blockBytes                int
	flights                   int           // of a writer
	think                     protocol.Time // a writer's pause between actions
	life                      protocol.Time // of a writer, on average
	faultEvery                protocol.Time
	flushEvery                protocol.Time // how often a node looks for something to archive
	retain, retainBytes       int
	budget, reserve           int64
	trims                     bool
	packs                     float64 // how often what is due goes into one object
	faults                    []weighted
	powerCutAtEnd             bool

	trimAll      bool // trims go up to what is committed, not only to what is archived
	deletes      bool // logs are deleted, and made again under their name
	keepBytes    int64
	keepFor      protocol.Time
	collectEvery protocol.Time
	releaseIdle  protocol.Time // after how long without appends a node drops the window too
	disasters    int           // how often more disks are lost than a log survives
}

type weighted struct {
	name   string
	weight int
}

// derive returns the random stream named by salt. One root seed, all others derived, so that a draw more in one part of
// the simulator does not change what the others see.
func derive(seed uint64, salt string) *rand.Rand {
	h := uint64(14695981039346656037)
	for _, b := range []byte(salt) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(seed, h))
}

func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

func between(r *rand.Rand, lo, hi protocol.Time) protocol.Time {
	if hi <= lo {
		return lo
	}
	return lo + protocol.Time(r.Int64N(int64(hi-lo)))
}

// faultNames are the kinds of fault that the nemesis knows; draw gives each a weight, often zero, so that seeds differ
// in character.
var faultNames = []string{"power", "tear", "kill", "partition", "isolate", "powerAll", "wipe", "damage", "slowDisk", "storeDown", "storeSlow", "killClient", "pauseClient",
	"killOpener", "noStore", "restart", "starve", "starve", "wipeOpening", "cutOff"}

// draw makes the parameters of a seed.
func draw(seed uint64) *params {
	r := derive(seed, "params")
	p := &params{seed: seed}
	shape := pick(r, [2]int{3, 2}, [2]int{3, 2}, [2]int{3, 2}, [2]int{5, 3}, [2]int{4, 3}, [2]int{3, 3}, [2]int{2, 2})
	p.n, p.qw = shape[0], shape[1]
	p.nodes = p.n + r.IntN(3)
	p.logs = 1 + r.IntN(3)
	p.writers = 1 + r.IntN(3)
	p.readers = 1 + r.IntN(2)
	p.chaos = between(r, 5*second, 20*second)
	if r.IntN(12) == 0 {
		// Many logs on the same nodes, and little else.
		p.logs, p.writers, p.readers, p.chaos = 8+r.IntN(17), 1+r.IntN(2), 1, between(r, 3*second, 6*second)
	}
	p.netDelay = between(r, 20*1000, 500*1000)
	p.netJitter = between(r, 10*1000, 2*millisecond)
	if r.IntN(4) > 0 {
		p.netLoss = r.Float64() * pick(r, 0.01, 0.05, 0.2)
		p.netDup = r.Float64() * pick(r, 0.01, 0.1)
		p.netStall = r.Float64() * pick(r, 0.0, 0.01, 0.05)
		p.netStallMax = between(r, 5*millisecond, 3*second)
	}
	p.diskWrite = between(r, 30*1000, 3*millisecond)
	p.direct = r.IntN(2) == 0
	p.lstSegment = pick(r, int64(128<<10), int64(256<<10), int64(512<<10))
	p.snapshotRecords = pick(r, 10, 40, 200, 1000)
	p.storeDelay = between(r, 200*1000, 20*millisecond)
	if r.IntN(4) > 0 {
		p.storeUnavailable = r.Float64() * pick(r, 0.0, 0.05, 0.2)
		p.storeConflict = r.Float64() * pick(r, 0.0, 0.05, 0.2)
		p.storeLost = r.Float64() * pick(r, 0.0, 0.05, 0.2)
		p.storeLate = r.Float64() * pick(r, 0.0, 0.0, 0.1)
		p.storeStale = r.Float64() * pick(r, 0.0, 0.2, 1)
	}
	p.window = pick(r, 4, 16, 64)
	p.segment = protocol.MinSegmentBytes
	p.flushAge = pick(r, 0, 100*millisecond, 500*millisecond, 2*second)
	p.segmentAge = pick(r, 0, 200*millisecond, second)
	p.maxRecord = pick(r, 40, 400, 4000)
	p.blockBytes = pick(r, 1200, 8000)
	p.think = pick(r, between(r, 300*1000, 3*millisecond), between(r, millisecond, 30*millisecond))
	p.life = between(r, 200*millisecond, 4*second)
	p.faultEvery = between(r, 100*millisecond, 1500*millisecond)
	p.flushEvery = pick(r, 40*millisecond, 40*millisecond, 500*millisecond, 5*second, 60*second)
	p.retain = pick(r, 0, 0, 4)
	p.retainBytes = pick(r, 0, 0, 1500)
	if r.IntN(5) == 0 {
		p.lstSegment = max(p.lstSegment, 256<<10)
		p.budget, p.reserve = 3*p.lstSegment, 2*p.lstSegment // a node's reserve of two segment files per shard
	}
	p.trims = r.IntN(3) == 0
	p.packs = pick(r, 0, 0, 0.5, 1)
	for _, f := range faultNames {
		if w := r.IntN(4); w > 0 && r.IntN(3) > 0 {
			p.faults = append(p.faults, weighted{f, w})
		}
	}
	if len(p.faults) == 0 {
		p.faults = []weighted{{"power", 1}}
	}
	if r.IntN(4) == 0 {
		// One disk after another: each is replaced before the next is lost, and nothing but the repair keeps the records.
		p.faults = append(p.faults, weighted{"wipe", 12})
		p.faultEvery = between(r, 100*millisecond, 400*millisecond)
	}
	if r.IntN(4) == 0 {
		// Takeovers on nodes of which one after another is replaced under them, each client with other nodes out of reach.
		p.faults = append(p.faults, weighted{"wipeOpening", 6}, weighted{"cutOff", 6}, weighted{"killOpener", 3})
		p.writers, p.life = max(p.writers, 2), between(r, 200*millisecond, second)
	}
	p.powerCutAtEnd = r.IntN(2) == 0
	p.drawMore(derive(seed, "more"))
	p.flights = pick(derive(seed, "flights"), 1, 2, 4, 8)
	// In an eighth of the seeds, none of which a test names or a mutant needs: those go on finding what they have found. Of a stream of
	// its own, for the same reason.
	if r := seed % 31; r == 0 || r == 26 || r == 28 || r == 30 {
		p.storeKill = derive(seed, "kills at the store, how many").Float64() * 0.05
	}
	return p
}

// drawMore draws what came to the simulator later, from a stream of its own, so that a seed kept its other parameters.
func (p *params) drawMore(r *rand.Rand) {
	p.collectEvery = pick(r, 100*millisecond, 300*millisecond, second)
	p.trimAll = r.IntN(2) == 0
	p.releaseIdle = pick(r, 400*millisecond, 400*millisecond, 5*second)
	if p.logs <= 3 { // retention and deletions are for few logs: a round asks the store about each
		switch r.IntN(6) {
		case 0:
			p.keepBytes = pick(r, int64(1000), int64(20_000))
		case 1:
			p.keepFor = pick(r, 500*millisecond, 3*second)
		}
		p.deletes = r.IntN(6) == 0
		if r.IntN(6) == 0 {
			p.disasters = 1 + r.IntN(2)
		}
	}
	for _, f := range []string{"leaveBehind", "killRepairing"} {
		if w := r.IntN(4); w > 0 && r.IntN(2) == 0 {
			p.faults = append(p.faults, weighted{f, w})
			if f == "killRepairing" && r.IntN(2) == 0 {
				p.maxRecord, p.blockBytes = 4000, 1200 // so that a batch is repaired in many messages
			}
		}
	}
	if p.disasters > 0 {
		p.faults = append(p.faults, weighted{"disaster", 2})
	}
}

func (p *params) mode() lst.Mode {
	if p.direct {
		return lst.Direct
	}
	return lst.Buffered
}

func (p *params) String() string {
	f := ""
	for _, w := range p.faults {
		f += fmt.Sprintf(" %s:%d", w.name, w.weight)
	}
	return fmt.Sprintf("seed=%d nodes=%d ensemble=%d/%d logs=%d writers=%d readers=%d chaos=%s\n"+
		"  net: delay=%s jitter=%s loss=%.3f dup=%.3f stall=%.3f up to %s\n"+
		"  disk: write=%s direct=%v segment=%d snapshot=%d records\n"+
		"  store: delay=%s unavailable=%.3f conflict=%.3f lost=%.3f late=%.3f stale lists=%.3f kills=%.3f\n"+
		"  log: window=%d segment=%d flush age=%s segment age=%s record<=%d block=%d flights=%d\n"+
		"  writers: think=%s life=%s\n  archive: looks every %s, drops idle windows after %s; retain %d, %d bytes; disk budget %d; packs=%.1f; trims=%v to the tail=%v; keep %d bytes, %s; deletes=%v; collects every %s; disasters=%d\n  faults: every %s:%s; power cut at end=%v",
		p.seed, p.nodes, p.n, p.qw, p.logs, p.writers, p.readers, ms(p.chaos),
		ms(p.netDelay), ms(p.netJitter), p.netLoss, p.netDup, p.netStall, ms(p.netStallMax),
		ms(p.diskWrite), p.direct, p.lstSegment, p.snapshotRecords,
		ms(p.storeDelay), p.storeUnavailable, p.storeConflict, p.storeLost, p.storeLate, p.storeStale, p.storeKill,
		p.window, p.segment, ms(p.flushAge), ms(p.segmentAge), p.maxRecord, p.blockBytes, p.flights,
		ms(p.think), ms(p.life), ms(p.flushEvery), ms(p.releaseIdle), p.retain, p.retainBytes, p.budget, p.packs, p.trims, p.trimAll, p.keepBytes, ms(p.keepFor), p.deletes, ms(p.collectEvery), p.disasters, ms(p.faultEvery), f, p.powerCutAtEnd)
}

func ms(t protocol.Time) string { return fmt.Sprintf("%.3fms", float64(t)/1e6) }

// counters count what happened in a run; over many seeds a required one that stays zero fails the run, because then the
// faults it stands for were never tried.
type counters struct {
	Packets, Lost, Duplicated, Delayed, Partitioned  int
	StoreRequests, StoreOutages, StaleLists          int
	OneWayPartitions, Starved, WipesInTakeover       int
	AppliedButUnknown, StoreConflicts, HiddenRetries int
	Batches, Appends, AppendBatches, Commits         int
	WindowFull                                       int
	Opens, OpensDone, OpensFailed, OpensKilled       int
	Takeovers, OverlappingTakeovers                  int
	EnsembleChanges, LiveReopens, Repaired, Copied   int
	PartialActivations, StaleReturners               int
	Fenced, Zombies, ClientCrashes                   int
	PowerCuts, TornWrites, Kills, PowerCutsOfAll     int
	KillsAtStore                                     int // of nodes, with a request under way
	Boots, Replayed, RefusedStarts                   int
	Wipes, Damages, DamagedSeen                      int
	Flushes, FlushErrors, Looks, ArchivedRaised      int
	Snapshots, UnprovenObjects                       int
	Packs, PacksMerged, PacksDeleted                 int
	HoledSegments, Reclaimed                         int
	Doubles                                          int // copies at the end all of which another copy holds
	HotReads, HotRecords, ColdReads, ColdRecords     int
	Polls, FinalRecords, Tails, MergedRecords        int
	LostThenFound                                    int
	Trims, NoSpace, Restarts, OpenersKilled          int
	RepairsCutShort, LeftBehind                      int
	StoreRefusals                                    int
	ManyLogs                                         int // worlds with eight logs or more
	Disasters, CalledGone, LossesAccepted            int
	LostRanges, Skips, LossReads                     int
	Expired, Collected, TrimmedReads, BroughtBack    int
	LogsDeleted, LateForDeleted                      int
	Events                                           int
	VirtualMS                                        int
}

func (c *counters) add(n *int) { *n++ }

// required names the counters that a run over many seeds must not leave at zero. NoSpace is not among them: few seeds have a disk
// budget that is reached, and internal/shard and internal/node test full disks by themselves.
var required = []string{"Commits", "Takeovers", "OverlappingTakeovers", "PowerCuts", "TornWrites", "Kills", "KillsAtStore", "PowerCutsOfAll", "Wipes", "DamagedSeen",
	"AppliedButUnknown", "StaleReturners", "PartialActivations", "HoledSegments", "EnsembleChanges", "Zombies", "Fenced", "Duplicated",
	"Lost", "Delayed", "Partitioned", "OneWayPartitions", "Starved", "WipesInTakeover", "StoreOutages", "StoreConflicts", "HiddenRetries", "StaleLists", "HotRecords", "ColdRecords", "MergedRecords", "Tails", "Repaired", "Copied", "ArchivedRaised", "Snapshots", "UnprovenObjects", "Packs", "PacksMerged", "PacksDeleted", "Reclaimed", "Trims", "Restarts", "OpenersKilled", "RepairsCutShort", "LeftBehind", "StoreRefusals", "Polls", "LiveReopens", "ManyLogs",
	"Expired", "Collected", "TrimmedReads", "BroughtBack", "LogsDeleted", "Disasters", "LossesAccepted", "Skips", "LossReads"}

// table returns the counters by name.
func (c *counters) table() map[string]int {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	m := map[string]int{}
	if err := json.Unmarshal(b, &m); err != nil {
		panic(err)
	}
	return m
}

// merge adds o to c.
func (c *counters) merge(o *counters) {
	m, n := c.table(), o.table()
	for k, v := range n {
		m[k] += v
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	if err := json.Unmarshal(b, c); err != nil {
		panic(err)
	}
}
