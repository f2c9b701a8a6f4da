package archive

import (
	"context"
	"errors"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// Look lists what the store holds of a log above LSN after: every object, and member of a pack, whose last LSN is above it, with
// what it proves. Objects that cannot be read prove nothing and are left out. Errors: ErrUnavailable, or the store's refusal.
func (a *Archive) Look(ctx context.Context, log protocol.LogID, after protocol.LSN) ([]protocol.ArchivedObject, error) {
	var found []protocol.ArchivedObject
	var partly []Key
	err := a.walk(ctx, log, after, func(k Key, _ objstore.Info) {
		if k.Kind == Committed {
			found = append(found, archived(k, k.Last))
		} else {
			partly = append(partly, k)
		}
	})
	if err != nil {
		return nil, err
	}
	if found, err = a.lookAtAll(ctx, partly, found); err != nil {
		return nil, err
	}
	err = a.packed(ctx, log, after, func(m *member, _ *pack) { found = append(found, archived(m.key, m.key.Last)) })
	return found, err
}

// walk visits every usable object of a log whose last LSN is above after.
//
// Keys sort by label, then by first LSN, so "what is new since the last key" is not "what sorts behind it": a hole of an
// old segment is closed late, the end of an old epoch is sealed late, a repair has a label between two others. What a
// caller who holds everything up to after can leave out is what ends at or below after. The trouble is that an object
// which begins below it may end above. But such an object lies in one segment (AR5): if any object of the same label
// begins between the two, it is of that same segment, and its metadata says where the segment starts. So when a page
// ends below after, the walk jumps ahead to just below after, takes any object there, and goes on from the start of its
// segment. A log of any size costs a few requests per label; without the jump it would be a request per thousand objects.
func (a *Archive) walk(ctx context.Context, log protocol.LogID, after protocol.LSN, visit func(Key, objstore.Info)) error {
	prefix, cursor := a.logPrefix(log), ""
	var j jumper
	for {
		page, err := a.list(ctx, prefix, cursor, 0)
		if err != nil {
			return err
		}
		var first, last Key // of the label in which the page ends
		n := 0
		for _, o := range page.Objects {
			k, ok := a.usable(o)
			if !ok {
				continue
			}
			if k.Label != last.Label {
				first, n = k, 0
			}
			last = k
			n++
			if k.Last > after {
				visit(k, o)
			}
		}
		if !page.More || len(page.Objects) == 0 {
			return nil
		}
		cursor = page.Objects[len(page.Objects)-1].Key
		if n > 0 && last.First < after {
			span := (last.First-first.First)/protocol.LSN(n) + 1
			to, err := j.jump(ctx, a, last, after, span)
			if err != nil {
				return err
			}
			cursor = max(cursor, to)
		}
	}
}

// jumper remembers, over the pages of one walk, where a label has ended.
type jumper struct {
	label protocol.Epoch
	// end: no object of label begins in [end, after+1).
	end protocol.LSN
}

// jump returns a place in the listing from which on everything of at's label that ends above after follows, or "" when it
// knows none. span is about how many LSNs one object holds.
func (j *jumper) jump(ctx context.Context, a *Archive, at Key, after, span protocol.LSN) (string, error) {
	if j.label != at.Label {
		*j = jumper{at.Label, after + 1}
	}
	for back := span; j.end > at.First && back < (j.end-at.First)/8; {
		back *= 8
		from := j.end - back
		place := a.before(at.Log, at.Label, from)
		page, err := a.list(ctx, a.logPrefix(at.Log), place, lookPage)
		if err != nil {
			return "", err
		}
		var near Key // the last one seen that begins in [from, after]
		passed := false
		for _, o := range page.Objects {
			k, ok := a.usable(o)
			passed = passed || (ok && (k.Label != at.Label || k.First > after))
			if ok && k.Label == at.Label && k.First <= after {
				near = k
			}
		}
		if near.Label == 0 {
			if !passed && page.More {
				return "", nil // a page full of foreign keys
			}
			j.end = from
			continue
		}
		info, err := a.head(ctx, a.KeyString(near))
		if errors.Is(err, objstore.ErrNotFound) || errors.Is(err, objstore.ErrDamaged) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		start, ok := parseHex16(info.Metadata[metaSegStart])
		if !ok || start == 0 || start > uint64(near.First) {
			return "", nil
		}
		if protocol.LSN(start) < from {
			place = a.before(at.Log, at.Label, protocol.LSN(start))
		}
		return place, nil
	}
	return "", nil
}
