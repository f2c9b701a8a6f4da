// Package shard is one protocol.Shard on one lst.Store: the batch, the commit and the replies of one shard of a log node.
// It has no goroutine, socket or clock, so that the node's thread and the simulator drive the very same code.
//
//	core.Step(now, peer, m) … Archived, Release      any number: one batch
//	answers, err := core.Commit(now)                  one atomic LST commit, then the answers
//	shard.FillReply(core.View(), &answers.Replies[i], max)   on any goroutine
//
// Layout in the store:
//
//	stream  log id (8, big-endian) ‖ label (8, big-endian), sequence LSN    a record: stored head, payload
//	key     's' ‖ log id (8, big-endian)                                    the log's state value, first piece
//	key     's' ‖ log id ‖ piece number (1), from 1                         its further pieces
//	key     'i'                                                             the incarnation (8, big-endian) whose store it is
//
// Invariants:
//
//	C1  Nothing is handed out before the commit that covers it has returned (P14). An answer that left earlier could name a
//	    record, a promise or an activation that a power cut then takes: a quorum that does not exist.
//	C2  After a commit whose outcome is not "nothing was written" the store and this Core are dead; the process must end
//	    (P14): what the disk holds is unknown until it is read again.
//	C3  The operations of a batch stand in the store's batch in the order in which the machine asked for them: a label that
//	    was voided and dropped, and records written after that, end up as they do in the machine's memory.
package shard

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/lst"
)

// Core is one shard. It belongs to one goroutine at a time, except that View may be called on any.
type Core struct {
	dir     string
	rules   protocol.Rules
	store   *lst.Store
	machine *protocol.Shard
	out     protocol.Out
	batch   lst.Batch
	early   lst.Batch // state values that do not fit into batch
	key     []byte
	value   []byte
	pieces  map[protocol.LogID]int // number of pieces of state values that have more than one
	unread  []unread               // what the store has and the machine knows nothing of
	handed  bool                   // the answers of the last batch are with the caller; the next call begins a batch
	space   protocol.Space         // what there is room for

	full fullness
	err  error // the error that stopped this core

	last  lastRecord
	stats Stats
}

// lastRecord is the record that joined the batch last: its successor needs no look into the store.
type lastRecord struct {
	log   protocol.LogID
	label protocol.Epoch
	lsn   protocol.LSN
}

// Stats counts since Open.
type Stats struct {
	Commits        uint64 // store commits
	ForcedCommits  uint64 // of them, on the device before the answers left
	Records        uint64 // records written
	RefusedNoSpace uint64 // appends refused for want of space, repairs among them
	Rebuilds       uint64 // times that the machine was read again from the store because a commit found no space
	RecordBytes    uint64 // payload bytes of the records written
	Promises       uint64 // promises that were raised
	Fencings       uint64 // of them, those that ended the reign of a writer that was active here
	Activations    uint64 // epochs that were activated
	// Full: appends are refused now, of whatever size. FullChanges counts how often that began or ended; it does not end before
	// there has been room for a while.
	Full        bool
	FullChanges uint64
	ReserveUsed bool // repairs are refused too
}

// Answers is what a batch answers. The slices, and what they point to, are valid until the next Step, Archived or Release;
// a caller that fills a reply on another goroutine copies the ReplyOut, whose Msg and Refs it then owns.
type Answers struct {
	Acks    []protocol.AckOut
	Replies []protocol.ReplyOut
}

// ErrStopped is wrapped by every error after a failed commit.
var ErrStopped = errors.New("shard stopped after a failed commit; restart the node")

// ErrLost: there was a store in the directory and it is gone, and with it what the node has promised.
var ErrLost = errors.New("its store is gone")

// Open opens the store in dir (made if it is absent) and restores every log from it. inc is the incarnation of the node's
// data directory; the store of another one is refused. A log whose state value cannot be read is an error; records that
// cannot be read become "unknown" (P3). A caller who knows that there was a store calls Reopen: a new one has promised nothing.
func Open(dir string, opt lst.Options, inc protocol.Incarnation, rules protocol.Rules, now protocol.Time) (*Core, lst.RecoveryReport, error) {
	return openCore(dir, opt, inc, false, rules, now)
}

// Reopen is Open where there was a store before. If it is gone the error is ErrLost, now and at every later try.
func Reopen(dir string, opt lst.Options, inc protocol.Incarnation, rules protocol.Rules, now protocol.Time) (*Core, lst.RecoveryReport, error) {
	return openCore(dir, opt, inc, true, rules, now)
}

func openCore(dir string, opt lst.Options, inc protocol.Incarnation, again bool, rules protocol.Rules, now protocol.Time) (*Core, lst.RecoveryReport, error) {
	store, report, err := lst.Open(dir, opt)
	if err != nil {
		return nil, report, err
	}
	c := &Core{dir: dir, rules: rules, store: store, handed: true, full: fullness{half: halfOf(opt.SegmentBytes)}}
	if err = c.own(inc, report.Created, again); err == nil {
		err = c.restore(inc, now)
	}
	if err == nil {
		err = c.sweep()
	}
	if err != nil {
		return nil, report, errors.Join(fmt.Errorf("shard %s: %w", dir, err), store.Close())
	}
	return c, report, nil
}

var ownerKey = []byte{'i'}

// own marks a new store as inc's, or makes sure that it is. The mark is the store's first commit, so that a store that held
// nothing else is still told from one that is lost. Where there was a store before (again) none is marked: the mark would make the
// next start take what this one has refused, a store without the promises of the one that is lost (P4).
func (c *Core) own(inc protocol.Incarnation, created, again bool) error {
	mark := binary.BigEndian.AppendUint64(nil, uint64(inc))
	if created && again {
		return ErrLost
	}
	if created {
		c.batch.Put(ownerKey, mark)
		_, err := c.store.Commit(&c.batch, lst.Forced)
		return err
	}
	got, err := c.store.View().GetKV(ownerKey, nil)
	if errors.Is(err, lst.ErrNotFound) && again && c.store.Stats().KVs == 0 {
		return ErrLost // what a start that was refused has left
	}
	if err != nil || len(got) != 8 {
		return fmt.Errorf("its store has no mark of the data directory that it belongs to: it was not written by this program's shards")
	}
	if was := protocol.Incarnation(binary.BigEndian.Uint64(got)); was != inc {
		return fmt.Errorf("its store belongs to the data directory with incarnation %v, not to this one with %v: it was put here by mistake", was, inc)
	}
	return nil
}

// begin starts a batch if the last one was handed out.
func (c *Core) begin() {
	if c.handed {
		c.out.Reset()
		c.batch.Reset()
		c.last = lastRecord{}
		c.handed = false
	}
}

// Step applies one request and adds what it writes and answers to the batch. m, and the memory it points to, is borrowed
// for this call only. After a failed commit it does nothing.
func (c *Core) Step(now protocol.Time, from protocol.Peer, m protocol.Message) {
	if c.err != nil {
		return
	}
	c.begin()
	if a, ok := m.(*protocol.Append); ok {
		c.checkRoom(now, a)
		n := len(c.out.Acks)
		c.machine.Step(now, from, m, &c.out)
		c.machine.SetSpace(c.space)
		if len(c.out.Acks) > n && c.out.Acks[n].Ack.Status == protocol.StatusNoSpace {
			c.stats.RefusedNoSpace++
		}
		if a.Kind == protocol.AppendRepair && len(c.out.Records) > 0 {
			// What else is in the batch was found room for without the reserve.
			c.batch.UseReserve()
		}
	} else {
		c.machine.Step(now, from, m, &c.out)
	}
	c.drain()
}

// Archived tells the shard which objects of log the object store holds, in any order (see protocol.Shard.Archived).
func (c *Core) Archived(now protocol.Time, log protocol.LogID, objects []protocol.ArchivedObject) {
	if c.err != nil {
		return
	}
	c.begin()
	c.machine.Archived(now, log, objects, &c.out)
	c.drain()
}

// Forget drops the state of a log that does not exist (see protocol.Shard.Forget).
func (c *Core) Forget(log protocol.LogID, promised protocol.Epoch) {
	if c.err != nil {
		return
	}
	c.begin()
	c.machine.Forget(log, promised, &c.out)
}

// Deleted drops what is held of a log that is deleted (see protocol.Shard.Deleted).
func (c *Core) Deleted(log protocol.LogID) {
	if c.err != nil {
		return
	}
	c.begin()
	c.machine.Deleted(log, &c.out)
	c.drain()
}

// Release drops what is archived, the window included, of logs that took no append for at least idle.
func (c *Core) Release(now protocol.Time, idle protocol.Time) {
	if c.err != nil {
		return
	}
	c.begin()
	c.releaseUnread()
	c.machine.Release(now, idle, &c.out)
	c.drain()
}

// recordOverhead bounds what one record takes in the store beyond its payload: the operation, its stream, sequence, length
// and checksum, and the stored head.
const recordOverhead = 96

// drain moves what the last call wrote into the store's batch, in order (C3). It copies, so that the memory of the request
// is free again.
func (c *Core) drain() {
	for i := range c.out.Records {
		c.addRecord(&c.out.Records[i])
	}
	for i := range c.out.Trims {
		t := &c.out.Trims[i]
		if t.Whole {
			c.batch.DeleteStream(streamID(t.Log, t.Label))
		} else {
			c.batch.Trim(streamID(t.Log, t.Label), uint64(t.Through)+1)
		}
	}
	clear(c.out.Records) // lets go of the requests' memory
	c.out.Records, c.out.Trims = c.out.Records[:0], c.out.Trims[:0]
}

func (c *Core) addRecord(r *protocol.RecordWrite) {
	id := streamID(r.Log, r.Label)
	next := c.last.log == r.Log && c.last.label == r.Label && c.last.lsn+1 == r.LSN
	if !next {
		switch c.place(id, r.LSN) {
		case placeTrimmed:
			return
		case placeTaken:
			c.batch.Replace(id, uint64(r.LSN), r.Head, r.Data)
			c.wrote(r)
			c.last = lastRecord{}
			return
		case placeHole:
			c.last = lastRecord{} // its successor may be present already
		case placeEnd:
			c.last = lastRecord{r.Log, r.Label, r.LSN}
		}
	} else {
		c.last.lsn = r.LSN
	}
	c.batch.Append(id, uint64(r.LSN), r.Head, r.Data)
	c.wrote(r)
}

func (c *Core) wrote(r *protocol.RecordWrite) {
	c.stats.Records++
	c.stats.RecordBytes += uint64(len(r.Data))
}

type place uint8

const (
	placeEnd     place = iota // behind everything that the stream ever held
	placeHole                 // absent, inside the stream
	placeTaken                // something is there that the machine does not count: void, or damaged
	placeTrimmed              // below the trim point: archived and dropped before, so that nothing needs to be written
)

// place says what the store has at the place of a record that the machine does not hold.
func (c *Core) place(id lst.StreamID, lsn protocol.LSN) place {
	v := c.store.View()
	st, ok := v.Stat(id)
	switch {
	case !ok || uint64(lsn) >= st.EOF:
		return placeEnd
	case uint64(lsn) < st.Trim:
		return placeTrimmed
	case v.Has(id, uint64(lsn)):
		return placeTaken
	}
	return placeHole
}

// Commit ends the batch: it makes everything that the batch writes durable in one atomic commit, and only then hands out the
// answers (C1). The commit is forced when anything in the batch asks for it, which is everything but plain appends and
// watermarks of logs with memory durability.
//
// An error is final (C2): nothing is handed out, every later call does nothing, and the process must end. When the store
// finds no space in spite of what it said before, Commit returns no answers and no error: the machine is read again from the
// store, and the senders send again.
func (c *Core) Commit(now protocol.Time) (Answers, error) {
	if c.err != nil {
		return Answers{}, c.err
	}
	c.begin()
	c.machine.Finish(&c.out)
	c.handed = true
	if err := c.addStates(); err != nil {
		return Answers{}, c.failed(now, err)
	}
	if c.batch.Len() > 0 {
		durability := lst.Acknowledged
		if c.out.NeedForce {
			durability = lst.Forced
		}
		if _, err := c.store.Commit(&c.batch, durability); err != nil {
			return Answers{}, c.failed(now, err)
		}
		c.stats.Commits++
		if c.out.NeedForce {
			c.stats.ForcedCommits++
		}
	}
	c.stats.Promises += uint64(c.out.Promises)
	c.stats.Fencings += uint64(c.out.Fencings)
	c.stats.Activations += uint64(c.out.Activations)
	// From here on the answers are true. Before the commit they would be promises about bytes that a power cut takes (C1).
	return Answers{Acks: c.out.Acks, Replies: c.out.Replies}, nil
}

// failed decides what a failed commit means.
func (c *Core) failed(now protocol.Time, err error) error {
	if errors.Is(err, lst.ErrNoSpace) {
		// Definite: nothing was written. The machine is ahead of the disk by this batch; what the disk says counts.
		c.stats.Rebuilds++
		if err = c.restore(c.machine.Incarnation(), now); err == nil {
			c.full.tried, c.full.urged = now, now
			c.setSpace(now, protocol.SpaceNone)
			c.machine.SetSpace(c.space) // it is a new one
			return nil
		}
	}
	c.err = fmt.Errorf("shard %s: %w: %w", c.dir, ErrStopped, err)
	return c.err
}

const (
	// maxPieceBytes is the size of a piece of a state value: the store's limit for values.
	maxPieceBytes = 32 << 10
	// maxStateBytes bounds the state values of one store commit, so that it fits into a file of the store whatever the logs'
	// histories are.
	maxStateBytes = 4 << 20
)

// addStates adds the state values that Finish asked for. When they are too many for one commit they are committed before the
// rest of the batch. A crash between leaves states that are ahead of their records, of which none was acknowledged, and of
// their trims, which restore makes up for. The other way round, records could be dropped whose archiving is not on
// record (H5).
func (c *Core) addStates() error {
	for _, log := range c.out.Forgotten {
		for i := range max(1, c.pieces[log]) {
			c.batch.Delete(c.stateKey(log, i))
		}
		delete(c.pieces, log)
	}
	total := 0
	for _, s := range c.out.State {
		total += len(s.Value)
	}
	if total <= maxStateBytes {
		for _, s := range c.out.State {
			c.addState(&c.batch, s)
		}
		return nil
	}
	c.early.Reset()
	for i, s := range c.out.State {
		c.addState(&c.early, s)
		if c.early.Bytes() >= maxStateBytes || i == len(c.out.State)-1 {
			if _, err := c.store.Commit(&c.early, lst.Forced); err != nil {
				return err
			}
			c.early.Reset()
		}
	}
	return nil
}

// addState adds one state value. Its first piece begins with the number of pieces, so that a state that shrank never takes an
// older one's rest for its own.
func (c *Core) addState(b *lst.Batch, s protocol.StateWrite) {
	rest := s.Value
	first := rest[:min(len(rest), maxPieceBytes-2)]
	rest = rest[len(first):]
	pieces := 1 + (len(rest)+maxPieceBytes-1)/maxPieceBytes
	c.value = binary.BigEndian.AppendUint16(c.value[:0], uint16(pieces))
	c.value = append(c.value, first...)
	b.Put(c.stateKey(s.Log, 0), c.value)
	for i := 1; i < pieces; i++ {
		n := min(len(rest), maxPieceBytes)
		b.Put(c.stateKey(s.Log, i), rest[:n])
		rest = rest[n:]
	}
	for i := pieces; i < c.pieces[s.Log]; i++ {
		b.Delete(c.stateKey(s.Log, i))
	}
	if pieces > 1 {
		c.pieces[s.Log] = pieces
	} else {
		delete(c.pieces, s.Log)
	}
}

const stateKeyPrefix = 's'

// stateKey returns the key of a piece of a state value; it is valid until the next call.
func (c *Core) stateKey(log protocol.LogID, piece int) []byte {
	c.key = append(c.key[:0], stateKeyPrefix)
	c.key = binary.BigEndian.AppendUint64(c.key, uint64(log))
	if piece > 0 {
		c.key = append(c.key, byte(piece))
	}
	return c.key
}

func streamID(log protocol.LogID, label protocol.Epoch) (id lst.StreamID) {
	binary.BigEndian.PutUint64(id[:8], uint64(log))
	binary.BigEndian.PutUint64(id[8:], uint64(label))
	return id
}

// BatchBytes is what the batch takes in the store so far, in bytes: the driver commits when it is large enough.
func (c *Core) BatchBytes() int {
	if c.handed {
		return 0
	}
	return c.batch.Bytes()
}

// View returns a view of what was committed, for FillReply and NewSource. It may be used on any goroutine.
func (c *Core) View() lst.View { return c.store.View() }

// Store returns the store, for its statistics and for Reclaim.
func (c *Core) Store() *lst.Store { return c.store }

// Incarnation returns the incarnation that every answer carries.
func (c *Core) Incarnation() protocol.Incarnation { return c.machine.Incarnation() }

// Flushable lists what may be flushed (see protocol.Shard.Flushable). A View taken before the next Step, on the same
// thread, is one snapshot with it (A3).
func (c *Core) Flushable(now protocol.Time, visit func(protocol.Segment)) {
	c.machine.Flushable(now, visit)
}

// Touched visits the logs of which Flushable or Behind may tell something new (see protocol.Shard.Touched); after the machine was
// read again from the store, all.
func (c *Core) Touched(visit func(protocol.LogID)) { c.machine.Touched(visit) }

// FlushableOf is Flushable for one log.
func (c *Core) FlushableOf(log protocol.LogID, now protocol.Time, visit func(protocol.Segment)) {
	c.machine.FlushableOf(log, now, visit)
}

// BehindOf is Behind for one log.
func (c *Core) BehindOf(log protocol.LogID, visit func(log protocol.LogID, archived protocol.LSN, blank bool)) {
	c.machine.BehindOf(log, visit)
}

// Behind lists the logs for which only a look at the object store helps (see protocol.Shard.Behind).
func (c *Core) Behind(visit func(log protocol.LogID, archived protocol.LSN, blank bool)) {
	c.machine.Behind(visit)
}

// Endangered lists the logs that wait for a failure snapshot (see protocol.Shard.Endangered).
func (c *Core) Endangered(living *protocol.Living, unknown func(protocol.Incarnation), visit func(log protocol.LogID, rank int, limit protocol.LSN, absent uint64)) {
	c.machine.Endangered(living, unknown, visit)
}

// Snapshot lists what a failure snapshot of a log writes (see protocol.Shard.Snapshot); the same holds of its views as of
// Flushable's.
func (c *Core) Snapshot(log protocol.LogID, limit protocol.LSN, now protocol.Time, visit func(protocol.Segment)) {
	c.machine.Snapshot(log, limit, now, visit)
}

// Totals sums over all logs (see protocol.Shard.Totals).
func (c *Core) Totals(now protocol.Time) protocol.Totals { return c.machine.Totals(now) }

// Logs returns the status of all logs, ascending by id.
func (c *Core) Logs() []protocol.LogStatus { return c.machine.Logs() }

// Log returns the status of one log.
func (c *Core) Log(id protocol.LogID) (protocol.LogStatus, bool) { return c.machine.Log(id) }

// Stats returns the counters.
func (c *Core) Stats() Stats {
	s := c.stats
	s.Full, s.ReserveUsed = c.space != protocol.SpaceFree, c.space == protocol.SpaceNone
	return s
}

// Err returns the error that stopped this core, or nil.
func (c *Core) Err() error { return c.err }

// Close closes the store. Answers of an uncommitted batch are lost, as its writes are.
func (c *Core) Close() error { return c.store.Close() }
