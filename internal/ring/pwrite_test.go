//go:build linux && (amd64 || arm64)

package ring

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestWrites(t *testing.T) { eachEngine(t, testWrites) }

func testWrites(t *testing.T) {
	s := listen(t, "127.0.0.1:0", Config{})
	path := filepath.Join(t.TempDir(), "f")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ro, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	ws := []*Write{
		{FD: int(f.Fd()), Buf: []byte("world"), Off: 6, User: 1},
		{FD: int(f.Fd()), Buf: []byte("hello "), Off: 0, User: 2},
		{FD: int(ro.Fd()), Buf: []byte("no"), Off: 3, User: 3},
	}
	for _, w := range ws {
		s.Submit(w)
	}
	left := map[uint64]*Write{1: ws[0], 2: ws[1], 3: ws[2]}
	for len(left) > 0 {
		if ev, err := s.Wait(patience); ev != Done || err != nil {
			t.Fatalf("%v, %v", ev, err)
		}
		for _, w := range s.Completed() {
			if w != left[w.User] || (w.Err != nil) != (w.User == 3) {
				t.Errorf("write %+v", w)
			}
			delete(left, w.User)
		}
	}
	if !errors.Is(ws[2].Err, syscall.EBADF) || !strings.Contains(ws[2].Err.Error(), "offset 3") {
		t.Errorf("write to a file opened for reading: %v", ws[2].Err)
	}
	if len(s.Completed()) != 0 {
		t.Error("completed twice")
	}
	if got, err := os.ReadFile(path); string(got) != "hello world" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestPwriteGoesOnAfterAShortWrite lets the file size limit cut a write short: the rest is tried, and its error reported.
func TestPwriteGoesOnAfterAShortWrite(t *testing.T) {
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	limit := was
	limit.Cur = 5000
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	err = Pwrite(int(f.Fd()), make([]byte, 8192), 0)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, syscall.EFBIG) || !strings.Contains(err.Error(), "5000 done") {
		t.Errorf("got %v, want 5000 bytes done and then EFBIG", err)
	}
}
