package guest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// The interface of the device mapper: linux/dm-ioctl.h.
const (
	dmHeaderBytes = 312
	dmTargetBytes = 40
	dmCreate      = 3
	dmRemove      = 4
	dmSuspend     = 6
	dmTableLoad   = 9

	dmSuspendFlag = 1 << 1
	dmSkipLockFS  = 1 << 10 // a suspend that does not sync the file system first: it is to lose what it has not written
)

type dmHeader struct {
	Version     [3]uint32
	DataSize    uint32
	DataStart   uint32
	TargetCount uint32
	OpenCount   int32
	Flags       uint32
	EventNr     uint32
	_           uint32
	Dev         uint64
	Name        [128]byte
	UUID        [129]byte
	_           [7]byte
}

type dmTarget struct {
	Start, Sectors uint64
	Status         int32
	Next           uint32
	Type           [16]byte
}

// mapped is one device of the device mapper that covers a whole block device.
type mapped struct {
	name    string // of the device below, and of this one
	sectors uint64
}

func dmCall(command uintptr, h *dmHeader, data []byte) error {
	f, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Version = [3]uint32{4, 0, 0}
	h.DataStart = dmHeaderBytes
	h.DataSize = uint32(dmHeaderBytes + len(data))
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, h); err != nil {
		return err
	}
	b.Write(data)
	buf := b.Bytes()
	number := uintptr(3<<30 | dmHeaderBytes<<16 | 0xfd<<8 | command)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), number, uintptr(unsafe.Pointer(&buf[0]))); errno != 0 {
		return fmt.Errorf("device mapper, command %d on %q: %w", command, bytes.TrimRight(h.Name[:], "\x00"), errno)
	}
	return binary.Read(bytes.NewReader(buf[:dmHeaderBytes]), binary.LittleEndian, h)
}

func (m mapped) header() *dmHeader {
	h := new(dmHeader)
	copy(h.Name[:], m.name)
	return h
}

func (m mapped) path() string { return "/dev/cut-" + m.name }

// create makes the device, passing everything.
func (m mapped) create() error {
	h := m.header()
	if err := dmCall(dmCreate, h, nil); err != nil {
		return err
	}
	if err := syscall.Mknod(m.path(), syscall.S_IFBLK|0o600, int(h.Dev)); err != nil && err != syscall.EEXIST {
		return fmt.Errorf("mknod %s: %w", m.path(), err)
	}
	if err := m.load("linear", fmt.Sprintf("/dev/%s 0", m.name)); err != nil {
		return err
	}
	return m.resume()
}

func (m mapped) load(kind, params string) error {
	h := m.header()
	h.TargetCount = 1
	t := dmTarget{Sectors: m.sectors}
	copy(t.Type[:], kind)
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, t); err != nil {
		return err
	}
	b.WriteString(params)
	b.WriteByte(0)
	for b.Len()%8 != 0 {
		b.WriteByte(0)
	}
	return dmCall(dmTableLoad, h, b.Bytes())
}

func (m mapped) resume() error { return dmCall(dmSuspend, m.header(), nil) }

// suspend lets requests that are on their way end and makes all others wait.
func (m mapped) suspend() error {
	h := m.header()
	h.Flags = dmSuspendFlag | dmSkipLockFS
	return dmCall(dmSuspend, h, nil)
}

// drop ends a suspend with a device that answers writes and flushes and forgets them.
func (m mapped) drop() error {
	if err := m.load("flakey", fmt.Sprintf("/dev/%s 0 0 86400 1 drop_writes", m.name)); err != nil {
		return err
	}
	return m.resume()
}

// pass puts the device below back, after a drop.
func (m mapped) pass() error {
	if err := m.load("linear", fmt.Sprintf("/dev/%s 0", m.name)); err != nil {
		return err
	}
	if err := m.suspend(); err != nil {
		return err
	}
	return m.resume()
}
