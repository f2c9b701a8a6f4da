package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// process is a child: a log node, a writer or a reader.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // of Wait; read after done
	log  *os.File

	mu   sync.Mutex
	last progress
	seen chan struct{} // a token for each progress line, dropped when nobody looks
}

// progress is what a writer or reader process prints on its standard output, one JSON line each.
type progress struct {
	Event     string  `json:"event"` // open, progress, done
	Epoch     uint64  `json:"epoch,omitempty"`
	Tail      uint64  `json:"tail,omitempty"`
	Acked     uint64  `json:"acked,omitempty"`
	Records   uint64  `json:"records,omitempty"`
	Bytes     uint64  `json:"bytes,omitempty"`
	Hot       uint64  `json:"hot,omitempty"`
	Cold      uint64  `json:"cold,omitempty"`
	Checked   uint64  `json:"checked,omitempty"`
	OpenMS    float64 `json:"open_ms,omitempty"`
	FailMS    float64 `json:"failover_ms,omitempty"`
	Seconds   float64 `json:"seconds,omitempty"`
	P50US     float64 `json:"p50_us,omitempty"`
	P99US     float64 `json:"p99_us,omitempty"`
	Singles   int     `json:"singles,omitempty"`
	PipelineS float64 `json:"pipelined_seconds,omitempty"`
	Pipelined uint64  `json:"pipelined,omitempty"`
}

// start runs a child whose standard output is progress lines and whose standard error goes to a file.
func start(dir, name, path string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: exec.Command(path, args...), done: make(chan struct{}), log: log, seen: make(chan struct{}, 1)}
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no child outlives the demo
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go p.watch(out)
	return p, nil
}

func (p *process) watch(out io.Reader) {
	in := bufio.NewScanner(out)
	for in.Scan() {
		var pr progress
		if json.Unmarshal(in.Bytes(), &pr) != nil || pr.Event == "" {
			fmt.Fprintln(p.log, in.Text())
			continue
		}
		p.mu.Lock()
		p.last = pr
		p.mu.Unlock()
		select {
		case p.seen <- struct{}{}:
		default:
		}
	}
	p.err = p.cmd.Wait()
	p.log.Close()
	close(p.done)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) state() progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// until waits for a progress line that satisfies ok.
func (p *process) until(ctx context.Context, what string, ok func(progress) bool) (progress, error) {
	for {
		if pr := p.state(); ok(pr) {
			return pr, nil
		}
		select {
		case <-p.seen:
		case <-p.done:
			if pr := p.state(); ok(pr) {
				return pr, nil
			}
			return progress{}, fmt.Errorf("%s (pid %d) ended before %s: %v; see %s", p.name, p.pid(), what, p.err, p.log.Name())
		case <-ctx.Done():
			return progress{}, fmt.Errorf("waiting for %s of %s (pid %d): %w", what, p.name, p.pid(), context.Cause(ctx))
		}
	}
}

// kill is kill -9; it returns when the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended by itself
	<-p.done
}

// stop asks a child to end and kills it when it does not.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		p.kill()
	}
}

// wait returns when the child has ended by itself, with its error.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("%s: %w; see %s", p.name, p.err, p.log.Name())
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for %s (pid %d) to end: %w", p.name, p.pid(), context.Cause(ctx))
	}
}

// freePorts finds n TCP ports that are free for UDP too. Another program could take one before a node does; the node
// then says so and the demo ends.
func freePorts(n int) ([]int, error) {
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		if tries > 100 {
			return nil, fmt.Errorf("no %d free ports on 127.0.0.1", n)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		u, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer u.Close()
		ports = append(ports, port)
	}
	return ports, nil
}
