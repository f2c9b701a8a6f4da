package btrlog_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
)

// After Client.Close every call says ErrClosed and what was called, whatever it would have found.
func TestEverythingIsClosedAfterClose(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	last := fill(t, w, 5)
	r := c.reader(client, "orders")
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	stream := func(seq func(func(btrlog.Record, error) bool)) (err error) {
		for _, err = range seq {
		}
		return err
	}
	for _, call := range []struct {
		op string
		do func() error
	}{
		{"create", func() error { _, err := client.Create(ctx, "other", btrlog.LogOptions{}); return err }},
		{"info", func() error { _, err := client.Info(ctx, "orders"); return err }},
		{"list nodes", func() error { _, err := client.Nodes(ctx); return err }},
		{"list logs", func() (err error) {
			for _, err = range client.Logs(ctx, "") {
			}
			return err
		}},
		{"trim", func() error { return client.Trim(ctx, "orders", 2) }},
		{"set retention", func() error { return client.SetRetention(ctx, "orders", time.Hour, 0, 0) }},
		{"retire node", func() error { return client.RetireNode(ctx, "n1") }},
		{"delete", func() error { return client.Delete(ctx, "orders") }},
		{"open writer", func() error { _, err := client.OpenWriter(ctx, "orders", btrlog.WriterOptions{}); return err }},
		{"open reader", func() error { _, err := client.OpenReader(ctx, "orders"); return err }},
		{"append", func() error { _, err := w.Append(ctx, nil); return err }},
		{"append", func() error { _, err := w.TryAppend(nil); return err }},
		{"append batch", func() error { _, _, err := w.AppendBatch(ctx, [][]byte{nil}); return err }},
		{"trim", func() error { return w.Trim(ctx, 2) }},
		{"reopen", func() error { return w.Reopen(ctx, btrlog.WriterOptions{}) }},
		{"close", func() error { return w.Close(ctx) }},
		{"read", func() error { _, err := r.Read(ctx, 1, nil); return err }},
		{"tail", func() error { _, err := r.Tail(ctx); return err }},
		{"read", func() error { return stream(r.Scan(ctx, 0, 0)) }},
		{"read", func() error { return stream(r.Follow(ctx, 1)) }},
	} {
		var e *btrlog.Error
		if err := call.do(); !errors.As(err, &e) || e.Kind != btrlog.ErrClosed || e.Op != call.op || e.Retryable {
			t.Errorf("%s after Close: %v", call.op, err)
		}
	}
	if err := w.Sync(ctx, last); err != nil { // which was answered before
		t.Errorf("sync of what is committed: %v", err)
	}
	if info, err := c.client().Info(ctx, "orders"); err != nil || info.TrimBefore != 1 || info.Options.RetainAge != 0 {
		t.Errorf("a closed client has changed the log: %+v, %v", info, err)
	}
}

func TestTrimSaysTrim(t *testing.T) {
	client := newCluster(t, "n1").client()
	var e *btrlog.Error
	if err := client.Trim(t.Context(), "nowhere", 2); !errors.As(err, &e) || e.Kind != btrlog.ErrNotFound || e.Op != "trim" || e.Log != "nowhere" {
		t.Errorf("trim of no log: %v", err)
	}
}

// A name that no node has is a typing error, not an outage and not a missing log; nothing is made, and no writer is fenced.
func TestUnknownNodeNames(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	const want = `node "n9" is not registered; n1 n2 n3 are`
	invalid := func(what, op string, err error) {
		t.Helper()
		var e *btrlog.Error
		if !errors.As(err, &e) || e.Kind != btrlog.ErrInvalid || e.Op != op || e.Log != "orders" || e.Retryable || !strings.HasSuffix(err.Error(), ": invalid: "+want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := client.Create(t.Context(), "orders", btrlog.LogOptions{Nodes: []string{"n1", "n2", "n9"}})
	invalid("create", "create", err)
	if _, err := client.Info(t.Context(), "orders"); !errors.Is(err, btrlog.ErrNotFound) {
		t.Errorf("info of a log that was not made: %v", err)
	}
	c.create(client, "orders", btrlog.LogOptions{})
	w := c.writer(client, "orders")
	_, err = client.OpenWriter(t.Context(), "orders", btrlog.WriterOptions{Replace: map[string]string{"n3": "n9"}})
	invalid("open", "open writer", err)
	invalid("reopen", "reopen", w.Reopen(t.Context(), btrlog.WriterOptions{Nodes: []string{"n1", "n9"}}))
	for swap, want := range map[[2]string]string{{"n9", "n1"}: `node "n9" is not one of the log's; n1 n2 n3 are`, {"n1", "n2"}: `node "n2" holds the log already; a log has each node once`} {
		_, err := client.OpenWriter(t.Context(), "orders", btrlog.WriterOptions{Replace: map[string]string{swap[0]: swap[1]}})
		if !errors.Is(err, btrlog.ErrInvalid) || !strings.HasSuffix(err.Error(), ": invalid: "+want) {
			t.Errorf("replace of %v: %v, want %s", swap, err, want)
		}
	}
	fill(t, w, 3)
}

func TestConnectChecksNodeAddresses(t *testing.T) {
	c := newCluster(t, "n1")
	for _, bad := range []string{"127.0.0.1", "localhost", ":4460", "10.0.0.1:", "10.0.0.1:70000", "10.0.0.1:0", "fd00::1", "https://10.0.0.1:4460", "http://10.0.0.1", ""} {
		_, err := btrlog.Connect(t.Context(), btrlog.Config{Nodes: []string{bad}, Logger: testLog(t)})
		if !errors.Is(err, btrlog.ErrInvalid) || !strings.Contains(err.Error(), "the form is host:port") {
			t.Errorf("Nodes %q: %v", bad, err)
		}
	}
	address := c.address("n1")
	for _, good := range []string{address, "http://" + address, "http://" + address + "/"} {
		client, err := btrlog.Connect(t.Context(), btrlog.Config{Nodes: []string{good}, Logger: testLog(t)})
		if err != nil {
			t.Fatalf("Nodes %q: %v", good, err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

// R19: a client that has not heard of the log's tail trims all the same, or says that it did not: when the call returns nil the trim point has
// moved, also right behind an append that no node was told is committed.
func TestTrimByANewClient(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	c.create(c.client(), "orders", btrlog.LogOptions{})
	w := c.writer(c.client(), "orders")
	last := fill(t, w, 20)
	trimBefore := func() btrlog.LSN {
		t.Helper()
		info, err := c.client().Info(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		return info.TrimBefore
	}
	if err := c.client().Trim(t.Context(), "orders", last+1); err != nil || trimBefore() != last+1 {
		t.Fatalf("trim of all that is committed: %v, trimmed before %d", err, trimBefore())
	}
	if err := c.client().Trim(t.Context(), "orders", last+2); !errors.Is(err, btrlog.ErrInvalid) || trimBefore() != last+1 {
		t.Fatalf("trim of what is not: %v, trimmed before %d", err, trimBefore())
	}
	last = fill(t, w, 5)
	c.stop("n2")
	c.stop("n3") // nobody can say how far the log is committed
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := c.client().Trim(ctx, "orders", last+1); !errors.Is(err, btrlog.ErrUnavailable) || trimBefore() != last-4 {
		t.Fatalf("trim without a quorum: %v, trimmed before %d", err, trimBefore())
	}
}
