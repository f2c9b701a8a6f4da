// Package lstbench measures what the storage engine lst promises about speed and size, one row of a table after another.
//
//	M1 A time is never a result. Speeds are ratios against the floor of the same work in the same run (a raw system
//	   call, the same engine with another load), in interleaved blocks A B A B; the ratio of the medians is the value and
//	   the quartiles of the ratios of neighbouring blocks are its spread.
//	M2 What can be counted is counted from outside the engine: file sizes, a file system that is looked through,
//	   /proc/self/io, /proc/self/fd, the runtime's counter of allocations.
//	M3 Every result says how it was counted, on which device and in which mode, and whether what must be reached was.
//	   A result that does not prove anything (a cold read on tmpfs) says void, never met.
//	M4 Disk use is bounded and stated; what was written is removed before the next row.
package lstbench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limit is what a value has to reach.
type Limit struct {
	AtLeast bool // otherwise the value must be at most Value
	Below   bool // with AtLeast false: strictly below
	Value   float64
}

func most(v float64) *Limit  { return &Limit{Value: v} }
func below(v float64) *Limit { return &Limit{Value: v, Below: true} }
func least(v float64) *Limit { return &Limit{Value: v, AtLeast: true} }

// Reached reports whether v is within the limit.
func (l Limit) Reached(v float64) bool {
	switch {
	case l.AtLeast:
		return v >= l.Value
	case l.Below:
		return v < l.Value
	}
	return v <= l.Value
}

// String is the limit as the table of requirements writes it.
func (l Limit) String() string {
	sign := "≤ "
	if l.AtLeast {
		sign = "≥ "
	} else if l.Below {
		sign = "< "
	}
	return sign + strconv.FormatFloat(l.Value, 'g', -1, 64)
}

// MarshalText implements encoding.TextMarshaler.
func (l Limit) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Verdicts of a result.
const (
	AimReached = "aim"     // what is aimed at, or what must be reached if there is no aim
	Reached    = "reached" // what must be reached, not the aim
	Missed     = "missed"
	Printed    = "printed" // nothing is demanded
	Void       = "void"    // proves nothing here; the notes say why
)

// Result is one measured value.
type Result struct {
	Row   string  `json:"row"`
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Must  *Limit  `json:"must,omitempty"`
	Aim   *Limit  `json:"aim,omitempty"`
	// Low and High are the quartiles over the blocks or rounds, equal to Value for what is counted once and exactly.
	Low     float64  `json:"low"`
	High    float64  `json:"high"`
	Blocks  int      `json:"blocks"` // how many measurements the value is the median of
	Counted string   `json:"counted"`
	Device  string   `json:"device"`
	Mode    string   `json:"mode"`
	Notes   []string `json:"notes,omitempty"`
	Verdict string   `json:"verdict"`
}

// Note adds a line to what is said beside the value.
func (r *Result) Note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Judge sets Verdict from Value, Must and Aim, unless it is Void.
func (r *Result) Judge() {
	switch {
	case r.Verdict == Void:
	case r.Must == nil:
		r.Verdict = Printed
	case !r.Must.Reached(r.Value):
		r.Verdict = Missed
	case r.Aim != nil && !r.Aim.Reached(r.Value):
		r.Verdict = Reached
	default:
		r.Verdict = AimReached
	}
}

// Scale is how much data the rows use. The results name what they used.
type Scale int

// Small takes about a minute and 400 MB, Normal some minutes and 2.5 GB, Large (the sizes of the requirements) the
// better part of an hour, 14 GB of disk and 8 GB of memory.
const (
	Small Scale = iota
	Normal
	Large
)

// DiskBytes is about the most that a run holds on disk at a time.
func (s Scale) DiskBytes() int64 { return s.pick(400<<20, 2500<<20, 14<<30) }

func (s Scale) pick(small, normal, large int64) int64 {
	return [...]int64{small, normal, large}[s]
}

func (s Scale) of(small, normal, large int) int {
	return int(s.pick(int64(small), int64(normal), int64(large)))
}

// Config says what to measure and where.
type Config struct {
	// Dir is where a directory for the run is made, and removed again. Empty means os.TempDir.
	Dir string
	// Rows are names from Rows; empty means all.
	Rows  []string
	Scale Scale
	// Seed drives every random choice. 0 is a seed too.
	Seed uint64
	// ChildArgs are the arguments with which this program, started again, calls Child.
	ChildArgs []string
	// Progress, if not nil, is told of the beginning of each row and of each block in it. An error of it ends the run.
	Progress func(row string, done, total int) error
}

type rowFunc func(r *run) ([]Result, error)

type rowEntry struct {
	name string
	fn   rowFunc
}

var table = []rowEntry{
	{"index-dense", indexDense},
	{"index-streams", indexStreams},
	{"space-steady", spaceSteady},
	{"space-keyvalue", spaceKeyValue},
	{"append-raw", appendRaw},
	{"append-parts", appendParts},
	{"append-streams", appendStreams},
	{"forced-direct", forcedDirect},
	{"read-cached", readCached},
	{"read-cold", readCold},
	{"range-nodes", rangeNodes},
	{"stat", statTime},
	{"recovery", recovery},
	{"open-size", openSize},
	{"open-streams", openStreams},
	{"drop-reads", dropReads},
	{"drop-carry", dropCarry},
	{"commit-tail", commitTail},
	{"descriptors", descriptors},
	{"allocations", allocations},
}

// Rows are the names that Config takes, in the order of a run.
func Rows() []string {
	names := make([]string, len(table))
	for i, e := range table {
		names[i] = e.name
	}
	return names
}

// ErrRow refuses a name that is not in Rows.
var ErrRow = errors.New("lstbench: no such row")

// run is one run of the benchmark.
type run struct {
	Config
	device string
	row    string
	dirs   int
}

func (r *run) progress(done, total int) error {
	if r.Progress == nil {
		return nil
	}
	return r.Progress(r.row, done, total)
}

// dir is a fresh name below the run's directory.
func (r *run) dir() string {
	r.dirs++
	return filepath.Join(r.Dir, fmt.Sprintf("%s-%d", r.row, r.dirs))
}

// Run measures the rows and calls each for every result as soon as there is one; each may be nil. An error ends the run;
// the results up to there are returned with it.
func Run(c Config, each func(Result)) ([]Result, error) {
	for _, name := range c.Rows {
		if !slices.Contains(Rows(), name) {
			return nil, fmt.Errorf("%w: %q; the rows are %s", ErrRow, name, strings.Join(Rows(), ", "))
		}
	}
	if c.Scale < Small || c.Scale > Large {
		return nil, fmt.Errorf("lstbench: scale %d is none", c.Scale)
	}
	dir, err := os.MkdirTemp(c.Dir, "lstbench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	c.Dir = dir
	r := &run{Config: c, device: DeviceOf(dir)}
	var all []Result
	for _, e := range table {
		if len(c.Rows) > 0 && !slices.Contains(c.Rows, e.name) {
			continue
		}
		r.row = e.name
		if err := r.progress(0, 0); err != nil {
			return all, err
		}
		results, err := e.fn(r)
		for _, res := range results {
			if res.Row == "" {
				res.Row = e.name
			}
			if res.Device == "" {
				res.Device = r.device
			}
			res.Judge()
			all = append(all, res)
			if each != nil {
				each(res)
			}
		}
		if err != nil {
			return all, fmt.Errorf("lstbench: row %s: %w", e.name, err)
		}
		if err := removeContents(dir); err != nil {
			return all, err
		}
	}
	return all, nil
}

func removeContents(dir string) error {
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := os.RemoveAll(filepath.Join(dir, n.Name())); err != nil {
			return err
		}
	}
	return nil
}

// since is a duration in seconds, never 0.
func since(begin time.Time) float64 { return max(time.Since(begin).Seconds(), 1e-9) }
