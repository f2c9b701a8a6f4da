package load

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// fileWAL is a local log: one file that is written in advance, write and fdatasync. What is appended while a sync is under way is
// written together by the next. All logs are in the one file; at its end it begins anew.
type fileWAL struct {
	f    *os.File
	at   int64
	mu   sync.Mutex
	some *sync.Cond
	buf  []byte
	wait []Completion
	stop bool
	done chan struct{}
}

// FileKind is the name of ConnectFile; its word is a directory.
const FileKind = "file"

const (
	fileBytes  = 64 << 20
	fileQueue  = 1 << 16 // appends that wait at most
	fileHeader = 16      // what a real log would add to a record
)

// ConnectFile is a local file as a target.
func ConnectFile(_ context.Context, words []string) (Target, error) {
	if len(words) != 1 {
		return nil, fmt.Errorf("%d words; it is one, a directory", len(words))
	}
	f, err := os.Create(filepath.Join(words[0], "wal"))
	if err != nil {
		return nil, err
	}
	zero := make([]byte, 1<<20)
	for range fileBytes / len(zero) {
		if _, err := f.Write(zero); err != nil {
			return nil, err
		}
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	w := &fileWAL{f: f, done: make(chan struct{})}
	w.some = sync.NewCond(&w.mu)
	go w.run()
	return w, nil
}

func (w *fileWAL) Open(context.Context, int) error { return nil }

func (w *fileWAL) Append(_ int, record []byte, c Completion) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.wait) >= fileQueue {
		return ErrRefused
	}
	w.buf = append(append(w.buf, make([]byte, fileHeader)...), record...)
	w.wait = append(w.wait, c)
	w.some.Signal()
	return nil
}

// write makes bytes durable. Whoever calls it is the only one.
func (w *fileWAL) write(b []byte) error {
	if w.at+int64(len(b)) > fileBytes {
		w.at = 0
	}
	if _, err := w.f.WriteAt(b, w.at); err != nil {
		return err
	}
	w.at += int64(len(b))
	return syscall.Fdatasync(int(w.f.Fd()))
}

func (w *fileWAL) run() {
	defer close(w.done)
	var buf []byte
	var wait []Completion
	for {
		w.mu.Lock()
		for len(w.wait) == 0 && !w.stop {
			w.some.Wait()
		}
		if len(w.wait) == 0 {
			w.mu.Unlock()
			return
		}
		buf, w.buf = w.buf, buf[:0]
		wait, w.wait = w.wait, wait[:0]
		w.mu.Unlock()
		err := w.write(buf)
		for _, c := range wait {
			c.Done(err)
		}
	}
}

func (w *fileWAL) Closed(_ context.Context, count int, record []byte) ([]time.Duration, error) {
	b := append(make([]byte, fileHeader), record...)
	return ClosedLoop(count, func() error { return w.write(b) })
}

func (w *fileWAL) Close() error {
	w.mu.Lock()
	w.stop = true
	w.some.Signal()
	w.mu.Unlock()
	<-w.done
	return w.f.Close()
}
