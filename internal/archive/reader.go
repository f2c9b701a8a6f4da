package archive

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// Watermark is proof of commitment from elsewhere: everything up to LSN was known committed by a node or writer at Epoch.
// Which copies it speaks of is decided by History, the log's record read no earlier than that, up to Epoch at least
// (P8): a reader who meets a newer epoch reads the record again first. The zero Watermark proves nothing.
type Watermark struct {
	LSN     protocol.LSN
	Epoch   protocol.Epoch
	History protocol.History // not changed and not kept by the archive
}

func (w Watermark) check() error {
	if w.LSN == 0 {
		return nil
	}
	if err := w.History.Validate(); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	if last := w.History.Last().Epoch; last < w.Epoch || w.Epoch == 0 {
		return fmt.Errorf("%w: the history ends at epoch %d, the watermark %d is of epoch %d", ErrStaleHistory, last, w.LSN, w.Epoch)
	}
	return nil
}

// NotFoundError says that the archive has no copy of an LSN that it may serve. That is no proof of loss: the record may
// be hot, trimmed, uncommitted, or lost, which the caller decides.
type NotFoundError struct {
	Log protocol.LogID
	LSN protocol.LSN
	// Next is the lowest LSN above that the archive could serve now; 0: none.
	Next protocol.LSN
	// Cause, if not nil, says that objects should have it and cannot be read.
	Cause error
}

func (e *NotFoundError) Unwrap() error { return e.Cause }

func (e *NotFoundError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("archive: log %v: LSN %d cannot be read: %v", e.Log, e.LSN, e.Cause)
	}
	return fmt.Sprintf("archive: log %v: LSN %d is not in the archive (the next one that is: %d)", e.Log, e.LSN, e.Next)
}

// Reader reads one log from the archive. All methods may be called concurrently. Its memory is bounded: an index window
// of Options.MaxObjects objects, and a few footers; each running Scan has its own bound.
type Reader struct {
	a       *Archive
	log     protocol.LogID
	index   index
	footers footers
}

// Reader returns a reader of a log. It asks the store nothing before the first read.
func (a *Archive) Reader(log protocol.LogID) *Reader {
	return &Reader{a: a, log: log, index: index{a: a, log: log}, footers: footers{tails: make(map[string]*tail)}}
}

// Refresh learns which objects were added. Reads do so themselves when they miss; a follower that knows of progress may
// call it ahead.
func (r *Reader) Refresh(ctx context.Context) error {
	w := r.index.current.Load()
	if w == nil {
		return nil // the first read lists
	}
	_, err := r.index.refresh(ctx, w, max(w.from, min(w.settled+1, w.upper)), false)
	return err
}

// Read returns record lsn. Its Data is appended to dst, whose earlier bytes are not part of Data; the caller owns both. An
// object is believed up to its own cLSN; above that only under wm and if its copy is not void (A3, P8), highest label
// first. When an object is damaged or gone, others that hold the LSN are tried.
//
// Errors: *NotFoundError, ErrDamaged (naming the keys; no other object holds it), ErrTooNew, ErrStaleHistory,
// ErrUnavailable, or the store's refusal. A miss costs one refresh of the index.
func (r *Reader) Read(ctx context.Context, lsn protocol.LSN, wm Watermark, dst []byte) (Record, error) {
	if err := wm.check(); err != nil {
		return Record{}, err
	}
	var got Record
	buf := getBuffer()
	defer buffers.Put(buf)
	_, err := r.group(ctx, lsn, lsn, wm, buf, func(rec Record) bool {
		at := len(dst)
		dst = append(dst, rec.Data...)
		got, got.Data = rec, dst[at:]
		return true
	})
	return got, err
}

// piece is a run [from, to] of LSNs that one object may serve.
type piece struct {
	o        *object
	from, to protocol.LSN
}

// attempt collects the objects that failed during one read, so that others are tried and the error names all of them. By
// place, because a refresh in between makes new objects of the same listing.
type attempt struct {
	failed map[placed]error
}

func (t *attempt) fail(o *object, err error) {
	if t.failed == nil {
		t.failed = make(map[placed]error)
	}
	t.failed[o.placed()] = err
	if errors.Is(err, objstore.ErrNotFound) {
		o.gone.Store(true)
	}
}

func (t *attempt) err() error {
	var all []error
	u := &UnreadableError{}
	for p, err := range t.failed {
		all = append(all, err)
		if u.Next == 0 || p.key.Last+1 < u.Next {
			u.Next = p.key.Last + 1
		}
	}
	if len(all) == 0 {
		return nil
	}
	u.Err = errors.Join(all...)
	return u
}

// UnreadableError says that objects hold an LSN and none of them can be read. It wraps ErrDamaged or ErrTooNew, with the keys.
type UnreadableError struct {
	// Next is the first LSN behind one of these objects: there the archive may go on.
	Next protocol.LSN
	Err  error
}

func (e *UnreadableError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong with each object.
func (e *UnreadableError) Unwrap() error { return e.Err }

// elsewhere says that another object may serve what this one did not.
func elsewhere(err error) bool { return errors.Is(err, ErrDamaged) || errors.Is(err, ErrTooNew) }

// locate finds the object that serves lsn, and how far, at most to.
func (r *Reader) locate(ctx context.Context, lsn, to protocol.LSN, wm Watermark, t *attempt) (piece, error) {
	if lsn == 0 || lsn > protocol.MaxLSN {
		return piece{}, fmt.Errorf("archive: log %v: LSN %d cannot be", r.log, lsn)
	}
	w, err := r.index.at(ctx, lsn)
	if err != nil {
		return piece{}, err
	}
	for fresh := false; ; fresh = true {
		p, err := r.choose(ctx, w, lsn, to, wm, t)
		if err != nil || p.o != nil {
			return p, err
		}
		if fresh {
			break
		}
		if w, err = r.index.refresh(ctx, w, lsn, len(t.failed) > 0); err != nil {
			return piece{}, err
		}
		if !w.covers(lsn) {
			return piece{}, fmt.Errorf("archive: log %v: the index was moved away from LSN %d: too many objects", r.log, lsn)
		}
	}
	if err := t.err(); err != nil {
		return piece{}, fmt.Errorf("archive: log %v LSN %d: no object that holds it can be read: %w", r.log, lsn, err)
	}
	next, err := r.next(ctx, w, lsn, wm)
	if err != nil {
		return piece{}, err
	}
	return piece{}, &NotFoundError{Log: r.log, LSN: lsn, Next: next, Cause: w.broken}
}

// choose picks the object of the window that serves lsn; none is a zero piece. A proof inside an object is preferred to
// the watermark, and of several proven copies, which have the same bytes, the one that reaches farthest.
func (r *Reader) choose(ctx context.Context, w *window, lsn, to protocol.LSN, wm Watermark, t *attempt) (piece, error) {
	var best piece
	var unsure []*object // "p" objects whose cLSN was not asked for yet
	var copies []*object // hold lsn but do not prove it
	take := func(o *object, end protocol.LSN) {
		end = min(end, to)
		if best.o == nil || end > best.to || (end == best.to && o.key.Label > best.o.key.Label) {
			best = piece{o, lsn, end}
		}
	}
	w.holding(lsn, func(o *object) bool {
		if t.failed[o.placed()] != nil {
			return true
		}
		switch end, known := o.provenEnd(); {
		case !known:
			unsure = append(unsure, o)
		case end >= lsn:
			take(o, end)
		default:
			copies = append(copies, o)
		}
		return true
	})
	if best.o != nil {
		return best, nil
	}
	for _, o := range unsure {
		end, err := r.learn(ctx, o)
		switch {
		case elsewhere(err):
			t.fail(o, err)
		case err != nil:
			return piece{}, err
		case end >= lsn:
			take(o, end)
		default:
			copies = append(copies, o)
		}
	}
	if best.o != nil || lsn > wm.LSN {
		return best, nil
	}
	for _, o := range copies {
		// A label above the history belongs to a reign that the history cannot judge.
		if end := wm.end(o); end >= lsn && (best.o == nil || o.key.Label > best.o.key.Label) {
			best = piece{o, lsn, min(end, to)}
		}
	}
	if best.o != nil {
		// Where another object begins the choice is made anew: its copy may be proven, or have a higher label.
		if i := w.above(lsn); i < len(w.objects) {
			best.to = min(best.to, w.objects[i].key.First-1)
		}
		best.to = min(best.to, w.upper) // above it the window does not know all objects
	}
	return best, nil
}

// end returns the highest LSN of o that may be served under the watermark, 0 if none.
func (wm Watermark) end(o *object) protocol.LSN {
	if wm.LSN == 0 || o.key.Label > wm.History.Last().Epoch {
		return 0
	}
	return min(o.key.Last, wm.LSN, wm.History.VoidFrom(o.key.Label)-1)
}

// learn reads the cLSN of a "p" object and returns the highest LSN that it proves.
func (r *Reader) learn(ctx context.Context, o *object) (protocol.LSN, error) {
	if end, known := o.provenEnd(); known {
		return end, nil
	}
	a, err := r.a.lookAt(ctx, o.key, -1)
	if errors.Is(err, objstore.ErrNotFound) {
		return 0, fmt.Errorf("%w: %q: %w", ErrDamaged, r.a.KeyString(o.key), err)
	}
	if err != nil {
		return 0, err
	}
	o.clsn.Store(uint64(a.CLSN) + 1)
	return min(a.CLSN, o.key.Last), nil
}

// next returns the lowest LSN above lsn that an object of the window may serve, or 0.
func (r *Reader) next(ctx context.Context, w *window, lsn protocol.LSN, wm Watermark) (protocol.LSN, error) {
	for _, o := range w.objects[w.above(lsn):] {
		if o.gone.Load() {
			continue
		}
		end, err := r.learn(ctx, o)
		if err != nil {
			if elsewhere(err) {
				continue
			}
			return 0, err
		}
		if max(end, wm.end(o)) >= o.key.First {
			return o.key.First, nil
		}
	}
	return 0, nil
}

// group reads the records of [lsn, to] that stand in one group with lsn, and returns the next LSN to read. visit gets
// each record in order; its Data is valid during the call. Objects that fail are passed over.
func (r *Reader) group(ctx context.Context, lsn, to protocol.LSN, wm Watermark, buf *[]byte, visit func(Record) bool) (protocol.LSN, error) {
	var t attempt
	for {
		p, err := r.locate(ctx, lsn, to, wm, &t)
		if err != nil {
			return 0, err
		}
		next, err := r.readGroup(ctx, p, buf, visit)
		if err == nil {
			if len(t.failed) > 0 {
				r.a.counts.fallbacks.Add(1)
			}
			return next, nil
		}
		if !elsewhere(err) {
			return 0, err
		}
		t.fail(p.o, err)
	}
}

func (r *Reader) readGroup(ctx context.Context, p piece, buf *[]byte, visit func(Record) bool) (protocol.LSN, error) {
	t, whole, err := r.footer(ctx, p.o)
	if err != nil {
		return 0, err
	}
	i := t.groupOf(p.from - p.o.key.First)
	u := unit{piece: p, tail: t, whole: whole, first: i, last: i}
	if err := r.fetch(ctx, &u, buf); err != nil {
		return 0, err
	}
	next := p.from
	err = u.records(*buf, func(rec Record) bool {
		next = rec.LSN + 1
		return visit(rec)
	})
	return next, err
}

// footers caches parsed footers, oldest out first.
type footers struct {
	mu      sync.Mutex
	tails   map[string]*tail
	order   []string
	entries int
}

// maxFooterEntries bounds the index entries that a Reader caches, 16 bytes each. One footer is kept whatever its size.
const maxFooterEntries = 1 << 18

func (f *footers) get(key string) *tail {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tails[key]
}

func (f *footers) put(key string, t *tail) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tails[key] != nil {
		return
	}
	f.tails[key] = t
	f.order = append(f.order, key)
	f.entries += len(t.groups)
	for f.entries > maxFooterEntries && len(f.order) > 1 {
		f.entries -= len(f.tails[f.order[0]].groups)
		delete(f.tails, f.order[0])
		f.order = f.order[1:]
	}
}

// footerGuess is how much of an object's end is read in the hope that it holds the whole index: enough for 16 MiB of
// records of 64 bytes and more.
const footerGuess = 64 << 10

// footer returns the verified index of an object, from the cache or with one or two ranged reads. whole is the object, if that was
// read on the way.
func (r *Reader) footer(ctx context.Context, o *object) (t *tail, whole []byte, err error) {
	key := r.a.KeyString(o.key)
	if t := r.footers.get(key); t != nil {
		return t, nil, nil
	}
	fail := func(err error) (*tail, []byte, error) {
		return nil, nil, fmt.Errorf("archive: %q: %w", r.a.nameOf(o), err)
	}
	n := min(o.size, footerGuess)
	b, err := r.a.rangeOf(ctx, o, o.size-n, n, nil)
	if err != nil {
		return nil, nil, err
	}
	size, err := tailSize(b, o.size)
	if err != nil {
		return fail(err)
	}
	if size > n {
		if b, err = r.a.rangeOf(ctx, o, o.size-size, size, nil); err != nil {
			return nil, nil, err
		}
	}
	if t, err = r.parseFooter(o, b); err != nil {
		return nil, nil, err
	}
	if int64(len(b)) == o.size {
		whole = b
	}
	return t, whole, nil
}

// parseFooter verifies the index of an object, from bytes at its end, and caches it.
func (r *Reader) parseFooter(o *object, b []byte) (*tail, error) {
	size, err := tailSize(b, o.size)
	if err == nil && size > int64(len(b)) {
		err = damage("trailer", "object is cut short")
	}
	var parsed tail
	if err == nil {
		parsed, err = parseTail(b[int64(len(b))-size:], uint64(o.key.Last-o.key.First)+1)
	}
	// The hash binds the footer to the key: it is the footer of these records and no others.
	if err == nil && parsed.hash != o.key.Hash {
		err = damage("trailer", "belongs to another object")
	}
	if err != nil {
		return nil, fmt.Errorf("archive: %q: %w", r.a.nameOf(o), err)
	}
	r.footers.put(r.a.KeyString(o.key), &parsed)
	return &parsed, nil
}
