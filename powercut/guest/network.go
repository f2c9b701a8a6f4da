package guest

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"unsafe"
)

// ifreq is linux/if.h's struct ifreq with an address or flags in it.
type ifreq struct {
	name [16]byte
	data [24]byte
}

func (r *ifreq) address(ip [4]byte) {
	clear(r.data[:])
	binary.LittleEndian.PutUint16(r.data[:], syscall.AF_INET)
	copy(r.data[4:], ip[:])
}

// rtentry is linux/route.h's struct rtentry on 64-bit machines.
type rtentry struct {
	_             uint64
	dst, gw, mask [16]byte
	flags         uint16
	_             [6]byte
	_             [3]uint64
	metric        uint16
	_             [6]byte
	dev           uintptr
	_             [3]uint64
}

func socketCall(number uintptr, arg unsafe.Pointer) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), number, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// configure gives a network device its address and switches it on.
func configure(name string, ip, mask [4]byte) error {
	var r ifreq
	copy(r.name[:], name)
	r.address(ip)
	if err := socketCall(syscall.SIOCSIFADDR, unsafe.Pointer(&r)); err != nil {
		return fmt.Errorf("address of %s: %w", name, err)
	}
	r.address(mask)
	if err := socketCall(syscall.SIOCSIFNETMASK, unsafe.Pointer(&r)); err != nil {
		return fmt.Errorf("mask of %s: %w", name, err)
	}
	clear(r.data[:])
	binary.LittleEndian.PutUint16(r.data[:], syscall.IFF_UP|syscall.IFF_RUNNING)
	if err := socketCall(syscall.SIOCSIFFLAGS, unsafe.Pointer(&r)); err != nil {
		return fmt.Errorf("switch %s on: %w", name, err)
	}
	return nil
}

func defaultRoute(gw [4]byte) error {
	var r rtentry
	for _, a := range []*[16]byte{&r.dst, &r.gw, &r.mask} {
		binary.LittleEndian.PutUint16(a[:], syscall.AF_INET)
	}
	copy(r.gw[4:], gw[:])
	r.flags = syscall.RTF_UP | syscall.RTF_GATEWAY
	if err := socketCall(syscall.SIOCADDRT, unsafe.Pointer(&r)); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return nil
}

// finit is the system call finit_module.
func finit(fd uintptr, params *byte) error {
	const finitModule = 313
	if _, _, errno := syscall.Syscall(finitModule, fd, uintptr(unsafe.Pointer(params)), 0); errno != 0 && errno != syscall.EEXIST {
		return errno
	}
	return nil
}
