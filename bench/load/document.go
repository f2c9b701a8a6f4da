package load

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Document replaces what stands between the marks <!-- name: begin --> and <!-- name: end --> of a file.
func Document(path, name, content string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := fmt.Appendf(nil, "<!-- %s: begin -->", name), fmt.Appendf(nil, "<!-- %s: end -->", name)
	head, rest, ok1 := bytes.Cut(text, begin)
	_, tail, ok2 := bytes.Cut(rest, end)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s lacks the lines %s and %s", path, begin, end)
	}
	return os.WriteFile(path, fmt.Appendf(nil, "%s%s\n\n%s\n\n%s%s", head, begin, strings.TrimSpace(content), end, tail), 0o644)
}

// Machine is where and when something was measured.
type Machine struct {
	Date       string  `json:"date"`
	Commit     string  `json:"commit"`
	Processors int     `json:"processors"`
	Kernel     string  `json:"kernel"`
	Go         string  `json:"go"`
	Device     string  `json:"file_system"`
	LoadBefore float64 `json:"load_before"`
}

// Here looks at this machine; dir is on the device that is measured.
func Here(dir string) Machine {
	m := Machine{Date: time.Now().UTC().Format("2006-01-02 15:04 UTC"), Processors: runtime.NumCPU(), Go: runtime.Version(), Device: Device(dir), LoadBefore: LoadAverage()}
	if out, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(out))
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	return m
}

// String is one line for a report.
func (m Machine) String() string {
	return fmt.Sprintf("%s, commit %s, %d processors, linux %s, %s, %s, %.1f runnable before the run", m.Date, m.Commit, m.Processors, m.Kernel, m.Go, m.Device, m.LoadBefore)
}

// LoadAverage is that of the last minute.
func LoadAverage() (l float64) {
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(text), &l)
	}
	return l
}

// Device names the file system of a directory by the longest mount point above it.
func Device(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "unknown"
	}
	var st syscall.Statfs_t
	if syscall.Statfs(abs, &st) == nil && st.Type == 0x01021994 {
		return "tmpfs"
	}
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "unknown"
	}
	best, name := "", "unknown"
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) >= 3 && len(f[1]) >= len(best) && (f[1] == "/" || abs == f[1] || strings.HasPrefix(abs, f[1]+"/")) {
			best, name = f[1], fmt.Sprintf("%s on %s", f[2], filepath.Base(f[0]))
		}
	}
	return name
}

// Median of values; NaN-free callers only: it is 0 for none.
func Median(v []float64) float64 { return At(v, 0.5) }

// At is the quantile q of values.
func At(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Clone(v)
	slices.Sort(s)
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

// Ratio is a comparison of blocks that took turns: of the medians, with the quartiles of the ratios of neighbours.
type Ratio struct {
	A      float64 `json:"a"`
	B      float64 `json:"b"`
	Ratio  float64 `json:"ratio"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Blocks int     `json:"blocks"`
}

// Compare is A over B.
func Compare(a, b []float64) Ratio {
	r := Ratio{A: Median(a), B: Median(b), Blocks: min(len(a), len(b))}
	var each []float64
	for i := range r.Blocks {
		if b[i] > 0 {
			each = append(each, a[i]/b[i])
		}
	}
	if r.B > 0 {
		r.Ratio = r.A / r.B
	}
	r.Low, r.High = At(each, 0.25), At(each, 0.75)
	return r
}

// BuildProduct builds the program from the module cmd/btrlog, from the directory bench or one below it.
func BuildProduct(work string) (string, error) {
	for _, up := range []string{"..", filepath.Join("..", "..")} {
		src := filepath.Join(up, "cmd", "btrlog")
		if _, err := os.Stat(filepath.Join(src, "go.mod")); err != nil {
			continue
		}
		bin, err := filepath.Abs(filepath.Join(work, "btrlog"))
		if err != nil {
			return "", err
		}
		build := exec.Command("go", "build", "-o", bin, ".")
		build.Dir, build.Env = src, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build: %w\n%s", err, out)
		}
		return bin, nil
	}
	return "", fmt.Errorf("no module cmd/btrlog above this directory: run it in the directory bench, or name the program with -btrlog")
}
