package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/btrlog/btrlog"
)

// hotRecords is how much of the tail is read once more, from the nodes: less than the log's window, which they keep.
const hotRecords = 1000

// reader reads the whole log and compares it with the input and with what was acknowledged. What is archived comes from the
// object store; the last records, which the nodes keep for the tail's readers, are then read from those too.
func reader(ctx context.Context, o options) error {
	acked, err := readAcks(o.acks)
	if err != nil {
		return err
	}
	client, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: o.store})
	if err != nil {
		return err
	}
	defer client.Close()
	r, err := client.OpenReader(ctx, o.log)
	if err != nil {
		return err
	}
	begin := time.Now()
	tail, err := r.Tail(ctx)
	if err != nil {
		return err
	}
	res := progress{Event: "done", Tail: uint64(tail)}
	if err := compare(ctx, r, 1, tail, acked, &res); err != nil {
		return err
	}
	if missing := uint64(len(acked)) - res.Checked; missing > 0 {
		return fmt.Errorf("%d acknowledged records are not in the log", missing)
	}
	hot := r.Stats().HotRecords
	var again progress
	if err := compare(ctx, r, tail-min(tail, hotRecords)+1, tail, acked, &again); err != nil {
		return err
	}
	s := r.Stats()
	res.Hot, res.Cold, res.Seconds = s.HotRecords, s.ColdRecords, time.Since(begin).Seconds()
	if res.Cold == 0 || s.HotRecords == hot {
		return fmt.Errorf("%d records came from the object store and %d from nodes: one of the paths was not taken", s.ColdRecords, s.HotRecords)
	}
	report(res)
	return nil
}

// compare scans [from, to] and counts in res.
func compare(ctx context.Context, r *btrlog.Reader, from, to btrlog.LSN, acked map[uint64]string, res *progress) error {
	in, err := sample(uint64(from) - 1)
	if err != nil {
		return err
	}
	next := from
	for rec, err := range r.Scan(ctx, from, to) {
		if err != nil {
			return err
		}
		if rec.LSN != next {
			return fmt.Errorf("LSN %d came where %d was due", rec.LSN, next)
		}
		next++
		want, err := in.Next()
		if err != nil {
			return fmt.Errorf("the log has a record %d that the input has not: %w", rec.LSN, err)
		}
		if string(want.Raw) != string(rec.Data) {
			return fmt.Errorf("LSN %d differs from that record of the input", rec.LSN)
		}
		if h, ok := acked[uint64(rec.LSN)]; ok {
			if h != hash(rec.Data) {
				return fmt.Errorf("LSN %d differs from what was acknowledged", rec.LSN)
			}
			res.Checked++
		}
		res.Records++
		res.Bytes += uint64(len(rec.Data))
	}
	if next != to+1 {
		return fmt.Errorf("the scan ended at %d, not at %d", next-1, to)
	}
	if _, err := in.Next(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the log ends at %d, the input goes on (%v)", to, err)
	}
	return nil
}
