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
	from := uint64(u.tail.groups[u.first].offset)
	end, _ := u.tail.groupEnd(u.last, uint64(u.o.key.Last-u.o.key.First)+1)
	if u.whole != nil {
		*buf = append((*buf)[:0], u.whole[headBytes+from:headBytes+end]...)
	} else {
		b, err := r.a.rangeOf(ctx, u.o, int64(headBytes+from), int64(end-from), *buf)
		if err != nil {
			return err
		}
		*buf = b
	}
	b := *buf
	for i := u.first; i <= u.last; i++ {
		if _, err := u.tail.checkGroup(i, u.o.key, u.bytes(b, i), nil); err != nil {
			return fmt.Errorf("archive: %q: %w", r.a.nameOf(u.o), err)
		}
	}
	return nil
}

// bytes returns group i of the unit's bytes.
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

// Scan yields the records [from, to] in order, each LSN once. It reads ahead with Options.Parallel ranged reads. Data is
// valid until the next step. The rules and errors are those of Read; the first error ends the scan, and everything
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
		s := newScan(ctx, r, wm)
		defer s.stop()
		go s.plan(from, to)
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

// scan is the machinery of one Scan. plan runs ahead of the consumer by at most the buffers in free, and by footersAhead
// pieces whose footers are being read; the order of jobs is the order of LSNs.
type scan struct {
	r      *Reader
	wm     Watermark
	ctx    context.Context
	cancel context.CancelFunc
	jobs   chan *job
	free   chan *[]byte // the buffers that are not in use: their number bounds memory
	wait   sync.WaitGroup
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
	done  chan struct{}
}

const footersAhead = 4

func newScan(ctx context.Context, r *Reader, wm Watermark) *scan {
	s := &scan{r: r, wm: wm, jobs: make(chan *job, r.a.o.Parallel), free: make(chan *[]byte, r.a.o.Parallel)}
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

// plan cuts [from, to] into pieces, starts reading their footers, and makes jobs of them in order.
func (s *scan) plan(from, to protocol.LSN) {
	defer s.wait.Done()
	defer close(s.jobs)
	var queue []*ahead
	next, ended := from, false
	for {
		for !ended && len(queue) < footersAhead {
			p, err := s.r.locate(s.ctx, next, to, s.wm, new(attempt))
			h := &ahead{piece: p, err: err, done: make(chan struct{})}
			queue = append(queue, h)
			if err != nil {
				close(h.done)
				ended = true
				break
			}
			s.wait.Add(1)
			go func() {
				defer s.wait.Done()
				defer close(h.done)
				h.tail, h.whole, h.err = s.r.footer(s.ctx, h.o)
			}()
			next = p.to + 1
			ended = next > to
		}
		if len(queue) == 0 {
			return
		}
		h := queue[0]
		queue = queue[1:]
		<-h.done
		if !s.cut(h) {
			return
		}
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
		start := uint64(h.tail.groups[i].offset)
		for j.last < last {
			if end, _ := h.tail.groupEnd(j.last+1, count); end-start > uint64(s.r.a.o.ReadBytes) {
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
