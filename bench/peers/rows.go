package peers

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/btrlog/btrlog/lst/lstbench"
)

// Bench is one run of the comparisons.
type Bench struct {
	Dir    string // on the device to measure; what is made there is removed
	Blocks int
	Seed   uint64
	Device string
	// Progress, if not nil, is told what runs. An error of it ends the run.
	Progress func(row string, done, total int) error
	runs     int
}

// pair opens lst and a peer beside each other, in fresh directories.
func (b *Bench) pair(e Engine, forced bool, fn func(ours, theirs Log) error) error {
	b.runs++
	dir := filepath.Join(b.Dir, fmt.Sprintf("pair-%d", b.runs))
	defer os.RemoveAll(dir)
	ours, err := LST.Open(filepath.Join(dir, "lst"), forced)
	if err != nil {
		return err
	}
	defer ours.Close()
	theirs, err := e.Open(filepath.Join(dir, "peer"), forced)
	if err != nil {
		return fmt.Errorf("%s: %w", e.Name, err)
	}
	defer theirs.Close()
	return fn(ours, theirs)
}

func (b *Bench) progress(row string) func(done, total int) error {
	return func(done, total int) error {
		if b.Progress == nil {
			return nil
		}
		return b.Progress(row, done, total)
	}
}

func records(n int) [][]byte {
	recs := make([][]byte, n)
	for i := range recs {
		recs[i] = make([]byte, recordBytes)
		Record(recs[i], uint64(i))
	}
	return recs
}

// fastest marks the result that the requirement is about, the one with the smallest advantage of ours, and puts it first.
func fastest(all []lstbench.Result, must float64) []lstbench.Result {
	best := -1
	for i, r := range all {
		if r.Verdict != lstbench.Void && (best < 0 || r.Value < all[best].Value) {
			best = i
		}
	}
	if best >= 0 {
		all[best].Must = &lstbench.Limit{AtLeast: true, Value: must}
		all[0], all[best] = all[best], all[0]
	}
	for i := range all {
		all[i].Judge()
	}
	return all
}

// Unforced compares appends of 16 records of 128 bytes with every peer that the proofs show to be of the class "survives
// kill -9". Others are measured too, and named as what they are.
func (b *Bench) Unforced(proofs []Proof) ([]lstbench.Result, error) {
	survives := map[string]bool{}
	for _, p := range proofs {
		survives[p.Engine] = p.Survives
	}
	var all []lstbench.Result
	for _, e := range Others {
		// A block is 20 MB of records, as much as one whole segment of tidwall/wal, whose copies in memory come in phases: a shorter
		// block falls into one of them, and the median of such blocks says which phase comes more often, not how fast the peer is.
		ops := 10_000
		if e.OnlyForced {
			ops = 500 // a synced write each
		}
		recs := records(batchRecords)
		res := lstbench.Result{Row: "peers-unforced", What: "unforced append of 128 bytes, batch 16, records per second over those of " + e.Name, Device: b.Device,
			Mode:    "lst: " + LST.Unforced + "; " + e.Name + ": " + e.Unforced,
			Counted: "interleaved blocks of appends by one caller; ratio of medians, quartiles of the pairs"}
		err := b.pair(e, false, func(ours, theirs Log) error {
			side := func(l Log) lstbench.Side {
				return func(int) (time.Duration, error) {
					begin := time.Now()
					for range ops {
						if err := l.Append(recs); err != nil {
							return 0, err
						}
					}
					return time.Since(begin), nil
				}
			}
			x, err := lstbench.Interleave(b.Blocks, side(theirs), side(ours), b.progress("unforced "+e.Name))
			res.SetRatio(x, e.Name, "lst", ops)
			return err
		})
		if err != nil {
			return all, err
		}
		switch {
		case e.OnlyForced:
			res.Mode = "lst: " + LST.Unforced + "; " + e.Name + ": " + e.Forced
			res.Verdict = lstbench.Void
			res.Note("another class: %s has no unforced appends", e.Name)
		case !survives[e.Name]:
			res.Verdict = lstbench.Void
			res.Note("another class: acknowledged records were lost by kill -9")
		case !survives[LST.Name]:
			return all, fmt.Errorf("lst lost acknowledged records by kill -9: nothing to compare")
		}
		all = append(all, res)
	}
	return fastest(all, 2), nil
}

// Forced compares appends of one record of 128 bytes by 64 callers at a time, each acknowledged as durable.
func (b *Bench) Forced() ([]lstbench.Result, error) {
	const callers, each = 64, 20
	var all []lstbench.Result
	for _, e := range Others {
		recs := records(callers)
		res := lstbench.Result{Row: "peers-forced", What: "forced append of 128 bytes, 64 callers, records per second over those of " + e.Name, Device: b.Device,
			Mode:    "lst: " + LST.Forced + "; " + e.Name + ": " + e.Forced,
			Counted: "interleaved blocks, each of 64 goroutines that append 20 records one after another; ratio of medians, quartiles of the pairs. That a peer's synced appends survive the loss of power is taken from its documentation, a kill proves nothing about it"}
		err := b.pair(e, true, func(ours, theirs Log) error {
			side := func(l Log) lstbench.Side {
				return func(int) (time.Duration, error) {
					errs := make([]error, callers)
					var wg sync.WaitGroup
					begin := time.Now()
					for c := range callers {
						wg.Go(func() {
							for range each {
								if errs[c] = l.Append(recs[c : c+1]); errs[c] != nil {
									return
								}
							}
						})
					}
					wg.Wait()
					took := time.Since(begin)
					for _, err := range errs {
						if err != nil {
							return 0, err
						}
					}
					return took, nil
				}
			}
			x, err := lstbench.Interleave(b.Blocks, side(theirs), side(ours), b.progress("forced "+e.Name))
			res.SetRatio(x, e.Name, "lst", callers*each)
			return err
		})
		if err != nil {
			return all, err
		}
		all = append(all, res)
	}
	return fastest(all, 1), nil
}

// Tail compares reads of records written last, from memory, with those of tidwall/wal: with its own settings, in which a
// read is a copy that the caller keeps, as in lst, and with NoCopy, in which it is the engine's memory.
func (b *Bench) Tail() ([]lstbench.Result, error) {
	var all []lstbench.Result
	for _, copies := range []bool{true, false} {
		res, err := b.tail(copies)
		if err != nil {
			return all, err
		}
		all = append(all, res)
	}
	return all, nil
}

func (b *Bench) tail(copies bool) (lstbench.Result, error) {
	const written, ops = 50_000, 20_000
	e := Engine{Name: "tidwall/wal", Open: func(dir string, forced bool) (Log, error) { return openTidwallCopy(dir, forced, copies) }}
	res := lstbench.Result{Row: "peers-tail", What: "point read of 128 bytes from the tail in memory over tidwall/wal's hot read", Must: &lstbench.Limit{Value: 2}, Device: b.Device,
		Mode:    "lst: tail cache; tidwall/wal: newest segment in memory, default options",
		Counted: "interleaved blocks of reads at random of 50,000 records written just before; ratio of medians, quartiles of the pairs. Both give the caller a copy; lst also checks its CRC32C"}
	if !copies {
		res.What += " with NoCopy"
		res.Mode = "lst: tail cache; tidwall/wal: newest segment in memory, NoCopy"
		res.Counted = "as the row before, but tidwall/wal hands out its memory"
		res.Must = nil
	}
	err := b.pair(e, false, func(ours, theirs Log) error {
		recs := records(batchRecords)
		for n := uint64(0); n < written; n += batchRecords {
			for i := range recs {
				Record(recs[i], n+1+uint64(i))
			}
			for _, l := range []Log{ours, theirs} {
				if err := l.Append(recs); err != nil {
					return err
				}
			}
		}
		random := rand.New(rand.NewPCG(b.Seed, 3))
		side := func(l Log) lstbench.Side {
			return func(int) (time.Duration, error) {
				want := make([]uint64, ops)
				for i := range want {
					want[i] = 1 + random.Uint64N(written)
				}
				begin := time.Now()
				for _, i := range want {
					p, err := l.Read(i)
					if err != nil || len(p) != recordBytes {
						return 0, fmt.Errorf("record %d: %d bytes, %w", i, len(p), err)
					}
				}
				return time.Since(begin), nil
			}
		}
		x, err := lstbench.Interleave(b.Blocks, side(ours), side(theirs), b.progress("tail read"))
		res.SetRatio(x, "lst", "tidwall/wal", ops)
		return err
	})
	res.Judge()
	return res, err
}
