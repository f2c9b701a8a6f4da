//go:build linux

// Package history records what clients of logs did and saw, and judges it: by porcupine for linearizability, one log at a
// time, and by direct comparison with the log as it is in the end.
//
// An operation is a call and a return, two events with times of one clock (CLOCK_MONOTONIC, which all processes of a machine
// share). A call whose return is missing, because its process was killed, or whose return says "unknown", is open to the end:
// it may have taken effect at any time after the call, or never.
package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// Op is a kind of operation.
type Op string

// The operations. Open is an OpenWriter, which finds out where the log ends; Final is the scan at the end, one event for
// each record and a last one for the whole; Follow is one record of a follower, a return without a call.
const (
	Append Op = "append"
	Read   Op = "read"
	Tail   Op = "tail"
	Open   Op = "open"
	Follow Op = "follow"
	Final  Op = "final"
)

// Outcome of an operation.
type Outcome string

// The outcomes. A failed append is not in the log for certain; of other operations it means that there was no answer.
// Absent is the answer of a read that there is no such record yet.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"
	Unknown Outcome = "unknown"
	Absent  Outcome = "absent"
)

// Event is one line of a history file: a call, if Out is empty, or a return.
type Event struct {
	T   int64   `json:"t"` // ns
	ID  uint64  `json:"id,omitempty"`
	Op  Op      `json:"op"`
	Log string  `json:"log"`
	LSN uint64  `json:"lsn,omitempty"` // of append, read, follow, final; of tail and open the highest committed one
	Val uint64  `json:"v,omitempty"`   // which record it is
	Out Outcome `json:"out,omitempty"`
	// Bad says that the bytes were not those of any record that was appended.
	Bad string `json:"bad,omitempty"`
	Err string `json:"err,omitempty"`
	// Reader tells followers and final scans apart.
	Reader string `json:"reader,omitempty"`
}

// Now reads the clock of the events: CLOCK_MONOTONIC, in ns.
func Now() int64 {
	var t syscall.Timespec
	// The system call cannot fail for this clock.
	_, _, _ = syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&t)), 0)
	return t.Nano()
}

// Recorder writes events to a file, one write each: what was written before kill -9 stays. It is safe for concurrent use.
type Recorder struct {
	mu   sync.Mutex
	file *os.File
	next uint64
	err  error
}

// Create makes a history file, which must not exist.
func Create(path string) (*Recorder, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create history: %w", err)
	}
	return &Recorder{file: f}, nil
}

// Call writes a call, gives it the time of now, and returns the number for its return. It must be written before the
// operation begins, or an operation of a process that was killed has no trace in the history.
func (r *Recorder) Call(e Event) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	e.ID, e.T = r.next, Now()
	r.write(e)
	return e.ID
}

// Return writes a return, with the time of now.
func (r *Recorder) Return(e Event) {
	e.T = Now() // before the lock: a wait for it is no part of the operation
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(e)
}

func (r *Recorder) write(e Event) {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("history: %w", err)
	}
}

// Err returns the first error of writing.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Load reads a history file. A last line that is not whole, of a process that was killed, is left out.
func Load(path string) ([]Event, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load history: %w", err)
	}
	defer f.Close()
	var out []Event
	in := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		var e Event
		if err == nil {
			err = json.Unmarshal(line, &e)
		}
		if err != nil {
			return nil, fmt.Errorf("load history %s, line %d: %w", path, n, err)
		}
		out = append(out, e)
	}
}
