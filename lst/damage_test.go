package lst

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/btrlog/btrlog/lst/vfs"
)

// stride is the distance of the bytes that the damage tests try.
func stride() int {
	if underRace && *damageStride == 199 {
		return 2003
	}
	return *damageStride
}

var damageStride = flag.Int("lst.stride", 199, "damage test: flip and cut at every n-th byte; 1 is all of them")

// smallStore is a store that holds every kind of frame, with the model after
// every batch. Batch k puts step=k.
type smallStore struct {
	disk  *vfs.Mem
	opt   Options
	locs  []Location // of batch k
	after []*model
}

func counter(seed byte) func([]byte) {
	return func(p []byte) {
		for i := range p {
			seed = seed*181 + 7
			p[i] = seed
		}
	}
}

func buildSmall(t testing.TB, mode Mode) *smallStore {
	s := &smallStore{disk: vfs.NewMem(vfs.MemOptions{Seed: 3})}
	s.opt = Options{FS: s.disk, Mode: mode, SegmentBytes: 32 << 10, SnapshotRecords: 150, Inline: true, Random: counter(1), TailCacheBytes: -1}
	if mode == Direct {
		s.opt.SnapshotRecords = 60
	}
	st := mustOpen(t, "/db", s.opt)
	m := newModel()
	s.locs, s.after = []Location{{}}, []*model{m.clone()}
	var b Batch
	for k, more := 1, 6; more > 0; k++ {
		if len(*st.ix.files.list.Load()) == 4 {
			more-- // a few batches in the last segment
		}
		id, seq := sid(1+k%2), uint64(k/2)
		ops := []mop{
			{code: opAppend, id: id, seq: seq, val: string(payload(k, k, 20+k%200))},
			{code: opAppend, id: sid(3), seq: uint64(2 * k), val: fmt.Sprint("third", k)},
			{code: opPut, key: "step", val: strconv.Itoa(k)},
		}
		switch {
		case k%17 == 0:
			ops = append(ops, mop{code: opTrim, id: id, before: seq / 3})
		case k%19 == 0:
			ops = append(ops, mop{code: opPut, key: fmt.Sprint("gone", k), val: "x"}, mop{code: opDelete, key: fmt.Sprint("gone", k-19)})
		case k%29 == 0:
			ops = append(ops, mop{code: opReplace, id: id, seq: seq - 1, val: "replaced"})
		case k == 45:
			ops = append(ops, mop{code: opDropStream, id: sid(3)})
		}
		fill(&b, ops)
		loc, err := st.Commit(&b, Forced)
		if err != nil {
			t.Fatal(err)
		}
		m.apply(ops)
		s.locs, s.after = append(s.locs, loc), append(s.after, m.clone())
	}
	if n := st.Stats().Snapshots; n < 2 {
		t.Fatalf("only %d snapshots", n)
	}
	kinds := map[frameKind]int{}
	for n := uint32(1); n <= st.active.head.number; n++ {
		r := &recovery{fs: s.disk, dir: "/db", rep: &RecoveryReport{}, segs: map[uint32]*recSegment{}}
		seg, err := r.segment(n)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.walk(seg, int64(seg.head.dataStart), seg.size, func(h frameHead, _ []byte, _ pos) error { kinds[h.kind]++; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for k := kindLink; k <= kindRoot; k++ {
		if kinds[k] == 0 {
			t.Fatalf("no frame of kind %d: %v", k, kinds)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	return s
}

// check opens a damaged copy: the state must be the model up to the damage, with
// read errors that name the file where the damage is met, or the open fails so.
func (s *smallStore) check(disk *vfs.Mem, file string, off int64) error {
	opt := s.opt
	opt.FS = disk
	opt.lazyInline = off%2 == 1 // what a restart leaves unread meets the damage later
	st, rep, err := Open("/db", opt)
	named := func(err error) error {
		var c *Corruption
		if !errors.As(err, &c) {
			return fmt.Errorf("error does not name file and offset: %w", err)
		}
		if filepath.Base(c.File) != file && !strings.Contains(c.Reason, strings.TrimSuffix(file, segmentSuffix)) {
			return fmt.Errorf("error names %s, damage is in %s at %d: %w", c.File, file, off, err)
		}
		return nil
	}
	// L15, L16: a read-only opener beside it neither fails otherwise nor writes.
	before, _ := disk.ReadFile("/db/" + file)
	if r, rerr := OpenReadOnly("/db", opt); rerr == nil {
		readAll(r.View())
		r.Close()
	} else if err == nil && !errors.As(rerr, new(*Corruption)) {
		return fmt.Errorf("read-only: %w", rerr)
	}
	if after, _ := disk.ReadFile("/db/" + file); !bytes.Equal(before, after) {
		return fmt.Errorf("the read-only opener changed %s", file)
	}
	if err != nil {
		return named(err)
	}
	defer st.Close()
	v := st.View()
	k := 0
	if got, err := v.GetKV([]byte("step"), nil); err == nil {
		k, _ = strconv.Atoi(string(got))
	} else if !errors.Is(err, ErrNotFound) {
		return named(err)
	}
	n, _ := parseSegmentName(file)
	for i, l := range s.locs {
		if i > k && mkpos(l.Segment, l.Offset+int64(l.Length)) <= mkpos(n, off) {
			return fmt.Errorf("batch %d at %+v is before the damage and lost; state is that of batch %d; %+v", i, l, k, rep)
		}
	}
	m := s.after[k]
	var buf []byte
	for id, ms := range m.streams {
		stat, _ := v.Stat(id)
		if err := v.Err(); err != nil {
			if st.Err() == nil {
				return fmt.Errorf("damage of the index does not stop the store: %w", err)
			}
			return named(err)
		}
		if int(stat.Count) != len(ms.recs) || stat.EOF != ms.eof {
			return fmt.Errorf("state after batch %d: stream %v has %+v, want %d records and EOF %d", k, id, stat, len(ms.recs), ms.eof)
		}
		for seq, val := range ms.recs {
			buf, err = v.Get(id, seq, buf[:0])
			if err != nil {
				if err := named(err); err != nil {
					return err
				}
			} else if string(buf) != val {
				return fmt.Errorf("stream %v record %d has other bytes", id, seq)
			}
		}
	}
	if rep.CutFile == "" {
		return nil
	}
	// L1: what is committed behind a cut must be there after the next start.
	var b Batch
	b.Put([]byte("behind"), []byte("the cut"))
	if _, err := st.Commit(&b, Forced); err != nil {
		var c *Corruption
		if errors.As(err, &c) && opt.lazyInline {
			return named(err) // a snapshot was due, and its predecessor is damaged
		}
		return fmt.Errorf("commit behind the cut: %w", err)
	}
	if err := st.Close(); err != nil {
		return err
	}
	again, rep2, err := Open("/db", opt)
	if err != nil {
		return fmt.Errorf("open after a commit behind the cut: %w", err)
	}
	defer again.Close()
	if got, err := again.View().GetKV([]byte("behind"), nil); err != nil || string(got) != "the cut" || rep2.CutFile != "" {
		return fmt.Errorf("commit behind the cut is lost: %q %v %+v", got, err, rep2)
	}
	return nil
}

func TestEveryByteFlipped(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		s := buildSmall(t, mode)
		names, _ := s.disk.List("/db")
		for _, name := range names {
			if name == lockName {
				continue
			}
			data, _ := s.disk.ReadFile("/db/" + name)
			for off := 0; off < len(data); off += stride() {
				disk := s.disk.Clone()
				bad := append([]byte(nil), data...)
				bad[off] ^= 1 << (off % 8)
				disk.WriteFile("/db/"+name, bad)
				if err := s.check(disk, name, int64(off)); err != nil {
					t.Fatalf("mode %d: %s with bit %d of byte %d flipped: %v", mode, name, off%8, off, err)
				}
			}
		}
	}
}

func TestEveryTruncation(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		s := buildSmall(t, mode)
		names, _ := s.disk.List("/db")
		for _, name := range names {
			if name == lockName {
				continue
			}
			data, _ := s.disk.ReadFile("/db/" + name)
			for n := 0; n < len(data); n += stride() {
				disk := s.disk.Clone()
				disk.WriteFile("/db/"+name, data[:n])
				if err := s.check(disk, name, int64(n)); err != nil {
					t.Fatalf("mode %d: %s cut to %d bytes: %v", mode, name, n, err)
				}
			}
		}
	}
}

// L2: damage in front of durable data ends nothing silently: the open fails and
// names the frame. Only the very last frame has no later one to vouch for it.
func TestDamageInDurableDataIsReported(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		s := buildSmall(t, mode)
		last := s.locs[len(s.locs)-1].Segment
		var in []Location
		for _, l := range s.locs[1:] {
			if l.Segment == last {
				in = append(in, l)
			}
		}
		in = in[:len(in)-1]
		data, _ := s.disk.ReadFile("/db/" + segmentName(last))
		reported := 0
		for _, l := range in {
			for _, off := range []int64{0, 5, 9, 17, 21, frameHeadBytes, int64(l.Length) - 1} {
				disk := s.disk.Clone()
				bad := append([]byte(nil), data...)
				bad[l.Offset+off] ^= 4
				disk.WriteFile("/db/"+segmentName(last), bad)
				opt := s.opt
				opt.FS = disk
				_, rep, err := Open("/db", opt)
				var c *Corruption
				if err == nil {
					t.Fatalf("mode %d: byte %d of the frame at %+v flipped: opened with %+v", mode, off, l, rep)
				}
				if !errors.As(err, &c) || c.Offset != l.Offset || filepath.Base(c.File) != segmentName(last) {
					t.Fatalf("mode %d: byte %d of the frame at %+v flipped: %v", mode, off, l, err)
				}
				reported++
			}
		}
		if reported == 0 {
			t.Fatal("nothing was damaged")
		}
	}
}

// FuzzSegment opens stores whose second segment holds arbitrary bytes: whatever
// they are, there is an answer, without panic and without allocations that a
// damaged length asks for.
func FuzzSegment(f *testing.F) {
	s := buildSmall(f, Buffered)
	names, _ := s.disk.List("/db")
	data, _ := s.disk.ReadFile("/db/" + segmentName(2))
	f.Add(data, false)
	f.Add(data[:1000], true)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, data []byte, last bool) {
		disk := s.disk.Clone()
		disk.WriteFile("/db/"+segmentName(2), data)
		if last {
			for _, n := range names {
				if k, ok := parseSegmentName(n); ok && k > 2 {
					_ = disk.Remove("/db/" + n)
				}
			}
		}
		opt := s.opt
		opt.FS = disk
		if r, err := OpenReadOnly("/db", opt); err == nil {
			readAll(r.View())
			r.Close()
		}
		st, _, err := Open("/db", opt)
		if err != nil {
			return
		}
		readAll(st.View())
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzBodies feeds the parsers behind the checksums directly: bytes that are
// damaged in memory, or written by a faulty program, must not crash a reader.
func FuzzBodies(f *testing.F) {
	var b Batch
	b.Append(sid(1), 5, []byte("hello"))
	b.Append(sid(1), 6, []byte("world"))
	b.Put([]byte("k"), []byte("v"))
	b.Trim(sid(1), 5)
	f.Add(b.body())
	f.Fuzz(func(t *testing.T, body []byte) {
		x := newIndex(newFileSet(vfs.NewMem(vfs.MemOptions{}), "/", 1), nil)
		n := 0
		_ = decodeOps(body, func(op *batchOp) error { n++; return nil })
		if n > len(body) {
			t.Fatalf("%d operations in %d bytes", n, len(body))
		}
		_ = x.loadTable(body, 1)
		_, _ = decodeRoot(body, 1)
		if d, err := parseLeaf(body, StreamID{}, 0); err == nil {
			d.all(func(i int, s slot) {
				if d.get(i) != s {
					t.Fatalf("slot %d is %v by scan and %v by lookup", i, s, d.get(i))
				}
			})
		}
	})
}

func readAll(v View) {
	v.Streams(nil, func(id StreamID) bool {
		it := v.Range(id, 0, 1<<63)
		for it.Next() {
			_ = it.Value()
		}
		return true
	})
	v.KVs(nil, func(_, _ []byte) bool { return true })
}
