//go:build linux

package main

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/btrlog/btrlog/torture/history"
)

// probe measures what the machine itself withholds during a run: how late a thread wakes up, and how long a forced write of
// 4 KiB takes on the disk that the nodes use. A gap that is no longer than these says nothing about the product.
type probe struct {
	mu     sync.Mutex
	stalls []stall
	stop   chan struct{}
	ended  sync.WaitGroup
	file   *os.File
}

type stall struct {
	from, to int64 // ns of the histories' clock
	disk     bool
}

const (
	leastStall  = 2 * time.Millisecond // shorter ones are not kept
	probePause  = 5 * time.Millisecond
	probeBytes  = 4096
	probeBlocks = 1024
)

// startProbe writes to a file of its own below dir.
func startProbe(path string) (*probe, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_DIRECT|unix.O_DSYNC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("probe of the disk: %w", err)
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, probeBytes*probeBlocks); err != nil {
		f.Close()
		return nil, fmt.Errorf("probe of the disk: %w", err)
	}
	buf := make([]byte, 2*probeBytes)
	aligned := (probeBytes - int(uintptr(unsafe.Pointer(&buf[0]))%probeBytes)) % probeBytes
	buf = buf[aligned : aligned+probeBytes]
	p := &probe{stop: make(chan struct{}), file: f}
	n := int64(0)
	p.ended.Go(func() { p.loop(false, 0, func() { sleep(time.Millisecond) }, time.Millisecond) })
	p.ended.Go(func() {
		p.loop(true, probePause, func() {
			_, _ = f.WriteAt(buf, n%probeBlocks*probeBytes) // a disk with errors ends the nodes, which is noticed
			n++
		}, 0)
	})
	return p, nil
}

// sleep is nanosleep: Go's timers are a millisecond coarse.
func sleep(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil)
}

func (p *probe) loop(disk bool, pause time.Duration, act func(), expected time.Duration) {
	for {
		select {
		case <-p.stop:
			return
		default:
		}
		from := history.Now()
		act()
		to := history.Now()
		if time.Duration(to-from)-expected >= leastStall {
			p.mu.Lock()
			p.stalls = append(p.stalls, stall{from + int64(expected), to, disk})
			p.mu.Unlock()
		}
		if pause > 0 {
			sleep(pause)
		}
	}
}

// close ends the probe and returns what it saw.
func (p *probe) close() []stall {
	close(p.stop)
	p.ended.Wait()
	p.file.Close()
	return p.stalls
}

// worst returns the longest stalls that touch a window.
func worst(stalls []stall, w *window) (wake, disk time.Duration) {
	for _, s := range stalls {
		if s.to < w.Start || s.from > w.End {
			continue
		}
		if d := time.Duration(s.to - s.from); s.disk {
			disk = max(disk, d)
		} else {
			wake = max(wake, d)
		}
	}
	return wake, disk
}
