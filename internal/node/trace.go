package node

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/stagetrace"
)

// tracer notes where the time of some appends goes: those that their writer notes too (stagetrace). One of a batch is enough, since
// all of a batch have the same times.
type tracer struct {
	ring stagetrace.Ring[stagetrace.Node] // anybody's

	// The thread's own: what is picked, and the append of this batch.
	every uint64
	log   protocol.LogID
	epoch protocol.Epoch
	lsn   protocol.LSN // 0: none
	since protocol.Time
}

// trace looks whether an append is one to be traced.
func (t *thread) trace(a *protocol.Append) {
	tr := &t.tracer
	if tr.lsn != 0 || a.Kind != protocol.AppendNormal || a.Count == 0 {
		return
	}
	if lsn := stagetrace.Pick(a.Log, a.First, a.Last(), tr.every); lsn != 0 {
		// The turn has begun before the append was there.
		tr.log, tr.epoch, tr.lsn, tr.since = a.Log, a.Epoch, lsn, t.n.now()
	}
}

// done notes the trace of a batch.
func (t *tracer) done(appends int, committed protocol.Time, write, reply time.Duration) {
	t.ring.Add(&stagetrace.Node{Log: t.log.String(), Epoch: uint64(t.epoch), LSN: t.lsn, Appends: appends,
		Apply: int64(committed - t.since), Write: int64(write), Reply: int64(reply)})
	t.lsn = 0
}

// Traces returns the latest traces of all shards, in no order.
func (n *Node) Traces() (all []stagetrace.Node) {
	for _, t := range n.threads {
		all = append(all, t.tracer.ring.All()...)
	}
	return all
}

func (n *Node) serveTraces(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(n.Traces()) // the asker is gone
}
