package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// openTerminal returns both ends of a pseudo terminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	var unlock, number int32
	for _, c := range []struct {
		request uintptr
		arg     *int32
	}{{syscall.TIOCSPTLCK, &unlock}, {syscall.TIOCGPTN, &number}} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, master.Fd(), c.request, uintptr(unsafe.Pointer(c.arg))); errno != 0 {
			t.Fatal(errno)
		}
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// Progress is shown on a terminal, with a rate, and taken away at the end; what the command prints stays clean.
func TestProgressOnTerminal(t *testing.T) {
	name := newLog(t)
	master, slave := openTerminal(t)
	screen, shown := watch(master)
	cmd := command(context.Background(), onShared(t, "append", name)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = slave
	p := mustStart(t, cmd)
	slave.Close()
	eventually(t, "progress is shown", func() bool {
		if _, err := in.Write([]byte("record\n")); err != nil {
			t.Fatalf("append ended: %v; %+v", err, p.wait())
		}
		return strings.Contains(screen.String(), " records/s, ")
	})
	in.Close()
	res := p.wait()
	if res.code != 0 || !strings.HasPrefix(res.out, "appended ") || !strings.HasSuffix(res.out, ", committed\n") || strings.ContainsAny(res.out, "\r\x1b") {
		t.Errorf("code %d, stdout %q", res.code, res.out)
	}
	<-shown
	if got := screen.String(); !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("the progress is left on the screen: %q", clip(got))
	}
}

// watch collects what a terminal shows, until its last user has closed it.
func watch(master *os.File) (screen *lineBuffer, over chan struct{}) {
	screen, over = newLineBuffer(), make(chan struct{})
	go func() {
		defer close(over)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			if err != nil {
				return
			}
			_, _ = screen.Write(buf[:n]) // never fails
		}
	}()
	return screen, over
}

// Who types records is told how to end; who pipes them is told nothing.
func TestAppendFromTerminal(t *testing.T) {
	name := newLog(t)
	for _, c := range []struct {
		args []string
		want string
	}{{nil, "reading lines from the terminal, end with Ctrl-D\n"}, {[]string{"--chunk", "4B"}, "reading records from the terminal, end with Ctrl-D\n"}} {
		master, slave := openTerminal(t)
		cmd := command(context.Background(), append(onShared(t, append([]string{"append"}, c.args...)...), name)...)
		cmd.Stdin = slave
		p := mustStart(t, cmd)
		slave.Close()
		eventually(t, "the hint is shown", func() bool { return p.errs.String() != "" })
		if _, err := master.WriteString("abc\n\x04"); err != nil {
			t.Fatal(err)
		}
		if res := p.wait(); res.code != 0 || res.err != c.want || !strings.HasPrefix(res.out, "appended 1 record, ") {
			t.Errorf("append %v: code %d, stdout %q, stderr %q", c.args, res.code, res.out, res.err)
		}
	}
}

// On a terminal a server says that it has ended as it was asked to.
func TestStoppedOnTerminal(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{
		{"dev", "--nodes", "1", "--dir", filepath.Join(dir, "dev")},
		{"node", "--id", "n", "--dir", filepath.Join(dir, "n"), "--store", storeURL(t)},
	} {
		master, slave := openTerminal(t)
		screen, over := watch(master)
		cmd := command(context.Background(), append(args, "--listen", "127.0.0.1:0", "--segment-file", "32MiB")...)
		cmd.Stderr = slave
		p := mustStart(t, cmd)
		slave.Close()
		if _, err := p.firstLine(); err != nil {
			t.Fatal(err)
		}
		res := p.end(syscall.SIGTERM)
		<-over
		if got := screen.String(); res.code != 0 || !strings.HasSuffix(got, "stopped\r\n") || strings.Count(got, "stopped") != 1 {
			t.Errorf("%s: code %d, terminal %q", args[0], res.code, got)
		}
	}
}

// What cannot be written is an error that names it, and does not hide that the records are committed.
func TestFullOutput(t *testing.T) {
	name := newLog(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, c := range []struct {
		verb, want string
	}{{"append", "appended 1 record, LSN 1, committed; this could not be printed: "}, {"cat", ""}, {"info", ""}, {"list", ""}} {
		args := []string{c.verb, name}
		if c.verb == "list" {
			args = args[:1]
		}
		cmd := command(context.Background(), onShared(t, args...)...)
		cmd.Stdin = strings.NewReader("x\n")
		cmd.Stdout = full
		bad(t, mustStart(t, cmd).wait(), 1, c.want, "no space left on device")
	}
}

func TestVersion(t *testing.T) {
	text := good(t, "", "version")
	for _, want := range []string{"btrlog ", "wire protocol ", "metadata format ", runtime.Version()} {
		if !strings.Contains(text, want) {
			t.Errorf("version lacks %q:\n%s", want, text)
		}
	}
	var v struct {
		Version, Go, Platform string
		Wire                  int `json:"wire_version"`
		Oldest                int `json:"wire_oldest"`
		Metadata              int `json:"metadata_format"`
	}
	if err := json.Unmarshal([]byte(good(t, "", "version", "--json")), &v); err != nil {
		t.Fatal(err)
	}
	if v.Version == "" || v.Go != runtime.Version() || v.Platform != runtime.GOOS+"/"+runtime.GOARCH || v.Wire < 1 || v.Oldest < 1 || v.Oldest > v.Wire || v.Metadata < 1 {
		t.Errorf("version --json: %+v", v)
	}
}

func TestCompletion(t *testing.T) {
	script := good(t, "", "completion", "bash")
	bash := exec.Command("bash", "-n")
	bash.Stdin = strings.NewReader(script)
	if out, err := bash.CombinedOutput(); err != nil {
		t.Errorf("bash does not take its script: %v\n%s", err, out)
	}
	for _, shell := range []string{"zsh", "fish", "powershell"} {
		if got := good(t, "", "completion", shell); !strings.Contains(got, "btrlog") {
			t.Errorf("the script for %s has %d bytes and no btrlog", shell, len(got))
		}
	}
	// What the scripts ask the program for.
	name := newLog(t)
	for _, c := range []struct{ args, want string }{
		{"log ca", "cat\t"},
		{"log info TestCompl", name + "\n"},
		{"log create TestCompl", ""}, // a new log has no existing name
	} {
		args := append([]string{"__complete"}, strings.Fields(c.args)...)
		res := runEnv(t, []string{"BTRLOG_NODES=" + sharedNodes(t)}, "", args...)
		if first, _, _ := strings.Cut(res.out, ":"); res.code != 0 || !strings.HasPrefix(first, c.want) || (c.want == "" && first != "") {
			t.Errorf("completion of %q: code %d, %q", c.args, res.code, res.out)
		}
	}
}

// Ctrl-C ends the simulator, which looks at no signal, at the first press.
func TestInterruptedSim(t *testing.T) {
	p := mustStart(t, command(context.Background(), "sim", "run", "--seeds", "1000000"))
	if _, err := p.firstLine(); err != nil {
		t.Fatal(err)
	}
	bad(t, p.end(syscall.SIGINT), 1, "btrlog: interrupted\n")
}

func TestSimHook(t *testing.T) {
	// All but the last line, which gives times, is the same for the same seeds.
	figures := func() string {
		out := good(t, "", "sim", "run", "--seeds", "2")
		return out[:strings.LastIndex(strings.TrimSuffix(out, "\n"), "\n")+1]
	}
	out, again := figures(), figures()
	if out == "" || out != again {
		t.Errorf("two runs of the same seeds print\n%q\n%q", clip(out), clip(again))
	}
	if !json.Valid(bytes.TrimSpace([]byte(good(t, "", "sim", "run", "--seeds", "1", "--json")))) {
		t.Error("sim run --json prints no JSON")
	}
	bad(t, run(t, "", "sim", "run", "--seeds", "0"), 2, "--seeds is 0")
	bad(t, run(t, "", "sim", "walk"), 2, `unknown command "walk"`)
}
