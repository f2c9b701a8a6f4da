package node

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// maxCPUs is the size of the kernel's mask that is used here.
const maxCPUs = 1024

// pin lets the calling thread run on one processor only.
func pin(cpu int) error {
	if cpu < 0 || cpu >= maxCPUs {
		return fmt.Errorf("there is no processor %d", cpu)
	}
	var mask [maxCPUs / 64]uint64
	mask[cpu/64] = 1 << (cpu % 64)
	if _, _, e := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask))); e != 0 {
		return fmt.Errorf("pin to processor %d: %w", cpu, os.NewSyscallError("sched_setaffinity", e))
	}
	return nil
}
