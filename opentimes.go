package btrlog

import (
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

// OpenTimes says where the time of an open went, stage by stage (paper 4.2). Stages that had nothing to do are zero or nearly so.
type OpenTimes struct {
	Token    time.Duration // the record read, where it was not known, and the epoch raised: the first compare-and-swap
	Fence    time.Duration // a read quorum has promised, on disk, and told what it holds
	Tail     time.Duration // the bytes of the tail that has to be repaired are read, those that did not come with the promise
	Repair   time.Duration // a quorum has the tail under the new epoch, on disk, and new nodes what they lack
	Record   time.Duration // ensemble and history are on record: the second compare-and-swap
	Activate time.Duration // a quorum has activated, on disk: appends are taken
}

// Total is the sum of the stages: the time of the open.
func (t OpenTimes) Total() time.Duration {
	return t.Token + t.Fence + t.Tail + t.Repair + t.Record + t.Activate
}

// openClock follows an Opener through its stages.
type openClock struct {
	stage protocol.Stage
	since time.Time
	times OpenTimes
}

// now notes the stage as of now. It may go back: an open whose tail was not what it seemed begins again with the fence.
func (c *openClock) now(stage protocol.Stage) {
	if stage == c.stage {
		return
	}
	now := time.Now()
	passed := now.Sub(c.since)
	switch c.stage {
	case protocol.StageFence:
		c.times.Fence += passed
	case protocol.StageFetch:
		c.times.Tail += passed
	case protocol.StageRepair:
		c.times.Repair += passed
	case protocol.StageInstall:
		c.times.Record += passed
	case protocol.StageActivate:
		c.times.Activate += passed
	}
	c.stage, c.since = stage, now
}
