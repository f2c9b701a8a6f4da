package localdir

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/btrlog/btrlog/objstore"
)

// A body that is written in pieces is whole, whatever its length.
func TestBodiesInPieces(t *testing.T) {
	s, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	random := rand.NewChaCha8([32]byte{7})
	for _, n := range []int{writeBytes - 1, writeBytes, writeBytes + 1, 3*writeBytes + 12345} {
		body := make([]byte, n)
		_, _ = random.Read(body)
		if _, err := s.Put(t.Context(), "key", body, nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
		r, _, err := s.Get(t.Context(), "key", objstore.Whole)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		r.Close()
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%d bytes: %d came back, %v", n, len(got), err)
		}
	}
}

// An error of a piece is one of the Put.
func TestPieceThatIsNotWritten(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := writeBody(f, 0, make([]byte, 2*writeBytes)); err == nil {
		t.Fatal("a closed file was written")
	}
}
