package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// The floor of a quorum append in Go: locked threads and raw system calls. One datagram to each node process, one direct synced
// write of 4096 bytes into a preallocated, zeroed file in each, one datagram back, a quorum of them waited for. No protocol. It
// does what ../../floor/floor.c does.

const (
	floorServerRole = "floor-server"
	floorClientRole = "floor-client"
	floorBytes      = 64 << 20
	blockBytes      = 4096
	requestBytes    = 160
	answerBytes     = 24
)

// own makes the process one thread's: no collection holds it up, and nothing else runs in it, so that its system calls need not
// tell the scheduler that they block.
func own() {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
}

// prepare returns a descriptor for direct synced writes to a file that needs no allocation any more.
func prepare(path string) (int, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o644)
	if err != nil {
		return 0, err
	}
	zero := make([]byte, 1<<20)
	for range floorBytes / len(zero) {
		if _, err := f.Write(zero); err != nil {
			return 0, errors.Join(err, f.Close())
		}
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return 0, err
	}
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_DIRECT|syscall.O_DSYNC, 0)
	if err != nil { // a file system without direct writes
		fd, err = syscall.Open(path, syscall.O_RDWR|syscall.O_DSYNC, 0)
	}
	return fd, err
}

// loopback returns a UDP socket and its port.
func loopback() (fd, port int, err error) {
	if fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0); err != nil {
		return 0, 0, err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, 0, err
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, 0, err
	}
	return fd, at.(*syscall.SockaddrInet4).Port, nil
}

func rawAddress(port int) syscall.RawSockaddrInet4 {
	a := syscall.RawSockaddrInet4{Family: syscall.AF_INET, Addr: [4]byte{127, 0, 0, 1}}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&a.Port))[:], uint16(port))
	return a
}

// receive and send are recvfrom and sendto, as a C program would make them. receive returns zero when the socket's time-out has passed.
func receive(fd int, buf []byte, from *syscall.RawSockaddrInet4) (int, error) {
	for {
		length := uint32(syscall.SizeofSockaddrInet4)
		n, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0,
			uintptr(unsafe.Pointer(from)), uintptr(unsafe.Pointer(&length)))
		switch e {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, nil
		default:
			return 0, os.NewSyscallError("recvfrom", e)
		}
	}
}

func send(fd int, data []byte, to *syscall.RawSockaddrInet4) error {
	_, _, e := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)), 0,
		uintptr(unsafe.Pointer(to)), syscall.SizeofSockaddrInet4)
	if e != 0 {
		return os.NewSyscallError("sendto", e)
	}
	return nil
}

// floorServer is one node. It runs until it is killed.
func floorServer(path string) error {
	own()
	file, err := prepare(path)
	if err != nil {
		return err
	}
	s, port, err := loopback()
	if err != nil {
		return err
	}
	fmt.Printf("ready at %d\n", port)
	raw := make([]byte, 2*blockBytes)
	pad := (blockBytes - int(uintptr(unsafe.Pointer(&raw[0]))%blockBytes)) % blockBytes
	block := raw[pad : pad+blockBytes]
	buf := make([]byte, 2048)
	var from syscall.RawSockaddrInet4
	for off := int64(0); ; off = (off + blockBytes) % floorBytes {
		n, err := receive(s, buf, &from)
		if err != nil {
			return err
		}
		copy(block, buf[:n])
		if n, _, e := syscall.RawSyscall6(syscall.SYS_PWRITE64, uintptr(file), uintptr(unsafe.Pointer(&block[0])), blockBytes, uintptr(off), 0, 0); e != 0 || n != blockBytes {
			return fmt.Errorf("write of %s: %d bytes, %w", path, n, e)
		}
		if err := send(s, buf[:answerBytes], &from); err != nil {
			return err
		}
	}
}

// floorClient makes rounds against the nodes at ports, a quorum of which it waits for.
func floorClient(quorum string, ports []string) error {
	own()
	q, err := strconv.Atoi(quorum)
	if err != nil {
		return err
	}
	var to []syscall.RawSockaddrInet4
	for _, p := range ports {
		port, err := strconv.Atoi(p)
		if err != nil {
			return err
		}
		to = append(to, rawAddress(port))
	}
	s, _, err := loopback()
	if err != nil {
		return err
	}
	if err := syscall.SetsockoptTimeval(s, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Sec: 1}); err != nil {
		return err
	}
	var m [requestBytes]byte
	var from syscall.RawSockaddrInet4
	buf := make([]byte, 2048)
	id := uint64(0)
	ask := func() error {
		binary.LittleEndian.PutUint64(m[:], id)
		for i := range to {
			if err := send(s, m[:], &to[i]); err != nil {
				return err
			}
		}
		return nil
	}
	return rounds(func() error {
		id++
		if err := ask(); err != nil {
			return err
		}
		for got, tries := 0, 0; got < q; {
			n, err := receive(s, buf, &from)
			if err != nil {
				return err
			}
			if n >= 8 && binary.LittleEndian.Uint64(buf) == id {
				got++
			}
			if n > 0 {
				continue
			}
			// The answers of a server that was behind have filled the socket, and those that count were dropped.
			if tries++; tries > 10 {
				return errors.New("the floor's servers do not answer")
			}
			id++
			got = 0
			if err := ask(); err != nil {
				return err
			}
		}
		return nil
	})
}

// blockTime ends a block early, so that a run takes minutes on a busy machine too.
const blockTime = 2 * time.Second

// rounds is the loop of a client process: for every line with a number it makes as many rounds, or fewer when blockTime is over,
// and writes their times in nanoseconds as one line, until its input ends.
func rounds(one func() error) error {
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	for in.Scan() {
		count, err := strconv.Atoi(strings.TrimSpace(in.Text()))
		if err != nil {
			return err
		}
		took := make([]int64, 0, count)
		for first := time.Now(); len(took) < count && time.Since(first) < blockTime; {
			began := time.Now()
			if err := one(); err != nil {
				return err
			}
			took = append(took, time.Since(began).Nanoseconds())
		}
		for _, t := range took {
			fmt.Fprint(out, t, " ")
		}
		fmt.Fprintln(out)
		if err := out.Flush(); err != nil {
			return err
		}
	}
	if err := in.Err(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
