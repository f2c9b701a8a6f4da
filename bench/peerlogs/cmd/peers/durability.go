package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// class is what was seen of the syncs of a system while appends were made one at a time. An append is durable on a node only if the node
// has made it so before it answers: with appends one at a time that is one sync for each at least.
type class struct {
	Appends int `json:"appends"`
	// PerNode is, for each process that holds data, its calls of fsync and fdatasync, and its writes through descriptors with O_DSYNC or O_SYNC, per append.
	PerNode []float64 `json:"syncs_per_append"`
	Proven  bool      `json:"proven"`
	Note    string    `json:"note,omitempty"`
}

const tracedCalls = "trace=fsync,fdatasync,pwrite64,pwritev,pwritev2,write,writev"

// prove counts system calls by strace. Of the processes two must sync for each append, not always the same two, or the only one.
func prove(r *running, appends, bytes int, dir string) (*class, error) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		return &class{Note: "there is no strace"}, nil
	}
	client, err := r.client("all")
	if err != nil {
		return nil, err
	}
	if _, err := client.Closed(20, bytes); err != nil { // files are open
		return nil, err
	}
	pids, file := r.pids(), filepath.Join(dir, "strace")
	args := []string{"-f", "-q", "-y", "-s", "0", "-e", tracedCalls, "-o", file}
	sync := map[string]bool{}
	threads := map[int]int{}
	for i, pid := range pids {
		args = append(args, "-p", strconv.Itoa(pid))
		synced(pid, i, sync)
	}
	cmd := exec.Command(strace, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	err = errors.Join(attached(pids), func() error {
		for i, pid := range pids {
			threadsOf(pid, i, threads)
		}
		_, err := client.Closed(appends, bytes)
		for i, pid := range pids {
			threadsOf(pid, i, threads)
			synced(pid, i, sync)
		}
		return err
	}())
	_ = cmd.Process.Signal(os.Interrupt)
	_ = cmd.Wait() // ends by the signal
	if err != nil {
		return nil, err
	}
	counts, err := count(file, len(pids), threads, sync)
	if err != nil {
		return nil, err
	}
	c := &class{Appends: appends}
	sum := 0
	for _, n := range counts {
		c.PerNode = append(c.PerNode, float64(n)/float64(appends))
		sum += min(n, appends) // a process that syncs more often, for other reasons, must not stand for another one
	}
	c.Proven = len(pids) > 0 && sum >= min(2, len(pids))*appends
	return c, nil
}

// synced adds the descriptors of a process whose writes are synced, as "node path".
func synced(pid, node int, to map[string]bool) {
	const oDSync = 0o10000
	infos, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	for _, f := range infos {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // closed meanwhile
		}
		_, rest, _ := strings.Cut(string(text), "flags:")
		word, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
		flags, err := strconv.ParseUint(word, 8, 64)
		if err != nil || flags&oDSync == 0 {
			continue
		}
		if path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, filepath.Base(f))); err == nil {
			to[fmt.Sprintf("%d %s", node, path)] = true
		}
	}
}

func threadsOf(pid, node int, to map[int]int) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			to[tid] = node
		}
	}
}

// attachTime is what strace has to attach.
const attachTime = 20 * time.Second

// attached waits until every thread is traced.
func attached(pids []int) error {
	again, limit := time.NewTicker(50*time.Millisecond), time.NewTimer(attachTime)
	defer again.Stop()
	defer limit.Stop()
	for {
		missing := 0
		for _, pid := range pids {
			tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
			for _, t := range tasks {
				if text, err := os.ReadFile(t); err == nil && strings.Contains(string(text), "TracerPid:\t0\n") {
					missing++
				}
			}
		}
		if missing == 0 {
			return nil
		}
		select {
		case <-again.C:
		case <-limit.C:
			return fmt.Errorf("strace has not attached to %d threads in %v", missing, attachTime)
		}
	}
}

// count reads strace's lines: "1234 pwrite64(7</path>, ...". Each call has one line in which its name is followed by a bracket.
func count(file string, nodes int, threads map[int]int, sync map[string]bool) ([]int, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	counts := make([]int, nodes)
	in := bufio.NewScanner(f)
	in.Buffer(make([]byte, 1<<16), 1<<20)
	for in.Scan() {
		tid, rest, _ := strings.Cut(in.Text(), " ")
		call, args, ok := strings.Cut(strings.TrimSpace(rest), "(")
		id, err := strconv.Atoi(tid)
		node, known := threads[id]
		if !ok || err != nil || !known || strings.HasPrefix(call, "<") {
			continue
		}
		_, path, _ := strings.Cut(args, "<")
		path, _, _ = strings.Cut(path, ">")
		switch call {
		case "fsync", "fdatasync":
			counts[node]++
		default:
			if sync[fmt.Sprintf("%d %s", node, path)] {
				counts[node]++
			}
		}
	}
	return counts, in.Err()
}
