//go:build linux && (amd64 || arm64)

package ring

import (
	"fmt"
	"io"
	"syscall"
)

// Pwrite writes all of buf at off, over interruptions and short writes. On error an unknown part of the range was written.
// What is durable at return is decided by how fd was opened (O_DSYNC).
func Pwrite(fd int, buf []byte, off int64) error {
	for done := 0; done < len(buf); {
		n, err := syscall.Pwrite(fd, buf[done:], off+int64(done))
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return fmt.Errorf("write of %d bytes at offset %d, %d done: %w", len(buf), off, done, err)
		case n <= 0:
			return fmt.Errorf("write of %d bytes at offset %d, %d done: %w", len(buf), off, done, io.ErrShortWrite)
		default:
			done += n
		}
	}
	return nil
}
