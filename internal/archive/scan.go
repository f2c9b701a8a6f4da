package archive

import (
	"context"
	"fmt"
	"iter"
	"sort"
	"sync"

	"github.com/btrlog/btrlog/internal/protocol"
)

// unit is one ranged read: the groups [first, last] of an object, of which the records of the piece are wanted.
type unit struct {
	piece
	tail        *tail
	whole       []byte // the object, if reading its footer brought all of it
	first, last int
}

// groupOf returns the group that holds the record delta behind the object's first.
func (t *tail) groupOf(delta protocol.LSN) int {
	return sort.Search(len(t.groups), func(i int) bool { return protocol.LSN(t.groups[i].delta) > delta }) - 1
}

// fetch reads the bytes of a unit into buf.
func (r *Reader) fetch(ctx context.Context, u *unit, buf *[]byte) error {
	from, end := uint64(u.tail.groups[u.first].stored), u.tail.storedEnd(u.last)
	into := buf
	if u.tail.compression != NoCompression {
		into = getBuffer()
		defer buffers.Put(into)
	}
	if u.whole != nil {
		*into = append((*into)[:0], u.whole[headBytes+from:headBytes+end]...)
	} else {
		b, err := r.a.rangeOf(ctx, u.o, int64(headBytes+from), int64(end-from), *into)
		if err != nil {
			return err
		}
		*into = b
	}
	if into != buf {
		b, err := u.tail.plain((*buf)[:0], u.first, u.last, *into)
		*buf = b
		if err != nil {
			return fmt.Errorf("archive: %q: %w", r.a.nameOf(u.o), err)
		}
	}
	b := *buf
	for i := u.first; i <= u.last; i++ {
		if _, err := u.tail.checkGroup(i, u.o.key, u.bytes(b, i), nil); err != nil {
			return fmt.Errorf("archive: %q: %w", r.a.nameOf(u.o), err)
		}
	}
	return nil
}

// bytes returns group i of the unit's bytes, which are not compressed any more.
func (u *unit) bytes(b []byte, i int) []byte {
	from := uint64(u.tail.groups[u.first].offset)
	end, _ := u.tail.groupEnd(i, uint64(u.o.key.Last-u.o.key.First)+1)
	return b[uint64(u.tail.groups[i].offset)-from : end-from]
}

// records visits the wanted records of a unit that fetch verified.
func (u *unit) records(b []byte, visit func(Record) bool) error {
	for i := u.first; i <= u.last; i++ {
		rest := u.bytes(b, i)
		lsn := u.o.key.First + protocol.LSN(u.tail.groups[i].delta)
		for len(rest) > 0 && lsn <= u.to {
			data, more, next, err := protocol.NextRecord(rest)
			if err != nil {
				return err
			}
			if lsn >= u.from && !visit(Record{LSN: lsn, Label: u.o.key.Label, More: more, Data: data}) {
				return nil
			}
			rest = next
			lsn++
		}
	}
	return nil
}

// buffers of single reads.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func getBuffer() *[]byte { return buffers.Get().(*[]byte) }

// Scan yields the records [from, to] in order, each LSN once. It reads ahead with Options.Parallel ranged reads; stretches that
// lie side by side in a pack share one. Data is valid until the next step. The rules and errors are those of Read; the first error ends the scan, and everything
// before it was yielded: at a hole a *NotFoundError with the LSN, from which the caller may go on elsewhere. Records that
// are archived while the scan runs are found. When the caller stops early, or ctx ends, the reads in flight are
// cancelled and waited for.
func (r *Reader) Scan(ctx context.Context, from, to protocol.LSN, wm Watermark) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if from > to {
			return
		}
		if err := wm.check(); err != nil {
			yield(Record{}, err)
			return
		}
		s := newScan(ctx, r, from, to, wm)
		defer s.stop()
		go s.plan()
		next := from
		for next <= to {
			j, ok := <-s.jobs
			if !ok {
				// Only a cancelled scan ends before its last LSN; it must not look complete.
				yield(Record{}, fmt.Errorf("archive: log %v: scan ended before LSN %d: %w", r.log, next, context.Cause(s.ctx)))
				return
			}
			<-j.done
			stopped, err := false, j.err
			if err == nil {
				err = j.unit.records(*j.buf, func(rec Record) bool {
					next = rec.LSN + 1
					stopped = !yield(rec, nil)
					return !stopped
				})
			}
			if j.buf != nil {
				s.free <- j.buf
			}
			if err != nil && elsewhere(err) && j.from != 0 {
				// Another object may hold what this one lost. Group by group is slow, and rare.
				next, stopped, err = s.around(j.from, j.to, yield)
			}
			if stopped {
				return
			}
			if err != nil {
				yield(Record{}, err)
				return
			}
		}
	}
}

// scan is the machinery of one Scan. plan runs ahead of the consumer by at most the buffers in free, and by the objects whose
// footers are being read; the order of jobs is the order of LSNs.
type scan struct {
	r      *Reader
	wm     Watermark
	ctx    context.Context
	cancel context.CancelFunc
	jobs   chan *job
	free   chan *[]byte // the buffers that are not in use: their number bounds memory
	wait   sync.WaitGroup

	// These are plan's.
	to      protocol.LSN
	next    protocol.LSN // to be located
	ended   bool         // nothing is to be located
	located *ahead       // what was located and found no place in a span
	begun   int          // jobs
}

// job is one unit in flight. err, unit and the bytes are valid when done is closed. A job without a buffer is an error.
type job struct {
	unit
	buf  *[]byte
	err  error
	done chan struct{}
}

// ahead is a piece whose footer is being read.
type ahead struct {
	piece
	tail  *tail
	whole []byte
	err   error
}

// span is pieces whose footers are being read together.
type span struct {
	pieces []*ahead
	done   chan struct{}
}

const (
	// footersAhead bounds the spans whose footers are being read; with small objects, which come whole with their footers, it is
	// what fills the way to the store. With large ones the bytes that the buffers hold bound it earlier: a consumer who leaves
	// soon should not have paid for the indices of half a log.
	footersAhead = 32
	// spanBytes bounds what is read at once because it lies side by side in a pack.
	spanBytes = 512 << 10
)

func newScan(ctx context.Context, r *Reader, from, to protocol.LSN, wm Watermark) *scan {
	s := &scan{r: r, wm: wm, next: from, to: to, jobs: make(chan *job, r.a.o.Parallel), free: make(chan *[]byte, r.a.o.Parallel)}
	s.ctx, s.cancel = context.WithCancel(ctx)
	for range r.a.o.Parallel {
		s.free <- new([]byte)
	}
	s.wait.Add(1)
	return s
}

func (s *scan) stop() {
	s.cancel()
	s.wait.Wait()
}

// plan cuts the range into pieces, starts reading their footers, and makes jobs of them in order.
func (s *scan) plan() {
	defer s.wait.Done()
	defer close(s.jobs)
	var queue []*span
	var bytes int64 // of the objects in the queue
	most := int64(s.r.a.o.Parallel) * int64(s.r.a.o.ReadBytes)
	for {
		for len(queue) == 0 || len(queue) < footersAhead && bytes < most {
			x := s.span()
			if x == nil {
				break
			}
			queue = append(queue, x)
			bytes += x.bytes()
			s.wait.Add(1)
			go func() {
				defer s.wait.Done()
				defer close(x.done)
				s.footers(x)
			}()
		}
		if len(queue) == 0 {
			return
		}
		x := queue[0]
		queue = queue[1:]
		bytes -= x.bytes()
		<-x.done
		for _, h := range x.pieces {
			if !s.cut(h) {
				return
			}
		}
	}
}

func (x *span) bytes() (n int64) {
	for _, h := range x.pieces {
		if h.o != nil {
			n += h.o.size
		}
	}
	return n
}

// locate finds the next piece; nil: there is none.
func (s *scan) locate() *ahead {
	if h := s.located; h != nil {
		s.located = nil
		return h
	}
	if s.ended {
		return nil
	}
	p, err := s.r.locate(s.ctx, s.next, s.to, s.wm, new(attempt))
	if err == nil {
		s.next = p.to + 1
	}
	s.ended = err != nil || s.next > s.to
	return &ahead{piece: p, err: err}
}

// span returns the next piece, with those that lie behind it in the same pack.
func (s *scan) span() *span {
	h := s.locate()
	if h == nil {
		return nil
	}
	x := &span{pieces: []*ahead{h}, done: make(chan struct{})}
	if h.err != nil || h.o.pack == nil {
		return x
	}
	for from, last := h.o.base, h.o; ; {
		if s.located = s.locate(); s.located == nil {
			return x
		}
		n := s.located
		if n.err != nil || n.o.pack == nil || n.o.pack.name != last.pack.name || n.o.base != last.base+last.size || n.o.base+n.o.size-from > spanBytes {
			return x
		}
		x.pieces, last = append(x.pieces, n), n.o
		s.located = nil
	}
}

// footers reads the footers of a span: in one request, if it has several pieces.
func (s *scan) footers(x *span) {
	if n := len(x.pieces); n > 1 {
		first, last := x.pieces[0].o, x.pieces[n-1].o
		b, err := s.r.a.rangeOf(s.ctx, first, 0, last.base+last.size-first.base, nil)
		for _, h := range x.pieces {
			if err == nil {
				at := h.o.base - first.base
				h.whole = b[at : at+h.o.size : at+h.o.size]
				h.tail, h.err = s.r.parseFooter(h.o, h.whole)
			}
			if err != nil || h.err != nil { // one by one, it is known which of them it is that cannot be read
				h.tail, h.whole, h.err = s.r.footer(s.ctx, h.o)
			}
		}
		return
	}
	if h := x.pieces[0]; h.err == nil {
		h.tail, h.whole, h.err = s.r.footer(s.ctx, h.o)
	}
}

// cut makes jobs of a piece. It reports whether the scan goes on.
func (s *scan) cut(h *ahead) bool {
	if h.err != nil {
		j := &job{unit: unit{piece: h.piece}, err: h.err, done: make(chan struct{})}
		close(j.done)
		return s.send(j)
	}
	count := uint64(h.o.key.Last-h.o.key.First) + 1
	last := h.tail.groupOf(h.to - h.o.key.First)
	for i := h.tail.groupOf(h.from - h.o.key.First); i <= last; {
		j := &job{unit: unit{piece: h.piece, tail: h.tail, whole: h.whole, first: i, last: i}, done: make(chan struct{})}
		start, size := uint64(h.tail.groups[i].offset), s.readBytes()
		for j.last < last {
			if end, _ := h.tail.groupEnd(j.last+1, count); end-start > size {
				break
			}
			j.last++
		}
		_, records := h.tail.groupEnd(j.last, count)
		j.from = max(h.from, h.o.key.First+protocol.LSN(h.tail.groups[i].delta))
		j.to = min(h.to, h.o.key.First+protocol.LSN(records)-1)
		i = j.last + 1
		select {
		case j.buf = <-s.free:
		case <-s.ctx.Done():
			return false
		}
		s.wait.Add(1)
		go func() {
			defer s.wait.Done()
			defer close(j.done)
			j.err = s.r.fetch(s.ctx, &j.unit, j.buf)
		}()
		if !s.send(j) {
			return false
		}
	}
	return true
}

// readBytes is the size of the next read. The first ones grow: reads that begin together and are as large end together, because they
// share the way, and until the next ones are under way nothing would be on it.
func (s *scan) readBytes() uint64 {
	s.begun++
	return uint64(s.r.a.o.ReadBytes) * uint64(min(s.begun, s.r.a.o.Parallel)) / uint64(s.r.a.o.Parallel)
}

func (s *scan) send(j *job) bool {
	select {
	case s.jobs <- j:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// around reads [from, to] group by group, passing over objects that fail.
func (s *scan) around(from, to protocol.LSN, yield func(Record, error) bool) (next protocol.LSN, stopped bool, err error) {
	buf := getBuffer()
	defer buffers.Put(buf)
	for next = from; next <= to; {
		n, err := s.r.group(s.ctx, next, to, s.wm, buf, func(rec Record) bool {
			stopped = !yield(rec, nil)
			return !stopped
		})
		if err != nil || stopped {
			return next, stopped, err
		}
		next = n
	}
	return next, false, nil
}
