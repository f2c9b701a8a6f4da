package lstbench

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/btrlog/btrlog/lst"
)

func recovery(r *run) ([]Result, error) {
	records := r.Scale.of(500_000, 1_500_000, 5_000_000)
	rounds := r.Scale.of(5, 5, 9)
	var all []Result
	for _, batch := range []int{16, 1} {
		var rates []float64
		var last lst.RecoveryReport
		lost := int64(0)
		for round := range rounds {
			dir := r.dir()
			// No snapshot but the first: everything is replayed.
			j := job{Dir: dir, Streams: 1, Payload: smallRecord, Batch: batch, SnapshotRecords: 1 << 40, SegmentBytes: 256 << 20, Seed: r.Seed + uint64(round)}
			acked, err := r.writeAndKill(j, records)
			if err != nil {
				return nil, err
			}
			opt := byRecords(1 << 40)
			opt.SegmentBytes = j.SegmentBytes
			begin := time.Now()
			s, report, err := lst.Open(dir, opt)
			if err != nil {
				return nil, err
			}
			st, _ := s.View().Stat(streamID(0))
			if _, err := s.View().Get(streamID(0), st.EOF-1, nil); err != nil {
				return nil, err
			}
			took := since(begin)
			rates = append(rates, float64(report.ReplayedRecords)/took/1e6)
			lost = max(lost, acked-int64(st.Count))
			last = report
			if err := s.Close(); err != nil {
				return nil, err
			}
			if err := removeContents(r.Dir); err != nil {
				return nil, err
			}
		}
		res := Result{What: fmt.Sprintf("recovery after kill -9, to the last record verified and readable, batch %d", batch), Unit: "million records/s", Must: least(1), Aim: least(3), Mode: "buffered, page cache warm as a kill leaves it",
			Counted: "records replayed over the time from the call of lst.Open to the last record read by Get; the writing process was killed in the middle of its work; median and quartiles of the rounds. An absolute rate: it depends on the machine"}
		if batch == 1 {
			res.Must, res.Aim = nil, nil
			res.Note("printed beside the row: every record is a frame of its own")
		}
		res.spread(rates)
		res.Note("%d-byte records, %d replayed (%d MiB) in the last round, seed %d", smallRecord, last.ReplayedRecords, last.ReplayedBytes>>20, r.Seed)
		if lost > 0 {
			return nil, fmt.Errorf("%d acknowledged records are lost after kill -9", lost)
		}
		res.Note("no acknowledged record was lost in %d rounds", rounds)
		all = append(all, res)
	}
	return all, nil
}

// opened is the cost of a restart.
type opened struct {
	calls        int
	bytes, rchar int64
	seen         probeCounts // when Open returned: more, if the store has begun to read the rest in the background
	syscr        int64
	report       lst.RecoveryReport
	files        int
	size         int64
	took         time.Duration
}

// reopen writes a store in another process, kills it half an interval behind its last snapshot, and opens it. It goes
// on so after each of the kills, an interval further: a restart walks from where the last segment or snapshot says that
// the store was durable, and where segments end between snapshots is a matter of chance.
func (r *run) reopen(streams, records, payload, every int, segment int64, kills int) (all []opened, err error) {
	dir := r.dir()
	for k := range kills {
		o, err := r.reopenOnce(dir, streams, (records/every+k)*every+every/2, payload, every, segment)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, removeContents(r.Dir)
}

func (r *run) reopenOnce(dir string, streams, records, payload, every int, segment int64) (opened, error) {
	j := job{Dir: dir, Streams: streams, Payload: payload, Batch: 20, SnapshotRecords: every, SegmentBytes: segment, Seed: r.Seed, Stop: records}
	if _, err := r.writeAndKill(j, records); err != nil {
		return opened{}, err
	}
	size, files, err := fileBytes(dir)
	if err != nil {
		return opened{}, err
	}
	o := opened{files: files, size: size}
	probe := newProbe()
	opt := byRecords(every)
	opt.FS, opt.SegmentBytes = probe, segment
	var s *lst.Store
	io, err := ioBetween(func() error {
		begin := time.Now()
		s, o.report, err = lst.Open(dir, opt)
		o.took = time.Since(begin)
		o.seen = probe.counts()
		return err
	})
	if err != nil {
		return opened{}, err
	}
	o.calls, o.bytes, o.rchar, o.syscr = o.report.Reads, o.report.BytesRead, io.rchar, io.syscr
	if o.seen.bytes < o.bytes {
		return opened{}, fmt.Errorf("the report names %d bytes read, the file system saw %d", o.bytes, o.seen.bytes)
	}
	// Everything is there, and read back only now: a restart leaves what it does not need.
	count, total := 0, uint64(0)
	v := s.View()
	v.Streams(nil, func(id lst.StreamID) bool {
		st, _ := v.Stat(id)
		count, total = count+1, total+st.Count
		return true
	})
	if err := errors.Join(v.Err(), s.Close()); err != nil {
		return opened{}, err
	}
	if total != uint64(records) || count != streams {
		return opened{}, fmt.Errorf("%d records in %d streams after the restart, %d in %d were acknowledged", total, count, records, streams)
	}
	return o, nil
}

// mostRead is the opening that read most bytes, and the most calls of any.
func mostRead(all []opened) (most opened, calls int, bytes string) {
	var read []string
	for _, o := range all {
		if o.bytes > most.bytes {
			most = o
		}
		calls = max(calls, o.calls)
		read = append(read, fmt.Sprint(o.bytes))
	}
	return most, calls, strings.Join(read, ", ")
}

func (o opened) String() string {
	return fmt.Sprintf("%d files, %d MiB: %d bytes read in %d calls; the file system saw %d in %d by then, background included (/proc/self/io: %d bytes, %d reads), snapshot %d bytes, %d records replayed, %v",
		o.files, o.size>>20, o.bytes, o.calls, o.seen.bytes, o.seen.calls, o.rchar, o.syscr, o.report.SnapshotBytes, o.report.ReplayedRecords, o.took.Round(100*time.Microsecond))
}

const countedOpen = "bytes and calls that Open reports to have needed (RecoveryReport.BytesRead and Reads: open, read, size, list, close), checked against what the file system below it and /proc/self/io saw, where the background, which reads the rest of the snapshot after Open, comes in. The opening follows upon a kill:  the writing process was killed half a snapshot interval behind its last snapshot"

func openSize(r *run) ([]Result, error) {
	const payload, every, streams = 1000, 20_000, 100
	const kills = 5                                 // an interval apart: between them a segment ends at every place
	small := r.Scale.of(30_000, 200_000, 1_000_000) // records of a kilobyte: 0.03, 0.2, 1 GB
	segment := r.Scale.pick(8<<20, 16<<20, 64<<20)
	allA, err := r.reopen(streams, small, payload, every, segment, kills)
	if err != nil {
		return nil, err
	}
	allB, err := r.reopen(streams, 10*small, payload, every, segment, kills)
	if err != nil {
		return nil, err
	}
	a, callsA, readA := mostRead(allA)
	b, callsB, readB := mostRead(allB)
	bytes := Result{What: fmt.Sprintf("open: bytes read, store of %.3g GB over one of %.3g GB", float64(b.size)/1e9, float64(a.size)/1e9), Unit: "×", Must: most(1.2), Mode: "buffered",
		Counted: countedOpen + fmt.Sprintf(". How much of it is read depends on where segments end between the last two snapshots, in a store of any size: the most of %d kills, an interval apart, of each store, which was synced once before the interval in front of the last snapshot: a device that lags behind is no part of it", kills)}
	bytes.exact(float64(b.bytes) / float64(a.bytes))
	bytes.Note("%d streams, a snapshot every %d records, segments of %d MiB, seed %d", streams, every, segment>>20, r.Seed)
	bytes.Note("small: %v", a)
	bytes.Note("large: %v", b)
	bytes.Note("bytes of each opening: small %s; large %s", readA, readB)
	calls := Result{What: "open: system calls, the same stores", Unit: "×", Must: most(1.2), Mode: "buffered", Counted: countedOpen}
	calls.exact(float64(callsB) / float64(callsA))
	calls.Note("the most of %d kills of each store: %d and %d", kills, callsB, callsA)
	return []Result{bytes, calls}, nil
}

func openStreams(r *run) ([]Result, error) {
	const payload, every = 128, 100_000
	many := r.Scale.of(100_000, 100_000, 100_000)
	records := r.Scale.of(400_000, 1_000_000, 5_000_000)
	allA, err := r.reopen(100, records, payload, every, 64<<20, 1)
	if err != nil {
		return nil, err
	}
	allB, err := r.reopen(many, records, payload, every, 64<<20, 1)
	if err != nil {
		return nil, err
	}
	a, b := allA[0], allB[0]
	bytes := Result{What: fmt.Sprintf("open: bytes read with %d streams over the bound that the report names for its interval", many), Unit: "×", Must: most(1), Mode: "buffered", Counted: countedOpen + ". The bound is RecoveryReport.BoundBytes, a multiple of the bytes committed in the interval"}
	bytes.exact(float64(b.bytes) / float64(b.report.BoundBytes))
	bytes.Note("the bound printed: %d bytes with %d streams, %d with 100; the interval is %d records of %d bytes", b.report.BoundBytes, many, a.report.BoundBytes, every, payload)
	bytes.Note("100 streams: %v", a)
	bytes.Note("%d streams: %v", many, b)
	ratio := Result{What: fmt.Sprintf("open: bytes read, %d streams over 100, same interval", many), Unit: "×", Mode: "buffered", Counted: countedOpen}
	ratio.exact(float64(b.bytes) / float64(a.bytes))
	calls := Result{What: fmt.Sprintf("open: system calls, %d streams over 100, same interval", many), Unit: "×", Mode: "buffered", Counted: countedOpen}
	calls.exact(float64(b.calls) / float64(a.calls))
	return []Result{bytes, ratio, calls}, nil
}
