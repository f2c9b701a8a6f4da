package vm

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/btrlog/btrlog/powercut/guest"
)

// Program is qemu's.
const Program = "qemu-system-x86_64"

// wantedModules are what the guest needs, where they are not built into the kernel.
var wantedModules = []string{"virtio_pci", "virtio_blk", "virtio_net", "dm_mod", "dm_flakey", "ext4", "xfs", "crc32c_generic", "crc32c_intel"}

// Config says what a machine is made of.
type Config struct {
	Dir     string // for its files; it belongs to the machine
	Kernel  *Kernel
	Agent   string   // path of the agent's binary
	Btrlog  string   // path of the node's
	Disks   []string // names of exports; the first one is vda
	NBD     string   // path of the socket of their server
	Forward []int    // ports of 127.0.0.1 that lead to the same port of the guest, UDP and TCP
	Memory  int      // MiB
	CPUs    int
}

// Machine is a virtual machine. It is used by one goroutine, except where a method says otherwise.
type Machine struct {
	cfg    Config
	initrd string
	lis    net.Listener // agents connect here
	cmd    *exec.Cmd
	ended  chan struct{}
	conn   net.Conn
	boots  int

	mu      sync.Mutex
	next    int
	waiting map[int]chan guest.Reply
	down    error // why no reply will come
}

// New prepares a machine that is switched off.
func New(cfg Config) (*Machine, error) {
	m := &Machine{cfg: cfg}
	modules, err := cfg.Kernel.Modules(wantedModules...)
	if err != nil {
		return nil, err
	}
	var a Archive
	for _, d := range []string{"bin", "modules", "dev", "proc", "sys", "tmp", "mnt"} {
		a.Add(d, ModeDir|0o755, nil)
	}
	var list strings.Builder
	files := map[string]string{"init": cfg.Agent, "bin/btrlog": cfg.Btrlog}
	for _, p := range modules {
		files["modules/"+filepath.Base(p)] = p
		fmt.Fprintln(&list, filepath.Base(p))
	}
	a.Add("modules/list", ModeFile|0o644, []byte(list.String()))
	for name, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		a.Add(name, ModeFile|0o755, data)
	}
	m.initrd = filepath.Join(cfg.Dir, "initrd")
	if err := os.WriteFile(m.initrd, a.Bytes(), 0o644); err != nil {
		return nil, err
	}
	m.lis, err = net.Listen("tcp", "127.0.0.1:0")
	return m, err
}

// Console is the path of the file that everything which the guest says is appended to.
func (m *Machine) Console() string { return filepath.Join(m.cfg.Dir, "console") }

// Boot switches the machine on and returns when its agent listens.
func (m *Machine) Boot(limit time.Duration) error {
	console, err := os.OpenFile(m.Console(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer console.Close()
	m.boots++
	fmt.Fprintf(console, "\n== boot %d\n", m.boots)
	network := "user,id=net0"
	for _, p := range m.cfg.Forward {
		for _, proto := range []string{"udp", "tcp"} {
			network += fmt.Sprintf(",hostfwd=%s:127.0.0.1:%d-:%d", proto, p, p)
		}
	}
	_, port, _ := net.SplitHostPort(m.lis.Addr().String()) // an address of ours
	args := []string{"-accel", "tcg,thread=multi", "-cpu", "max", "-m", strconv.Itoa(m.cfg.Memory), "-smp", strconv.Itoa(m.cfg.CPUs),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", m.cfg.Kernel.Image, "-initrd", m.initrd,
		"-append", "console=ttyS0 quiet panic=-1 net.ifnames=0 mitigations=off cut.host=10.0.2.2:" + port,
		"-netdev", network, "-device", "virtio-net-pci,netdev=net0,romfile="}
	for _, d := range m.cfg.Disks {
		// The cache that is lost is the server's: qemu has none of its own, and says that the device has one.
		args = append(args, "-drive", fmt.Sprintf("driver=nbd,server.type=unix,server.path=%s,export=%s,id=%s,if=none,cache.direct=on", m.cfg.NBD, d, d),
			"-device", "virtio-blk-pci,write-cache=on,drive="+d)
	}
	m.cmd = exec.Command(Program, args...)
	m.cmd.Stdout, m.cmd.Stderr = console, console
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w; install the package qemu-system-x86", Program, err)
	}
	m.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // it is killed, or the console says why it ended
		close(ended)
	}(m.cmd, m.ended)
	if err := m.accept(limit); err != nil {
		m.Kill()
		return fmt.Errorf("boot %d of the virtual machine: %w; see %s", m.boots, err, m.Console())
	}
	return nil
}

func (m *Machine) accept(limit time.Duration) error {
	type accepted struct {
		c   net.Conn
		err error
	}
	got := make(chan accepted, 1)
	_ = m.lis.(*net.TCPListener).SetDeadline(time.Now().Add(limit)) // its listener takes deadlines
	go func() {
		c, err := m.lis.Accept()
		got <- accepted{c, err}
	}()
	select {
	case a := <-got:
		if a.err != nil {
			return fmt.Errorf("the agent has not connected within %v: %w", limit, a.err)
		}
		m.conn = a.c
	case <-m.ended:
		_ = m.lis.(*net.TCPListener).SetDeadline(time.Now())
		<-got
		return errors.New("it has ended")
	}
	m.mu.Lock()
	m.waiting, m.down = make(map[int]chan guest.Reply), nil
	m.mu.Unlock()
	go m.replies(m.conn)
	return nil
}

func (m *Machine) replies(c net.Conn) {
	r := json.NewDecoder(bufio.NewReader(c))
	for {
		var reply guest.Reply
		err := r.Decode(&reply)
		m.mu.Lock()
		if err != nil {
			m.down = fmt.Errorf("the agent is gone: %w", err)
			for _, w := range m.waiting {
				close(w)
			}
			m.waiting = nil
			m.mu.Unlock()
			return
		}
		if w := m.waiting[reply.ID]; w != nil {
			delete(m.waiting, reply.ID)
			w <- reply
		}
		m.mu.Unlock()
	}
}

// Do gives the agent an order and waits for its reply, at most a minute and a half. It may be called concurrently.
func (m *Machine) Do(o guest.Order) (string, error) {
	m.mu.Lock()
	if m.down != nil || m.waiting == nil {
		defer m.mu.Unlock()
		return "", fmt.Errorf("%s %s%v: the machine is off: %w", o.Do, o.Name, o.Names, m.down)
	}
	m.next++
	o.ID = m.next
	w := make(chan guest.Reply, 1)
	m.waiting[o.ID] = w
	err := json.NewEncoder(m.conn).Encode(o)
	m.mu.Unlock()
	if err != nil {
		return "", fmt.Errorf("order %s: %w", o.Do, err)
	}
	select {
	case r, ok := <-w:
		switch {
		case !ok:
			return "", fmt.Errorf("%s %s%v: the agent is gone", o.Do, o.Name, o.Names)
		case r.Error != "":
			return r.Text, fmt.Errorf("%s %s%v in the guest: %s", o.Do, o.Name, o.Names, r.Error)
		}
		return r.Text, nil
	case <-time.After(90 * time.Second):
		return "", fmt.Errorf("%s %s%v: no reply within 90 s", o.Do, o.Name, o.Names)
	}
}

// Kill takes the machine's power: the process ends at once, with everything that the guest had in its memory.
func (m *Machine) Kill() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill() // one that has ended is as good
	<-m.ended
	if m.conn != nil {
		m.conn.Close()
	}
	m.cmd, m.conn = nil, nil
}

// Close kills the machine and gives up its listener.
func (m *Machine) Close() {
	m.Kill()
	m.lis.Close()
}
