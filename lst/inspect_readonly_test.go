package lst

import (
	"fmt"
	"io"
	"testing"

	"github.com/btrlog/btrlog/lst/vfs"
)

// watchFS notes every call that changes something, or could.
type watchFS struct {
	vfs.FS
	changes []string
}

func (w *watchFS) note(what, name string) { w.changes = append(w.changes, what+" "+name) }

func (w *watchFS) MkdirAll(dir string) error {
	w.note("mkdir", dir)
	return w.FS.MkdirAll(dir)
}

func (w *watchFS) Create(name string, f vfs.Flag) (vfs.File, error) {
	w.note("create", name)
	return w.FS.Create(name, f)
}

func (w *watchFS) Open(name string, f vfs.Flag) (vfs.File, error) {
	if f&vfs.ReadOnly == 0 {
		w.note("open for writing", name)
	}
	return w.FS.Open(name, f)
}

func (w *watchFS) Remove(name string) error {
	w.note("remove", name)
	return w.FS.Remove(name)
}

func (w *watchFS) SyncDir(dir string) error {
	w.note("sync", dir)
	return w.FS.SyncDir(dir)
}

func (w *watchFS) Lock(name string) (io.Closer, error) {
	w.note("lock", name)
	return w.FS.Lock(name)
}

// L15, L16: read-only openers and the tools never ask for a change, on healthy, torn, cut and damaged stores; each answers
// or fails with an error.
func TestReadOnlyChangesNothing(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		s := buildSmall(t, mode)
		names, _ := s.disk.List("/db")
		opened := 0
		for _, name := range names {
			data, _ := s.disk.ReadFile("/db/" + name)
			for n := 0; n <= len(data); n += 1 + len(data)/16 {
				disk := s.disk.Clone()
				disk.WriteFile("/db/"+name, data[:n])
				w := &watchFS{FS: disk}
				opt := s.opt
				opt.FS = w
				if readEverything(opt) == nil {
					opened++
				}
				if len(w.changes) > 0 {
					t.Fatalf("mode %d: %s cut to %d bytes: %v", mode, name, n, w.changes)
				}
				if got, _ := disk.ReadFile("/db/" + name); len(got) != n {
					t.Fatalf("mode %d: %s cut to %d bytes has %d now", mode, name, n, len(got))
				}
			}
		}
		if opened == 0 {
			t.Errorf("mode %d: no store opened", mode)
		}
	}
}

// readEverything opens a store in each way that does not write.
func readEverything(opt Options) error {
	in, err := Inspect("/db", opt)
	if err != nil {
		return err
	}
	defer in.Close()
	if _, err := in.Scan(nil); err != nil {
		return err
	}
	r, err := OpenReadOnly("/db", opt)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Refresh(); err != nil {
		return err
	}
	points, err := r.Snapshots(0)
	if err != nil {
		return err
	}
	for _, p := range points {
		then, err := r.At(p.Number)
		if err != nil {
			return fmt.Errorf("snapshot %d: %w", p.Number, err)
		}
		defer then.Close()
	}
	v := r.View()
	v.KVs(nil, func(_, _ []byte) bool { return true })
	v.Streams(nil, func(id StreamID) bool {
		it := v.Range(id, 0, 1<<63)
		for it.Next() {
			continue
		}
		if err == nil {
			err = it.Err()
		}
		return true
	})
	return err
}
