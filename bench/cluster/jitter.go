package cluster

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/btrlog/btrlog/lst/vfs"
)

// Jitter is a delay that a device adds to every synced write: exponential with the given mean, and with some chance a stall that is uniform
// between two bounds. Each node draws its own from its own seed. The zero value adds nothing.
type Jitter struct {
	Mean                 time.Duration
	StallChance          float64
	StallLeast, StallMax time.Duration
	Seed                 uint64
}

// String names the distribution.
func (j Jitter) String() string {
	if j == (Jitter{Seed: j.Seed}) {
		return "none"
	}
	return fmt.Sprintf("exponential with a mean of %v, and a stall of %v to %v, uniform, with a chance of %g %%", j.Mean, j.StallLeast, j.StallMax, j.StallChance*100)
}

// jitterFS is a file system on a device that is late.
type jitterFS struct {
	vfs.FS
	j Jitter

	mu  sync.Mutex
	rng *rand.Rand
}

func newJitterFS(below vfs.FS, j Jitter) *jitterFS {
	return &jitterFS{FS: below, j: j, rng: rand.New(rand.NewPCG(j.Seed, 2))}
}

func (f *jitterFS) draw() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.j.Draw(f.rng)
}

// Draw is one delay.
func (j Jitter) Draw(rng *rand.Rand) time.Duration {
	d := time.Duration(rng.ExpFloat64() * float64(j.Mean))
	if rng.Float64() < j.StallChance {
		d += j.StallLeast + time.Duration(rng.Float64()*float64(j.StallMax-j.StallLeast))
	}
	return d
}

const prSetTimerslack = 29

// wait is the delay. The shard's thread waits in the kernel, as it does for a device.
func (f *jitterFS) wait() {
	d := f.draw()
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerslack, 1, 0) // without it some 50 µs late
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil)
}

func (f *jitterFS) Create(name string, flag vfs.Flag) (vfs.File, error) {
	return f.wrap(flag)(f.FS.Create(name, flag))
}

func (f *jitterFS) Open(name string, flag vfs.Flag) (vfs.File, error) {
	return f.wrap(flag)(f.FS.Open(name, flag))
}

func (f *jitterFS) wrap(flag vfs.Flag) func(vfs.File, error) (vfs.File, error) {
	return func(file vfs.File, err error) (vfs.File, error) {
		if err != nil || flag&vfs.ReadOnly != 0 {
			return file, err
		}
		return &jitterFile{file, f, flag&vfs.DSync != 0}, nil
	}
}

type jitterFile struct {
	vfs.File
	fs    *jitterFS
	dsync bool
}

// Fd is none, so that every write comes through here.
func (f *jitterFile) Fd() uintptr { return ^uintptr(0) }

func (f *jitterFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	if f.dsync {
		f.fs.wait()
	}
	return n, err
}

func (f *jitterFile) Sync() error {
	err := f.File.Sync()
	f.fs.wait()
	return err
}
