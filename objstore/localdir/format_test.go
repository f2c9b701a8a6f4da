package localdir

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/objstore"
)

// The bytes of a file are a format: a directory written today must be readable by every later version.
func TestGoldenFile(t *testing.T) {
	h := newHeader("logs/orders.json", []byte("the body"), map[string]string{"clsn": "42", "a": ""}, time.Unix(1_800_000_000, 7))
	h.writeID = 0x1122334455667788
	tag, err := hex.DecodeString("3066176185fcca35d26c1b1612a91e78")
	if copy(h.tag[:], tag); err != nil {
		t.Fatal(err)
	}
	got := append(h.encode(), "the body"...)
	text, err := os.ReadFile("testdata/object.hex")
	if err != nil {
		t.Fatalf("%v; it should hold\n%s", err, hex.Dump(got))
	}
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("an object's file differs from testdata/object.hex (%v):\n%s", err, hex.Dump(got))
	}
	s := open(t, t.TempDir())
	if err := s.makeDir(s.dirOf(s.path(h.key))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.path(h.key), want, fileMode); err != nil {
		t.Fatal(err)
	}
	body, info, err := objstore.ReadAll(t.Context(), s, h.key, 100)
	if err != nil || string(body) != "the body" || info.Metadata["clsn"] != "42" || len(info.Metadata) != 2 || info.Modified.UnixNano() != 1_800_000_000_000_000_007 {
		t.Fatalf("golden file read as %q, %+v, %v", body, info, err)
	}
}
