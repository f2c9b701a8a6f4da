package vfs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// A call that comes after Close fails: it does not reach the file that has the
// descriptor's number by then.
func TestClosedFileReachesNoOther(t *testing.T) {
	dir := t.TempDir()
	a, err := OS.Create(filepath.Join(dir, "a"), 0)
	if err != nil {
		t.Fatal(err)
	}
	number := a.Fd()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	var b File
	for i := 0; b == nil || b.Fd() != number; i++ {
		if i == 100 {
			t.Fatal("the number is not given out again")
		}
		if b, err = OS.Create(filepath.Join(dir, string(rune('b'+i))), 0); err != nil {
			t.Fatal(err)
		}
		defer b.Close()
	}
	if _, err := b.WriteAt([]byte("mine"), 0); err != nil {
		t.Fatal(err)
	}
	if n, err := a.WriteAt([]byte("late"), 0); err == nil {
		t.Errorf("write to a closed file: %d bytes, no error", n)
	}
	if n, err := a.ReadAt(make([]byte, 4), 0); err == nil {
		t.Errorf("read of a closed file: %d bytes, no error", n)
	}
	if err := a.Sync(); err == nil {
		t.Error("sync of a closed file: no error")
	}
	got := make([]byte, 4)
	if _, err := b.ReadAt(got, 0); err != nil || string(got) != "mine" {
		t.Errorf("the other file holds %q, %v", got, err)
	}
}

// What positional calls answer at the edges is what os.File answers.
func TestPositionalCallsAreThoseOfOS(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS.Create(name, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if n, err := f.WriteAt(data, 100); n != len(data) || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
	ref, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Close()
	size := int64(100 + len(data))
	if got, err := f.Size(); got != size || err != nil {
		t.Fatalf("size %d, %v", got, err)
	}
	for _, off := range []int64{0, 1, 99, size - 1, size, size + 1, -1} {
		for _, n := range []int{0, 1, 100, len(data), len(data) + 200} {
			p, q := make([]byte, n), make([]byte, n)
			gn, gerr := f.ReadAt(p, off)
			wn, werr := ref.ReadAt(q, off)
			if gn != wn || (gerr == nil) != (werr == nil) || errors.Is(gerr, io.EOF) != errors.Is(werr, io.EOF) || !bytes.Equal(p, q) {
				if off < 0 && n == 0 {
					continue // nothing was asked of the kernel
				}
				t.Errorf("read of %d at %d: %d, %v; want %d, %v", n, off, gn, gerr, wn, werr)
			}
		}
	}
	if _, err := f.WriteAt([]byte("x"), -1); err == nil {
		t.Error("write in front of the file: no error")
	}
	ro, err := OS.Open(name, ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	var perr *os.PathError
	if n, err := ro.WriteAt([]byte("x"), 0); n != 0 || !errors.As(err, &perr) || perr.Path != name {
		t.Errorf("write to a file that is open for reading: %d, %v", n, err)
	}
}

// Bytes made ready are zeros at that place and nothing else; only files written through
// the page cache offer it.
func TestReadyWritesZeros(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS.Create(name, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("before"), 0); err != nil {
		t.Fatal(err)
	}
	want := []byte("before")
	if r, ok := f.(Readier); ok && r.ReadyBytes() > 0 {
		if n := r.ReadyBytes(); n&(n-1) != 0 {
			t.Errorf("unit of %d bytes", n)
		}
		if err := r.Ready(6, 1000); err != nil {
			t.Fatal(err)
		}
		want = append(want, make([]byte, 1000)...)
	}
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file holds %d bytes, want %d; %v", len(got), len(want), err)
	}
	for _, flag := range []Flag{ReadOnly, DSync} {
		o, err := OS.Open(name, flag)
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		if r, ok := o.(Readier); ok && r.ReadyBytes() != 0 {
			t.Errorf("flag %d: %d bytes ready at a time", flag, r.ReadyBytes())
		}
	}
}
