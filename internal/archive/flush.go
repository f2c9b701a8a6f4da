package archive

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// Flush makes sure that the store holds the stretch of a plan, and returns the objects that it learnt to be there, with
// what each proves (AR3), for protocol's Shard.Archived. The plan and the records are one snapshot of the shard, the
// plan's CLSN included: an object stamped with a later cLSN would prove records that a takeover voided meanwhile
// (TRACES H11). Flush takes the CLSN from the plan alone.
//
// Rank 0 writes at once: a healthy segment costs one PUT attempt and nothing else. Every other rank looks first and
// writes only what no objects cover; and it, and rank 0 when the plan is late, asks for the object by its name when that is known, just
// before the PUT: a PUT that is refused costs as much as one that is not, and ten times what it costs to ask. A plan whose CLSN is below Last (failure snapshot) makes an object of kind "p"; if
// that name is taken with a lower cLSN, the object found is returned as it is, and the proof of the rest comes with the
// plan that covers it at its CLSN, under another name (TRACES H13).
//
// Errors: ErrUnavailable (retryable: call again later, with the same plan or a newer one), ErrSource (plan again),
// ErrDamaged (the object of this very name is damaged in the store: an operator must restore or remove it), the source's
// own, or the store's refusal, which only an operator can end. Objects learnt before an error are returned with it.
func (a *Archive) Flush(ctx context.Context, plan protocol.Segment, source RecordSource) ([]protocol.ArchivedObject, error) {
	if err := checkPlan(plan); err != nil {
		return nil, err
	}
	var found []protocol.ArchivedObject
	if plan.Rank != 0 {
		var err error
		if found, err = a.LookFor(ctx, plan); err != nil {
			return found, fmt.Errorf("archive: looking for log %v label %d LSNs %d to %d: %w", plan.Log, plan.Label, plan.First, plan.Last, err)
		}
		if Covers(found, plan) {
			a.counts.found.Add(1)
			return found, nil
		}
	}
	buf, _ := a.bodies.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	defer a.bodies.Put(buf)
	body, key, s, err := build((*buf)[:0], plan, source, a.o.Compression)
	if err != nil {
		return found, err
	}
	*buf = body[:0]
	var own protocol.ArchivedObject
	if plan.Rank != 0 || plan.Late {
		own, err = a.lookAt(ctx, key, s.plainSize)
		if err == nil {
			a.counts.found.Add(1)
		}
	}
	if plan.Rank == 0 && !plan.Late || errors.Is(err, objstore.ErrNotFound) {
		own, err = a.create(ctx, plan, key, body, s)
	}
	if err != nil {
		return found, fmt.Errorf("archive: flushing %q: %w", a.KeyString(key), err)
	}
	return append(found, own), nil
}

// create writes one object if it is absent and returns what is there in the end.
func (a *Archive) create(ctx context.Context, plan protocol.Segment, k Key, body []byte, s shape) (protocol.ArchivedObject, error) {
	created, info, err := a.createIfAbsent(ctx, a.KeyString(k), body, metadata(plan, s.compression), k.Kind == Committed)
	switch {
	case err != nil:
		return protocol.ArchivedObject{}, err
	case created:
		return archived(k, plan.CLSN), nil
	case info == nil:
		return archived(k, k.Last), nil
	}
	return a.described(k, *info, s.plainSize)
}

func archived(k Key, clsn protocol.LSN) protocol.ArchivedObject {
	return protocol.ArchivedObject{Label: k.Label, First: k.First, Last: k.Last, CLSN: clsn}
}

// lookAt asks for one object by its full name. size is as in described.
func (a *Archive) lookAt(ctx context.Context, k Key, size int64) (protocol.ArchivedObject, error) {
	info, err := a.head(ctx, a.KeyString(k))
	if errors.Is(err, objstore.ErrDamaged) {
		return protocol.ArchivedObject{}, fmt.Errorf("%w: %q: %w", ErrDamaged, a.KeyString(k), err)
	}
	if err != nil {
		return protocol.ArchivedObject{}, err
	}
	return a.described(k, info, size)
}

// described returns what an object proves by its description. size is what its records make without compression; -1 is unknown. Of a
// compressed object the size says nothing: encoders differ.
func (a *Archive) described(k Key, info objstore.Info, size int64) (protocol.ArchivedObject, error) {
	if size >= 0 && info.Size != size && info.Metadata[metaFormat] == strconv.Itoa(formatV1) {
		return protocol.ArchivedObject{}, fmt.Errorf("%w: %q has %d bytes, its records make %d", ErrDamaged, a.KeyString(k), info.Size, size)
	}
	return archived(k, clsnOf(k, info.Metadata)), nil
}

// lookAtAll adds to found what those of kind Partly prove. One that is gone or damaged proves nothing; what it should have
// proved is written again.
func (a *Archive) lookAtAll(ctx context.Context, partly []Key, found []protocol.ArchivedObject) ([]protocol.ArchivedObject, error) {
	for _, k := range partly {
		o, err := a.lookAt(ctx, k, -1)
		switch {
		case err == nil:
			found = append(found, o)
		case errors.Is(err, objstore.ErrNotFound), errors.Is(err, ErrDamaged):
		default:
			return found, err
		}
	}
	return found, nil
}

// LookFor lists what the store holds of a plan's stretch under its label. One listing that starts at the plan's segment
// finds every object that may hold a record of it, whatever its first LSN (AR5); a node with holes could not name them.
// Metadata is asked only of "p" objects, and only if the "c" objects do not cover the stretch.
func (a *Archive) LookFor(ctx context.Context, plan protocol.Segment) ([]protocol.ArchivedObject, error) {
	var found []protocol.ArchivedObject
	var partly []Key
	prefix := fmt.Sprintf("%s%016x/", a.logPrefix(plan.Log), uint64(plan.Label))
	after := a.before(plan.Log, plan.Label, plan.SegStart)
	for {
		page, err := a.list(ctx, prefix, after, lookPage)
		if err != nil {
			return found, err
		}
		passed := false
		for _, o := range page.Objects {
			after = o.Key
			k, ok := a.usable(o)
			switch {
			case !ok:
			case k.First > plan.Last:
				passed = true
			case k.Last < plan.First:
			case k.Kind == Committed:
				found = append(found, archived(k, k.Last))
			default:
				partly = append(partly, k)
			}
		}
		if passed || !page.More {
			break
		}
	}
	if Covers(found, plan) {
		return found, nil
	}
	found, err := a.lookAtAll(ctx, partly, found)
	if err != nil || Covers(found, plan) {
		return found, err
	}
	err = a.packed(ctx, plan.Log, plan.First-1, func(m *member, _ *pack) {
		if m.key.Label == plan.Label && m.key.First <= plan.Last {
			found = append(found, archived(m.key, m.key.Last))
		}
	})
	return found, err
}

// lookPage is the page of a listing that expects a handful of objects.
const lookPage = 100

// usable says whether a listed object can be one of ours and whole. What is not is left alone: it proves nothing.
func (a *Archive) usable(o objstore.Info) (Key, bool) {
	k, err := a.ParseKey(o.Key)
	// An empty ETag is an object whose description the store cannot read.
	return k, err == nil && o.ETag != "" && o.Size >= minObjectBytes
}

// Covers says whether objects together hold every LSN of a plan, and prove those at or below its CLSN.
func Covers(objects []protocol.ArchivedObject, plan protocol.Segment) bool {
	proven := reach(plan.First-1, objects, func(o protocol.ArchivedObject) protocol.LSN { return min(o.Last, o.CLSN) })
	held := reach(plan.First-1, objects, func(o protocol.ArchivedObject) protocol.LSN { return o.Last })
	return held >= plan.Last && proven >= min(plan.Last, plan.CLSN)
}

// reach returns the highest LSN up to which the objects leave no hole above through.
func reach(through protocol.LSN, objects []protocol.ArchivedObject, end func(protocol.ArchivedObject) protocol.LSN) protocol.LSN {
	for raised := true; raised; {
		raised = false
		for _, o := range objects {
			if e := end(o); o.First <= through+1 && e > through {
				through, raised = e, true
			}
		}
	}
	return through
}
