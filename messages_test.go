package btrlog_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/objstore/faulty"
)

// The commonest messages, whole: each layer adds what is new and repeats nothing.
func TestMessages(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	store := faulty.New(c.store, faulty.Config{})
	client := c.client(func(cfg *btrlog.Config) { cfg.Store = store })
	ctx := t.Context()
	short := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(ctx, d)
		t.Cleanup(cancel)
		return ctx
	}
	say := func(want string, err error) {
		t.Helper()
		if err == nil || err.Error() != want {
			t.Errorf("\n got %v\nwant %s", err, want)
		}
	}
	c.create(client, "orders", btrlog.LogOptions{Window: 2})
	_, err := client.Create(ctx, "orders", btrlog.LogOptions{})
	say(`btrlog: create of log "orders": exists already`, err)
	_, err = client.OpenWriter(ctx, "order", btrlog.WriterOptions{})
	say(`btrlog: open writer of log "order": not found`, err)
	_, err = client.Create(ctx, "wide", btrlog.LogOptions{N: 5})
	say(`btrlog: create of log "wide": unavailable: 5 nodes are needed, 3 are registered and active [n1 n2 n3]: start more nodes, or ask for a smaller N`, err)
	_, err = client.Create(ctx, "a b", btrlog.LogOptions{})
	say(`btrlog: create of log "a b": invalid: name "a b" contains ' '; letters, digits, '.', '_' and '-' are allowed`, err)

	w := c.writer(client, "orders")
	last := fill(t, w, 2)
	_, err = w.Append(ctx, make([]byte, btrlog.MaxRecordBytes+1))
	say(`btrlog: append of log "orders": too large: 1 records of 8388609 bytes in all (limits: 4096 records, window 2, 8388608 bytes)`, err)
	_, _, err = w.AppendBatch(ctx, make([][]byte, 3))
	say(`btrlog: append batch of log "orders": too large: 3 records of 0 bytes in all (limits: 4096 records, window 2, 8388608 bytes)`, err)
	say(`btrlog: sync of log "orders": invalid: LSN 3 was not given out; the next one is 3`, w.Sync(ctx, last+1))
	r := c.reader(client, "orders")
	_, err = r.Read(ctx, last+1, nil)
	say(`btrlog: read of log "orders": not found (LSN 3): not committed; the log is committed up to 2`, err)
	if err := w.Trim(ctx, 2); err != nil {
		t.Fatal(err)
	}
	_, err = r.Read(ctx, 1, nil)
	say(`btrlog: read of log "orders": trimmed (LSN 1)`, err)

	c.stop("n1")
	c.stop("n2")
	for range 2 {
		if _, err := w.TryAppend([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	_, err = w.TryAppend(nil)
	say(`btrlog: append of log "orders": append window is full`, err)
	_, err = w.Append(short(time.Second), nil)
	say(`btrlog: append of log "orders": unavailable: waiting for space in the append window: context deadline exceeded; no answer from n1, n2`, err)
	say(`btrlog: sync of log "orders": unavailable (LSNs 3 to 4, epoch 1); the outcome is unknown: waiting for 2 of the log's nodes to have LSN 4 on disk: context deadline exceeded; no answer from n1, n2`, w.Sync(short(time.Second), last+2))
	_, err = r.Tail(short(time.Second))
	say(`btrlog: tail of log "orders": unavailable: too few of the log's nodes answer; no answer from n1, n2`, err)
	_, err = client.OpenWriter(short(time.Second), "orders", btrlog.WriterOptions{})
	say(`btrlog: open writer of log "orders": unavailable: 1 of 3 recorded nodes answered, need 2, in stage "fence"; no answer from n1, n2`, err)
	say(`btrlog: delete of log "orders": unavailable (epoch 3): 1 of 3 nodes promised, 2 are needed; no answer from n1, n2`, client.Delete(short(time.Second), "orders"))

	store.Add(faulty.Rule{Ops: faulty.AllOps, Prefix: "logs/", Fault: faulty.Unavailable})
	_, err = client.Info(short(100*time.Millisecond), "orders")
	say(`btrlog: info of log "orders": unavailable: objstore mem://: get "logs/orders.json": store unavailable, not applied: injected fault`, err)
	_, err = client.OpenWriter(short(100*time.Millisecond), "orders", btrlog.WriterOptions{})
	say(`btrlog: open writer of log "orders": unavailable: objstore mem://: get "logs/orders.json": store unavailable, not applied: injected fault`, err)
	store.Heal()

	c.start("n1")
	c.start("n2")
	c.create(client, "other", btrlog.LogOptions{})
	w = c.writer(client, "other")
	c.writer(client, "other")
	lsn, err := w.Append(ctx, nil) // it learns of the other by the answers
	if err != nil {
		t.Fatal(err)
	}
	<-w.Done()
	_, err = w.Append(ctx, nil)
	// The rest depends on what it hears first: two refusals, or one and then the record.
	fenced := func(begin string, err error) {
		t.Helper()
		if rest, ok := strings.CutPrefix(err.Error(), begin+": "); !ok || strings.Contains(rest, "fenced by") {
			t.Errorf("\n got %v\nwant %s and why", err, begin)
		}
	}
	fenced(`btrlog: append of log "other": fenced by a newer writer (epoch 1)`, err)
	fenced(`btrlog: sync of log "other": fenced by a newer writer (LSN 1, epoch 1); the outcome is unknown`, w.Sync(ctx, lsn))
	w = c.writer(client, "other")
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = w.Append(ctx, nil)
	say(`btrlog: append of log "other": closed (epoch 3)`, err)
	_, err = client.Info(ctx, "orders")
	say(`btrlog: info of log "orders": closed`, err)
}
