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
	for {
		v := r.view()
		if len(v.Ensemble) == 0 {
			return 0, nil // nobody has opened it: nothing can be committed
		}
		replies := r.askOthers(ctx, v.Ensemble, make([]*protocol.ReadReply, len(v.Ensemble)), protocol.Read{Log: r.id})
		knowing := 0
		for _, reply := range replies {
			if reply != nil {
				knowing++
			}
		}
		e := &Error{Kind: ErrUnavailable, Op: op, Log: r.name, Retryable: true}
		if knowing >= v.Qr() {
			r.mu.Lock()
			if !asked {
				// Later answers may name LSNs that were appended after the question; they are not waited for.
				highest, asked = r.m.Highest(replies), true
			}
			tail, decided, why := r.m.Tail(highest, replies)
			if decided {
				// What is counted is committed, though no node has been told: a later Tail of this reader must not fall behind it.
				r.m.Counted(tail)
			}
			known := r.m.Known()
			r.mu.Unlock()
			if decided {
				return known, nil
			}
			e.From, e.To, e.Err = LSN(tail+1), LSN(highest), errors.New(why)
		} else {
			e.Err = errors.New("too few of the log's nodes answer")
		}
		for _, n := range missing(v.Ensemble, replies) {
			e.Missing = append(e.Missing, string(n))
		}
		if sleep(ctx, retryPause) != nil {
			return 0, e
		}
		// An open may have moved the log, or decided what was not.
		if err := r.reload(ctx); err != nil {
			if ctx.Err() != nil {
				return 0, e
			}
			return 0, err
		}
	}
}
