package sim

import (
	"io"

	"github.com/btrlog/btrlog/lst/vfs"
)

// disk is vfs.Mem with time between a forced write and its completion. The last sync of a commit stays pending until the
// driver says that it has completed (settle): a power cut in between keeps a random part of it, as of every write that
// was in flight. Anything the engine does after a sync waits for that sync on a real disk, so it settles it first; only
// the last one of a commit is ever pending.
type disk struct {
	*vfs.Mem
	pending func() error
	// lie leaves every sync out (a mutant): it reports success and makes nothing durable.
	lie bool
	// early removes files although what was written before is in flight, and until the next write (a mutant).
	early   bool
	unlinks bool
	ops     int // modifying operations of the current commit
}

func (d *disk) settle() error {
	if d.unlinks {
		return nil
	}
	f := d.pending
	d.pending = nil
	if f == nil || d.lie {
		return nil
	}
	return f()
}

// hold makes f, a sync, the pending one.
func (d *disk) hold(f func() error) error {
	d.ops++
	if err := d.settle(); err != nil {
		return err
	}
	d.pending = f
	return nil
}

func (d *disk) Create(name string, flag vfs.Flag) (vfs.File, error) {
	d.ops++
	if err := d.settle(); err != nil {
		return nil, err
	}
	f, err := d.Mem.Create(name, flag&^vfs.DSync)
	if err != nil {
		return nil, err
	}
	return &diskFile{f, d, flag}, nil
}

func (d *disk) Open(name string, flag vfs.Flag) (vfs.File, error) {
	f, err := d.Mem.Open(name, flag&^vfs.DSync)
	if err != nil {
		return nil, err
	}
	return &diskFile{f, d, flag}, nil
}

func (d *disk) Remove(name string) error {
	d.ops++
	if d.early {
		d.unlinks = true
		return d.Mem.Remove(name)
	}
	if err := d.settle(); err != nil {
		return err
	}
	return d.Mem.Remove(name)
}

func (d *disk) SyncDir(dir string) error {
	if d.unlinks {
		return d.Mem.SyncDir(dir)
	}
	return d.hold(func() error { return d.Mem.SyncDir(dir) })
}

func (d *disk) Lock(name string) (io.Closer, error) { return d.Mem.Lock(name) }

type diskFile struct {
	vfs.File
	d    *disk
	flag vfs.Flag
}

func (f *diskFile) WriteAt(p []byte, off int64) (int, error) {
	f.d.ops++
	f.d.unlinks = false
	if err := f.d.settle(); err != nil {
		return 0, err
	}
	n, err := f.File.WriteAt(p, off)
	if err == nil && f.flag&vfs.DSync != 0 {
		// O_DSYNC forces this write; syncing the whole file instead can only make more durable than was promised, and
		// such a file has no other unsynced writes.
		err = f.d.hold(f.File.Sync)
	}
	return n, err
}

func (f *diskFile) Sync() error { return f.d.hold(f.File.Sync) }

func (f *diskFile) Allocate(size int64) error {
	f.d.ops++
	return f.File.Allocate(size)
}
