package node

import (
	"runtime"
	"syscall"
)

// backgroundNice is how much nicer than the rest of the process, in the kernel's sense, a thread is that archives.
const backgroundNice = 10

// giveWay binds the calling goroutine to a thread of its own, until it ends, that gets a processor when nobody else wants it, or a tenth of
// one. A segment is hashed, compressed and signed in stretches of up to tens of milliseconds, and a shard's thread that wakes up must not wait for
// the end of one: where processors are few that is the longest wait of an append.
func giveWay() {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	// Neither call fails for the caller itself, and if one did, only the archiving would be in the way.
	if raw, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0); err == nil {
		nice := 20 - raw // the system call's answer is never negative
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, min(nice+backgroundNice, 19))
	}
}

// yieldBytes is after how many bytes of records an archiving thread lets others have its processor: some tens of microseconds' worth.
const yieldBytes = 16 << 10

// letOthers lets whoever waits for this thread's processor have it. The kernel looks by itself only every few milliseconds who has had his
// share, and a shard that woke up meanwhile waits for that.
func letOthers() {
	_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // it cannot fail
}
