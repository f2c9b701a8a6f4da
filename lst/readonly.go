package lst

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
)

// Reader is a read-only opener of a store, in this or another process, beside a
// live writer or without one. It changes nothing in the directory, not one byte,
// and takes no lock (T7).
type Reader struct {
	dir   string
	opt   Options
	fixed bool       // at one snapshot
	mu    sync.Mutex // one Refresh at a time
	ix    atomic.Pointer[index]
	rep   atomic.Pointer[RecoveryReport]
}

// OpenReadOnly attaches to the newest state of the store in dir. A plain copy of
// the segment files opens as well.
func OpenReadOnly(dir string, opt Options) (*Reader, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Reader{dir: dir, opt: opt}
	if err := r.Refresh(); err != nil {
		return nil, err
	}
	return r, nil
}

const readerTries = 8

// Refresh moves on to the newest state. Views taken before keep the old one.
func (r *Reader) Refresh() error {
	if r.fixed {
		return fmt.Errorf("%w: this reader stays at snapshot %d", ErrInvalid, r.rep.Load().Snapshot)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	for try := 0; try < readerTries; try++ {
		ix := newIndex(newFileSet(r.opt.FS, r.dir, r.opt.MaxOpenFiles), nil)
		ix.attached = true
		rep := &RecoveryReport{}
		start := r.opt.Now()
		rec := &recovery{fs: r.opt.FS, dir: r.dir, ix: ix, readOnly: true, rep: rep, deferZeros: true}
		if err = rec.run(); err == nil {
			rep.Elapsed = r.opt.Now().Sub(start)
			if old := r.ix.Swap(ix); old != nil {
				old.files.closeAll()
			}
			r.rep.Store(rep)
			return nil
		}
		ix.files.closeAll()
		// A writer beside us appends, rolls and drops while we look: what reads as
		// damage or absence then is gone at the next look. Real damage stays.
		var c *Corruption
		if !errors.As(err, &c) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errDropped) {
			break
		}
	}
	return fmt.Errorf("lst: read-only open of %s: %w", r.dir, err)
}

// View reads the state of the last Refresh.
func (r *Reader) View() View { return View{r.ix.Load()} }

// Report is what the last Refresh found. It removed nothing.
func (r *Reader) Report() RecoveryReport { return *r.rep.Load() }

// Close releases the descriptors.
func (r *Reader) Close() error {
	r.ix.Load().files.close()
	return nil
}
