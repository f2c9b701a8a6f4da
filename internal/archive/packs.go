package archive

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
	"github.com/btrlog/btrlog/objstore"
)

// pack is a pack that a listing showed.
type pack struct {
	packKey
	name     string
	size     int64
	modified time.Time // zero: the store does not say
}

// directories caches what was read of packs: trailers, and blocks of the directory. Packs never change, so it is never wrong.
// Oldest out first.
type directories struct {
	mu     sync.Mutex
	tails  map[string]*packTail
	blocks map[blockName][]member
	order  []blockName // block −1 stands for the tail
	size   int
}

type blockName struct {
	pack  string
	block int
}

// maxDirectoryMembers bounds the cache, at about 100 bytes each.
const maxDirectoryMembers = 1 << 16

func (d *directories) put(n blockName, t *packTail, b []member) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tails == nil {
		d.tails, d.blocks = make(map[string]*packTail), make(map[blockName][]member)
	}
	if t != nil {
		if d.tails[n.pack] != nil {
			return
		}
		d.tails[n.pack] = t
	} else {
		if d.blocks[n] != nil {
			return
		}
		d.blocks[n] = b
	}
	d.order = append(d.order, n)
	d.size += weigh(t, b)
	for d.size > maxDirectoryMembers && len(d.order) > 1 {
		old := d.order[0]
		d.order = d.order[1:]
		d.size -= weigh(d.tails[old.pack], d.blocks[old])
		if old.block < 0 {
			delete(d.tails, old.pack)
		} else {
			delete(d.blocks, old)
		}
	}
}

func weigh(t *packTail, b []member) int {
	if b != nil || t == nil {
		return len(b) + 1
	}
	return len(t.fences)/8 + 1
}

func (d *directories) get(n blockName) (*packTail, []member) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n.block < 0 {
		return d.tails[n.pack], nil
	}
	return nil, d.blocks[n]
}

// listPacks visits the packs that may hold something of the logs in [lowest, highest], of level from on, the levels upwards
// (AP3).
func (a *Archive) listPacks(ctx context.Context, lowest, highest protocol.LogID, visit func(*pack) error) error {
	cursor := ""
	for {
		page, err := a.list(ctx, a.packPrefix(), cursor, 0)
		if err != nil {
			return fmt.Errorf("archive: listing the packs: %w", err)
		}
		for _, o := range page.Objects {
			cursor = o.Key
			k, err := a.parsePackName(o.Key)
			if err != nil || o.ETag == "" || o.Size > maxPackObject || k.highest < lowest || k.lowest > highest {
				continue
			}
			if err := visit(&pack{packKey: k, name: o.Key, size: o.Size, modified: o.Modified}); err != nil {
				return err
			}
		}
		if !page.More || len(page.Objects) == 0 {
			return nil
		}
	}
}

// errPackGone: a pack that was listed is gone: merging has replaced it. List again.
var errPackGone = errors.New("archive: a pack was merged away")

// packTries bounds how often a listing is begun anew because packs were merged meanwhile.
const packTries = 4

// packed visits every member of a log whose last LSN is above after. A pack that cannot be read proves nothing and is left out.
func (a *Archive) packed(ctx context.Context, log protocol.LogID, after protocol.LSN, visit func(*member, *pack)) error {
	_, err := a.packedOf(ctx, log, after, visit)
	return err
}

// packedOf is packed; broken says which packs could not be read that may hold something of the log.
func (a *Archive) packedOf(ctx context.Context, log protocol.LogID, after protocol.LSN, visit func(*member, *pack)) (broken, err error) {
	type found struct {
		m *member
		p *pack
	}
	var all []found
	for try := 0; ; try++ {
		all, broken = all[:0], nil
		err := a.listPacks(ctx, log, log, func(p *pack) error {
			err := a.membersOf(ctx, p, log, func(m *member) {
				if m.key.Last > after {
					all = append(all, found{m, p})
				}
			})
			if errors.Is(err, ErrDamaged) || errors.Is(err, ErrTooNew) {
				broken, err = errors.Join(broken, err), nil
			}
			return err
		})
		if errors.Is(err, errPackGone) && try+1 < packTries {
			continue
		}
		if errors.Is(err, errPackGone) {
			err = fmt.Errorf("%w: log %v: %w", ErrUnavailable, log, err)
		}
		if err != nil {
			return nil, err
		}
		for _, f := range all {
			visit(f.m, f.p)
		}
		return broken, nil
	}
}

// membersOf visits a pack's members of one log, at one or two requests if nothing of it is cached.
func (a *Archive) membersOf(ctx context.Context, p *pack, log protocol.LogID, visit func(*member)) error {
	t, err := a.packTail(ctx, p)
	if err != nil {
		return err
	}
	// The first block that may hold the log is the one before the first whose fence is the log or above.
	for i := max(0, sort.Search(len(t.fences), func(i int) bool { return t.fences[i] >= log })-1); i < len(t.fences) && t.fences[i] <= log; i++ {
		block, err := a.packBlock(ctx, p, t, i)
		if err != nil {
			return err
		}
		for j := range block {
			if block[j].key.Log == log {
				visit(&block[j])
			}
		}
	}
	return nil
}

// packGuess is how much of a pack's end is read in the hope that it holds the whole directory, or at least the fences.
const packGuess = 16 << 10

// packTail returns the verified trailer of a pack; the blocks that came with it are cached too.
func (a *Archive) packTail(ctx context.Context, p *pack) (*packTail, error) {
	if t, _ := a.dirs.get(blockName{p.name, -1}); t != nil {
		return t, nil
	}
	fail := func(err error) (*packTail, error) { return nil, fmt.Errorf("archive: %q: %w", p.name, err) }
	n := min(p.size, packGuess)
	b, err := a.packRange(ctx, p, p.size-n, n, nil)
	if err != nil {
		return nil, err
	}
	size, err := packTailSize(b, p.packKey, p.size)
	if err != nil {
		return fail(err)
	}
	if size > n {
		if b, err = a.packRange(ctx, p, p.size-size, size, nil); err != nil {
			return nil, err
		}
	}
	t, err := parsePackTail(b[int64(len(b))-size:])
	if err != nil {
		return fail(err)
	}
	a.dirs.put(blockName{p.name, -1}, t, nil)
	for i := range t.fences {
		if at, n := t.block(i); at >= p.size-int64(len(b)) {
			from := at - (p.size - int64(len(b)))
			block, err := t.parseBlock(i, b[from:from+n])
			if err != nil {
				return fail(err)
			}
			a.dirs.put(blockName{p.name, i}, nil, block)
		}
	}
	return t, nil
}

// packBlock returns one block of the directory.
func (a *Archive) packBlock(ctx context.Context, p *pack, t *packTail, i int) ([]member, error) {
	if _, b := a.dirs.get(blockName{p.name, i}); b != nil {
		return b, nil
	}
	at, n := t.block(i)
	b, err := a.packRange(ctx, p, at, n, nil)
	if err != nil {
		return nil, err
	}
	block, err := t.parseBlock(i, b)
	if err != nil {
		return nil, fmt.Errorf("archive: %q: %w", p.name, err)
	}
	a.dirs.put(blockName{p.name, i}, nil, block)
	return block, nil
}

// packDirectory returns all members of a pack, past the cache.
func (a *Archive) packDirectory(ctx context.Context, p *pack) ([]member, error) {
	t, err := a.packTail(ctx, p)
	if err != nil {
		return nil, err
	}
	last, n := t.block(len(t.fences) - 1)
	b, err := a.packRange(ctx, p, t.directory, last+n-t.directory, nil)
	if err != nil {
		return nil, err
	}
	members := make([]member, 0, t.members)
	for i := range t.fences {
		at, n := t.block(i)
		block, err := t.parseBlock(i, b[at-t.directory:at-t.directory+n])
		if err != nil {
			return nil, fmt.Errorf("archive: %q: %w", p.name, err)
		}
		members = append(members, block...)
	}
	return members, nil
}

// packRange is getRange for a pack: one that is gone is errPackGone.
func (a *Archive) packRange(ctx context.Context, p *pack, offset, n int64, buf []byte) ([]byte, error) {
	b, err := a.getRange(ctx, p.name, p.size, offset, n, buf)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil, fmt.Errorf("%w: %q", errPackGone, p.name)
	}
	return b, err
}

// Packed is what a pack holds of one log.
type Packed struct {
	Log     protocol.LogID
	Objects []protocol.ArchivedObject
}

// NewPacks visits, log by log, what the packs hold that it has not seen before. seen is the names of those that it has, and is brought up
// to date; nobody else uses it meanwhile. Packs that the store has had since before old count as seen: who needs to know
// what they hold of a log looks for that log. One that cannot be read proves nothing and is passed over.
//
// Errors: ErrUnavailable (call again), or the store's refusal; then some of what was visited may be visited again.
func (a *Archive) NewPacks(ctx context.Context, seen map[string]bool, old time.Time, visit func(Packed)) error {
	listed := make(map[string]bool)
	err := a.listPacks(ctx, 0, ^protocol.LogID(0), func(p *pack) error {
		listed[p.name] = true
		if seen[p.name] {
			return nil
		}
		if p.modified.IsZero() || !p.modified.Before(old) {
			members, err := a.packDirectory(ctx, p)
			switch {
			case errors.Is(err, errPackGone), errors.Is(err, ErrDamaged), errors.Is(err, ErrTooNew):
			case err != nil:
				return err
			}
			for i := 0; i < len(members); {
				one := Packed{Log: members[i].key.Log}
				for ; i < len(members) && members[i].key.Log == one.Log; i++ {
					one.Objects = append(one.Objects, archived(members[i].key, members[i].key.Last))
				}
				visit(one)
			}
		}
		seen[p.name] = true
		return nil
	})
	if err != nil {
		return err
	}
	for name := range seen {
		if !listed[name] {
			delete(seen, name)
		}
	}
	return nil
}
