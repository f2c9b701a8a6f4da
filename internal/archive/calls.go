package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// Names in an object's metadata. Values are numbers of 16 hexadecimal digits, the format decimal.
const (
	metaCLSN     = "btrlog-clsn"
	metaSegStart = "btrlog-seg-start"
	metaFormat   = "btrlog-format"
)

func metadata(plan protocol.Segment, c Compression) map[string]string {
	h := head{compression: c}
	return map[string]string{
		metaCLSN:     fmt.Sprintf("%016x", uint64(plan.CLSN)),
		metaSegStart: fmt.Sprintf("%016x", uint64(plan.SegStart)),
		metaFormat:   strconv.Itoa(int(h.version())),
	}
}

// clsnOf returns the cLSN that an object proves its records up to. Metadata that is missing or malformed proves nothing.
func clsnOf(k Key, meta map[string]string) protocol.LSN {
	v, ok := parseHex16(meta[metaCLSN])
	if !ok || v > uint64(protocol.MaxLSN) {
		v = 0
	}
	if k.Kind == Committed {
		return max(k.Last, protocol.LSN(v))
	}
	return protocol.LSN(v)
}

// pause waits before try number i, which is at least 1.
func (a *Archive) pause(ctx context.Context, i int) error {
	d := min(backoffMin<<min(i-1, 16), backoffMax)
	return a.o.Sleep(ctx, d/2+time.Duration(a.o.Rand()*float64(d/2)))
}

// transient says that a read may be sent again as it is.
func transient(err error) bool { return objstore.Retryable(err) || errors.Is(err, objstore.ErrUnknown) }

// retry runs a read until it gets a definite answer, at most Attempts times.
func (a *Archive) retry(ctx context.Context, try func() error) error {
	var err error
	for i := range a.o.Attempts {
		if i > 0 {
			if e := a.pause(ctx, i); e != nil {
				return unavailable(i, errors.Join(e, err))
			}
		}
		if err = try(); err == nil || !transient(err) {
			return err
		}
		if ctx.Err() != nil {
			return unavailable(i+1, err)
		}
	}
	return unavailable(a.o.Attempts, err)
}

func unavailable(tries int, err error) error {
	return fmt.Errorf("%w: gave up after %d tries: %w", ErrUnavailable, tries, err)
}

func (a *Archive) put(ctx context.Context, key string, body []byte, meta map[string]string) error {
	_, err := a.store.Put(ctx, key, body, meta, objstore.IfAbsent())
	a.counts.add(opPut, err, len(body))
	return err
}

func (a *Archive) head(ctx context.Context, key string) (info objstore.Info, err error) {
	err = a.retry(ctx, func() error {
		info, err = a.store.Head(ctx, key)
		a.counts.add(opHead, err, 0)
		return err
	})
	return info, err
}

func (a *Archive) list(ctx context.Context, prefix, startAfter string, limit int) (page objstore.Page, err error) {
	err = a.retry(ctx, func() error {
		page, err = a.store.List(ctx, prefix, startAfter, limit)
		a.counts.add(opList, err, 0)
		return err
	})
	return page, err
}

// getRange reads n bytes at offset of an object that the listing showed with size bytes, into the capacity of buf if
// that suffices. An object of another size is damaged: objects are never replaced (AR4). n is bounded by the caller.
func (a *Archive) getRange(ctx context.Context, key string, size, offset, n int64, buf []byte) ([]byte, error) {
	if offset+n > size {
		// A footer that was read earlier says so: the object has been cut since.
		return nil, fmt.Errorf("%w: %q: the listing says %d bytes, its records need %d", ErrDamaged, key, size, offset+n)
	}
	if int64(cap(buf)) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	err := a.retry(ctx, func() error {
		err := a.getOnce(ctx, key, size, offset, buf)
		a.counts.add(opGet, err, len(buf))
		return err
	})
	switch {
	case errors.Is(err, objstore.ErrNotFound), errors.Is(err, objstore.ErrDamaged), errors.Is(err, objstore.ErrInvalid):
		// Invalid is a range that starts behind the end: the object is shorter than it was.
		return nil, fmt.Errorf("%w: %q: %w", ErrDamaged, key, err)
	case err != nil:
		return nil, fmt.Errorf("archive: reading %q: %w", key, err)
	}
	return buf, nil
}

func (a *Archive) getOnce(ctx context.Context, key string, size, offset int64, buf []byte) error {
	r, info, err := a.store.Get(ctx, key, objstore.Range{Offset: offset, Length: int64(len(buf))})
	if err != nil {
		return err
	}
	defer r.Close()
	fail := func(kind error, format string, args ...any) error {
		return &objstore.Error{Store: a.store.String(), Op: "get", Key: key, Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	if info.Size != size {
		return fail(objstore.ErrDamaged, "object has %d bytes, the listing said %d", info.Size, size)
	}
	if n, err := io.ReadFull(r, buf); err != nil {
		if e := (*objstore.Error)(nil); errors.As(err, &e) {
			return err
		}
		return fail(objstore.ErrUnavailable, "body ended after %d of %d bytes: %w", n, len(buf), err)
	}
	// The end is where a backend reports damage or a cut.
	var one [1]byte
	n, err := r.Read(one[:])
	for n == 0 && err == nil {
		n, err = r.Read(one[:])
	}
	if n != 0 {
		return fail(objstore.ErrUnavailable, "body is longer than the %d bytes asked for", len(buf))
	}
	if err != io.EOF {
		return err
	}
	return nil
}
