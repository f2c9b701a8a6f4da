package btrlog

import (
	"container/heap"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/internal/wire"
)

// endpoint is what the receiver serves: a Writer or an open under way. Its methods lock by themselves.
type endpoint interface {
	// onAck and onMessage apply one reply; settle then sends what that made due and wakes who waits. whole is false for a
	// reply that came in a datagram, whose lists the node may have cut to fit.
	onAck(now protocol.Time, h wire.Header, a *protocol.Ack)
	onMessage(now protocol.Time, h wire.Header, m protocol.Message, whole bool)
	settle(now protocol.Time)
	// tick does what is due by time, and settles.
	tick(now protocol.Time)
	clientClosed()
	timer() *timer
}

// routeTable finds the endpoints of a log. There may be several: a writer that is being fenced by an open of the same
// process. Each ignores what is not of its epoch.
type routeTable struct {
	mu   sync.RWMutex
	byID map[protocol.LogID][]endpoint // slices are replaced, never changed
}

func (t *routeTable) get(id protocol.LogID) []endpoint {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[id]
}

func (t *routeTable) add(id protocol.LogID, e endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = make(map[protocol.LogID][]endpoint)
	}
	t.byID[id] = append(slices.Clone(t.byID[id]), e)
}

func (t *routeTable) remove(id protocol.LogID, e endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(t.byID[id]), func(x endpoint) bool { return x == e })
	if len(rest) == 0 {
		delete(t.byID, id)
		return
	}
	t.byID[id] = rest
}

func (t *routeTable) all() []endpoint {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var out []endpoint
	for _, es := range t.byID {
		out = append(out, es...)
	}
	return out
}

// timer is an endpoint's entry in the queue of the receiver.
type timer struct {
	at    protocol.Time
	index int // in the heap; −1: not in it
	owner endpoint

	touched bool // it is in packetState.touched; the receiver's own
}

func newTimer(e endpoint) timer { return timer{index: -1, owner: e} }

// timerQueue says when which endpoint wants its tick. It is armed lazily: an endpoint whose time moves to later is looked
// at too early once, which costs less than moving it with every append.
type timerQueue struct {
	mu    sync.Mutex
	heap  timerHeap
	sleep atomic.Int64 // until when the receiver sleeps; 0: it is awake and will look, within standbyFor
}

// arm makes sure that e gets a tick at or before at. It reports whether the thread must be woken for it.
func (q *timerQueue) arm(t *timer, at protocol.Time) (wake bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case t.index < 0:
		t.at = at
		heap.Push(&q.heap, t)
	case at < t.at:
		t.at = at
		heap.Fix(&q.heap, t.index)
	default:
		return false
	}
	s := q.sleep.Load()
	return s != 0 && int64(at) < s
}

func (q *timerQueue) drop(t *timer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.index >= 0 {
		heap.Remove(&q.heap, t.index)
	}
}

// due takes an endpoint whose time has come, or nil.
func (q *timerQueue) due(now protocol.Time) endpoint {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.heap) == 0 || q.heap[0].at > now {
		return nil
	}
	return heap.Pop(&q.heap).(*timer).owner
}

// trimEvery is how often pools are looked at, if the thread is awake at all. Writers that go to rest wake it.
const trimEvery = protocol.Time(20 * time.Second)

// maxSleep is the longest sleep of the thread.
const maxSleep = protocol.Time(time.Hour)

// rest notes until when the thread is going to sleep. It is noted under the lock that arm holds, so that an arm that came
// before is counted in and one that comes later knows whom to wake.
func (q *timerQueue) rest(now protocol.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	until := now + maxSleep
	if len(q.heap) > 0 {
		until = min(until, q.heap[0].at)
	}
	q.sleep.Store(int64(max(until, 1)))
	return time.Duration(until - now)
}

type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}

// arm arms e and wakes the thread if it would sleep too long.
func (c *Client) arm(e endpoint, at protocol.Time) {
	if c.timers.arm(e.timer(), at) {
		c.sock.Wake()
	}
}

// deliver applies a reply that came over HTTP.
func (c *Client) deliver(h wire.Header, m protocol.Message, e endpoint) {
	now := c.now()
	if a, ok := m.(*protocol.Ack); ok {
		e.onAck(now, h, a)
	} else {
		e.onMessage(now, h, m, true)
	}
	e.settle(now)
	if _, open := e.(*openCall); open {
		c.sock.Wake() // its goroutine may wait in the kernel, for datagrams
	}
}
