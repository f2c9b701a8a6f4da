// Command quickstart is the program of the README: it appends to a log and reads it back. Start "btrlog dev" first.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/btrlog/btrlog"
)

func main() {
	ctx := context.Background()
	client, err := btrlog.Connect(ctx, btrlog.Config{Nodes: []string{"127.0.0.1:4460"}})
	check(err)
	defer client.Close()
	_, err = client.Create(ctx, "orders", btrlog.LogOptions{}) // three nodes, write quorum two
	if !errors.Is(err, btrlog.ErrExists) {                     // it is there from the second run on
		check(err)
	}
	w, err := client.OpenWriter(ctx, "orders", btrlog.WriterOptions{}) // fences whoever wrote before
	check(err)
	lsn, err := w.Append(ctx, []byte("hello")) // returns at once
	check(err)
	check(w.Sync(ctx, lsn)) // on the disks of two nodes from here on
	check(w.Close(ctx))
	r, err := client.OpenReader(ctx, "orders")
	check(err)
	for rec, err := range r.Scan(ctx, 1, 0) {
		check(err)
		fmt.Printf("%d %s\n", rec.LSN, rec.Data)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
