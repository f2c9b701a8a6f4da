package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a program that was started here. It ends with this process.
type Process struct {
	Cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start starts a program; a nil env is this process's. What it writes to standard error goes to stderr, a file.
func Start(stderr *os.File, dir string, env []string, name string, args ...string) (*Process, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr, cmd.Dir, cmd.Env = stderr, dir, env
	// The threads that start processes are never ended, so the death signal is the process's.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Process{cmd, in, bufio.NewReaderSize(out, 1<<16)}, nil
}

// Line waits for the next line of standard output.
func (p *Process) Line() (string, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s ended before it was ready: %w", filepath.Base(p.Cmd.Path), err)
	}
	return strings.TrimSpace(line), nil
}

// In and Out are the program's standard input and output.
func (p *Process) In() io.Writer      { return p.in }
func (p *Process) Out() *bufio.Reader { return p.out }

// stopTime is what a program has to end after SIGTERM.
const stopTime = 10 * time.Second

// Stop ends the program by SIGTERM, and by SIGKILL if it takes longer than ten seconds.
func (p *Process) Stop() {
	_ = p.in.Close()
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(stopTime, func() { _ = p.Cmd.Process.Kill() })
	_ = p.Cmd.Wait()
	kill.Stop()
}

// Kill ends the program by SIGKILL.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	_ = p.Cmd.Wait()
}

// Processor is how long a process has run on a processor.
func (p *Process) Processor() (sum time.Duration) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.Cmd.Process.Pid))
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

// ClientRole is the first argument of a process that is a client: ClientRole KIND PROCESSORS ADDRESS…
const ClientRole = "load-client"

// Connect makes a Target from the words that its system gives to clients.
type Connect func(ctx context.Context, words []string) (Target, error)

type order struct {
	Run    *Plan
	Closed int // so many appends, one at a time
	Bytes  int
	Logs   int // open so many
}

type answer struct {
	Error string
	Point *Point
	Took  []time.Duration
}

// ServeClient is the process of a client, if args say so. It carries out the orders of a Client.
func ServeClient(ctx context.Context, args []string, kinds map[string]Connect) (mine bool, err error) {
	if len(args) < 3 || args[0] != ClientRole {
		return false, nil
	}
	connect := kinds[args[1]]
	if connect == nil {
		return true, fmt.Errorf("no target %q", args[1])
	}
	cpus, err := ParseCPUs(args[2])
	if err != nil {
		return true, err
	}
	if len(cpus) > 0 {
		if err := bind(cpus); err != nil {
			return true, fmt.Errorf("bind to processors %s: %w", args[2], err)
		}
	}
	t, err := connect(ctx, args[3:])
	if err != nil {
		return true, err
	}
	defer t.Close()
	if err := t.Open(ctx, 1); err != nil {
		return true, err
	}
	fmt.Println("ready")
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); err == io.EOF {
			return true, nil
		} else if err != nil {
			return true, err
		}
		var a answer
		switch {
		case o.Run != nil:
			a.Point, err = Run(ctx, t, *o.Run)
		case o.Closed > 0:
			a.Took, err = t.Closed(ctx, o.Closed, make([]byte, o.Bytes))
		default:
			err = t.Open(ctx, o.Logs)
		}
		if err != nil {
			a = answer{Error: err.Error()}
		}
		if err := out.Encode(a); err != nil {
			return true, err
		}
	}
}

// Client is a client process.
type Client struct{ *Process }

// StartClient starts this program again as a client.
func StartClient(kind, cpus string, words ...string) (*Client, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := Start(os.Stderr, "", nil, self, append([]string{ClientRole, kind, cpus}, words...)...)
	if err != nil {
		return nil, err
	}
	if _, err := p.Line(); err != nil {
		p.Kill()
		return nil, fmt.Errorf("client of %s: %w", kind, err)
	}
	return &Client{p}, nil
}

func (c *Client) do(o order) (*answer, error) {
	if err := json.NewEncoder(c.in).Encode(o); err != nil {
		return nil, err
	}
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("the client process ended: %w", err)
	}
	a := new(answer)
	if err := json.Unmarshal(line, a); err != nil {
		return nil, err
	}
	if a.Error != "" {
		return nil, errors.New(a.Error)
	}
	return a, nil
}

// Run is Run in the client's process.
func (c *Client) Run(p Plan) (*Point, error) {
	a, err := c.do(order{Run: &p})
	if err != nil {
		return nil, err
	}
	return a.Point, nil
}

// Closed is Target.Closed in the client's process.
func (c *Client) Closed(count, bytes int) ([]time.Duration, error) {
	a, err := c.do(order{Closed: count, Bytes: bytes})
	if err != nil {
		return nil, err
	}
	return a.Took, nil
}

// Open is Target.Open in the client's process.
func (c *Client) Open(logs int) error {
	_, err := c.do(order{Logs: logs})
	return err
}

// ParseCPUs reads numbers of processors such as 0,1; all, or nothing, are no binding.
func ParseCPUs(text string) (cpus []int, err error) {
	if text == "" || text == "all" {
		return nil, nil
	}
	for f := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < 0 || n >= 1024 {
			return nil, fmt.Errorf("%q is no number of a processor; the form is 0,1, or all", f)
		}
		cpus = append(cpus, n)
	}
	return cpus, nil
}

// LastCPU is the processor to which a client is bound unless told otherwise; where there is one only, it is not bound.
func LastCPU() string {
	if n := runtime.NumCPU(); n > 1 {
		return strconv.Itoa(n - 1)
	}
	return "all"
}
