package load

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

const prSetTimerslack = 29

// pace readies the calling goroutine for until, up to the call of what it returns.
func pace() func() {
	runtime.LockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerslack, 1, 0) // wakes in time; without it some 50 µs late
	return runtime.UnlockOSThread
}

// until waits in the kernel for a moment after began: the runtime's timers are up to a millisecond late.
func until(began time.Time, due time.Duration) {
	if wait := due - time.Since(began); wait > 0 {
		ts := syscall.NsecToTimespec(int64(wait))
		_ = syscall.Nanosleep(&ts, nil) // an early wake sends early by a little
	}
}

func ownProcessor() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// bind binds all threads of this process, and those that they make, to processors.
func bind(cpus []int) error {
	var mask [16]uint64
	for _, c := range cpus {
		mask[c/64] |= 1 << (c % 64)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if _, _, e := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, uintptr(tid), unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask[0]))); e != 0 && e != syscall.ESRCH {
			return e
		}
	}
	runtime.GOMAXPROCS(len(cpus))
	return nil
}
