package lst

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/lst/vfs"
)

// Store is an open store. One process writes a directory at a time. Commit,
// Sync, Stats, View and Reclaim may be called from any goroutine.
type Store struct {
	dir     string
	opt     Options
	lock    io.Closer
	storeID [16]byte
	dsync   bool // a write can be down when it returns (Direct mode)
	direct  directState
	ix      *index

	// Commit queue.
	lead  atomic.Int32 // changes from idle by compare and swap, to queued and from it under qmu
	qmu   sync.Mutex
	queue []*Batch
	spins int      // see lockSoon
	group []*Batch // leader's
	good  []*Batch // leader's

	syncMu    sync.Mutex // one Sync at a time
	reclaimMu sync.Mutex // one Reclaim at a time

	// Everything below is under mu.
	mu        sync.Mutex
	cond      *sync.Cond
	err       error // latched
	closed    bool
	active    *writeSegment
	nextOff   int64 // where the next write goes
	fresh     bool  // the next write begins with the link frame
	linkPrev  pos
	cutEnd    pos // not 0: the active segment is torn there, nothing may follow in it
	spare     *writeSegment
	spareErr  error
	making    bool
	wantSpare bool
	retired   []*writeSegment // rolled from, open until synced
	inflight  []*pending
	pool      []*pending
	alone     pending // of commitAlone
	readying  bool    // zeros are being written behind the end, see readyFor
	ticket    uint64
	completed uint64
	applied   pos // the index holds everything before it
	durable   pos // the device holds everything before it

	waiting      int              // calls in waitUntil
	urgent       int              // calls that wait for the next segment
	asking       [roomClasses]int // calls in makeRoom, by what they are for
	reserveAsked bool             // the next segment is for what may use the reserve
	reclaiming   bool             // segments are being dropped for space
	expired      uint64
	expiredUpTo  uint32
	lastAppendMS int64
	startWall    time.Time
	ends         map[uint32]int64 // under reclaimMu: when segments ended, for ages

	checks    []zeroCheck
	resumedAt pos // where the restart found the end

	sinceRecords int
	sinceBytes   int64
	snap         snapState
	written      int64
	forced       int64 // of written, at the last sync
	syncs        uint64
	dropped      uint64

	wake     chan struct{}
	stop     chan struct{}
	finished chan struct{}
}

// RecoveryReport says what Open found and did.
type RecoveryReport struct {
	Created         bool          // the directory was empty: a new store
	Segments        int           // segment files in use
	Snapshot        uint64        // number of the snapshot that was used, 0 for none
	SnapshotBytes   int64         // index bytes read for it; what is left to be read when asked for does not count
	ReplayedRecords int           // records replayed behind it
	ReplayedBytes   int64         // bytes walked: from where the snapshot began, or from where the store was durable then
	BytesRead       int64         // all bytes read
	BoundBytes      int64         // BytesRead is below it: a multiple of ReplayedBytes, not of the store
	Reads           int           // file system calls: open, read, size, list, close
	CutFile         string        // file with a torn tail, empty if there was none
	CutOffset       int64         // where the tail was cut
	CutBytes        int64         // bytes behind it that are not part of the store
	CutReason       string        // what was found there
	Removed         []string      // files removed: below the floor, or never in use
	Direct          bool          // direct I/O is in use
	DirectReason    string        // why not, if Mode was Direct
	Elapsed         time.Duration // by the clock of Options
}

// Open opens the store in dir for writing, creating it if dir is empty or
// absent. Damage in durable data is a *Corruption error; another writer is
// ErrLocked.
func Open(dir string, opt Options) (*Store, RecoveryReport, error) {
	var rep RecoveryReport
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, rep, err
	}
	start := opt.Now() // before the first write: ages count from it
	if err := opt.FS.MkdirAll(dir); err != nil {
		return nil, rep, fmt.Errorf("lst: open %s: %w", dir, err)
	}
	lock, err := opt.FS.Lock(filepath.Join(dir, lockName))
	if err != nil {
		if errors.Is(err, vfs.ErrLocked) {
			err = ErrLocked
		}
		return nil, rep, fmt.Errorf("lst: open %s: %w", dir, err)
	}
	s := &Store{
		dir: dir, opt: opt, lock: lock, spins: lockSpins(),
		startWall: start, ends: map[uint32]int64{},
		wake: make(chan struct{}, 1), stop: make(chan struct{}), finished: make(chan struct{}),
	}
	s.cond = sync.NewCond(&s.mu)
	s.ix = newIndex(newFileSet(opt.FS, dir, opt.MaxOpenFiles), newTailCache(opt.TailCacheBytes, opt.SegmentBytes))
	if err := s.recover(&rep); err != nil {
		s.releaseFiles(false)
		return nil, rep, err
	}
	support, why := s.direct.get()
	rep.Direct, rep.DirectReason = support == directYes, why
	rep.Elapsed = opt.Now().Sub(start)
	s.snap.lastMS = opt.Now().UnixMilli()
	if opt.Inline {
		close(s.finished)
		s.ensureSpare()
	} else {
		go s.keeper()
		s.kick()
	}
	return s, rep, nil
}

// releaseFiles closes everything. A descriptor that an unfinished write still uses
// is left to the garbage collector: closed under it, its number could be another
// file's by the time of the write.
func (s *Store) releaseFiles(flying bool) {
	s.ix.files.close()
	for _, w := range append(s.retired, s.active, s.spare) {
		if w != nil && w.file != nil && !flying {
			_ = w.close()
		}
	}
	s.lock.Close()
}

// kick wakes the keeper.
func (s *Store) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// keeper is the store's only goroutine: it preallocates the next segment, syncs
// snapshots and reclaims when the budget is used up, so that commits do not.
func (s *Store) keeper() {
	defer close(s.finished)
	s.checkZeros()
	_ = s.loadRest() // damage is latched
	tick, stop := s.ageTick()
	defer stop()
	for {
		select {
		case <-s.stop:
			return
		case <-s.wake:
		case <-tick:
		}
		s.upkeep()
	}
}

func (s *Store) upkeep() {
	s.openSpare() // before anything that takes long: the roll is near
	s.mu.Lock()
	needSync := s.snap.needSync || len(s.retired) > 4
	busy := s.opt.Inline && len(s.inflight) > 0 // the owner's writes come first
	over := s.spare == nil && s.overBudget(s.opt.SegmentBytes, roomRecords) != nil
	tight := !busy && (over && (s.reclaimable() || s.opt.DropOldest) || s.opt.RetainAge > 0)
	s.reclaiming = tight && over // also set by roll, until this has run once
	s.mu.Unlock()
	if needSync {
		_ = s.Sync() // an error is latched and met by the next commit
	}
	if tight {
		_, _ = s.Reclaim() // likewise; no space is reported by ensureSpare
	}
	s.mu.Lock()
	s.reclaiming = false
	s.cond.Broadcast()
	s.mu.Unlock()
	s.ensureSpare()
	s.openSpare()
	s.syncMu.Lock() // a Sync under way may use them
	s.mu.Lock()
	s.closeRetired()
	s.mu.Unlock()
	s.syncMu.Unlock()
}

// upkeepDue reports whether there is work for the keeper. Under mu.
func (s *Store) upkeepDue() bool {
	due := s.snap.needSync || s.wantSpare || len(s.retired) > 4
	due = s.spareSoon() || due
	s.wantSpare = false
	return due
}

// keep does the work that upkeepDue found, or has it done. Without locks.
func (s *Store) keep() {
	if s.opt.Inline {
		s.upkeep()
	} else {
		s.kick()
	}
}

// View returns a reader of the store. It stays usable until Close.
func (s *Store) View() View { return View{s.ix} }

// Err is the error that stopped the store, nil while it works.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close makes everything committed durable and releases the directory. Writes
// in flight must have been completed.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	flying, latched := s.flying(), s.err
	s.mu.Unlock()
	var err error
	if latched == nil && flying == 0 {
		err = s.Sync()
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil // another call closes it
	}
	s.closed = true
	s.cond.Broadcast()
	s.mu.Unlock()
	close(s.stop)
	<-s.finished
	// A Sync that is under way uses the descriptors; none begins any more.
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.making {
		s.cond.Wait()
	}
	flying = s.flying() // also what began during the Sync above
	s.releaseFiles(flying > 0)
	if flying > 0 && err == nil {
		err = fmt.Errorf("%w: %d writes were in flight at Close", ErrInvalid, flying)
	}
	return err
}

// flying counts the writes that are under way. Under mu.
func (s *Store) flying() (n int) {
	for _, p := range s.inflight {
		if !p.done {
			n++
		}
	}
	return n
}

// Stats is a picture of the store.
type Stats struct {
	Segments        int    // files in use
	SegmentBytes    int64  // their preallocated size together
	Active          uint32 // number of the active segment
	ActiveOffset    int64  // where the next write goes
	Streams         int
	KVs             int
	Records         int64 // present
	PayloadBytes    int64 // of the records present
	WrittenBytes    int64 // by this process, with padding and index
	Snapshots       uint64
	SnapshotSynced  uint64 // number of the newest durable snapshot
	Syncs           uint64
	Dropped         uint64 // segments
	InFlight        int
	SpareReady      bool
	NoSpace         error // why there is no spare segment
	Direct          bool
	BlockBytes      int
	DirectReason    string
	ReclaimableFrom uint32 // segments below it hold no live record
	IndexDamage     error  // an index leaf that could not be read for a trim
	Loading         bool   // the restart has not read all yet: Streams, KVs, Records and PayloadBytes are of what it has
}

// Stats returns a picture of the store.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(*s.ix.files.list.Load())
	support, why := s.direct.get()
	st := Stats{
		Segments: n, SegmentBytes: int64(n) * s.opt.SegmentBytes, Active: s.active.head.number, ActiveOffset: s.nextOff,
		Streams: s.ix.streams.len(), KVs: s.ix.kvs.len(), Records: s.ix.records, PayloadBytes: s.ix.bytes,
		WrittenBytes: s.written, Snapshots: s.snap.taken, SnapshotSynced: s.snap.synced.number, Syncs: s.syncs,
		Dropped: s.dropped, InFlight: len(s.inflight), SpareReady: s.spare != nil, Direct: support == directYes,
		BlockBytes: int(s.active.head.block), DirectReason: why, ReclaimableFrom: s.lowestLive(), IndexDamage: s.ix.damage,
		Loading: s.ix.cold.Load() != nil,
	}
	if s.spare == nil {
		st.NoSpace = s.spareErr
	}
	return st
}
