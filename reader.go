package btrlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/meta"
	"github.com/btrlog/btrlog/internal/protocol"
)

const (
	// chunkBytes is what one read of a scan or a follower asks a node for, and the size of a cold chunk.
	chunkBytes = 1 << 20
	// chunkRecords bounds its records.
	chunkRecords = 4096
	// preferTimeout is how long one node is waited for before the others are asked too.
	preferTimeout = time.Second
	// retryPause is the pause between two rounds of questions that had no result.
	retryPause = 25 * time.Millisecond
)

// Reader reads the committed records of a log. It never fences a writer. It costs nothing while it is not used and needs no
// Close. All methods may be called concurrently.
type Reader struct {
	c    *Client
	name string
	id   protocol.LogID
	cold *archive.Reader

	mu       sync.Mutex
	m        protocol.Merge
	revision int64       // of the record that m has
	read     time.Time   // when the record was read
	prefer   int         // the member that is asked first
	anyLost  atomic.Bool // the record has lost ranges
	busy     bool        // the last answer of some node was that it is overloaded

	hotRecords, coldRecords atomic.Uint64
}

// ReaderStats counts the records that Scan and Follow handed out, by where they came from.
type ReaderStats struct {
	HotRecords  uint64 // from log nodes
	ColdRecords uint64 // from the object store
}

// Stats returns the counts since OpenReader.
func (r *Reader) Stats() ReaderStats {
	return ReaderStats{HotRecords: r.hotRecords.Load(), ColdRecords: r.coldRecords.Load()}
}

// OpenReader opens a log for reading. Errors: ErrNotFound; ErrUnavailable; ErrClosed.
func (c *Client) OpenReader(ctx context.Context, name string) (*Reader, error) {
	const op = "open reader"
	if c.closed() {
		return nil, closedError(op, name)
	}
	ctx, done := c.call(ctx)
	defer done()
	r, err := c.openReader(ctx, name)
	if err != nil {
		return nil, c.finish(op, name, err)
	}
	return r, nil
}

func (c *Client) openReader(ctx context.Context, name string) (*Reader, error) {
	log, err := c.cat.Load(ctx, name)
	if err != nil {
		return nil, err
	}
	a, err := archive.New(c.requests.archive.Wrap(c.store), archive.Options{Root: c.cfg.Root})
	if err != nil {
		return nil, err
	}
	r := &Reader{c: c, name: name, id: log.Record.ID, cold: a.Reader(log.Record.ID)}
	r.prefer = int(uint64(r.id) % protocol.MaxEnsemble) // readers of different logs begin at different nodes
	if err := r.adopt(ctx, &log.Record); err != nil {
		return nil, err
	}
	return r, nil
}

// reload reads the log's record again.
func (r *Reader) reload(ctx context.Context) error {
	log, err := r.c.cat.Load(ctx, r.name)
	if err != nil {
		return err
	}
	if log.Record.ID != r.id {
		return &Error{Kind: ErrNotFound, Log: r.name, Err: fmt.Errorf("the log %v was deleted; its name was taken again", r.id)}
	}
	return r.adopt(ctx, &log.Record)
}

func (r *Reader) adopt(ctx context.Context, rec *meta.LogRecord) error {
	v := protocol.ReadView{Qw: rec.Options.Qw, History: rec.History, TrimBefore: rec.TrimBefore, Lost: rec.LostRanges()}
	if rec.Ensemble != "" {
		e, err := r.c.cat.LoadEnsemble(ctx, rec.Ensemble)
		if err != nil {
			return err
		}
		v.Ensemble = e
	}
	r.c.noteTrim(r.id, rec.TrimBefore)
	r.mu.Lock()
	defer r.mu.Unlock()
	// Of two reads at the same time the older must not win: Tail relies on asking the nodes of a record that was read after
	// it was called.
	if rec.Revision >= r.revision {
		r.m.SetView(v)
		r.anyLost.Store(len(v.Lost) > 0)
		r.revision, r.read = rec.Revision, time.Now()
	}
	return nil
}

// Name returns the log's name, ID its id.
func (r *Reader) Name() string { return r.name }

// ID returns the log's id.
func (r *Reader) ID() LogID { return LogID(r.id) }

// Committed returns the highest LSN that this reader has learned to be committed. It asks nobody and never goes back; Tail
// asks.
func (r *Reader) Committed() LSN {
	r.mu.Lock()
	defer r.mu.Unlock()
	return LSN(r.m.Known())
}

func (r *Reader) view() protocol.ReadView {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *r.m.View()
}

// Read appends committed record lsn to dst and returns the extended slice. A record that a Writer of this Client still holds
// costs no network. Without a deadline of ctx it gives up after Config.Timeout.
//
// Errors: ErrNotFound: not committed as far as a read quorum knows, or the log was deleted; ErrTrimmed; ErrDataLoss;
// ErrUnavailable; ErrOverloaded; ErrClosed; ErrInvalid for LSN 0.
func (r *Reader) Read(ctx context.Context, lsn LSN, dst []byte) ([]byte, error) {
	const op = "read"
	if r.c.closed() {
		return dst, closedError(op, r.name)
	}
	if lsn == 0 || protocol.LSN(lsn) > protocol.MaxLSN {
		return dst, invalid(op, r.name, "LSN %d cannot be", lsn)
	}
	if before := r.c.trimmedBefore(r.id); protocol.LSN(lsn) < before {
		return dst, r.trimmed(op, lsn, before)
	}
	if _, ok := r.lostAt(protocol.LSN(lsn)); ok {
		ctx, done := r.c.call(ctx)
		defer done()
		if err := r.lost(ctx, op, protocol.LSN(lsn)); err != nil {
			return dst, r.c.finish(op, r.name, err)
		}
	}
	for _, e := range r.c.routes.get(r.id) {
		if w, ok := e.(*Writer); ok {
			if out, ok := w.cached(lsn, dst); ok {
				return out, nil
			}
		}
	}
	ctx, done := r.c.call(ctx)
	defer done()
	out, ok, err := r.readOne(ctx, op, protocol.LSN(lsn), dst)
	if err == nil && !ok {
		// The nodes hear of a commit with the next append, or a little later. Count before saying no: what was synced is
		// found from here on.
		var tail protocol.LSN
		if tail, err = r.tail(ctx, op); err == nil && tail >= protocol.LSN(lsn) {
			out, ok, err = r.readOne(ctx, op, protocol.LSN(lsn), dst)
		}
	}
	if err == nil && !ok {
		err = &Error{Kind: ErrNotFound, Op: op, Log: r.name, From: lsn, To: lsn, Retryable: true,
			Err: fmt.Errorf("not committed; the log is committed up to %d", r.Committed())}
	}
	return out, r.c.finish(op, r.name, err)
}

// readOne reads one record; false: no node knows that it is committed.
func (r *Reader) readOne(ctx context.Context, op string, x protocol.LSN, dst []byte) ([]byte, bool, error) {
	f, err := r.fetch(ctx, op, x, x, 1, nil)
	if err == nil && f.cold != 0 {
		var rec archive.Record
		if rec, err = r.cold.Read(ctx, x, r.coldWatermark(), dst); err == nil {
			return append(dst, rec.Data...), true, nil // in place, where dst had the room
		}
		if miss := r.coldMiss(err, x); miss != nil {
			f, err = r.fetch(ctx, op, x, x, 1, miss)
		}
	}
	if err != nil || len(f.records) == 0 {
		return dst, false, err
	}
	return append(dst, f.records[0].Data...), true, nil
}

func (r *Reader) trimmed(op string, from LSN, before protocol.LSN) error {
	return &Error{Kind: ErrTrimmed, Op: op, Log: r.name, From: from, To: LSN(before - 1)}
}

// coldWatermark is what lets the archive serve a copy above its object's own watermark (P8): nothing, unless the record
// that we have covers the watermark's reign.
func (r *Reader) coldWatermark() archive.Watermark {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, e := r.m.Watermark()
	if r.m.NeedsRecord() || e == 0 {
		return archive.Watermark{}
	}
	return archive.Watermark{LSN: c, Epoch: e, History: r.m.View().History}
}

// found is what fetch has: records from the asked LSN on, without a hole; or cold, the LSN up to which the archive has
// them; or neither: the LSN is not committed yet.
type found struct {
	records []protocol.Record
	cold    protocol.LSN
}

// fetch gets committed records from LSN from on: from one node if that has them, else from the others, else, for a lagging
// node's copies, under the watermark of the others (P8). miss, if not nil, says that the archive was asked in vain.
func (r *Reader) fetch(ctx context.Context, op string, from, to protocol.LSN, maxBytes uint32, miss *archive.NotFoundError) (found, error) {
	to = min(to, from+chunkRecords-1)
	var before []protocol.NodeID
	for {
		if before := r.c.trimmedBefore(r.id); from < before {
			return found{}, r.trimmed(op, LSN(from), before)
		}
		if err := r.lost(ctx, op, from); err != nil {
			return found{}, err
		}
		f, silent, err := r.round(ctx, op, from, r.kept(from, to), maxBytes, miss)
		if err != nil || silent == nil {
			return f, err
		}
		if sleep(ctx, retryPause) != nil {
			if before != nil {
				silent = before // the last round was cut short and knows less
			}
			e := ended(op, r.name, ctx, "waiting for enough nodes to tell of LSN %d", from)
			e.From, e.To = LSN(from), LSN(from)
			e.Kind = r.unavailable()
			for _, n := range silent {
				e.Missing = append(e.Missing, string(n))
			}
			return found{}, e
		}
		if ctx.Err() == nil {
			before = silent
		}
	}
}

// round is one round of questions. Without a result it says who was silent.
func (r *Reader) round(ctx context.Context, op string, from, to protocol.LSN, maxBytes uint32, miss *archive.NotFoundError) (found, []protocol.NodeID, error) {
	v := r.view()
	n := len(v.Ensemble)
	if n == 0 { // never opened: look whether it is now
		if err := r.reload(ctx); err != nil {
			return found{}, nil, err
		}
		return found{}, nil, nil
	}
	replies := make([]*protocol.ReadReply, n)
	first := r.preferred(n)
	ask := protocol.Read{Log: r.id, From: from, To: to, MaxBytes: maxBytes}
	if f, ok := r.take(r.ask(ctx, v.Ensemble, first, ask, preferTimeout), from, miss, replies, first); ok {
		return f, nil, nil
	}
	for i, reply := range r.askOthers(ctx, v.Ensemble, replies, ask) {
		if reply == nil || i == first {
			continue
		}
		if f, ok := r.take(reply, from, miss, replies, i); ok {
			r.setPreferred(i)
			return f, nil, nil
		}
	}
	answered := 0
	for _, reply := range replies {
		if reply != nil {
			answered++
		}
	}
	if r.Committed() < LSN(from) {
		if answered >= v.Qr() {
			return found{}, nil, nil
		}
		if answered == 0 && miss == nil && ctx.Err() == nil {
			// An object proves its records up to its own watermark, whether or not a node is there to say so (A3).
			return found{cold: protocol.MaxLSN}, nil, nil
		}
		// Nobody may be left of the ensemble that we know.
		if err := r.reload(ctx); err != nil {
			return found{}, nil, err
		}
		return found{}, missing(v.Ensemble, replies), nil
	}
	return r.deep(ctx, op, from, to, miss)
}

func missing(e protocol.Ensemble, replies []*protocol.ReadReply) []protocol.NodeID {
	out := []protocol.NodeID{}
	for i, m := range e {
		if replies[i] == nil {
			out = append(out, m.Node)
		}
	}
	return out
}

// take looks whether an answer has what was asked for.
func (r *Reader) take(reply *protocol.ReadReply, from protocol.LSN, miss *archive.NotFoundError, replies []*protocol.ReadReply, i int) (found, bool) {
	if reply == nil {
		return found{}, false
	}
	replies[i] = reply
	r.mu.Lock()
	at, n := r.m.Prefix(reply, from)
	r.mu.Unlock()
	if n > 0 {
		return found{records: reply.Records[at : at+n]}, true
	}
	if miss == nil && reply.ArchivedThrough >= from {
		return found{cold: reply.ArchivedThrough}, true
	}
	return found{}, false
}

// deep looks for a committed record that no node serves as it is: the record of the log first, for trim, a newer ensemble and
// the history; then every node's raw copies; then the archive; then it is lost, or somebody is missing.
func (r *Reader) deep(ctx context.Context, op string, from, to protocol.LSN, miss *archive.NotFoundError) (found, []protocol.NodeID, error) {
	before := r.view().Ensemble
	// The record is read after the watermark was learned: only so does its history reach that watermark's epoch (P8).
	if err := r.reload(ctx); err != nil {
		return found{}, nil, err
	}
	v := r.view()
	if !v.Ensemble.Equal(before) {
		return found{}, []protocol.NodeID{}, nil // other nodes: ask again
	}
	if from < v.TrimBefore {
		return found{}, nil, r.trimmed(op, LSN(from), v.TrimBefore)
	}
	if _, ok := r.lostAt(from); ok {
		return found{}, []protocol.NodeID{}, nil // look there first
	}
	replies := r.askOthers(ctx, v.Ensemble, make([]*protocol.ReadReply, len(v.Ensemble)),
		protocol.Read{Log: r.id, From: from, To: to, MaxBytes: chunkBytes, Raw: true})
	r.mu.Lock()
	if !r.m.View().Ensemble.Equal(v.Ensemble) {
		r.mu.Unlock()
		return found{}, []protocol.NodeID{}, nil // another call has learned of other nodes: ask again
	}
	copies := r.m.RawRun(from, to, replies, nil)
	c := r.m.Known()
	lost, silent := r.m.Lost(from, replies)
	r.mu.Unlock()
	if len(copies) > 0 {
		return found{records: copies}, nil, nil
	}
	if miss == nil {
		return found{cold: min(to, c)}, nil, nil // it answers with a miss if it does not have it, and we come again
	}
	if !lost {
		return found{}, append([]protocol.NodeID{}, silent...), nil
	}
	end := min(to, c)
	if next := protocol.NextHeld(from, replies); next != 0 {
		end = min(end, next-1)
	}
	if miss.Next > from {
		end = min(end, miss.Next-1)
	}
	// An object that is cut short, say, is in no listing of what can be read: that it is not there is not known.
	why := errors.New("no node that could know has a copy, and no archived object that can be read does")
	if miss.Cause != nil {
		why = fmt.Errorf("no node that could know has a copy, and what is archived cannot be read: %w", miss.Cause)
	}
	return found{}, nil, &Error{Kind: ErrDataLoss, Op: op, Log: r.name, From: LSN(from), To: LSN(end), Err: why}
}

// coldMiss returns the archive's miss at x, or nil if the error is another one. Damage of the objects that hold x is a miss with a
// cause: it does not end by waiting, so it must not look like an outage. What another program could read is no miss, and must not look
// like a loss.
func (r *Reader) coldMiss(err error, x protocol.LSN) *archive.NotFoundError {
	var miss *archive.NotFoundError
	var unreadable *archive.UnreadableError
	switch {
	case errors.As(err, &miss):
		return miss
	case errors.As(err, &unreadable) && errors.Is(err, archive.ErrDamaged) && !errors.Is(err, archive.ErrTooNew):
		return &archive.NotFoundError{Log: r.id, LSN: x, Next: unreadable.Next, Cause: unreadable}
	}
	return nil
}

// ask asks one member. Only answers of the recorded incarnation count; their watermark is noted.
func (r *Reader) ask(ctx context.Context, e protocol.Ensemble, i int, ask protocol.Read, limit time.Duration) *protocol.ReadReply {
	n := r.c.node(ctx, e[i].Node)
	m, err := r.c.ask(ctx, n, &ask, limit)
	reply, ok := m.(*protocol.ReadReply)
	if err != nil || !ok || reply.Incarnation != e[i].Incarnation {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = reply.Status == protocol.StatusOverloaded
	if r.m.Observe(reply) < 0 {
		return nil
	}
	return reply
}

// askOthers asks all members that have not answered, at the same time. It fills and returns replies.
func (r *Reader) askOthers(ctx context.Context, e protocol.Ensemble, replies []*protocol.ReadReply, ask protocol.Read) []*protocol.ReadReply {
	var wg sync.WaitGroup
	for i := range e {
		if replies[i] == nil {
			wg.Go(func() { replies[i] = r.ask(ctx, e, i, ask, askTimeout) })
		}
	}
	wg.Wait()
	return replies
}

// unavailable is the kind of an error that nodes caused by not answering.
func (r *Reader) unavailable() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy {
		return ErrOverloaded
	}
	return ErrUnavailable
}

func (r *Reader) preferred(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.prefer % n
}

func (r *Reader) setPreferred(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prefer = i
}

// trims are the trim points that this process knows of, so that a Trim here is seen by every Reader here at once.
type trims struct {
	mu     sync.Mutex
	before map[protocol.LogID]protocol.LSN
}

func (c *Client) noteTrim(id protocol.LogID, before protocol.LSN) {
	c.trims.mu.Lock()
	defer c.trims.mu.Unlock()
	if c.trims.before == nil {
		c.trims.before = make(map[protocol.LogID]protocol.LSN)
	}
	if before > c.trims.before[id] && before > 1 {
		c.trims.before[id] = before
	}
}

func (c *Client) trimmedBefore(id protocol.LogID) protocol.LSN {
	c.trims.mu.Lock()
	defer c.trims.mu.Unlock()
	return c.trims.before[id]
}
