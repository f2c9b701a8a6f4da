package btrlog

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
)

// chunksAhead is how many chunks of about chunkBytes a scan reads ahead of its consumer.
const chunksAhead = 3

// chunk is a run of records on its way to the consumer; the last one carries an error.
type chunk struct {
	records []Record
	err     error
	cold    *coldChunk // whose memory the records are, if they are of the object store
}

// coldChunk is memory for records of the object store. The consumer may use a record until his next step, so the chunk that he
// has left behind is filled again: a scan that reads hundreds of megabytes a second has none for the garbage collector.
type coldChunk struct {
	records []Record
	bytes   []byte
}

// sink is where a stream's producer puts its records.
type sink struct {
	put  func(chunk) bool // false: the stream ends
	free chan *coldChunk
}

func newSink(put func(chunk) bool) *sink {
	return &sink{put: put, free: make(chan *coldChunk, chunksAhead+2)} // those on the way, the consumer's, and the producer's
}

// blank returns an empty chunk.
func (s *sink) blank() *coldChunk {
	select {
	case c := <-s.free:
		return c
	default:
		return &coldChunk{}
	}
}

// done takes back a chunk that nobody uses any more.
func (s *sink) done(c *coldChunk) {
	if c == nil || cap(c.bytes) > 2*chunkBytes { // of one large record: it is not kept for small ones
		return
	}
	c.records, c.bytes = c.records[:0], c.bytes[:0]
	select {
	case s.free <- c:
	default:
	}
}

// Scan yields the committed records from LSN from to LSN to, both inclusive, in order, each once. from 0 is the oldest that is
// not trimmed; to 0 is the tail as Tail finds it when the scan starts. It reads ahead, from nodes a few MiB, from the
// object store up to 64 MiB, and goes over from the one to the other by itself. Record.Data is valid until the next step.
//
// An error is the last thing that is yielded, and everything before it was: ErrNotFound at an LSN that is not committed;
// ErrTrimmed; ErrDataLoss with From and To, behind which the caller may scan on; ErrUnavailable; ErrClosed. Without a deadline of
// ctx each read may take Config.Timeout.
func (r *Reader) Scan(ctx context.Context, from, to LSN) iter.Seq2[Record, error] {
	return r.stream(ctx, func(ctx context.Context, out *sink) error {
		const op = "scan"
		first, err := r.oldest(ctx, op, from)
		if err != nil {
			return err
		}
		last := protocol.LSN(to)
		if to == 0 {
			tail, err := r.Tail(ctx)
			if err != nil {
				return err
			}
			last = protocol.LSN(tail)
		}
		next, err := r.produce(ctx, op, first, last, out)
		if err == nil && next <= last && ctx.Err() == nil {
			// The nodes may not have heard of the last commits yet; see Read.
			tail, terr := r.Tail(ctx)
			if terr != nil {
				return terr
			}
			if protocol.LSN(tail) >= next {
				next, err = r.produce(ctx, op, next, min(last, protocol.LSN(tail)), out)
			}
		}
		if err == nil && next <= last && ctx.Err() == nil {
			err = &Error{Kind: ErrNotFound, Op: op, Log: r.name, From: LSN(next), To: LSN(last), Retryable: true, Err: errors.New("not committed")}
		}
		return err
	})
}

func (r *Reader) oldest(ctx context.Context, op string, from LSN) (protocol.LSN, error) {
	if from != 0 {
		return protocol.LSN(from), nil
	}
	ctx, done := r.c.call(ctx)
	defer done()
	if err := r.reload(ctx); err != nil {
		return 0, r.c.finish(op, r.name, err)
	}
	return max(r.view().TrimBefore, 1), nil
}

// stream runs produce ahead of the consumer, by chunksAhead chunks. It ends with the consumer, which waits for it.
func (r *Reader) stream(ctx context.Context, produce func(ctx context.Context, out *sink) error) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		stop := context.AfterFunc(r.c.ctx, func() { cancel(ErrClosed) })
		defer stop()
		chunks := make(chan chunk, chunksAhead)
		send := func(c chunk) bool {
			select {
			case chunks <- c:
				return true
			case <-ctx.Done():
				return false
			}
		}
		out := newSink(send)
		started := r.c.spawn(func() {
			defer close(chunks)
			err := produce(ctx, out)
			if err != nil {
				send(chunk{err: err})
			}
		})
		if !started {
			yield(Record{}, closedError("read", r.name))
			return
		}
		defer func() {
			cancel(nil)
			for range chunks {
			}
		}()
		for c := range chunks {
			for _, rec := range c.records {
				if !yield(rec, nil) {
					return
				}
			}
			out.done(c.cold)
			if c.err != nil {
				yield(Record{}, r.c.finish("read", r.name, c.err))
				return
			}
		}
		if ctx.Err() != nil { // the stream was cut: it must not look complete
			yield(Record{}, r.c.finish("read", r.name, ended("read", r.name, ctx, "reading")))
		}
	}
}

// produce hands out the records [from, to] as far as they are committed and returns the next LSN.
func (r *Reader) produce(ctx context.Context, op string, from, to protocol.LSN, out *sink) (protocol.LSN, error) {
	next := from
	var miss *archive.NotFoundError // of the archive, at next
	for next <= to && ctx.Err() == nil {
		step, done := r.c.call(ctx)
		f, err := r.fetch(step, op, next, to, chunkBytes, miss)
		done()
		switch {
		case err != nil:
			return next, err
		case f.cold != 0:
			// After a miss, what neither nodes nor archive have must be explained without the archive.
			if next, miss, err = r.produceCold(ctx, next, r.kept(next, min(to, f.cold)), out); err != nil {
				return next, err
			}
		case len(f.records) == 0:
			return next, nil
		default:
			if !out.put(chunk{records: r.records(f.records)}) {
				return next, context.Cause(ctx)
			}
			r.hotRecords.Add(uint64(len(f.records)))
			next += protocol.LSN(len(f.records))
			miss = nil
		}
	}
	if err := context.Cause(ctx); err != nil && next <= to {
		return next, err
	}
	return next, nil
}

func (r *Reader) records(in []protocol.Record) []Record {
	out := make([]Record, len(in))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range in {
		out[i] = Record{LSN: LSN(in[i].LSN), Epoch: Epoch(r.m.Reign(in[i].LSN)), Data: in[i].Data}
	}
	return out
}

// reigns fills in the epochs of records of the archive.
func (r *Reader) reigns(recs []Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range recs {
		recs[i].Epoch = Epoch(r.m.Reign(protocol.LSN(recs[i].LSN)))
	}
}

// produceCold hands out what the archive has of [from, to] without a hole, and returns the next LSN and, if the archive lacks
// that one, its answer.
func (r *Reader) produceCold(ctx context.Context, from, to protocol.LSN, out *sink) (next protocol.LSN, miss *archive.NotFoundError, err error) {
	next = from
	c := out.blank()
	flush := func() bool {
		if len(c.records) == 0 {
			return true
		}
		r.reigns(c.records)
		n := len(c.records)
		ok := out.put(chunk{records: c.records, cold: c})
		r.coldRecords.Add(uint64(n))
		c = out.blank() // the consumer has the other one
		return ok
	}
	for rec, err := range r.cold.Scan(ctx, from, to, r.coldWatermark()) {
		if err != nil {
			if !flush() {
				return next, nil, context.Cause(ctx)
			}
			if miss = r.coldMiss(err, next); miss != nil {
				return next, miss, nil
			}
			return next, nil, err
		}
		if len(c.bytes)+len(rec.Data) > cap(c.bytes) {
			if !flush() {
				return next, nil, context.Cause(ctx)
			}
			if cap(c.bytes) < len(rec.Data) {
				c.bytes = make([]byte, 0, max(chunkBytes, len(rec.Data)))
			}
		}
		at := len(c.bytes)
		c.bytes = append(c.bytes, rec.Data...)
		c.records = append(c.records, Record{LSN: LSN(rec.LSN), Data: c.bytes[at:len(c.bytes):len(c.bytes)]})
		next = rec.LSN + 1
	}
	if !flush() {
		return next, nil, context.Cause(ctx)
	}
	return next, nil, nil
}

// Follow yields committed records from LSN from on (0: the oldest that is not trimmed), and then waits for more, across
// takeovers and changes of the nodes, until ctx ends or the consumer leaves. It waits at one node for the next commit and
// looks at the others when that has no news. Outages are waited out. Record.Data is valid until the next step.
//
// The error that ends it: ErrTrimmed; ErrDataLoss, behind which the caller may follow on; ErrNotFound when the log was
// deleted; ErrClosed; ErrUnavailable with ctx's error when ctx ends.
func (r *Reader) Follow(ctx context.Context, from LSN) iter.Seq2[Record, error] {
	return r.stream(ctx, func(ctx context.Context, out *sink) error {
		const op = "follow"
		next, err := r.oldest(ctx, op, from)
		if err != nil {
			return err
		}
		p := pollState{r: r, pause: minPoll}
		for ctx.Err() == nil {
			at := next
			next, err = r.produce(ctx, op, next, protocol.MaxLSN, out)
			if err != nil {
				if ctx.Err() != nil || !isUnavailable(err) {
					return err
				}
				p.outage(ctx, err)
				continue
			}
			if next > at {
				p.news()
			}
			// As long as the one node has news it is asked alone.
			for before := next - 1; before < next; {
				before = next
				if next, err = p.wait(ctx, next, out); err != nil {
					return err
				}
			}
		}
		return ended(op, r.name, ctx, "following at LSN %d", next)
	})
}

const (
	minPoll = 2 * time.Millisecond
	maxPoll = 100 * time.Millisecond
	// holdTimeout is longer than any node holds a long poll.
	holdTimeout = 5 * time.Second
	// recordEvery is how often an idle follower reads the log's record: the log may have moved to other nodes.
	recordEvery = 2 * time.Second
)

// pollState is the waiting of one follower.
type pollState struct {
	r     *Reader
	pause time.Duration // before the next question, if the node does not hold it
	down  bool
}

func (p *pollState) news() {
	p.pause = minPoll
	if p.down {
		p.down = false
		p.r.c.log.Info("btrlog: follower goes on", "log", p.r.name)
	}
}

func (p *pollState) outage(ctx context.Context, err error) {
	if !p.down {
		p.down = true
		p.r.c.log.Warn("btrlog: follower waits for the cluster", "log", p.r.name, "error", err)
	}
	_ = sleep(ctx, maxPoll) // the caller looks at ctx
}

// wait asks one node for what comes at or above next, lets it hold the question until there is something, and returns the
// next LSN then.
func (p *pollState) wait(ctx context.Context, next protocol.LSN, out *sink) (protocol.LSN, error) {
	r := p.r
	r.mu.Lock()
	stale := time.Since(r.read) > recordEvery || r.m.NeedsRecord()
	r.mu.Unlock()
	v := r.view()
	if stale || len(v.Ensemble) == 0 {
		step, done := r.c.call(ctx)
		err := r.reload(step)
		done()
		switch {
		case err != nil && isUnavailable(err):
			p.outage(ctx, err)
			return next, nil
		case err != nil:
			return next, err
		}
		if v = r.view(); len(v.Ensemble) == 0 {
			_ = sleep(ctx, maxPoll) // the caller looks at ctx
			return next, nil
		}
	}
	i := r.preferred(len(v.Ensemble))
	begin := time.Now()
	reply := r.ask(ctx, v.Ensemble, i, protocol.Read{Log: r.id, From: next, To: next + chunkRecords - 1, MaxBytes: chunkBytes, WaitAbove: next - 1}, holdTimeout)
	replies := make([]*protocol.ReadReply, len(v.Ensemble))
	f, ok := r.take(reply, next, nil, replies, i)
	if ok && len(f.records) > 0 {
		p.news()
		if !out.put(chunk{records: r.records(f.records)}) {
			return next, context.Cause(ctx)
		}
		r.hotRecords.Add(uint64(len(f.records)))
		return next + protocol.LSN(len(f.records)), nil
	}
	if !ok && reply == nil {
		r.setPreferred(i + 1)
	}
	// The others are asked by the next produce. A node that does not hold questions must not be asked in a tight loop.
	if time.Since(begin) < p.pause {
		_ = sleep(ctx, p.pause)
		p.pause = min(2*p.pause, maxPoll)
	}
	return next, nil
}
