package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// Stored is one copy of a stretch in the store.
type Stored struct {
	Key  Key
	CLSN protocol.LSN // it proves its records up to here
	Size int64        // bytes, as it is stored
	// Content is the bytes of its records uncompressed, with 4 for each: at once of a member of a pack that has compressed ones, of
	// others when Verify has read them; 0: not known.
	Content     int64
	Compression Compression // known where Content is
	// Name is the object's key; of a member of a pack the pack's, and the member begins at Offset.
	Name   string
	Packed bool
	Offset int64
	// Since is when the store first had it; zero: not known.
	Since time.Time
	// Double: all of it is in another copy of the same label. Of two equal ones, the one whose name sorts behind is.
	Double bool
	// Replaced: it is in a pack that was merged, and will be deleted.
	Replaced bool

	at *object
}

// Contents is what the store holds of one log.
type Contents struct {
	Stored []Stored // by first LSN, label, last LSN
	// Broken are objects that can hold nothing of the log that could be used: cut short, unreadable, with a description that is damaged.
	Broken []string
	// Foreign are keys below the log's that no version of this program writes.
	Foreign []string
}

// Contents lists what the store holds of a log: a listing, a look at each object of kind Partly, and a look into each pack that may
// have something of it. Errors: ErrUnavailable, or the store's refusal.
func (a *Archive) Contents(ctx context.Context, log protocol.LogID) (*Contents, error) {
	c := &Contents{}
	for cursor := ""; ; {
		page, err := a.list(ctx, a.logPrefix(log), cursor, 0)
		if err != nil {
			return nil, fmt.Errorf("archive: listing the objects of log %v: %w", log, err)
		}
		for _, o := range page.Objects {
			cursor = o.Key
			k, err := a.ParseKey(o.Key)
			if err != nil {
				c.Foreign = append(c.Foreign, o.Key)
				continue
			}
			if _, ok := a.usable(o); !ok {
				c.Broken = append(c.Broken, fmt.Sprintf("%s: %d bytes, or a description, that no segment has", o.Key, o.Size))
				continue
			}
			s := Stored{Key: k, CLSN: k.Last, Size: o.Size, Name: o.Key, Since: o.Modified, at: &object{key: k, size: o.Size}}
			if k.Kind != Committed {
				proof, err := a.lookAt(ctx, k, -1)
				switch {
				case errors.Is(err, objstore.ErrNotFound):
					continue
				case errors.Is(err, ErrDamaged):
					c.Broken = append(c.Broken, err.Error())
					continue
				case err != nil:
					return nil, err
				}
				s.CLSN = proof.CLSN
			}
			c.Stored = append(c.Stored, s)
		}
		if !page.More || len(page.Objects) == 0 {
			break
		}
	}
	replaced := make(map[[HashBytes]byte]bool)
	broken, err := a.packedOf(ctx, log, 0, func(m *member, p *pack) {
		since := p.modified
		if m.since != 0 {
			since = time.Unix(m.since, 0)
		}
		c.Stored = append(c.Stored, Stored{Key: m.key, CLSN: m.key.Last, Size: m.size, Name: p.name, Packed: true, Offset: m.offset, Since: since, Content: m.content, Compression: m.compression,
			at: &object{key: m.key, size: m.size, pack: p, base: m.offset}})
	})
	if err != nil {
		return nil, err
	}
	if broken != nil {
		c.Broken = append(c.Broken, broken.Error())
	}
	err = a.listPacks(ctx, log, log, func(p *pack) error {
		t, err := a.packTail(ctx, p)
		if err != nil {
			return ignoreBroken(err)
		}
		for _, s := range t.sources {
			replaced[s] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range c.Stored {
		if s := &c.Stored[i]; s.Packed {
			s.Replaced = replaced[s.at.pack.hash]
		}
	}
	slices.SortFunc(c.Stored, func(x, y Stored) int {
		return cmp.Or(cmp.Compare(x.Key.First, y.Key.First), cmp.Compare(x.Key.Label, y.Key.Label), cmp.Compare(x.Key.Last, y.Key.Last), cmp.Compare(x.Name, y.Name))
	})
	c.markDoubles()
	return c, nil
}

// ignoreBroken passes over a pack that is gone or cannot be read.
func ignoreBroken(err error) error {
	if errors.Is(err, errPackGone) || errors.Is(err, ErrDamaged) || errors.Is(err, ErrTooNew) {
		return nil
	}
	return err
}

func (c *Contents) markDoubles() {
	type reach struct {
		last protocol.LSN
		at   int
	}
	// In this order what covers a stretch begins at or before it: one pass with the farthest reach of each label finds all.
	far := make(map[protocol.Epoch]reach)
	for i := range c.Stored {
		s := &c.Stored[i]
		if s.Replaced {
			continue
		}
		end := min(s.Key.Last, s.CLSN)
		r, ok := far[s.Key.Label]
		switch {
		case ok && s.Key.Last <= r.last:
			s.Double = true
		case ok && c.Stored[r.at].Key.First == s.Key.First:
			// The shorter one came first: it is the double.
			if c.Stored[r.at].Key.Last <= end {
				c.Stored[r.at].Double = true
			}
		}
		if end > r.last {
			far[s.Key.Label] = reach{end, i}
		}
	}
}

// Through returns the highest LSN that is proven archived, 0 if none is.
func (c *Contents) Through() (t protocol.LSN) {
	for _, s := range c.Stored {
		if end := min(s.Key.Last, s.CLSN); end >= s.Key.First {
			t = max(t, end)
		}
	}
	return t
}

// Missing returns the LSNs in [from, through] that no copy proves, without those that are lost on record.
func (c *Contents) Missing(from, through protocol.LSN, lost protocol.LostRanges) (missing []protocol.Range) {
	r := Retention{Lost: lost}
	at := r.settled(from - 1) // up to here all is accounted for
	for _, s := range c.Stored {
		end := min(s.Key.Last, s.CLSN)
		if end <= at || end < s.Key.First {
			continue
		}
		if s.Key.First > at+1 {
			missing = r.appendHole(missing, at+1, min(s.Key.First-1, through))
		}
		at = r.settled(end)
		if at >= through {
			return missing
		}
	}
	return r.appendHole(missing, at+1, through)
}

// appendHole adds what of [from, to] is not lost on record.
func (r *Retention) appendHole(missing []protocol.Range, from, to protocol.LSN) []protocol.Range {
	for from <= to {
		if after := r.settled(from - 1); after >= from {
			from = after + 1
			continue
		}
		end := to
		for _, l := range r.Lost {
			if l.From > from {
				end = min(end, l.From-1)
			}
		}
		missing = append(missing, protocol.Range{From: from, To: end})
		from = end + 1
	}
	return missing
}

// Verify reads a copy, in ranged reads of bounded size, and checks every checksum and the hash of its records. It fills in
// what only the object itself says. Errors: ErrDamaged, ErrTooNew (a *CodecError too: what cannot be uncompressed cannot be
// verified), ErrUnavailable, or the store's refusal; ErrDamaged too if it is gone.
func (a *Archive) Verify(ctx context.Context, s *Stored) error {
	b, err := a.rangeOf(ctx, s.at, 0, s.Size, nil)
	if err == nil {
		err = Decode(s.Key, b, nil)
	}
	if h, bad := parseHead(b); err == nil && bad == nil {
		s.Content, s.Compression = int64(h.content), h.compression
	}
	if elsewhere(err) {
		return fmt.Errorf("%s: %w", a.nameOf(s.at), err)
	}
	return err
}
