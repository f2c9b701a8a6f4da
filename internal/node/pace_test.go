package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
)

// slowly runs a paced source on a clock of its own, on which only pauses take time, and returns them.
func slowly(t *testing.T, ctx context.Context, records, size int, spread time.Duration, waiting int) (pauses []time.Duration, took time.Duration, read int, err error) {
	t.Helper()
	now := time.Unix(1000, 0)
	p := pacer{spread: spread, waiting: func() int { return waiting }, now: func() time.Time { return now }, sleep: func(ctx context.Context, d time.Duration) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		pauses, took, now = append(pauses, d), took+d, now.Add(d)
		return nil
	}}
	seg := protocol.Segment{Log: 1, Label: 1, SegStart: 11, First: 11, Last: 10 + protocol.LSN(records)}
	data := make([]byte, size)
	src := func(yield func(archive.Record, error) bool) {
		for lsn := seg.First; lsn <= seg.Last && yield(archive.Record{LSN: lsn, Label: 1, Data: data}, nil); lsn++ {
		}
	}
	for r, e := range p.paced(ctx, seg, src) {
		if e != nil {
			return pauses, took, read, e
		}
		if read++; r.LSN != 10+protocol.LSN(read) {
			t.Fatalf("record %d is LSN %d", read, r.LSN)
		}
	}
	return pauses, took, read, nil
}

// A segment is spread evenly over the time that it has, over less where others wait, and a short one is not held up.
func TestPace(t *testing.T) {
	const spread = 500 * time.Millisecond
	for _, c := range []struct{ records, size, waiting, pauses int }{
		{4096, 4096, 0, 63}, {4096, 4096, 4, 63}, {64, 4096, 0, 0}, {20, 1 << 20, 0, 19}, {1, 8 << 20, 0, 0},
	} {
		pauses, took, read, err := slowly(t, t.Context(), c.records, c.size, spread, c.waiting)
		most := spread / time.Duration((1+c.waiting)*(1+c.waiting))
		if err != nil || read != c.records || len(pauses) != c.pauses || took > most || c.pauses > 0 && took < most*9/10 {
			t.Errorf("%+v: %d records, %d pauses of %v, %v", c, read, len(pauses), took, err)
		}
		for _, d := range pauses {
			if each := most / time.Duration(c.pauses+1); d < each*9/10 || d > each*11/10 {
				t.Errorf("%+v: a pause of %v, %v each would be even", c, d, each)
				break
			}
		}
	}
}

func TestPaceEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, read, err := slowly(t, ctx, 4096, 4096, time.Second, 0); !errors.Is(err, context.Canceled) || read != paceBytes/4096 {
		t.Fatalf("%d records, then %v", read, err)
	}
}
