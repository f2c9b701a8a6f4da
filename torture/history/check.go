//go:build linux

package history

import (
	"fmt"
	"maps"
	"slices"
)

// maxProblems of one log are reported; one mistake makes thousands.
const maxProblems = 10

type found struct {
	list []string
	more int
}

func (f *found) add(format string, args ...any) {
	if len(f.list) >= maxProblems {
		f.more++
		return
	}
	f.list = append(f.list, fmt.Sprintf(format, args...))
}

// Check compares everything that clients saw of a log with the log as it is in the end, for all operations one by one:
// an acknowledged record is at its LSN with its bytes, in every final scan; LSNs have no holes; nothing is there that was not
// appended, nothing twice, nothing that failed; reads, tails and followers saw a prefix.
func (l *Log) Check() []string {
	f := &found{list: slices.Clone(l.Problems)}
	truth := l.finals(f)
	if truth != nil {
		l.appends(f, truth)
		l.readers(f, truth)
	}
	if f.more > 0 {
		f.list = append(f.list, fmt.Sprintf("and %d more", f.more))
	}
	return f.list
}

// finals compares the final scans with each other, and returns the values by LSN − 1.
func (l *Log) finals(f *found) []uint64 {
	if len(l.Finals) == 0 {
		f.add("no final scan")
		return nil
	}
	var truth []uint64
	var first string
	for _, name := range slices.Sorted(maps.Keys(l.Finals)) {
		var values []uint64
		ended := false
		for _, e := range l.Finals[name] {
			switch {
			case e.Val == 0 && e.Bad == "":
				ended = true
				if e.Out != OK {
					f.add("final scan of %s failed: %s", name, e.Err)
				} else if e.LSN != uint64(len(values)) {
					f.add("final scan of %s: the tail is %d, the scan ended at %d", name, e.LSN, len(values))
				}
			case e.Bad != "":
				f.add("final scan of %s, LSN %d: %s", name, e.LSN, e.Bad)
				values = append(values, e.Val)
			default:
				if e.LSN != uint64(len(values))+1 {
					f.add("final scan of %s: LSN %d behind LSN %d", name, e.LSN, len(values))
				}
				values = append(values, e.Val)
			}
		}
		if !ended {
			f.add("final scan of %s did not end", name)
		}
		if first == "" {
			first, truth = name, values
		} else if !slices.Equal(truth, values) {
			f.add("final scans differ: %d records by %s, %d by %s", len(truth), first, len(values), name)
		}
	}
	return truth
}

func (l *Log) appends(f *found, truth []uint64) {
	appended := make(map[uint64]*Operation)
	for i := range l.Ops {
		o := &l.Ops[i]
		if o.Op != Append {
			continue
		}
		if appended[o.Val] != nil {
			f.add("the workload appended value %x twice", o.Val)
		}
		appended[o.Val] = o
		if o.Out == OK && (o.LSN == 0 || o.LSN > uint64(len(truth)) || truth[o.LSN-1] != o.Val) {
			f.add("LOST: the acknowledged record %x is not at LSN %d of the log in the end", o.Val, o.LSN)
		}
	}
	seen := make(map[uint64]int)
	for i, v := range truth {
		o := appended[v]
		switch {
		case o == nil:
			f.add("FORGED: LSN %d holds %x, which nobody appended", i+1, v)
		case o.Out == Failed:
			f.add("LSN %d holds %x, whose append had failed for certain: %s", i+1, v, o.Err)
		case o.LSN != 0 && o.LSN != uint64(i+1):
			f.add("LSN %d holds %x, which was given LSN %d", i+1, v, o.LSN)
		}
		if at, ok := seen[v]; ok {
			f.add("the record %x is at LSN %d and %d", v, at, i+1)
		}
		seen[v] = i + 1
	}
}

func (l *Log) readers(f *found, truth []uint64) {
	when := make(map[uint64]int64) // when an append began
	for i := range l.Ops {
		o := &l.Ops[i]
		if o.Op == Append {
			when[o.Val] = o.Call
		}
		switch {
		case o.Bad != "":
			f.add("%s of LSN %d: %s", o.Op, o.LSN, o.Bad)
		case o.Op == Read && o.Out == OK && (o.LSN > uint64(len(truth)) || truth[o.LSN-1] != o.Val):
			f.add("a read of LSN %d saw %x, which is not there in the end", o.LSN, o.Val)
		case (o.Op == Tail || o.Op == Open) && o.Out == OK && o.LSN > uint64(len(truth)):
			f.add("%s said %d, and the log ends at %d", o.Op, o.LSN, len(truth))
		}
	}
	for name, events := range l.Follows {
		next := uint64(1)
		for _, e := range events {
			switch {
			case e.Bad != "":
				f.add("%s, LSN %d: %s", name, e.LSN, e.Bad)
			case e.LSN != next:
				f.add("%s: LSN %d where %d was next", name, e.LSN, next)
			case e.LSN > uint64(len(truth)) || truth[e.LSN-1] != e.Val:
				f.add("%s saw %x at LSN %d, which is not there in the end", name, e.Val, e.LSN)
			case e.T < when[e.Val]:
				f.add("%s saw %x before it was appended", name, e.Val)
			}
			next = e.LSN + 1
		}
	}
}
