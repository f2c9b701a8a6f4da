package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/btrlog/btrlog/bench/load"
)

// result is what one system showed.
type result struct {
	Name  string `json:"name"`
	What  string `json:"what"`
	Peer  string `json:"peer"`
	Error string `json:"error,omitempty"` // it could not be run, or not to the end
	Class *class `json:"durability,omitempty"`
	// P50 and P99 of one append in flight: the product's over its own, in blocks that took turns.
	P50 *load.Ratio `json:"p50_product_over_peer,omitempty"`
	P99 *load.Ratio `json:"p99_product_over_peer,omitempty"`
	// Sustained is the highest rate with a p99 below the limit, of each round.
	Sustained []float64       `json:"sustained_per_s,omitempty"`
	Sweeps    [][]*load.Point `json:"sweeps,omitempty"`
}

func (o *options) begin(ctx context.Context, s *system) (*running, string, error) {
	dir, err := os.MkdirTemp(o.dir, "peers-"+s.name+"-")
	if err != nil {
		return nil, "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, "", err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, "", err
	}
	r, err := s.start(ctx, o, abs)
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("%s: %w%s", s.name, err, lastWords(abs)), o.remove(abs))
	}
	return r, abs, nil
}

// lastWords are the first complaint in each file of standard error below a directory.
func lastWords(dir string) (words string) {
	files, _ := filepath.Glob(filepath.Join(dir, "stderr*"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "Exception:") {
				words += "; " + filepath.Base(f) + ": " + strings.TrimSpace(line)
				break
			}
		}
	}
	return words
}

func (o *options) remove(dir string) error {
	if o.keep {
		return nil
	}
	return os.RemoveAll(dir)
}

// pair measures one append in flight, the product and a peer by turns, and proves the peer's class first.
func (o *options) pair(ctx context.Context, ours, s *system, out *result) (err error) {
	peer, peerDir, err := o.begin(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.stop(), o.remove(peerDir)) }()
	if out.Class, err = prove(peer, o.traced, o.bytes, peerDir); err != nil {
		return err
	}
	if s == ours {
		return nil
	}
	own, ownDir, err := o.begin(ctx, ours)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.stop(), o.remove(ownDir)) }()
	a, err1 := own.client("all")
	b, err2 := peer.client("all")
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	var p50, p99 [2][]float64
	for _, c := range []*load.Client{a, b} {
		if _, err := c.Closed(o.warm, o.bytes); err != nil {
			return err
		}
	}
	for range o.blocks {
		for i, c := range []*load.Client{a, b} {
			took, err := c.Closed(o.appends, o.bytes)
			if err != nil {
				return err
			}
			us := make([]float64, len(took))
			for j, t := range took {
				us[j] = float64(t) / 1e3
			}
			p50[i], p99[i] = append(p50[i], load.Median(us)), append(p99[i], load.At(us, 0.99))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	r50, r99 := load.Compare(p50[0], p50[1]), load.Compare(p99[0], p99[1])
	out.P50, out.P99 = &r50, &r99
	return nil
}

// sweep raises the rate until the p99 reaches the limit or less than 99 % is achieved, then looks between the last two.
func (o *options) sweep(ctx context.Context, s *system, seed uint64) (points []*load.Point, best float64, err error) {
	r, dir, err := o.begin(ctx, s)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, r.stop(), o.remove(dir)) }()
	c, err := r.client(o.cpus)
	if err != nil {
		return nil, 0, err
	}
	if _, err := c.Closed(o.warm, o.bytes); err != nil {
		return nil, 0, err
	}
	try := func(rate float64) (bool, error) {
		for range 2 { // on a machine with other work one bad second is no limit
			before := r.processor()
			pt, err := c.Run(load.Plan{Rate: rate, Logs: o.logs, RecordBytes: o.bytes, Warmup: o.length / 4, Length: o.length, Seed: seed})
			if err != nil {
				return false, err
			}
			pt.NodeCPU = float64(r.processor()-before) / 1e3 / float64(max(1, pt.Completed))
			points = append(points, pt)
			if pt.Achieved >= 0.99 && pt.P99 < float64(o.limit)/1e3 {
				best = max(best, float64(pt.Completed)/pt.Seconds)
				return true, nil
			}
			if err := ctx.Err(); err != nil {
				return false, err
			}
		}
		return false, nil
	}
	low, high := 0.0, 0.0
	for rate, bad := o.first, 0; bad < 3; rate *= o.factor { // three bad rates in a row: one may be the machine's
		ok, err := try(rate)
		if err != nil {
			return points, best, err
		}
		if ok {
			low, high, bad = rate, 0, 0
			continue
		}
		bad++
		if high == 0 {
			high = rate
		}
	}
	for range o.refine {
		if low == 0 {
			break
		}
		mid := (low + high) / 2
		ok, err := try(mid)
		if err != nil {
			return points, best, err
		}
		if ok {
			low = mid
		} else {
			high = mid
		}
	}
	return points, best, nil
}

// limitOf says the bound of a sweep.
func (o *options) limitOf() string { return fmt.Sprintf("p99 < %v, 99 %% achieved", o.limit) }
