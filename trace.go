package btrlog

import (
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/stagetrace"
)

// AppendTrace says where the time of one append went, as its writer saw it. One LSN in Config.TraceEvery is traced, the same ones by the
// nodes of the log, which tell their part (GET /btrlog/v1/traces, a JSON array): for a node, its NodeAck.After less its own stages apply
// and write is what the network and both kernels took, the calls that send among it. Times are differences on one host; no clocks are compared.
type AppendTrace struct {
	LSN   LSN
	Epoch Epoch
	Begun time.Time // when the record got its LSN
	// Queue is how long Append had waited for space in the window before that.
	Queue time.Duration
	// Hold is the time from Begun until the record was put into a datagram: behind the datagrams of its log that were under way.
	Hold time.Duration
	// Acks are the nodes that had it on disk (in memory, for such a log) before it was committed or with it, in the order in which they were
	// heard.
	Acks []NodeAck
	// Commit is the time from Begun until a quorum had it and all before it.
	Commit time.Duration
}

// NodeAck is an acknowledgement of a traced append.
type NodeAck struct {
	Node        string
	Incarnation uint64
	After       time.Duration // since the record was put into the first datagram
}

// appendTrace is an AppendTrace in memory that is used again.
type appendTrace struct {
	lsn                           protocol.LSN // 0: none
	epoch                         protocol.Epoch
	begun, sent, committed, queue protocol.Time
	acks                          int
	by                            [protocol.MaxEnsemble]protocol.Incarnation
	at                            [protocol.MaxEnsemble]protocol.Time
}

// tracer traces one append of a writer at a time. Its methods but all need the writer's lock.
type tracer struct {
	every uint64
	now   appendTrace
	ring  *stagetrace.Ring[appendTrace]
}

// begin notes that [first, last] were given out.
func (t *tracer) begin(log protocol.LogID, epoch protocol.Epoch, first, last protocol.LSN, now, queue protocol.Time) {
	if t.now.lsn != 0 {
		return
	}
	if lsn := stagetrace.Pick(log, first, last, t.every); lsn != 0 {
		t.now.lsn, t.now.epoch, t.now.begun, t.now.queue, t.now.sent, t.now.acks = lsn, epoch, now, queue, 0, 0
	}
}

// send notes that [from, to] leave for the nodes.
func (t *tracer) send(from, to protocol.LSN, now protocol.Time) {
	if x := &t.now; x.lsn != 0 && x.sent == 0 && from <= x.lsn && x.lsn <= to {
		x.sent = now
	}
}

// ack notes that a node has [a.First, a.Last].
func (t *tracer) ack(a *protocol.Ack, by protocol.Incarnation, now protocol.Time) {
	x := &t.now
	if x.lsn == 0 || a.Kind != protocol.AckAppend || a.Status != protocol.StatusOK || a.Epoch != x.epoch || a.First > x.lsn || x.lsn > a.Last {
		return
	}
	for i := range x.acks {
		if x.by[i] == by {
			return // of a repetition
		}
	}
	if x.acks < len(x.by) {
		x.by[x.acks], x.at[x.acks] = by, now
		x.acks++
	}
}

// commit notes that everything up to lsn is committed.
func (t *tracer) commit(lsn protocol.LSN, now protocol.Time) {
	x := &t.now
	if x.lsn == 0 || x.lsn > lsn {
		return
	}
	if t.ring == nil {
		t.ring = new(stagetrace.Ring[appendTrace])
	}
	x.committed = now
	t.ring.Add(x)
	x.lsn = 0
}

// Traces returns the traces of the latest appends that were traced, the oldest first; at most 512. An append that was sent again under a
// later epoch (Reopen) is not among them.
func (w *Writer) Traces() []AppendTrace {
	w.mu.Lock()
	ring := w.tracer.ring
	names := make(map[protocol.Incarnation]string, len(w.peers))
	for i := range w.peers {
		names[w.peers[i].inc] = string(w.peers[i].node.id)
	}
	w.mu.Unlock()
	if ring == nil {
		return nil
	}
	var out []AppendTrace
	for _, x := range ring.All() {
		t := AppendTrace{LSN: LSN(x.lsn), Epoch: Epoch(x.epoch), Begun: w.c.begin.Add(time.Duration(x.begun)), Queue: time.Duration(x.queue),
			Hold: time.Duration(x.sent - x.begun), Commit: time.Duration(x.committed - x.begun)}
		for i := range x.acks {
			t.Acks = append(t.Acks, NodeAck{Node: names[x.by[i]], Incarnation: uint64(x.by[i]), After: time.Duration(x.at[i] - x.sent)})
		}
		out = append(out, t)
	}
	return out
}
