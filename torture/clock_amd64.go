//go:build linux

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// The wall clock of one process is moved in its own copy of the vDSO, the code that the kernel maps into every process to
// read clocks: __vdso_clock_gettime is replaced, before the program's first instruction, by a system call and an addition for
// CLOCK_REALTIME. Setting the machine's clock would disturb everybody else, time namespaces only have the monotonic clock,
// and a static binary has no library to preload.

// clockMoves says that takeClock works here.
const clockMoves = true

// clockCode reads a clock with the system call, and adds the word behind it to the seconds if the clock is number 0.
var clockCode = []byte{
	0xb8, 0xe4, 0, 0, 0, // mov eax, clock_gettime
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi
	0x75, 0x0e, // jne end
	0x85, 0xc0, // test eax, eax
	0x75, 0x0a, // jne end
	0x48, 0x8b, 0x0d, 0x0a, 0, 0, 0, // mov rcx, [rip+10]: at 32
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, // end: ret
	0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
	0, 0, 0, 0, 0, 0, 0, 0, // seconds, at 32
}

const clockWord = 32

// wallClock moves CLOCK_REALTIME of one process.
type wallClock struct {
	mem  string // /proc/PID/mem
	word int64  // address of the seconds
}

// takeClock waits until a child that was started with Ptrace has its program, exchanges the code, and lets it run. Only the
// thread that started the child can do it.
func takeClock(pid int) (*wallClock, error) {
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return nil, fmt.Errorf("wait for the program of pid %d: %w", pid, err)
	}
	if !status.Stopped() {
		return nil, fmt.Errorf("pid %d did not stop at its program: %#x", pid, status)
	}
	c, err := exchange(pid)
	if err != nil {
		return nil, err
	}
	if err := syscall.PtraceDetach(pid); err != nil {
		return nil, fmt.Errorf("let pid %d run: %w", pid, err)
	}
	return c, nil
}

func exchange(pid int) (*wallClock, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	var from, to int64
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "[vdso]") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				return nil, fmt.Errorf("maps of pid %d: %q: %w", pid, line, err)
			}
		}
	}
	c := &wallClock{mem: fmt.Sprintf("/proc/%d/mem", pid)}
	mem, err := os.OpenFile(c.mem, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	image := make([]byte, to-from)
	if _, err := mem.ReadAt(image, from); err != nil {
		return nil, fmt.Errorf("read the vDSO of pid %d: %w", pid, err)
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, fmt.Errorf("the vDSO: %w", err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("the vDSO: %w", err)
	}
	for _, s := range symbols {
		if s.Name != "__vdso_clock_gettime" {
			continue
		}
		// The word must lie within eight bytes' boundaries, so that the process never sees half of a change.
		if s.Size < uint64(len(clockCode)) || s.Value%8 != 0 {
			return nil, fmt.Errorf("__vdso_clock_gettime has %d bytes at %#x; there is no room for other code", s.Size, s.Value)
		}
		if _, err := mem.WriteAt(clockCode, from+int64(s.Value)); err != nil {
			return nil, fmt.Errorf("write the vDSO of pid %d: %w", pid, err)
		}
		c.word = from + int64(s.Value) + clockWord
		return c, nil
	}
	return nil, fmt.Errorf("the vDSO has no __vdso_clock_gettime")
}

// set moves the clock by so much from the machine's, in whole seconds.
func (c *wallClock) set(offset time.Duration) error {
	mem, err := os.OpenFile(c.mem, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], uint64(int64(offset/time.Second)))
	_, err = mem.WriteAt(word[:], c.word)
	return err
}
