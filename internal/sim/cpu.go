package sim

import (
	"syscall"
	"time"
)

// cpuTime is what this process has used of all processors so far: rates are given per CPU-second, so that they can be compared between
// runs on busy and on idle machines.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
