package btrlog

import (
	"context"
	"fmt"

	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

// callbacks are the functions of OnCommit and their one goroutine.
type callbacks struct {
	fns   []*callback
	wake  chan struct{} // nil until the first OnCommit
	ended chan struct{}
}

type callback struct {
	f    func(LSN)
	told LSN // only the goroutine touches it
}

func (cb *callbacks) notify() {
	if cb.wake != nil {
		select {
		case cb.wake <- struct{}{}:
		default:
		}
	}
}

// OnCommit adds f to the functions that are called with the watermark whenever it has risen, and once soon after OnCommit if
// anything is committed already. Every call of OnCommit adds one, for the life of the writer; a nil f adds none.
// Calls are coalesced, their arguments rise, and all calls of one writer come from one goroutine, which holds no lock: f may call
// Append, Sync and any other method except Close and Client.Close, which wait for f. A slow f delays only callbacks.
// The last call, if the watermark has risen, comes before Close returns.
func (w *Writer) OnCommit(f func(LSN)) {
	if f == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.callbacks.fns = append(w.callbacks.fns, &callback{f: f})
	if w.callbacks.wake == nil {
		w.callbacks.wake = make(chan struct{}, 1)
		w.callbacks.ended = make(chan struct{})
		go w.callBack()
	}
	w.callbacks.notify()
}

func (w *Writer) callBack() {
	defer close(w.callbacks.ended)
	w.c.receiver.wait()
	defer w.c.receiver.waited()
	for over := false; !over; {
		select {
		case <-w.callbacks.wake:
		case <-w.done:
			over = true
		}
		w.mu.Lock()
		fns := w.callbacks.fns
		w.mu.Unlock()
		for _, cb := range fns {
			if c := w.Committed(); c > cb.told {
				cb.told = c
				cb.f(c)
			}
		}
	}
}

// Close drains and releases the writer: no append is accepted any more, everything given out is committed, the segment is
// sealed, and a quorum knows the watermark, so that a successor finds nothing unknown. The writer is released in any case. Without a
// deadline of ctx it gives up after Config.Timeout. nil: drained. Every later Close returns what the first one did.
//
// Errors, none of which a retry mends: ErrUnavailable with the LSNs From to To whose outcome is Unknown (the next open
// decides); ErrFenced, ErrNotFound if the writer had ended so; ErrClosed if Client.Close came first.
func (w *Writer) Close(ctx context.Context) error {
	const op = "close"
	ctx, done := w.c.call(ctx)
	defer done()
	w.mu.Lock()
	w.closing = true
	w.space.fail()
	job := w.advance(w.c.now())
	w.mu.Unlock()
	w.c.transmit(job)

	w.c.receiver.wait()
	defer w.c.receiver.waited()
	select {
	case <-w.drained:
	case <-w.done:
	case <-ctx.Done():
	}
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		w.closeErr = w.release(op, ctx)
	}
	err, ended := w.closeErr, w.callbacks.ended
	w.mu.Unlock()
	if ended != nil {
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
	if err == nil {
		return nil
	}
	return err
}

// release ends a writer that is drained or was given the time for it, and returns the result of its Close. Callers hold mu.
func (w *Writer) release(op string, ctx context.Context) *Error {
	select {
	case <-w.drained:
		w.end(&Error{Kind: ErrClosed, Op: op, Log: w.name, Epoch: Epoch(w.m.Epoch())})
		return nil
	default:
	}
	if w.err != nil { // fenced, lost, or the client was closed
		out := *w.err
		out.Op, out.Retryable = op, false
		return &out
	}
	out := w.undrained(op, ctx)
	w.end(&Error{Kind: ErrClosed, Op: op, Log: w.name, Epoch: out.Epoch, From: out.From, To: out.To, Unknown: out.Unknown})
	return out
}

// undrained is the error of a Close that ended before the writer was drained. Callers hold mu.
func (w *Writer) undrained(op string, ctx context.Context) *Error {
	e := ended(op, w.name, ctx, "waiting for the commit of everything given out and for %d nodes to know it", w.result.Config.Qw)
	e.Epoch, e.Retryable = Epoch(w.m.Epoch()), false // the writer is released
	if next := w.m.Next(); next-1 > w.m.Committed() {
		e.From, e.To, e.Unknown = LSN(w.m.Committed()+1), LSN(next-1), true
	}
	return w.blame(e)
}

// drain brings a closing writer to its end. Callers hold mu.
func (w *Writer) drain() {
	if w.m.Committed() != w.m.Next()-1 || w.reopening {
		return
	}
	if !w.sealed {
		w.sealed = true
		w.m.Seal() // false: the segment is empty already
	}
	if w.m.Settled() {
		select {
		case <-w.drained:
		default:
			close(w.drained)
		}
	}
}

// Reopen moves the live writer to another set of nodes (P11): it takes a new epoch of its own log, copies what the new
// nodes lack, and sends again, same LSN and bytes, what was given out and is not committed. Appends wait meanwhile; Sync
// waiters are served by the new epoch. Only Nodes, Replace and Qw of o are used, AcceptLoss is refused; the zero value takes a new epoch on
// the same nodes.
//
// Errors: ErrInvalid and ErrUnavailable, definite, before the new epoch was taken: the writer goes on as it was. ErrUnavailable
// with Unknown after it: the writer holds the log, but appends wait until Reopen is called again and succeeds, with the
// same nodes or others. ErrFenced, ErrNotFound, ErrClosed: the writer has ended, and Err says more.
func (w *Writer) Reopen(ctx context.Context, o WriterOptions) error {
	const op = "reopen"
	w.reopen.Lock()
	defer w.reopen.Unlock()
	ctx, done := w.c.call(ctx)
	defer done()
	if err := checkWriterOptions(w.name, &o); err != nil {
		return err
	}
	if o.AcceptLoss != nil {
		return invalid(op, w.name, "AcceptLoss is for OpenWriter: a live writer has records that are not lost")
	}
	w.mu.Lock()
	rec, failed, closing := w.rec, w.err, w.closing
	w.mu.Unlock()
	switch {
	case failed != nil:
		out := *failed
		out.Op = op
		return &out
	case closing:
		return closedError(op, w.name)
	}
	if err := w.c.reachable(ctx, op, &rec, &o); err != nil {
		return w.c.finish(op, w.name, err)
	}
	res, err := w.c.takeover(ctx, op, w.name, &o, w)
	if err == nil {
		err = w.resume(ctx, res)
	}
	if err == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if kind, _, _ := kindOf(err); kind == ErrFenced || kind == ErrNotFound {
		w.lose(err)
	}
	err = w.c.finish(op, w.name, err)
	if e, ok := err.(*Error); ok && w.reopening {
		e.Unknown, e.Retryable = true, w.err == nil
	}
	return err
}

// raise completes the request for a new token of our own. After a re-open whose token has an unknown outcome the nonce is
// the same (P1): if it was applied, it is found and not taken for a stranger's.
func (w *Writer) raise(r meta.Raise) meta.Raise {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nonce == "" {
		w.nonce = r.Nonce
	}
	r.Nonce, r.From = w.nonce, w.owner
	r.Known = nil // it may be of before the earlier try
	return r
}

// tokenTaken notes a token of our own before any node hears of it: what the nodes then say of fencing is meant by us.
func (w *Writer) tokenTaken(rec *meta.LogRecord) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.nonce, w.owner, w.reopening = "", rec.Owner(), true
	return w.m.TokenTaken(rec.Epoch)
}

// resume continues at the new epoch.
func (w *Writer) resume(ctx context.Context, res *taken) error {
	peers := w.connect(ctx, res.result.Config.Ensemble)
	w.mu.Lock()
	if w.err != nil {
		defer w.mu.Unlock()
		return w.err
	}
	now := w.c.now()
	if err := w.m.Reopened(now, res.result.Config); err != nil {
		w.mu.Unlock()
		return err
	}
	w.peers, w.rec, w.result, w.times, w.reopening = peers, res.rec, res.result, res.times, false
	w.tracer.now.lsn = 0
	w.space.wakeFirst()
	job := w.advance(now)
	w.mu.Unlock()
	w.c.transmit(job)
	return nil
}

// reachable refuses a re-open whose new quorum does not answer now, before the old epoch is given up for it.
func (c *Client) reachable(ctx context.Context, op string, rec *meta.LogRecord, o *WriterOptions) error {
	_, target, qw, err := c.target(ctx, rec, o)
	if err != nil {
		return err
	}
	answers := c.askAll(ctx, target, func(int) protocol.Message { return &protocol.Read{Log: rec.ID} })
	e := &Error{Kind: ErrUnavailable, Op: op, Log: rec.Name, Retryable: true}
	for i, a := range answers {
		r, ok := a.msg.(*protocol.ReadReply)
		if ok && r.Incarnation == target[i].Incarnation {
			continue
		}
		e.Missing = append(e.Missing, string(target[i].Node))
		if ok {
			e.Replaced = append(e.Replaced, string(target[i].Node))
		}
	}
	if alive := len(target) - len(e.Missing); alive < qw {
		e.Err = fmt.Errorf("%d of the %d wanted nodes answer, %d are needed; the writer goes on as it was", alive, len(target), qw)
		return e
	}
	return nil
}
