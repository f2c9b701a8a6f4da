//go:build linux

package fabric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxFrameBytes is an Ethernet frame of the TAP devices, whose MTU stays 1500.
const maxFrameBytes = 1600

// Tap is one port: the descriptor of a TAP device, and the address of the interface behind it.
type Tap struct {
	File *os.File
	MAC  [6]byte
}

// OpenTap makes a TAP device in the network namespace of the calling thread. Reads and writes of the file are frames; it
// works from any namespace, and the device is gone when it is closed. The file is not for Go's poller, whose timers are a
// millisecond coarse: reads block.
func OpenTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err == nil {
		// Bounded: a receiver that is stopped must not hold up the switch.
		err = unix.IoctlSetPointerInt(fd, unix.TUNSETSNDBUF, 1<<20)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make TAP device %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), "tap:"+name), nil
}

// Switch moves frames between TAP devices, by the destination's address. Broadcasts are lost: the interfaces know their
// neighbours. All methods are safe for concurrent use.
type Switch struct {
	taps  []Tap
	base  time.Time
	ports map[[6]byte]int
	wake  int // an eventfd

	mu     sync.Mutex
	fabric *Fabric
	closed bool
	sleeps bool          // the sender waits
	until  time.Duration // and until when

	ended sync.WaitGroup
}

// Start runs a switch over the devices. It owns their files from here on.
func Start(f *Fabric, taps []Tap) (*Switch, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	s := &Switch{taps: taps, base: time.Now(), ports: make(map[[6]byte]int), wake: wake, fabric: f}
	for i, t := range taps {
		s.ports[t.MAC] = i
	}
	s.ended.Add(1)
	go s.send()
	for i := range taps {
		go s.receive(i)
	}
	return s, nil
}

// Set changes the conditions of one link.
func (s *Switch) Set(from, to int, c Conditions) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fabric.Set(from, to, c)
}

// Counts returns what became of the frames.
func (s *Switch) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fabric.Counts()
}

// Close ends the switch. The readers of devices on which nothing comes end with the process.
func (s *Switch) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.poke()
	s.ended.Wait()
}

func (s *Switch) receive(port int) {
	fd := int(s.taps[port].File.Fd())
	var dst [6]byte
	buf := make([]byte, maxFrameBytes)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return // the device is gone
		}
		if n < 14 {
			continue
		}
		copy(dst[:], buf)
		to, ok := s.ports[dst]
		if !ok || to == port {
			continue
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return
		}
		now := time.Since(s.base)
		s.fabric.Send(now, port, to, append([]byte(nil), buf[:n]...))
		// What is due now goes out from this thread: a switch without delay costs no hand-over. Under the lock, so
		// that frames of a link leave in their order.
		s.flush(now)
		due, held := s.fabric.Next()
		poke := held && s.sleeps && due < s.until
		s.mu.Unlock()
		if poke {
			s.poke()
		}
	}
}

// flush writes what is due. Called with mu held.
func (s *Switch) flush(now time.Duration) {
	for {
		to, data, ok := s.fabric.Due(now)
		if !ok {
			return
		}
		_, _ = unix.Write(int(s.taps[to].File.Fd()), data) // a full queue or a device that is down loses frames, as networks do
	}
}

const never = time.Duration(1<<63 - 1)

func (s *Switch) send() {
	defer s.ended.Done()
	var counter [8]byte
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return
		}
		now := time.Since(s.base)
		s.flush(now)
		due, held := s.fabric.Next()
		if !held {
			due = never
		}
		s.until, s.sleeps = due, true
		s.mu.Unlock()

		var limit *unix.Timespec
		if held {
			t := unix.NsecToTimespec(max(0, int64(due-time.Since(s.base))))
			limit = &t
		}
		_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(s.wake), Events: unix.POLLIN}}, limit, nil) // whatever ended it, look again
		s.mu.Lock()
		s.sleeps = false
		s.mu.Unlock()
		_, _ = unix.Read(s.wake, counter[:])
	}
}

func (s *Switch) poke() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(s.wake, one[:]) // fails only when it is full of pokes
}
