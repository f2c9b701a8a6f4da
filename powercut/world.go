package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/btrlog/btrlog/powercut/disk"
	"github.com/btrlog/btrlog/powercut/guest"
	"github.com/btrlog/btrlog/powercut/judge"
	"github.com/btrlog/btrlog/powercut/vm"
)

// Devices of the guest, in the order of Config.Disks.
const (
	storeDevice = "vdd" // of the object store
	lstDevice   = "vde" // of the storage engine alone
)

var nodeDevices = []string{"vda", "vdb", "vdc"}

// settings are what the flags say.
type settings struct {
	dir    string // scratch; absolute
	kernel string // directory of the unpacked kernel package
	agent  string // binaries
	btrlog string
	fs     string
	out    string // JSON lines
	seed   uint64
	cuts   int
	memory int // MiB of the guest
}

// world is the machine, its disks, and what the host knows of what was written. It belongs to one goroutine.
type world struct {
	set   settings
	rng   *rand.Rand
	disks map[string]*disk.Disk
	srv   *disk.Server
	m     *vm.Machine
	ports []int // of the nodes

	logs     []*judge.Log
	control  *judge.Log // of memory durability, until it was judged
	stores   map[string]*judge.Store
	load     *load
	late     []int // nodes that start after the next judgement
	buffered bool  // nodes that start now all go through the page cache
	out      *records
}

func newWorld(set settings) (*world, error) {
	w := &world{set: set, rng: rand.New(rand.NewPCG(set.seed, 1)), disks: make(map[string]*disk.Disk), stores: make(map[string]*judge.Store)}
	kernel, err := vm.FindKernel(set.kernel)
	if err != nil {
		return nil, err
	}
	var names []string
	var all []*disk.Disk
	for _, name := range append(append([]string{}, nodeDevices...), storeDevice, lstDevice) {
		d := disk.New(name, 768<<20)
		if err := d.Format(set.fs, set.dir); err != nil {
			return nil, err
		}
		w.disks[name] = d
		names, all = append(names, name), append(all, d)
	}
	socket := filepath.Join(set.dir, "nbd")
	lis, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	w.srv = disk.Serve(lis, all...)
	if w.ports, err = freePorts(len(nodeDevices)); err != nil {
		return nil, err
	}
	w.m, err = vm.New(vm.Config{Dir: set.dir, Kernel: kernel, Agent: set.agent, Btrlog: set.btrlog, Disks: names, NBD: socket, Forward: w.ports, Memory: set.memory, CPUs: 2})
	if err != nil {
		return nil, err
	}
	for i, name := range []string{"small", "large", "quiet"} {
		w.logs = append(w.logs, judge.NewLog(name, uint64(i+1)))
	}
	return w, nil
}

// freePorts finds ports that are free for UDP and TCP now.
func freePorts(n int) ([]int, error) {
	var out []int
	for len(out) < n {
		t, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer t.Close()
		port := t.Addr().(*net.TCPAddr).Port
		u, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue // taken; the deferred Close keeps it from being offered again
		}
		u.Close()
		out = append(out, port)
	}
	return out, nil
}

func (w *world) close() {
	if w.load != nil {
		w.load.end()
	}
	w.m.Kill()
	for _, d := range w.disks {
		d.Release()
	}
	w.m.Close()
	w.srv.Close()
}

func (w *world) do(o guest.Order) error {
	_, err := w.m.Do(o)
	return err
}

func mountPoint(device string) string { return "/mnt/" + device }

func (w *world) mount(devices ...string) error {
	for _, d := range devices {
		if err := w.do(guest.Order{Do: guest.DoMount, Device: d, FS: w.set.fs, Dir: mountPoint(d)}); err != nil {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
	}
	return nil
}

func (w *world) unmount(devices ...string) error {
	for _, d := range devices {
		if err := w.do(guest.Order{Do: guest.DoUnmount, Dir: mountPoint(d)}); err != nil {
			return err
		}
	}
	return nil
}

// boot switches the machine on, with all file systems and nodes.
func (w *world) boot() error {
	if err := w.switchOn(); err != nil {
		return err
	}
	return w.startNodes(0, 1, 2)
}

func (w *world) switchOn() error {
	if err := w.m.Boot(2 * time.Minute); err != nil {
		return err
	}
	if err := w.mount(nodeDevices...); err != nil {
		return err
	}
	return w.mount(storeDevice, lstDevice)
}

func nodeName(i int) string { return fmt.Sprintf("n%d", i+1) }

func nodeNames(nodes ...int) []string {
	var out []string
	for _, i := range nodes {
		out = append(out, nodeName(i))
	}
	return out
}

// startNodes starts nodes and waits until they serve.
func (w *world) startNodes(nodes ...int) error {
	for _, i := range nodes {
		if err := w.launch(i); err != nil {
			return err
		}
	}
	for _, i := range nodes {
		if err := w.ready(i); err != nil {
			return err
		}
	}
	return nil
}

// launch starts a node, which goes through the page cache or writes directly, as is drawn.
func (w *world) launch(i int) error {
	args := []string{guest.BtrlogPath, "node", "--id", nodeName(i), "--dir", mountPoint(nodeDevices[i]) + "/node",
		"--listen", fmt.Sprintf("0.0.0.0:%d", w.ports[i]), "--advertise", fmt.Sprintf("127.0.0.1:%d", w.ports[i]),
		"--store", "file://" + mountPoint(storeDevice) + "/store", "--segment-file", "20MiB", "--start-timeout", "150s"}
	if w.buffered || w.rng.IntN(2) == 0 {
		args = append(args, "--buffered")
	}
	return w.do(guest.Order{Do: guest.DoStart, Name: nodeName(i), Args: args})
}

func (w *world) ready(node int) error {
	url := fmt.Sprintf("http://127.0.0.1:%d/readyz", w.ports[node])
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var last, ended error
	err := within(3*time.Minute, func() bool {
		if ended = w.do(guest.Order{Do: guest.DoAlive, Names: nodeNames(node)}); ended != nil {
			return true
		}
		r, err := client.Get(url)
		if err != nil {
			last = err
			return false
		}
		r.Body.Close()
		last = fmt.Errorf("status %s", r.Status)
		return r.StatusCode == http.StatusOK
	})
	switch {
	case ended != nil && strings.Contains(ended.Error(), "damaged data"):
		return fmt.Errorf("%w: node %s does not start: %w", errRefused, nodeName(node), ended)
	case ended != nil:
		return fmt.Errorf("node %s does not start: %w", nodeName(node), ended)
	case err != nil:
		return fmt.Errorf("node %s is not ready: %w: %w; what it said is in %s", nodeName(node), err, last, w.m.Console())
	}
	return nil
}

var (
	errTime = errors.New("out of time")
	// errRefused says that what a cut left of a device is damaged: in a control as good as a loss, else a failure.
	errRefused = errors.New("refused")
)

// within asks cond until it holds.
func within(limit time.Duration, cond func() bool) error {
	for end := time.Now().Add(limit); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%w, %v", errTime, limit)
		}
	}
	return nil
}

func (w *world) addresses() []string {
	var out []string
	for _, p := range w.ports {
		out = append(out, fmt.Sprintf("127.0.0.1:%d", p))
	}
	return out
}

// pause is a part of the load's time, drawn.
func (w *world) pause(ctx context.Context, least, most time.Duration) {
	d := least + time.Duration(w.rng.Int64N(int64(most-least)))
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
