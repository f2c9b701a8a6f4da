package sim

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

// event is something that happens at one instant of virtual time. Equal instants are ordered by seq, so that the order
// of a run depends on nothing but its seed.
type event struct {
	at  protocol.Time
	seq uint64
	fn  func()
}

// eventHeap is a binary heap, earliest event first. (container/heap would box every event.)
type eventHeap []event

func (h eventHeap) less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}

func (h *eventHeap) push(e event) {
	q := append(*h, e)
	*h = q
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.less(i, up) {
			break
		}
		q[i], q[up] = q[up], q[i]
		i = up
	}
}

func (h *eventHeap) pop() event {
	q := *h
	e, n := q[0], len(q)-1
	q[0] = q[n]
	q[n] = event{}
	q = q[:n]
	*h = q
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && q.less(down+1, down) {
			down++
		}
		if !q.less(down, i) {
			break
		}
		q[i], q[down] = q[down], q[i]
		i = down
	}
	return e
}

// scheduler is virtual time: events run one after another, and between two events no time passes but what the second
// one's instant says.
type scheduler struct {
	now    protocol.Time
	seq    uint64
	events eventHeap
	steps  int
	procs  map[*proc]bool
}

func newScheduler() *scheduler { return &scheduler{procs: map[*proc]bool{}} }

// at runs fn at instant t, or now when t is past.
func (s *scheduler) at(t protocol.Time, fn func()) {
	s.seq++
	s.events.push(event{max(t, s.now), s.seq, fn})
}

func (s *scheduler) after(d protocol.Time, fn func()) { s.at(s.now+d, fn) }

// run executes events until done reports true, the queue is empty, or the next event lies behind until; it reports
// whether done did.
func (s *scheduler) run(until protocol.Time, done func() bool) bool {
	for len(s.events) > 0 {
		if done() {
			return true
		}
		if s.events[0].at > until {
			s.now = until
			return done()
		}
		e := s.events.pop()
		s.now = e.at
		s.steps++
		e.fn()
	}
	return done()
}

// proc is an actor written as straight code: a coroutine that runs until it waits, and goes on when virtual time or
// another event resumes it. Exactly one of all procs and events runs at a time, and who is next is decided by the event
// queue alone, so procs are as deterministic as events.
type proc struct {
	s       *scheduler
	name    string
	resume  func() (struct{}, bool)
	cancel  func()
	yield   func(struct{}) bool
	gen     uint64 // number of the current wait; a timer of an earlier one is void
	waiting bool
	running bool
	dead    bool
	atEnd   func() // called once when the proc has ended, however it did
}

// killed unwinds a proc that was killed: none of its code runs after that instant, as after kill -9.
type killed struct{}

// spawn starts fn as a proc at the current instant.
func (s *scheduler) spawn(name string, fn func(p *proc)) *proc {
	p := &proc{s: s, name: name}
	p.resume, p.cancel = iter.Pull(func(yield func(struct{}) bool) {
		p.yield = yield
		defer func() {
			if r := recover(); r != nil {
				if _, ok := r.(killed); !ok {
					panic(fmt.Sprintf("proc %s: %v", name, r))
				}
			}
		}()
		fn(p)
	})
	s.procs[p] = true
	p.waiting = true
	s.at(s.now, func() { p.goOn(0) })
	return p
}

// goOn resumes the wait numbered gen, if it is still the current one.
func (p *proc) goOn(gen uint64) {
	if p.dead || !p.waiting || p.gen != gen {
		return
	}
	p.waiting = false
	p.running = true
	_, more := p.resume()
	p.running = false
	if !more {
		p.end()
	}
}

func (p *proc) end() {
	if !p.s.procs[p] {
		return
	}
	p.dead = true
	delete(p.s.procs, p)
	if p.atEnd != nil {
		p.atEnd()
	}
}

// kill ends the proc at this instant. It may be called by the proc itself.
func (p *proc) kill() {
	if p.dead {
		return
	}
	p.dead = true
	if p.running {
		panic(killed{})
	}
	p.cancel()
	p.dead = false
	p.end()
}

// wait parks the proc until wake is called or the deadline has come.
func (p *proc) wait(deadline protocol.Time) {
	if p.dead {
		panic(killed{})
	}
	p.gen++
	gen := p.gen
	p.waiting = true
	p.s.at(deadline, func() { p.goOn(gen) })
	if !p.yield(struct{}{}) {
		panic(killed{})
	}
}

// sleep lets d pass, whatever wakes the proc meanwhile.
func (p *proc) sleep(d protocol.Time) {
	for end := p.s.now + d; p.s.now < end; {
		p.wait(end)
	}
}

// wake lets a parked proc go on at the current instant.
func (p *proc) wake() {
	if p.waiting && !p.dead {
		gen := p.gen
		p.s.at(p.s.now, func() { p.goOn(gen) })
	}
}

// procContext carries the proc through code that takes a context, with a deadline in virtual time. Nothing may wait on
// its Done channel: code under simulation waits through its seams.
type procContext struct {
	p        *proc
	deadline protocol.Time
}

type procKey struct{}

func (p *proc) context(deadline protocol.Time) context.Context { return procContext{p, deadline} }

func (c procContext) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c procContext) Done() <-chan struct{}       { return nil }
func (c procContext) Err() error {
	if c.p.s.now >= c.deadline {
		return context.DeadlineExceeded
	}
	return nil
}
func (c procContext) Value(key any) any {
	if key == (procKey{}) {
		return c.p
	}
	return nil
}

func procOf(ctx context.Context) *proc {
	p, _ := ctx.Value(procKey{}).(*proc)
	return p
}

// sleepSeam is the Sleep of everything that takes one.
func sleepSeam(ctx context.Context, d time.Duration) error {
	if p := procOf(ctx); p != nil {
		p.sleep(protocol.Time(d))
	}
	return ctx.Err()
}
