package archive

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// Retention says which archived records of a log are no longer wanted. A zero field keeps everything.
type Retention struct {
	Before time.Time // what the store has had since before this time
	Bytes  int64     // the oldest beyond this many bytes of objects
	// Lost are the log's lost ranges: no object will ever hold them, and what lies behind them is not kept because of them.
	Lost protocol.LostRanges
}

// Expired returns the trim point that a retention asks for: the LSN at which what is to be kept begins. It is never above
// what the archive proves committed without a hole from trimBefore on, so that nothing goes that is not archived, and never
// below trimBefore. An object goes whole or stays whole: Bytes keeps at least as many as it says. The store's clock decides
// what Before means (A5); what a store without a clock has is never too old.
//
// Errors: ErrUnavailable (call again), or the store's refusal.
func (a *Archive) Expired(ctx context.Context, log protocol.LogID, trimBefore protocol.LSN, r Retention) (protocol.LSN, error) {
	type held struct {
		first, last protocol.LSN
		size        int64
		young       bool
		proves      bool
	}
	var objects []held
	err := a.walk(ctx, log, trimBefore-1, func(k Key, info objstore.Info) {
		objects = append(objects, held{k.First, k.Last, info.Size, info.Modified.IsZero() || !info.Modified.Before(r.Before), k.Kind == Committed})
	})
	if err == nil {
		err = a.packed(ctx, log, trimBefore-1, func(m *member, p *pack) {
			since := p.modified
			if m.since != 0 {
				since = time.Unix(m.since, 0)
			}
			objects = append(objects, held{m.key.First, m.key.Last, m.size, since.IsZero() || !since.Before(r.Before), true})
		})
	}
	if err != nil {
		return 0, fmt.Errorf("archive: retention of log %v: %w", log, err)
	}
	slices.SortFunc(objects, func(a, b held) int { return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(b.last, a.last)) })

	// What is proven without a hole, and each byte of it once: an object inside another one adds nothing.
	proven := r.settled(trimBefore - 1)
	var bytes int64
	once := objects[:0:0]
	for _, o := range objects {
		if !o.proves || o.last <= proven {
			continue
		}
		if o.first > proven+1 {
			break
		}
		proven = r.settled(o.last)
		bytes += o.size
		once = append(once, o)
	}

	point := trimBefore
	if r.Bytes > 0 {
		for _, o := range once {
			if bytes -= o.size; bytes < r.Bytes {
				break
			}
			point = max(point, o.last+1)
		}
	}
	if !r.Before.IsZero() {
		aged := trimBefore
		for _, o := range once {
			if o.young {
				break
			}
			aged = o.last + 1
		}
		for _, o := range objects { // what is young keeps all of itself, whatever older copy there is of a part of it
			if o.young {
				aged = min(aged, o.first)
			}
		}
		point = max(point, aged)
	}
	return min(point, proven+1), nil
}

// settled returns the LSN up to which there is nothing to prove behind a proven one.
func (r *Retention) settled(proven protocol.LSN) protocol.LSN {
	for {
		l, ok := r.Lost.At(proven + 1)
		if !ok {
			return proven
		}
		proven = l.To
	}
}

// LogIDs iterates over the logs that have anything in the archive, at one request for each. It ends after an error.
func (a *Archive) LogIDs(ctx context.Context) iter.Seq2[protocol.LogID, error] {
	return func(yield func(protocol.LogID, error) bool) {
		cursor := ""
		for {
			page, err := a.list(ctx, a.prefix, cursor, 1)
			if err != nil {
				yield(0, fmt.Errorf("archive: listing the logs: %w", err))
				return
			}
			if len(page.Objects) == 0 {
				return
			}
			cursor = page.Objects[0].Key
			k, err := a.ParseKey(cursor)
			if err != nil {
				continue // not ours
			}
			if !yield(k.Log, nil) {
				return
			}
			cursor = a.prefix + k.Log.String() + "0" // '0' follows '/': behind all objects of this log, before the next log's
		}
	}
}
