package node

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/shard"
	"github.com/btrlog/btrlog/lst"
)

// Packing. What is short of the tails of very many logs would cost a PUT each; a node puts what is due of all its shards
// into one object instead, at most once in Config.PackEvery. While it is at it, it takes along what has a quarter of its age already,
// so that logs which become due one after another do so together.
//
// Who packs a stretch is who would have written it: the node of rank 0, and the one of rank k when k × (PackEvery + grace) have
// passed. Before a node packs anything it reads the packs that others have made since, all their logs at once, so that ten thousand
// stretches cost a listing and not ten thousand. A few that another node should have written by then are looked for one by one:
// a stretch that was alone is an object of its own.

const (
	// packStretches and packBytes bound what one round takes of one shard; the next round follows at once.
	packStretches = 1 << 15
	packBytes     = 32 << 20
	// packSlice is how many logs a shard looks at, and how many results it takes, in one go: its other logs wait so long.
	packSlice = 256
	// packShare: what is no larger than this part of a full segment may be packed, up to packLimit bytes.
	packShare = 16
	packLimit = 1 << 20
	// packLooks is how many stretches of other nodes are looked for one by one.
	packLooks = 16
	// packEarly: a stretch is taken along when it has this part of its age.
	packEarly = 4
	// packMemory is how long a pack may lie before a node that starts no longer reads it.
	packMemory = time.Hour
)

// packer is the goroutine's state and counters.
type packer struct {
	wake chan struct{}
	// hurry makes a round begin at once: a shard has no room, and what is archived need not be kept.
	hurry chan struct{}
	seen  map[string]bool // packs whose content the shards were told

	packs, packed, merged, deleted atomic.Uint64
}

// full says that a shard has no room. Any thread may call it.
func (p *packer) full() {
	select {
	case p.hurry <- struct{}{}:
	default:
	}
}

// PackStatus says how packing goes. Counts are since the start of the node.
type PackStatus struct {
	Packs   uint64 `json:"packs"`   // written
	Packed  uint64 `json:"packed"`  // stretches in them
	Merged  uint64 `json:"merged"`  // packs whose content was written anew
	Deleted uint64 `json:"deleted"` // packs, after merging
}

func (p *packer) status() PackStatus {
	return PackStatus{p.packs.Load(), p.packed.Load(), p.merged.Load(), p.deleted.Load()}
}

func (p *packer) init() {
	p.wake, p.hurry, p.seen = make(chan struct{}, 1), make(chan struct{}, 1), make(map[string]bool)
}

// want has the packer make a round soon. Any thread may call it.
func (p *packer) want() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// packRequest asks a shard what it has to be packed. The shard never waits to answer.
type packRequest chan packAnswer

// packAnswer is what a shard has; more says that it has more than fits a round.
type packAnswer struct {
	parts []packPart
	more  bool
}

// packPart is stretches with the view that belongs to them (A3).
type packPart struct {
	view lst.View
	segs []protocol.Segment
	keys []planKey
	turn []turnTo
}

// turnTo says why a stretch is in a part.
type turnTo uint8

const (
	packIt    turnTo = iota // it is due
	takeAlong               // it will be due: if there is a pack, it goes in
	lookForIt               // another node's turn to pack it is not over
)

// packing is a request that a shard's thread is answering.
type packing struct {
	req   packRequest
	logs  []protocol.LogID // that are still to be looked at
	has   packAnswer
	count int
	bytes uint64
	full  bool // the shard has no room: what is not due goes too
}

func (n *Node) packing() bool { return n.cfg.PackEvery > 0 }

// packLoop runs until ctx ends.
func (n *Node) packLoop(ctx context.Context) {
	giveWay()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		hurried := false
		select {
		case <-ctx.Done():
			return
		case <-n.packer.hurry:
			hurried = true
		case <-pause.C:
		}
		if !hurried {
			select {
			case <-ctx.Done():
				return
			case <-n.packer.hurry:
			case <-n.packer.wake:
			}
		}
		wait := n.cfg.PackEvery
		switch more, err := n.packRound(ctx); {
		case err != nil && ctx.Err() == nil:
			n.log.Repeat(slog.LevelWarn, "", "short stretches not archived, will be tried again", "error", err)
			n.packer.want()
			wait = min(wait, time.Duration(lastPause))
		case more:
			n.packer.want()
			wait = 0
		}
		pause.Reset(wait)
	}
}

// packRound packs what is due; more says that there was too much for one round.
func (n *Node) packRound(ctx context.Context) (more bool, err error) {
	n.flusher.running.Add(1)
	defer n.flusher.running.Add(-1)
	if err := n.learnPacks(ctx); err != nil {
		return false, err
	}
	var lists [3]packList
	for _, t := range n.threads {
		req := make(packRequest, 1)
		t.inbox.report(report{pack: req})
		t.loop.Wake()
		var has packAnswer
		select {
		case has = <-req:
		case <-ctx.Done(): // the node stops
			return false, ctx.Err()
		}
		more = more || has.more
		for _, p := range has.parts {
			for i, s := range p.segs {
				list := &lists[p.turn[i]]
				list.plans = append(list.plans, archive.PackPlan{Plan: s, Source: records(p.view, s)})
				list.of, list.keys = append(list.of, t), append(list.keys, p.keys[i])
			}
		}
	}
	others := &lists[lookForIt]
	n.tell(ctx, others, n.lookForFew(ctx, others.plans), true)
	due, along := &lists[packIt], &lists[takeAlong]
	if len(due.plans) == 0 {
		n.tell(ctx, along, make([]archive.PackResult, len(along.plans)), true)
		return more, ctx.Err()
	}
	due.plans, due.of, due.keys = append(due.plans, along.plans...), append(due.of, along.of...), append(due.keys, along.keys...)
	n.tell(ctx, due, n.pack(ctx, due.plans), false)
	return more, ctx.Err()
}

// packList is stretches with the shards that they are of.
type packList struct {
	plans []archive.PackPlan
	of    []*thread
	keys  []planKey
}

// tell gives the results to the shards; back says that a stretch without one was not tried.
func (n *Node) tell(ctx context.Context, l *packList, results []archive.PackResult, back bool) {
	n.tellAll(ctx, len(results), func(i int) (*thread, report) {
		r := report{key: l.keys[i], objects: results[i].Objects, err: results[i].Err}
		if r.back = back && r.err == nil && len(r.objects) == 0; !r.back {
			n.flusher.note(n, &job{key: r.key}, r.err)
		}
		return l.of[i], r
	})
}

// lookForFew looks for stretches that another node should have written, if they are few.
func (n *Node) lookForFew(ctx context.Context, plans []archive.PackPlan) []archive.PackResult {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	results := make([]archive.PackResult, len(plans))
	for i := range plans {
		if len(plans) <= packLooks {
			results[i].Objects, results[i].Err = n.archive.LookFor(ctx, plans[i].Plan)
		}
	}
	return results
}

// pack writes the stretches.
func (n *Node) pack(ctx context.Context, plans []archive.PackPlan) []archive.PackResult {
	if len(plans) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	late := 0 // those of other nodes, which did not pack them, or made an object of one
	for i := range plans {
		if plans[i].Plan.Rank > 0 {
			late++
		}
	}
	if late == len(plans) && late <= packLooks || len(plans) == 1 {
		// An object of its own costs the same as a pack, and is easier to read; and to look first costs little.
		results := make([]archive.PackResult, len(plans))
		for i := range plans {
			results[i].Objects, results[i].Err = n.archive.Flush(ctx, plans[i].Plan, plans[i].Source)
		}
		return results
	}
	results := n.archive.FlushPack(ctx, plans)
	n.packer.packs.Add(1)
	for i := range results {
		if results[i].Err == nil {
			n.packer.packed.Add(1)
		}
	}
	return results
}

// learnPacks tells the shards what the packs hold that were made since the last time.
func (n *Node) learnPacks(ctx context.Context) error {
	var news []archive.Packed
	io, cancel := context.WithTimeout(ctx, flushTimeout)
	err := n.archive.NewPacks(io, n.packer.seen, time.Now().Add(-packMemory), func(p archive.Packed) { news = append(news, p) })
	cancel()
	n.tellAll(ctx, len(news), func(i int) (*thread, report) {
		return n.threads[n.owner(news[i].Log)], report{key: planKey{log: news[i].Log}, objects: news[i].Objects, learned: true}
	})
	return err
}

// tellAll gives reports to the shards, in portions, and waits for each to be taken: what a batch takes in delays the appends in it.
func (n *Node) tellAll(ctx context.Context, count int, get func(i int) (*thread, report)) {
	shards := make([][]report, len(n.threads))
	for i := range count {
		t, r := get(i)
		shards[t.index] = append(shards[t.index], r)
	}
	for i, t := range n.threads {
		for portion := range slices.Chunk(shards[i], packSlice) {
			taken := make(chan struct{})
			portion[len(portion)-1].taken = taken
			for _, r := range portion {
				t.inbox.report(r)
			}
			t.loop.Wake()
			select {
			case <-taken:
			case <-ctx.Done(): // the node stops
				return
			}
		}
	}
}

// packable says whether a stretch is to be packed.
func (t *thread) packable(s *protocol.Segment) bool {
	short, err := t.short(s)
	return err == nil && short && !s.Holed && s.CLSN >= s.Last
}

// short says whether a stretch is short enough to be packed. An error is of the moment: a record of this batch is not in the store yet.
func (t *thread) short(s *protocol.Segment) (bool, error) {
	bytes, err := shard.StretchBytes(t.core.View(), *s)
	return bytes <= min(s.Limit/packShare, packLimit), err
}

// beginPacking takes a request.
func (t *thread) beginPacking(req packRequest) {
	t.packing = &packing{req: req, full: t.core.Stats().Full}
	for log := range t.plan.logs {
		t.packing.logs = append(t.packing.logs, log)
	}
	t.nextTick = 0
}

// packSome looks at some more logs for the request under way.
func (t *thread) packSome(now protocol.Time) {
	p := t.packing
	if p == nil {
		return
	}
	part := packPart{view: t.core.View()}
	for range packSlice {
		if len(p.logs) == 0 {
			break
		}
		if p.count >= packStretches || p.bytes >= packBytes {
			p.logs, p.has.more = nil, true
			break
		}
		log := p.logs[len(p.logs)-1]
		p.logs = p.logs[:len(p.logs)-1]
		if l := t.plan.logs[log]; l != nil {
			t.packLog(now, l, p, &part)
		}
	}
	if len(part.segs) > 0 {
		p.has.parts = append(p.has.parts, part)
	}
	if len(p.logs) == 0 {
		p.req <- p.has
		t.packing = nil
	}
}

// packLog takes what is to be packed of one log.
func (t *thread) packLog(now protocol.Time, l *logPlan, p *packing, part *packPart) {
	t.core.FlushableOf(l.log, now, func(s protocol.Segment) {
		key := planKey{log: s.Log, label: s.Label, segStart: s.SegStart, first: s.First}
		e := l.entries[key]
		if e == nil || e.busy || now < e.next || len(e.objects) > 0 {
			return
		}
		due := func(wait protocol.Time) bool {
			return s.Complete && e.complete != 0 && now >= e.complete+wait ||
				s.FlushAge > 0 && s.Age >= s.FlushAge+protocol.Time(t.n.cfg.FlushGrace)+wait
		}
		turn := packIt
		switch {
		case due(protocol.Time(s.Rank) * protocol.Time(t.n.cfg.FlushGrace+t.n.cfg.PackEvery)):
		case p.full && (s.Rank == 0 || due(protocol.Time(s.Rank)*protocol.Time(t.n.cfg.FlushGrace))):
		case s.Rank == 0 && s.FlushAge > 0 && s.Age >= s.FlushAge/packEarly:
			turn = takeAlong
		case due(protocol.Time(s.Rank) * protocol.Time(t.n.cfg.FlushGrace)):
			turn = lookForIt
		default:
			return
		}
		if !t.packable(&s) {
			return
		}
		bytes, _ := shard.StretchBytes(part.view, s)
		p.bytes += bytes
		p.count++
		e.busy = true
		part.segs, part.keys, part.turn = append(part.segs, s), append(part.keys, key), append(part.turn, turn)
	})
}

// learned takes in what a pack of another node holds of a log.
func (t *thread) learned(now protocol.Time, r *report) {
	objects := r.objects
	if l := t.plan.logs[r.key.log]; l != nil {
		for k, e := range l.entries {
			// It waits with the stretch that it is of, should records below it not be archived yet.
			for _, o := range r.objects {
				if o.Label == k.label && o.First <= k.first && k.first <= o.Last {
					e.objects, e.next = append(e.objects, o), now+recheck
				}
			}
			objects = append(objects, e.objects...)
		}
		t.plan.lookAt(r.key.log, now)
	}
	t.core.Archived(now, r.key.log, objects)
}

// mergePacks merges packs, and deletes what of them is not wanted any more, in a round of collection.
func (n *Node) mergePacks(ctx context.Context) error {
	r, err := n.collector.MergePacks(ctx, n.cfg.PackSettled)
	n.packer.merged.Add(uint64(r.Merged))
	n.packer.deleted.Add(uint64(r.Deleted))
	return err
}
