//go:build linux && (amd64 || arm64)

package acktrace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"
)

// call is one system call of the traced process as PTRACE_GET_SYSCALL_INFO describes it. At entry Ret means nothing; at exit
// NR and Args are those of the entry.
type call struct {
	NR   uint64
	Args [6]uint64
	Ret  int64
}

// tracer follows all threads of one child through all their system calls. Its calls stop the child's thread while the
// handlers run, so what they read of its memory is what the kernel was given.
type tracer struct {
	cmd   *exec.Cmd
	mem   *os.File
	entry func(*call) error
	exit  func(*call) error
}

const (
	ptraceGetSyscallInfo = 0x420e
	optSysGood           = 0x1
	optClone             = 0x8
	optExitKill          = 0x100000
	infoEntry            = 1
	infoExit             = 2
	sysStop              = syscall.SIGTRAP | 0x80
)

type syscallInfo struct {
	Op   uint8
	_    [3]uint8
	Arch uint32
	IP   uint64
	SP   uint64
	Data [7]uint64
	_    [2]uint64
}

// run starts the command and follows it to its end. started is called once it runs. All of it happens on this goroutine's
// thread, because ptrace belongs to a thread.
func (t *tracer) run(cmd *exec.Cmd, started func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	t.cmd = cmd
	pid := cmd.Process.Pid
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, syscall.WALL, nil); err != nil || !ws.Stopped() {
		return fmt.Errorf("the child did not stop at its exec: %v, status %x", err, ws)
	}
	if err := syscall.PtraceSetOptions(pid, optSysGood|optClone|optExitKill); err != nil {
		return fmt.Errorf("ptrace options: %w", err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return err
	}
	defer mem.Close()
	t.mem = mem
	if err := syscall.PtraceSyscall(pid, 0); err != nil {
		return err
	}
	started()
	return t.follow(pid)
}

func (t *tracer) follow(pid int) error {
	at := map[int]*call{} // by thread: the call it is in
	var failed error
	for {
		var ws syscall.WaitStatus
		tid, err := syscall.Wait4(-1, &ws, syscall.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.ECHILD):
			return failed
		case err != nil:
			return err
		}
		if ws.Exited() || ws.Signaled() {
			if tid == pid {
				return failed
			}
			continue
		}
		signal := 0
		switch {
		case !ws.Stopped():
		case ws.StopSignal() == sysStop:
			if err := t.stop(tid, at); err != nil && failed == nil {
				failed = err
			}
		case ws.StopSignal() == syscall.SIGTRAP || ws.StopSignal() == syscall.SIGSTOP:
			// a clone event or the first stop of a new thread
		default:
			signal = int(ws.StopSignal())
		}
		if err := syscall.PtraceSyscall(tid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("ptrace of thread %d: %w", tid, err)
		}
	}
}

func (t *tracer) stop(tid int, at map[int]*call) error {
	var info syscallInfo
	_, _, e := syscall.Syscall6(syscall.SYS_PTRACE, ptraceGetSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if e == syscall.ESRCH {
		return nil // killed meanwhile
	}
	if e != 0 {
		return fmt.Errorf("PTRACE_GET_SYSCALL_INFO: %w", e)
	}
	switch info.Op {
	case infoEntry:
		c := &call{NR: info.Data[0]}
		copy(c.Args[:], info.Data[1:7])
		at[tid] = c
		return t.entry(c)
	case infoExit:
		c := at[tid]
		if c == nil {
			return nil // it was inside a call when the trace began
		}
		delete(at, tid)
		c.Ret = int64(info.Data[0])
		return t.exit(c)
	}
	return nil
}

// read copies n bytes of the child's memory.
func (t *tracer) read(addr uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	_, err := t.mem.ReadAt(b, int64(addr))
	return b, err
}

// text reads a zero-terminated string.
func (t *tracer) text(addr uint64) string {
	var out []byte
	for len(out) < 4096 {
		b, err := t.read(addr+uint64(len(out)), 1)
		if err != nil || b[0] == 0 {
			break
		}
		out = append(out, b[0])
	}
	return string(out)
}
