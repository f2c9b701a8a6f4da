//go:build amd64 || arm64

package localdir

import (
	"errors"
	"os"
	"syscall"
)

// sync_file_range(2): begin to write the range back, and wait until it is.
const waitWriteWait = 1 | 2 | 4

// settle waits until n bytes at offset have been handed to the disk. It neither flushes the disk's cache nor writes metadata. Its errors
// are those of the write-back, which fsync does not report again once they were reported here: passed over, an object whose bytes
// never reached the disk would be called stored.
func settle(f *os.File, offset, n int64) error {
	err := syscall.SyncFileRange(int(f.Fd()), offset, n, waitWriteWait)
	for errors.Is(err, syscall.EINTR) {
		err = syscall.SyncFileRange(int(f.Fd()), offset, n, waitWriteWait)
	}
	switch {
	case errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EOPNOTSUPP):
		return nil // a sandbox, or a file system without it: fsync writes all at once
	case err != nil:
		return &os.PathError{Op: "sync_file_range", Path: f.Name(), Err: err}
	}
	return nil
}
