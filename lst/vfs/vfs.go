// Package vfs is the file-system seam of the lst storage engine: everything the
// engine does to a disk goes through FS and File, so that a test owns the disk.
//
// OS is the real file system. Mem is a disk in memory that can crash: it keeps
// what was synced and a random part of what was not, and it can fail, fill up,
// or lie about syncs on request.
package vfs

import (
	"errors"
	"io"
)

// Flag says how a file is opened. The zero value is a buffered read-write file.
type Flag uint8

const (
	// ReadOnly opens without write permission.
	ReadOnly Flag = 1 << iota
	// Direct bypasses the page cache (O_DIRECT). Buffers, offsets and lengths of
	// writes must be multiples of File.BlockSize. If the file system cannot do
	// it, opening fails with ErrNoDirect and the caller falls back.
	Direct
	// DSync makes every WriteAt durable before it returns (O_DSYNC).
	DSync
)

var (
	// ErrNoDirect says that this file system has no direct I/O.
	ErrNoDirect = errors.New("vfs: direct I/O is not supported by this file system")
	// ErrLocked says that another process or store holds the lock file.
	ErrLocked = errors.New("vfs: lock is held by another writer")
	// ErrNotSupported says that Allocate cannot reserve space here.
	ErrNotSupported = errors.New("vfs: not supported by this file system")
)

// FS is a file system. Methods may be called from several goroutines. Names are
// complete paths. Errors for absent files satisfy errors.Is(err, fs.ErrNotExist);
// errors for a full disk satisfy errors.Is(err, syscall.ENOSPC).
type FS interface {
	// MkdirAll makes dir and its parents, durable in their parents at return.
	MkdirAll(dir string) error
	// Create makes a new file, which must not exist, open for reading and writing.
	// Its directory entry is durable only after SyncDir.
	Create(name string, flag Flag) (File, error)
	// Open opens an existing file.
	Open(name string, flag Flag) (File, error)
	// Remove unlinks a file. Open descriptors stay readable.
	Remove(name string) error
	// List returns the base names of the entries of dir in ascending order.
	List(dir string) ([]string, error)
	// SyncDir makes created and removed entries of dir durable.
	SyncDir(dir string) error
	// Lock takes the exclusive lock file name, creating it if absent, without
	// waiting; ErrLocked if someone else holds it. Close releases it.
	Lock(name string) (io.Closer, error)
}

// File is an open file. ReadAt and WriteAt may be called concurrently.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Sync makes everything written to the file durable (fdatasync).
	Sync() error
	// Size returns the file's length in bytes.
	Size() (int64, error)
	// Allocate reserves disk space for bytes [0, size) without changing the
	// length, so that writes there cannot meet a full disk. ErrNotSupported if
	// the file system cannot promise that.
	Allocate(size int64) error
	// BlockSize is the alignment in bytes that writes need: 1 unless Direct.
	BlockSize() int
	// Fd is the descriptor for raw system calls, or ^uintptr(0) if there is none.
	Fd() uintptr
	// Close releases the descriptor; it makes nothing durable. No other call may be
	// under way then, or begin afterwards.
	Close() error
}

// Readier is a File that takes small appends faster at a place that was made ready: the
// page cache gets memory for many pages at a time for less than for one after another.
type Readier interface {
	// ReadyBytes is the unit, a power of two, in which that is worth it here; 0 if it is
	// not. Where it is not, Ready need not be called.
	ReadyBytes() int
	// Ready writes n zeros at off, which lies within one unit. The caller makes sure that
	// nothing was written there, and that nothing is before Ready has returned. They are
	// ordinary bytes: a crash can keep any part of them. n is at most ReadyBytes.
	Ready(off int64, n int) error
}
