package main

import (
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// progress shows a count, a rate and, if the end is known, the time to it, on a terminal; nowhere else. The zero of its
// receiver, nil, shows nothing.
type progress struct {
	w      io.Writer
	total  int64 // bytes; 0: not known
	count  int64 // records; 0: not known
	begin  time.Time
	next   time.Time
	drawn  bool
	clock  func() time.Time
	prefix string
}

const progressEvery = 200 * time.Millisecond

// newProgress returns nil unless w is a terminal.
func newProgress(w io.Writer, prefix string, totalBytes int64) *progress {
	if !isTerminal(w) {
		return nil
	}
	now := time.Now()
	return &progress{w: w, prefix: prefix, total: totalBytes, begin: now, next: now.Add(progressEvery), clock: time.Now}
}

// expect says how many records there are to come, where the bytes are not known.
func (p *progress) expect(records int64) {
	if p != nil {
		p.count = records
	}
}

// share is the part that is done, from 0 to 1, or 0 where the end is not known.
func (p *progress) share(records, bytes int64) float64 {
	switch {
	case p.total > 0 && bytes <= p.total:
		return float64(bytes) / float64(p.total)
	case p.count > 0 && records <= p.count:
		return float64(records) / float64(p.count)
	}
	return 0
}

// show is cheap enough to be called for every record.
func (p *progress) show(records, bytes int64) {
	if p == nil {
		return
	}
	now := p.clock()
	if now.Before(p.next) {
		return
	}
	p.next = now.Add(progressEvery)
	p.drawn = true
	fmt.Fprintf(p.w, "\r%s\x1b[K", progressLine(p.prefix, records, bytes, p.share(records, bytes), now.Sub(p.begin)))
}

// done removes the line.
func (p *progress) done() {
	if p != nil && p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func progressLine(prefix string, records, bytes int64, share float64, spent time.Duration) string {
	s := spent.Seconds()
	if s <= 0 {
		s = 1e-9
	}
	line := fmt.Sprintf("%s %s, %s, %.0f records/s, %s/s", prefix, plural(records, "record"), humanBytes(bytes), float64(records)/s,
		humanBytes(int64(float64(bytes)/s)))
	if share > 0 {
		left := time.Duration(float64(spent) * (1 - share) / share).Round(time.Second)
		line += fmt.Sprintf(", %.0f%%, %v left", math.Floor(100*share), left)
	}
	return line
}

// slowNotice tells a terminal what is being done if that takes longer than a second. The function it returns is called when it is done.
func slowNotice(w io.Writer, what string) (done func()) {
	if !isTerminal(w) {
		return func() {}
	}
	return noticeAfter(w, what, time.Second)
}

func noticeAfter(w io.Writer, what string, limit time.Duration) (done func()) {
	t := time.AfterFunc(limit, func() { fmt.Fprintf(w, "%s …\n", what) })
	return func() { t.Stop() } // one that is just being written does no harm
}

// stopped tells a terminal that a server has ended as it was asked to: without it a person cannot tell an orderly end from a crash.
func stopped(w io.Writer) {
	if isTerminal(w) {
		fmt.Fprintln(w, "stopped")
	}
}

// sizeOf is how many bytes are to come from an input, if that is known: from a regular file. Otherwise 0.
func sizeOf(r io.Reader) int64 {
	f, ok := r.(*os.File)
	if !ok {
		return 0
	}
	st, err := f.Stat()
	if err != nil || st.Mode()&fs.ModeType != 0 {
		return 0
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0
	}
	return max(st.Size()-at, 0)
}

// isTerminal says whether w is one. The kernel knows: only a terminal has line settings.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	var settings syscall.Termios
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TCGETS, uintptr(unsafe.Pointer(&settings)))
	return errno == 0
}
