package node

import (
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/internal/shard"
	"github.com/btrlog/btrlog/lst"
	"github.com/btrlog/btrlog/metrics"
)

// requestKind is an index of requestNames. The first ones are those that an Ack answers, in the order of protocol.AckKind.
type requestKind int

const (
	requestAppend requestKind = iota
	requestActivate
	requestWatermark
	requestDrop
	requestOpen
	requestFetch
	requestRead
	requestKinds
)

var requestNames = [requestKinds]string{"append", "activate", "watermark", "drop", "open", "fetch", "read"}

func kindOf(m protocol.Message) requestKind {
	switch m.(type) {
	case *protocol.Append:
		return requestAppend
	case *protocol.Activate:
		return requestActivate
	case *protocol.Watermark:
		return requestWatermark
	case *protocol.Drop:
		return requestDrop
	case *protocol.Open:
		return requestOpen
	case *protocol.Fetch:
		return requestFetch
	}
	return requestRead
}

const statuses = int(protocol.StatusUnavailable) + 1

// Stages of an append at a node: from the turn that received it until it is in the batch, the batch's commit, and until the
// answers have left.
const (
	stageApply = iota
	stageWrite
	stageReply
	stages
)

var stageNames = [stages]string{"apply", "write", "reply"}

// durabilities of a batch: forced to the device, or acknowledged from memory, which only batches of logs with memory
// durability are (P14).
var durabilities = [2]string{"disk", "memory"}

// tally is what a shard's thread counts. It adds to atomics, and nobody ever holds it up to look at them.
type tally struct {
	requests [requestKinds]atomic.Uint64
	refused  [requestKinds][statuses]atomic.Uint64
	stages   [2][stages]metrics.Histogram
	full     atomic.Bool // appends are refused for want of space
	last     atomic.Pointer[picture]

	appends int // of the batch; the thread's own
}

func (t *tally) stepped(m protocol.Message) {
	k := kindOf(m)
	t.requests[k].Add(1)
	if k == requestAppend {
		t.appends++
	}
}

func (t *tally) answered(k requestKind, s protocol.Status) {
	if s != protocol.StatusOK && int(s) < statuses {
		t.refused[k][s].Add(1)
	}
}

func statusOf(m protocol.Message) (requestKind, protocol.Status) {
	switch m := m.(type) {
	case *protocol.OpenReply:
		return requestOpen, m.Status
	case *protocol.FetchReply:
		return requestFetch, m.Status
	case *protocol.ReadReply:
		return requestRead, m.Status
	}
	return requestRead, protocol.StatusOK
}

// times counts the stages of the batch's appends.
func (t *tally) times(forced bool, apply, write, reply time.Duration) {
	n := uint64(t.appends)
	t.appends = 0
	if n == 0 {
		return
	}
	h := &t.stages[0]
	if !forced {
		h = &t.stages[1]
	}
	h[stageApply].Observe(apply, n)
	h[stageWrite].Observe(write, n)
	h[stageReply].Observe(reply, n)
}

// picture is a shard as its thread saw it.
type picture struct {
	core    shard.Stats
	totals  protocol.Totals
	store   lst.Stats
	socket  ring.Stats
	parked  int
	waiting int // datagrams that exceeded their log's share of a batch
	unsent  uint64
}

// look makes a picture. It is the thread that does, when it is asked or once in a while.
func (t *thread) look(now protocol.Time) *picture {
	p := &picture{core: t.core.Stats(), totals: t.core.Totals(now), store: t.core.Store().Stats(), socket: t.loop.Stats(), parked: t.nparked,
		waiting: t.backlog.items, unsent: t.post.unsent}
	t.tally.last.Store(p)
	return p
}
