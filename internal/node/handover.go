package node

import "github.com/btrlog/btrlog/internal/protocol"

// handover says for how long the node of the next rank leaves a complete segment to the one before it. A grace, as long as archiving is
// quick. When the object store, or the network to it, is what is slow, a fixed time would have every node send every segment, and the
// store would have three times the work at the moment at which it has too much. So a node takes what its own segments need, from when they are complete
// until they are archived, for what the others' need: it estimates that as RFC 6298 does the time of a retransmission.
type handover struct {
	mean, dev protocol.Time // of the segments that this node was the first to archive
}

// maxHandover bounds the wait, in graces: the node before may be dead all the same.
const maxHandover = 15

// took notes that a segment of this node was archived so long after it was complete. It counts no more than the longest wait: otherwise one that
// had to wait out an outage of an hour would be remembered for dozens of segments.
func (h *handover) took(grace, d protocol.Time) {
	d = min(d, maxHandover*grace)
	if h.mean == 0 {
		h.mean, h.dev = d, d/2
		return
	}
	off := d - h.mean
	h.dev += (max(off, -off) - h.dev) / 4
	h.mean += off / 8
}

// wait returns how long to wait per rank. pending is for how long the oldest complete segment of this node has not been archived.
func (h *handover) wait(grace, pending protocol.Time) protocol.Time {
	// Twice the mean: the segments of a node wait for each other, and the others may have more of them.
	return max(grace, min(max(2*h.mean+4*h.dev, 2*pending), maxHandover*grace))
}
