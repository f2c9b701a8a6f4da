//go:build unix && !solaris && !illumos && !aix

package localdir

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/btrlog/btrlog/objstore"
)

// The tests of this file run the test binary again as other processes. A child finds its task here.
const taskVar = "BTRLOG_LOCALDIR_TASK"

func TestMain(m *testing.M) {
	task := strings.Fields(os.Getenv(taskVar))
	if len(task) == 0 {
		os.Exit(m.Run())
	}
	if err := runTask(task[0], task[1], task[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var bg = context.Background()

// child is another process at work on the store.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startChild(t *testing.T, dir, task string, args ...string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(exe)}
	c.cmd.Env = append(os.Environ(), taskVar+"="+strings.Join(append([]string{task, dir}, args...), " "))
	c.cmd.Stderr = os.Stderr
	c.in, _ = c.cmd.StdinPipe()
	out, _ := c.cmd.StdoutPipe()
	c.out = bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		c.cmd.Wait()
	})
	return c
}

func (c *child) line(t *testing.T) string {
	t.Helper()
	if !c.out.Scan() {
		t.Fatalf("child ended early: %v", c.out.Err())
	}
	return c.out.Text()
}

func runTask(task, dir string, args []string) error {
	s, err := Open(dir, Options{})
	if err != nil {
		return err
	}
	switch task {
	case "hammer":
		return hammer(s, args[0], args[1])
	case "crash":
		size, _ := strconv.Atoi(args[1])
		return crash(s, args[0], size)
	case "write":
		return writeUntilKilled(s)
	}
	return fmt.Errorf("unknown task %q", task)
}

// hammer takes part in rounds of create-if-absent, and increments a counter by compare-and-swap; it
// prints the rounds it won.
func hammer(s *Store, me, rounds string) error {
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	n, _ := strconv.Atoi(rounds)
	for r := range n {
		_, err := s.Put(bg, fmt.Sprintf("round/%d", r), []byte(me), nil, objstore.IfAbsent())
		if err == nil {
			fmt.Println("won", r)
		} else if !errors.Is(err, objstore.ErrPrecondition) {
			return err
		}
		for {
			body, info, err := objstore.ReadAll(bg, s, "counter", 100)
			if err != nil {
				return err
			}
			v, _ := strconv.Atoi(string(body))
			_, err = s.Put(bg, "counter", fmt.Append(nil, v+1), nil, objstore.IfMatch(info.ETag))
			if err == nil {
				break
			}
			if !errors.Is(err, objstore.ErrPrecondition) {
				return err
			}
		}
	}
	fmt.Println("done")
	return nil
}

func TestManyProcesses(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := s.Put(t.Context(), "counter", []byte("0"), nil, objstore.IfAbsent()); err != nil {
		t.Fatal(err)
	}
	const processes, rounds = 8, 40
	var children []*child
	for i := range processes {
		c := startChild(t, dir, "hammer", fmt.Sprint("p", i), fmt.Sprint(rounds))
		children = append(children, c)
	}
	for _, c := range children {
		if got := c.line(t); got != "ready" {
			t.Fatal(got)
		}
	}
	for _, c := range children {
		fmt.Fprintln(c.in)
	}
	winner := make(map[string]string)
	for i, c := range children {
		for line := c.line(t); line != "done"; line = c.line(t) {
			round := strings.TrimPrefix(line, "won ")
			if other, taken := winner[round]; taken {
				t.Errorf("round %s was won by %s and by p%d", round, other, i)
			}
			winner[round] = fmt.Sprint("p", i)
		}
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("process %d: %v", i, err)
		}
	}
	if len(winner) != rounds {
		t.Errorf("%d of %d rounds had a winner", len(winner), rounds)
	}
	for r, w := range winner {
		if b, _, err := objstore.ReadAll(t.Context(), s, "round/"+r, 100); err != nil || string(b) != w {
			t.Errorf("round %s: holds %q, %v; %s won", r, b, err, w)
		}
	}
	b, _, err := objstore.ReadAll(t.Context(), s, "counter", 100)
	if want := fmt.Sprint(processes * rounds); err != nil || string(b) != want {
		t.Errorf("counter %q, %v; want %s: an increment was lost", b, err, want)
	}
}

var steps = []string{"temp-created", "temp-header", "temp-written", "temp-synced", "locked", "dirs-made", "renamed", "dir-synced"}

func crash(s *Store, at string, size int) error {
	s.step = func(step string) {
		if step == at {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	_, err := s.Put(bg, "deep/er/key", []byte(strings.Repeat("n", size)), nil, objstore.Always())
	return fmt.Errorf("survived step %s: %v", at, err)
}

// A process killed at any step of a Put leaves the old object or the new one, no lock, and no leftovers
// after the next Open. Small bodies take the steps in another order.
func TestKilledAtEveryStep(t *testing.T) {
	for k := range 2 * 2 * len(steps) {
		i, old, size := k/4, []string{"", "old body"}[k%2], []int{2_000, smallBytes + 20_000}[k/2%2]
		step := steps[i]
		dir := t.TempDir()
		s := open(t, dir)
		if old != "" {
			if _, err := s.Put(t.Context(), "deep/er/key", []byte(old), nil, objstore.IfAbsent()); err != nil {
				t.Fatal(err)
			}
		}
		c := startChild(t, dir, "crash", step, fmt.Sprint(size))
		c.cmd.Wait()
		if ws := c.cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
			t.Fatalf("step %s: child ended with %v, want its own SIGKILL", step, c.cmd.ProcessState)
		}
		applied := i >= slices.Index(steps, "renamed")
		body, _, err := objstore.ReadAll(t.Context(), s, "deep/er/key", 1<<20)
		switch {
		case applied && (err != nil || len(body) != size):
			t.Errorf("step %s: %d bytes, %v; want the new body", step, len(body), err)
		case !applied && old == "" && !errors.Is(err, objstore.ErrNotFound):
			t.Errorf("step %s: %d bytes, %v; want no object", step, len(body), err)
		case !applied && old != "" && string(body) != old:
			t.Errorf("step %s: %d bytes, %v; want the old body", step, len(body), err)
		}
		page, err := s.List(t.Context(), "", "", 0)
		if want := min(1, len(old)) == 1 || applied; err != nil || (len(page.Objects) == 1) != want || len(page.Objects) > 1 {
			t.Errorf("step %s: listing %+v, %v", step, page.Objects, err)
		}
		open(t, dir) // another process starts
		if left, _ := os.ReadDir(filepath.Join(dir, tempDir)); len(left) != 0 {
			t.Errorf("step %s: Open left %v", step, left)
		}
		if _, err := s.Put(t.Context(), "deep/er/key", []byte("next"), nil, objstore.Always()); err != nil {
			t.Errorf("step %s: the next Put: %v", step, err)
		}
	}
}

func writeUntilKilled(s *Store) error {
	fmt.Println("ready")
	for n := 1; ; n++ {
		body := strings.Repeat(fmt.Sprintf("%08d", n), 30_000)
		if _, err := s.Put(bg, "k", []byte(body), map[string]string{"n": fmt.Sprint(n)}, objstore.Always()); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

// Writers killed at random moments: what was acknowledged is there, and nothing is torn.
func TestKillLoop(t *testing.T) {
	dir := t.TempDir()
	for round := range 12 {
		c := startChild(t, dir, "write")
		c.line(t)
		last := 0
		for range 1 + round%4 {
			last, _ = strconv.Atoi(c.line(t))
		}
		c.cmd.Process.Kill()
		for c.out.Scan() {
			last, _ = strconv.Atoi(c.out.Text())
		}
		c.cmd.Wait()
		s := open(t, dir)
		body, info, err := objstore.ReadAll(t.Context(), s, "k", 1<<20)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		n, _ := strconv.Atoi(string(body[:8]))
		if string(body) != strings.Repeat(string(body[:8]), 30_000) || info.Metadata["n"] != fmt.Sprint(n) {
			t.Fatalf("round %d: torn object", round)
		}
		if n != last && n != last+1 {
			t.Fatalf("round %d: version %d on disk, %d was acknowledged", round, n, last)
		}
	}
}

// A stopped process that holds a lock delays others to their deadline, with an error that names the lock, and no longer.
func TestStoppedLockHolder(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	b, err := Open(dir, Options{LockTimeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	held, release, done := make(chan bool), make(chan bool), make(chan error)
	a.step = func(step string) {
		if step == "temp-synced" { // of a small object, whose file is written under the lock
			held <- true
			<-release
		}
	}
	go func() {
		_, err := a.Put(t.Context(), "k", nil, nil, objstore.IfAbsent())
		done <- err
	}()
	<-held
	_, err = b.Put(t.Context(), "k", nil, nil, objstore.IfAbsent())
	if !errors.Is(err, objstore.ErrUnavailable) || !strings.Contains(err.Error(), lockDir) {
		t.Fatalf("Put against a held lock: %v, want ErrUnavailable that names the lock file", err)
	}
	// A live writer's temporary file is not swept.
	open(t, dir)
	release <- true
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, tempDir)); len(left) != 0 {
		t.Fatalf("failed and successful Puts left %v", left)
	}
}

func TestTempSweptByAnother(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	swept := 0
	s.step = func(step string) {
		if step == "temp-synced" && swept == 0 {
			swept++
			names, _ := filepath.Glob(filepath.Join(dir, tempDir, "*"))
			for _, n := range names {
				os.Remove(n)
			}
		}
	}
	if _, err := s.Put(t.Context(), "k", []byte("v"), nil, objstore.IfAbsent()); err != nil || swept != 1 {
		t.Fatalf("Put whose temporary file was swept: %v", err)
	}
	if _, err := s.Head(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
}

// The lock directory can be cleared while the store is in use, since it holds nothing but locks.
func TestLockFilesRemoved(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, dir), open(t, dir)
	for _, s := range []*Store{a, b} {
		if _, err := s.Put(t.Context(), "k", nil, nil, objstore.Always()); err != nil {
			t.Fatal(err)
		}
	}
	names, _ := filepath.Glob(filepath.Join(dir, lockDir, "*"))
	if len(names) != 1 {
		t.Fatalf("lock files %v, want one", names)
	}
	os.Remove(names[0])
	if _, err := a.Put(t.Context(), "k", []byte("a"), nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
	a.step = func(step string) {
		if step != "locked" {
			return
		}
		if ok, err := b.locks.buckets[bucketOf("k")].try(names[0]); ok || err != nil {
			t.Errorf("two stores hold one lock: %v, %v", ok, err)
		}
	}
	// b's descriptor is of the removed file; it must notice rather than lock a file that nobody else sees.
	if ok, err := b.locks.buckets[bucketOf("k")].try(names[0]); ok || err != nil {
		t.Fatalf("locked a removed file: %v, %v", ok, err)
	}
	if _, err := a.Put(t.Context(), "k", []byte("b"), nil, objstore.Always()); err != nil {
		t.Fatal(err)
	}
}
