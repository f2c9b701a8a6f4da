package shard

import "github.com/btrlog/btrlog/internal/protocol"

// fullness is what a shard knows of its want of space. To be full is a state, not the fate of single appends (O3): it begins with
// the first append that finds no room, and then appends of every size are refused, for a small one that fits into what a large
// one has left would make the node change its mind with every batch. It ends by itself (L11), when there has been room for
// the largest of those refused, and refusalRoom more, for roomFor without a break: space that comes back a file at a time
// would else be taken and refused by turns.
type fullness struct {
	half    int64 // of a segment file, in bytes
	largest int64 // of the appends refused, in bytes
	since   protocol.Time
	tried   protocol.Time // when a full store was asked for room last
	urged   protocol.Time // likewise for repairs
}

const (
	// refusalRoom is the room, in bytes, that must be free beyond the largest append refused before a full shard takes appends again.
	refusalRoom = 256 << 10
	// roomFor is for how long there must have been room.
	roomFor = 2000 * protocol.Millisecond
	// askAgain is how long a full store is left alone before it is asked for room again: each question makes it try.
	askAgain = 50 * protocol.Millisecond
)

// halfOf is half of a segment file. Room is asked for in one file; a shard that asked for more than one has would refuse for
// ever, and one append of more than half a file says nothing about the disk when it finds no room.
func halfOf(segmentBytes int64) int64 {
	if segmentBytes == 0 {
		return 32 << 20
	}
	return segmentBytes / 2
}

// wanted is the room that ends the state.
func (f *fullness) wanted() int64 { return min(f.largest+min(refusalRoom, f.half/2), f.half) }

// checkRoom tells the machine beforehand whether the store has room for an append: once the machine has taken it, its
// memory says that the record is held. When there is none, the repairs of openers have a reserve (R15).
func (c *Core) checkRoom(now protocol.Time, a *protocol.Append) {
	f := &c.full
	need := int64(c.batch.Bytes() + len(a.Block) + int(a.Count)*recordOverhead)
	if c.space == protocol.SpaceFree {
		if c.store.HasRoom(need) {
			return
		}
		if need > f.half {
			c.machine.SetSpace(protocol.SpaceNone) // for this append
			return
		}
		c.setSpace(now, protocol.SpaceRepairs)
		f.largest, f.since, f.tried = need, 0, now
	} else {
		f.largest = max(f.largest, min(need, f.half))
		c.askForRoom(now)
	}
	if a.Kind == protocol.AppendRepair && (c.space == protocol.SpaceRepairs || c.space == protocol.SpaceNone && now-f.urged >= askAgain) {
		f.urged = now
		space := protocol.SpaceRepairs
		if !c.store.HasReserve(need) {
			space = protocol.SpaceNone
		}
		c.setSpace(now, space)
	}
	if c.space == protocol.SpaceFree && !c.store.HasRoom(need) { // more than was asked for
		c.machine.SetSpace(protocol.SpaceNone)
	}
}

// AskForRoom lets a shard that refuses appends look whether there is room again, although nobody appends.
func (c *Core) AskForRoom(now protocol.Time) {
	if c.space != protocol.SpaceFree && c.err == nil {
		c.begin()
		c.askForRoom(now)
	}
}

// askForRoom ends the state if that is due.
func (c *Core) askForRoom(now protocol.Time) {
	f := &c.full
	if now-f.tried < askAgain {
		return
	}
	f.tried = now
	switch {
	case !c.store.HasRoom(int64(c.batch.Bytes()) + f.wanted()):
		f.since = 0
	case f.since == 0:
		f.since = now
	case now-f.since >= roomFor:
		c.setSpace(now, protocol.SpaceFree)
	}
}

func (c *Core) setSpace(now protocol.Time, space protocol.Space) {
	if space == c.space {
		return
	}
	if space == protocol.SpaceFree || c.space == protocol.SpaceFree {
		c.stats.FullChanges++
	}
	if space == protocol.SpaceFree {
		c.full.largest = 0
	}
	c.full.since = 0
	c.space = space
	c.machine.SetSpace(space)
}
