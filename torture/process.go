//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// process is a child in a host's namespace. Its lines of standard output arrive at lines, its standard error is in a file.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan []byte
	done  chan struct{} // closed when it has ended
	err   error         // of Wait; read after done
	clock *wallClock    // nil where the wall clock cannot be moved

}

// spawn starts a program on a host. It is killed when this process ends, however that is.
func (h *host) spawn(dir, name, path string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: exec.Command(path, args...), lines: make(chan []byte, 1024), done: make(chan struct{})}
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Ptrace: clockMoves}
	out, err1 := p.cmd.StdoutPipe()
	in, err2 := p.cmd.StdinPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	p.stdin = in
	h.in(func() {
		if err = p.cmd.Start(); err == nil && clockMoves {
			p.clock, err = takeClock(p.cmd.Process.Pid) // by the thread that started it, which traces it
		}
	})
	if err != nil {
		if p.cmd.Process != nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		log.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		in := bufio.NewScanner(out)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			p.lines <- append([]byte(nil), in.Bytes()...)
		}
		close(p.lines)
		p.err = p.cmd.Wait()
		log.Close()
		close(p.done)
	}()
	return p, nil
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it may have ended by itself

// pause is SIGSTOP, resume SIGCONT.
func (p *process) pause()  { p.signal(syscall.SIGSTOP) }
func (p *process) resume() { p.signal(syscall.SIGCONT) }

// kill is kill -9; it returns when the process is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	for range p.lines { // somebody must take the rest
	}
	<-p.done
}

// stop asks it to end, and kills it when it does not.
func (p *process) stop() {
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	go func() {
		for range p.lines {
		}
	}()
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		p.kill()
	}
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// line waits for the next line of standard output.
func (p *process) line(ctx context.Context, what string) ([]byte, error) {
	select {
	case l, ok := <-p.lines:
		if !ok {
			<-p.done
			return nil, fmt.Errorf("%s ended before %s: %v", p.name, what, p.err)
		}
		return l, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for %s of %s: %w", what, p.name, context.Cause(ctx))
	}
}
