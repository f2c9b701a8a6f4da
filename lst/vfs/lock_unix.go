//go:build unix && !linux

package vfs

import (
	"errors"
	"os"
	"syscall"
)

func lockUnix(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}
