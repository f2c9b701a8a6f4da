package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/btrlog/btrlog"
)

// splitter cuts an input into records.
type splitter interface {
	// next appends the next record to dst and returns it. io.EOF: the input ended where a record ends. Any other error comes with
	// dst unchanged in length.
	next(r *bufio.Reader, dst []byte) ([]byte, error)
	// whole says whether buf begins with a whole record, so that next would not wait for more input.
	whole(buf []byte) bool
}

var errRecordTooLong = fmt.Errorf("the record is longer than %s, the limit of a log", humanBytes(btrlog.MaxRecordBytes))

// lines makes a record of each line, without its '\n'; a '\r' before it is kept. An empty line is an empty record. The last line
// needs no '\n'.
type lines struct{}

func (lines) next(r *bufio.Reader, dst []byte) ([]byte, error) {
	start := len(dst)
	for {
		part, err := r.ReadSlice('\n')
		if n := len(dst) - start + len(bytes.TrimSuffix(part, []byte{'\n'})); n > btrlog.MaxRecordBytes {
			return dst[:start], errRecordTooLong
		}
		dst = append(dst, part...)
		switch {
		case err == nil:
			return dst[:len(dst)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(dst) > start:
			return dst, nil
		default:
			return dst[:start], err
		}
	}
}

func (lines) whole(buf []byte) bool { return bytes.IndexByte(buf, '\n') >= 0 }

// chunks makes a record of every size bytes, and one of what remains.
type chunks struct{ size int }

func (c chunks) next(r *bufio.Reader, dst []byte) ([]byte, error) {
	start := len(dst)
	dst = append(dst, make([]byte, c.size)...)
	n, err := io.ReadFull(r, dst[start:])
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return dst[:start+n], nil
	}
	if err != nil {
		return dst[:start], err
	}
	return dst, nil
}

func (c chunks) whole(buf []byte) bool { return len(buf) >= c.size }

// prefixed reads records that each have their length before them: four bytes, big-endian.
type prefixed struct{}

func (prefixed) next(r *bufio.Reader, dst []byte) ([]byte, error) {
	start := len(dst)
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the input ends within the length of a record")
		}
		return dst, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > btrlog.MaxRecordBytes { // before anything of that size is allocated
		return dst, fmt.Errorf("its length is given as %d bytes: %w", n, errRecordTooLong)
	}
	dst = append(dst, make([]byte, n)...)
	if got, err := io.ReadFull(r, dst[start:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("the input ends after %d of its %d bytes", got, n)
		}
		return dst[:start], err
	}
	return dst, nil
}

func (prefixed) whole(buf []byte) bool {
	return len(buf) >= 4 && uint64(len(buf)) >= 4+uint64(binary.BigEndian.Uint32(buf))
}

// batch is a number of records, one behind the other in data.
type batch struct {
	data []byte
	ends []int
	err  error // behind the records: why there are no more; nil in all but the last batch
}

// batchBytes is the size at which a batch is handed on. A batch is also handed on when the next record would have to be waited for: a slow
// producer's records are committed as they come.
const batchBytes = 256 << 10

// readBatches cuts in into records on a goroutine of its own, because a read from a terminal or a pipe cannot be interrupted. The channel
// is closed behind the last batch. Batches go back through the second channel when they are done with. When ctx ends the goroutine
// ends with its current read at the latest.
func readBatches(ctx context.Context, in io.Reader, s splitter) (<-chan *batch, chan<- *batch) {
	const ahead = 3 // one is filled, one is waiting, one is being appended
	full, empty := make(chan *batch, ahead), make(chan *batch, ahead)
	for range ahead {
		empty <- new(batch)
	}
	go func() {
		defer close(full)
		r := bufio.NewReaderSize(in, 64<<10)
		for {
			var b *batch
			select {
			case b = <-empty:
			case <-ctx.Done():
				return
			}
			b.fill(r, s)
			over := b.err != nil // looked at before the batch belongs to the other side
			full <- b            // never blocks: there are as many places as batches
			if over {
				return
			}
		}
	}()
	return full, empty
}

func (b *batch) fill(r *bufio.Reader, s splitter) {
	b.data, b.ends, b.err = b.data[:0], b.ends[:0], nil
	for {
		if b.data, b.err = s.next(r, b.data); b.err != nil {
			return
		}
		b.ends = append(b.ends, len(b.data))
		if len(b.data) >= batchBytes {
			return
		}
		buffered, err := r.Peek(r.Buffered())
		if err != nil || !s.whole(buffered) {
			return
		}
	}
}

// each calls f with each record until it fails.
func (b *batch) each(f func(rec []byte) error) error {
	from := 0
	for _, end := range b.ends {
		if err := f(b.data[from:end]); err != nil {
			return err
		}
		from = end
	}
	return nil
}
