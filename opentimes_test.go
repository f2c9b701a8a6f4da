package btrlog_test

import (
	"testing"
	"time"

	"github.com/btrlog/btrlog"
)

// Every stage of an open that had something to do took time, and all together no more than the open.
func TestOpenTimes(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{})
	open := func(client *btrlog.Client) *btrlog.Writer {
		t.Helper()
		began := time.Now()
		w := c.writer(client, "orders")
		took := time.Since(began)
		o := w.Info().Opened
		if o.Token <= 0 || o.Fence <= 0 || o.Record <= 0 || o.Activate <= 0 || o.Total() > took {
			t.Errorf("an open of %v: %+v", took, o)
		}
		if w.Info().Repaired > 0 && o.Repair <= 0 { // a short tail comes with the promise: no time is its own
			t.Errorf("%d LSNs were repaired in no time: %+v", w.Info().Repaired, o)
		}
		return w
	}
	w := open(client)
	fill(t, w, 3)
	// A record of which no node hears that it is committed: with one node alone it is not.
	c.stop("n2")
	c.stop("n3")
	if _, err := w.Append(t.Context(), payload(4)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "node n1 has the record", func() bool {
		for _, d := range c.nodes["n1"].Status().Detail {
			for _, l := range d.Logs {
				if l.Highest == 4 {
					return true
				}
			}
		}
		return false
	})
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	c.start("n2")
	second := open(c.client())
	if second.Info().Repaired == 0 {
		t.Fatalf("nothing was repaired, so this test proves too little: %+v", second.Info())
	}
	before := second.Info().Opened
	if err := second.Reopen(t.Context(), btrlog.WriterOptions{}); err != nil {
		t.Fatal(err)
	}
	if after := second.Info().Opened; after == before || after.Token <= 0 || after.Activate <= 0 {
		t.Errorf("after a re-open: %+v", after)
	}
}
