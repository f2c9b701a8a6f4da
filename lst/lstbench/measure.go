package lstbench

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Side is one of two things that are compared: it does one block of work and returns what the block took. What it does
// outside of its own clock does not count.
type Side func(block int) (time.Duration, error)

// Ratio is the outcome of a comparison. The times are of one block.
type Ratio struct {
	Value, Low, High float64 // of the medians; quartiles of the ratios of neighbouring blocks
	A, B             time.Duration
	FastA, FastB     time.Duration // the fastest blocks: what other work on the machine disturbed least
	AllA, AllB       time.Duration // the mean of all blocks: a side whose blocks are of two kinds has its median in one of them
	Blocks           int
}

// Interleave runs blocks A B A B … after one of each that does not count, and returns A over B. Each block begins with a
// collected heap, so that one side does not pay for the garbage of the other.
func Interleave(blocks int, a, b Side, progress func(done, total int) error) (Ratio, error) {
	as, bs := make([]float64, 0, blocks), make([]float64, 0, blocks)
	pairs := make([]float64, 0, blocks)
	for i := -1; i < blocks; i++ {
		if err := progress(max(i, 0), blocks); err != nil {
			return Ratio{}, err
		}
		runtime.GC()
		ta, err := a(i + 1)
		if err != nil {
			return Ratio{}, err
		}
		runtime.GC()
		tb, err := b(i + 1)
		if err != nil {
			return Ratio{}, err
		}
		if i < 0 {
			continue
		}
		x, y := max(ta.Seconds(), 1e-9), max(tb.Seconds(), 1e-9)
		as, bs, pairs = append(as, x), append(bs, y), append(pairs, x/y)
	}
	ma, mb := Quantile(as, .5), Quantile(bs, .5)
	return Ratio{
		AllA: mean(as), AllB: mean(bs),
		Value: ma / mb, Low: Quantile(pairs, .25), High: Quantile(pairs, .75), Blocks: blocks,
		A: time.Duration(ma * 1e9), B: time.Duration(mb * 1e9),
		FastA: time.Duration(as[0] * 1e9), FastB: time.Duration(bs[0] * 1e9), // Quantile has sorted them
	}, nil
}

func mean(seconds []float64) time.Duration {
	sum := 0.
	for _, v := range seconds {
		sum += v
	}
	return time.Duration(sum / float64(max(len(seconds), 1)) * 1e9)
}

// Quantile is the value at a part q of the way through the sorted values, which it leaves sorted.
func Quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sort.Float64s(v)
	at := q * float64(len(v)-1)
	i := int(at)
	if i+1 >= len(v) {
		return v[len(v)-1]
	}
	return v[i] + (at-float64(i))*(v[i+1]-v[i])
}

// spread makes a result of several measurements of the same thing.
func (r *Result) spread(values []float64) {
	r.Value, r.Low, r.High, r.Blocks = Quantile(values, .5), Quantile(values, .25), Quantile(values, .75), len(values)
}

// SetRatio fills the value from a comparison; names are those of A and B, ops how many operations a block has.
func (r *Result) SetRatio(x Ratio, a, b string, ops int) {
	r.Value, r.Low, r.High, r.Blocks, r.Unit = x.Value, x.Low, x.High, x.Blocks, "×"
	r.Note("median of a block of %d: %s %s each, %s %s each", ops, a, each(x.A, ops), b, each(x.B, ops))
	r.Note("fastest block of each: %s and %s, %s ×", each(x.FastA, ops), each(x.FastB, ops), Number(x.FastA.Seconds()/max(x.FastB.Seconds(), 1e-9)))
	r.Note("mean of all blocks: %s and %s, %s ×", each(x.AllA, ops), each(x.AllB, ops), Number(x.AllA.Seconds()/max(x.AllB.Seconds(), 1e-9)))
}

func each(d time.Duration, ops int) string {
	return fmt.Sprintf("%.3g µs", float64(d.Nanoseconds())/1e3/float64(ops))
}

// exact fills the value of what is counted once.
func (r *Result) exact(v float64) { r.Value, r.Low, r.High, r.Blocks = v, v, v, 1 }

// mallocs counts the allocations of all goroutines during fn, without those of the collector's own start.
func mallocs(fn func() error) (uint64, error) {
	runtime.GC()
	// A collection in the middle would allocate for itself, and empty the pools.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := fn()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs, err
}

// ioCounts are fields of /proc/self/io.
type ioCounts struct{ rchar, syscr, wchar, readBytes int64 }

func selfIO() (ioCounts, error) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return ioCounts{}, err
	}
	var c ioCounts
	for _, line := range strings.Split(string(text), "\n") {
		name, value, _ := strings.Cut(line, ": ")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch name {
		case "rchar":
			c.rchar = n
		case "syscr":
			c.syscr = n
		case "wchar":
			c.wchar = n
		case "read_bytes":
			c.readBytes = n
		}
	}
	return c, nil
}

func (c ioCounts) minus(d ioCounts) ioCounts {
	return ioCounts{c.rchar - d.rchar, c.syscr - d.syscr, c.wchar - d.wchar, c.readBytes - d.readBytes}
}

// ioBetween counts what fn reads and writes. Reading the counters costs the second reading one call, which is taken off.
func ioBetween(fn func() error) (ioCounts, error) {
	before, err := selfIO()
	if err != nil {
		return ioCounts{}, err
	}
	idle, err := selfIO()
	if err != nil {
		return ioCounts{}, err
	}
	if err := fn(); err != nil {
		return ioCounts{}, err
	}
	after, err := selfIO()
	own := idle.minus(before)
	return after.minus(idle).minus(own), err
}

// DeviceOf names the file system and the device below dir.
func DeviceOf(dir string) string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "unknown"
	}
	best, name := -1, "unknown"
	for _, line := range strings.Split(string(text), "\n") {
		left, right, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if !ok || len(f) < 5 || len(g) < 2 {
			continue
		}
		m := f[4]
		if (m == "/" || dir == m || strings.HasPrefix(dir, m+"/")) && len(m) >= best {
			best, name = len(m), g[0]
			if g[1] != g[0] {
				name += " on " + strings.TrimPrefix(g[1], "/dev/")
			}
		}
	}
	return name
}

// Number is a value with three digits, or all of a whole number.
func Number(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
