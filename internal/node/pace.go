package node

import (
	"context"
	"time"

	"github.com/btrlog/btrlog/internal/archive"
	"github.com/btrlog/btrlog/internal/protocol"
)

// Pacing. A segment that is archived is read, hashed and maybe compressed; done at once that is a burst on the disk and the processors
// that the appends use. So a worker spreads it over a part of the grace after which the node of the next rank would archive the segment
// instead: it is over in time, and in between the appends have their turn. Where n plans wait for a worker a plan has the (n+1)²th part of
// that, so that archiving becomes as fast as it must be: however many wait, all the pauses together are less than twice those of one.

const (
	// paceShare: one plan is spread over this part of the grace, if none waits.
	paceShare = 4
	// paceBytes is how many bytes of records are read between two pauses; a stretch of less is not paced.
	paceBytes = 256 << 10
)

// pacer spreads the reading of plans. Its fields do not change.
type pacer struct {
	spread  time.Duration // of one plan, if none waits
	waiting func() int    // plans that wait for a worker
	now     func() time.Time
	sleep   func(ctx context.Context, d time.Duration) error
}

// paced yields what src does of a plan, spread. When ctx ends in a pause it yields ctx's error.
func (p *pacer) paced(ctx context.Context, seg protocol.Segment, src archive.RecordSource) archive.RecordSource {
	return func(yield func(archive.Record, error) bool) {
		began, since := p.now(), 0
		records := float64(seg.Last-seg.First) + 1
		for r, err := range src {
			if err == nil && since >= paceBytes {
				since = 0
				crowd := float64(1 + p.waiting())
				due := time.Duration(float64(p.spread) / (crowd * crowd) * float64(r.LSN-seg.First) / records)
				if early := due - p.now().Sub(began); early > 0 {
					if err := p.sleep(ctx, early); err != nil {
						yield(archive.Record{}, err)
						return
					}
				}
			}
			since += len(r.Data)
			if !yield(r, err) {
				return
			}
		}
	}
}
