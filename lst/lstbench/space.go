package lstbench

import (
	"encoding/binary"
	"fmt"
	"path/filepath"

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

// spaceSteady keeps a store within a budget, once by the store's own retention, once by an owner who trims.
func spaceSteady(r *run) ([]Result, error) {
	var all []Result
	for _, own := range []bool{true, false} {
		res, err := r.spaceSteady(own)
		if err != nil {
			return all, err
		}
		all = append(all, res)
		if err := removeContents(r.Dir); err != nil {
			return all, err
		}
	}
	return all, nil
}

func (r *run) spaceSteady(own bool) (Result, error) {
	const payload, batch, streams, segments = 150, 20, 100, 64
	segment := r.Scale.pick(2<<20, 8<<20, 64<<20)
	const samplesWanted = 200
	// Of an owner who trims, six segments of the budget are for dead bytes, index and the next segment.
	window := (segments - 6) * segment / (payload + 10) / batch // batches
	type arrival struct {
		stream int
		to     uint64 // sequence behind the batch
	}
	var alive []arrival // of an owner who trims, oldest first
	s, _, err := lst.Open(r.dir(), lst.Options{SegmentBytes: segment, DiskBudgetBytes: segments * segment, DropOldest: own, TailCacheBytes: -1})
	if err != nil {
		return Result{}, err
	}
	defer s.Close()
	dir := filepath.Join(r.Dir, fmt.Sprintf("%s-%d", r.row, r.dirs))
	l := newLoader(s, streams, payload, r.Seed)
	total := 3 * segments * segment
	var samples []float64
	var peak int64
	headers := 0.0
	for i := 1; l.batches < total; i++ {
		k := l.random.IntN(streams)
		if err := l.whenRoom(l.commit(batch, func() int { return k })); err != nil {
			return Result{}, err
		}
		if !own {
			alive = append(alive, arrival{k, l.seq[k]})
		}
		if !own && int64(i)%(segment/(payload+10)/batch/4) == 0 && int64(len(alive)) > window { // four times a segment
			old := alive[:int64(len(alive))-window]
			alive = alive[len(old):]
			upTo := map[int]uint64{}
			for _, a := range old {
				upTo[a.stream] = a.to
			}
			l.b.Reset()
			for k := range streams {
				if upTo[k] > 0 {
					l.b.Trim(streamID(k), upTo[k])
				}
			}
			if _, err := s.Commit(&l.b, lst.Acknowledged); err != nil {
				return Result{}, err
			}
			if _, err := s.Reclaim(); err != nil {
				return Result{}, err
			}
		}
		n := int64(len(samples))
		if l.batches < 2*segments*segment || l.batches-2*segments*segment < n*segments*segment/samplesWanted {
			continue // not steady yet, or no moment to look
		}
		if err := r.progress(int(n), samplesWanted); err != nil {
			return Result{}, err
		}
		size, _, err := fileBytes(dir)
		if err != nil {
			return Result{}, err
		}
		var sum lst.Stat
		for k := range streams {
			st, _ := s.View().Stat(streamID(k))
			sum.Count, sum.Bytes = sum.Count+st.Count, sum.Bytes+st.Bytes
		}
		headers = float64(l.batches-l.payloadBytes()) / float64(l.records)
		peak = max(peak, size)
		samples = append(samples, 100*(float64(size)-float64(sum.Bytes)-headers*float64(sum.Count))/float64(sum.Bytes))
	}
	res := Result{What: "dead + index bytes over payload, 150-byte messages, steady state under a budget that the store keeps itself", Unit: "%", Must: below(6), Aim: below(4), Mode: "buffered, DropOldest",
		Counted: "sizes of the segment files − payload of the records present (Stat of each stream) − their headers (the mean of all batches), over that payload; in 200 moments of a turn-over of the whole store, median and quartiles. Trimmed records, trims, snapshots and leaves count; space reserved behind a file's end does not"}
	if !own {
		res.What, res.Mode = "the same, under a budget that an owner keeps by trimming", "buffered"
		res.Note("four times a segment all but the newest %d batches are trimmed, and Reclaim is called", window)
	}
	res.spread(samples)
	res.Note("%d segments of %d MiB as budget, %d streams, batches of %d of one stream, seed %d; the files held at most %d MiB", segments, segment>>20, streams, batch, r.Seed, peak>>20)
	res.Note("%d commits refused for want of space and repeated after Reclaim", l.refused)
	res.Note("largest of the samples %.2f %%; headers, not counted: %.2f %% of the payload", Quantile(samples, 1), 100*headers/payload)
	return res, nil
}

func spaceKeyValue(r *run) ([]Result, error) {
	const keys, value = 10_000, 100
	const segment, budget = 16 << 20, 6 * 16 << 20
	dir := r.dir()
	s, _, err := lst.Open(dir, lst.Options{SegmentBytes: segment, DiskBudgetBytes: budget, TailCacheBytes: -1})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	l := newLoader(s, 1, value, r.Seed)
	rewrites := r.Scale.of(500_000, 1_500_000, 20_000_000)
	var key [8]byte
	live := int64(keys * (len(key) + value))
	var samples []float64
	written := int64(0)
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
		if err = l.whenRoom(err); err != nil {
			return nil, err
		}
		if n%(rewrites/400/20*20) == 0 {
			if err := r.progress(n, rewrites); err != nil {
				return nil, err
			}
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
	res.Note("%d segments dropped, %d commits refused and repeated after Reclaim", st.Dropped, l.refused)
	amplification := Result{Row: "space-keyvalue", What: "bytes written over key-value bytes put, the same load", Unit: "×", Mode: "buffered",
		Counted: "Stats.WrittenBytes over keys and values put"}
	amplification.exact(float64(st.WrittenBytes) / (float64(rewrites) * (8 + value)))
	amplification.Note("of it %.2f × are batches with their headers, the rest snapshots", float64(written)/(float64(rewrites)*(8+value)))
	if st.KVs != keys {
		return nil, fmt.Errorf("%d keys are present, %d were put", st.KVs, keys)
	}
	return []Result{res, amplification}, nil
}
