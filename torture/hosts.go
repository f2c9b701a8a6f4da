//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/btrlog/btrlog/torture/fabric"
)

// port is the port of nodes and store, in their own namespaces.
const port = 4460

// host is a network namespace with one interface, which ends at a port of the switch.
type host struct {
	name string // n1, store, c1 …
	ns   string
	ip   string
	mac  [6]byte
	port int // of the switch
	tap  *os.File
	jobs chan func()
}

// network is all hosts, and the switch between them.
type network struct {
	prefix string
	hosts  []*host
	byName map[string]*host
	sw     *fabric.Switch
}

// run executes a tool and makes its output part of the error.
func run(ctx context.Context, stdin string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// newNetwork makes the namespaces and starts the switch. What an earlier run of the same prefix left is removed first.
func newNetwork(ctx context.Context, prefix string, names []string, seed uint64) (*network, error) {
	if err := removeNamespaces(ctx, prefix); err != nil {
		return nil, err
	}
	n := &network{prefix: prefix, byName: make(map[string]*host)}
	var taps []fabric.Tap
	for i, name := range names {
		h := &host{name: name, ns: prefix + name, ip: fmt.Sprintf("10.213.7.%d", i+1), port: i,
			mac: [6]byte{2, 0, 0x5e, 0, 0, byte(i + 1)}, jobs: make(chan func())}
		n.hosts = append(n.hosts, h)
		n.byName[name] = h
		if err := run(ctx, "", "ip", "netns", "add", h.ns); err != nil {
			return n, err
		}
		if err := h.enter(); err != nil {
			return n, err
		}
		var err error
		h.in(func() { h.tap, err = fabric.OpenTap("eth0") })
		if err != nil {
			return n, err
		}
		taps = append(taps, fabric.Tap{File: h.tap, MAC: h.mac})
	}
	for _, h := range n.hosts {
		var b strings.Builder
		fmt.Fprintf(&b, "link set lo up\nlink set eth0 address %s addrgenmode none\nlink set eth0 txqueuelen 10000 up\naddress add %s/24 dev eth0\n", mac(h.mac), h.ip)
		for _, other := range n.hosts { // no ARP: its loss would be a fault of another kind
			if other != h {
				fmt.Fprintf(&b, "neighbour add %s lladdr %s dev eth0 nud permanent\n", other.ip, mac(other.mac))
			}
		}
		if err := run(ctx, b.String(), "ip", "-n", h.ns, "-batch", "-"); err != nil {
			return n, err
		}
		// Two directions that faults can close; accepted until then.
		table := "table ip torture {\n chain in { type filter hook input priority 0; policy accept; }\n chain out { type filter hook output priority 0; policy accept; }\n}\n"
		if err := n.nft(ctx, h, table); err != nil {
			return n, err
		}
	}
	sw, err := fabric.Start(fabric.New(seed, len(taps), fabric.Conditions{}), taps)
	n.sw = sw
	return n, err
}

func mac(b [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5])
}

// enter starts the host's thread, which lives as long as this process: a child is killed when the thread that made it ends
// (Pdeathsig).
func (h *host) enter() error {
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: no other goroutine may run in this namespace
		fd, err := unix.Open(filepath.Join("/run/netns", h.ns), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		ready <- err
		if err != nil {
			return
		}
		for f := range h.jobs {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return fmt.Errorf("enter network namespace %s: %w", h.ns, err)
	}
	return nil
}

// in runs f on the host's thread.
func (h *host) in(f func()) {
	done := make(chan struct{})
	h.jobs <- func() { f(); close(done) }
	<-done
}

func (h *host) addr() string { return h.ip + ":" + strconv.Itoa(port) }

// nft feeds a script to nft in the host's namespace.
func (n *network) nft(ctx context.Context, h *host, script string) error {
	return run(ctx, script, "ip", "netns", "exec", h.ns, "nft", "-f", "-")
}

// cut makes the host's own rules drop what comes in, what goes out, or both.
func (n *network) cut(ctx context.Context, h *host, in, out bool) error {
	var b strings.Builder
	b.WriteString("flush chain ip torture in\nflush chain ip torture out\n")
	if in {
		b.WriteString("add rule ip torture in iif eth0 drop\n")
	}
	if out {
		b.WriteString("add rule ip torture out oif eth0 drop\n")
	}
	return n.nft(ctx, h, b.String())
}

// set changes the conditions of the links from and to a host, or of all links if it is nil.
func (n *network) set(h *host, c fabric.Conditions) {
	for _, a := range n.hosts {
		for _, b := range n.hosts {
			if a != b && (h == nil || a == h || b == h) {
				n.sw.Set(a.port, b.port, c)
			}
		}
	}
}

func (n *network) close(ctx context.Context) error {
	if n.sw != nil {
		n.sw.Close()
	}
	return removeNamespaces(ctx, n.prefix)
}

// removeNamespaces ends the processes in all namespaces whose name begins with prefix and removes those. No process of
// another namespace is touched.
func removeNamespaces(ctx context.Context, prefix string) error {
	entries, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		for deadline := time.Now().Add(10 * time.Second); ; {
			out, err := exec.CommandContext(ctx, "ip", "netns", "pids", e.Name()).Output()
			if err != nil {
				break // it is no namespace any more: a name that a crash left behind
			}
			pids := strings.Fields(string(out))
			alive := 0
			for _, p := range pids {
				pid, err := strconv.Atoi(p)
				if err != nil || pid == os.Getpid() {
					continue // our own threads of the hosts
				}
				alive++
				if err := endProcess(pid, deadline); err != nil {
					return fmt.Errorf("network namespace %s: %w", e.Name(), err)
				}
			}
			if alive == 0 {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%d processes of network namespace %s do not end after SIGKILL: %s", alive, e.Name(), strings.Join(pids, " "))
			}
		}
		if err := run(ctx, "", "ip", "netns", "delete", e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// endProcess kills a process, which may have ended already, and waits for its end until the deadline. The descriptor names this very
// process: a number that was given to another one meanwhile is not hit.
func endProcess(pid int, deadline time.Time) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("process %d does not end after SIGKILL", pid)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("process %d: %w", pid, err)
		}
	}
}

// unmountBelow removes the file systems that are mounted below dir.
func unmountBelow(dir string) error {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && strings.HasPrefix(fields[1], dir+"/") {
			if err := syscall.Unmount(fields[1], unix.MNT_DETACH); err != nil {
				errs = append(errs, fmt.Errorf("unmount %s: %w", fields[1], err))
			}
		}
	}
	return errors.Join(errs...)
}
