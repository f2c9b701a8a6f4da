package lst

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/btrlog/btrlog/lst/vfs"
)

// A forced commit behind commits that were not forced makes all of them durable: recovery ends at the first gap, so
// that a synced write behind a lost one would be lost with it. The disk keeps a random part of what was not synced.
func TestForcedCommitForcesWhatIsBefore(t *testing.T) {
	for _, block := range []int{512, 4096} {
		for seed := uint64(1); seed <= 60; seed++ {
			opt := Options{Mode: Direct, SegmentBytes: 64 << 10, SnapshotRecords: 1 << 20, Inline: true}
			d := vfs.NewMem(vfs.MemOptions{Seed: seed, BlockBytes: block})
			opt.FS = d
			s := mustOpen(t, "/db", opt)
			var n uint64
			add := func(du Durability, k int) {
				for range k {
					appendOne(t, s, sid(1), n, payload(1, int(n), 300), du)
					n++
				}
			}
			add(Forced, 2)
			add(Acknowledged, 1+int(seed%7)*5) // at times past the end of a segment
			add(Forced, 1)
			sure := n
			if st := s.Stats(); st.Syncs != 1 {
				t.Fatalf("seed %d: %d syncs for one forced commit behind others", seed, st.Syncs)
			}
			add(Forced, 3)
			if st := s.Stats(); st.Syncs != 1 {
				t.Fatalf("seed %d: %d syncs, although all before was durable", seed, st.Syncs)
			}
			sure = n
			add(Acknowledged, 4)

			opt.FS = d.Crash()
			s = mustOpen(t, "/db", opt)
			st, _ := s.View().Stat(sid(1))
			if st.EOF < sure || st.EOF > n || st.Count != st.EOF {
				t.Fatalf("block %d seed %d: %d records to %d after the power was lost, %d were forced, %d written", block, seed, st.Count, st.EOF, sure, n)
			}
			for seq := range st.EOF {
				if got, err := s.View().Get(sid(1), seq, nil); err != nil || string(got) != string(payload(1, int(seq), 300)) {
					t.Fatalf("block %d seed %d: record %d: %v", block, seed, seq, err)
				}
			}
			n = st.EOF
			add(Forced, 1) // the store goes on
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What is not forced survives the end of the process, costs no sync, and may be lost with the power: the disk must at
// least once have lost some of it, or nothing was saved.
func TestUnforcedCommitsAreNotSynced(t *testing.T) {
	lost := 0
	for seed := uint64(1); seed <= 20; seed++ {
		opt := Options{Mode: Direct, SegmentBytes: 64 << 10, Inline: true}
		d := vfs.NewMem(vfs.MemOptions{Seed: seed})
		opt.FS = d
		s := mustOpen(t, "/db", opt)
		for seq := range uint64(10) {
			appendOne(t, s, sid(1), seq, payload(1, int(seq), 100), Acknowledged)
		}
		if st := s.Stats(); st.Syncs != 0 {
			t.Fatalf("%d syncs for commits that were not forced", st.Syncs)
		}
		d.Kill()
		opt.FS = d.Clone()
		s = mustOpen(t, "/db", opt)
		if st, _ := s.View().Stat(sid(1)); st.Count != 10 {
			t.Fatalf("%d of 10 records after a kill", st.Count)
		}
		_ = s.Close()
		opt.FS = d.Crash()
		s = mustOpen(t, "/db", opt)
		if st, _ := s.View().Stat(sid(1)); st.Count < 10 {
			lost++
		}
		_ = s.Close()
	}
	if lost == 0 {
		t.Fatal("no power loss took anything: the commits were forced")
	}
}

// Sync and a snapshot's sync end the gap: the next forced commit needs no other.
func TestSyncEndsTheGap(t *testing.T) {
	_, opt := memStore(31, Direct)
	s := mustOpen(t, "/db", opt)
	appendOne(t, s, sid(1), 0, []byte("a"), Acknowledged)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	before := s.Stats().Syncs
	appendOne(t, s, sid(1), 1, []byte("b"), Forced)
	if after := s.Stats().Syncs; after != before {
		t.Fatalf("%d syncs for a forced commit with nothing open in front of it", after-before)
	}
	appendOne(t, s, sid(1), 2, []byte("c"), Acknowledged)
	if err := s.Snapshot(); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.SnapshotSynced == 0 {
		t.Fatalf("the snapshot is not durable: %+v", st)
	}
	before = s.Stats().Syncs
	appendOne(t, s, sid(1), 3, []byte("d"), Forced)
	if after := s.Stats().Syncs; after != before {
		t.Fatalf("%d syncs behind a snapshot", after-before)
	}
}

// A sync that fails behind a forced commit stops the store: the commit is not answered.
func TestFailedSyncOfAForcedCommitIsFinal(t *testing.T) {
	d, opt := memStore(32, Direct)
	s := mustOpen(t, "/db", opt)
	appendOne(t, s, sid(1), 0, []byte("a"), Acknowledged)
	d.Inject(vfs.Fault{Ops: vfs.OpSync, Times: 1, Err: syscall.EIO})
	var b Batch
	b.Append(sid(1), 1, []byte("b"))
	if _, err := s.Commit(&b, Forced); !errors.Is(err, syscall.EIO) || !strings.Contains(fmt.Sprint(err), segmentName(1)) {
		t.Fatalf("forced commit with a failing sync: %v", err)
	}
	b.Reset()
	b.Append(sid(1), 2, []byte("c"))
	if _, err := s.Commit(&b, Acknowledged); !errors.Is(err, syscall.EIO) {
		t.Fatalf("commit after it: %v", err)
	}
}

// Without a second descriptor the write goes through the first one, slower and as good.
func TestUnforcedCommitWithoutDescriptors(t *testing.T) {
	d, opt := memStore(33, Direct)
	s := mustOpen(t, "/db", opt)
	d.Inject(vfs.Fault{Ops: vfs.OpOpen, Times: 1, Err: syscall.EMFILE})
	appendOne(t, s, sid(1), 0, []byte("a"), Acknowledged)
	opt.FS = d.Crash()
	s = mustOpen(t, "/db", opt)
	if st, _ := s.View().Stat(sid(1)); st.Count != 1 {
		t.Fatalf("%d of 1 records: it was written with a sync", st.Count)
	}
}
