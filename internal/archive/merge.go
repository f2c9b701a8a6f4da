package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/btrlog/btrlog/internal/protocol"
)

// Merging keeps packs few, and puts what belongs to one log together: packs of one level whose logs overlap become packs of the
// next level, cut by log, in which neighbouring stretches of a log are one. After a few levels a pack holds few logs and much
// of each. What is trimmed, and what is of deleted logs, is left out on the way.

const (
	// mergeFan is how many overlapping packs of a level are merged, and twice that the most at once.
	mergeFan = 8
	// mergeDirectory bounds the entries that one merge holds in memory, 120 bytes each; there are at least two sources.
	mergeDirectory = 1 << 19
	// mergeRun is where a stretch of neighbours is cut, in bytes without compression.
	mergeRun = 4 << 20
	// mergeRead is the size of one ranged read of a source.
	mergeRead = 1 << 20
	maxLevel  = 0xff
)

// Keep returns the LSN below which nothing of a log is wanted any more: its trim point, or MaxLSN+1 if the log is deleted. It is
// asked once for each log of a merge.
type Keep func(ctx context.Context, log protocol.LogID) (protocol.LSN, error)

// MergeResult says what a merge did. All zero: there was nothing to do.
type MergeResult struct {
	Merged  int // packs whose content was written anew
	Created int
	Members int // stretches in the new packs
	Dropped int // stretches that were not wanted any more
	Deleted int // packs, of this merge or of earlier ones
}

// Add adds what another merge did.
func (r *MergeResult) Add(o MergeResult) {
	r.Merged += o.Merged
	r.Created += o.Created
	r.Members += o.Members
	r.Dropped += o.Dropped
	r.Deleted += o.Deleted
}

// MergePacks deletes packs that were merged, and merges one group of others, if there is one, of those that the store has had since before
// old; a store without a clock has had all of them for long. Any node may merge at any time: two that merge the same make the same
// packs, or doubles, which a later merge removes. A listing must not lag by as much as old lies in the past.
//
// Errors: ErrUnavailable (call again), ErrDamaged naming a pack that only an operator can mend, keep's own, or the store's refusal.
// Nothing is lost by any of them.
func (a *Archive) MergePacks(ctx context.Context, old time.Time, keep Keep) (r MergeResult, err error) {
	packs, err := a.allPacks(ctx)
	if err != nil {
		return r, err
	}
	replaced, err := a.replacements(ctx, packs, old)
	if err != nil {
		return r, err
	}
	left := packs[:0:0]
	for _, p := range packs {
		by, ok := replaced[p.hash]
		switch {
		case !ok || by.level <= p.level:
			if p.settled(old) {
				left = append(left, p)
			}
		case by.settled:
			// All that was wanted of it is in packs that have been there for a while (AP3). Reversed, a crash between the two would
			// lose it, and a reader whose listing lags would find neither.
			if err := a.remove(ctx, p.name); err != nil {
				return r, fmt.Errorf("archive: deleting the merged pack %q: %w", p.name, err)
			}
			r.Deleted++
		}
	}
	group := mergeGroup(left)
	if group == nil {
		return r, nil
	}
	m, err := a.merge(ctx, group, keep)
	m.Deleted += r.Deleted
	return m, err
}

// ScrubPack looks at one pack, the next one behind the key cursor, and writes it anew if half of it or more is not wanted any more, or
// deletes it if all of it is. It returns the cursor for the next call, "" behind the last.
func (a *Archive) ScrubPack(ctx context.Context, cursor string, old time.Time, keep Keep) (next string, r MergeResult, err error) {
	packs, err := a.allPacks(ctx)
	if err != nil {
		return cursor, r, err
	}
	packs = slices.DeleteFunc(packs, func(p *pack) bool { return !p.settled(old) })
	i, _ := slices.BinarySearchFunc(packs, cursor+"\x00", func(p *pack, c string) int { return strings.Compare(p.name, c) })
	if i == len(packs) {
		return "", r, nil
	}
	p := packs[i]
	members, err := a.packDirectory(ctx, p)
	if errors.Is(err, errPackGone) {
		return p.name, r, nil
	}
	if err != nil {
		return p.name, r, err
	}
	wanted := wants{ctx: ctx, keep: keep}
	var dead, all int64
	for j := range members {
		m := &members[j]
		ok, err := wanted.wanted(m.key)
		if err != nil {
			return cursor, r, err
		}
		all += m.size
		if !ok {
			dead += m.size
		}
	}
	if dead < (all+1)/2 || p.level == maxLevel && dead < all {
		return p.name, r, nil
	}
	r, err = a.merge(ctx, []*pack{p}, keep)
	return p.name, r, err
}

// allPacks lists the packs, by name.
func (a *Archive) allPacks(ctx context.Context) (packs []*pack, err error) {
	err = a.listPacks(ctx, 0, ^protocol.LogID(0), func(p *pack) error {
		packs = append(packs, p)
		return nil
	})
	return packs, err
}

// settled says that the store has had the pack since before old, as far as it has a clock.
func (p *pack) settled(old time.Time) bool { return p.modified.IsZero() || p.modified.Before(old) }

// mergeGroup chooses what to merge: mergeFan or more packs of one level that overlap with one of them, the oldest first.
func mergeGroup(packs []*pack) []*pack {
	for len(packs) > 0 {
		n := 1
		for n < len(packs) && packs[n].level == packs[0].level {
			n++
		}
		level := packs[:n] // by name, and so by lowest log
		packs = packs[n:]
		if level[0].level == maxLevel {
			continue
		}
		for i, p := range level {
			var group []*pack
			for _, q := range level[i:] {
				if q.lowest > p.highest {
					break
				}
				group = append(group, q)
			}
			if len(group) < mergeFan || settledGroup(group) {
				continue
			}
			slices.SortStableFunc(group, func(a, b *pack) int { return a.modified.Compare(b.modified) })
			group = group[:min(len(group), 2*mergeFan)]
			entries := 0
			for j, q := range group {
				if entries += int(q.members); entries > mergeDirectory && j >= 2 {
					group = group[:j]
					break
				}
			}
			return group
		}
	}
	return nil
}

// settledGroup says that merging would gain nothing: full packs of one log.
func settledGroup(group []*pack) bool {
	for _, p := range group {
		if p.lowest != p.highest || p.lowest != group[0].lowest || p.size < MaxPackBytes/2 {
			return false
		}
	}
	return true
}

// wants remembers what Keep said.
type wants struct {
	ctx  context.Context
	keep Keep
	log  protocol.LogID
	low  protocol.LSN
}

func (w *wants) wanted(k Key) (bool, error) {
	if w.log != k.Log {
		low, err := w.keep(w.ctx, k.Log)
		if err != nil {
			return false, err
		}
		w.log, w.low = k.Log, low
	}
	return k.Last >= w.low, nil
}

// sourced is a member of a source.
type sourced struct {
	member
	from *packReader
}

// merge writes what is wanted of a group's members into packs of the next level. If that is nothing it deletes the group.
func (a *Archive) merge(ctx context.Context, group []*pack, keep Keep) (r MergeResult, err error) {
	level := uint8(0)
	var all []sourced
	sources := group[:0:0]
	for _, p := range group {
		members, e := a.packDirectory(ctx, p)
		switch {
		case errors.Is(e, errPackGone):
			continue // another node merges
		case errors.Is(e, ErrDamaged), errors.Is(e, ErrTooNew):
			err = errors.Join(err, e) // it stays; the others need not wait for who mends it
			continue
		case e != nil:
			return r, e
		}
		sources = append(sources, p)
		level = max(level, p.level)
		from := &packReader{a: a, p: p, end: p.size}
		for _, m := range members {
			if m.since == 0 && !p.modified.IsZero() {
				m.since = p.modified.Unix()
			}
			all = append(all, sourced{m, from})
		}
	}
	if len(sources) == 0 {
		return r, err
	}
	slices.SortStableFunc(all, func(x, y sourced) int {
		return cmp.Or(compareMembers(&x.member, &y.member), strings.Compare(x.from.p.name, y.from.p.name))
	})
	buf, _ := a.bodies.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	defer a.bodies.Put(buf)
	m := merger{a: a, ctx: ctx, wants: wants{ctx: ctx, keep: keep}, buf: buf, level: min(level, maxLevel-1) + 1}
	m.out.begin(*buf, m.level)
	for _, p := range sources {
		m.sources = append(m.sources, p.hash)
	}
	e := m.run(all)
	if errors.Is(e, errPackGone) {
		return MergeResult{}, err // what was created is a double of what another node makes
	}
	if e != nil {
		return MergeResult{}, errors.Join(err, e)
	}
	r = m.result
	r.Merged = len(sources)
	if r.Created > 0 {
		return r, err
	}
	for _, p := range sources {
		if e := a.remove(ctx, p.name); e != nil {
			return r, errors.Join(err, fmt.Errorf("archive: deleting the pack %q, of which nothing is wanted: %w", p.name, e))
		}
		r.Deleted++
	}
	return r, err
}

// merger writes the packs of one merge.
type merger struct {
	a       *Archive
	ctx     context.Context
	wants   wants
	level   uint8
	buf     *[]byte
	out     packBuilder
	sources [][HashBytes]byte
	result  MergeResult
}

// run takes the members in order, and makes one of those that follow each other.
func (m *merger) run(all []sourced) error {
	var run, doubles []sourced // doubles: what the run holds already
	var bytes int64
	for i := range all {
		s := all[i]
		ok, err := m.wants.wanted(s.key)
		if err != nil {
			return err
		}
		if !ok {
			m.result.Dropped++
			continue
		}
		if n := len(run); n > 0 {
			through := run[n-1].key.Last // the highest: what does not reach further is not taken
			same := run[0].key.Log == s.key.Log && run[0].key.Label == s.key.Label
			if same && s.key.Last <= through {
				doubles = append(doubles, s)
				continue
			}
			if !same || s.key.First > through+1 || bytes+s.plainBytes() > mergeRun {
				if err := m.add(run, doubles); err != nil {
					return err
				}
				run, doubles, bytes = run[:0], doubles[:0], 0
			}
		}
		run, bytes = append(run, s), bytes+s.plainBytes()
	}
	if err := m.add(run, doubles); err != nil {
		return err
	}
	// The last one names the sources: it is there only when all others are.
	m.out.sources = m.sources
	return m.put()
}

// add adds a run of members of one log and label, each beginning no later than behind the one before. The doubles hold nothing that the
// run does not, and are left out if all of the run can be read.
func (m *merger) add(run, doubles []sourced) error {
	if len(run) > 1 || len(doubles) > 0 {
		if err := m.room(); err != nil {
			return err
		}
		ok, err := m.join(run)
		if ok || err != nil {
			return err
		}
		// One of them is damaged: each stays what it is, so that what can be read of them can be read. A double may be the only good copy.
		run = append(run, doubles...)
		slices.SortStableFunc(run, func(x, y sourced) int { return compareMembers(&x.member, &y.member) })
	}
	for len(run) > 0 {
		n := 1
		for n < len(run) && run[n].key == run[0].key {
			n++
		}
		s, err := m.pick(run[:n])
		if err != nil {
			return err
		}
		run = run[n:]
		if err := m.room(); err != nil {
			return err
		}
		b, err := s.from.read(m.ctx, s.offset, s.size)
		if err != nil {
			return err
		}
		at := len(m.out.body)
		m.out.body = append(m.out.body, b...)
		m.added(s.key, at, s.since, s.compression, s.content)
	}
	return nil
}

// pick returns the first that can be read of copies that should have the same bytes, or the first.
func (m *merger) pick(copies []sourced) (*sourced, error) {
	for i := range copies {
		if len(copies) == 1 {
			break
		}
		s := &copies[i]
		b, err := s.from.read(m.ctx, s.offset, s.size)
		if err != nil {
			return nil, err
		}
		if Decode(s.key, b, func(Record) bool { return true }) == nil {
			return s, nil
		}
	}
	return &copies[0], nil
}

// join makes one member of a run; false if one of them is damaged.
func (m *merger) join(run []sourced) (bool, error) {
	first, last := &run[0], &run[len(run)-1]
	b, err := first.from.read(m.ctx, first.offset, first.size)
	if err != nil {
		return false, err
	}
	h, err := parseHead(b)
	if err != nil {
		return false, nil
	}
	plan := protocol.Segment{Log: first.key.Log, Label: first.key.Label, SegStart: h.segStart, First: first.key.First, Last: last.key.Last, CLSN: last.key.Last}
	at := len(m.out.body)
	// What is compressed stays so, whoever merges it, if it can.
	compression := m.a.o.Compression
	for i := range run {
		if _, err := run[i].compression.codec(); err == nil && compression == NoCompression {
			compression = run[i].compression
		}
	}
	body, key, shape, err := build(m.out.body, plan, func(yield func(Record, error) bool) {
		next := plan.First
		for i := range run {
			b, err := run[i].from.read(m.ctx, run[i].offset, run[i].size)
			more := true
			if err == nil {
				err = Decode(run[i].key, b, func(r Record) bool {
					if r.LSN == next {
						next++
						more = yield(r, nil)
					}
					return more
				})
			}
			if err != nil {
				yield(Record{}, err)
				return
			}
			if !more {
				return
			}
		}
	}, compression)
	m.out.body = body
	if errors.Is(err, errPackGone) || errors.Is(err, ErrUnavailable) || m.ctx.Err() != nil {
		return false, err
	}
	if err != nil {
		m.out.body = body[:at]
		return false, nil
	}
	var since int64
	for i := range run {
		since = max(since, run[i].since)
	}
	m.added(key, at, since, shape.compression, shape.content)
	return true, nil
}

func (m *merger) added(k Key, at int, since int64, c Compression, content int64) {
	m.out.added(k, at, since, c, content)
	m.result.Members++
}

// room makes room for one more member.
func (m *merger) room() error {
	if m.out.full() {
		return m.put()
	}
	return nil
}

func (m *merger) put() error {
	if len(m.out.members) == 0 {
		return nil
	}
	body, key := m.out.finish()
	*m.buf = body[:0]
	if err := m.a.createPack(m.ctx, key, body); err != nil {
		return fmt.Errorf("archive: writing the merged pack %q: %w", m.a.packName(key), err)
	}
	m.result.Created++
	m.out.begin(*m.buf, m.level)
	return nil
}

// packReader reads the members of a pack in order.
type packReader struct {
	a      *Archive
	p      *pack
	buf    []byte
	offset int64 // of buf
	end    int64
}

// read returns n bytes at offset, which stay valid until the next call.
func (r *packReader) read(ctx context.Context, offset, n int64) ([]byte, error) {
	if offset < r.offset || offset+n > r.offset+int64(len(r.buf)) {
		b, err := r.a.packRange(ctx, r.p, offset, min(max(n, mergeRead), r.end-offset), r.buf[:0])
		if err != nil {
			return nil, err
		}
		r.buf, r.offset = b, offset
	}
	at := offset - r.offset
	return r.buf[at : at+n], nil
}
