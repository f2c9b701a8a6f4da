package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// PackPlan is one stretch that is to go into a pack.
type PackPlan struct {
	Plan   protocol.Segment
	Source RecordSource
}

// PackResult is what became of one PackPlan: objects that the store holds, as those that Flush returns, or an error.
type PackResult struct {
	Objects []protocol.ArchivedObject
	Err     error
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Log, b.Log), cmp.Compare(a.Label, b.Label), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last),
		cmp.Compare(a.Kind, b.Kind), slices.Compare(a.Hash[:], b.Hash[:]))
}

// FlushPack does for many short stretches what Flush does for one, with one object of the store for all of them, or for each
// MaxPackBytes of them. It looks for nothing first. Every plan must be committed as a whole (CLSN at or above Last).
// The results are in the order of the plans; one whose source fails does not keep the others from the store.
func (a *Archive) FlushPack(ctx context.Context, plans []PackPlan) []PackResult {
	results := make([]PackResult, len(plans))
	order := make([]int, len(plans))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		p, q := &plans[i].Plan, &plans[j].Plan
		return cmp.Or(cmp.Compare(p.Log, q.Log), cmp.Compare(p.Label, q.Label), cmp.Compare(p.First, q.First), cmp.Compare(p.Last, q.Last), cmp.Compare(i, j))
	})
	buf, _ := a.bodies.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	defer a.bodies.Put(buf)
	var p packBuilder
	p.begin(*buf, 0)
	var in []int // the plans of the pack under way
	put := func() {
		if len(in) == 0 {
			return
		}
		body, key := p.finish()
		*buf = body[:0]
		err := a.createPack(ctx, key, body)
		for _, i := range in {
			if s := &plans[i].Plan; err == nil {
				results[i].Objects = []protocol.ArchivedObject{{Label: s.Label, First: s.First, Last: s.Last, CLSN: s.Last}}
			} else {
				results[i].Err = fmt.Errorf("archive: flushing log %v LSNs %d to %d in a pack: %w", s.Log, s.First, s.Last, err)
			}
		}
		in = in[:0]
		p.begin(*buf, 0)
	}
	for _, i := range order {
		s := &plans[i].Plan
		if s.CLSN < s.Last {
			results[i].Err = fmt.Errorf("%w: log %v LSNs %d to %d: only committed records go into a pack, the watermark is %d", ErrSource, s.Log, s.First, s.Last, s.CLSN)
			continue
		}
		at := len(p.body)
		body, key, shape, err := build(p.body, *s, plans[i].Source, a.o.Compression)
		if err != nil {
			results[i].Err = err
			p.body = body[:at]
			continue
		}
		p.body = body
		p.added(key, at, 0, shape.compression, shape.content)
		in = append(in, i)
		if p.full() {
			put()
		}
	}
	put()
	return results
}

// createPack writes a pack if it is absent.
func (a *Archive) createPack(ctx context.Context, k packKey, body []byte) error {
	key := a.packName(k)
	_, info, err := a.createIfAbsent(ctx, key, body, nil, true)
	if err == nil && info != nil && info.Size != int64(len(body)) {
		err = fmt.Errorf("%w: %q has %d bytes, its members make %d", ErrDamaged, key, info.Size, len(body))
	}
	return err
}

// createIfAbsent creates an object whose name determines its bytes, or finds it. named says that a refusal because the object exists is proof
// enough; otherwise the object is looked at, and info is what was found. It is nil when the object was created or the name was
// enough. No outcome is guessed (AR4).
func (a *Archive) createIfAbsent(ctx context.Context, key string, body []byte, meta map[string]string, named bool) (created bool, info *objstore.Info, err error) {
	unknown := false // an earlier try of mine may have been applied, or may still be
	for i := range a.o.Attempts {
		if i > 0 {
			if e := a.pause(ctx, i); e != nil {
				return false, nil, unavailable(i, errors.Join(e, err))
			}
		}
		err = a.put(ctx, key, body, meta)
		look := false
		switch {
		case err == nil:
			a.counts.flushed.Add(1)
			return true, nil, nil
		case errors.Is(err, objstore.ErrPrecondition):
			// Somebody, or I, created it: the name says what it holds (AR1, AP1). After an unknown outcome the store is asked
			// nevertheless: a refusal that stems from a write still in flight would let the data be dropped before the
			// object is there.
			if named && !unknown {
				a.counts.found.Add(1)
				return false, nil, nil
			}
			look = true
		case errors.Is(err, objstore.ErrUnknown):
			unknown, look = true, true
		case !objstore.Retryable(err):
			return false, nil, err
		}
		if look {
			info, e := a.head(ctx, key)
			switch {
			case e == nil:
				a.counts.found.Add(1)
				return false, &info, nil
			case errors.Is(e, objstore.ErrDamaged):
				return false, nil, fmt.Errorf("%w: %q: %w", ErrDamaged, key, e)
			case !errors.Is(e, objstore.ErrNotFound):
				return false, nil, e
			}
			// Not there: to write again is safe even if the first write still arrives, because both create the same
			// object or fail (AR4).
		}
		if ctx.Err() != nil {
			return false, nil, unavailable(i+1, err)
		}
	}
	return false, nil, unavailable(a.o.Attempts, err)
}
