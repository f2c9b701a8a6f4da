//go:build linux && amd64

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// TestMain is the child of TestClockMoves, too: it answers each line with its wall clock and its monotonic clock.
func TestMain(m *testing.M) {
	if os.Getenv("TORTURE_TEST_CLOCK") == "" {
		os.Exit(m.Run())
	}
	began := time.Now()
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Println(time.Now().Unix(), time.Since(began).Nanoseconds())
	}
}

func TestClockMoves(t *testing.T) {
	runtime.LockOSThread() // the tracer is a thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TORTURE_TEST_CLOCK=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	clock, err := takeClock(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	monotonic := int64(0)
	for _, offset := range []time.Duration{0, time.Hour, -24 * 365 * time.Hour, 0} {
		if err := clock.set(offset); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintln(in); err != nil {
			t.Fatal(err)
		}
		var wall, mono int64
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(line, &wall, &mono); err != nil {
			t.Fatal(err)
		}
		if off := time.Until(time.Unix(wall, 0)) - offset; off < -time.Minute || off > time.Minute {
			t.Errorf("moved by %v, it is off by %v from that", offset, off)
		}
		if mono < monotonic || mono > int64(time.Minute) {
			t.Errorf("the monotonic clock went from %d to %d", monotonic, mono)
		}
		monotonic = mono
	}
}
