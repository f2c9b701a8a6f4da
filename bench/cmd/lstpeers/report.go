package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/btrlog/btrlog/bench/peers"
	"github.com/btrlog/btrlog/lst/lstbench"
)

const (
	beginMark = "<!-- lstpeers: begin -->"
	endMark   = "<!-- lstpeers: end -->"
)

type report struct {
	device  string
	seed    uint64
	scale   lstbench.Scale
	begin   time.Time
	load    string // before the run
	commit  string // others may go on committing while it runs
	proofs  []peers.Proof
	results []lstbench.Result
}

func newReport(device string, seed uint64, scale lstbench.Scale) *report {
	return &report{device: device, seed: seed, scale: scale, begin: time.Now(), load: loadAverage(), commit: commit()}
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(text))
	if err != nil || len(f) == 0 {
		return "unknown"
	}
	return f[0]
}

// machine is what the figures depend on.
func machine() string {
	cpu := "unknown processor"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for _, l := range strings.Split(string(text), "\n") {
			if name, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
				cpu = strings.TrimSpace(value)
				break
			}
		}
	}
	kernel := "unknown"
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = strings.TrimSpace(string(text))
	}
	var info syscall.Sysinfo_t
	memory := ""
	if syscall.Sysinfo(&info) == nil {
		memory = fmt.Sprintf(", %d GiB of memory", (uint64(info.Totalram)*uint64(info.Unit)+1<<29)>>30)
	}
	return fmt.Sprintf("%s, %d cores%s, %s %s, %s", cpu, runtime.NumCPU(), memory, runtime.GOOS, kernel, runtime.Version())
}

// commit is the revision of the working tree, and whether it has changes in what is measured.
func commit() string {
	rev, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	s := strings.TrimSpace(string(rev))
	if exec.Command("git", "diff", "--quiet", "HEAD", "--", "../lst", ".", ":!*_test.go").Run() != nil {
		s += " with changes"
	}
	return s
}

// versions of the peers, as they are linked.
func versions() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	var list []string
	for _, m := range info.Deps {
		switch m.Path {
		case "github.com/cockroachdb/pebble/v2", "go.etcd.io/bbolt", "github.com/dgraph-io/badger/v4", "github.com/tidwall/wal", "github.com/hashicorp/raft-wal":
			list = append(list, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
		}
	}
	return strings.Join(list, ", ")
}

var words = map[string]string{
	lstbench.AimReached: "reached", lstbench.Reached: "reached, aim not", lstbench.Missed: "**missed**", lstbench.Printed: "printed", lstbench.Void: "void",
}

func (r *report) markdown() string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	scale := [...]string{"small (-quick)", "normal", "large (-large)"}[r.scale]
	p("| | |\n|---|---|\n")
	p("| date | %s, %v long |\n", r.begin.UTC().Format("2006-01-02 15:04 UTC"), time.Since(r.begin).Round(time.Second))
	p("| commit | %s |\n| machine | %s |\n| file system | %s |\n", r.commit, machine(), r.device)
	p("| load | %s runnable before the run, this run included %s after it |\n", r.load, loadAverage())
	p("| scale, seed | %s, %d |\n| peers | %s |\n\n", scale, r.seed, versions())

	var missed, void []string
	for _, x := range r.results {
		line := fmt.Sprintf("%s: %s %s, must be %v", x.What, lstbench.Number(x.Value), x.Unit, x.Must)
		switch {
		case x.Verdict == lstbench.Missed:
			missed = append(missed, line)
		case x.Verdict == lstbench.Void && x.Must != nil:
			void = append(void, line)
		}
	}
	p("### Missed\n\n")
	if len(missed) == 0 {
		p("Nothing that must be reached.\n")
	}
	for _, m := range missed {
		p("- %s\n", m)
	}
	for _, v := range void {
		p("- void, proves nothing in this run: %s\n", v)
	}
	p("\n### Results\n\n| row | what | value | spread | must | aim | |\n|---|---|---|---|---|---|---|\n")
	for _, x := range r.results {
		must, aim, spread := "", "", "exact"
		if x.Must != nil {
			must = x.Must.String()
		}
		if x.Aim != nil {
			aim = x.Aim.String()
		}
		if x.Blocks > 1 {
			spread = fmt.Sprintf("%s – %s, %d blocks", lstbench.Number(x.Low), lstbench.Number(x.High), x.Blocks)
		}
		p("| %s | %s | %s %s | %s | %s | %s | %s |\n", x.Row, x.What, lstbench.Number(x.Value), x.Unit, spread, must, aim, words[x.Verdict])
	}
	p("\n### Classes\n\nEach engine's writing process was ended by SIGKILL in the middle of its appends; every record that it had acknowledged was then read back.\n\n")
	p("| engine | configuration | kills | acknowledged | lost | survives kill -9 |\n|---|---|---|---|---|---|\n")
	for _, c := range r.proofs {
		verdict := "yes"
		if !c.Survives {
			verdict = "no: " + strings.ReplaceAll(c.Why, "|", "\\|")
		}
		p("| %s | %s | %d | %d | %d | %s |\n", c.Engine, c.Config, c.Rounds, c.Acked, c.Lost, verdict)
	}
	p("\n### How each is counted\n")
	for _, x := range r.results {
		p("\n**%s: %s.** %s; %s. %s.\n", x.Row, x.What, x.Device, x.Mode, strings.TrimSuffix(x.Counted, "."))
		for _, n := range x.Notes {
			p("- %s\n", n)
		}
	}
	return b.String()
}

// writeInto replaces what lies between the markers of a file.
func (r *report) writeInto(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := bytes.Cut(text, []byte(beginMark))
	_, tail, ok2 := bytes.Cut(rest, []byte(endMark))
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the lines %s and %s", path, beginMark, endMark)
	}
	var b bytes.Buffer
	b.Write(head)
	fmt.Fprintf(&b, "%s\n\n%s\n%s", beginMark, r.markdown(), endMark)
	b.Write(tail)
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return err
	}
	fmt.Printf("%s is written\n", path)
	return nil
}
