//go:build linux && (amd64 || arm64)

package ring

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// TestCloseLeavesNothing: neither descriptors nor mappings stay behind, and the port is free again, whatever was under way.
func TestCloseLeavesNothing(t *testing.T) { eachEngine(t, testCloseLeavesNothing) }

func testCloseLeavesNothing(t *testing.T) {
	count := func(what string) int {
		text, err := os.ReadDir("/proc/self/" + what)
		if err != nil {
			t.Fatal(err)
		}
		return len(text)
	}
	rings := func() int {
		text, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "io_uring")
	}
	addr := "127.0.0.1:0"
	fds := count("fd")
	for range 20 {
		s, _, _, err := Open(netip.MustParseAddrPort(addr), Config{}, underTest)
		if err != nil {
			t.Fatalf("the port of the one before: %v", err)
		}
		addr = s.LocalAddr().String()
		s.Send(s.LocalAddr(), []byte("to itself"))
		if ev, err := s.Wait(patience); ev != Readable || err != nil {
			t.Fatalf("%v, %v", ev, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if now := count("fd"); now > fds {
		t.Errorf("%d descriptors before, %d after", fds, now)
	}
	if n := rings(); n > 0 {
		t.Errorf("%d mappings of rings are left", n)
	}
}

// TestManyMoreThanBuffers: what comes while the owner is away is neither lost nor out of order as long as the socket has room.
func TestManyMoreThanBuffers(t *testing.T) { eachEngine(t, testManyMoreThanBuffers) }

func testManyMoreThanBuffers(t *testing.T) {
	a, b := listen(t, "127.0.0.1:0", Config{}), listen(t, "127.0.0.1:0", Config{Batch: 8})
	if ev, err := b.Wait(0); ev != 0 || err != nil { // io_uring begins to receive
		t.Fatalf("%v, %v", ev, err)
	}
	const n = 300
	for i := range n {
		a.Send(b.LocalAddr(), []byte{byte(i), byte(i >> 8)})
	}
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	_, got := receive(t, b, n)
	for i, d := range got {
		if int(d[0])|int(d[1])<<8 != i {
			t.Fatalf("datagram %d is %v", i, d)
		}
	}
}

// TestSpin: a loop that spins hears of datagrams, Wake and the deadline as one that sleeps.
func TestSpin(t *testing.T) { eachEngine(t, testSpin) }

func testSpin(t *testing.T) {
	s := listen(t, "127.0.0.1:0", Config{Spin: time.Millisecond, BusyPoll: 50 * time.Microsecond})
	if ev, err := s.Wait(2 * time.Millisecond); ev != 0 || err != nil {
		t.Fatalf("%v, %v", ev, err)
	}
	s.Wake()
	if ev, err := s.Wait(patience); ev != Woken || err != nil {
		t.Fatalf("%v, %v", ev, err)
	}
	s.Send(s.LocalAddr(), []byte("x"))
	if ev, err := s.Wait(patience); ev != Readable || err != nil {
		t.Fatalf("%v, %v", ev, err)
	}
}

// TestSpinDoesNotSleep: what comes while a loop spins is answered without a wait that the kernel ends.
func TestSpinDoesNotSleep(t *testing.T) { eachEngine(t, testSpinDoesNotSleep) }

func testSpinDoesNotSleep(t *testing.T) {
	a := listen(t, "127.0.0.1:0", Config{})
	sleeps := func(spin time.Duration, wait func(Loop)) uint64 {
		s := listen(t, "127.0.0.1:0", Config{Spin: spin})
		before := s.Stats().Sleeps
		wait(s)
		return s.Stats().Sleeps - before
	}
	nothing := func(s Loop) {
		if ev, err := s.Wait(2 * time.Millisecond); ev != 0 || err != nil {
			t.Fatalf("%v, %v", ev, err)
		}
	}
	if n := sleeps(0, nothing); n != 1 {
		t.Errorf("a loop that does not spin has slept %d times", n)
	}
	if n := sleeps(time.Millisecond, nothing); n != 1 {
		t.Errorf("a loop that has spun in vain has slept %d times", n)
	}
	const n = 50
	if got := sleeps(patience, func(s Loop) {
		b := a.NewBatch(1)
		for range n {
			done := make(chan error)
			go func() {
				b.Add(s.LocalAddr(), []byte("x"))
				_, err := a.SendBatch(b)
				done <- err
			}()
			for {
				ev, err := s.Wait(patience)
				if err != nil {
					t.Fatal(err)
				}
				if ev&Readable != 0 {
					break
				}
			}
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}); got != 0 {
		t.Errorf("a loop that spins has slept %d times for %d datagrams", got, n)
	}
}

// TestCallsPerAnswer: a datagram that is answered costs one call into the ring, or three plain ones.
func TestCallsPerAnswer(t *testing.T) { eachEngine(t, testCallsPerAnswer) }

func testCallsPerAnswer(t *testing.T) {
	a, b := listen(t, "127.0.0.1:0", Config{}), listen(t, "127.0.0.1:0", Config{})
	one := func() {
		a.Send(b.LocalAddr(), []byte("question"))
		if err := a.Flush(); err != nil {
			t.Fatal(err)
		}
		if ev, err := b.Wait(patience); ev != Readable || err != nil {
			t.Fatalf("%v, %v", ev, err)
		}
		packets, err := b.Recv()
		if err != nil || len(packets) != 1 {
			t.Fatalf("%d packets, %v", len(packets), err)
		}
		b.Send(packets[0].From, []byte("answer"))
	}
	one()
	before := b.Stats()
	const n = 100
	for range n {
		one()
	}
	s := b.Stats()
	calls := s.Enters + s.PollCalls + s.ReceiveCalls + s.SendCalls - before.Enters - before.PollCalls - before.ReceiveCalls - before.SendCalls
	want := uint64(3 * n)
	if underTest == URing {
		want = n
	}
	if calls != want {
		t.Errorf("%d calls for %d answers, want %d: %+v", calls, n, want, s)
	}
}

func TestRecvWait(t *testing.T) {
	s, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"), Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if packets, err := s.RecvWait(); len(packets) != 0 || err != nil {
		t.Fatalf("%d packets, %v", len(packets), err)
	}
	s.Send(s.LocalAddr(), []byte("x"))
	got := 0
	for deadline := time.Now().Add(patience); got == 0; {
		packets, err := s.RecvWait()
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d packets, %v", len(packets), err)
		}
		got += len(packets)
	}
}

const refusedRole = "RING_TEST_IO_URING_REFUSED"

// TestWithoutURing runs Open in a process whose system calls are filtered, as containers' are.
func TestWithoutURing(t *testing.T) {
	if os.Getenv(refusedRole) != "" {
		refuseURing(t)
		l, taken, why, err := Open(netip.MustParseAddrPort("127.0.0.1:0"), Config{}, URing)
		if err != nil || taken != Plain || !errors.Is(why, syscall.EPERM) {
			t.Fatalf("%s, because %v; %v", taken, why, err)
		}
		defer l.Close()
		l.Send(l.LocalAddr(), []byte("x"))
		if ev, err := l.Wait(patience); ev != Readable || err != nil {
			t.Fatalf("%v, %v", ev, err)
		}
		if !strings.Contains(why.Error(), "io_uring") {
			t.Fatalf("the reason does not name what it is about: %v", why)
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestWithoutURing$", "-test.v")
	cmd.Env = append(os.Environ(), refusedRole+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// refuseURing filters io_uring_setup for the whole process.
func refuseURing(t *testing.T) {
	type instruction struct {
		code   uint16
		jt, jf uint8
		k      uint32
	}
	const setMode, tsync, setNoNewPrivs = 1, 1, 38
	program := []instruction{
		{0x20, 0, 0, 0},                                  // load the system call's number
		{0x15, 0, 1, sysUringSetup},                      // if it is this one
		{0x06, 0, 0, 0x00050000 | uint32(syscall.EPERM)}, // refuse it
		{0x06, 0, 0, 0x7fff0000},
	}
	filter := struct {
		n uint16
		p *instruction
	}{uint16(len(program)), &program[0]}
	runtime.LockOSThread() // the filter brings both to all threads
	defer runtime.UnlockOSThread()
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, setNoNewPrivs, 1, 0, 0, 0, 0); e != 0 {
		t.Fatal(e)
	}
	seccomp := map[string]uintptr{"amd64": 317, "arm64": 277}[runtime.GOARCH]
	if _, _, e := syscall.RawSyscall(seccomp, setMode, tsync, uintptr(unsafe.Pointer(&filter))); e != 0 {
		t.Fatal(fmt.Errorf("seccomp: %w", e))
	}
}
