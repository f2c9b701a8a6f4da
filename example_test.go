package btrlog_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/btrlog/btrlog"
)

// The quick start: make a log, write, read.
func Example() {
	ctx := context.Background()
	client, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: "file:///var/lib/btrlog/store"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	if _, err := client.Create(ctx, "orders", btrlog.LogOptions{}); err != nil && !errors.Is(err, btrlog.ErrExists) {
		log.Fatal(err)
	}
	w, err := client.OpenWriter(ctx, "orders", btrlog.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	lsn, err := w.Append(ctx, []byte("order 1: three apples"))
	if err != nil {
		log.Fatal(err)
	}
	if err := w.Sync(ctx, lsn); err != nil { // a quorum of log nodes has it on disk
		log.Fatal(err)
	}

	r, err := client.OpenReader(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	for rec, err := range r.Scan(ctx, 0, lsn) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %s\n", rec.LSN, rec.Data)
	}
	if err := w.Close(ctx); err != nil {
		log.Fatal(err)
	}
}

// Print how far the log is committed.
func ExampleWriter_OnCommit() {
	ctx := context.Background()
	client, err := btrlog.Connect(ctx, btrlog.Config{Nodes: []string{"127.0.0.1:4460"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	w, err := client.OpenWriter(ctx, "wal", btrlog.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	w.OnCommit(func(lsn btrlog.LSN) { fmt.Println("committed up to", lsn) })
	for i := range 100 {
		if _, err := w.Append(ctx, fmt.Appendf(nil, "record %d", i)); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(ctx); err != nil { // waits for the commit of all, and for the last call
		log.Fatal(err)
	}
}

// A commit pipeline: transactions append and go on; one callback completes them, many at a time.
func ExampleWriter_OnCommit_pipeline() {
	type transaction struct {
		lsn  btrlog.LSN
		done chan<- error
	}
	ctx := context.Background()
	client, err := btrlog.Connect(ctx, btrlog.Config{Nodes: []string{"10.0.0.1:4460", "10.0.0.2:4460"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	w, err := client.OpenWriter(ctx, "wal", btrlog.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}

	pending := make(chan transaction, 1024) // in the order of their LSNs: one goroutine appends
	committed := make(chan btrlog.LSN, 1)
	w.OnCommit(func(lsn btrlog.LSN) {
		select {
		case <-committed: // the newer watermark says it all
		default:
		}
		committed <- lsn
	})
	go func() {
		for t := range pending {
			var err error
			for w.Committed() < t.lsn && err == nil {
				select {
				case <-committed:
				case <-w.Done():
					// What is not committed here is decided by whoever opens the log next: unknown, not failed.
					err = w.Err()
				}
			}
			t.done <- err
		}
	}()

	done := make(chan error, 1)
	lsn, err := w.Append(ctx, []byte("begin; update; commit"))
	if err != nil {
		log.Fatal(err) // no LSN was given out, nothing was written
	}
	pending <- transaction{lsn, done}
	if err := <-done; err != nil {
		log.Fatal(err)
	}
}

// Failover: a standby takes the log over. The old writer, if it still lives, is fenced; what it had acknowledged is there.
func ExampleClient_OpenWriter() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	standby, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: "file:///var/lib/btrlog/store", Name: "standby in zone b"})
	if err != nil {
		log.Fatal(err)
	}
	defer standby.Close()

	w, err := standby.OpenWriter(ctx, "wal", btrlog.WriterOptions{})
	var e *btrlog.Error
	switch {
	case errors.Is(err, btrlog.ErrFenced):
		return // another standby was faster
	case errors.As(err, &e) && e.Retryable:
		log.Printf("not yet, missing %v: %v", e.Missing, err)
		return
	case err != nil:
		log.Fatal(err)
	}
	r, err := standby.OpenReader(ctx, "wal")
	if err != nil {
		log.Fatal(err)
	}
	applied := btrlog.LSN(41) // what this standby has applied already
	for rec, err := range r.Scan(ctx, applied+1, w.Info().Recovered) {
		if err != nil {
			log.Fatal(err)
		}
		applied = rec.LSN // apply rec.Data
	}
	fmt.Printf("epoch %d goes on at LSN %d", w.Info().Epoch, w.Info().Next)
}

// A follower applies records as they are committed, across takeovers.
func ExampleReader_Follow() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: "file:///var/lib/btrlog/store"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	r, err := client.OpenReader(ctx, "wal")
	if err != nil {
		log.Fatal(err)
	}
	var e *btrlog.Error
	for rec, err := range r.Follow(ctx, 1) {
		switch {
		case errors.As(err, &e) && e.Kind == btrlog.ErrTrimmed:
			log.Fatalf("begin with a snapshot: everything up to LSN %d was trimmed", e.To)
		case err != nil:
			log.Fatal(err)
		}
		fmt.Printf("%d %s\n", rec.LSN, rec.Data) // rec.Data is valid until the next step
	}
}
