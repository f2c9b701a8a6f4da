//go:build linux

package main

import (
	"os/exec"
	"testing"
	"time"
)

// endProcess comes back when the process has ended, and takes one that is gone for ended.
func TestEndProcess(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if err := endProcess(pid, time.Now().Add(10*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it ended by itself")
	}
	if err := endProcess(pid, time.Now().Add(time.Second)); err != nil {
		t.Errorf("of a process that is gone: %v", err)
	}
}
