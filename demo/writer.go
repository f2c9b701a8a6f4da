package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/demo/pgwal"
)

func report(p progress) {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // a struct of numbers and strings always encodes
	}
	fmt.Println(string(b))
}

// writer opens the log, finds where the writer before it ended, and appends the rest of the sample: PostgreSQL's record
// number i has LSN i. The last records are synced one by one, for their latency.
func writer(ctx context.Context, o options) error {
	client, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: o.store})
	if err != nil {
		return err
	}
	defer client.Close()
	begin := time.Now()
	w, err := client.OpenWriter(ctx, o.log, btrlog.WriterOptions{})
	if err != nil {
		return err
	}
	opened := time.Since(begin)
	tail := uint64(w.Info().Recovered)
	now := progress{Event: "open", Epoch: uint64(w.Info().Epoch), Tail: tail, OpenMS: ms(opened)}
	report(now)

	out, err := openAcks(o.acks)
	if err != nil {
		return err
	}
	m, err := pgwal.SampleManifest()
	if err != nil {
		return err
	}
	total := uint64(m.Records)
	w.OnCommit(func(lsn btrlog.LSN) {
		out.acknowledged(uint64(lsn))
		now.Event, now.Acked = "progress", uint64(lsn)
		report(now)
	})
	in, err := sample(tail)
	if err != nil {
		return err
	}
	a := appender{ctx: ctx, w: w, in: in, out: out, next: tail + 1}
	res := progress{Event: "done", Epoch: uint64(w.Info().Epoch), Tail: tail, OpenMS: ms(opened)}
	if a.next <= total {
		// The first record after the open ends the failover; unpacking the sample up to here is not part of it.
		first := time.Now()
		if err := a.synced(); err != nil {
			return err
		}
		res.FailMS = ms(opened + time.Since(first))
	}
	phase := time.Now()
	for a.next+uint64(o.single) <= total {
		if err := a.append(); err != nil {
			return err
		}
		res.Pipelined++
	}
	if err := w.Sync(ctx, btrlog.LSN(a.next-1)); err != nil {
		return err
	}
	res.PipelineS = time.Since(phase).Seconds()
	var took []time.Duration
	for a.next <= total {
		t := time.Now()
		if err := a.synced(); err != nil {
			return err
		}
		took = append(took, time.Since(t))
	}
	if n := len(took); n > 0 {
		slices.Sort(took)
		res.Singles, res.P50US, res.P99US = n, us(took[n/2]), us(took[n*99/100])
	}
	if err := w.Close(ctx); err != nil {
		return err
	}
	out.acknowledged(a.next - 1) // Sync has returned for it, whether or not the notification has come
	res.Acked, res.Bytes, res.Seconds = out.last(), a.bytes, time.Since(begin).Seconds()
	if err := out.close(); err != nil {
		return fmt.Errorf("file of acknowledged records: %w", err)
	}
	report(res)
	return nil
}

// appender appends the sample's records in order and insists on their LSNs.
type appender struct {
	ctx   context.Context
	w     *btrlog.Writer
	in    *pgwal.Reader
	out   *acks
	next  uint64
	bytes uint64
}

func (a *appender) append() error {
	rec, err := a.in.Next()
	if err != nil {
		return fmt.Errorf("sample record %d: %w", a.next, err)
	}
	a.out.expect(a.next, rec.Raw)
	lsn, err := a.w.Append(a.ctx, rec.Raw)
	if err != nil {
		return err
	}
	if uint64(lsn) != a.next {
		return fmt.Errorf("record %d of the input got LSN %d", a.next, lsn)
	}
	a.bytes += uint64(len(rec.Raw))
	a.next++
	return nil
}

func (a *appender) synced() error {
	if err := a.append(); err != nil {
		return err
	}
	return a.w.Sync(a.ctx, btrlog.LSN(a.next-1))
}

// sample opens the input behind its first skip records.
func sample(skip uint64) (*pgwal.Reader, error) {
	raw, err := pgwal.Sample()
	if err != nil {
		return nil, err
	}
	in, err := pgwal.Open(raw)
	if err != nil {
		return nil, err
	}
	for i := range skip {
		if _, err := in.Next(); err != nil {
			return nil, fmt.Errorf("the log has %d records, the sample ends at %d: %w", skip, i, err)
		}
	}
	return in, nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
