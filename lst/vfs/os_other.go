//go:build !linux

package vfs

import "os"

// Elsewhere than on Linux the engine runs buffered: for development, not for
// production. DSync is emulated by a sync after each write.
func openOS(name string, mode int, flag Flag) (File, error) {
	if flag&Direct != 0 {
		return nil, ErrNoDirect
	}
	if flag&DSync != 0 {
		mode |= os.O_SYNC
	}
	f, err := os.OpenFile(name, mode, 0o644)
	if err != nil {
		return nil, err
	}
	return &osFile{f: f, fd: -1, block: 1}, nil
}

func dataSync(f *os.File) error { return f.Sync() }

func allocate(*os.File, int64) error { return ErrNotSupported }

func lockFile(f *os.File) error { return lockUnix(f) }

func (o *osFile) ReadAt(p []byte, off int64) (int, error)  { return o.f.ReadAt(p, off) }
func (o *osFile) WriteAt(p []byte, off int64) (int, error) { return o.f.WriteAt(p, off) }
