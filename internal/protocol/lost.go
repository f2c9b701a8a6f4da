package protocol

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
)

// Lost is a run of LSNs [From, To] that an open gave up because its owner accepted the loss (P5). The log's record keeps it: of
// these LSNs there is nothing, for ever and for everybody, be it that a node comes back with a copy. Readers are told so, and
// archiving, repair and later opens do not wait for them.
type Lost struct {
	From, To LSN
	// Epoch is the one whose open gave them up; its start is above To.
	Epoch Epoch
	// Skipped: the LSNs were not known committed. They are behind the last one that was found, and fewer than a read quorum said
	// where the log ends, so an earlier writer may have given them out, and have had them acknowledged. They are never given again.
	Skipped bool
}

const (
	// MaxLost bounds the ranges of a log's record.
	MaxLost = 1024
	// LossSkip is how many LSNs an open skips whose tail was not decided by a read quorum. It is more than a writer that was not
	// fenced can give out until it is noticed: a million a second for eleven days. So nothing of what it or its nodes still do, an
	// acknowledgement, a watermark, an archived object, can speak of an LSN that a later writer gives out.
	LossSkip LSN = 1_000_000_000_000
)

// LostRanges are the lost runs of a log, ascending and disjoint.
type LostRanges []Lost

// Ranges returns the LSNs alone.
func (l LostRanges) Ranges() []Range {
	var out []Range
	for _, r := range l {
		out = append(out, Range{r.From, r.To})
	}
	return joined(out)
}

// find returns the index of the first range that ends at or above x.
func (l LostRanges) find(x LSN) int {
	return sort.Search(len(l), func(i int) bool { return l[i].To >= x })
}

// At returns the range that x is in.
func (l LostRanges) At(x LSN) (Lost, bool) {
	if i := l.find(x); i < len(l) && l[i].From <= x {
		return l[i], true
	}
	return Lost{}, false
}

// Next returns the lowest lost LSN at or above x, or MaxLSN+1.
func (l LostRanges) Next(x LSN) LSN {
	if i := l.find(x); i < len(l) {
		return max(x, l[i].From)
	}
	return MaxLSN + 1
}

// With returns the ranges of both, or an error if they overlap or are too many. Neither is changed.
func (l LostRanges) With(more LostRanges) (LostRanges, error) {
	out := slices.Concat(l, more)
	slices.SortFunc(out, func(a, b Lost) int { return cmp.Compare(a.From, b.From) })
	return out, out.Validate()
}

// Validate reports ranges that no sequence of opens could have left.
func (l LostRanges) Validate() error {
	if len(l) > MaxLost {
		return fmt.Errorf("%d lost ranges, the limit is %d", len(l), MaxLost)
	}
	for i := range l {
		if l[i].From == 0 || l[i].From > l[i].To || l[i].To >= MaxLSN || l[i].Epoch == 0 {
			return fmt.Errorf("lost range %d is LSNs %d to %d, epoch %d", i, l[i].From, l[i].To, l[i].Epoch)
		}
		if i > 0 && l[i].From <= l[i-1].To {
			return fmt.Errorf("lost range %d (LSNs %d to %d) does not follow LSN %d", i, l[i].From, l[i].To, l[i-1].To)
		}
	}
	return nil
}

// rangeAt returns the one of ascending, disjoint ranges that x is in.
func rangeAt(rs []Range, x LSN) (Range, bool) {
	i := sort.Search(len(rs), func(i int) bool { return rs[i].To >= x })
	if i < len(rs) && rs[i].From <= x {
		return rs[i], true
	}
	return Range{}, false
}

// without returns what of ascending, disjoint ranges is in none of the others, which are so too. Both are left alone.
func without(rs, others []Range) []Range {
	if len(others) == 0 || len(rs) == 0 {
		return rs
	}
	var out []Range
	for _, r := range rs {
		out = append(out, uncovered(r.From, r.To, slices.Clone(others))...)
	}
	return out
}

// clearLost takes what is lost out of the damage: lost is known, damaged is not. That splits ranges; if they become more than a state value
// may list, those with the smallest gaps are joined, over what is whole: that is called unknown then (P3), but nothing that is lost is. A state
// value that lists more could not be read at the next start.
func (l *nodeLog) clearLost() {
	d := without(l.damaged, l.lost)
	if len(d) > MaxExtents {
		between := make(LostRanges, len(l.lost))
		for i, r := range l.lost {
			between[i] = Lost{From: r.From, To: r.To}
		}
		d, _ = fewer(d, between, MaxExtents) // there are fewer gaps with something lost than there may be ranges
	}
	l.damaged = d
}

// validRanges reports ranges that are not ascending and disjoint, or that end at or above limit.
func validRanges(rs []Range, limit LSN) bool {
	for i, r := range rs {
		if r.From == 0 || r.From > r.To || r.To >= limit || i > 0 && r.From <= rs[i-1].To {
			return false
		}
	}
	return true
}

// joined sorts ranges and joins those that touch.
func joined(rs []Range) []Range {
	slices.SortFunc(rs, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
	out := rs[:0]
	for _, r := range rs {
		if n := len(out); n > 0 && r.From <= out[n-1].To+1 {
			out[n-1].To = max(out[n-1].To, r.To)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// uncovered returns the runs of [from, to] that are in none of the ranges given. It may change have.
func uncovered(from, to LSN, have []Range) []Range {
	var out []Range
	for _, h := range joined(have) {
		if from > to || h.From > to {
			break
		}
		if h.From > from {
			out = append(out, Range{from, h.From - 1})
		}
		from = max(from, h.To+1)
	}
	if from <= to {
		out = append(out, Range{from, to})
	}
	return out
}

// fewer joins ascending ranges over the smallest gaps between them until there are at most n: lost may be said of too much,
// never of too little. A gap with one of the ranges in between is not joined; when that leaves too many, ok is false.
func fewer(rs []Range, between LostRanges, n int) (out []Range, ok bool) {
	if len(rs) <= n {
		return rs, true
	}
	type gap struct {
		at   int // between rs[at] and rs[at+1]
		size LSN
	}
	var gaps []gap
	for i := range rs[1:] {
		if between.Next(rs[i].To) > rs[i+1].From {
			gaps = append(gaps, gap{i, rs[i+1].From - rs[i].To})
		}
	}
	if len(rs)-len(gaps) > n {
		return rs, false
	}
	slices.SortStableFunc(gaps, func(a, b gap) int { return cmp.Compare(a.size, b.size) })
	join := make([]bool, len(rs))
	for _, g := range gaps[:len(rs)-n] {
		join[g.at] = true
	}
	for i, r := range rs {
		if i > 0 && join[i-1] {
			out[len(out)-1].To = r.To
		} else {
			out = append(out, r)
		}
	}
	return out, true
}
