package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/btrlog/btrlog"
)

const clientRole = "client"

const recordBytes = 128

// productClient appends and syncs records of 128 bytes through the public client, depth of them in flight: the time of a round is
// then that from one commit to the next.
func productClient(ctx context.Context, store, nodes, quorum, depth string) error {
	n, err1 := strconv.Atoi(nodes)
	q, err2 := strconv.Atoi(quorum)
	d, err3 := strconv.Atoi(depth)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	c, err := btrlog.Connect(ctx, btrlog.Config{StoreURL: store, Name: "latency", Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Create(ctx, "wal", btrlog.LogOptions{N: n, Qw: q}); err != nil {
		return err
	}
	w, err := c.OpenWriter(ctx, "wal", btrlog.WriterOptions{})
	if err != nil {
		return err
	}
	record := make([]byte, recordBytes)
	one := func() error {
		lsn, err := w.Append(ctx, record)
		if err != nil || lsn < btrlog.LSN(d) {
			return err
		}
		return w.Sync(ctx, lsn-btrlog.LSN(d-1))
	}
	return errors.Join(rounds(one), w.Close(context.WithoutCancel(ctx)))
}

// subject is one of those that take turns.
type subject struct {
	name    string
	servers []int // process ids
	client  *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	stops   []func()
}

// process starts a program and returns the line in which it says that it is ready.
func (s *subject) process(ctx context.Context, name string, args ...string) (*exec.Cmd, string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	if len(args) > 0 && (args[0] == floorServerRole || args[0] == floorClientRole) {
		// One goroutine blocks in system calls that the scheduler does not know of: it would send signals to get it off.
		cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return nil, "", err
	}
	s.stops = append(s.stops, func() {
		_ = in.Close()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	s.in, s.out = in, bufio.NewReaderSize(out, 1<<20)
	line, err := s.out.ReadString('\n')
	if err != nil {
		return nil, "", fmt.Errorf("%s %s ended before it was ready", name, strings.Join(args, " "))
	}
	return cmd, strings.TrimSpace(line), nil
}

func (s *subject) stop() {
	for i := len(s.stops) - 1; i >= 0; i-- {
		s.stops[i]()
	}
}

// cFloor is the floor in C; its servers are children of the client.
func (o *options) cFloor(ctx context.Context, sc scenario, dir string) (*subject, error) {
	s := &subject{name: floorCName}
	var err error
	if s.client, _, err = s.process(ctx, o.floorC, strconv.Itoa(sc.nodes), strconv.Itoa(sc.quorum), dir); err != nil {
		return s, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", s.client.Process.Pid, s.client.Process.Pid))
	for _, f := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(f); err == nil {
			s.servers = append(s.servers, pid)
		}
	}
	return s, err
}

func (o *options) goFloor(ctx context.Context, sc scenario, dir string) (*subject, error) {
	s := &subject{name: floorGoName}
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	args := []string{floorClientRole, strconv.Itoa(sc.quorum)}
	for i := range sc.nodes {
		cmd, line, err := s.process(ctx, self, floorServerRole, filepath.Join(dir, fmt.Sprintf("g%d", i)))
		if err != nil {
			return s, err
		}
		s.servers = append(s.servers, cmd.Process.Pid)
		args = append(args, strings.TrimPrefix(line, "ready at "))
	}
	s.client, _, err = s.process(ctx, self, args...)
	return s, err
}

func (o *options) product(ctx context.Context, sc scenario, v variant, dir string) (*subject, error) {
	s := &subject{name: v.name}
	client, err := os.Executable()
	if err != nil {
		return s, err
	}
	binary := o.binary
	if v.binary != "" {
		binary = v.binary
	}
	if v.client != "" {
		client = v.client
	}
	dir = filepath.Join(dir, "v-"+v.name)
	store := "file://" + filepath.Join(dir, "store")
	for i := range sc.nodes {
		id := fmt.Sprintf("n%d", i+1)
		cmd, _, err := s.process(ctx, binary, append([]string{"node", "--id", id, "--dir", filepath.Join(dir, id), "--listen", "127.0.0.1:0", "--store", store}, v.flags...)...)
		if err != nil {
			return s, err
		}
		s.servers = append(s.servers, cmd.Process.Pid)
	}
	s.client, _, err = s.process(ctx, client, clientRole, store, strconv.Itoa(sc.nodes), strconv.Itoa(sc.quorum), strconv.Itoa(o.depth))
	return s, err
}

// block makes some rounds and returns their times.
func (s *subject) block(count int) (*block, error) {
	servers, client := s.processor()
	if _, err := fmt.Fprintln(s.in, count); err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	line, err := s.out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("%s: its client ended: %w", s.name, err)
	}
	b := &block{took: make([]time.Duration, 0, count)}
	for _, f := range strings.Fields(line) {
		ns, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		b.took = append(b.took, time.Duration(ns))
	}
	n := time.Duration(len(b.took))
	if n == 0 {
		return nil, fmt.Errorf("%s: a block without a sample", s.name)
	}
	servers2, client2 := s.processor()
	b.servers, b.client = (servers2-servers)/n, (client2-client)/n
	return b, nil
}

// processor is how long the servers and the client have run on a processor.
func (s *subject) processor() (servers, client time.Duration) {
	for _, pid := range s.servers {
		servers += processorTime(pid)
	}
	return servers, processorTime(s.client.Process.Pid)
}

func processorTime(pid int) (sum time.Duration) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0
	}
	for _, t := range tasks {
		if text, err := os.ReadFile(t); err == nil { // a thread may have ended
			first, _, _ := strings.Cut(string(text), " ")
			ns, _ := strconv.ParseInt(first, 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum
}
