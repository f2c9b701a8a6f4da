package guest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Agent is the first process of the virtual machine: it prepares the machine, connects to the host at the address in the kernel's
// command line (cut.host), and obeys. It does not return; when something fails, it says so on the console and powers off.
func Agent() {
	err := boot()
	if err == nil {
		err = obey(commandLine("cut.host"))
	}
	fmt.Println("agent:", err)
	syscall.Sync()
	syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

func boot() error {
	for _, m := range []struct{ source, dir, fs string }{{"proc", "/proc", "proc"}, {"sys", "/sys", "sysfs"}, {"dev", "/dev", "devtmpfs"}, {"tmp", "/tmp", "tmpfs"}} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(m.source, m.dir, m.fs, 0, ""); err != nil && !errors.Is(err, syscall.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	// What is written through the page cache goes to the device soon, and without a flush: a cut must find it in the device's cache.
	for name, value := range map[string]string{"dirty_expire_centisecs": "5", "dirty_writeback_centisecs": "2"} {
		if err := os.WriteFile("/proc/sys/vm/"+name, []byte(value), 0o644); err != nil {
			return err
		}
	}
	list, err := os.ReadFile("/modules/list")
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(list)) {
		if err := insert("/modules/" + name); err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
	}
	if err := configure("lo", [4]byte{127, 0, 0, 1}, [4]byte{255, 0, 0, 0}); err != nil {
		return err
	}
	if err := within(10*time.Second, func() bool { _, err := os.Stat("/sys/class/net/eth0"); return err == nil }); err != nil {
		return fmt.Errorf("no network device: %w", err)
	}
	if err := configure("eth0", [4]byte{10, 0, 2, 15}, [4]byte{255, 255, 255, 0}); err != nil {
		return err
	}
	return defaultRoute([4]byte{10, 0, 2, 2})
}

func insert(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	params, _ := syscall.BytePtrFromString("") // it has no zero byte
	return finit(f.Fd(), params)
}

func commandLine(key string) string {
	text, _ := os.ReadFile("/proc/cmdline") // an empty one has no such key
	for word := range strings.FieldsSeq(string(text)) {
		if v, ok := strings.CutPrefix(word, key+"="); ok {
			return v
		}
	}
	return ""
}

// within waits for cond.
func within(limit time.Duration, cond func() bool) error {
	for end := time.Now().Add(limit); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("not within %v", limit)
		}
	}
	return nil
}

// agent is the state behind the orders.
type agent struct {
	mu       sync.Mutex
	programs map[string]*program
	devices  map[string]mapped
}

type program struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error  // valid once ended is closed
	last  string // line that it said; likewise
}

func (p *program) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func obey(host string) error {
	var c net.Conn
	err := within(20*time.Second, func() (ok bool) {
		var err error
		c, err = net.DialTimeout("tcp", host, 5*time.Second)
		return err == nil
	})
	if err != nil {
		return fmt.Errorf("connect to the host at %s: %w", host, err)
	}
	a := &agent{programs: make(map[string]*program), devices: make(map[string]mapped)}
	r, w := json.NewDecoder(bufio.NewReader(c)), json.NewEncoder(c)
	var mu sync.Mutex
	for {
		var o Order
		if err := r.Decode(&o); err != nil {
			return fmt.Errorf("orders from the host: %w", err)
		}
		// Orders run beside each other: one that waits for a device that is silent must not hold up the one that wakes it.
		go func() {
			text, err := a.do(&o)
			reply := Reply{ID: o.ID, Text: text}
			if err != nil {
				reply.Error = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			if err := w.Encode(reply); err != nil {
				fmt.Println("agent: reply:", err)
			}
		}()
	}
}

func (a *agent) do(o *Order) (string, error) {
	switch o.Do {
	case DoMount:
		return "", a.mount(o.Device, o.FS, o.Dir)
	case DoUnmount:
		// What still runs there was killed and may be on its way out.
		var err error
		if within(30*time.Second, func() bool { err = syscall.Unmount(o.Dir, 0); return err == nil }) != nil {
			return "", fmt.Errorf("unmount %s: %w", o.Dir, err)
		}
		return "", nil
	case DoStart:
		return "", a.start(o.Name, o.Args)
	case DoKill:
		for _, n := range o.Names {
			if p := a.program(n); p != nil {
				if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
					return "", err
				}
			}
		}
		return "", nil
	case DoAlive:
		for _, n := range o.Names {
			if p := a.program(n); p == nil {
				return "", fmt.Errorf("%s was not started", n)
			} else if p.over() {
				return "", fmt.Errorf("%s has ended (%v) and said last: %s", n, p.err, p.last)
			}
		}
		return "", nil
	case DoWait:
		return a.wait(o.Names)
	case DoSuspend:
		return "", a.each(o.Names, mapped.suspend)
	case DoDrop:
		return "", a.each(o.Names, mapped.drop)
	case DoPass:
		return "", a.each(o.Names, mapped.pass)
	}
	return "", fmt.Errorf("order %q is unknown", o.Do)
}

func (a *agent) program(name string) *program {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.programs[name]
}

func (a *agent) each(names []string, f func(mapped) error) error {
	for _, n := range names {
		a.mu.Lock()
		m, ok := a.devices[n]
		a.mu.Unlock()
		if !ok {
			return fmt.Errorf("no mapped device %s", n)
		}
		if err := f(m); err != nil {
			return err
		}
	}
	return nil
}

func (a *agent) mount(device, fs, dir string) error {
	a.mu.Lock()
	m, ok := a.devices[device]
	a.mu.Unlock()
	if !ok {
		var text []byte
		err := within(10*time.Second, func() (ok bool) {
			var err error
			text, err = os.ReadFile("/sys/block/" + device + "/size")
			return err == nil
		})
		if err != nil {
			return fmt.Errorf("no block device %s: %w", device, err)
		}
		sectors, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return err
		}
		m = mapped{device, sectors}
		if err := m.create(); err != nil {
			return err
		}
		a.mu.Lock()
		a.devices[device] = m
		a.mu.Unlock()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount(m.path(), dir, fs, 0, ""); err != nil {
		return fmt.Errorf("mount %s (%s) on %s: %w", m.path(), fs, dir, err)
	}
	return nil
}

func (a *agent) start(name string, args []string) error {
	if p := a.program(name); p != nil && !p.over() {
		return fmt.Errorf("%s runs already", name)
	}
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &program{cmd: cmd, ended: make(chan struct{})}
	a.mu.Lock()
	a.programs[name] = p
	a.mu.Unlock()
	go func() {
		p.last = say(name, out)
		p.err = cmd.Wait()
		fmt.Printf("%s ended: %v\n", name, p.err)
		close(p.ended)
	}()
	return nil
}

// say passes on what a program says, and returns the last line of it.
func say(name string, r io.Reader) (last string) {
	for s := bufio.NewScanner(r); s.Scan(); {
		last = s.Text()
		fmt.Printf("%s: %s\n", name, last)
	}
	return last
}

func (a *agent) wait(names []string) (string, error) {
	var text []string
	for _, n := range names {
		p := a.program(n)
		if p == nil {
			continue
		}
		select {
		case <-p.ended:
			text = append(text, fmt.Sprintf("%s: %v", n, p.err))
		case <-time.After(60 * time.Second):
			return "", fmt.Errorf("%s has not ended within 60 s", n)
		}
	}
	return strings.Join(text, "; "), nil
}
