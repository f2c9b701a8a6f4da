package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// floorSwap is the floor of a durable compare-and-swap between processes on a local file system, with nothing around it: under a lock,
// read the file and compare, write another one, sync it, rename it over the first, sync the directory. No name that a power cut could leave is
// without its bytes, and none that was reported goes: less than this is not what a metadata store promises. It has no checksum, no
// metadata, no checks of arguments.
type floorSwap struct {
	file, temp string
	lock, dir  int
	last, buf  []byte
}

func newFloorSwap(dir string) (*floorSwap, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	s := &floorSwap{file: filepath.Join(dir, "record"), temp: filepath.Join(dir, "temp"), last: []byte("first"), buf: make([]byte, 1<<20)}
	if err := os.WriteFile(s.file, s.last, 0o644); err != nil {
		return nil, err
	}
	var err error
	if s.lock, err = syscall.Open(filepath.Join(dir, "lock"), syscall.O_RDWR|syscall.O_CREAT|syscall.O_CLOEXEC, 0o644); err != nil {
		return nil, err
	}
	s.dir, err = syscall.Open(dir, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	return s, err
}

func (s *floorSwap) close() {
	_ = syscall.Close(s.dir)
	_ = syscall.Close(s.lock)
}

func (s *floorSwap) once(body []byte) (time.Duration, error) {
	began := time.Now()
	if err := s.replace(body); err != nil {
		return 0, fmt.Errorf("floor of a compare-and-swap: %w", err)
	}
	took := time.Since(began)
	s.last = append(s.last[:0], body...)
	return took, nil
}

func (s *floorSwap) replace(body []byte) error {
	if err := syscall.Flock(s.lock, syscall.LOCK_EX); err != nil {
		return err
	}
	defer syscall.Flock(s.lock, syscall.LOCK_UN)
	fd, err := syscall.Open(s.file, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	n, err := syscall.Read(fd, s.buf)
	syscall.Close(fd)
	if err != nil || !bytes.Equal(s.buf[:n], s.last) {
		return fmt.Errorf("another record than the last one, %w", err)
	}
	if fd, err = syscall.Open(s.temp, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_CLOEXEC, 0o644); err != nil {
		return err
	}
	n, err = syscall.Write(fd, body)
	if err == nil && n < len(body) {
		err = syscall.EIO
	}
	if err == nil {
		err = syscall.Fdatasync(fd)
	}
	syscall.Close(fd)
	if err == nil {
		err = syscall.Rename(s.temp, s.file)
	}
	if err == nil {
		err = syscall.Fsync(s.dir)
	}
	return err
}
