package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/btrlog/btrlog"
)

// gate is an output whose writes wait until they are let through.
type gate struct {
	open chan struct{}
	buf  bytes.Buffer
	err  error
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	if g.err != nil {
		return 0, g.err
	}
	return g.buf.Write(p)
}

// Records come out whole and in order while they are put in as fast as it goes, and a reader that is slow holds them back.
func TestOutput(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	out := newOutput(g, &recordForm{lines: true})
	var want bytes.Buffer
	record := bytes.Repeat([]byte("r"), outputBytes/3)
	held := make(chan error, 1)
	const n = 10
	for x := btrlog.LSN(1); x <= n; x++ {
		want.Write(record)
		want.WriteByte('\n')
	}
	go func() {
		for x := btrlog.LSN(1); x <= n; x++ {
			if err := out.put(t.Context(), btrlog.Record{LSN: x, Data: record}); err != nil {
				held <- err
				return
			}
		}
		held <- nil
	}()
	g.open <- struct{}{} // one write is let through; not all of the records fit behind it
	select {
	case err := <-held:
		t.Fatalf("all records were taken while the output takes none: %v", err)
	case g.open <- struct{}{}:
	}
	close(g.open)
	if err := <-held; err != nil {
		t.Fatal(err)
	}
	if last, err := out.finish(t.Context()); last != n || err != nil || !bytes.Equal(g.buf.Bytes(), want.Bytes()) {
		t.Errorf("printed up to LSN %d, %v, %d bytes of %d", last, err, g.buf.Len(), want.Len())
	}
}

// What the output does not take ends the command with what is certain; after a signal nobody waits for it long.
func TestOutputFails(t *testing.T) {
	full := errors.New("full")
	g := &gate{open: make(chan struct{}), err: full}
	close(g.open)
	out := newOutput(g, &recordForm{})
	if err := out.put(t.Context(), btrlog.Record{LSN: 7, Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if err := printed(t.Context(), out, nil, 7); !errors.Is(err, full) || err.Error() != "full; nothing was printed for certain" {
		t.Errorf("an output that fails: %v", err)
	}

	stuck := &gate{open: make(chan struct{})}
	defer close(stuck.open)
	ctx, cancel := context.WithCancel(t.Context())
	out = newOutput(stuck, &recordForm{})
	big := btrlog.Record{LSN: 1, Data: make([]byte, outputBytes)}
	for i := range 2 { // the first is being written, the second fills what may wait
		big.LSN = btrlog.LSN(i + 1)
		if err := out.put(ctx, big); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	err := out.put(ctx, big)
	for err == nil { // it went in beside the others
		err = out.put(ctx, big)
	}
	if !errors.Is(err, errInterrupted) {
		t.Errorf("put after a signal: %v", err)
	}
	if err := printed(ctx, out, nil, 1); !errors.Is(err, errNobodyReads) || err.Error() != fmt.Sprint(errNobodyReads, "; nothing was printed for certain") {
		t.Errorf("an output that nobody reads: %v", err)
	}
}
