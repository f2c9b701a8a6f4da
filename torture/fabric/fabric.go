// Package fabric is a network switch in user space that loses, delays, duplicates and reorders frames as a seed says.
//
// Fabric is the pure part: it holds frames by the time at which they are due and reads no clock. What happens to the n-th
// frame of a link (an ordered pair of ports) depends on the seed, the link, n, and the link's conditions at that moment, and
// on nothing else: not on frames of other links, nor on when a frame came. Switch drives a Fabric with TAP devices.
package fabric

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// Conditions are those of a link. The zero value delivers every frame once, in order and at once.
type Conditions struct {
	// Delay is added to every frame, and up to Jitter on top. Frames stay in order unless Reorder holds one back.
	Delay, Jitter time.Duration
	// Loss, Duplicate and Reorder are probabilities, 0 to 1, drawn for each frame one by one. The second copy of a frame comes
	// up to Late after the first; a frame that is held back comes up to Late later, and those behind it overtake it.
	Loss, Duplicate, Reorder float64
	Late                     time.Duration
	// Cut loses everything.
	Cut bool
}

// MaxHeld is how many frames a Fabric holds; more are lost, and counted as overflow.
const MaxHeld = 1 << 16

// Counts of frames, since New. Sent counts those that were given to Send, Delivered those that Due gave out.
type Counts struct {
	Sent       uint64 `json:"sent"`
	Delivered  uint64 `json:"delivered"`
	Lost       uint64 `json:"lost"`
	Cut        uint64 `json:"cut"`
	Duplicated uint64 `json:"duplicated"`
	Reordered  uint64 `json:"reordered"`
	Overflow   uint64 `json:"overflow"`
}

// Fabric is the pure part of the switch. It is not safe for concurrent use.
type Fabric struct {
	links  [][]link // by source, then destination
	held   frames
	order  uint64 // breaks ties of frames that are due at the same time: first in, first out
	counts Counts
}

type link struct {
	c    Conditions
	rand *rand.Rand
	last time.Duration // when the newest frame that keeps the order is due
}

type frame struct {
	due   time.Duration
	order uint64
	to    int
	data  []byte
}

// New makes a fabric of so many ports, all links in the same condition.
func New(seed uint64, ports int, c Conditions) *Fabric {
	f := &Fabric{links: make([][]link, ports)}
	for from := range f.links {
		f.links[from] = make([]link, ports)
		for to := range f.links[from] {
			f.links[from][to] = link{c: c, rand: rand.New(rand.NewPCG(seed, uint64(from)<<32|uint64(to)))}
		}
	}
	return f
}

// Set changes the conditions of one link from here on; frames that are held keep what was drawn for them.
func (f *Fabric) Set(from, to int, c Conditions) { f.links[from][to].c = c }

// Counts returns what became of the frames.
func (f *Fabric) Counts() Counts { return f.counts }

// Send takes a frame at time now, which starts anywhere and does not fall. data is kept, and must not change.
func (f *Fabric) Send(now time.Duration, from, to int, data []byte) {
	l := &f.links[from][to]
	c := l.c
	// Five draws for every frame, whatever the conditions: the n-th frame's fate does not depend on those before it.
	lost, twice, held := l.rand.Float64(), l.rand.Float64(), l.rand.Float64()
	jitter, late := l.rand.Float64(), l.rand.Float64()
	f.counts.Sent++
	switch {
	case c.Cut:
		f.counts.Cut++
		return
	case lost < c.Loss:
		f.counts.Lost++
		return
	}
	due := now + c.Delay + time.Duration(jitter*float64(c.Jitter))
	if held < c.Reorder {
		f.counts.Reordered++
		due = max(due, l.last) + time.Duration(late*float64(c.Late))
	} else {
		due = max(due, l.last)
		l.last = due
	}
	f.hold(due, to, data)
	if twice < c.Duplicate {
		f.counts.Duplicated++
		f.hold(due+time.Duration(late*float64(c.Late)), to, data)
	}
}

func (f *Fabric) hold(due time.Duration, to int, data []byte) {
	if len(f.held) >= MaxHeld {
		f.counts.Overflow++
		return
	}
	f.order++
	heap.Push(&f.held, frame{due, f.order, to, data})
}

// Due takes out the next frame that is due at now, if there is one.
func (f *Fabric) Due(now time.Duration) (to int, data []byte, ok bool) {
	if len(f.held) == 0 || f.held[0].due > now {
		return 0, nil, false
	}
	next := heap.Pop(&f.held).(frame)
	f.counts.Delivered++
	return next.to, next.data, true
}

// Next says when a frame will be due.
func (f *Fabric) Next() (due time.Duration, ok bool) {
	if len(f.held) == 0 {
		return 0, false
	}
	return f.held[0].due, true
}

type frames []frame

func (h frames) Len() int { return len(h) }
func (h frames) Less(i, j int) bool {
	return h[i].due < h[j].due || h[i].due == h[j].due && h[i].order < h[j].order
}
func (h frames) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *frames) Push(x any)   { *h = append(*h, x.(frame)) }
func (h *frames) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = frame{}
	*h = old[:len(old)-1]
	return last
}
