package btrlog_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/btrlog/btrlog"
)

// Parallel logging: every worker has a log of its own, so that no lock and no order is shared between them. The database's own
// sequence number in each record merges them at recovery, and a commit waits only for the logs that its transaction touched.
func ExampleWriter_AppendBatch() {
	ctx := context.Background()
	client, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: "file:///var/lib/btrlog/store"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	const workers = 8
	var sequence struct { // the database's global order
		sync.Mutex
		next uint64
	}
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			name := fmt.Sprintf("wal-%02d", i)
			if _, err := client.Create(ctx, name, btrlog.LogOptions{}); err != nil && !errors.Is(err, btrlog.ErrExists) {
				log.Fatal(err)
			}
			w, err := client.OpenWriter(ctx, name, btrlog.WriterOptions{}) // one socket and one thread serve all logs
			if err != nil {
				log.Fatal(err)
			}
			for range 1000 {
				sequence.Lock()
				sequence.next++
				header := binary.BigEndian.AppendUint64(nil, sequence.next)
				sequence.Unlock()
				// The records of a transaction are in the log together or not at all.
				_, last, err := w.AppendBatch(ctx, [][]byte{append(header, "update"...), append(header, "commit"...)})
				if err != nil {
					log.Fatal(err)
				}
				if err := w.Sync(ctx, last); err != nil {
					log.Fatal(err)
				}
			}
			if err := w.Close(ctx); err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
}

// Undo: a transaction rolls back and reads its own records, newest first, committed or not. The writer still holds what it
// wrote recently, so that it costs no network; an older record comes from a log node, a very old one from the object store.
func ExampleWriter_Read() {
	ctx := context.Background()
	client, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: "file:///var/lib/btrlog/store"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	w, err := client.OpenWriter(ctx, "wal", btrlog.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}

	// Each record begins with the LSN of the one before it of the same transaction; zero is the first.
	write := func(previous btrlog.LSN, change string) btrlog.LSN {
		lsn, err := w.Append(ctx, append(binary.BigEndian.AppendUint64(nil, uint64(previous)), change...))
		if err != nil {
			log.Fatal(err)
		}
		return lsn
	}
	last := write(write(0, "a = 1"), "b = 2")

	var buf []byte
	for lsn := last; lsn != 0; {
		buf, err = w.Read(ctx, lsn, buf[:0]) // the memory is used again
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("undo %s\n", buf[8:])
		lsn = btrlog.LSN(binary.BigEndian.Uint64(buf))
	}
}

// Log shipping: a replica copies a log into another one, for example of another region. The target's LSNs are the source's, so
// that it goes on from its own tail after any crash, and does nothing twice.
func ExampleReader_Follow_shipping() {
	ctx := context.Background()
	connect := func(store string) *btrlog.Client {
		c, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: store})
		if err != nil {
			log.Fatal(err)
		}
		return c
	}
	here, there := connect("file:///mnt/here/btrlog"), connect("file:///mnt/there/btrlog")
	defer here.Close()
	defer there.Close()

	r, err := here.OpenReader(ctx, "wal")
	if err != nil {
		log.Fatal(err)
	}
	w, err := there.OpenWriter(ctx, "wal-copy", btrlog.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for rec, err := range r.Follow(ctx, w.Info().Next) {
		if err != nil {
			log.Fatal(err) // ErrTrimmed: this replica was away for too long, begin again with a snapshot
		}
		lsn, err := w.Append(ctx, rec.Data) // copies the record
		if err != nil {
			log.Fatal(err)
		}
		if lsn != rec.LSN {
			log.Fatalf("record %d became %d: someone else writes to the copy", rec.LSN, lsn)
		}
	}
}
