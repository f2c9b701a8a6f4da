package btrlog

import (
	"context"
	"errors"

	"github.com/btrlog/btrlog/internal/protocol"
)

// Tail returns the highest committed LSN, linearizable: every record whose Sync had returned before Tail was called is at or below
// it, and no later Tail or Read of any reader contradicts it. It reads the log's record and asks the nodes; 0 is an empty log.
//
// With a writer that is gone in the middle of an append, the last LSNs may be undecided: then Tail waits, for silent nodes or
// for the next open of the log, until ctx or Config.Timeout ends, and returns ErrUnavailable saying so. Other errors:
// ErrNotFound; ErrClosed.
func (r *Reader) Tail(ctx context.Context) (LSN, error) {
	const op = "tail"
	if r.c.closed() {
		return 0, closedError(op, r.name)
	}
	ctx, done := r.c.call(ctx)
	defer done()
	tail, err := r.tail(ctx, op)
	return LSN(tail), r.c.finish(op, r.name, err)
}

func (r *Reader) tail(ctx context.Context, op string) (protocol.LSN, error) {
	// The record comes first. What was acknowledged before is on the nodes that it names, or below the start that it names;
	// with a record that was read earlier, the nodes asked could be those of the past.
	if err := r.reload(ctx); err != nil {
		return 0, err
	}
	highest := protocol.LSN(0)
	asked := false
	var last *Error // why it goes on waiting
	for {
		v := r.view()
		if len(v.Ensemble) == 0 {
			return 0, nil // nobody has opened it: nothing can be committed
		}
		replies := r.askOthers(ctx, v.Ensemble, make([]*protocol.ReadReply, len(v.Ensemble)), protocol.Read{Log: r.id})
		if last != nil && ctx.Err() != nil {
			return 0, last // this round was cut short and knows less than the one before
		}
		silent := missing(v.Ensemble, replies)
		last = &Error{Kind: r.unavailable(), Op: op, Log: r.name, Retryable: true, Err: errors.New("too few of the log's nodes answer")}
		for _, n := range silent {
			last.Missing = append(last.Missing, string(n))
		}
		r.mu.Lock()
		// Another call may have learned of other nodes meanwhile; then these answers are of the past.
		if len(v.Ensemble)-len(silent) >= v.Qr() && r.m.View().Ensemble.Equal(v.Ensemble) {
			if !asked {
				// Later answers may name LSNs that were appended after the question; they are not waited for.
				highest, asked = r.m.Highest(replies), true
			}
			tail, decided, why := r.m.Tail(highest, replies)
			if decided {
				// What is counted is committed, though no node has been told: a later Tail of this reader must not fall behind it.
				r.m.Counted(tail)
				tail = r.m.Known()
				r.mu.Unlock()
				return tail, nil
			}
			last.From, last.To, last.Err = LSN(tail+1), LSN(highest), errors.New(why)
		}
		r.mu.Unlock()
		if sleep(ctx, retryPause) != nil {
			return 0, last
		}
		// An open may have moved the log, or decided what was not.
		if err := r.reload(ctx); err != nil {
			if ctx.Err() != nil {
				return 0, last
			}
			return 0, err
		}
	}
}
