package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/btrlog/btrlog"
)

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 16 << 20: "16 MiB", 16<<20 + 1<<19: "16.5 MiB", 1<<63 - 1: "8 EiB"} {
		if got := humanBytes(n); got != want {
			t.Errorf("humanBytes(%d) is %q, want %q", n, got, want)
		}
	}
	for s, want := range map[string]int64{"0": 0, "17": 17, "17B": 17, "4KiB": 4096, "16MiB": 16 << 20, "7EiB": 7 << 60} {
		var b byteSize
		if err := b.Set(s); err != nil || int64(b) != want {
			t.Errorf("size %q is %d, %v; want %d", s, b, err, want)
		}
		if b != 0 && s != "17" && s != "17B" {
			var again byteSize
			if err := again.Set(b.String()); err != nil || again != b {
				t.Errorf("size %q is written as %q, which is %d, %v", s, b.String(), again, err)
			}
		}
	}
	for _, s := range []string{"", "x", "MiB", "-1", "1.5MiB", "1MB", "1mib", "8EiB", "99999999999999999999"} {
		var b byteSize
		if err := b.Set(s); err == nil {
			t.Errorf("size %q is taken for %d", s, b)
		}
	}
}

func TestProgressLine(t *testing.T) {
	for _, c := range []struct {
		records, bytes, total, count int64
		want                         string
	}{
		{1000, 1 << 20, 0, 0, "appended 1000 records, 1 MiB, 500 records/s, 512 KiB/s"},
		{1, 1 << 20, 4 << 20, 0, "appended 1 record, 1 MiB, 0 records/s, 512 KiB/s, 25%, 6s left"},
		{0, 0, 4 << 20, 0, "appended 0 records, 0 B, 0 records/s, 0 B/s"},
		{3, 1 << 20, 0, 12, "appended 3 records, 1 MiB, 2 records/s, 512 KiB/s, 25%, 6s left"},
		{12, 0, 0, 12, "appended 12 records, 0 B, 6 records/s, 0 B/s, 100%, 0s left"},
	} {
		p := progress{total: c.total, count: c.count}
		if got := progressLine("appended", c.records, c.bytes, p.share(c.records, c.bytes), 2*time.Second); got != c.want {
			t.Errorf("%+v gives %q", c, got)
		}
	}
}

func TestOneLine(t *testing.T) {
	err := errors.Join(errors.New("btrlog: a\r\nb"), errors.New("c: btrlog: d"))
	if got, want := oneLine(err.Error()), "a; b; c: d"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// cut reads all records through readBatches.
func cut(t *testing.T, in io.Reader, s splitter) ([]string, error) {
	full, empty := readBatches(t.Context(), in, s)
	var out []string
	for b := range full {
		if err := b.each(func(rec []byte) error { out = append(out, string(rec)); return nil }); err != nil {
			t.Fatal(err)
		}
		if b.err != nil {
			return out, b.err
		}
		empty <- b
	}
	t.Fatal("the input ended without saying so")
	return nil, nil
}

// Records come out as they went in, however the input is delivered, and across the sizes of buffers and batches.
func TestSplit(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var records []string
	for range 200 {
		n := r.IntN(100)
		if r.IntN(10) == 0 {
			n = r.IntN(200 << 10) // beyond the buffer of the reader, in sum beyond a batch
		}
		rec := make([]byte, n)
		for i := range rec {
			rec[i] = 'a' + byte(r.IntN(26))
		}
		records = append(records, string(rec))
	}
	all := strings.Join(records, "")
	var withLengths bytes.Buffer
	for _, rec := range records {
		withLengths.Write(binary.BigEndian.AppendUint32(nil, uint32(len(rec))))
		withLengths.WriteString(rec)
	}
	var thousands []string
	for i := 0; i < len(all); i += 1000 {
		thousands = append(thousands, all[i:min(i+1000, len(all))])
	}
	readers := map[string]func(io.Reader) io.Reader{
		"as it comes":    func(r io.Reader) io.Reader { return r },
		"half of a read": iotest.HalfReader,
		"end with data":  iotest.DataErrReader,
	}
	for _, c := range []struct {
		name string
		in   string
		s    splitter
		want []string
	}{
		{"lines", strings.Join(records, "\n") + "\n", lines{}, records},
		{"lines without the last end", strings.Join(append(records, "end"), "\n"), lines{}, append(records, "end")},
		{"chunks", all, chunks{1000}, thousands},
		{"length-prefixed", withLengths.String(), prefixed{}, records},
	} {
		for how, reader := range readers {
			got, err := cut(t, reader(strings.NewReader(c.in)), c.s)
			if !errors.Is(err, io.EOF) || strings.Join(got, "|") != strings.Join(c.want, "|") {
				t.Errorf("%s, %s: %d records, want %d; %v", c.name, how, len(got), len(c.want), err)
			}
		}
	}
}

// An error of the input comes behind the records before it, and is not taken for the end.
func TestSplitBrokenInput(t *testing.T) {
	broken := errors.New("broken")
	for _, s := range []splitter{lines{}, chunks{2}, prefixed{}} {
		got, err := cut(t, io.MultiReader(strings.NewReader("\x00\x00\x00\x00\n\n"), iotest.ErrReader(broken)), s)
		if !errors.Is(err, broken) || len(got) == 0 {
			t.Errorf("%T: %q, %v", s, got, err)
		}
	}
}

// whole says yes exactly when next gets a record out of what there is, without reading on.
func FuzzWhole(f *testing.F) {
	f.Add([]byte("a\nb"))
	f.Add([]byte("\x00\x00\x00\x01x"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, buf []byte) {
		for _, s := range []splitter{lines{}, chunks{5}, prefixed{}} {
			asked := false
			more := iotest.ErrReader(errors.New("asked for more"))
			rec, err := s.next(bufio.NewReaderSize(io.MultiReader(bytes.NewReader(buf), more), 1<<16), nil)
			asked = err != nil && strings.Contains(err.Error(), "asked for more")
			if s.whole(buf) && asked {
				t.Errorf("%T: %q is called whole, and more is read", s, buf)
			}
			if err == nil && !s.whole(buf) {
				t.Errorf("%T: %q is called not whole, and a record of %d bytes comes out", s, buf, len(rec))
			}
			if len(rec) > btrlog.MaxRecordBytes {
				t.Errorf("%T: a record of %d bytes", s, len(rec))
			}
		}
	})
}

// What takes long is announced; what does not take long is not.
func TestNotice(t *testing.T) {
	said := make(chan string, 1)
	w := writerFunc(func(p []byte) { said <- string(p) })
	done := noticeAfter(w, "preparing node n1 in /d", time.Nanosecond)
	select {
	case got := <-said:
		if got != "preparing node n1 in /d …\n" {
			t.Errorf("the notice is %q", got)
		}
	case <-time.After(time.Minute):
		t.Fatal("no notice within a minute")
	}
	done()
	noticeAfter(w, "quick", time.Hour)()
	if len(said) > 0 {
		t.Errorf("a notice of what was done in time: %q", <-said)
	}
	var notTerminal bytes.Buffer
	slowNotice(&notTerminal, "x")()
	stopped(&notTerminal)
	if notTerminal.Len() > 0 {
		t.Errorf("what is no terminal is told %q", notTerminal.String())
	}
}

// A node that runs with another disk needs no start: the advice names what must come first, and the command that adopts it.
func TestAdviceOnReplaced(t *testing.T) {
	for _, c := range []struct {
		missing, replaced []string
		want              string
	}{
		{[]string{"n1", "n2"}, nil, "start the missing nodes, then run the command again"},
		{[]string{"n1", "n2"}, []string{"n2"}, "start n1; then 'btrlog log replace orders --node n2=n2' adopts what was replaced"},
		{[]string{"n1", "n2"}, []string{"n1", "n2"}, "bring back one of the disks that the log knows of n1, n2; with enough of them " +
			"'btrlog log replace orders --node n1=n1 --node n2=n2' adopts what was replaced; if they are lost for good, see 'btrlog log recover --help'"},
	} {
		err := &btrlog.Error{Kind: btrlog.ErrUnavailable, Op: "open writer", Log: "orders", Missing: c.missing, Replaced: c.replaced}
		if got := advice(fmt.Errorf("around it: %w", err)); got != c.want {
			t.Errorf("missing %v, replaced %v: %q, want %q", c.missing, c.replaced, got, c.want)
		}
	}
}

// A backend that was left out at the build is not an unknown scheme.
func TestLeftOut(t *testing.T) {
	was := leftOut
	leftOut = map[string]string{"gs": "nogcs"}
	t.Cleanup(func() { leftOut = was })
	var usage *usageError
	if err := checkStoreURL("gs://bucket"); !errors.As(err, &usage) || !strings.Contains(err.Error(), "built without the backend for gs:// (build tag nogcs)") {
		t.Error(err)
	}
	if err := checkStoreURL("az://container"); err != nil {
		t.Error(err)
	}
}
