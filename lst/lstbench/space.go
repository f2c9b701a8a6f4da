package lstbench

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/btrlog/btrlog/lst"
)

const countedIndex = "sizes of the segment files − payload − record and batch headers (lst.Batch.Bytes of each batch less its payload), over the number of records; everything else in the files is index"

func indexDense(r *run) ([]Result, error) {
	return indexBytes(r, "index bytes per message, one dense stream", 1, r.Scale.of(250_000, 2_000_000, 5_000_000), most(8), most(4))
}

func indexStreams(r *run) ([]Result, error) {
	return indexBytes(r, "index bytes per message, 10,000 streams uniform at random", 10_000, r.Scale.of(1_000_000, 4_000_000, 10_000_000), most(25), most(12))
}

func indexBytes(r *run, what string, streams, records int, must, aim *Limit) ([]Result, error) {
	const payload, batch, every = 150, 20, 100_000
	dir := r.dir()
	opt := byRecords(every)
	opt.TailCacheBytes = -1
	s, _, err := lst.Open(dir, opt)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	l := newLoader(s, streams, payload, r.Seed)
	pick := first
	if streams > 1 {
		pick = l.uniform
	}
	if err := l.fill(r, records, batch, pick); err != nil {
		return nil, err
	}
	size, _, err := fileBytes(dir)
	if err != nil {
		return nil, err
	}
	res := Result{What: what, Unit: "bytes", Must: must, Aim: aim, Counted: countedIndex, Mode: "buffered"}
	res.exact(float64(size-l.batches) / float64(l.records))
	res.Note("%d records of %d bytes in batches of %d, a snapshot every %d records, seed %d", records, payload, batch, every, r.Seed)
	res.Note("headers, not counted as index: %.1f bytes a record; files: %d bytes", float64(l.batches-l.payloadBytes())/float64(l.records), size)
	return []Result{res}, nil
}

// living is a batch whose records are not trimmed yet.
type living struct {
	stream         int
	to             uint64 // sequence behind its last record
	payload, bytes int64
}

// spaceSteady keeps a window of the newest records alive while the store stays within a budget.
func spaceSteady(r *run) ([]Result, error) {
	const payload, batch, streams = 150, 20, 100
	segment := r.Scale.pick(1<<20, 4<<20, 16<<20)
	const segments = 64
	window := (segments - 4) * segment // of batches alive; the rest of the budget is for dead bytes, index and the spare
	dir := r.dir()
	s, _, err := lst.Open(dir, lst.Options{SegmentBytes: segment, DiskBudgetBytes: segments * segment, TailCacheBytes: -1})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	l := newLoader(s, streams, payload, r.Seed)
	var alive []living
	var aliveBytes, alivePayload int64
	// What is trimmed goes in one batch per 16: a trim is a frame of its own.
	step := func() error {
		for range 16 {
			before, k := l.batches, l.random.IntN(streams)
			if err := l.commit(batch, func() int { return k }); err != nil {
				return err
			}
			alive = append(alive, living{k, l.seq[k], batch * payload, l.batches - before})
			aliveBytes += l.batches - before
			alivePayload += batch * payload
		}
		l.b.Reset()
		for aliveBytes > window {
			a := alive[0]
			alive = alive[1:]
			aliveBytes -= a.bytes
			alivePayload -= a.payload
			l.b.Trim(streamID(a.stream), a.to)
		}
		if l.b.Len() == 0 {
			return nil
		}
		if _, err := s.Commit(&l.b, lst.Acknowledged); err != nil {
			return err
		}
		_, err := s.Reclaim()
		return err
	}
	total := 3 * segments * segment
	var samples []float64
	var peak int64
	for l.batches < total {
		if err := step(); err != nil {
			return nil, err
		}
		if l.batches < 2*segments*segment {
			continue // not steady yet
		}
		if n := int64(len(samples)); l.batches-2*segments*segment >= n*segments*segment/200 {
			r.progress(int(n), 200)
			size, _, err := fileBytes(dir)
			if err != nil {
				return nil, err
			}
			peak = max(peak, size)
			samples = append(samples, 100*float64(size-aliveBytes)/float64(alivePayload))
		}
	}
	res := Result{What: "dead + index bytes over payload, 150-byte messages, steady state under a budget", Unit: "%", Must: below(6), Aim: below(4), Mode: "buffered",
		Counted: "sizes of the segment files − payload and headers of the records not trimmed, over that payload; in 200 moments of a turn-over of the whole store, median and quartiles. Trimmed records, trims, snapshots and leaves count; space reserved behind a file's end does not"}
	res.spread(samples)
	res.Note("%d segments of %d MiB as budget, %d streams, batches of %d, seed %d; the files held at most %d MiB", segments, segment>>20, streams, batch, r.Seed, peak>>20)
	res.Note("largest of the samples %.2f %%; headers, not counted: %.2f %% of the payload", Quantile(samples, 1), 100*float64(aliveBytes-alivePayload)/float64(alivePayload))
	return []Result{res}, nil
}

func spaceKeyValue(r *run) ([]Result, error) {
	const keys, value = 10_000, 100
	const segment, budget = 4 << 20, 6 * 4 << 20
	dir := r.dir()
	s, _, err := lst.Open(dir, lst.Options{SegmentBytes: segment, DiskBudgetBytes: budget, TailCacheBytes: -1})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	l := newLoader(s, 1, value, r.Seed)
	rewrites := r.Scale.of(500_000, 3_000_000, 20_000_000)
	var key [8]byte
	live := int64(keys * (len(key) + value))
	var samples []float64
	written, refused := int64(0), 0
	for n := 0; n < rewrites; n += 20 {
		l.b.Reset()
		for i := range 20 {
			k := l.random.IntN(keys)
			if n+i < keys {
				k = n + i
			}
			binary.BigEndian.PutUint64(key[:], uint64(k))
			binary.LittleEndian.PutUint64(l.payload, l.random.Uint64())
			l.b.Put(key[:], l.payload)
		}
		written += int64(l.b.Bytes())
		_, err := s.Commit(&l.b, lst.Acknowledged)
		if errors.Is(err, lst.ErrNoSpace) {
			refused++
			if _, err = s.Reclaim(); err == nil {
				_, err = s.Commit(&l.b, lst.Acknowledged)
			}
		}
		if err != nil {
			return nil, err
		}
		if n%(rewrites/400/20*20) == 0 {
			r.progress(n, rewrites)
			if n > rewrites/2 {
				size, _, err := fileBytes(dir)
				if err != nil {
					return nil, err
				}
				samples = append(samples, 100*float64(size-live)/float64(live))
			}
		}
	}
	st := s.Stats()
	res := Result{What: "dead + index bytes over payload, overwrite-heavy key-values under a budget", Unit: "%", Mode: "buffered",
		Counted: "sizes of the segment files − keys and values present, over keys and values present; median and quartiles over the second half of the run. Dead values stay until whole segments go, so this is the budget over what lives"}
	res.spread(samples)
	res.Note("%d keys of 8 bytes, values of %d, %d rewrites uniform in batches of 20, budget %d MiB in segments of %d MiB, seed %d", keys, value, rewrites, budget>>20, segment>>20, r.Seed)
	res.Note("%d segments dropped, %d commits refused and repeated after Reclaim", st.Dropped, refused)
	amplification := Result{Row: "space-keyvalue", What: "bytes written over key-value bytes put, the same load", Unit: "×", Mode: "buffered",
		Counted: "Stats.WrittenBytes over keys and values put"}
	amplification.exact(float64(st.WrittenBytes) / (float64(rewrites) * (8 + value)))
	amplification.Note("of it %.2f × are batches with their headers, the rest snapshots", float64(written)/(float64(rewrites)*(8+value)))
	if st.KVs != keys {
		return nil, fmt.Errorf("%d keys are present, %d were put", st.KVs, keys)
	}
	return []Result{res, amplification}, nil
}
