package lst

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/btrlog/btrlog/lst/vfs"
)

// patterned fills p with bytes that say where they are; at and p are multiples of 8.
func patterned(p []byte, at pos) {
	for i := 0; i < len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], uint64(at+pos(i))*0x9E3779B97F4A7C15)
	}
}

// Chunks fall out and are used again while readers copy from them: what a reader gets
// is what was written there, or nothing.
func TestTailCacheReaders(t *testing.T) {
	const segment, chunks = 1 << 20, 40
	for _, slots := range []int{2, 3, 4} { // a mask, and none
		c := newTailCache(slots*cacheChunk, segment)
		var end atomic.Uint64
		end.Store(uint64(mkpos(1, 0)))
		var hits, misses atomic.Int64
		var stop atomic.Bool
		var wg sync.WaitGroup
		for k := range uint64(3) {
			wg.Add(1)
			go func() {
				defer wg.Done()
				rnd := rand.New(rand.NewPCG(11, k))
				got, want := make([]byte, 4096), make([]byte, 4096)
				for !stop.Load() {
					e := pos(end.Load())
					back := pos(8 * rnd.IntN((slots+2)*cacheChunk/8))
					n := 8 * (1 + rnd.IntN(512))
					off := pos(uint32(e))
					at := e - back
					if back > off {
						if e.seg() == 1 {
							continue
						}
						at = mkpos(e.seg()-1, segment-int64(back-off)%segment)
					}
					n = min(n, segment-int(at.off()), int(e-at))
					if n <= 0 || at > e {
						continue
					}
					if !c.read(got[:n], at) {
						misses.Add(1)
						continue
					}
					hits.Add(1)
					if patterned(want[:n], at); !bytes.Equal(got[:n], want[:n]) {
						t.Errorf("%d bytes at %v are those of another place", n, at)
						return
					}
				}
			}()
		}
		buf := make([]byte, 16<<10)
		at := mkpos(1, 0)
		for at.seg() <= chunks*cacheChunk/segment {
			patterned(buf, at)
			c.write(buf, at)
			if at += pos(len(buf)); at.off() == segment {
				at = mkpos(at.seg()+1, 0)
			}
			end.Store(uint64(at))
		}
		// The last bytes do not fall out: whoever has not read yet reads now.
		for hits.Load() < 100 && !t.Failed() {
			var p [8]byte
			if c.read(p[:], mkpos(at.seg()-1, segment-8)) {
				hits.Add(1)
			}
		}
		stop.Store(true)
		wg.Wait()
		t.Logf("%d chunks: %d hits, %d misses", slots, hits.Load(), misses.Load())
	}
}

// A chunk that somebody reads is not written over; one that nobody reads is.
func TestTailCacheReuse(t *testing.T) {
	c := newTailCache(2*cacheChunk, 64<<20)
	page := make([]byte, 64)
	put := func(chunk int64) *cacheSlot {
		at := mkpos(1, chunk*cacheChunk)
		patterned(page, at)
		c.write(page, at)
		return c.cur
	}
	first := put(0)
	put(1)
	if e := put(2); e != first {
		t.Error("a chunk that nobody reads was not used again")
	}
	for k := range first.readers {
		held := put(int64(3 + 2*k))
		held.readers[k].n.Add(1)
		before := bytes.Clone(held.buf[:len(page)])
		put(int64(4 + 2*k))
		if e := put(int64(5 + 2*k)); e == held || !bytes.Equal(held.buf[:len(page)], before) {
			t.Errorf("a chunk was written over that reader %d reads", k)
		}
		if !c.read(page, mkpos(1, int64(5+2*k)*cacheChunk)) || c.read(page, mkpos(1, int64(3+2*k)*cacheChunk)) {
			t.Error("the chunk that is there cannot be read, or the one that is gone can")
		}
		held.readers[k].n.Add(-1)
	}
}

// A store that is opened with smaller segments goes on in the one that it had: places
// behind the new size are not those of the next segment.
func TestTailCacheWithSmallerSegments(t *testing.T) {
	d := vfs.NewMem(vfs.MemOptions{Seed: 5})
	opt := Options{FS: d, SegmentBytes: 2 << 20, Inline: true}
	s := mustOpen(t, "/db", opt)
	appendOne(t, s, sid(1), 0, []byte("first"), Forced)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	opt.SegmentBytes = 512 << 10
	s = mustOpen(t, "/db", opt)
	val := func(seq uint64) []byte { return bytes.Repeat(fmt.Appendf(nil, "%d,", seq), 2000)[:4000] }
	seq := uint64(1)
	for s.Stats().Active < 3 {
		appendOne(t, s, sid(1), seq, val(seq), Acknowledged)
		seq++
	}
	for k := uint64(1); k < seq; k++ {
		if got, err := s.View().Get(sid(1), k, nil); err != nil || !bytes.Equal(got, val(k)) {
			t.Fatalf("record %d of %d: %d bytes, %v", k, seq, len(got), err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
