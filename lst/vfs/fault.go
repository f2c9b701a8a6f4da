package vfs

import (
	"errors"
	"io/fs"
)

// Op is a kind of operation that a Fault can hit.
type Op uint16

// The kinds of operations; combine them with |.
const (
	OpRead Op = 1 << iota
	OpWrite
	OpSync
	OpSyncDir
	OpCreate
	OpOpen
	OpRemove
	OpList
	OpAllocate
	OpLock
	OpMkdir
)

// Fault makes operations of a Mem fail.
type Fault struct {
	// Ops selects the kinds of operations.
	Ops Op
	// Path selects names that contain it; empty selects all.
	Path string
	// After lets this many matching operations pass first.
	After int
	// Times is how many then fail; 0 means all of them.
	Times int
	// Err is what they fail with, for example syscall.EIO or syscall.ENOSPC.
	Err error
	// ShortBytes of a failing write reach the file all the same.
	ShortBytes int
}

// Inject adds a fault; it stays until its Times are used up or ClearFaults.
func (m *Mem) Inject(f Fault) {
	m.mu.Lock()
	m.faults = append(m.faults, &f)
	m.mu.Unlock()
}

// ClearFaults removes all faults.
func (m *Mem) ClearFaults() {
	m.mu.Lock()
	m.faults = nil
	m.mu.Unlock()
}

// CrashAfter lets n more modifying operations (writes, syncs, creates, removes,
// reservations) happen; the next one is cut short (a write reaches the cache
// but is not synced, even with DSync) and it and all later operations fail with
// ErrCrashed. Call Crash for the disk after the restart.
func (m *Mem) CrashAfter(n int64) {
	m.mu.Lock()
	m.crashAt = m.ops + n + 1
	m.mu.Unlock()
}

// Operations counts the modifying operations so far.
func (m *Mem) Operations() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ops
}

var errCrashNow = errors.New("vfs: crash in this operation")

// begin accounts for one operation and decides whether it fails. The fault is
// returned with its error so that a write can be short.
func (m *Mem) begin(op Op, name string) (*Fault, error) {
	if m.crashed {
		return nil, ErrCrashed
	}
	if op&(OpRead|OpOpen|OpList|OpLock|OpMkdir) == 0 {
		m.ops++
		if m.crashAt != 0 && m.ops >= m.crashAt {
			m.crashed = true
			if op == OpWrite {
				return nil, errCrashNow
			}
			return nil, ErrCrashed
		}
	}
	for k, f := range m.faults {
		if f.Ops&op == 0 || !matches(f.Path, name) {
			continue
		}
		if f.After > 0 {
			f.After--
			continue
		}
		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				m.faults = append(m.faults[:k:k], m.faults[k+1:]...)
			}
		}
		return f, &fs.PathError{Op: op.String(), Path: name, Err: f.Err}
	}
	return nil, nil
}

// String names the operation as error messages do.
func (o Op) String() string {
	names := map[Op]string{
		OpRead: "read", OpWrite: "write", OpSync: "sync", OpSyncDir: "sync directory", OpCreate: "create",
		OpOpen: "open", OpRemove: "remove", OpList: "list", OpAllocate: "allocate", OpLock: "lock", OpMkdir: "mkdir",
	}
	if s, ok := names[o]; ok {
		return s
	}
	return "operation"
}

// Crashed reports whether the disk has crashed.
func (m *Mem) Crashed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.crashed
}
