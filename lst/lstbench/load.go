package lstbench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/btrlog/btrlog/lst"
)

// streamID spreads the streams over the whole range of ids.
func streamID(k int) lst.StreamID {
	var id lst.StreamID
	binary.BigEndian.PutUint64(id[:], uint64(k+1)*0x9E3779B97F4A7C15)
	binary.BigEndian.PutUint64(id[8:], uint64(k))
	return id
}

// loader appends generated records and counts what it asked for.
type loader struct {
	s       *lst.Store
	b       lst.Batch
	d       lst.Durability
	random  *rand.Rand
	payload []byte
	seq     []uint64 // next sequence of each stream
	records int64
	refused int   // commits, see whenRoom
	batches int64 // bytes of the batches: payload, record headers and frame headers
}

func newLoader(s *lst.Store, streams, payload int, seed uint64) *loader {
	l := &loader{s: s, random: rand.New(rand.NewPCG(seed, uint64(streams))), payload: make([]byte, payload), seq: make([]uint64, streams)}
	for i := range l.payload {
		l.payload[i] = byte(l.random.Uint32())
	}
	return l
}

// resume goes on where the store's streams end.
func (l *loader) resume() {
	for k := range l.seq {
		st, _ := l.s.View().Stat(streamID(k))
		l.seq[k] = st.EOF
		l.records += int64(st.Count)
	}
}

// commit adds a batch of n records, each to the stream that pick names.
func (l *loader) commit(n int, pick func() int) error {
	l.b.Reset()
	for range n {
		k := pick()
		l.b.Append(streamID(k), l.seq[k], l.payload)
		l.seq[k]++
	}
	l.batches += int64(l.b.Bytes())
	l.records += int64(n)
	_, err := l.s.Commit(&l.b, l.d)
	return err
}

// whenRoom repeats the commit that err refused for want of space, after a Reclaim each time, and counts.
func (l *loader) whenRoom(err error) error {
	for try := 0; errors.Is(err, lst.ErrNoSpace) && try < 100; try++ {
		l.refused++
		if _, err = l.s.Reclaim(); err == nil {
			_, err = l.s.Commit(&l.b, l.d)
		}
	}
	if err != nil {
		return fmt.Errorf("%w; retention: %+v", err, l.s.Retention())
	}
	return nil
}

func (l *loader) uniform() int { return l.random.IntN(len(l.seq)) }

func first() int { return 0 }

// fill appends records in batches until there are total, and shows progress.
func (l *loader) fill(r *run, total, batch int, pick func() int) error {
	for i := 0; l.records < int64(total); i++ {
		if i%1024 == 0 {
			if err := r.progress(int(l.records), total); err != nil {
				return err
			}
		}
		if err := l.commit(min(batch, total-int(l.records)), pick); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) payloadBytes() int64 { return l.records * int64(len(l.payload)) }

// trimAll trims each stream so that keep of its records remain, in batches.
func (l *loader) trimAll(keep uint64) error {
	l.b.Reset()
	for k, n := range l.seq {
		if n > keep {
			l.b.Trim(streamID(k), n-keep)
		}
		if l.b.Len() == 1000 || l.b.Len() > 0 && k == len(l.seq)-1 {
			if _, err := l.s.Commit(&l.b, lst.Acknowledged); err != nil {
				return err
			}
			l.b.Reset()
		}
	}
	return nil
}

// fileBytes is the size of the segment files of a store together, without space that is reserved and not part of a file.
func fileBytes(dir string) (bytes int64, files int, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.lst"))
	if err != nil {
		return 0, 0, err
	}
	for _, n := range names {
		st, err := os.Stat(n)
		if err != nil {
			if os.IsNotExist(err) {
				continue // dropped meanwhile
			}
			return 0, 0, err
		}
		bytes += st.Size()
		files++
	}
	return bytes, files, nil
}

// byRecords are options under which only the number of records starts a snapshot.
func byRecords(n int) lst.Options {
	return lst.Options{SnapshotRecords: n, SnapshotBytes: 1 << 40, SnapshotInterval: 1000 * time.Hour}
}
