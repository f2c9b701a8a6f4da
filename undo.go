package btrlog

import (
	"context"
	"fmt"
	"sync"

	"github.com/btrlog/btrlog/internal/protocol"
)

// ownReader is the Reader of a Writer's own log, made when it is first needed.
type ownReader struct {
	mu sync.Mutex
	r  *Reader
}

// Read appends record lsn of this writer's log to dst and returns the extended slice: for the undo of a transaction, whose
// records may not be committed yet. Unlike Reader.Read it returns every LSN that Append has given out, from the moment Append
// returned; what is above Committed may be used by this process only, for the log may yet end below it.
//
// What the writer still holds costs no network: everything that is not committed, and behind it the last
// WriterOptions.RetainRecords and RetainBytes. The rest is read as by Reader.Read, with its errors. An LSN that was not given
// out is ErrInvalid. When the writer has ended, an LSN above Committed returns what Err returns, because the next open decides
// about it.
func (w *Writer) Read(ctx context.Context, lsn LSN, dst []byte) ([]byte, error) {
	const op = "read"
	if w.c.closed() {
		return dst, closedError(op, w.name)
	}
	if before := w.c.trimmedBefore(w.id); lsn != 0 && protocol.LSN(lsn) < before {
		return dst, &Error{Kind: ErrTrimmed, Op: op, Log: w.name, From: lsn, To: LSN(before - 1)}
	}
	w.mu.Lock()
	next, committed := LSN(w.m.Next()), LSN(w.m.Committed())
	if lsn == 0 || lsn >= next {
		w.mu.Unlock()
		return dst, invalid(op, w.name, "LSN %d was not given out; the next one is %d", lsn, next)
	}
	ended := w.err
	data, ok := w.m.Cached(protocol.LSN(lsn))
	if ok && (ended == nil || lsn <= committed) {
		dst = append(dst, data...)
		w.mu.Unlock()
		return dst, nil
	}
	w.mu.Unlock()
	if ended != nil && lsn > committed {
		return dst, ended
	}
	r, err := w.own.get(ctx, w)
	if err != nil {
		return dst, err
	}
	return r.Read(ctx, lsn, dst)
}

func (o *ownReader) get(ctx context.Context, w *Writer) (*Reader, error) {
	o.mu.Lock()
	r := o.r
	o.mu.Unlock()
	if r != nil {
		return r, nil
	}
	// Not under the lock: whoever comes meanwhile has a deadline of his own. Two that open at once make one Reader too many.
	r, err := w.c.OpenReader(ctx, w.name)
	if err != nil {
		return nil, err
	}
	if LogID(w.id) != r.ID() {
		return nil, &Error{Kind: ErrNotFound, Op: "read", Log: w.name, Err: fmt.Errorf("the log %v was deleted; its name was taken again", w.id)}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.r == nil {
		o.r = r
	}
	return o.r, nil
}

// cached returns a committed record that is still in the writer's window, appended to dst.
func (w *Writer) cached(x LSN, dst []byte) ([]byte, bool) {
	if x > w.Committed() {
		return nil, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	data, ok := w.m.Cached(protocol.LSN(x))
	if !ok {
		return nil, false
	}
	return append(dst, data...), true
}
