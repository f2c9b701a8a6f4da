package lst

import (
	"sync/atomic"

	"github.com/btrlog/btrlog/lst/vfs"
)

// countFS counts what a restart asks of the disk, for RecoveryReport.
type countFS struct {
	vfs.FS
	calls atomic.Int64
	bytes atomic.Int64
}

func (c *countFS) Open(name string, flag vfs.Flag) (vfs.File, error) {
	c.calls.Add(1)
	f, err := c.FS.Open(name, flag)
	if err != nil {
		return nil, err
	}
	return &countFile{File: f, c: c}, nil
}

func (c *countFS) List(dir string) ([]string, error) {
	c.calls.Add(1)
	return c.FS.List(dir)
}

type countFile struct {
	vfs.File
	c *countFS
}

func (f *countFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	f.c.calls.Add(1)
	f.c.bytes.Add(int64(n))
	return n, err
}

func (f *countFile) Size() (int64, error) {
	f.c.calls.Add(1)
	return f.File.Size()
}

func (f *countFile) Close() error {
	f.c.calls.Add(1)
	return f.File.Close()
}
