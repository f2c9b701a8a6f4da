package btrlog_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/btrlog/btrlog"
	"github.com/btrlog/btrlog/internal/node"
	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// scanAll reads a log from one LSN to the tail, over what is lost, and returns the LSNs that it got and the losses that it was told.
func scanAll(t *testing.T, r *btrlog.Reader, from btrlog.LSN) (got []btrlog.LSN, lost [][2]btrlog.LSN) {
	t.Helper()
	tail, err := r.Tail(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for next := from; next <= tail; {
		for rec, err := range r.Scan(t.Context(), next, tail) {
			var e *btrlog.Error
			switch {
			case err == nil:
				if rec.LSN < next || string(rec.Data) != string(payload(rec.LSN)) {
					t.Fatalf("scan from LSN %d gave LSN %d %.60q", next, rec.LSN, rec.Data)
				}
				got = append(got, rec.LSN)
				next = rec.LSN + 1
			case errors.Is(err, btrlog.ErrDataLoss) && errors.As(err, &e):
				if e.From != next || e.To < e.From {
					t.Fatalf("loss at LSN %d is %d to %d: %v", next, e.From, e.To, err)
				}
				lost = append(lost, [2]btrlog.LSN{e.From, e.To})
				next = e.To + 1
			default:
				t.Fatalf("scan at LSN %d: %v", next, err)
			}
		}
	}
	return got, lost
}

func lsns(from, to btrlog.LSN) (out []btrlog.LSN) {
	for ; from <= to; from++ {
		out = append(out, from)
	}
	return out
}

// Two of three disks are lost, and the third misses some. Nothing is guessed; with the owner's consent the log goes on, with exactly what
// was lost on record, for readers of all kinds, for later writers, for archiving.
func TestAcceptLoss(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{Nodes: []string{"n1", "n2", "n3"}, FlushAge: 50 * time.Millisecond})
	end := func(w *btrlog.Writer) { // nothing is sent again after it, to no node that comes back
		t.Helper()
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	first := c.writer(client, "orders")
	archived := func(n string, want btrlog.LSN) bool {
		for _, s := range c.nodes[n].Status().Detail {
			for _, l := range s.Logs {
				if btrlog.LSN(l.ArchivedThrough) >= want {
					return true
				}
			}
		}
		return false
	}
	fill(t, first, 10) // 1 to 10: in the archive
	eventually(t, "the first records to be archived", func() bool { return archived("n1", 10) && archived("n2", 10) && archived("n3", 10) })
	c.inner.archiveDown.Store(true)
	fill(t, first, 10) // 11 to 20: on all
	eventually(t, "n1 to have LSN 20", func() bool { return c.holds("n1", 20) })
	c.stop("n1")
	fill(t, first, 10) // 21 to 30: not on n1
	end(first)
	c.start("n1")
	old := c.writer(client, "orders")
	fill(t, old, 10) // 31 to 40: on all
	eventually(t, "n1 to have LSN 40", func() bool { return c.holds("n1", 40) })
	early := c.reader(c.client(), "orders")
	check(t, early, 1, 40)
	c.stop("n1")
	fill(t, old, 10) // 41 to 50: only on n2 and n3
	end(old)
	for _, n := range []string{"n2", "n3"} {
		c.stop(n)
		c.wipe(n)
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		c.start(n)
	}
	c.inner.archiveDown.Store(false)

	short := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), time.Second)
	}
	adopt := map[string]string{"n2": "n2", "n3": "n3"}
	open := func(o btrlog.WriterOptions) (*btrlog.Writer, error) {
		ctx, cancel := short()
		defer cancel()
		return c.client().OpenWriter(ctx, "orders", o)
	}
	wantMissing := func(what string, err error, missing, replaced []string) {
		t.Helper()
		var e *btrlog.Error
		if !errors.Is(err, btrlog.ErrUnavailable) || !errors.As(err, &e) || !slices.Equal(e.Missing, missing) || !slices.Equal(e.Replaced, replaced) {
			t.Fatalf("%s: %v (missing %v, replaced %v)", what, err, e.Missing, e.Replaced)
		}
	}
	_, err := open(btrlog.WriterOptions{})
	wantMissing("a plain open", err, []string{"n2", "n3"}, []string{"n2", "n3"})
	_, err = open(btrlog.WriterOptions{Replace: adopt})
	wantMissing("an open that adopts the new disks", err, []string{"n2", "n3"}, []string{"n2", "n3"})

	info, err := client.Info(t.Context(), "orders")
	if err != nil || len(info.Lost) != 0 {
		t.Fatalf("info: %+v, %v", info, err)
	}
	consent := func() *btrlog.AcceptLoss {
		now, err := client.Info(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		return &btrlog.AcceptLoss{Log: now.ID, Epoch: now.Epoch, Gone: []string{"n2", "n3"}, Wait: 300 * time.Millisecond}
	}
	for what, change := range map[string]func(o *btrlog.WriterOptions){
		"for another log":            func(o *btrlog.WriterOptions) { o.AcceptLoss.Log++ },
		"of another time":            func(o *btrlog.WriterOptions) { o.AcceptLoss.Epoch-- },
		"that keeps the lost disks":  func(o *btrlog.WriterOptions) { o.Replace = nil },
		"of a node that it has not":  func(o *btrlog.WriterOptions) { o.AcceptLoss.Gone = []string{"n9"} },
		"that waits for longer":      func(o *btrlog.WriterOptions) { o.AcceptLoss.Wait = time.Minute },
		"that waits for the past":    func(o *btrlog.WriterOptions) { o.AcceptLoss.Wait = -1 },
		"with a node in the old set": func(o *btrlog.WriterOptions) { delete(o.Replace, "n3") },
	} {
		o := btrlog.WriterOptions{Replace: map[string]string{"n2": "n2", "n3": "n3"}, AcceptLoss: consent()}
		epoch := o.AcceptLoss.Epoch
		change(&o)
		if _, err := open(o); !errors.Is(err, btrlog.ErrInvalid) {
			t.Errorf("consent %s: %v", what, err)
		}
		if now, err := client.Info(t.Context(), "orders"); err != nil || now.Epoch != epoch {
			t.Errorf("consent %s cost the writer its log", what)
		}
	}
	a := consent()
	a.Gone = []string{"n2"}
	_, err = open(btrlog.WriterOptions{Replace: adopt, AcceptLoss: a})
	wantMissing("an open that may lose n2 alone", err, []string{"n2", "n3"}, []string{"n2", "n3"})
	if !strings.Contains(err.Error(), "nothing is given up while n3 may answer") {
		t.Fatalf("it does not say why: %v", err)
	}
	w, err := c.client().OpenWriter(t.Context(), "orders", btrlog.WriterOptions{Replace: adopt, AcceptLoss: consent()})
	if err != nil {
		t.Fatal(err)
	}
	skip := btrlog.LSN(protocol.LossSkip)
	lost := w.Info().Lost
	if len(lost) != 2 || lost[0].From != 21 || lost[0].To != 30 || lost[0].Skipped || lost[1].From != 41 || lost[1].To != 40+skip || !lost[1].Skipped ||
		lost[0].Epoch != w.Info().Epoch || time.Since(lost[0].At).Abs() > time.Minute {
		t.Fatalf("lost: %+v", lost)
	}
	if got := w.Info(); got.Start != 41+skip || got.Next != 41+skip {
		t.Fatalf("the log goes on with %+v", got)
	}
	wantLost := [][2]btrlog.LSN{{21, 30}, {41, 40 + skip}}
	last := fill(t, w, 10)
	want := slices.Concat(lsns(1, 20), lsns(31, 40), lsns(41+skip, last))
	verify := func(when string, r *btrlog.Reader) {
		t.Helper()
		got, gone := scanAll(t, r, 1)
		if !slices.Equal(got, want) || !slices.Equal(gone, wantLost) {
			t.Fatalf("%s: read %v, lost %v; want %v, %v", when, got, gone, want, wantLost)
		}
		for _, x := range []btrlog.LSN{21, 30, 41, 40 + skip} {
			_, err := r.Read(t.Context(), x, nil)
			var e *btrlog.Error
			if !errors.Is(err, btrlog.ErrDataLoss) || !errors.As(err, &e) || e.From != x || e.To != map[bool]btrlog.LSN{true: 30, false: 40 + skip}[x <= 30] {
				t.Fatalf("%s: read of lost LSN %d: %v", when, x, err)
			}
		}
		for _, x := range []btrlog.LSN{20, 31, 40, 41 + skip} {
			if rec, err := r.Read(t.Context(), x, nil); err != nil || string(rec) != string(payload(x)) {
				t.Fatalf("%s: read of LSN %d: %.60q, %v", when, x, rec, err)
			}
		}
	}
	verify("hot", c.reader(c.client(), "orders"))
	verify("a reader from before", early)
	follow := func(from, to btrlog.LSN) (n btrlog.LSN, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for rec, err := range c.reader(c.client(), "orders").Follow(ctx, from) {
			if err != nil {
				return n, err
			}
			if n = rec.LSN; n == to {
				return n, nil
			}
		}
		return n, nil
	}
	if n, err := follow(15, last); n != 20 || !errors.Is(err, btrlog.ErrDataLoss) {
		t.Fatalf("following from LSN 15 ended at %d: %v", n, err)
	}
	if n, err := follow(41+skip, last); n != last || err != nil {
		t.Fatalf("following from LSN %d ended at %d: %v", 41+skip, n, err)
	}

	// An ordinary takeover, with any two nodes, and no more loss. The consent that was given is spent.
	if _, err := open(btrlog.WriterOptions{Replace: adopt, AcceptLoss: a}); !errors.Is(err, btrlog.ErrInvalid) {
		t.Fatalf("the consent was used twice: %v", err)
	}
	c.stop("n1")
	w = c.writer(c.client(), "orders")
	if got := w.Info(); got.Recovered != last || len(got.Lost) != 0 {
		t.Fatalf("the takeover after the loss: %+v", got)
	}
	last = fill(t, w, 10)
	want = append(want, lsns(last-9, last)...)
	c.start("n1")
	verify("after a takeover", c.reader(c.client(), "orders"))

	// Archiving goes on behind what is lost, and the nodes get rid of it.
	eventually(t, "all to be archived", func() bool { return archived("n1", last) && archived("n2", last) && archived("n3", last) })
	verify("cold", c.reader(c.client(), "orders"))

	// What is trimmed needs no other reason to be gone.
	if info, err = client.Info(t.Context(), "orders"); err != nil || len(info.Lost) != 2 {
		t.Fatalf("info: %+v, %v", info.Lost, err)
	}
	if err := w.Trim(t.Context(), 35); err != nil {
		t.Fatal(err)
	}
	if info, err = client.Info(t.Context(), "orders"); err != nil || len(info.Lost) != 1 || info.Lost[0] != (btrlog.LostRange{From: 41, To: 40 + skip, Epoch: lost[1].Epoch, At: info.Lost[0].At, Skipped: true}) {
		t.Fatalf("info after the trim: %+v, %v", info.Lost, err)
	}
	if _, err := early.Read(t.Context(), 25, nil); !errors.Is(err, btrlog.ErrTrimmed) {
		t.Fatalf("read of an LSN that was lost and is trimmed: %v", err)
	}
}

// An open that may lose records is an ordinary one when that can succeed.
func TestAcceptLossLosesNothingForNothing(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3", "n4")
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{Nodes: []string{"n1", "n2", "n3"}, FlushAge: -1})
	old := c.writer(client, "orders")
	fill(t, old, 20)
	c.stop("n3")
	info, err := client.Info(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.client().OpenWriter(t.Context(), "orders", btrlog.WriterOptions{Replace: map[string]string{"n3": "n4"},
		AcceptLoss: &btrlog.AcceptLoss{Log: info.ID, Epoch: info.Epoch, Gone: []string{"n3"}, Wait: 200 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Info(); len(got.Lost) != 0 || got.Next != 21 {
		t.Fatalf("lost for nothing: %+v", got)
	}
	if info, err = client.Info(t.Context(), "orders"); err != nil || len(info.Lost) != 0 {
		t.Fatalf("info: %+v, %v", info.Lost, err)
	}
	check(t, c.reader(client, "orders"), 1, 20)
}

// All disks are lost, and what there is of the log is in the archive: what objects prove stays as it is, and of a failure snapshot also what was
// above its watermark (P12).
func TestAcceptLossOfAllDisks(t *testing.T) {
	names := []string{"n1", "n2", "n3"}
	c := newCluster(t)
	c.config = func(cfg *node.Config) { cfg.PeerInterval, cfg.PeerTimeout = 20*time.Millisecond, 300*time.Millisecond }
	for _, n := range names {
		c.start(n)
	}
	client := c.client()
	c.create(client, "orders", btrlog.LogOptions{Nodes: names, FlushAge: -1})
	own := c.client()
	w := c.writer(own, "orders")
	fill(t, w, 10)
	eventually(t, "n1 to have LSN 10", func() bool { return c.holds("n1", 10) })
	c.stop("n2")
	c.stop("n3")
	if _, err := w.Append(t.Context(), payload(11)); err != nil { // on n1 alone, and not committed
		t.Fatal(err)
	}
	eventually(t, "LSN 11 to be in the archive", func() bool {
		for o, err := range objstore.All(t.Context(), c.store.Store, "arch/") {
			if _, last, ok := rangeOf(o.Key); err == nil && ok && last >= 11 {
				return true
			}
		}
		return false
	})
	c.stop("n1")
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		c.wipe(n)
		c.start(n)
	}
	info, err := client.Info(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	w, err = c.client().OpenWriter(t.Context(), "orders", btrlog.WriterOptions{Nodes: names,
		AcceptLoss: &btrlog.AcceptLoss{Log: info.ID, Epoch: info.Epoch, Gone: names, Wait: 200 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	skip := btrlog.LSN(protocol.LossSkip)
	if got := w.Info(); len(got.Lost) != 1 || got.Lost[0].From != 12 || got.Lost[0].To != 11+skip || got.Copied == 0 {
		t.Fatalf("%+v", got)
	}
	last := fill(t, w, 5)
	got, lost := scanAll(t, c.reader(c.client(), "orders"), 1)
	if want := slices.Concat(lsns(1, 11), lsns(12+skip, last)); !slices.Equal(got, want) || !slices.Equal(lost, [][2]btrlog.LSN{{12, 11 + skip}}) {
		t.Fatalf("read %v, lost %v", got, lost)
	}
}
