package node

import (
	"cmp"
	"slices"
	"sync"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/ring"
	"github.com/btrlog/btrlog/internal/shard"
	"github.com/btrlog/btrlog/lst"
)

// item is what other threads hand to a shard: a message that came over HTTP (call), or in a datagram to another shard (from).
type item struct {
	msg  protocol.Message
	size int
	from ring.Addr
	call *call

	copied bool // msg was copied from a datagram, and its memory is used again
	inbox  bool // it came through the inbox, which counts it until it is stepped
}

// call is an HTTP request that waits for a shard. The shard sets the fields and closes done; then they belong to the waiter.
type call struct {
	done  chan struct{}
	ack   protocol.Ack
	reply protocol.ReplyOut
	view  lst.View // with reply
	kind  callKind
	// waitAbove, with until, parks the read until the log's watermark exceeds it.
	waitAbove protocol.LSN
	until     protocol.Time
	read      *protocol.Read // of a long poll
}

type callKind uint8

const (
	callLost  callKind = iota // the machine gave no answer: refused as malformed, or undone for want of space
	callAck                   // ack is the answer
	callReply                 // reply is the answer, to be filled from view
	callStop                  // the shard has stopped
)

func newCall() *call { return &call{done: make(chan struct{})} }

func (c *call) end(k callKind) {
	c.kind = k
	close(c.done)
}

// inbox is a shard's bounded queue. Requests are bounded; reports of the flusher and questions of the status page are not
// counted, because the shard itself, or the HTTP server, bounds how many there are.
type inbox struct {
	maxItems, maxBytes int

	mu      sync.Mutex
	items   []item
	queued  int // requests that wait here or with the thread, and their bytes
	bytes   int
	use     map[protocol.LogID]int // of queued, by log
	reports []report
	asks    []chan<- ShardStatus
	looks   []chan<- *picture
	closed  bool
	refused uint64
}

// put queues a request; false when the queue is full or closed. A full queue has room for a log that has nothing in it, up to
// twice its bounds: others' requests are no reason to refuse a log's only one (F3).
func (b *inbox) put(it item) bool {
	log, _ := logOf(it.msg)
	b.mu.Lock()
	defer b.mu.Unlock()
	maxItems, maxBytes := b.maxItems, b.maxBytes
	if b.use[log] == 0 {
		maxItems, maxBytes = 2*maxItems, 2*maxBytes
	}
	if b.closed || b.queued >= maxItems || (b.bytes+it.size > maxBytes && b.queued > 0) {
		b.refused++
		return false
	}
	if b.use == nil {
		b.use = make(map[protocol.LogID]int)
	}
	b.use[log]++
	b.items = append(b.items, it)
	b.queued++
	b.bytes += it.size
	return true
}

func (b *inbox) report(r report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reports = append(b.reports, r)
}

func (b *inbox) ask(c chan<- ShardStatus) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.asks = append(b.asks, c)
	}
	return !b.closed
}

// look asks for a picture, which c must have room for. c is closed if the shard stops first.
func (b *inbox) look(c chan<- *picture) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.looks = append(b.looks, c)
	}
	return !b.closed
}

// depth returns how many requests wait, and their bytes.
func (b *inbox) depth() (items, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queued, b.bytes
}

// contents is what take moves out of an inbox, in memory that goes back and forth.
type contents struct {
	items   []item
	reports []report
	asks    []chan<- ShardStatus
	looks   []chan<- *picture
	done    []done // what the thread has stepped of what it took before
}

// done is a request that waits no more.
type done struct {
	log  protocol.LogID
	size int
}

// take moves everything out. in's memory becomes the inbox's; what it held must be done with.
func (b *inbox) take(in *contents) {
	clear(in.items)
	clear(in.reports)
	clear(in.asks)
	b.mu.Lock()
	defer b.mu.Unlock()
	in.items, b.items = b.items, in.items[:0]
	in.reports, b.reports = b.reports, in.reports[:0]
	in.asks, b.asks = b.asks, in.asks[:0]
	in.looks, b.looks = b.looks, in.looks[:0]
	for _, d := range in.done {
		b.queued--
		b.bytes -= d.size
		if b.use[d.log]--; b.use[d.log] == 0 {
			delete(b.use, d.log)
		}
	}
	in.done = in.done[:0]
}

// close refuses everything from now on and returns what is left.
func (b *inbox) close() contents {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	c := contents{items: b.items, reports: b.reports, asks: b.asks, looks: b.looks}
	b.items, b.reports, b.asks, b.looks, b.use, b.queued, b.bytes = nil, nil, nil, nil, nil, 0, 0
	return c
}

func (b *inbox) refusals() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused
}

// refusal is the answer to m that says s, as the node of incarnation inc; nil for what is no request.
func refusal(m protocol.Message, s protocol.Status, inc protocol.Incarnation) protocol.Message {
	ack := func(log protocol.LogID, e protocol.Epoch, k protocol.AckKind) *protocol.Ack {
		return &protocol.Ack{Log: log, Epoch: e, Kind: k, Status: s, Incarnation: inc}
	}
	switch m := m.(type) {
	case *protocol.Append:
		a := ack(m.Log, m.Epoch, protocol.AckAppend)
		a.Append, a.First, a.Last, a.Label = m.Kind, m.First, m.Last(), m.Label
		return a
	case *protocol.Activate:
		return ack(m.Log, m.Epoch, protocol.AckActivate)
	case *protocol.Watermark:
		return ack(m.Log, m.Epoch, protocol.AckWatermark)
	case *protocol.Drop:
		return ack(m.Log, m.Epoch, protocol.AckDrop)
	case *protocol.Open:
		return &protocol.OpenReply{Log: m.Log, Epoch: m.Epoch, Req: m.Req, Incarnation: inc, Status: s}
	case *protocol.Fetch:
		return &protocol.FetchReply{Log: m.Log, Epoch: m.Epoch, Req: m.Req, Incarnation: inc, Status: s, From: m.From, Through: max(m.From, 1) - 1}
	case *protocol.Read:
		return &protocol.ReadReply{Log: m.Log, Req: m.Req, Incarnation: inc, Status: s, From: m.From}
	}
	return nil
}

// logOf returns the log of a request; false for what is no request.
func logOf(m protocol.Message) (protocol.LogID, bool) {
	switch m := m.(type) {
	case *protocol.Append:
		return m.Log, true
	case *protocol.Activate:
		return m.Log, true
	case *protocol.Watermark:
		return m.Log, true
	case *protocol.Drop:
		return m.Log, true
	case *protocol.Open:
		return m.Log, true
	case *protocol.Fetch:
		return m.Log, true
	case *protocol.Read:
		return m.Log, true
	}
	return 0, false
}

// sizeOf is about the memory that a request holds, in bytes.
func sizeOf(m protocol.Message) int {
	switch m := m.(type) {
	case *protocol.Append:
		return 256 + len(m.Block)
	case *protocol.Activate:
		return 256 + 16*len(m.History)
	}
	return 256
}

// fitOpen cuts an OpenReply so that it takes at most maxBytes in a packet, by lowering Through: what is above it is unknown to
// the opener, who asks again where large answers travel.
func fitOpen(r *protocol.OpenReply, maxBytes int) {
	const fixed, extentBytes, rangeBytes = 256, 24, 16
	room := max(0, maxBytes-fixed)
	if len(r.Held)*extentBytes+len(r.Damaged)*rangeBytes <= room {
		return
	}
	sortRanges(r.Damaged)
	if n := room / 2 / rangeBytes; len(r.Damaged) > n {
		r.Through = min(r.Through, r.Damaged[n].From-1)
	}
	if n := room / 2 / extentBytes; len(r.Held) > n {
		r.Through = min(r.Through, r.Held[n].From-1)
	}
	held := r.Held[:0:0]
	for _, e := range r.Held {
		if e.From <= r.Through {
			e.To = min(e.To, r.Through)
			held = append(held, e)
		}
	}
	damaged := r.Damaged[:0:0]
	for _, d := range r.Damaged {
		if d.From <= r.Through {
			d.To = min(d.To, r.Through)
			damaged = append(damaged, d)
		}
	}
	r.Held, r.Damaged = held, damaged
}

// fillDatagram completes an answer so that it fits a packet of limit bytes.
func fillDatagram(v lst.View, r *protocol.ReplyOut, limit int) {
	const fixed = 256
	room := max(0, limit-fixed)
	switch m := r.Msg.(type) {
	case *protocol.OpenReply:
		fitOpen(m, limit)
		return
	case *protocol.FetchReply:
		cutDamage(&m.Damaged, &m.Through, room/4)
		room -= 16 * len(m.Damaged)
	case *protocol.ReadReply:
		cutDamage(&m.Damaged, &m.Through, room/4)
		if n := room / 4 / 24; len(m.Uncommitted) > n {
			m.Uncommitted = m.Uncommitted[:n] // a reader that counts copies counts fewer: it waits, it does not err
		}
		room -= 16*len(m.Damaged) + 24*len(m.Uncommitted)
	}
	dropRefsAbove(r)
	shard.FillDatagram(v, r, room)
}

// cutDamage keeps as many ranges as fit into room bytes and lowers through to what they speak of.
func cutDamage(rs *[]protocol.Range, through *protocol.LSN, room int) {
	if n := room / 16; len(*rs) > n {
		sortRanges(*rs)
		*through = min(*through, max((*rs)[n].From, 1)-1)
		*rs = (*rs)[:n]
	}
}

func sortRanges(rs []protocol.Range) {
	slices.SortFunc(rs, func(a, b protocol.Range) int { return cmp.Compare(a.From, b.From) })
}

// dropRefsAbove leaves out the records above a Through that was lowered.
func dropRefsAbove(r *protocol.ReplyOut) {
	through := protocol.MaxLSN
	switch m := r.Msg.(type) {
	case *protocol.FetchReply:
		through = m.Through
	case *protocol.ReadReply:
		through = m.Through
	}
	for n := len(r.Refs); n > 0 && r.Refs[n-1].LSN > through; n-- {
		r.Refs = r.Refs[:n-1]
	}
}
