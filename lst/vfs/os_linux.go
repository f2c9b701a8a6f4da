package vfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"
)

func openOS(name string, mode int, flag Flag) (File, error) {
	if flag&Direct != 0 {
		mode |= syscall.O_DIRECT
	}
	if flag&DSync != 0 && syncing {
		mode |= syscall.O_DSYNC
	}
	f, err := os.OpenFile(name, mode, 0o644)
	if err != nil {
		if flag&Direct != 0 && errors.Is(err, syscall.EINVAL) {
			// O_CREAT|O_DIRECT on a file system without direct I/O leaves the
			// empty file behind; the caller retries without Direct.
			if mode&os.O_EXCL != 0 {
				_ = os.Remove(name)
			}
			return nil, fmt.Errorf("%w: %s", ErrNoDirect, name)
		}
		return nil, err
	}
	o := &osFile{f: f, fd: int(f.Fd()), block: 1}
	if flag&Direct != 0 {
		o.block = directAlign(f)
	}
	if flag&(ReadOnly|Direct|DSync) == 0 && largeFolios(o.fd) {
		o.ready = len(zeros)
	}
	return o, nil
}

// zeros is what Ready writes: as much as one large folio holds. Measured by a program of
// writes of 2,240 bytes on ext4: 16 KiB gain less, 64 and 256 no more.
var zeros [32 << 10]byte

// ReadyBytes implements Readier.
func (o *osFile) ReadyBytes() int { return o.ready }

// Ready implements Readier.
func (o *osFile) Ready(off int64, n int) error {
	_, err := o.WriteAt(zeros[:n], off)
	return err
}

// largeFolios reports whether a write of many pages takes memory for all of them in one
// step: ext4 does since Linux 6.16. Where each page is taken by itself, as on tmpfs, to
// write zeros first would only be a second copy.
func largeFolios(fd int) bool {
	const ext4Magic = 0xef53
	var fs syscall.Statfs_t
	return atLeast(6, 16) && syscall.Fstatfs(fd, &fs) == nil && fs.Type == ext4Magic
}

// kernel is the version of the running kernel, zeros if it does not parse.
var kernel = sync.OnceValue(func() (v [2]int) {
	var u syscall.Utsname
	if syscall.Uname(&u) != nil {
		return v
	}
	i := 0
	for _, c := range u.Release {
		switch {
		case c >= '0' && c <= '9':
			v[i] = v[i]*10 + int(c-'0')
		case c == '.' && i == 0:
			i = 1
		default:
			return v
		}
	}
	return v
})

func atLeast(major, minor int) bool {
	v := kernel()
	return v[0] > major || v[0] == major && v[1] >= minor
}

// The system calls are made without os.File's own counting of users, which costs as
// much as a small read takes in memory. File says that Close comes after the last
// use; KeepAlive keeps the collector from closing a file that nobody has closed.

func (o *osFile) ReadAt(p []byte, off int64) (int, error) {
	got := 0
	for {
		n, err := syscall.Pread(o.fd, p[got:], off+int64(got))
		runtime.KeepAlive(o)
		if n > 0 {
			got += n
		}
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return got, &os.PathError{Op: "read", Path: o.f.Name(), Err: err}
		case got == len(p):
			return got, nil
		case n == 0:
			return got, io.EOF
		}
	}
}

func (o *osFile) WriteAt(p []byte, off int64) (int, error) {
	put := 0
	for {
		n, err := syscall.Pwrite(o.fd, p[put:], off+int64(put))
		runtime.KeepAlive(o)
		if n > 0 {
			put += n
		}
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return put, &os.PathError{Op: "write", Path: o.f.Name(), Err: err}
		case put == len(p):
			return put, nil
		case n == 0:
			return put, io.ErrUnexpectedEOF
		}
	}
}

// directAlign asks the kernel for the direct-I/O alignment (statx with
// STATX_DIOALIGN, Linux 6.1) and answers 4096 where it does not say.
func directAlign(f *os.File) int {
	const (
		atEmptyPath   = 0x1000
		statxDioAlign = 0x2000
		fallback      = 4096
	)
	var nr uintptr
	switch runtime.GOARCH {
	case "amd64":
		nr = 332
	case "arm64", "riscv64", "loong64":
		nr = 291
	default:
		return fallback
	}
	// struct statx is 256 bytes; stx_mask at 0, stx_dio_mem_align at 152,
	// stx_dio_offset_align at 156.
	var buf [256]byte
	var empty [1]byte
	_, _, e := syscall.Syscall6(nr, f.Fd(), uintptr(unsafe.Pointer(&empty[0])), atEmptyPath, statxDioAlign,
		uintptr(unsafe.Pointer(&buf[0])), 0)
	if e != 0 {
		return fallback
	}
	mask := *(*uint32)(unsafe.Pointer(&buf[0]))
	mem := int(*(*uint32)(unsafe.Pointer(&buf[152])))
	off := int(*(*uint32)(unsafe.Pointer(&buf[156])))
	align := max(mem, off, 512)
	if mask&statxDioAlign == 0 || off == 0 || align > 4096 || align&(align-1) != 0 {
		return fallback
	}
	return align
}

func dataSync(f *os.File) error {
	for syncing {
		err := syscall.Fdatasync(int(f.Fd()))
		if err != syscall.EINTR {
			if err != nil {
				return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
			}
			return nil
		}
	}
	return nil
}

func allocate(f *os.File, size int64) error {
	const keepSize = 1
	for {
		err := syscall.Fallocate(int(f.Fd()), keepSize, 0, size)
		switch err {
		case nil:
			return nil
		case syscall.EINTR:
		case syscall.EOPNOTSUPP, syscall.ENOSYS:
			return ErrNotSupported
		default:
			return &os.PathError{Op: "fallocate", Path: f.Name(), Err: err}
		}
	}
}

func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}
