package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
)

// OS is the operating system's file system.
var OS FS = osFS{}

type osFS struct{}

func (osFS) MkdirAll(dir string) error {
	dir = filepath.Clean(dir)
	if st, err := os.Stat(dir); err == nil {
		if !st.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: dir, Err: errors.New("exists and is not a directory")}
		}
		return nil
	}
	if parent := filepath.Dir(dir); parent != dir {
		if err := (osFS{}).MkdirAll(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Without this a power cut can take the whole new directory with everything
	// that was synced inside it.
	return (osFS{}).SyncDir(filepath.Dir(dir))
}

func (osFS) Create(name string, flag Flag) (File, error) {
	return openOS(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, flag)
}

func (osFS) Open(name string, flag Flag) (File, error) {
	mode := os.O_RDWR
	if flag&ReadOnly != 0 {
		mode = os.O_RDONLY
	}
	return openOS(name, mode, flag)
}

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) List(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	sort.Strings(names)
	return names, err
}

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

type osFile struct {
	f     *os.File
	fd    int
	block int
	ready int // see Readier
}

func (o *osFile) Sync() error    { return dataSync(o.f) }
func (o *osFile) BlockSize() int { return o.block }
func (o *osFile) Fd() uintptr    { return o.f.Fd() }

// Close forgets the descriptor: a call that comes too late must not reach the file
// that has the number by then, and one at the same time is seen by the race detector.
func (o *osFile) Close() error {
	o.fd = -1
	return o.f.Close()
}

func (o *osFile) Allocate(size int64) error { return allocate(o.f, size) }

func (o *osFile) Size() (int64, error) {
	st, err := o.f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
