package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/spf13/cobra"

	"github.com/btrlog/btrlog"
)

// recordForm is how records are printed.
type recordForm struct{ lines, prefixed, json bool }

func (f *recordForm) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.lines, "lines", false, "a line end behind each record")
	cmd.Flags().BoolVar(&f.prefixed, "length-prefixed", false, "each record's length before it: four bytes, big-endian")
	jsonFlag(cmd, &f.json, "one JSON object per record and line: its lsn, its epoch if that is known, its size_bytes, and its data in base64")
}

func (f *recordForm) check() error {
	forms := 0
	for _, b := range []bool{f.lines, f.prefixed, f.json} {
		if b {
			forms++
		}
	}
	if forms > 1 {
		return usagef("--lines, --length-prefixed and --json exclude each other")
	}
	return nil
}

// recordJSON is what --json prints of a record.
type recordJSON struct {
	LSN   btrlog.LSN   `json:"lsn"`
	Epoch btrlog.Epoch `json:"epoch,omitempty"` // absent: not known
	Size  int          `json:"size_bytes"`
	Data  []byte       `json:"data"` // in base64
}

// append appends the record to dst as it is to be printed.
func (f *recordForm) append(dst []byte, rec btrlog.Record) ([]byte, error) {
	switch {
	case f.json:
		data := rec.Data
		if data == nil {
			data = []byte{} // an empty record is "", not null
		}
		text, err := json.Marshal(recordJSON{rec.LSN, rec.Epoch, len(data), data})
		if err != nil {
			return dst, err
		}
		return append(append(dst, text...), '\n'), nil
	case f.prefixed:
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(rec.Data))) // a record has at most 8 MiB
		return append(dst, rec.Data...), nil
	case f.lines:
		return append(append(dst, rec.Data...), '\n'), nil
	}
	return append(dst, rec.Data...), nil
}

// output prints records. Writing is done on a goroutine of its own, for two reasons: a record is printed as soon as it is there and not when a
// buffer is full, while many are printed at once when they come fast; and a signal ends the command also while nobody takes its output, which
// a write cannot be interrupted for.
type output struct {
	w    io.Writer
	form *recordForm

	mu      sync.Mutex
	buf     []byte     // whole records that wait
	last    btrlog.LSN // the last one in buf, or that was
	printed btrlog.LSN // everything up to it was taken by w
	err     error      // of w, or of a record

	work  chan struct{} // there is something in buf
	room  chan struct{} // buf was taken
	ended chan struct{} // the goroutine has ended
}

// outputBytes is how much may wait before the reader of the log waits too.
const outputBytes = 1 << 20

func newOutput(w io.Writer, form *recordForm) *output {
	o := &output{w: w, form: form, work: make(chan struct{}, 1), room: make(chan struct{}, 1), ended: make(chan struct{})}
	go o.run()
	return o
}

func (o *output) run() {
	defer close(o.ended)
	var taken []byte
	for range o.work {
		for {
			o.mu.Lock()
			taken, o.buf = o.buf, taken[:0]
			last, err := o.last, o.err
			o.mu.Unlock()
			poke(o.room)
			if err != nil || len(taken) == 0 {
				break
			}
			_, err = o.w.Write(taken)
			o.mu.Lock()
			if o.err = err; err == nil {
				o.printed = last
			}
			o.mu.Unlock()
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put takes a copy of a record. It waits while too much waits to be printed, until ctx ends. The error is that of the output.
func (o *output) put(ctx context.Context, rec btrlog.Record) error {
	for {
		o.mu.Lock()
		if o.err != nil || len(o.buf) < outputBytes {
			break
		}
		o.mu.Unlock()
		select {
		case <-o.room:
		case <-ctx.Done():
			return errInterrupted
		}
	}
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	if o.buf, o.err = o.form.append(o.buf, rec); o.err != nil {
		return o.err
	}
	o.last = rec.LSN
	poke(o.work)
	return nil
}

// lastWrite is how long the output is waited for after a signal.
const lastWrite = time.Second

// finish waits until everything is printed, or, once ctx has ended, a little longer. It returns the last LSN that was printed whole, and the
// output's error. Nothing is put after it.
func (o *output) finish(ctx context.Context) (btrlog.LSN, error) {
	close(o.work)
	select {
	case <-o.ended:
	case <-ctx.Done():
		limit := time.NewTimer(lastWrite)
		defer limit.Stop()
		select {
		case <-o.ended:
		case <-limit.C:
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.printed, errNobodyReads
		}
	}
	return o.printed, o.err
}

// errNobodyReads: the output took no more after a signal.
var errNobodyReads = errors.New("interrupted while nobody reads the output")

// errReaderGone ends a command whose output is a pipe that nobody will read any more.
var errReaderGone = errors.New("the reader of the output is gone")

// whileRead returns a context that ends, with the cause errReaderGone, when w is a pipe and its reader goes away. A write would find out, but
// who follows a log may have nothing to write for a long time.
func whileRead(ctx context.Context, w io.Writer) (context.Context, context.CancelFunc) {
	f, ok := w.(*os.File)
	ctx, cancel := context.WithCancelCause(ctx)
	if !ok || !isPipe(f) {
		return ctx, func() { cancel(nil) }
	}
	fd := f.Fd()
	go func() {
		for ctx.Err() == nil {
			if readerGone(fd, time.Second) {
				cancel(errReaderGone)
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

func isPipe(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0
}

const (
	pollErr = 0x8  // POLLERR: the reader of a pipe is gone
	pollHup = 0x10 // POLLHUP: that of a socket
)

// readerGone waits on ppoll(2), at most so long, until the other end of fd is closed. No event is asked for: these two are told always.
func readerGone(fd uintptr, limit time.Duration) bool {
	p := struct {
		fd      int32
		events  int16
		revents int16
	}{fd: int32(fd)}
	ts := syscall.NsecToTimespec(int64(limit))
	n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	return errno == 0 && n == 1 && p.revents&(pollErr|pollHup) != 0
}
