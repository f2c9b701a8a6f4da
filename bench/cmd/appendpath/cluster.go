package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// cluster is three node processes on one store, and the client processes that use it.
type cluster struct {
	dir, store string
	nodes      []int    // process ids
	addresses  []string // of the nodes' HTTP ports
	relays     []*relay
	clients    []*process
	stops      []func()
}

// startCluster starts the nodes with their directories below parent. With relayed, whoever talks to a node does so through a relay,
// which loses what it is told to.
func startCluster(ctx context.Context, parent, binary string, nodes int, relayed bool, flags ...string) (*cluster, error) {
	dir, err := os.MkdirTemp(parent, "appendpath-")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, store: "file://" + filepath.Join(dir, "store")}
	c.stops = append(c.stops, func() { _ = os.RemoveAll(dir) })
	for i := range nodes {
		id := fmt.Sprintf("n%d", i+1)
		args := []string{"node", "--id", id, "--dir", filepath.Join(dir, id), "--store", c.store, "--json"}
		listen := "127.0.0.1:0"
		if relayed {
			port, err := freePort()
			if err != nil {
				return nil, errors.Join(err, c.stop())
			}
			listen = net.JoinHostPort("127.0.0.1", port)
			r, err := newRelay(net.JoinHostPort(fmt.Sprintf("127.0.0.%d", i+11), port), listen, uint64(i))
			if err != nil {
				return nil, errors.Join(err, c.stop())
			}
			c.relays = append(c.relays, r)
			c.stops = append(c.stops, r.close)
			args = append(args, "--advertise", r.address)
		}
		p, err := startProcess(ctx, binary, append(append(args, "--listen", listen), flags...)...)
		if err != nil {
			return nil, errors.Join(err, c.stop())
		}
		var ready struct{ Address string }
		if err := json.Unmarshal([]byte(p.ready), &ready); err != nil {
			return nil, errors.Join(fmt.Errorf("node %s: %w", id, err), c.stop())
		}
		c.nodes, c.addresses = append(c.nodes, p.cmd.Process.Pid), append(c.addresses, ready.Address)
		c.stops = append(c.stops, p.stop)
	}
	return c, nil
}

// client starts a client process of the given program.
func (c *cluster) client(ctx context.Context, program string) (*process, error) {
	p, err := startProcess(ctx, program, clientRole, c.store)
	if err != nil {
		return nil, err
	}
	c.stops = append(c.stops, p.stop)
	c.clients = append(c.clients, p)
	return p, nil
}

func (c *cluster) stop() error {
	for i := len(c.stops) - 1; i >= 0; i-- {
		c.stops[i]()
	}
	return nil
}

// processor is how long the nodes have run on a processor.
func (c *cluster) processor() (sum time.Duration) {
	for _, pid := range c.nodes {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, t := range tasks {
			text, _ := os.ReadFile(t) // a thread may have ended
			first, _, _ := strings.Cut(string(text), " ")
			ns, _ := strconv.ParseInt(first, 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum
}

// collections are the garbage collections of all nodes since they started, and the longest pause of one of their latest.
func (c *cluster) collections() (cycles float64, longest time.Duration, err error) {
	for _, a := range c.addresses {
		resp, err := http.Get("http://" + a + "/metrics")
		if err != nil {
			return 0, 0, err
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return 0, 0, err
		}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			v, _ := strconv.ParseFloat(value, 64)
			switch name {
			case "btrlog_node_gc_cycles_total":
				cycles += v
			case "btrlog_node_gc_pause_longest_seconds":
				longest = max(longest, time.Duration(v*1e9))
			}
		}
	}
	return cycles, longest, nil
}

// pin lets all threads of a process, and those that it will make, run on one processor only.
func pin(pid, cpu int) error {
	var mask [16]uint64
	mask[cpu/64] = 1 << (cpu % 64)
	for range 2 { // the second time for a thread that was made during the first
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil {
			return err
		}
		for _, t := range tasks {
			id, err := strconv.Atoi(filepath.Base(t))
			if err != nil {
				return err
			}
			_, _, e := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, uintptr(id), unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)))
			if e != 0 && e != syscall.ESRCH {
				return os.NewSyscallError("sched_setaffinity", e)
			}
		}
	}
	return nil
}

// apart gives the client one processor and the nodes another, so that a client that offers too much cannot take theirs.
func (c *cluster) apart() error {
	if runtime.NumCPU() < 2 {
		return errors.New("two processors are needed")
	}
	var errs []error
	for _, p := range c.clients {
		errs = append(errs, pin(p.cmd.Process.Pid, 0))
	}
	for _, pid := range c.nodes {
		errs = append(errs, pin(pid, 1))
	}
	return errors.Join(errs...)
}

const (
	restFor  = 100 * time.Millisecond
	restBusy = 5 * time.Millisecond // of processor time, of all nodes
	restMost = 30 * time.Second
)

// rest waits until the nodes have next to nothing to do: what was appended is archived.
func (c *cluster) rest() error {
	tick := time.NewTicker(restFor)
	defer tick.Stop()
	before, busy := c.processor(), time.Duration(0)
	for end := time.Now().Add(restMost); time.Now().Before(end); {
		<-tick.C
		now := c.processor()
		if busy = now - before; busy < restBusy {
			return nil
		}
		before = now
	}
	return fmt.Errorf("the nodes are not at rest after %v: they took %v of processor time in %v", restMost, busy, restFor)
}

// freePort is a port that is free for UDP and TCP on 127.0.0.1 now.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// process is a program of which the first line says that it is ready.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader

	ready string // its first line
}

func startProcess(ctx context.Context, name string, args ...string) (*process, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, in: in, out: bufio.NewReader(out)}
	var err error
	if p.ready, err = p.out.ReadString('\n'); err != nil {
		p.stop()
		return nil, fmt.Errorf("%s %s ended before it was ready", name, strings.Join(args, " "))
	}
	return p, nil
}

func (p *process) stop() {
	_ = p.in.Close()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
}

// order has a client process do something.
func (p *process) order(o order) (*answer, error) {
	line, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	text, err := p.out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("a client process ended: %w", err)
	}
	a := new(answer)
	if err := json.Unmarshal(text, a); err != nil {
		return nil, err
	}
	if a.Error != "" {
		return nil, errors.New(a.Error)
	}
	return a, nil
}
