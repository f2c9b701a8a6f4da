package lst

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/btrlog/btrlog/lst/vfs"
)

// heldFS notes descriptors that are closed under a call, and lets a test hold calls.
type heldFS struct {
	vfs.FS
	mu     sync.Mutex
	broken []string
	write  func() error // before each write to a segment
	sync   func()       // within each sync of one
	reads  atomic.Int64
}

func (h *heldFS) wrap(f vfs.File, err error, name string) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &heldFile{File: f, fs: h, name: name}, nil
}

func (h *heldFS) Create(name string, flag vfs.Flag) (vfs.File, error) {
	f, err := h.FS.Create(name, flag)
	return h.wrap(f, err, name)
}

func (h *heldFS) Open(name string, flag vfs.Flag) (vfs.File, error) {
	f, err := h.FS.Open(name, flag)
	return h.wrap(f, err, name)
}

func (h *heldFS) hooks() (func() error, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.write, h.sync
}

func (h *heldFS) hold(write func() error, sync func()) {
	h.mu.Lock()
	h.write, h.sync = write, sync
	h.mu.Unlock()
}

type heldFile struct {
	vfs.File
	fs    *heldFS
	name  string
	calls atomic.Int32
	shut  atomic.Bool
}

func (f *heldFile) use(what string) func() {
	f.calls.Add(1)
	if f.shut.Load() {
		f.fs.note(what + " of closed " + f.name)
	}
	return func() { f.calls.Add(-1) }
}

func (h *heldFS) note(what string) {
	h.mu.Lock()
	h.broken = append(h.broken, what)
	h.mu.Unlock()
}

func (f *heldFile) ReadAt(p []byte, off int64) (int, error) {
	defer f.use("read")()
	f.fs.reads.Add(1)
	return f.File.ReadAt(p, off)
}

func (f *heldFile) WriteAt(p []byte, off int64) (int, error) {
	defer f.use("write")()
	if w, _ := f.fs.hooks(); w != nil {
		if err := w(); err != nil {
			return 0, err
		}
	}
	return f.File.WriteAt(p, off)
}

func (f *heldFile) Sync() error {
	defer f.use("sync")()
	if _, s := f.fs.hooks(); s != nil {
		s()
	}
	return f.File.Sync()
}

func (f *heldFile) Close() error {
	f.shut.Store(true)
	if f.calls.Load() > 0 {
		f.fs.note("close of " + f.name + " while it is used")
	}
	return f.File.Close()
}

func (h *heldFS) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.broken {
		t.Error(b)
	}
}

func heldStore(t *testing.T) (*heldFS, *Store) {
	h := &heldFS{FS: vfs.NewMem(vfs.MemOptions{Seed: 9})}
	s := mustOpen(t, "/db", Options{FS: h, SegmentBytes: 64 << 10})
	for s.Stats().SpareReady == false {
		runtime.Gosched()
	}
	appendOne(t, s, sid(1), 0, []byte("x"), Acknowledged)
	return h, s
}

// A commit that begins while Close syncs keeps its descriptor.
func TestCloseUnderCommit(t *testing.T) {
	h, s := heldStore(t)
	syncing, goOn, writing, written := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once, wonce sync.Once
	h.hold(func() error { wonce.Do(func() { close(writing) }); <-written; return nil },
		func() { once.Do(func() { close(syncing) }); <-goOn })
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-syncing
	done := make(chan struct{})
	go func() {
		defer close(done)
		var b Batch
		b.Append(sid(1), 1, []byte("late"))
		_, _ = s.Commit(&b, Acknowledged) // it may be in or not
	}()
	<-writing
	close(goOn)
	if err := <-closed; !errors.Is(err, ErrInvalid) {
		t.Errorf("Close with a write in flight: %v", err)
	}
	close(written)
	<-done
	h.check(t)
}

// A Sync that is under way keeps its descriptors when a store that has stopped is
// closed.
func TestCloseUnderSync(t *testing.T) {
	h, s := heldStore(t)
	syncing, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h.hold(func() error { return errors.New("the device is gone") }, func() { once.Do(func() { close(syncing) }); <-goOn })
	synced := make(chan error, 1)
	go func() { synced <- s.Sync() }()
	<-syncing
	var b Batch
	b.Append(sid(1), 1, []byte("fails"))
	if _, err := s.Commit(&b, Acknowledged); err == nil {
		t.Fatal("the write was meant to fail")
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-s.finished // Close is about to release what there is
	for range 10_000 {
		runtime.Gosched()
	}
	close(goOn)
	<-synced
	<-closed
	h.check(t)
}

// Commits, forced ones too, syncs, reads and rolls, and a Close in the midst of them:
// no descriptor is closed while anybody uses it.
func TestCloseInTheMidst(t *testing.T) {
	for round := range 30 {
		h, s := heldStore(t)
		var wg sync.WaitGroup
		started := make(chan struct{}, 8)
		for k := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				var b Batch
				for i := uint64(1); ; i++ {
					b.Reset()
					b.Append(sid(10+k), i, make([]byte, 3000))
					if _, err := s.Commit(&b, Durability(uint64(k)&i&1)); err != nil {
						return
					}
					if _, err := s.View().Get(sid(10+k), 1+i/2, nil); err != nil && !errors.Is(err, ErrClosed) {
						t.Error(err)
						return
					}
					if i == uint64(10+round) {
						started <- struct{}{}
					}
				}
			}()
		}
		<-started
		_ = s.Close() // with an error if writes were in flight
		wg.Wait()
		h.check(t)
	}
}

// Leaves are read back within a bound, for as long as the store is open: those read
// last stay in memory, however many were read before.
func TestLeavesReadBack(t *testing.T) {
	was := cachedBytes
	cachedBytes = 16 << 10
	defer func() { cachedBytes = was }()
	h := &heldFS{FS: vfs.NewMem(vfs.MemOptions{Seed: 10})}
	s := mustOpen(t, "/db", Options{FS: h, SegmentBytes: 1 << 20, Inline: true})
	const leaves = 150
	var b Batch
	for i := range uint64(leaves * leafSlots) {
		b.Append(sid(1), i, fmt.Append(nil, i))
		if b.Len() == 64 {
			if _, err := s.Commit(&b, Acknowledged); err != nil {
				t.Fatal(err)
			}
			b.Reset()
		}
	}
	v := s.View()
	get := func(seq uint64) (reads int64) {
		before := h.reads.Load()
		if got, err := v.Get(sid(1), seq, nil); err != nil || string(got) != fmt.Sprint(seq) {
			t.Fatalf("record %d is %q, %v", seq, got, err)
		}
		return h.reads.Load() - before
	}
	for range 3 {
		for l := range uint64(leaves - 2) {
			get(l * leafSlots)
			if n := get(l*leafSlots + 1); n != 0 {
				t.Fatalf("leaf %d: the second record takes %d reads, the leaf was just read", l, n)
			}
		}
	}
	kept := 0
	for _, l := range s.ix.byID.get(ptr(sid(1))).list() {
		if s := l.sealed.Load(); s != nil {
			if d := s.data.Load(); d != nil {
				kept += d.memory()
			}
		}
	}
	if kept == 0 || kept > cachedBytes {
		t.Errorf("%d bytes of leaves in memory, the bound is %d", kept, cachedBytes)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
