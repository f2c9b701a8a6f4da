package protocol

import (
	"math"
	"sort"
)

// run is a stretch of consecutive LSNs of one label and one segment that a node holds.
type run struct {
	From, To LSN
	SegStart LSN
	Off      uint64 // offset of From in the segment body, or unknownOff
	Next     uint64 // offset behind To, or unknownOff
}

// unknownOff stands where a run was cut in its middle: the sizes of the records are not in the index.
const unknownOff = ^uint64(0)

// labelRuns are the runs of one label, ascending and disjoint.
type labelRuns struct {
	label Epoch
	runs  []run
}

// held is what a node holds of one log: an index over labels and LSNs without the bytes. The common append extends the
// last run of the last label and costs two comparisons.
type held []labelRuns

func (h held) label(e Epoch) *labelRuns {
	for i := len(h) - 1; i >= 0; i-- {
		if h[i].label == e {
			return &h[i]
		}
	}
	return nil
}

func (h *held) ensure(e Epoch) *labelRuns {
	if l := h.label(e); l != nil {
		return l
	}
	i := sort.Search(len(*h), func(i int) bool { return (*h)[i].label > e })
	*h = append(*h, labelRuns{})
	copy((*h)[i+1:], (*h)[i:])
	(*h)[i] = labelRuns{label: e}
	return &(*h)[i]
}

// find returns the index of the first run that ends at or above lsn.
func (l *labelRuns) find(lsn LSN) int {
	n := len(l.runs)
	if n == 0 || l.runs[n-1].To < lsn {
		return n
	}
	return sort.Search(n, func(i int) bool { return l.runs[i].To >= lsn })
}

func (l *labelRuns) has(lsn LSN) bool {
	i := l.find(lsn)
	return i < len(l.runs) && l.runs[i].From <= lsn
}

// fits reports whether a record of size bytes at (segStart, off) agrees with its neighbours: within one segment the
// offset is the prefix sum of the sizes, or the body would differ from node to node (A1).
func (l *labelRuns) fits(lsn, segStart LSN, off uint64, size int) bool {
	i := l.find(lsn)
	if i > 0 {
		if p := &l.runs[i-1]; p.SegStart == segStart && p.Next != unknownOff && (p.To+1 == lsn) != (p.Next == off) {
			return false
		}
	}
	if i < len(l.runs) {
		if n := &l.runs[i]; n.SegStart == segStart && n.Off != unknownOff && (n.From == lsn+1) != (n.Off == off+uint64(size)) {
			return false
		}
	}
	return true
}

// add notes a record that is not held yet.
func (l *labelRuns) add(lsn, segStart LSN, off uint64, size int) {
	r := run{lsn, lsn, segStart, off, off + uint64(size)}
	i := l.find(lsn)
	joinsPrev := i > 0 && l.runs[i-1].To+1 == lsn && l.runs[i-1].SegStart == segStart
	joinsNext := i < len(l.runs) && l.runs[i].From == lsn+1 && l.runs[i].SegStart == segStart
	switch {
	case joinsPrev && joinsNext:
		l.runs[i-1].To, l.runs[i-1].Next = l.runs[i].To, l.runs[i].Next
		l.runs = append(l.runs[:i], l.runs[i+1:]...)
	case joinsPrev:
		l.runs[i-1].To, l.runs[i-1].Next = lsn, r.Next
	case joinsNext:
		l.runs[i].From, l.runs[i].Off = lsn, off
	default:
		l.runs = append(l.runs, run{})
		copy(l.runs[i+1:], l.runs[i:])
		l.runs[i] = r
	}
}

// cutFrom forgets every LSN of the label at or above from.
func (l *labelRuns) cutFrom(from LSN) {
	for len(l.runs) > 0 {
		r := &l.runs[len(l.runs)-1]
		if r.To < from {
			break
		}
		if r.From < from {
			r.To, r.Next = from-1, unknownOff
			break
		}
		l.runs = l.runs[:len(l.runs)-1]
	}
}

// cutThrough forgets every LSN of the label at or below through.
func (l *labelRuns) cutThrough(through LSN) {
	n := 0
	for n < len(l.runs) && l.runs[n].To <= through {
		n++
	}
	l.runs = append(l.runs[:0], l.runs[n:]...)
	if len(l.runs) > 0 && l.runs[0].From <= through {
		l.runs[0].From, l.runs[0].Off = through+1, unknownOff
	}
}

// void forgets what the history voids (P8): every label, below the newest start too (H8). It calls emptied for each label
// of which nothing is left.
func (h *held) void(hist History, emptied func(Epoch)) {
	out := (*h)[:0]
	for _, l := range *h {
		l.cutFrom(hist.VoidFrom(l.label))
		if len(l.runs) > 0 {
			out = append(out, l)
		} else {
			emptied(l.label)
		}
	}
	*h = out
}

// cutRange forgets the LSNs of the label that are in r.
func (l *labelRuns) cutRange(r Range) {
	var out []run
	for i, x := range l.runs {
		if x.To < r.From || x.From > r.To {
			if out != nil {
				out = append(out, x)
			}
			continue
		}
		if out == nil {
			out = append(make([]run, 0, len(l.runs)+1), l.runs[:i]...)
		}
		if x.From < r.From {
			out = append(out, run{x.From, r.From - 1, x.SegStart, x.Off, unknownOff})
		}
		if x.To > r.To {
			out = append(out, run{r.To + 1, x.To, x.SegStart, unknownOff, x.Next})
		}
	}
	if out != nil {
		l.runs = out
	}
}

// lose forgets what is lost: every label. It calls emptied as void does.
func (h *held) lose(lost []Range, emptied func(Epoch)) {
	if len(lost) == 0 {
		return
	}
	out := (*h)[:0]
	for _, l := range *h {
		for _, r := range lost {
			l.cutRange(r)
		}
		if len(l.runs) > 0 {
			out = append(out, l)
		} else {
			emptied(l.label)
		}
	}
	*h = out
}

// dropThrough forgets everything at or below through and the labels that are left empty.
func (h *held) dropThrough(through LSN) {
	out := (*h)[:0]
	for _, l := range *h {
		l.cutThrough(through)
		if len(l.runs) > 0 {
			out = append(out, l)
		}
	}
	*h = out
}

// best returns the highest label under which lsn is held.
func (h held) best(lsn LSN) (Epoch, bool) {
	for i := len(h) - 1; i >= 0; i-- {
		if h[i].has(lsn) {
			return h[i].label, true
		}
	}
	return 0, false
}

// highest returns the highest LSN held and its highest label.
func (h held) highest() (LSN, Epoch) {
	var top LSN
	var label Epoch
	for i := range h {
		if r := h[i].runs; len(r) > 0 && r[len(r)-1].To >= top {
			top, label = r[len(r)-1].To, h[i].label
		}
	}
	return top, label
}

// lowest returns the lowest LSN held, or MaxLSN+1.
func (h held) lowest() LSN {
	low := MaxLSN + 1
	for i := range h {
		if r := h[i].runs; len(r) > 0 {
			low = min(low, r[0].From)
		}
	}
	return low
}

// extents lists what is held above floor, ascending in (From, Label), merged over segments; at most limit, with the
// highest LSN of which the list is complete.
func (h held) extents(floor LSN, limit int) (list []Extent, through LSN) {
	for i := range h {
		first := len(list)
		for _, r := range h[i].runs {
			if r.To <= floor {
				continue
			}
			from := max(r.From, floor+1)
			if n := len(list); n > first && list[n-1].To+1 == from {
				list[n-1].To = r.To
			} else {
				list = append(list, Extent{from, r.To, h[i].label})
			}
		}
	}
	sort.Slice(list, func(i, j int) bool {
		if list[i].From != list[j].From {
			return list[i].From < list[j].From
		}
		return list[i].Label < list[j].Label
	})
	if len(list) > limit {
		// Everything from the first extent that is left out upward is not told: unknown, never absent.
		cut := list[limit].From
		list = list[:limit]
		for i := range list {
			list[i].To = min(list[i].To, cut-1)
		}
		out := list[:0]
		for _, e := range list {
			if e.From <= e.To {
				out = append(out, e)
			}
		}
		return out, cut - 1
	}
	return list, MaxLSN
}

// bytesAbove estimates the bytes of the records above floor: exact but for runs that were cut in their middle.
func (h held) bytesAbove(floor LSN) (sum uint64) {
	for i := range h {
		for j := range h[i].runs {
			if r := &h[i].runs[j]; r.To > floor {
				sum += r.bytesAbove(floor)
			}
		}
	}
	return sum
}

// missing lists the LSNs above floor, up to top, that are held under no label.
func (h held) missing(floor, top LSN) (out []Range) {
	list, _ := h.extents(floor, math.MaxInt)
	next := floor + 1
	for _, e := range list {
		if e.From > next {
			out = append(out, Range{next, e.From - 1})
		}
		next = max(next, e.To+1)
	}
	if next <= top {
		out = append(out, Range{next, top})
	}
	return out
}
