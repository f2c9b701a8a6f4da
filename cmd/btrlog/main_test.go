package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The tests run the real binary, built once.
var (
	program string
	scratch string
)

// patience bounds every wait of a test. It is what a stuck program costs, not what a slow machine needs.
const patience = 60 * time.Second

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "btrlog-cli-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	program = filepath.Join(scratch, "btrlog")
	// Without the race detector also when the tests have it: what runs in the binary is tested for races by the tests of its packages, and a
	// cluster under the detector takes most of the time.
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	if shared.server != nil {
		if res := shared.server.end(syscall.SIGTERM); res.code != 0 {
			fmt.Fprintf(os.Stderr, "the shared cluster ended with code %d: %s\n", res.code, res.err)
			return 1
		}
	}
	return code
}

// result of a finished command. code is −1 if a signal ended it.
type result struct {
	code     int
	signal   syscall.Signal
	out, err string
}

// command prepares a run of the binary in an environment without settings of ours. It does not outlive the test.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "BTRLOG_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "BTRLOG_CONFIG=/dev/null") // not the file of whoever runs the tests
	cmd.Dir = scratch
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func resultOf(cmd *exec.Cmd, err error, out, errs string) result {
	res := result{out: out, err: errs}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		res.code = exit.ExitCode()
		if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
			res.signal = ws.Signal()
		}
	default:
		res.code, res.err = -2, err.Error()
	}
	return res
}

// run runs the binary to its end.
func run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return runEnv(t, nil, stdin, args...)
}

func runEnv(t *testing.T, env []string, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := command(ctx, args...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("btrlog %s did not end within %v; stdout %q, stderr %q", strings.Join(args, " "), patience, clip(out.String()), errs.String())
	}
	return resultOf(cmd, err, out.String(), errs.String())
}

// good demands success and silence on standard error, and returns the output.
func good(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	res := run(t, stdin, args...)
	if res.code != 0 || res.err != "" {
		t.Fatalf("btrlog %s: code %d, stderr %q, stdout %q", strings.Join(args, " "), res.code, res.err, clip(res.out))
	}
	return res.out
}

// bad demands failure with a code and one line on standard error that has all the parts.
func bad(t *testing.T, res result, code int, parts ...string) {
	t.Helper()
	if res.code != code {
		t.Errorf("code %d, want %d; stderr %q", res.code, code, res.err)
	}
	if !strings.HasPrefix(res.err, "btrlog: ") || strings.Count(res.err, "\n") != 1 || !strings.HasSuffix(res.err, "\n") {
		t.Errorf("standard error is not one line of btrlog: %q", res.err)
	}
	for _, p := range parts {
		if !strings.Contains(res.err, p) {
			t.Errorf("standard error lacks %q: %q", p, res.err)
		}
	}
}

func clip(s string) string {
	if len(s) > 300 {
		return s[:300] + "…"
	}
	return s
}

// lineBuffer collects output and tells when it grows.
type lineBuffer struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	grew chan struct{}
}

func newLineBuffer() *lineBuffer { return &lineBuffer{grew: make(chan struct{}, 1)} }

func (b *lineBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.grew <- struct{}{}:
	default:
	}
	return b.buf.Write(p)
}

func (b *lineBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// process is a command that runs beside the test.
type process struct {
	name      string
	cmd       *exec.Cmd
	out, errs *lineBuffer
	ended     chan struct{}
	res       result // valid when ended is closed
}

// start starts cmd and sees to it that it is gone when the test ends; a nil t leaves that to the caller.
func start(t *testing.T, cmd *exec.Cmd) (*process, error) {
	p := &process{name: strings.Join(cmd.Args[1:], " "), cmd: cmd, out: newLineBuffer(), errs: newLineBuffer(), ended: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.errs
	}
	started := make(chan error, 1)
	go func() {
		// The parent-death signal follows the thread that started the child, which waits here: it lives as long.
		started <- cmd.Start()
		err := cmd.Wait()
		p.res = resultOf(cmd, err, p.out.String(), p.errs.String())
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if t != nil {
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // fails if it is gone, as it should be
			<-p.ended
		})
	}
	return p, nil
}

func mustStart(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p, err := start(t, cmd)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// wait waits for the end.
func (p *process) wait() result {
	select {
	case <-p.ended:
		return p.res
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.ended
		res := p.res
		res.code, res.err = -3, fmt.Sprintf("%s did not end within %v; stderr %q", p.name, patience, res.err)
		return res
	}
}

func (p *process) end(sig syscall.Signal) result {
	_ = p.cmd.Process.Signal(sig) // fails if it is gone; wait says how it ended
	return p.wait()
}

// firstLine waits for the first line of the output.
func (p *process) firstLine() (string, error) {
	limit := time.After(patience)
	for {
		if line, _, ok := strings.Cut(p.out.String(), "\n"); ok {
			return line, nil
		}
		select {
		case <-p.out.grew:
		case <-p.ended:
			if line, _, ok := strings.Cut(p.out.String(), "\n"); ok {
				return line, nil
			}
			return "", fmt.Errorf("%s ended with code %d before it was ready; stderr %q", p.name, p.res.code, p.res.err)
		case <-limit:
			return "", fmt.Errorf("%s was not ready within %v; stderr %q", p.name, patience, p.errs.String())
		}
	}
}

// cluster is a running 'btrlog dev'.
type cluster struct {
	*process
	Addresses []string
	Store     string
	Dir       string
	Nodes     []struct {
		Node, Address, Incarnation, Durability string
		FileSystem                             string `json:"file_system"`
	}
}

func (c *cluster) nodes() string { return strings.Join(c.Addresses, ",") }

func startCluster(t *testing.T, dir string, args ...string) (*cluster, error) {
	args = append([]string{"dev", "--dir", dir, "--listen", "127.0.0.1:0", "--segment-file", "32MiB", "--json"}, args...)
	p, err := start(t, command(context.Background(), args...))
	if err != nil {
		return nil, err
	}
	line, err := p.firstLine()
	if err != nil {
		return nil, err
	}
	c := &cluster{process: p}
	if err := json.Unmarshal([]byte(line), c); err != nil {
		return nil, fmt.Errorf("%q: %w", line, err)
	}
	return c, nil
}

func mustCluster(t *testing.T, dir string, args ...string) *cluster {
	t.Helper()
	c, err := startCluster(t, dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shared is a cluster for all tests that stop nothing.
var shared struct {
	once   sync.Once
	server *cluster
	err    error
}

func sharedNodes(t *testing.T) string {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = startCluster(nil, filepath.Join(scratch, "shared")) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server.nodes()
}

// onShared are the arguments of 'btrlog log' on the shared cluster.
func onShared(t *testing.T, args ...string) []string {
	t.Helper()
	return append([]string{"log", "--nodes", sharedNodes(t)}, args...)
}

// newLog makes a log on the shared cluster, named after the test.
func newLog(t *testing.T) string {
	t.Helper()
	name := strings.ReplaceAll(t.Name(), "/", "-")
	good(t, "", onShared(t, "create", name)...)
	deleteAfter(t, name)
	return name
}

// deleteAfter deletes a log of the shared cluster when the test ends, so that the test can be repeated.
func deleteAfter(t *testing.T, name string) {
	t.Cleanup(func() { good(t, "", onShared(t, "delete", "--yes", name)...) })
}

// eventually tries until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !ok() {
		select {
		case <-again.C:
		case <-limit:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
