package main

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/btrlog/btrlog"
)

func someExport(end bool) []byte {
	b := exportHead(77)
	for i := range 5 {
		data := []byte(strings.Repeat("x", i*10))
		b = appendExport(b, btrlog.LSN(3+i), 2, uint32(len(data)), data)
	}
	if end {
		b = appendExport(b, 7, 0, exportEnd, nil)
	}
	return b
}

// The bytes of an export are those of its format's page. -rewrite writes the file, whose difference is then reviewed.
func TestExportGolden(t *testing.T) {
	const file = "testdata/export.golden"
	got := hex.Dump(someExport(true))
	if f := flag.Lookup("rewrite"); f != nil && f.Value.String() == "true" {
		if err := os.MkdirAll("testdata", 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("an export is\n%s\nand was\n%s", got, want)
	}
}

// An export that is followed by anything is not whole: what follows was not looked at.
func TestExportFollowedBySomething(t *testing.T) {
	whole := someExport(true)
	for _, more := range [][]byte{{0}, whole} {
		s, err := readExport(bytes.NewReader(append(bytes.Clone(whole), more...)), nil)
		if err != nil || s.Whole || s.LastGood == nil || s.Records != 5 || s.Good != int64(len(whole)-exportFrameBytes) {
			t.Errorf("followed by %d bytes: %+v, %v", len(more), s, err)
		}
	}
}

// Of every cut the whole records are found; nothing that follows damage is given out.
func TestExportCutAndDamaged(t *testing.T) {
	whole := someExport(true)
	if s, err := readExport(bytes.NewReader(whole), nil); err != nil || !s.Whole || s.Records != 5 || s.Last != 7 || s.ID != 77 || s.Bytes != 100 {
		t.Fatalf("%+v, %v", s, err)
	}
	for n := exportHeadBytes; n < len(whole); n++ {
		s, err := readExport(bytes.NewReader(whole[:n]), nil)
		if err != nil || s.Whole || s.Good > int64(n) {
			t.Fatalf("cut at %d: %+v, %v", n, s, err)
		}
		if again, err := readExport(bytes.NewReader(whole[:s.Good]), nil); err != nil || again.Records != s.Records || again.LastGood != nil {
			t.Fatalf("cut at %d, then at %d: %+v, %v", n, s.Good, again, err)
		}
	}
	for i := range whole {
		bent := bytes.Clone(whole)
		bent[i] ^= 4
		s, err := readExport(bytes.NewReader(bent), func(r btrlog.Record) error {
			if want := strings.Repeat("x", 10*int(r.LSN-3)); string(r.Data) != want {
				t.Errorf("byte %d changed: LSN %d is %q", i, r.LSN, r.Data)
			}
			return nil
		})
		if err == nil && s.Whole {
			t.Errorf("byte %d changed, and nobody noticed", i)
		}
	}
}

// No input makes the reader fail in a way of its own or believe in more than there is.
func FuzzReadExport(f *testing.F) {
	f.Add(someExport(true))
	f.Add(someExport(false))
	f.Add([]byte(exportMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := readExport(bytes.NewReader(b), nil)
		if err == nil && (s.Good > int64(len(b)) || s.Good < exportHeadBytes) {
			t.Fatalf("%+v of %d bytes", s, len(b))
		}
	})
}

// To repeat the command is proposed where it helps, and as it helps.
func TestExportAdvice(t *testing.T) {
	file, out := &exportFlags{output: "f"}, &exportFlags{}
	failed := func(kind error, to btrlog.LSN, epoch btrlog.Epoch) error {
		return fmt.Errorf("more: %w", &btrlog.Error{Kind: kind, Op: "scan", Log: "l", From: 5, To: to, Epoch: epoch})
	}
	for _, c := range []struct {
		o    *exportFlags
		err  error
		want string
	}{
		{file, failed(btrlog.ErrTrimmed, 9, 0), "they were removed on purpose; repeated with --resume --from 10 the command goes on behind them"},
		{out, failed(btrlog.ErrTrimmed, 9, 0), "they were removed on purpose; repeated with --from 10 the command goes on behind them"},
		{file, failed(btrlog.ErrTrimmed, 20, 0), "they were removed on purpose"},
		{file, failed(btrlog.ErrDataLoss, 9, 3), "there is no way to get them; repeated with --resume --from 10 the command goes on behind them"},
		{file, failed(btrlog.ErrUnavailable, 5, 0), "repeat the command with --resume"},
		{file, errInterrupted, "repeat the command with --resume"},
		{file, &btrlog.Error{Kind: btrlog.ErrNotFound, Op: "scan", Log: "l"}, ""},
		{out, errInterrupted, ""},
	} {
		if got := c.o.advise(c.err, 20); got != c.want {
			t.Errorf("%v with --output %q: %q, want %q", c.err, c.o.output, got, c.want)
		}
	}
}
