package vfs

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"
	"syscall"
	"testing"
)

// conformance is what lst expects of any FS.
func conformance(t *testing.T, fsys FS, dir string) {
	t.Helper()
	if err := fsys.MkdirAll(dir + "/a/b"); err != nil {
		t.Fatal(err)
	}
	name := dir + "/a/b/f"
	if _, err := fsys.Open(name, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("open of an absent file: %v", err)
	}
	f, err := fsys.Create(name, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fsys.Create(name, 0); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("second create: %v", err)
	}
	if _, err := f.WriteAt([]byte("hello"), 7); err != nil {
		t.Fatal(err)
	}
	if err := f.Allocate(4096); err != nil && !errors.Is(err, ErrNotSupported) {
		t.Fatal(err)
	}
	if n, err := f.Size(); n != 12 || err != nil {
		t.Fatalf("size %d %v: Allocate must not change it", n, err)
	}
	b := make([]byte, 12)
	if n, err := f.ReadAt(b, 0); n != 12 || !bytes.Equal(b, []byte("\x00\x00\x00\x00\x00\x00\x00hello")) {
		t.Fatalf("read %d %q %v", n, b, err)
	}
	if err := errors.Join(f.Sync(), fsys.SyncDir(dir+"/a/b")); err != nil {
		t.Fatal(err)
	}
	r, err := fsys.Open(name, ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.WriteAt([]byte("x"), 0); err == nil {
		t.Fatal("a read-only file was written")
	}
	if err := fsys.Remove(name); err != nil {
		t.Fatal(err)
	}
	if n, _ := r.ReadAt(b, 0); n != 12 {
		t.Fatal("an open file is not readable after its removal")
	}
	if names, err := fsys.List(dir + "/a"); err != nil || !slices.Equal(names, []string{"b"}) {
		t.Fatalf("list: %v %v", names, err)
	}
	l, err := fsys.Lock(dir + "/LOCK")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fsys.Lock(dir + "/LOCK"); !errors.Is(err, ErrLocked) {
		t.Fatalf("second lock: %v", err)
	}
	if err := errors.Join(l.Close(), f.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	if l, err = fsys.Lock(dir + "/LOCK"); err != nil {
		t.Fatalf("lock after release: %v", err)
	}
	l.Close()
}

func TestConformance(t *testing.T) {
	conformance(t, OS, t.TempDir())
	conformance(t, NewMem(MemOptions{}), "/")
}

func TestCrashKeepsWhatWasSynced(t *testing.T) {
	kept, lost, torn := 0, 0, 0
	for seed := uint64(0); seed < 200; seed++ {
		m := NewMem(MemOptions{Seed: seed})
		if err := m.MkdirAll("/d"); err != nil {
			t.Fatal(err)
		}
		f, _ := m.Create("/d/f", 0)
		old := bytes.Repeat([]byte{1}, 4*SectorBytes)
		if _, err := f.WriteAt(old, 0); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), m.SyncDir("/d")); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(bytes.Repeat([]byte{2}, 4*SectorBytes), 0); err != nil {
			t.Fatal(err)
		}
		g, _ := m.Create("/d/g", DSync)
		if _, err := g.WriteAt([]byte("synced, but its name is not"), 0); err != nil {
			t.Fatal(err)
		}
		n := m.Crash()
		if _, err := f.WriteAt(old, 0); !errors.Is(err, ErrCrashed) {
			t.Fatalf("the old disk still works: %v", err)
		}
		got, err := n.ReadFile("/d/f")
		if err != nil || len(got) != len(old) {
			t.Fatalf("seed %d: a synced file is gone: %d bytes, %v", seed, len(got), err)
		}
		ones := 0
		for s := 0; s < 4; s++ {
			sec := got[s*SectorBytes : (s+1)*SectorBytes]
			if !bytes.Equal(sec, bytes.Repeat(sec[:1], SectorBytes)) || sec[0] < 1 || sec[0] > 2 {
				t.Fatalf("seed %d: a sector is mixed", seed)
			}
			ones += int(2 - sec[0])
		}
		switch ones {
		case 0:
			kept++
		case 4:
			lost++
		default:
			torn++
		}
		if b, err := n.ReadFile("/d/g"); err == nil && string(b) != "synced, but its name is not" {
			t.Fatalf("seed %d: DSync write lost its bytes: %q", seed, b)
		}
	}
	if kept == 0 || lost == 0 || torn == 0 {
		t.Fatalf("kept %d lost %d torn %d: the disk is not random enough", kept, lost, torn)
	}
}

func TestSameSeedSameBytes(t *testing.T) {
	run := func() []byte {
		m := NewMem(MemOptions{Seed: 42})
		_ = m.MkdirAll("/d")
		f, _ := m.Create("/d/f", 0)
		_ = m.SyncDir("/d")
		for i := int64(0); i < 50; i++ {
			_, _ = f.WriteAt(bytes.Repeat([]byte{byte(i)}, 700), i*600)
			if i == 20 {
				_ = f.Sync()
			}
		}
		b, _ := m.Crash().ReadFile("/d/f")
		return b
	}
	if a, b := run(), run(); !bytes.Equal(a, b) || len(a) == 0 {
		t.Fatal("two runs with one seed differ")
	}
}

func TestFaultsAndCapacity(t *testing.T) {
	m := NewMem(MemOptions{CapacityBytes: 1000})
	_ = m.MkdirAll("/d")
	f, _ := m.Create("/d/f", 0)
	if err := f.Allocate(900); err != nil {
		t.Fatal(err)
	}
	g, _ := m.Create("/d/g", 0)
	if _, err := g.WriteAt(make([]byte, 101), 0); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("write beyond the capacity: %v", err)
	}
	if _, err := f.WriteAt(make([]byte, 900), 0); err != nil {
		t.Fatalf("write into a reservation: %v", err)
	}
	m.Inject(Fault{Ops: OpWrite, Path: "/d/f", After: 1, Times: 1, Err: syscall.EIO, ShortBytes: 3})
	if _, err := f.WriteAt([]byte("abcdef"), 0); err != nil {
		t.Fatal(err)
	}
	if n, err := f.WriteAt([]byte("ABCDEF"), 0); n != 3 || !errors.Is(err, syscall.EIO) {
		t.Fatalf("injected fault: %d %v", n, err)
	}
	if b, _ := m.ReadFile("/d/f"); string(b[:6]) != "ABCdef" {
		t.Fatalf("short write left %q", b[:6])
	}
	if _, err := f.WriteAt([]byte("ABCDEF"), 0); err != nil {
		t.Fatalf("the fault did not end: %v", err)
	}
	m.CrashAfter(1)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); !errors.Is(err, ErrCrashed) || !m.Crashed() {
		t.Fatalf("crash point: %v", err)
	}
}
