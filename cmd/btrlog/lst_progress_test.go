package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog/lst"
)

// writerFunc is called for each write.
type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// A scan shows how far it is and takes the line away; one that is interrupted says that it knows nothing of the rest. The clock is the
// test's, so that neither depends on how fast the scan is.
func TestLSTProgress(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s, _, err := lst.Open(dir, lst.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var b lst.Batch
	for seq := range uint64(1000) {
		b.Reset()
		b.Append(lst.StreamID{1}, seq, []byte("12345678"))
		if _, err := s.Commit(&b, lst.Acknowledged); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	in, err := inspect(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var now time.Time
	shown := func(w writerFunc) *progress {
		now = time.Unix(1, 0)
		clock := func() time.Time { now = now.Add(progressEvery); return now } // a line is due at each call
		return &progress{w: w, prefix: "verified", total: in.TotalBytes(), begin: now, next: now, clock: clock}
	}

	var screen bytes.Buffer
	rep, err := scanShowing(t.Context(), in, shown(func(p []byte) { screen.Write(p) }))
	if err != nil || rep.Records != 1000 || rep.DamageCount != 0 {
		t.Errorf("scan: %+v, %v", rep, err)
	}
	if got := screen.String(); !strings.HasPrefix(got, "\rverified ") || !strings.Contains(got, " records/s, ") || !strings.Contains(got, "%, ") ||
		!strings.Contains(got, " left") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("progress: %q", got)
	}

	screen.Reset()
	ctx, interrupt := context.WithCancel(t.Context())
	rep, err = scanShowing(ctx, in, shown(func(p []byte) { screen.Write(p); interrupt() }))
	if err == nil || !strings.Contains(err.Error(), "interrupted before the end; nothing is known of what was not read") {
		t.Errorf("interrupted: %+v, %v", rep, err)
	}
	if got := screen.String(); strings.Count(got, "verified ") != 1 || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("progress of an interrupted scan: %q", got)
	}
}
