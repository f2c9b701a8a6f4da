package lst

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"syscall"
	"testing"
	"time"

	"github.com/btrlog/btrlog/lst/vfs"
)

var (
	modelSeed  = flag.Uint64("lst.seed", 0, "run the model test with this seed only")
	modelSeeds = flag.Int("lst.seeds", 40, "seeds of the model test")
	modelSteps = flag.Int("lst.steps", 300, "steps of the model test per seed")
)

type modelRun struct {
	t     *testing.T
	r     *rand.Rand
	disk  *vfs.Mem
	opt   Options
	s     *Store
	h     history
	b     Batch
	step  int
	clock time.Time
	past  []pastState // states since the last open, by where their last batch is
	noRoom,
	crashes, reopens, dropped, cold, pasts, ops int
}

func (m *modelRun) fatal(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("step %d: %s", m.step, fmt.Sprintf(format, args...))
}

func (m *modelRun) open() {
	m.opt.FS = m.disk
	s, _, err := Open("/db/store", m.opt)
	if err == nil && m.disk.Crashed() {
		err = vfs.ErrCrashed
	}
	for try := 0; err != nil; try++ {
		switch {
		case errors.Is(err, vfs.ErrCrashed):
			m.disk = m.disk.Crash()
			m.opt.FS = m.disk
		case errors.Is(err, syscall.EIO):
			m.disk.ClearFaults()
		case errors.Is(err, ErrNoSpace) && m.h.fresh():
			m.disk.SetCapacity(0) // even a new store needs its first segment
		default:
			m.fatal("open: %v", err)
		}
		if try > 10 {
			m.fatal("open fails for ever: %v", err)
		}
		s, _, err = Open("/db/store", m.opt)
		if err == nil && m.disk.Crashed() {
			err = vfs.ErrCrashed // while it made its next segment
		}
	}
	m.s, m.past = s, nil
	v := s.View()
	if m.opt.lazyInline && m.r.IntN(3) > 0 {
		// Another eye finds out what survived: this store stays as it was opened.
		r, err := OpenReadOnly("/db/store", m.opt)
		if err != nil {
			m.fatal("read-only open beside the new writer: %v", err)
		}
		defer r.Close()
		v = r.View()
	}
	if err := m.h.recovered(v); err != nil {
		m.fatal("%v", err)
	}
	if s.ix.cold.Load() != nil {
		m.cold++
	}
}

func (m *modelRun) randomOps() []mop {
	r := m.r
	var ops []mop
	local := map[StreamID]uint64{}
	for n := 1 + r.IntN(8); n > 0; n-- {
		id := sid(1 + r.IntN(5))
		ms := m.h.latest.streams[id]
		eof, trim := uint64(0), uint64(0)
		if ms != nil {
			eof, trim = ms.eof, ms.trim
		}
		if l, ok := local[id]; ok {
			eof = max(eof, l)
		}
		val := string(payload(r.IntN(200), r.IntN(200), r.IntN(300)))
		switch k := r.IntN(100); {
		case k < 62:
			for i := r.IntN(6); i >= 0; i-- {
				ops = append(ops, mop{code: opAppend, id: id, seq: eof, val: val[:r.IntN(len(val)+1)]})
				eof++
			}
			local[id] = eof
		case k < 68: // a hole, or the closing of one
			seq := eof + uint64(r.IntN(600))
			if r.IntN(2) == 0 && eof > trim {
				seq = trim + uint64(r.Int64N(int64(eof-trim)))
			}
			if ms != nil {
				if _, ok := ms.recs[seq]; ok {
					continue
				}
			}
			if l, ok := local[id]; ok && seq < l {
				continue
			}
			ops = append(ops, mop{code: opAppend, id: id, seq: seq, val: val})
			local[id] = max(eof, seq+1)
		case k < 72:
			if eof > trim {
				ops = append(ops, mop{code: opReplace, id: id, seq: trim + uint64(r.Int64N(int64(eof-trim))), val: val})
			}
		case k < 87:
			ops = append(ops, mop{code: opPut, key: fmt.Sprintf("k%d", r.IntN(12)), val: val})
		case k < 91:
			ops = append(ops, mop{code: opDelete, key: fmt.Sprintf("k%d", r.IntN(12))})
		case k < 98:
			if eof > trim {
				ops = append(ops, mop{code: opTrim, id: id, before: trim + 1 + uint64(r.Int64N(int64(eof-trim)))})
				if r.IntN(40) == 0 {
					ops[len(ops)-1].before = eof + uint64(r.IntN(300))
				}
				// Appends later in this batch must be above it.
				local[id] = max(eof, ops[len(ops)-1].before)
			}
		default:
			if r.IntN(3) == 0 {
				ops = append(ops, mop{code: opDropStream, id: id})
				local[id] = eof
			}
		}
	}
	return ops
}

type pastState struct {
	at pos
	m  *model
}

// totals of all seeds, so that a test that does too little fails.
type modelTotals struct{ ops, crashes, cold, pasts, dropped int }

func (m *modelRun) remember(loc Location) {
	m.past = append(m.past, pastState{mkpos(loc.Segment, loc.Offset), m.h.latest.clone()})
	if len(m.past) > 60 {
		m.past = m.past[10:]
	}
}

// pointInTime compares the snapshots on disk with what the store was then.
func (m *modelRun) pointInTime() {
	r, err := OpenReadOnly("/db/store", m.opt)
	if err != nil {
		m.fatal("read-only open: %v", err)
	}
	defer r.Close()
	all, err := r.Snapshots(0)
	if err != nil {
		m.fatal("snapshots: %v", err)
	}
	for i, sn := range all {
		if i > 0 && sn.Number != all[i-1].Number-1 {
			m.fatal("snapshot %d follows %d", sn.Number, all[i-1].Number)
		}
		at := mkpos(sn.At.Segment, sn.At.Offset)
		k := len(m.past) - 1
		for k >= 0 && m.past[k].at >= at {
			k--
		}
		if k < 0 || i > 3 && i%4 != 0 {
			continue
		}
		old, err := r.At(sn.Number)
		if err != nil {
			m.fatal("at snapshot %d: %v", sn.Number, err)
		}
		if d := m.past[k].m.differs(old.View()); d != "" {
			m.fatal("at snapshot %d (%+v): %s", sn.Number, sn, d)
		}
		m.pasts++
		old.Close()
	}
}

// outcome files a commit's result.
func (m *modelRun) outcome(ops []mop, loc Location, err error, durable bool) {
	m.ops += len(ops)
	switch {
	case err == nil:
		m.h.commit(ops, durable)
		m.remember(loc)
	case errors.Is(err, ErrNoSpace):
		m.noRoom++
	case errors.Is(err, ErrExists), errors.Is(err, ErrTrimmed), errors.Is(err, ErrTooLarge), errors.Is(err, ErrInvalid):
		m.fatal("commit refused: %v", err)
	default:
		// Unknown: the next open decides.
		m.h.maybe = append(m.h.maybe, ops)
		m.afterFailure(err)
	}
}

// afterFailure restarts a store that latched.
func (m *modelRun) afterFailure(err error) {
	if m.s.Err() == nil {
		m.fatal("error without a latch: %v", err)
	}
	m.b.Reset()
	m.b.Put([]byte("after"), []byte("latch"))
	if _, e := m.s.Commit(&m.b, Forced); e == nil || e.Error() != m.s.Err().Error() {
		m.fatal("commit on a latched store: %v, want %v", e, m.s.Err())
	}
	m.disk.ClearFaults()
	if errors.Is(err, vfs.ErrCrashed) || m.r.IntN(2) == 0 {
		m.disk = m.disk.Crash()
		m.crashes++
	} else {
		_ = m.s.Close()
		m.disk.Kill()
	}
	m.open()
}

func (m *modelRun) commitSplit() {
	// Several writes in flight, completed in any order.
	type flight struct {
		w   Write
		ops []mop
	}
	var fl []flight
	for n := 1 + m.r.IntN(4); n > 0; n-- {
		ops := []mop{{code: opAppend, id: sid(20 + n), seq: m.h.latest.eof(sid(20 + n)), val: string(payload(n, m.step, m.r.IntN(100)))}}
		b := &Batch{}
		fill(b, ops)
		w, err := m.s.Prepare(b)
		if errors.Is(err, ErrNoSpace) {
			m.noRoom++
			break
		}
		if err != nil {
			for _, f := range fl {
				m.h.maybe = append(m.h.maybe, f.ops)
			}
			m.afterFailure(err)
			return
		}
		fl = append(fl, flight{w, ops})
	}
	for _, i := range m.r.Perm(len(fl)) {
		if m.r.IntN(30) == 0 {
			// Crash with this and perhaps earlier writes not done.
			for _, f := range fl {
				m.h.maybe = append(m.h.maybe, f.ops)
			}
			m.disk = m.disk.Crash()
			m.crashes++
			m.open()
			return
		}
		err := fl[i].w.Execute()
		if cerr := m.s.Complete(fl[i].w, err); cerr != nil {
			for _, f := range fl {
				m.h.maybe = append(m.h.maybe, f.ops)
			}
			m.afterFailure(cerr)
			return
		}
	}
	for _, f := range fl {
		if m.s.Completed() < f.w.Ticket {
			m.fatal("write %d is not complete", f.w.Ticket)
		}
		m.h.commit(f.ops, m.s.durable == m.s.applied) // not behind a commit that was not forced
		m.ops++
		m.remember(f.w.Location)
	}
}

func (m *modelRun) readOnly() {
	before := snapshotFiles(m.t, m.disk)
	r, err := OpenReadOnly("/db/store", m.opt)
	if err != nil {
		m.fatal("read-only open: %v", err)
	}
	if d := m.h.latest.differs(r.View()); d != "" {
		m.fatal("read-only: %s", d)
	}
	r.Close()
	if after := snapshotFiles(m.t, m.disk); !slices.Equal(before, after) {
		m.fatal("read-only open changed the directory")
	}
}

func snapshotFiles(t *testing.T, d *vfs.Mem) []string {
	names, err := d.List("/db/store")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, n := range names {
		b, err := d.ReadFile("/db/store/" + n)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n+string(b))
	}
	sort.Strings(out)
	return out
}

func (m *modelRun) one() {
	r := m.r
	switch k := r.IntN(1000); {
	case k < 800:
		ops := m.randomOps()
		if len(ops) == 0 {
			return
		}
		fill(&m.b, ops)
		d := Durability(r.IntN(2))
		loc, err := m.s.Commit(&m.b, d)
		m.outcome(ops, loc, err, d == Forced)
	case k < 860:
		m.commitSplit()
	case k < 875:
		if err := m.s.Sync(); err != nil {
			m.afterFailure(err)
			return
		}
		m.h.settle()
	case k < 890:
		m.clock = m.clock.Add(time.Duration(r.IntN(20)-4) * time.Second)
	case k < 905:
		if err := m.s.Snapshot(); err != nil && !errors.Is(err, ErrNoSpace) {
			m.afterFailure(err)
		}
	case k < 930:
		if r.IntN(2) == 0 { // let go of most, so that there is something to drop
			var ops []mop
			for n := 1; n < 30; n++ {
				if ms := m.h.latest.streams[sid(n)]; ms != nil && ms.eof > ms.trim {
					ops = append(ops, mop{code: opTrim, id: sid(n), before: ms.eof - uint64(r.IntN(2))})
				}
			}
			if len(ops) > 0 {
				fill(&m.b, ops)
				loc, err := m.s.Commit(&m.b, Forced)
				if m.outcome(ops, loc, err, true); err != nil {
					return
				}
			}
		}
		n, err := m.s.Reclaim()
		m.dropped += n
		if err != nil && !errors.Is(err, ErrNoSpace) {
			m.afterFailure(err)
		}
	case k < 940: // a clean stop
		if err := m.s.Close(); err == nil {
			m.h.settle()
		}
		m.disk.Kill()
		m.reopens++
		m.open()
	case k < 950: // kill -9: acknowledged survives
		m.disk.Kill()
		m.reopens++
		all, disk := m.h.latest.clone(), m.disk
		m.open()
		if m.disk == disk {
			if d := all.differs(m.s.View()); d != "" {
				m.fatal("after a kill without power loss: %s", d)
			}
		}
	case k < 960: // power loss
		m.disk = m.disk.Crash()
		m.crashes++
		m.open()
	case k < 972:
		m.disk.CrashAfter(int64(r.IntN(12)))
	case k < 980:
		m.disk.Inject(vfs.Fault{Ops: vfs.OpWrite | vfs.OpSync, After: r.IntN(6), Times: 1, Err: syscall.EIO, ShortBytes: r.IntN(900)})
	case k < 985:
		m.disk.SetCapacity(m.disk.UsedBytes() + int64(r.IntN(2))*m.opt.SegmentBytes)
	case k < 990:
		m.disk.SetCapacity(0)
	case k < 994:
		m.readOnly()
	default:
		m.pointInTime()
	}
}

func runModel(t *testing.T, seed uint64, steps int, sum *modelTotals) {
	r := rand.New(rand.NewPCG(seed, 77))
	m := &modelRun{t: t, r: r, clock: time.Unix(1_700_000_000, 0)}
	rnd := rand.New(rand.NewPCG(seed, 78))
	m.opt = Options{
		Mode: Mode(r.IntN(2)), SegmentBytes: 32<<10 + int64(r.IntN(4))<<14, SnapshotRecords: 10 + r.IntN(300),
		SnapshotBytes: 4<<10 + int64(r.IntN(64<<10)), TailCacheBytes: r.IntN(3) - 1, MaxOpenFiles: 2, Inline: true, lazyInline: r.IntN(3) > 0,
		Now: func() time.Time { return m.clock },
		Random: func(p []byte) {
			for i := range p {
				p[i] = byte(rnd.Uint32())
			}
		},
	}
	mo := vfs.MemOptions{Seed: seed, NoDirect: r.IntN(5) == 0, BlockBytes: 512 << r.IntN(4), ReadyBytes: [...]int{0, 512, 4096}[seed%3]}
	t.Logf("seed %d: mode %d segment %d records %d bytes %d block %d nodirect %v", seed, m.opt.Mode, m.opt.SegmentBytes, m.opt.SnapshotRecords, m.opt.SnapshotBytes, mo.BlockBytes, mo.NoDirect)
	m.disk = vfs.NewMem(mo)
	m.h = history{sure: newModel(), latest: newModel()}
	m.open()
	for m.step = 0; m.step < steps; m.step++ {
		m.one()
		if err := m.s.Err(); err != nil {
			m.afterFailure(err) // met by housekeeping, after the commit was answered
		} else if m.disk.Crashed() {
			m.disk = m.disk.Crash() // while a full disk hid it
			m.open()
		}
		if m.step%16 == 0 {
			if m.s.ix.cold.Load() != nil && r.IntN(2) == 0 {
				if d := m.h.latest.differsNamed(m.s.View()); d != "" {
					m.fatal("named: %s", d)
				}
				continue
			}
			if d := m.h.latest.differs(m.s.View()); d != "" {
				m.fatal("%s", d)
			}
			if err := checkLive(m.s); err != nil {
				m.fatal("%v", err)
			}
		}
	}
	m.disk.ClearFaults()
	m.disk.SetCapacity(0)
	sum.ops, sum.crashes, sum.cold, sum.pasts, sum.dropped = sum.ops+m.ops, sum.crashes+m.crashes, sum.cold+m.cold, sum.pasts+m.pasts, sum.dropped+m.dropped
	t.Logf("crashes %d reopens %d dropped %d refused for space %d opened cold %d points in time %d", m.crashes, m.reopens, m.dropped, m.noRoom, m.cold, m.pasts)
}

// checkLive compares the live counts per segment with the index itself.
func checkLive(s *Store) error {
	if err := s.loadRest(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	got := map[uint32]segLive{}
	var err error
	s.ix.streams.ascend(nil, func(st *stream) bool {
		for _, l := range st.list() {
			m := l.presentMap()
			for i := m.next(0); i < leafSlots; i = m.next(i + 1) {
				if l.base+uint64(i) < st.trim.Load() {
					continue
				}
				var sl slot
				if sl, err = s.ix.leafSlot(st, l, i); err != nil {
					return false
				}
				v := got[sl.at.seg()]
				v.records++
				v.bytes += int64(sl.n)
				got[sl.at.seg()] = v
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	for seg, v := range s.ix.live {
		if got[seg] != *v {
			return fmt.Errorf("segment %d counts as %+v live, the index has %+v", seg, *v, got[seg])
		}
		delete(got, seg)
	}
	if len(got) > 0 {
		return fmt.Errorf("segments hold live records that are not counted: %v", got)
	}
	return nil
}

func TestModel(t *testing.T) {
	var sum modelTotals
	seeds := *modelSeeds
	if underRace && seeds == 40 {
		seeds = 6
	}
	if *modelSeed != 0 {
		runModel(t, *modelSeed, *modelSteps, &sum)
		return
	}
	for seed := uint64(1); seed <= uint64(seeds); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runModel(t, seed, *modelSteps, &sum) })
	}
	t.Logf("%+v", sum)
	if seeds >= 40 && *modelSteps >= 300 && (sum.ops < 100_000 || sum.crashes < 100 || sum.cold < 100 || sum.pasts < 50 || sum.dropped < 100) {
		t.Fatalf("the model test did too little: %+v", sum)
	}
}
