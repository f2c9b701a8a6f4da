package btrlog

import (
	"container/heap"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/btrlog/btrlog/internal/protocol"
)

// waiter is one goroutine that waits for a commit or for window space. It is pooled; its channel holds one signal.
type waiter struct {
	ch    chan struct{}
	lsn   LSN
	limit protocol.Time // when the wait ends by itself; never if its context has a deadline
	index int           // in its heap or queue; −1: not in it, so a signal was sent
	late  bool          // the signal says that the limit has passed
}

// waiterPool keeps waiters; as with jobPool, a garbage collection must not empty it.
type waiterPool struct {
	mu   sync.Mutex
	free []*waiter
}

const keepWaiters = 4096

func (p *waiterPool) get() *waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		wt := p.free[n-1]
		p.free = p.free[:n-1]
		return wt
	}
	return &waiter{ch: make(chan struct{}, 1)}
}

func (p *waiterPool) put(wt *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < keepWaiters {
		p.free = append(p.free, wt)
	}
}

func (wt *waiter) signal() {
	wt.index = -1
	wt.ch <- struct{}{} // never blocks: one signal per wait, and the waiter takes it before it is pooled
}

// waitHeap orders those who wait in Sync by LSN, so that a commit looks only at those it releases.
type waitHeap []*waiter

func (h waitHeap) Len() int           { return len(h) }
func (h waitHeap) Less(i, j int) bool { return h[i].lsn < h[j].lsn }
func (h waitHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *waitHeap) Push(x any) {
	wt := x.(*waiter)
	wt.index = len(*h)
	*h = append(*h, wt)
}
func (h *waitHeap) Pop() any {
	old := *h
	wt := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return wt
}

func (h *waitHeap) release(committed LSN) {
	for len(*h) > 0 && (*h)[0].lsn <= committed {
		heap.Pop(h).(*waiter).signal()
	}
}

func (h *waitHeap) fail() {
	for _, wt := range *h {
		wt.signal()
	}
	*h = nil
}

// waitQueue holds those who wait for window space, first come first served. Only the first is woken; it passes the wake-up
// on when it got its space or went away.
type waitQueue struct {
	q     []*waiter
	awake *waiter // woken and not back yet
}

func (q *waitQueue) empty() bool { return len(q.q) == 0 && q.awake == nil }

func (q *waitQueue) push(wt *waiter, first bool) {
	wt.index = 0 // in the queue
	if q.awake == wt {
		q.awake = nil
	}
	if first {
		q.q = append([]*waiter{wt}, q.q...)
		return
	}
	q.q = append(q.q, wt)
}

func (q *waitQueue) remove(wt *waiter) {
	for i := range q.q {
		if q.q[i] == wt {
			q.q = append(q.q[:i], q.q[i+1:]...)
			break
		}
	}
	wt.index = -1
}

func (q *waitQueue) wakeFirst() {
	if q.awake != nil || len(q.q) == 0 {
		return
	}
	wt := q.q[0]
	q.q[0] = nil
	q.q = q.q[1:]
	q.awake = wt
	wt.signal()
}

func (q *waitQueue) fail() {
	for _, wt := range q.q {
		wt.signal()
	}
	q.q = nil
}

// startWait takes a waiter.
func (w *Writer) startWait(ctx context.Context, lsn LSN) *waiter {
	wt := w.c.waiters.get()
	wt.lsn, wt.limit, wt.late = lsn, never, false
	if _, has := ctx.Deadline(); !has {
		// One look of the thread's timer instead of a timer per wait.
		wt.limit = w.c.now() + protocol.Time(w.c.cfg.Timeout)
	}
	return wt
}

// expireWaiters ends the waits whose limit has passed. Callers hold mu.
func (w *Writer) expireWaiters(now protocol.Time) {
	w.expire = never
	var late []*waiter
	for _, wt := range w.syncs {
		if wt.limit <= now {
			late = append(late, wt)
		} else {
			w.expire = min(w.expire, wt.limit)
		}
	}
	for _, wt := range late {
		heap.Remove(&w.syncs, wt.index)
		wt.late = true
		wt.signal()
	}
	late = late[:0]
	for _, wt := range w.space.q {
		if wt.limit <= now {
			late = append(late, wt)
		} else {
			w.expire = min(w.expire, wt.limit)
		}
	}
	for _, wt := range late {
		w.space.remove(wt)
		wt.late = true
		wt.signal()
	}
}

// Sync waits until everything up to lsn is committed: nil says that it is. ctx ends the wait, not the append; without a
// deadline the wait ends after Config.Timeout. Sync may be called again.
//
// Errors: ErrUnavailable (Unknown: the records may be committed yet), ErrFenced, ErrNotFound, ErrClosed (Unknown likewise: the
// next open decides), ErrInvalid for an LSN that was not given out.
func (w *Writer) Sync(ctx context.Context, lsn LSN) error {
	const op = "sync"
	if w.Committed() >= lsn {
		return nil
	}
	w.mu.Lock()
	switch {
	case w.Committed() >= lsn:
		w.mu.Unlock()
		return nil
	case lsn >= LSN(w.m.Next()):
		next := w.m.Next()
		w.mu.Unlock()
		return invalid(op, w.name, "LSN %d was not given out; the next one is %d", lsn, next)
	case w.err != nil:
		w.mu.Unlock()
		return w.lost(op, lsn)
	}
	w.mu.Unlock()

	if w.lead(lsn) {
		return nil
	}
	defer w.c.receiver.waited()
	w.mu.Lock()
	switch {
	case w.Committed() >= lsn:
		w.mu.Unlock()
		return nil
	case w.err != nil:
		w.mu.Unlock()
		return w.lost(op, lsn)
	}
	wt := w.startWait(ctx, lsn)
	heap.Push(&w.syncs, wt)
	w.expire = min(w.expire, wt.limit)
	w.rearm()
	w.mu.Unlock()

	select {
	case <-wt.ch:
	case <-ctx.Done():
		w.mu.Lock()
		if wt.index >= 0 {
			heap.Remove(&w.syncs, wt.index)
			wt.index = -1
		} else {
			<-wt.ch // the signal came meanwhile
		}
		w.mu.Unlock()
		wt.late = true
	}
	late := wt.late
	w.c.waiters.put(wt)
	switch {
	case w.Committed() >= lsn:
		return nil
	case late:
		return w.notYet(op, ctx, lsn)
	}
	return w.lost(op, lsn)
}

// notYet is the error of a Sync that ended before the commit, and names who did not answer.
func (w *Writer) notYet(op string, ctx context.Context, lsn LSN) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := ended(op, w.name, ctx, "waiting for %d of the log's nodes to have LSN %d on disk", w.result.Config.Qw, lsn)
	e.From, e.To, e.Unknown, e.Epoch = w.Committed()+1, lsn, true, Epoch(w.m.Epoch())
	return w.blame(e)
}

// blame adds to e which nodes a writer waits for: those that do not answer, and what the others say. Callers hold mu.
func (w *Writer) blame(e *Error) *Error {
	saying := map[protocol.Status][]string{}
	for i := range w.peers {
		switch p := &w.peers[i]; {
		case p.asked != 0:
			e.Missing = append(e.Missing, string(p.node.id))
		case p.status != protocol.StatusOK:
			saying[p.status] = append(saying[p.status], string(p.node.id))
		}
	}
	for _, s := range slices.Sorted(maps.Keys(saying)) {
		e.Err = fmt.Errorf("%w; %s: %s", e.Err, strings.Join(saying[s], ", "), s.Explain())
	}
	e.Incompatible = w.c.incompatible(e.Missing)
	return e
}

// lost is the error of a Sync whose writer has ended.
func (w *Writer) lost(op string, lsn LSN) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := *w.err
	out.Op, out.From, out.To, out.Unknown = op, w.Committed()+1, lsn, true
	return &out
}

// appendWhenRoom waits in the queue for window space and appends. When the first is woken and there is still no room it stays
// the first: nobody passes it.
func (w *Writer) appendWhenRoom(ctx context.Context, op string, rec []byte, recs [][]byte) (first, last protocol.LSN, err error) {
	w.c.receiver.wait()
	defer w.c.receiver.waited()
	wt := w.startWait(ctx, 0)
	defer w.c.waiters.put(wt)
	began := max(w.c.now(), 1)
	for since := protocol.Time(0); ; since = began {
		w.mu.Lock()
		var job *sendJob
		if first, last, job, err = w.appendLocked(rec, recs, since); err != errNoRoom {
			w.passOn(wt)
			w.mu.Unlock()
			w.c.transmit(job)
			return first, last, err
		}
		// Back into the queue under the lock of the attempt: a commit between the two would be missed.
		w.space.push(wt, since != 0)
		w.expire = min(w.expire, wt.limit)
		w.rearm()
		w.mu.Unlock()
		select {
		case <-wt.ch:
			if !wt.late {
				continue
			}
		case <-ctx.Done():
			w.mu.Lock()
			if wt.index >= 0 {
				w.space.remove(wt)
			} else {
				<-wt.ch
			}
			w.passOn(wt)
			w.mu.Unlock()
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return 0, 0, w.blame(ended(op, w.name, ctx, "waiting for space in the append window"))
	}
}

// passOn lets the next in the queue look. Callers hold mu.
func (w *Writer) passOn(wt *waiter) {
	if w.space.awake == wt {
		w.space.awake = nil
		w.space.wakeFirst()
	}
}
