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
	"strings"
	"syscall"
	"time"

	"github.com/btrlog/btrlog"
)

// processes are what one measurement started, to be stopped in the opposite order.
type processes struct{ stops []func() }

func (p *processes) stop() {
	for i := len(p.stops) - 1; i >= 0; i-- {
		p.stops[i]()
	}
	p.stops = nil
}

// start starts a program and returns the first line that it prints. It ends with this process, by a closed standard input or by a
// signal.
func (p *processes) start(ctx context.Context, out any, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return err
	}
	p.stops = append(p.stops, func() {
		_ = in.Close()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("%s %.80s ended before it was ready", filepath.Base(name), strings.Join(args, " "))
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return json.Unmarshal(line, out)
}

// backend is a store that the table is made for.
type backend struct {
	name string
	front
}

// url is the store's URL for one of its ports.
func (b *backend) url(port string) string {
	if b.name == embedded {
		return port
	}
	return s3URL(port)
}

const (
	embedded  = "embedded"
	versitygw = "versitygw"
)

// elsewhere makes the command of a process that would be on another machine: it gets a processor when nobody else wants it.
func elsewhere(name string, args ...string) []string {
	return append([]string{"nice", "-n", "10", name}, args...)
}

// backend starts a store with its files in dir, and the proxy in front, both elsewhere if apart is set.
func (o *options) backend(ctx context.Context, p *processes, name, dir string, apart bool) (*backend, error) {
	command := func(name string, args ...string) []string { return append([]string{name}, args...) }
	if apart {
		command = elsewhere
	}
	what := "dir:" + dir
	if name == versitygw {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Join(dir, bucket), 0o777); err != nil { // a bucket is a directory there
			return nil, err
		}
		args := command(o.versitygw, "--quiet", "--port", port, "posix", dir)
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s3Key, "ROOT_SECRET_KEY="+s3Key)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return nil, fmt.Errorf("versitygw: %w; 'make test-s3' builds it, or name it with -versitygw", err)
		}
		p.stops = append(p.stops, func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		if err := awaitTCP(ctx, port); err != nil {
			return nil, err
		}
		what = "http://" + port
	}
	b := &backend{name: name}
	args := command(o.self, storeRole, what, o.rtt.String(), fmt.Sprint(o.linkBytes()))
	return b, p.start(ctx, &b.front, args[0], args[1:]...)
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func awaitTCP(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s to take connections: %w", address, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// nodes starts three log nodes with their directories below dir.
func (o *options) nodes(ctx context.Context, p *processes, store, dir string) (addresses []string, err error) {
	for i := range 3 {
		var ready struct{ Address string }
		id := fmt.Sprintf("n%d", i+1)
		if err := p.start(ctx, &ready, o.binary, "node", "--id", id, "--dir", filepath.Join(dir, id), "--listen", "127.0.0.1:0", "--store", store, "--json"); err != nil {
			return nil, err
		}
		addresses = append(addresses, ready.Address)
	}
	return addresses, nil
}

func getJSON(ctx context.Context, url string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

func (b *backend) counts(ctx context.Context) (counts, error) {
	c := counts{}
	return c, getJSON(ctx, b.Node+countsPath, &c)
}

// awaitArchived waits until every node takes the log for archived up to lsn.
func awaitArchived(ctx context.Context, nodes []string, log string, lsn btrlog.LSN) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for _, n := range nodes {
		for {
			var s struct {
				Shards []struct {
					Logs []struct {
						Name            string     `json:"name"`
						ArchivedThrough btrlog.LSN `json:"archived_through"`
					} `json:"logs"`
				} `json:"shard_status"`
			}
			if err := getJSON(ctx, "http://"+n+"/btrlog/v1/status", &s); err != nil {
				return err
			}
			through := btrlog.LSN(0)
			for _, sh := range s.Shards {
				for _, l := range sh.Logs {
					if l.Name == log {
						through = l.ArchivedThrough
					}
				}
			}
			if through >= lsn {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("waiting for node %s to know log %s archived up to %d, it is at %d: %w", n, log, lsn, through, ctx.Err())
			}
		}
	}
	return nil
}

// role runs this program in another role to its end and returns what it prints.
func (o *options) role(ctx context.Context, out any, args ...string) error {
	cmd := exec.CommandContext(ctx, o.self, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return json.Unmarshal(text, out)
}
