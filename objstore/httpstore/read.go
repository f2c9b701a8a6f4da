package httpstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/btrlog/btrlog/objstore"
)

// Get implements objstore.Store. The reader continues a body that was cut at the next node.
func (s *Store) Get(ctx context.Context, key string, rng objstore.Range) (io.ReadCloser, objstore.Info, error) {
	if err := s.check(ctx, "get", key); err != nil {
		return nil, objstore.Info{}, err
	}
	if rng.Offset < 0 || rng.Length < 0 {
		return nil, objstore.Info{}, s.err("get", key, objstore.ErrInvalid,
			fmt.Errorf("range at %d of %d bytes is negative", rng.Offset, rng.Length))
	}
	a, info, err := s.open(ctx, key, rng)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	from, to, _ := rng.Resolve(info.Size)
	r := &reader{s: s, ctx: ctx, key: key, info: info, at: from, end: to, a: a}
	if from == to {
		r.finish()
	}
	return r, info, nil
}

// open gets the head of an answer to a Get, checked against the range.
func (s *Store) open(ctx context.Context, key string, rng objstore.Range) (*answer, objstore.Info, error) {
	h := make(http.Header)
	if text := formatRange(rng); text != "" {
		h.Set("Range", text)
	}
	var info objstore.Info
	a, err := s.send(ctx, request{op: "get", key: key, method: http.MethodGet, path: escapeKey(key), header: h, accept: func(a *answer) (err error) {
		if info, err = readInfo(a.resp.Header, key); err != nil {
			return err
		}
		length, err := readCount(a.resp.Header, headerLength)
		if err != nil {
			return err
		}
		from, to, ok := rng.Resolve(info.Size)
		if !ok || to-from != length {
			return fmt.Errorf("a body of %d bytes for range %+v of an object of %d bytes", length, rng, info.Size)
		}
		if want := fmt.Sprintf("bytes %d-%d/%d", from, to-1, info.Size); rng != objstore.Whole && a.resp.Header.Get("Content-Range") != want {
			return fmt.Errorf("content range %.60q, want %q", a.resp.Header.Get("Content-Range"), want)
		}
		return nil
	}})
	return a, info, err
}

// reader is the body of one Get.
type reader struct {
	s       *Store
	ctx     context.Context
	key     string
	info    objstore.Info
	at, end int64
	a       *answer // nil between a cut and its continuation, and behind the end
	resumes int
	err     error // of all further Reads
}

func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 && r.err == nil {
		return 0, nil
	}
	for r.err == nil {
		if r.a == nil {
			r.resume()
			continue
		}
		n, err := r.a.Read(p[:min(int64(len(p)), r.end-r.at)])
		r.at += int64(n)
		switch {
		case r.at == r.end:
			// The end is looked at now and not in the next call, which many readers never make: it
			// may name damage, and the connection is free only behind it.
			r.finish()
		case err != nil:
			r.cut(err)
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, r.err
}

func (r *reader) fail(kind, err error) {
	r.drop()
	r.err = r.s.err("get", r.key, kind, err)
}

func (r *reader) drop() {
	if r.a != nil {
		r.a.Close()
		r.a = nil
	}
}

// finish reads the end of the answer behind its last byte.
func (r *reader) finish() {
	var one [1]byte
	n, err := r.a.Read(one[:])
	for n == 0 && err == nil {
		n, err = r.a.Read(one[:])
	}
	if n > 0 {
		r.fail(objstore.ErrUnavailable, r.a.malformed(fmt.Errorf("the body is longer than announced")))
		return
	}
	if err == io.EOF {
		if err = r.trailer(); err == nil {
			r.drop()
			r.err = io.EOF
			return
		}
	}
	r.cut(err)
	if r.err == nil { // there is no byte left to ask another node for
		r.fail(objstore.ErrUnavailable, fmt.Errorf("the end of the body was lost: %w", err))
	}
}

// trailerError is what the node's store reported in the middle of a body.
type trailerError struct {
	kind error
	text string
}

func (e *trailerError) Error() string { return e.text }

func (r *reader) trailer() error {
	t := r.a.resp.Trailer
	name := t.Get(headerError)
	if name == "" {
		return nil
	}
	text, err := strconv.Unquote(t.Get(headerMessage))
	if err != nil {
		text = "error " + strconv.Quote(name)
	}
	return &trailerError{kind: kindNamed(name), text: text}
}

// cut ends the current answer. Damage and the like is final, another node reads the same
// object; a lost connection or an unavailable store is not.
func (r *reader) cut(err error) {
	if err == io.EOF {
		if err = r.trailer(); err == nil {
			err = io.ErrUnexpectedEOF
		}
	}
	n := r.a.n
	err = fmt.Errorf("node %s: body cut %d bytes before its end: %w", n.base, r.end-r.at, err)
	var t *trailerError
	if errors.As(err, &t) && t.kind != nil && t.kind != objstore.ErrUnavailable {
		r.fail(t.kind, err)
		return
	}
	if ctxErr := r.ctx.Err(); ctxErr != nil || r.resumes == maxResumes {
		r.fail(objstore.ErrUnavailable, err)
		return
	}
	r.drop()
	r.s.avoid(n)
	n.protocol.Store(protocolUnknown)
}

// resume asks for the rest of the same version.
func (r *reader) resume() {
	r.resumes++
	a, info, err := r.s.open(r.ctx, r.key, objstore.Range{Offset: r.at, Length: r.end - r.at})
	if err != nil {
		r.err = err
		if errors.Is(err, objstore.ErrNotFound) || errors.Is(err, objstore.ErrInvalid) {
			r.fail(objstore.ErrUnavailable, fmt.Errorf("the object was deleted or replaced while it was read: %w", err))
		}
		return
	}
	r.a = a
	if info.ETag != r.info.ETag || info.Size != r.info.Size {
		r.fail(objstore.ErrUnavailable, fmt.Errorf("the object was replaced while it was read, read it again"))
	}
}

// Close implements io.Closer.
func (r *reader) Close() error {
	r.drop()
	if r.err == nil {
		r.err = r.s.err("get", r.key, objstore.ErrInvalid, errors.New("read after close"))
	}
	return nil
}
