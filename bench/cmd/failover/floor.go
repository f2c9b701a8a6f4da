package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// The floor of a quorum write: one datagram to each of three processes on locked threads with plain system calls, one 4 KiB
// direct synced write into a preallocated, zeroed file in each, one datagram back, two of them waited for. No protocol.

const (
	floorRole  = "floor-server"
	floorBytes = 64 << 20
	blockBytes = 4096
)

func floorServer(file string) error {
	runtime.LockOSThread()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	zero := make([]byte, 1<<20)
	for range floorBytes / len(zero) {
		if _, err := f.Write(zero); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	f.Close()
	fd, err := syscall.Open(file, syscall.O_RDWR|syscall.O_DIRECT|syscall.O_DSYNC, 0)
	if err != nil { // tmpfs has no direct writes
		if fd, err = syscall.Open(file, syscall.O_RDWR|syscall.O_DSYNC, 0); err != nil {
			return err
		}
	}
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	if err := syscall.Bind(s, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	at, err := syscall.Getsockname(s)
	if err != nil {
		return err
	}
	fmt.Printf("floor ready at %d\n", at.(*syscall.SockaddrInet4).Port)
	raw := make([]byte, 2*blockBytes)
	pad := int(uintptr(blockBytes)-uintptr(unsafe.Pointer(&raw[0]))%blockBytes) % blockBytes
	block := raw[pad : pad+blockBytes]
	buf := make([]byte, 2048)
	var off int64
	for {
		n, from, err := syscall.Recvfrom(s, buf, 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		copy(block, buf[:n])
		if _, err := syscall.Pwrite(fd, block, off); err != nil {
			return err
		}
		off = (off + blockBytes) % floorBytes
		if err := syscall.Sendto(s, buf[:24], 0, from); err != nil {
			return err
		}
	}
}

type floor struct {
	stops []func()
	to    []*syscall.SockaddrInet4
	s     int
	id    uint64
	buf   []byte
}

func newFloor(ctx context.Context, dir string) (*floor, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &floor{buf: make([]byte, 2048)}
	for i := range nodes {
		line, stop, err := process(ctx, self, "floor ready at", floorRole, filepath.Join(dir, fmt.Sprintf("floor%d", i)))
		if err != nil {
			f.stop()
			return nil, err
		}
		f.stops = append(f.stops, stop)
		port, err := strconv.Atoi(strings.TrimPrefix(line, "floor ready at "))
		if err != nil {
			f.stop()
			return nil, err
		}
		f.to = append(f.to, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	}
	if f.s, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0); err != nil {
		return nil, err
	}
	// Nothing hangs: a datagram that is lost ends the run.
	return f, syscall.SetsockoptTimeval(f.s, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Sec: 10})
}

func (f *floor) stop() {
	for _, s := range f.stops {
		s()
	}
}

// write makes one quorum write.
func (f *floor) write() (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var m [160]byte
	f.id++
	binary.LittleEndian.PutUint64(m[:], f.id)
	began := time.Now()
	for _, to := range f.to {
		if err := syscall.Sendto(f.s, m[:], 0, to); err != nil {
			return 0, err
		}
	}
	for got := 0; got < quorum; {
		n, _, err := syscall.Recvfrom(f.s, f.buf, 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("a floor server does not answer: %w", err)
		}
		if n >= 8 && binary.LittleEndian.Uint64(f.buf) == f.id {
			got++
		}
	}
	return time.Since(began), nil
}
