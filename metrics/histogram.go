package metrics

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Histogram counts times in fixed buckets, two for each power of two from 8 µs to 17 s, so that what is read from it is at
// most half too large. The zero Histogram is empty. All methods may be called concurrently; Observe is two atomic additions.
type Histogram struct {
	counts [Buckets]atomic.Uint64
	sum    atomic.Int64 // ns
}

const (
	lowestBit  = 13 // the first bucket ends at 2^13 ns
	highestBit = 34 // the last but one at 2^34 ns
	// Buckets is how many there are; the last one has no upper bound.
	Buckets = 2*(highestBit-lowestBit) + 2
)

// Bound returns the upper bound of bucket i, which belongs to it, for i from 0 to Buckets−2.
func Bound(i int) time.Duration {
	if i == 0 {
		return 1 << lowestBit
	}
	k := lowestBit + (i-1)/2
	if i%2 == 1 {
		return 3 << (k - 1)
	}
	return 1 << (k + 1)
}

// bucket is the inverse of Bound.
func bucket(d time.Duration) int {
	u := uint64(max(d, 1)) - 1
	if u < 1<<lowestBit {
		return 0
	}
	k := bits.Len64(u) - 1
	return min((k-lowestBit)*2+int(u>>(k-1)&1)+1, Buckets-1)
}

// Observe counts n events that took d each. A time that the clock made negative counts as zero.
func (h *Histogram) Observe(d time.Duration, n uint64) {
	h.counts[bucket(d)].Add(n)
	h.sum.Add(int64(max(d, 0)) * int64(n))
}

// Snapshot returns what was counted. Events that are observed meanwhile may be in its sum and not in its counts.
func (h *Histogram) Snapshot() *Snapshot {
	s := &Snapshot{Sum: time.Duration(h.sum.Load())}
	for i := range h.counts {
		s.Counts[i] = h.counts[i].Load()
	}
	return s
}

// Snapshot is what a Histogram had counted.
type Snapshot struct {
	Counts [Buckets]uint64 // of each bucket alone
	Sum    time.Duration
}

// Count returns the number of events.
func (s *Snapshot) Count() (n uint64) {
	for _, c := range s.Counts {
		n += c
	}
	return n
}

// Quantile returns the upper bound of the bucket that holds quantile q, from 0 to 1, of the events: the true value is at
// most that, and more than two thirds of it. It is 0 without events, and the highest bound for what lies above it.
func (s *Snapshot) Quantile(q float64) time.Duration {
	total := s.Count()
	if total == 0 {
		return 0
	}
	rank, seen := uint64(q*float64(total)), uint64(0)
	for i, c := range s.Counts {
		if seen += c; seen > rank || seen == total {
			return Bound(min(i, Buckets-2))
		}
	}
	return Bound(Buckets - 2)
}

// Since returns what came after an earlier snapshot of the same Histogram.
func (s *Snapshot) Since(earlier *Snapshot) *Snapshot {
	out := &Snapshot{Sum: s.Sum - earlier.Sum}
	for i := range s.Counts {
		out.Counts[i] = s.Counts[i] - earlier.Counts[i]
	}
	return out
}
