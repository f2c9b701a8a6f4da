package lst

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// inspectAll scans a store, and demands that the parts of the space add up to the files to the byte.
func inspectAll(opt Options) (*Inspection, *ScanReport, error) {
	in, err := Inspect("/db", opt)
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	rep, err := in.Scan(nil)
	if err != nil {
		return in, nil, err
	}
	files := int64(0)
	for _, s := range in.Segments {
		files += s.FileBytes
	}
	sp := rep.Space
	sum := sp.LivePayload + sp.DeadPayload + sp.KeyValues + sp.RecordHeaders + sp.Index + sp.Padding + sp.SegmentHeaders + sp.Unused + sp.Damaged + sp.Cut
	if sp.FileBytes != files || sum != files {
		return in, rep, fmt.Errorf("the parts add up to %d bytes, the files have %d: %+v", sum, files, sp)
	}
	return in, rep, nil
}

func TestInspectHealthy(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		s := buildSmall(t, mode)
		in, rep, err := inspectAll(s.opt)
		if err != nil {
			t.Fatal(err)
		}
		m := s.after[len(s.after)-1]
		live := int64(0)
		for _, ms := range m.streams {
			for _, v := range ms.recs {
				live += int64(len(v))
			}
		}
		if in.Damage != nil || rep.DamageCount != 0 || rep.NotCompared != "" || rep.Streams != len(m.streams) || rep.KVs != len(m.kvs) || rep.Space.LivePayload != live {
			t.Errorf("mode %d: %v %+v", mode, in.Damage, rep)
		}
		if len(rep.Snapshots) < 2 || len(in.Snapshots) == 0 || in.Snapshots[0].Number != rep.Snapshots[len(rep.Snapshots)-1].Number {
			t.Errorf("mode %d: snapshots %+v, loaded %+v", mode, rep.Snapshots, in.Snapshots)
		}
		for k := kindLink; k <= kindRoot; k++ {
			if rep.Frames[kindNames[k]] == 0 {
				t.Errorf("mode %d: no %s frame: %v", mode, kindNames[k], rep.Frames)
			}
		}
		if err := framesAreWhole(in); err != nil {
			t.Errorf("mode %d: %v", mode, err)
		}
	}
}

// framesAreWhole lists every segment's frames: they stand behind each other without gaps, and say something.
func framesAreWhole(in *Inspection) error {
	for _, s := range in.Segments {
		at := s.From
		err := in.Frames(s.Number, 0, 0, func(f *Frame) error {
			if f.Offset != at || f.Segment != s.Number || f.Length == 0 || f.Kind == "" || f.Detail == "" && len(f.Ops) == 0 && f.Kind != piecePadding && f.Kind != pieceUnused {
				return fmt.Errorf("at %s:%d: %+v", s.File, at, f)
			}
			at += int64(f.Length)
			return nil
		})
		if err != nil {
			return err
		}
		if at != max(s.To, s.From) {
			return fmt.Errorf("%s: frames end at %d, not at %d", s.File, at, s.To)
		}
	}
	return nil
}

// Every flipped byte that matters is found and named; what is not reported is no part of the store.
func TestInspectEveryByteFlipped(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		s := buildSmall(t, mode)
		healthy, _, err := inspectAll(s.opt)
		if err != nil {
			t.Fatal(err)
		}
		for _, seg := range healthy.Segments {
			data, _ := s.disk.ReadFile(seg.File)
			for off := int64(0); off < int64(len(data)); off += 3 * int64(stride()) {
				disk := s.disk.Clone()
				bad := append([]byte(nil), data...)
				bad[off] ^= 1 << (off % 8)
				disk.WriteFile(seg.File, bad)
				opt := s.opt
				opt.FS = disk
				in, rep, err := inspectAll(opt)
				if err == nil {
					err = judgeFlip(in, rep, &seg, off)
				}
				if err != nil {
					t.Fatalf("mode %d: bit %d of byte %d of %s flipped: %v", mode, off%8, off, seg.File, err)
				}
				if got, _ := disk.ReadFile(seg.File); string(got) != string(bad) {
					t.Fatalf("mode %d: %s was changed", mode, seg.File)
				}
			}
		}
	}
}

func judgeFlip(in *Inspection, rep *ScanReport, seg *SegmentInfo, off int64) error {
	if err := framesAreWhole(in); err != nil {
		return err
	}
	if rep.DamageCount == 0 && in.Report.CutFile == "" {
		if off >= headerBytes && off < seg.From || off >= seg.To || off < headerBytes && seg.State == SegmentSpare {
			return nil
		}
		return fmt.Errorf("not found: %+v", rep)
	}
	if rep.DamageCount == 0 {
		return nil // a torn tail, as an open sees it
	}
	for _, d := range rep.Damages {
		if filepath.Base(d.File) == filepath.Base(seg.File) && d.Offset <= off || strings.Contains(d.Reason, filepath.Base(seg.File)) {
			return nil
		}
	}
	return fmt.Errorf("the damages do not name %s: %v", seg.File, rep.Damages[0])
}

func TestInspectEveryTruncation(t *testing.T) {
	for _, mode := range []Mode{Buffered, Direct} {
		s := buildSmall(t, mode)
		names, _ := s.disk.List("/db")
		for _, name := range names {
			if name == lockName {
				continue
			}
			data, _ := s.disk.ReadFile("/db/" + name)
			for n := 0; n < len(data); n += 3 * stride() {
				disk := s.disk.Clone()
				disk.WriteFile("/db/"+name, data[:n])
				opt := s.opt
				opt.FS = disk
				in, rep, err := inspectAll(opt)
				if err == nil {
					err = framesAreWhole(in)
				}
				if err == nil && (in.Damage != nil) != (rep.NotCompared == "the store does not open") {
					err = fmt.Errorf("damage %v, %q", in.Damage, rep.NotCompared)
				}
				if err == nil && in.Damage != nil && rep.DamageCount == 0 {
					err = fmt.Errorf("the store does not open and the scan finds nothing: %w", in.Damage)
				}
				if err != nil {
					t.Fatalf("mode %d: %s cut to %d bytes: %v", mode, name, n, err)
				}
			}
		}
	}
}

// An index that disagrees with the records is found, in each of its figures.
func TestInspectComparesTheIndex(t *testing.T) {
	s := buildSmall(t, Buffered)
	for _, c := range []struct {
		what, want string
		spoil      func(x *index)
	}{
		{"count", "a full scan finds", func(x *index) { x.streams.get(idOf(1)).holes.Add(1) }},
		{"bytes", "a full scan finds", func(x *index) { x.streams.get(idOf(1)).bytes.Add(1) }},
		{"EOF", "a full scan finds", func(x *index) { x.streams.get(idOf(1)).eof.Add(1) }},
		{"trim point", "a full scan finds", func(x *index) { x.streams.get(idOf(3)).trim.Add(1) }},
		{"contiguous end", "its runs say", func(x *index) { x.streams.get(idOf(1)).gap.Store(1) }},
		{"stream", "the index does not know", func(x *index) { x.forget(StreamID(idOf(2))) }},
		{"value", "another value", func(x *index) { x.kvs.get([]byte("step")).set([]byte("no")) }},
		{"key", "lacks the key", func(x *index) { x.kvs.del([]byte("step")) }},
		{"deleted key", "was deleted", func(x *index) { x.put([]byte("gone19"), []byte("x")) }},
		{"foreign key", "the files do not", func(x *index) { x.put([]byte("foreign"), []byte("x")) }},
	} {
		in, err := Inspect("/db", s.opt)
		if err != nil {
			t.Fatal(err)
		}
		c.spoil(in.ix)
		rep, err := in.Scan(nil)
		in.Close()
		if err != nil || rep.DamageCount == 0 || !strings.Contains(rep.Damages[0].Reason, c.want) {
			t.Errorf("%s: %v %+v", c.what, err, rep)
		}
	}
}

func idOf(n int) []byte {
	id := sid(n)
	return id[:]
}

// The oldest segments are gone, a tear was cut, streams were deleted and written again: nothing of it is damage.
func TestInspectAfterDropsAndTears(t *testing.T) {
	s := buildSmall(t, Buffered)
	st := mustOpen(t, "/db", s.opt)
	var b Batch
	for _, id := range []StreamID{sid(1), sid(2), sid(3)} {
		stat, _ := st.View().Stat(id)
		b.Trim(id, stat.EOF-1)
	}
	b.DeleteStream(sid(2))
	if _, err := st.Commit(&b, Forced); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	b.Append(sid(2), 7, []byte("again"))
	b.Append(sid(4), 0, []byte("new"))
	if _, err := st.Commit(&b, Forced); err != nil {
		t.Fatal(err)
	}
	if n, err := st.Reclaim(); n == 0 || err != nil {
		t.Fatalf("reclaimed %d, %v", n, err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	in, rep, err := inspectAll(s.opt)
	if err != nil || in.Damage != nil || rep.DamageCount != 0 || rep.NotCompared != "" {
		t.Fatalf("after a drop: %v %v %+v", err, in.Damage, rep)
	}
	if in.Segments[0].Number == 1 {
		t.Fatal("the first segment is still there")
	}
	end := in.End()
	name := "/db/" + segmentName(end.Segment)
	data, _ := s.disk.ReadFile(name)
	s.disk.WriteFile(name, append(append([]byte(nil), data[:end.Offset]...), "torn"...))
	in, rep, err = inspectAll(s.opt)
	if err != nil || rep.DamageCount != 0 || in.Report.CutOffset != end.Offset || rep.Space.Cut != 4 {
		t.Fatalf("with a tear: %v %+v %+v", err, in.Report, rep)
	}
	st = mustOpen(t, "/db", s.opt)
	b.Reset()
	b.Append(sid(4), 1, []byte("behind"))
	if _, err := st.Commit(&b, Forced); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	in, rep, err = inspectAll(s.opt)
	if err != nil || in.Damage != nil || rep.DamageCount != 0 || in.Report.CutFile != "" {
		t.Fatalf("behind a tear: %v %v %+v", err, in.Damage, rep)
	}
}

func TestInspectNoStore(t *testing.T) {
	s := buildSmall(t, Buffered)
	if _, err := Inspect("/nowhere", s.opt); err == nil {
		t.Error("an absent directory was inspected")
	}
	if err := s.disk.MkdirAll("/empty"); err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect("/empty", s.opt); !errors.Is(err, ErrNotFound) {
		t.Errorf("an empty directory: %v", err)
	}
	in, err := Inspect("/db", s.opt)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := in.Frames(99, 0, 0, func(*Frame) error { return nil }); !errors.Is(err, ErrNotFound) {
		t.Errorf("an absent segment: %v", err)
	}
	if _, err := in.Scan(func(int64, int64) error { return ErrClosed }); !errors.Is(err, ErrClosed) {
		t.Errorf("a scan that was stopped: %v", err)
	}
}
